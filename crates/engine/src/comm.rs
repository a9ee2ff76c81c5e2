//! Comms and the table that names them. A slot of the table is reused, with another generation, only after many others.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use spin::mutex::SpinMutex;
use trunkline_fabric::{Completion, Done, LinkId, Rail, Status};
use trunkline_proto::counters::Counts;
use trunkline_proto::id::ProcessId;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::status::{self as shown, Direction, State};

use crate::lane::Lane;
use crate::news::{Newsbox, Word};
use crate::path::{PROBE, Paths};
use crate::recv::RecvLane;
use crate::regions::Regions;
use crate::request::Requests;
use crate::rest::Idle;
use crate::send::SendLane;
use crate::status::{Row, Status as Page};
use crate::{CommFault, CommId, Error, Mutant};

/// Completions taken from a rail at once.
const BATCH: usize = 16;

/// Batches taken in one call, so that no call stays for long.
const BATCHES_MAX: usize = 4;

/// Batches taken when a peer is gone, to find what it sent before.
const DRAIN_MAX: usize = 4096;

/// Slots looked at for another comm to help.
const LOOKS: usize = 8;

/// A slot is not reused before this many others were freed after it.
const QUARANTINE: usize = 64;

/// A peer process.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) process: ProcessId,
    /// Its control stream is gone.
    pub(crate) dead: AtomicBool,
}

/// One place for a comm.
pub(crate) struct Comm<R: Rail> {
    generation: AtomicU32,
    pub(crate) requests: Requests,
    pub(crate) lane: Lane<Option<Open<R>>>,
    /// The control stream that may speak for the peer, as bits.
    pub(crate) stream: AtomicU64,
    /// The peer closed its end.
    pub(crate) peer_closed: AtomicBool,
    /// Messages the peer had sent, or that had arrived there, when it closed.
    pub(crate) peer_messages: AtomicU64,
    /// Eager messages went out whose records were not read yet, or some have not left.
    pub(crate) send_due: AtomicBool,
    /// Somebody polled it since the helper thread last came by.
    pub(crate) polled: AtomicBool,
    /// The thread that last sent, received or tested here.
    thread: AtomicUsize,
    /// What the peer said of single links.
    pub(crate) news: Newsbox,
}

/// The lane of an open comm.
pub(crate) struct Open<R: Rail> {
    /// Which use of its place the comm is.
    pub(crate) generation: u16,
    pub(crate) side: Side<R>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) ends: Ends,
    pub(crate) fault: Option<CommFault>,
    /// Fruitless polls since the last look at the control stream.
    pub(crate) idle: u32,
    /// When the control stream was last looked at, as far as the clock was asked.
    pub(crate) looked: Option<Instant>,
    /// The link carries nothing more; the control stream will say why.
    pub(crate) link_down: bool,
    /// How long that, or the peer's close, has been looked at.
    pub(crate) down: Option<Down>,
    /// What is to be said on the control stream, where there are several links.
    pub(crate) words: Vec<Word>,
    /// Whether it should give memory back.
    pub(crate) idle_for: Idle,
    /// When links were last looked after, where there are several.
    pub(crate) tended: Instant,
    /// When the network was last asked whether the links carry.
    pub(crate) asked: Instant,
    /// Polls, where there are several links.
    pub(crate) turns: u32,
    /// There are several links.
    pub(crate) many: bool,
    /// Where the rail puts completions; here, because to make it anew for each poll costs more than most polls.
    batch: [Completion; BATCH],
}

/// A peer that has closed or a link that has ended, which is looked at until all that can still come has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Down {
    /// The last look.
    looked: Instant,
    /// How long it has been looked at.
    waited: Duration,
}

impl Down {
    /// Looks again; returns how long that has been going on. Between two looks at most `step` counts: who made no call
    /// for longer was stopped, and finds what came meanwhile only now.
    pub(crate) fn look(down: &mut Option<Self>, now: Instant, step: Duration) -> Duration {
        let Self { looked, waited } = down.unwrap_or(Self { looked: now, waited: Duration::default() });
        let waited = Duration(waited.0.saturating_add((now - looked).min(step).0));
        *down = Some(Self { looked: now, waited });
        waited
    }
}

/// How the two ends of a comm name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) stream: SlotId,
    /// What CLOSE must name.
    pub(crate) remote: u64,
    /// Our attempt, if we asked for the comm.
    pub(crate) attempt: Option<SlotId>,
}

/// Which side of the comm this process is. Large as it is, it is made once and then stays where it is.
#[expect(clippy::large_enum_variant, reason = "one lives in each comm, and is reached on every call")]
pub(crate) enum Side<R: Rail> {
    /// It sends.
    Send(SendLane<R>),
    /// It receives.
    Recv(RecvLane<R>),
}

impl<R: Rail> Side<R> {
    #[inline]
    pub(crate) fn paths(&mut self) -> &mut Paths<R> {
        match self {
            Self::Send(lane) => &mut lane.paths,
            Self::Recv(lane) => &mut lane.paths,
        }
    }

    /// A path is of no more use, others may be.
    #[cold]
    pub(crate) fn lose(&mut self, path: usize) {
        match self {
            Self::Send(lane) => lane.lose(path),
            Self::Recv(lane) => lane.lose(path),
        }
    }

    pub(crate) fn mutant(&self) -> Mutant {
        match self {
            Self::Send(lane) => lane.plan.mutant,
            Self::Recv(lane) => lane.plan.mutant,
        }
    }

    pub(crate) fn regions(&mut self) -> &mut Regions {
        match self {
            Self::Send(lane) => &mut lane.regions,
            Self::Recv(lane) => &mut lane.regions,
        }
    }

    /// The link flushes what is posted: its other end is gone, in order or not.
    #[cold]
    pub(crate) fn gone(&mut self) {
        if let Self::Recv(lane) = self {
            lane.gone = true;
        }
    }

    #[inline]
    fn on_completion(
        &mut self,
        requests: &Requests,
        path: usize,
        completion: &Completion,
    ) -> Result<(), CommFault> {
        match self {
            Self::Send(lane) => lane.on_completion(requests, completion),
            Self::Recv(lane) => lane.on_completion(requests, path, completion),
        }
    }
}

fn no_completion() -> Completion {
    Completion { wr_id: 0, link: LinkId(0), done: Done::Posted, status: Status::Ok, imm: None, len: 0 }
}

impl<R: Rail> Open<R> {
    /// What a lane holds, if it is the comm of that name: another one may have come before the lane was claimed.
    #[inline]
    pub(crate) fn of(lane: &mut Option<Self>, id: CommId) -> Option<&mut Self> {
        lane.as_mut().filter(|open| open.generation == id.generation)
    }

    pub(crate) fn new(mut side: Side<R>, peer: Arc<Peer>, ends: Ends) -> Self {
        let many = side.paths().are_many();
        Self {
            generation: 0,
            side,
            peer,
            ends,
            fault: None,
            idle: 0,
            looked: None,
            link_down: false,
            down: None,
            words: Vec::new(),
            idle_for: Idle::default(),
            tended: Instant::default(),
            asked: Instant::default(),
            turns: 0,
            many,
            batch: [no_completion(); BATCH],
        }
    }

    /// Takes what the rail has finished. Returns whether it had anything.
    #[inline]
    pub(crate) fn progress(&mut self, requests: &Requests) -> bool {
        if self.fault.is_some() {
            return false;
        }
        let some = match self.take_in(requests) {
            Ok(some) => some,
            Err(fault) => {
                self.fail(requests, fault);
                return true;
            }
        };
        if let Side::Send(lane) = &mut self.side
            && !self.link_down
        {
            lane.polled(requests);
        }
        let posted = match &mut self.side {
            Side::Recv(lane) => lane.post_due(),
            Side::Send(lane) if lane.plan.mutant.is("engine-waits-for-completions") => Ok(()),
            Side::Send(lane) => lane.post_due(requests),
        };
        if let Err(fault) = posted {
            self.fail(requests, fault);
        }
        if self.many && !self.side.paths().any_carries() {
            // With none left, the comm is of no more use; links that were being made may hold a flush.
            self.link_down = true;
            self.side.paths().fail();
            self.side.gone();
        }
        self.link_down |= matches!(&self.side, Side::Recv(lane) if lane.gone);
        self.idle = if some { 0 } else { self.idle + 1 };
        some
    }

    /// Takes what the rails have finished, after records that are due. Whether there was any.
    #[inline]
    fn take_in(&mut self, requests: &Requests) -> Result<bool, CommFault> {
        if self.many {
            return self.take_from_all(requests);
        }
        if let Side::Recv(lane) = &mut self.side
            && lane.announces()
        {
            lane.announce_rest()?;
        }
        self.take_completions(requests, 0)
    }

    fn take_from_all(&mut self, requests: &Requests) -> Result<bool, CommFault> {
        let mut some = false;
        for path in 0..self.side.paths().len() {
            some |= self.take_completions(requests, path)?;
        }
        Ok(some)
    }

    /// Takes what the rail of one path has finished, a bounded number. Whether there was any.
    #[inline]
    fn take_completions(&mut self, requests: &Requests, path: usize) -> Result<bool, CommFault> {
        let mut some = false;
        for _ in 0..BATCHES_MAX {
            let taken = self.side.paths().poll(path, &mut self.batch);
            for at in 0..taken {
                let Completion { status, wr_id, done, .. } = self.batch[at];
                if matches!(status, Status::Flushed | Status::PeerDead) {
                    self.lost(path);
                } else if self.many && wr_id >= PROBE && done == Done::Posted {
                    self.on_link_sign(path, wr_id);
                } else {
                    self.side.on_completion(requests, path, &self.batch[at])?;
                }
            }
            some |= taken > 0;
            if taken < BATCH {
                break;
            }
        }
        Ok(some)
    }

    /// A link gives back what was posted: it carries nothing more.
    #[cold]
    fn lost(&mut self, path: usize) {
        if self.side.paths().are_many() {
            self.side.lose(path);
        } else {
            self.link_down = true;
            self.side.gone();
        }
    }

    /// How the status page shows it.
    fn shown(&mut self, generation: u16, now: Instant) -> shown::Comm {
        let nics: Vec<u16> = self.side.paths().iter().map(|path| path.nic as u16).collect();
        shown::Comm {
            state: State::Open,
            direction: match self.side {
                Side::Send(_) => Direction::Send,
                Side::Recv(_) => Direction::Recv,
            },
            links: shown::Links::new(&nics, self.side.paths().carrying()),
            generation,
            fault: None,
            peer: self.peer.process,
            opened: now.0,
            before: Counts::default(),
        }
    }

    /// The link is of no more use: every outstanding request fails once.
    pub(crate) fn fail(&mut self, requests: &Requests, fault: CommFault) -> usize {
        let fault = match fault {
            CommFault::Link(_) if self.peer.dead.load(Ordering::Relaxed) => {
                CommFault::PeerDead(self.peer.process)
            }
            other => other,
        };
        if self.fault.is_none() {
            self.fault = Some(fault);
        }
        self.side.paths().fail();
        requests.fail_all()
    }

    /// The peer closed its end after so many messages. Returns whether all that can still happen here has happened.
    pub(crate) fn on_peer_closed(&mut self, requests: &Requests, messages: u64) -> bool {
        match &mut self.side {
            // A flush needs no peer; what it makes visible has arrived.
            Side::Recv(lane) if lane.plan.mutant.is("engine-close-fails-early") => true,
            Side::Recv(lane) => (lane.arrived >= messages || self.link_down) && !lane.flushing(),
            Side::Send(lane) => {
                if lane.sent <= messages && !lane.plan.mutant.is("engine-close-loses-last-sends") {
                    lane.complete_all(requests);
                }
                true
            }
        }
    }

    /// The peer is gone: takes what it sent before, then fails what can never be done. Returns how many failed.
    pub(crate) fn on_peer_gone(&mut self, requests: &Requests, fault: CommFault) -> usize {
        if self.fault.is_some() {
            return 0;
        }
        if matches!(fault, CommFault::PeerDead(_)) {
            self.side.paths().fail();
        }
        let drains = if self.side.mutant().is("engine-skips-drain") { 0 } else { DRAIN_MAX };
        for path in 0..self.side.paths().len() {
            if let Err(fault) = self.drain(requests, path, drains) {
                return self.fail(requests, fault);
            }
        }
        match &mut self.side {
            // What has arrived may still be asked for; only what cannot come any more fails.
            Side::Recv(lane) if !requests.pending() => {
                lane.gone = true;
                0
            }
            _ => self.fail(requests, fault),
        }
    }
}

impl<R: Rail> Open<R> {
    /// Takes what a path has finished well.
    fn drain(&mut self, requests: &Requests, path: usize, most: usize) -> Result<(), CommFault> {
        for _ in 0..most {
            let taken = self.side.paths().poll(path, &mut self.batch);
            for at in 0..taken {
                let completion = self.batch[at];
                if completion.status == Status::Ok && completion.wr_id < PROBE {
                    self.side.on_completion(requests, path, &completion)?;
                }
            }
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl<R: Rail> Comm<R> {
    fn new(row: Row, mutant: Mutant) -> Self {
        Self {
            generation: AtomicU32::new(0),
            requests: Requests::new(row, mutant),
            lane: Lane::new(None, mutant),
            stream: AtomicU64::new(0),
            peer_closed: AtomicBool::new(false),
            peer_messages: AtomicU64::new(0),
            send_due: AtomicBool::new(false),
            polled: AtomicBool::new(false),
            thread: AtomicUsize::new(0),
            news: Newsbox::default(),
        }
    }
}

thread_local! {
    static MARK: Cell<u8> = const { Cell::new(0) };
}

/// A number that other living threads do not have.
#[inline]
fn this_thread() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl<R: Rail> Comm<R> {
    /// Its caller polls it, so nobody else need.
    #[inline]
    pub(crate) fn is_polled(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
    }

    /// The calling thread drives this comm.
    #[inline]
    pub(crate) fn adopt(&self) {
        let thread = this_thread();
        if self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
        }
    }
}

/// All comms of an engine.
pub(crate) struct Comms<R: Rail> {
    slots: Box<[OnceLock<Box<Comm<R>>>]>,
    free: SpinMutex<Free>,
    /// Where the search for a comm that needs help goes on.
    cursor: AtomicUsize,
    /// Slots that were ever used.
    used: AtomicUsize,
    /// Peers said something of single links since somebody looked.
    pub(crate) news: AtomicBool,
}

struct Free {
    fresh: usize,
    used: VecDeque<u16>,
    open: usize,
}

impl<R: Rail> Comms<R> {
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, usize::from(u16::MAX));
        Self {
            slots: (0..limit).map(|_| OnceLock::new()).collect(),
            free: SpinMutex::new(Free { fresh: 0, used: VecDeque::new(), open: 0 }),
            cursor: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            news: AtomicBool::new(false),
        }
    }

    /// The comm of that name.
    #[inline]
    pub(crate) fn get(&self, id: CommId) -> Option<&Comm<R>> {
        let comm = self.slots.get(usize::from(id.index))?.get()?;
        (comm.generation.load(Ordering::Acquire) == u32::from(id.generation)).then_some(comm)
    }

    /// Another open comm that the calling thread drives, the next one in turn; looks at a few slots only.
    #[inline]
    pub(crate) fn next_of_thread(&self, than: &Comm<R>) -> Option<&Comm<R>> {
        let (thread, used) = (this_thread(), self.used.load(Ordering::Acquire));
        let start = self.cursor.load(Ordering::Relaxed);
        for step in 0..used.min(LOOKS) {
            let at = (start + step) % used;
            let Some(comm) = self.slots[at].get() else { continue };
            let open = comm.generation.load(Ordering::Acquire) & 0xffff != 0;
            if open && comm.thread.load(Ordering::Relaxed) == thread && !std::ptr::eq(&raw const **comm, than)
            {
                self.cursor.store(at + 1, Ordering::Relaxed);
                return Some(comm);
            }
        }
        self.cursor.store(start.wrapping_add(LOOKS) % used.max(1), Ordering::Relaxed);
        None
    }

    /// Opens a comm.
    pub(crate) fn insert(&self, mut open: Open<R>, now: Instant, status: &Page) -> Result<CommId, Error> {
        let exhausted = Error::Exhausted { what: "connections", limit: self.slots.len() };
        let index = {
            let mut free = self.free.lock();
            let fresh = free.fresh < self.slots.len();
            let index = if free.used.len() > QUARANTINE || !fresh {
                free.used.pop_front().ok_or(exhausted)?
            } else {
                free.fresh += 1;
                self.used.store(free.fresh, Ordering::Release);
                status.rows_used(free.fresh);
                (free.fresh - 1) as u16
            };
            free.open += 1;
            index
        };
        let comm = self.slots[usize::from(index)]
            .get_or_init(|| Box::new(Comm::new(status.row(usize::from(index)), open.side.mutant())));
        let generation = (comm.generation.load(Ordering::Relaxed) >> 16) as u16;
        let generation = generation.checked_add(1).unwrap_or(1);
        let generation = if open.side.mutant().is("engine-keeps-names") { 1 } else { generation };
        comm.stream.store(open.ends.stream.to_bits(), Ordering::Relaxed);
        comm.peer_closed.store(false, Ordering::Relaxed);
        comm.send_due.store(false, Ordering::Relaxed);
        comm.news.clear();
        let mut lane = comm.lane.claim();
        comm.requests.row.open(open.shown(generation, now));
        open.generation = generation;
        *lane = Some(open);
        drop(lane);
        comm.generation.store(u32::from(generation), Ordering::Release);
        Ok(CommId { index, generation })
    }

    /// Closes a comm; its name means nothing from then on.
    pub(crate) fn remove(&self, id: CommId) -> Option<Open<R>> {
        let comm = self.get(id)?;
        let mut lane = comm.lane.claim();
        let next = u32::from(id.generation) << 16;
        let current = u32::from(id.generation);
        comm.generation.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        comm.requests.clear();
        comm.requests.row.stands(State::Closed, None);
        let open = lane.take();
        drop(lane);
        let mut free = self.free.lock();
        free.open -= 1;
        free.used.push_back(id.index);
        open
    }

    pub(crate) fn open(&self) -> usize {
        self.free.lock().open
    }

    /// All open comms.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Comm<R>> {
        let used = self.slots.iter().take(self.used.load(Ordering::Acquire));
        let comms = used.filter_map(|slot| Some(&**slot.get()?));
        comms.filter(|comm| comm.generation.load(Ordering::Acquire) & 0xffff != 0)
    }

    /// What was counted, for each slot that was ever used.
    pub(crate) fn counts(&self) -> impl Iterator<Item = Counts> {
        let used = self.slots.iter().take(self.used.load(Ordering::Acquire));
        used.filter_map(|slot| Some(slot.get()?.requests.row.counts()))
    }

    /// The names of all open comms.
    pub(crate) fn ids(&self) -> Vec<CommId> {
        let named = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let generation = slot.get()?.generation.load(Ordering::Acquire);
            let open = generation != 0 && generation <= u32::from(u16::MAX);
            open.then_some(CommId { index: index as u16, generation: generation as u16 })
        });
        named.collect()
    }
}
