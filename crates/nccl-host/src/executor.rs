//! The progress loop: runs schedules over the connections of one communicator, as NCCL's proxy does.
//!
//! Owned by the progress thread. Each direction of each connection has at most eight steps in flight. They are posted
//! in order, tested oldest first, and retried with the same arguments while the plugin returns "call again". It makes
//! no connection and registers nothing.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

use trunkline_sys::nccl_net::NET_RECVS_MAX;

use crate::abi::PluginCallError;
use crate::comm::{NetRecvPart, NetRequest};
use crate::links::{CommMemory, PeerCallError, RankLinks, error_from, error_to};
use crate::reduce;
use crate::schedule::{BufferOffset, BufferSpace, NONE, RankSchedule, STEPS_IN_FLIGHT, StepId, StepWork};
use crate::types::{DataType, RedOp};
use crate::wait::SpinWait;

/// The positions of a schedule's three buffers: index of the memory, byte offset in it.
pub(crate) type BufferBases = [(usize, usize); 3];

/// One run of a collective.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveRun {
    pub(crate) schedule: Arc<RankSchedule>,
    pub(crate) bases: BufferBases,
    pub(crate) dtype: DataType,
    pub(crate) op: RedOp,
    pub(crate) ranks: usize,
}

/// A posted step.
#[derive(Clone, Copy, Debug)]
struct PostedStep {
    step: StepId,
    request: NetRequest,
    flushing: bool,
}

/// One direction of one connection, or one queue of local steps.
#[derive(Debug, Default)]
struct StepCursor {
    next: usize,
    flights: VecDeque<PostedStep>,
}

/// How a communicator receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveOptions {
    /// Fewest bytes of a receive. Bytes behind a shorter message stay as they are.
    pub(crate) least: usize,
    /// Whether each receive is flushed.
    pub(crate) flush: bool,
}

/// The state of the progress thread.
#[derive(Debug)]
pub(crate) struct ScheduleExecutor {
    pub(crate) links: Arc<RankLinks>,
    pub(crate) memory: Arc<CommMemory>,
    pub(crate) waiting: SpinWait,
    pub(crate) receives: ReceiveOptions,
    done: Vec<bool>,
    sends: Vec<StepCursor>,
    recvs: Vec<StepCursor>,
    locals: Vec<StepCursor>,
}

impl ScheduleExecutor {
    pub(crate) fn new(
        links: Arc<RankLinks>,
        memory: Arc<CommMemory>,
        receives: ReceiveOptions,
        threads: usize,
    ) -> Self {
        Self {
            links,
            memory,
            waiting: SpinWait::new(threads),
            receives,
            done: Vec::new(),
            sends: Vec::new(),
            recvs: Vec::new(),
            locals: Vec::new(),
        }
    }

    /// Runs a schedule once.
    pub(crate) fn run_schedule(&mut self, job: &CollectiveRun) -> Result<(), PeerCallError> {
        let steps = job.schedule.steps.len();
        self.done.clear();
        self.done.resize(steps, false);
        reset_cursors(&mut self.sends, job.schedule.send_queues.len());
        reset_cursors(&mut self.recvs, job.schedule.recv_queues.len());
        reset_cursors(&mut self.locals, job.schedule.local_queues.len());
        let mut left = steps;
        while left > 0 {
            let before = left;
            let mut posted = false;
            for link in 0..self.recvs.len() {
                left -= self.finish_recvs(job, link)?;
                posted |= self.post_recvs(job, link)?;
            }
            for link in 0..self.sends.len() {
                left -= self.finish_sends(link)?;
                posted |= self.post_sends(job, link)?;
            }
            for queue in 0..self.locals.len() {
                left -= self.run_local(job, queue);
            }
            if posted || left != before {
                self.waiting.note_progress();
            } else {
                self.waiting.wait_once();
            }
        }
        Ok(())
    }

    fn is_ready(&self, after: [StepId; 2]) -> bool {
        after.iter().all(|id| *id == NONE || self.done[*id as usize])
    }

    fn place_address(&self, job: &CollectiveRun, place: BufferOffset) -> (usize, *mut u8) {
        let (memory, base) = job.bases[space_index(place.space)];
        (memory, self.memory.buffers[memory].as_ptr().wrapping_add(base + place.offset))
    }

    fn finish_sends(&mut self, link: usize) -> Result<usize, PeerCallError> {
        let mut finished = 0;
        while let Some(flight) = self.sends[link].flights.front().copied() {
            let row = &self.links.send[link];
            // SAFETY: the request is in flight on this connection, and leaves the queue when it is complete.
            if !unsafe { row.comm.test(flight.request, None) }.map_err(error_to(row.peer))? {
                break;
            }
            self.sends[link].flights.pop_front();
            self.done[flight.step as usize] = true;
            finished += 1;
        }
        Ok(finished)
    }

    fn post_sends(&mut self, job: &CollectiveRun, link: usize) -> Result<bool, PeerCallError> {
        let mut posted = false;
        while self.sends[link].flights.len() < STEPS_IN_FLIGHT {
            let Some(id) = job.schedule.send_queues[link].get(self.sends[link].next).copied() else { break };
            let step = job.schedule.steps[id as usize];
            let StepWork::Send { from, .. } = step.work else { break };
            if !self.is_ready(step.after) {
                break;
            }
            let (memory, data) = self.place_address(job, from);
            let row = &self.links.send[link];
            // SAFETY: the extent is inside registered memory, and no step writes it before this one is done.
            let request = unsafe { row.comm.isend(data, step.bytes, row.tag, row.mrs[memory]) };
            let Some(request) = request.map_err(error_to(row.peer))? else { break };
            let cursor = &mut self.sends[link];
            cursor.flights.push_back(PostedStep { step: id, request, flushing: false });
            cursor.next += 1;
            posted = true;
        }
        Ok(posted)
    }

    /// Posts the receive of a step.
    fn recv_part(&self, job: &CollectiveRun, link: usize, id: StepId) -> Option<NetRecvPart> {
        let step = job.schedule.steps[id as usize];
        let StepWork::Recv { into, .. } = step.work else { return None };
        let (memory, data) = self.place_address(job, into);
        let row = &self.links.recv[link];
        Some(NetRecvPart { data, bytes: step.bytes, tag: row.tag, mr: row.mrs[memory] })
    }

    fn post_recvs(&mut self, job: &CollectiveRun, link: usize) -> Result<bool, PeerCallError> {
        let mut posted = false;
        while self.recvs[link].flights.len() < STEPS_IN_FLIGHT {
            let Some(id) = job.schedule.recv_queues[link].get(self.recvs[link].next).copied() else { break };
            if !self.is_ready(job.schedule.steps[id as usize].after) {
                break;
            }
            let Some(mut part) = self.recv_part(job, link, id) else { break };
            part.bytes = part.bytes.max(self.receives.least);
            let row = &self.links.recv[link];
            // SAFETY: the extent is inside registered memory. The message has the length of the step, and no other
            // step accesses those bytes before this one is done; the plugin does not write the bytes behind them.
            let request = unsafe { row.comm.irecv(&[part], false) };
            let Some(request) = request.map_err(error_from(row.peer))? else { break };
            let cursor = &mut self.recvs[link];
            cursor.flights.push_back(PostedStep { step: id, request, flushing: false });
            cursor.next += 1;
            posted = true;
        }
        Ok(posted)
    }

    fn finish_recvs(&mut self, job: &CollectiveRun, link: usize) -> Result<usize, PeerCallError> {
        let mut finished = 0;
        while let Some(flight) = self.recvs[link].flights.front().copied() {
            let row = &self.links.recv[link];
            let mut sizes: [c_int; NET_RECVS_MAX] = [-1; NET_RECVS_MAX];
            // SAFETY: the request is in flight on this connection, and is not tested again once it is complete.
            if !unsafe { row.comm.test(flight.request, Some(&mut sizes)) }.map_err(error_from(row.peer))? {
                break;
            }
            if !flight.flushing {
                let bytes = job.schedule.steps[flight.step as usize].bytes;
                check_size(sizes[0], bytes).map_err(error_from(row.peer))?;
                if self.receives.flush && bytes > 0 && self.start_flush(job, link, flight.step)? {
                    continue;
                }
            }
            self.recvs[link].flights.pop_front();
            self.done[flight.step as usize] = true;
            finished += 1;
        }
        Ok(finished)
    }

    /// Starts the flush of the oldest receive; returns `false` if there is nothing to wait for.
    fn start_flush(&mut self, job: &CollectiveRun, link: usize, id: StepId) -> Result<bool, PeerCallError> {
        let Some(part) = self.recv_part(job, link, id) else { return Ok(false) };
        let row = &self.links.recv[link];
        // SAFETY: the receive of this extent is complete, and the memory is registered.
        let request = unsafe { row.comm.iflush(&[part]) }.map_err(error_from(row.peer))?;
        let Some(request) = request else { return Ok(false) };
        if let Some(front) = self.recvs[link].flights.front_mut() {
            *front = PostedStep { step: id, request, flushing: true };
        }
        Ok(true)
    }

    /// Runs at most one local step, so that the network is polled between two of them.
    fn run_local(&mut self, job: &CollectiveRun, queue: usize) -> usize {
        let Some(id) = job.schedule.local_queues[queue].get(self.locals[queue].next).copied() else {
            return 0;
        };
        let step = job.schedule.steps[id as usize];
        if !self.is_ready(step.after) {
            return 0;
        }
        match step.work {
            StepWork::Reduce { into, a, b, last } => self.reduce_step(job, [into, a, b], step.bytes, last),
            StepWork::Copy { into, from } => {
                let into = self.place_address(job, into).1;
                let from = self.place_address(job, from).1;
                // SAFETY: both extents are inside the memory, and a schedule never copies within one buffer.
                unsafe { std::ptr::copy_nonoverlapping(from, into, step.bytes) };
            }
            StepWork::Send { .. } | StepWork::Recv { .. } => {}
        }
        self.done[id as usize] = true;
        self.locals[queue].next += 1;
        1
    }

    fn reduce_step(&self, job: &CollectiveRun, places: [BufferOffset; 3], bytes: usize, last: bool) {
        let [into, a, b] = places.map(|place| self.place_address(job, place).1);
        // Every operator commutes, so the operand that is the result can be the first.
        let (a, b) = if into == b { (b, a) } else { (a, b) };
        // SAFETY: the extent is inside the memory, and no other step accesses it now.
        let into_slice = unsafe { std::slice::from_raw_parts_mut(into, bytes) };
        // SAFETY: as above; an operand of a schedule either is the result itself or does not overlap it.
        let b = unsafe { std::slice::from_raw_parts(b, bytes) };
        if into == a {
            reduce::reduce_in_place(job.dtype, job.op, into_slice, b);
        } else {
            // SAFETY: as above.
            let a = unsafe { std::slice::from_raw_parts(a, bytes) };
            reduce::reduce_into(job.dtype, job.op, into_slice, a, b);
        }
        if last && job.op == RedOp::Avg {
            reduce::divide_elements(job.dtype, into_slice, job.ranks as u32);
        }
    }
}

fn space_index(space: BufferSpace) -> usize {
    match space {
        BufferSpace::Send => 0,
        BufferSpace::Recv => 1,
        BufferSpace::Scratch => 2,
    }
}

fn reset_cursors(cursors: &mut Vec<StepCursor>, count: usize) {
    cursors.resize_with(count, StepCursor::default);
    for cursor in cursors {
        cursor.next = 0;
        cursor.flights.clear();
    }
}

/// Checks that a receive reports the size that was sent, as far as an `int` can express it.
pub(crate) fn check_size(reported: c_int, bytes: usize) -> Result<(), PluginCallError> {
    if usize::try_from(reported).ok() == Some(bytes) || bytes > c_int::MAX as usize {
        return Ok(());
    }
    Err(PluginCallError::Contract { call: "test", what: "reported another size than was sent" })
}
