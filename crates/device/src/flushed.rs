//! Memory of devices that NICs write by themselves: their writes are flushed before the end is reported. Between the courier and the network; the executor knows nothing of it.
//!
//! A NIC's writes into a device's memory may be in the device's bridge still when their completion is seen, while a signal in memory of the host is seen at once. A read of the same
//! bytes by the same NIC cannot pass them (PCIe), and pushes them there. So behind a put into such memory one of its bytes is got, and behind a get into it one of its bytes is put.

use std::collections::VecDeque;

use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::table_capacity::{try_hold, try_hold_queue};

use crate::network::{BeginOutcome, EntryFailure, MemberNetwork, NetworkCompletion};
use trunkline_engine::rma::{HeapAddress, HeapRange, MemberRank, PutSource};

/// Numbers of operations that are flushed have this bit; those of the courier and the executor, which count places below it, do not.
const FLUSHED: u64 = 1 << 29;

/// How a rank's part of a window is flushed.
#[derive(Clone, Copy, Debug)]
pub struct FlushedPeer {
    /// The heap of its bytes.
    pub heap: u8,
    /// Whether its NICs' writes there need it.
    pub needs_flush: bool,
    /// A byte there that means nothing, for this rank to put to.
    pub unread: HeapAddress,
}

/// How the parts of a window are flushed.
#[derive(Clone, Debug)]
pub struct FlushedPart {
    /// The heap of this rank's bytes, if writes of its own NICs there need it.
    pub own: Option<u8>,
    /// A byte of this rank that means nothing, to get to.
    pub unread: HeapRange,
    /// By rank.
    pub peers: Vec<FlushedPeer>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FlushStage {
    Free,
    /// Bytes are on their way.
    Moving,
    /// The flush has found no room yet.
    Waiting,
    /// It is on its way.
    Flushing,
}

/// How an operation's bytes are flushed.
#[derive(Clone, Copy, Debug)]
enum FlushTransfer {
    Get { from: HeapAddress, into: HeapRange },
    Put { from: HeapRange, to: HeapAddress },
}

/// An operation whose bytes are to be flushed.
#[derive(Clone, Copy, Debug)]
struct FlushedOp {
    generation: u32,
    stage: FlushStage,
    /// The courier's number of the operation.
    cookie: u64,
    flush: FlushTransfer,
}

/// A network whose writes to memory of devices are where they belong when their end is told.
#[derive(Debug)]
pub struct FlushedNetwork<N> {
    network: N,
    parts: Vec<FlushedPart>,
    ops: Vec<FlushedOp>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    over: Vec<NetworkCompletion>,
    mine: Vec<NetworkCompletion>,
}

impl<N: MemberNetwork> FlushedNetwork<N> {
    /// Around a network, with nothing that needs flushes yet.
    pub fn new(network: N) -> Self {
        let parts = Vec::new();
        let ops = Vec::new();
        let free = Vec::new();
        let waiting = VecDeque::new();
        Self { network, parts, ops, free, waiting, over: Vec::new(), mine: Vec::new() }
    }

    /// Takes a window on of which a part needs flushes, before any rank uses it.
    pub fn open_window(&mut self, part: FlushedPart) {
        self.parts.push(part);
    }

    /// Ends the window of these unread bytes: nothing is under way there.
    pub fn close_window(&mut self, heap: u8) {
        self.parts.retain(|part| part.unread.heap != heap);
    }

    /// How a put of so many bytes is flushed, if it has to be.
    fn flush_of_put(&self, to: HeapAddress, len: u64) -> Option<FlushTransfer> {
        let find = |part: &FlushedPart| {
            let peer = part.peers.get(to.member as usize)?;
            (peer.needs_flush && peer.heap == to.heap).then_some(part.unread)
        };
        let into = self.parts.iter().find_map(find).filter(|_| len > 0)?;
        Some(FlushTransfer::Get { from: HeapAddress { offset: to.offset + len - 1, ..to }, into })
    }

    /// The same of a get.
    fn flush_of_get(&self, from: MemberRank, into: HeapRange, len: u64) -> Option<FlushTransfer> {
        let part = self.parts.iter().find(|part| part.own == Some(into.heap)).filter(|_| len > 0)?;
        let to = part.peers.get(from as usize)?.unread;
        Some(FlushTransfer::Put { from: HeapRange { offset: into.offset + len - 1, len: 1, ..into }, to })
    }

    /// The number by which the network knows an operation whose bytes are to be flushed.
    ///
    /// `None`: there is no memory for one more now.
    fn allocate_op(&mut self, cookie: u64, flush: FlushTransfer) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.reserve_one().ok()?;
                self.ops.push(FlushedOp { generation: 0, stage: FlushStage::Free, cookie, flush });
                self.ops.len() as u32 - 1
            }
        };
        if let Some(op) = self.ops.get_mut(at as usize) {
            *op = FlushedOp { generation: op.generation, stage: FlushStage::Moving, cookie, flush };
        }
        Some(at)
    }

    /// Makes room for one more operation, wherever it may stand until it has ended.
    fn reserve_one(&mut self) -> Result<(), OutOfMemory> {
        let room = self.ops.len() + 1;
        try_grow(&mut self.ops, 1)?;
        try_hold(&mut self.free, room)?;
        try_hold_queue(&mut self.waiting, room)?;
        try_hold(&mut self.over, room)?;
        try_hold(&mut self.mine, room)
    }

    fn op_cookie(&self, at: u32) -> u64 {
        let generation = self.ops.get(at as usize).map_or(0, |op| op.generation);
        u64::from(generation) << 32 | FLUSHED | u64::from(at)
    }

    fn finish_op(&mut self, at: u32, how: Option<Result<u64, EntryFailure>>) {
        let Some(op) = self.ops.get_mut(at as usize) else { return };
        (op.stage, op.generation) = (FlushStage::Free, op.generation.wrapping_add(1));
        self.over.extend(how.map(|how| NetworkCompletion { cookie: op.cookie, how }));
        self.free.push(at);
    }

    /// Begins a flush.
    fn begin_flush(&mut self, at: u32) {
        let cookie = self.op_cookie(at);
        let Some(op) = self.ops.get_mut(at as usize) else { return };
        let carried = match op.flush {
            FlushTransfer::Get { from, into } => self.network.get(cookie, from, HeapRange { len: 1, ..into }),
            FlushTransfer::Put { from, to } => self.network.put(cookie, to, PutSource::Heap(from)),
        };
        match carried {
            BeginOutcome::Begun(_) => op.stage = FlushStage::Flushing,
            BeginOutcome::Busy => {
                op.stage = FlushStage::Waiting;
                self.waiting.push_back(at);
            }
            BeginOutcome::Failed(failure) => self.finish_op(at, Some(Err(failure))),
        }
    }

    fn on_ended(&mut self, one: NetworkCompletion) {
        let at = (one.cookie & (FLUSHED - 1)) as u32;
        let Some(op) = self.ops.get(at as usize) else { return };
        if op.generation != (one.cookie >> 32) as u32 {
            return;
        }
        match (op.stage, one.how) {
            (FlushStage::Moving, Ok(_)) => self.begin_flush(at),
            (FlushStage::Moving | FlushStage::Flushing, how) => self.finish_op(at, Some(how)),
            (FlushStage::Free | FlushStage::Waiting, _) => {}
        }
    }

    /// Notes how the beginning of an operation that is to be flushed has ended: of a part of its bytes the last one is another.
    fn note_begin(
        &mut self,
        at: u32,
        carried: BeginOutcome,
        cut: impl FnOnce(&Self, u64) -> Option<FlushTransfer>,
    ) -> BeginOutcome {
        let BeginOutcome::Begun(bytes) = carried else {
            self.finish_op(at, None);
            return carried;
        };
        let flush = cut(self, bytes);
        if let Some((op, flush)) = self.ops.get_mut(at as usize).zip(flush) {
            op.flush = flush;
        }
        carried
    }
}

impl<N: MemberNetwork> MemberNetwork for FlushedNetwork<N> {
    fn own_rank(&self) -> MemberRank {
        self.network.own_rank()
    }

    fn can_execute_locally(&self) -> bool {
        self.network.can_execute_locally()
    }

    #[inline]
    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let len = from.byte_len();
        let Some(flush) = self.flush_of_put(to, len) else { return self.network.put(cookie, to, from) };
        let Some(at) = self.allocate_op(cookie, flush) else { return BeginOutcome::Busy };
        let carried = self.network.put(self.op_cookie(at), to, from);
        self.note_begin(at, carried, |this, bytes| this.flush_of_put(to, bytes.min(len)))
    }

    #[inline]
    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome {
        let member = from.member;
        let Some(flush) = self.flush_of_get(member, into, into.len) else {
            return self.network.get(cookie, from, into);
        };
        let Some(at) = self.allocate_op(cookie, flush) else { return BeginOutcome::Busy };
        let carried = self.network.get(self.op_cookie(at), from, into);
        self.note_begin(at, carried, |this, bytes| this.flush_of_get(member, into, bytes.min(into.len)))
    }

    #[inline]
    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome {
        self.network.post_atomic(cookie, at, action, fetches)
    }

    #[inline]
    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        if self.ops.is_empty() {
            return self.network.make_progress(ended);
        }
        let mut at = ended.len();
        let mut moved = self.network.make_progress(ended);
        while let Some(one) = ended.get(at) {
            if one.cookie & FLUSHED == 0 {
                at += 1;
            } else {
                self.mine.push(ended.swap_remove(at));
            }
        }
        while let Some(one) = self.mine.pop() {
            self.on_ended(one);
        }
        for _ in 0..self.waiting.len() {
            if let Some(at) = self.waiting.pop_front() {
                self.begin_flush(at);
            }
        }
        moved |= !self.over.is_empty();
        ended.append(&mut self.over);
        moved
    }

    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool {
        self.network.send_error_word(at, value)
    }

    fn poll_control_streams(&mut self) {
        self.network.poll_control_streams();
    }

    fn is_gone(&mut self, member: MemberRank) -> bool {
        self.network.is_gone(member)
    }

    fn detach_job(&mut self) {
        self.network.detach_job();
    }
}
