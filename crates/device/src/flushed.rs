//! Memory of devices that NICs write directly: their writes are flushed before their completion is reported. A layer between the proxy and
//! the network; the executor does not know it.
//!
//! When the completion of a NIC's write into a device's memory is seen, the write may still be in the device's bridge, while a signal in
//! host memory is visible at once. A read of the same bytes by the same NIC cannot pass the write (PCIe ordering), and pushes it to the
//! memory. So a put into such memory is followed by a get of one of its bytes, and a get into it by a put of one of its bytes.

use std::collections::VecDeque;

use trunkline_proto::reserve::{OutOfMemory, try_grow};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::table_capacity::{try_hold, try_hold_queue};

use crate::network::{BeginOutcome, EntryFailure, MemberNetwork, NetworkCompletion};
use trunkline_engine::rma::{HeapAddress, HeapRange, MemberRank, PutSource};

/// The bit in the numbers of flushed operations. The numbers of the proxy and the executor count places below it, and never have it.
const FLUSHED: u64 = 1 << 29;

/// How a rank's part of a window is flushed.
#[derive(Clone, Copy, Debug)]
pub struct FlushedPeer {
    /// The heap of the part's bytes.
    pub heap: u8,
    /// Whether writes of that rank's NICs to the part need a flush.
    pub needs_flush: bool,
    /// A byte of that rank that is never read, as the target of a flushing put.
    pub unread: HeapAddress,
}

/// How the parts of a window are flushed.
#[derive(Clone, Debug)]
pub struct FlushedPart {
    /// The heap of this rank's bytes, if writes of its own NICs need a flush.
    pub own: Option<u8>,
    /// A byte of this rank that is never read, as the target of a flushing get.
    pub unread: HeapRange,
    /// The parts, by rank.
    pub peers: Vec<FlushedPeer>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FlushStage {
    Free,
    /// Its bytes are being transferred.
    Moving,
    /// Its flush has found no room yet.
    Waiting,
    /// Its flush is in progress.
    Flushing,
}

/// The transfer that flushes an operation's bytes.
#[derive(Clone, Copy, Debug)]
enum FlushTransfer {
    Get { from: HeapAddress, into: HeapRange },
    Put { from: HeapRange, to: HeapAddress },
}

/// An operation whose bytes must be flushed.
#[derive(Clone, Copy, Debug)]
struct FlushedOp {
    generation: u32,
    stage: FlushStage,
    /// The number of the operation at the caller.
    cookie: u64,
    flush: FlushTransfer,
}

/// A network whose writes to memory of devices are visible there when their completion is reported.
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
    /// Wraps a network, without windows at first.
    pub fn new(network: N) -> Self {
        let parts = Vec::new();
        let ops = Vec::new();
        let free = Vec::new();
        let waiting = VecDeque::new();
        Self { network, parts, ops, free, waiting, over: Vec::new(), mine: Vec::new() }
    }

    /// Adds a window with a part that needs flushes, before any rank uses it.
    pub fn open_window(&mut self, part: FlushedPart) {
        self.parts.push(part);
    }

    /// Removes the window with these unread bytes. No operation may be in progress there.
    pub fn close_window(&mut self, heap: u8) {
        self.parts.retain(|part| part.unread.heap != heap);
    }

    /// Returns the flush of a put of `len` bytes, if it needs one.
    fn flush_of_put(&self, to: HeapAddress, len: u64) -> Option<FlushTransfer> {
        let find = |part: &FlushedPart| {
            let peer = part.peers.get(to.member as usize)?;
            (peer.needs_flush && peer.heap == to.heap).then_some(part.unread)
        };
        // An empty put writes nothing, and has no last byte to read.
        let into = self.parts.iter().find_map(find).filter(|_| len > 0)?;
        Some(FlushTransfer::Get { from: HeapAddress { offset: to.offset + len - 1, ..to }, into })
    }

    /// Returns the flush of a get of `len` bytes, if it needs one.
    fn flush_of_get(&self, from: MemberRank, into: HeapRange, len: u64) -> Option<FlushTransfer> {
        let part = self.parts.iter().find(|part| part.own == Some(into.heap)).filter(|_| len > 0)?;
        let to = part.peers.get(from as usize)?.unread;
        Some(FlushTransfer::Put { from: HeapRange { offset: into.offset + len - 1, len: 1, ..into }, to })
    }

    /// Allocates an operation that must be flushed, and returns its place.
    ///
    /// Returns `None` without memory for one more.
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

    /// Reserves memory for one more operation in every list that may contain it until it has ended.
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

    /// Records the result of the beginning of an operation. If only a part of its bytes has begun, the last byte, and so the flush, is
    /// another one.
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
        // The table never shrinks: it is empty only if no operation has ever needed a flush, and then a pass costs nothing more.
        if self.ops.is_empty() {
            return self.network.make_progress(ended);
        }
        let mut at = ended.len();
        let mut moved = self.network.make_progress(ended);
        while let Some(one) = ended.get(at) {
            if one.cookie & FLUSHED == 0 {
                at += 1;
            } else {
                // Completions are identified by number, so their order is free.
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
