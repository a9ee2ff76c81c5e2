//! The engine's side of many queues: it finds the queues whose doorbells were rung, and begins their entries. Called by the owner of the
//! executor.
//!
//! A pass polls only queues that were rung or have work left, and does a bounded amount of work.

use alloc::boxed::Box;
use alloc::vec::Vec;

use trunkline_proto::reserve::{OutOfMemory, try_filled, try_grow};
use trunkline_proto::table_capacity::try_hold;
use trunkline_proto::wire::device_queue::CompanionWord;

use crate::bells::BellPage;
use crate::consumer::QueueConsumer;
use crate::job::{ExecutorRules, JobExecutor, JobOutcome};
use crate::memory::WordMemory;
use crate::progress::QueueProgress;
use crate::queue::DeviceQueue;

/// Most jobs of one queue per pass, so that each queue gets its turn.
pub const BATCH: u32 = 16;

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DrainPass {
    /// Jobs begun.
    pub begun: u32,
    /// Queues with work left.
    pub busy: u32,
}

#[derive(Debug)]
struct DrainedQueue<M> {
    queue: DeviceQueue<M>,
    consumer: QueueConsumer<M>,
    /// Whether it is listed in [`QueueDrain::busy`].
    is_busy: bool,
}

/// The queues of one engine.
#[derive(Debug)]
pub struct QueueDrain<M> {
    page: BellPage<M>,
    members: Vec<DrainedQueue<M>>,
    /// Progress of each member.
    progress: Vec<QueueProgress>,
    /// Members by queue number, sorted.
    by_number: Vec<(u32, usize)>,
    /// Members by doorbell.
    by_bell: Box<[Option<usize>]>,
    /// Members that were rung or have work left. A pass skips all others.
    busy: Vec<usize>,
    /// Members with an unanswered request for a companion.
    asked: Vec<usize>,
}

#[inline]
fn find_index(by_number: &[(u32, usize)], number: u32) -> Option<usize> {
    // Queue numbers usually count from 0 without gaps, so the number is tried as the index first.
    if let Some(&(_, member)) = by_number.get(number as usize).filter(|known| known.0 == number) {
        return Some(member);
    }
    let at = by_number.binary_search_by_key(&number, |&(number, _)| number).ok()?;
    by_number.get(at).map(|&(_, member)| member)
}

impl<M: WordMemory + Clone> QueueDrain<M> {
    /// Creates a drain without queues, for doorbells on `page`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(page: BellPage<M>) -> Result<Self, OutOfMemory> {
        let by_bell = try_filled(None, page.bell_count() as usize)?;
        let progress = Vec::new();
        let by_number = Vec::new();
        let busy = Vec::new();
        let asked = Vec::new();
        Ok(Self { page, members: Vec::new(), progress, by_number, by_bell, busy, asked })
    }

    /// Adds a queue. Returns `false` if its doorbell is in use or not on the page, or its number is in use.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the queue was not added.
    pub fn add_queue(&mut self, queue: DeviceQueue<M>, rules: ExecutorRules) -> Result<bool, OutOfMemory> {
        let bell = queue.queue_shape().bell();
        let number = queue.queue_shape().number();
        let Err(place) = self.by_number.binary_search_by_key(&number, |&(number, _)| number) else {
            return Ok(false);
        };
        let Some(of_bell) = self.by_bell.get_mut(bell as usize).filter(|of| of.is_none()) else {
            return Ok(false);
        };
        let consumer = QueueConsumer::new(&queue, rules)?;
        try_grow(&mut self.members, 1)?;
        try_grow(&mut self.by_number, 1)?;
        try_grow(&mut self.progress, 1)?;
        // Memory is reserved here, so that a pass allocates nothing.
        try_hold(&mut self.busy, self.members.len() + 1)?;
        try_hold(&mut self.asked, self.members.len() + 1)?;
        *of_bell = Some(self.members.len());
        self.by_number.insert(place, (number, self.members.len()));
        self.progress.push(consumer.queue_progress());
        self.members.push(DrainedQueue { queue, consumer, is_busy: false });
        // The doorbell may have been rung before this call, and its bit already been taken. So its value is read once.
        self.handle_doorbell(bell, self.page.read_bell(bell));
        Ok(true)
    }

    /// Removes a queue, if all its submitted entries have completed: its number and doorbell are then free. Returns `false` if work is left
    /// or the number is unknown. Doorbells that its producers ring later reach no queue, or the next queue with that doorbell.
    pub fn remove(&mut self, number: u32) -> bool {
        let Ok(place) = self.by_number.binary_search_by_key(&number, |&(number, _)| number) else {
            return false;
        };
        let Some(&(_, at)) = self.by_number.get(place) else { return false };
        let Some(member) = self.members.get(at).filter(|member| member.consumer.is_idle()) else {
            return false;
        };
        let bell = member.queue.queue_shape().bell();
        self.by_number.remove(place);
        self.by_bell[bell as usize] = None;
        self.busy.retain(|busy| *busy != at);
        self.asked.retain(|asked| *asked != at);
        self.members.swap_remove(at);
        self.progress.swap_remove(at);
        // The last member was moved to this index, so its references are updated.
        let last = self.members.len();
        let known =
            self.by_number.iter_mut().map(|(_, known)| known).chain(self.by_bell.iter_mut().flatten());
        for known in known.chain(&mut self.busy).chain(&mut self.asked).filter(|known| **known == last) {
            *known = at;
        }
        true
    }

    /// Returns the progress of a queue.
    #[must_use]
    pub fn queue_progress(&self, number: u32) -> Option<QueueProgress> {
        find_index(&self.by_number, number).and_then(|at| self.progress.get(at)).copied()
    }

    /// Returns the number of a queue with an unanswered request for a companion.
    #[must_use]
    pub fn asked_companion(&self) -> Option<u32> {
        let member = self.asked.first().and_then(|at| self.members.get(*at));
        member.map(|member| member.queue.queue_shape().number())
    }

    /// Replies to the request for a companion of a queue.
    pub fn answer_companion(&mut self, number: u32, companion: CompanionWord) {
        let Some(at) = find_index(&self.by_number, number) else { return };
        self.asked.retain(|asked| *asked != at);
        if let Some(member) = self.members.get(at) {
            member.queue.answer_companion(companion);
        }
    }

    /// Takes the outcome of a job. Returns `false` if no job is in progress at this index.
    pub fn end_job(&mut self, number: u32, index: u64, outcome: JobOutcome) -> bool {
        let Some(at) = find_index(&self.by_number, number) else { return false };
        let (Some(member), Some(progress)) = (self.members.get_mut(at), self.progress.get_mut(at)) else {
            return false;
        };
        let ended = member.consumer.end_job(index, outcome);
        *progress = member.consumer.queue_progress();
        ended
    }

    /// Makes one pass: reads the doorbells that were rung, and begins entries.
    pub fn run_pass(&mut self, port: &mut impl JobExecutor) -> DrainPass {
        for group in 0..self.page.group_count() {
            let mut bits = self.page.take_group(group);
            // The bit was cleared before the doorbell is read. A producer that stores the doorbell later sets the bit again, so no doorbell
            // is lost.
            while bits != 0 {
                let bell = self.page.doorbell_layout().bell_of(group, bits.trailing_zeros());
                bits &= bits - 1;
                // A hostile producer may set bits of doorbells that do not exist.
                if bell >= self.page.bell_count() {
                    continue;
                }
                self.handle_doorbell(bell, self.page.read_bell(bell));
            }
        }
        let mut pass = DrainPass::default();
        let mut busy = core::mem::take(&mut self.busy);
        let mut kept = 0;
        for place in 0..busy.len() {
            let Some(&at) = busy.get(place) else { break };
            let (begun, stays) = self.drain_queue(at, port);
            pass.begun += begun;
            if let Some(stay) = busy.get_mut(kept).filter(|_| stays) {
                *stay = at;
                kept += 1;
            }
        }
        busy.truncate(kept);
        pass.busy = kept as u32;
        self.busy = busy;
        pass
    }

    /// Processes the value of a doorbell, and lists the queue as busy.
    #[inline]
    fn handle_doorbell(&mut self, bell: u32, says: u64) {
        let Some(&Some(at)) = self.by_bell.get(bell as usize) else { return };
        let Some(member) = self.members.get_mut(at) else { return };
        member.consumer.handle_doorbell(says);
        if !member.is_busy {
            member.is_busy = true;
            self.busy.push(at);
        }
        if member.consumer.is_asked_for_companion() && !self.asked.contains(&at) {
            self.asked.push(at);
        }
    }

    /// Drains one queue. Returns the number of jobs begun, and whether work is left.
    #[inline]
    fn drain_queue(&mut self, at: usize, port: &mut impl JobExecutor) -> (u32, bool) {
        let Self { members, progress, by_number, .. } = self;
        let Some(member) = members.get_mut(at) else { return (0, false) };
        let others = |queue| find_index(by_number, queue).and_then(|at| progress.get(at)).copied();
        let begun = member.consumer.begin_jobs(BATCH, &others, port);
        member.is_busy = !member.consumer.is_idle();
        if let Some(progress) = progress.get_mut(at) {
            *progress = member.consumer.queue_progress();
        }
        (begun, member.is_busy)
    }
}
