//! The proxy for windows in memory of a device that no network reaches. It sends requests to the owners of such memory, by post boxes in
//! host memory (docs/wire.md, "Post boxes"). Used as the executor's network; never touches a device itself.
//!
//! A [`ProxyNetwork`] wraps another network, and changes only operations on parts of windows that are
//! [posted](super::RemotePart::is_posted). A put is sent to the host memory beside such a part, and ends when the owner replies that it has
//! copied the bytes to the device. For a get the owner first copies the bytes to a room in host memory. Only the owner changes words.
//! `RequestService` is the owner's side.

use std::collections::VecDeque;

use trunkline_proto::limits::DEVICE_PIECE_BYTES;
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_deque, try_grow, try_vec};
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::table_capacity::{try_hold, try_hold_queue};
use trunkline_proto::wire::device_queue::{
    EntryStatus, OwnerAction, POST_PLACES, PostBox, PostReply, PostRequest, REQUEST_BYTES,
};

use crate::network::{BeginOutcome, EntryFailure, MemberNetwork, NetworkCompletion};
use crate::service::RequestService;
use crate::window_part::{LocalPart, RemotePart};
use trunkline_engine::rma::{HeapAddress, HeapRange, MemberRank, PutSource};

/// The bit in the numbers of the proxy's own operations. Its caller's numbers never have it: they are a place below this bit, with a
/// generation above 32 bits.
const OURS: u64 = 1 << 31;
/// The bit of those own operations that are replies.
pub(super) const REPLIES: u64 = 1 << 30;
/// Operations for which memory is reserved at first.
const ROOM: usize = 256;
/// Marks a place without an operation.
const NONE: u32 = u32::MAX;

/// Requests to the owner of one part.
#[derive(Debug)]
struct OwnerRequests {
    next: u64,
    /// The operation at each place, or [`NONE`].
    places: [u32; POST_PLACES as usize],
    under_way: u32,
    waiting: VecDeque<u32>,
    /// Set once no request can be sent any more.
    failed: Option<EntryFailure>,
}

#[derive(Debug)]
struct PostedWindow {
    part: LocalPart,
    asking: Vec<OwnerRequests>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ProxyStage {
    Free,
    /// A put is writing the bytes beside the part.
    Putting,
    /// It waits for a free place.
    Waiting,
    /// The request is being written, or the reply is awaited.
    Asked,
    /// A get is reading the bytes that the owner has copied to a room.
    Getting,
}

/// An operation on a posted part.
#[derive(Clone, Copy, Debug)]
struct ProxyOp {
    generation: u32,
    /// The number of the operation at the caller.
    cookie: u64,
    heap: u8,
    member: MemberRank,
    ask: OwnerAction,
    stage: ProxyStage,
    number: u64,
    /// Whether the request has been placed at the owner.
    sent: bool,
    reply: Option<PostReply>,
    fetches: bool,
    /// The remaining range of a get.
    rest: Option<(HeapAddress, HeapRange)>,
    gets: u32,
    failed: Option<EntryFailure>,
}

/// A network that sends requests to owners for memory that it does not reach itself.
#[derive(Debug)]
pub struct ProxyNetwork<N> {
    network: N,
    me: MemberRank,
    open: Vec<PostedWindow>,
    ops: Vec<ProxyOp>,
    free: Vec<u32>,
    /// Gets that found no room in the network.
    again: VecDeque<u32>,
    over: Vec<NetworkCompletion>,
    mine: Vec<NetworkCompletion>,
    deliveries: RequestService,
}

impl<N: MemberNetwork> ProxyNetwork<N> {
    /// Wraps a network, without windows at first.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(network: N) -> Result<Self, OutOfMemory> {
        Ok(Self {
            me: network.own_rank(),
            network,
            open: Vec::new(),
            ops: Vec::new(),
            free: Vec::new(),
            again: try_deque(ROOM)?,
            over: try_vec(ROOM)?,
            mine: try_vec(ROOM)?,
            deliveries: RequestService::new(),
        })
    }

    /// Returns the wrapped network.
    pub const fn network_mut(&mut self) -> &mut N {
        &mut self.network
    }

    /// Adds a part of a window, before any rank uses it. Windows with host memory at all ranks need no call.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the part was not added.
    pub fn open_window(&mut self, part: LocalPart) -> Result<(), OutOfMemory> {
        self.grow_capacity()?;
        let asking = |_: &RemotePart| OwnerRequests {
            next: 0,
            places: [NONE; POST_PLACES as usize],
            under_way: 0,
            waiting: VecDeque::with_capacity(64),
            failed: None,
        };
        let asking = try_collect(part.peers.iter().map(asking))?;
        try_grow(&mut self.open, 1)?;
        self.deliveries.open_part(&part)?;
        self.open.push(PostedWindow { part, asking });
        Ok(())
    }

    /// Removes a window that no rank uses any more. Operations in progress there fail, whether or not they still take effect.
    pub fn close_window(&mut self, heap: u8) {
        self.open.retain(|open| open.part.heap != heap);
        self.deliveries.close_part(heap);
        for at in 0..self.ops.len() as u32 {
            let is_of_it = self.ops.get(at as usize).is_some_and(|op| op.heap == heap);
            if is_of_it {
                self.finish_op(at, Err(EntryFailure::from_status(EntryStatus::Stale)));
            }
        }
    }

    /// Returns whether no operation on a part is in progress: neither of this rank, nor of requests of other ranks to this one.
    #[must_use]
    pub fn is_idle(&self, heap: u8) -> bool {
        let is_under_way = |op: &ProxyOp| op.heap == heap && op.stage != ProxyStage::Free;
        !self.ops.iter().any(is_under_way) && self.deliveries.is_idle(heap)
    }

    fn grow_capacity(&mut self) -> Result<(), OutOfMemory> {
        let op = ProxyOp {
            generation: 0,
            cookie: 0,
            heap: 0,
            member: 0,
            ask: OwnerAction::Bring { addr: 0, len: 0 },
            stage: ProxyStage::Free,
            number: 0,
            sent: false,
            reply: None,
            fetches: false,
            rest: None,
            gets: 0,
            failed: None,
        };
        let first = self.ops.len() as u32;
        let room = self.ops.len() + ROOM;
        try_grow(&mut self.ops, ROOM)?;
        try_hold(&mut self.free, room)?;
        try_hold_queue(&mut self.again, room)?;
        try_hold(&mut self.over, room)?;
        try_hold(&mut self.mine, room)?;
        self.ops.resize(room, op);
        self.free.extend((first..first + ROOM as u32).rev());
        Ok(())
    }

    /// Returns the window to which a rank's heap belongs, if that part is posted.
    #[inline]
    fn posted_window(&self, member: MemberRank, heap: u8) -> Option<&PostedWindow> {
        let is_it = |open: &&PostedWindow| {
            let peer = open.part.peers.get(member as usize);
            peer.is_some_and(|peer| peer.is_posted && peer.heap == heap)
        };
        self.open.iter().find(is_it)
    }

    fn requests_mut(&mut self, heap: u8, member: MemberRank) -> Option<(&LocalPart, &mut OwnerRequests)> {
        let open = self.open.iter_mut().find(|open| open.part.heap == heap)?;
        Some((&open.part, open.asking.get_mut(member as usize)?))
    }

    /// Allocates a place for an operation; `None` without memory for more of them.
    fn allocate_op(&mut self, cookie: u64, heap: u8, member: MemberRank, ask: OwnerAction) -> Option<u32> {
        if self.free.is_empty() {
            self.grow_capacity().ok()?;
        }
        let at = self.free.pop()?;
        if let Some(op) = self.ops.get_mut(at as usize) {
            // Completions for an earlier use of the place have another generation, and are ignored.
            let generation = op.generation.wrapping_add(1);
            let stage = ProxyStage::Putting;
            *op = ProxyOp {
                generation,
                cookie,
                heap,
                member,
                ask,
                stage,
                sent: false,
                reply: None,
                fetches: false,
                ..*op
            };
            (op.rest, op.gets, op.failed) = (None, 0, None);
        }
        Some(at)
    }

    fn op_cookie(&self, at: u32) -> u64 {
        let generation = self.ops.get(at as usize).map_or(0, |op| op.generation);
        u64::from(generation) << 32 | OURS | u64::from(at)
    }

    fn drop_op(&mut self, at: u32) {
        if let Some(op) = self.ops.get_mut(at as usize) {
            (op.stage, op.generation) = (ProxyStage::Free, op.generation.wrapping_add(1));
            self.free.push(at);
        }
    }

    fn finish_op(&mut self, at: u32, how: Result<u64, EntryFailure>) {
        let Some(op) = self.ops.get(at as usize).filter(|op| op.stage != ProxyStage::Free) else { return };
        let how = how.map(|value| if op.fetches { value } else { 0 });
        self.over.push(NetworkCompletion { cookie: op.cookie, how });
        self.drop_op(at);
    }

    /// Queues a request, and sends it if a place is free.
    fn enqueue_request(&mut self, at: u32) {
        let Some(op) = self.ops.get_mut(at as usize) else { return };
        op.stage = ProxyStage::Waiting;
        let heap = op.heap;
        let member = op.member;
        let Some((_, asking)) = self.requests_mut(heap, member) else {
            return self.finish_op(at, Err(EntryFailure::from_status(EntryStatus::Stale)));
        };
        match asking.failed {
            Some(failure) => self.finish_op(at, Err(failure)),
            None => {
                asking.waiting.push_back(at);
                self.send_requests(heap, member);
            }
        }
    }

    /// Sends queued requests while places are free. Requests are numbered in sequence and request `n` uses place `n mod POST_PLACES`, so a
    /// place in use delays all later requests.
    fn send_requests(&mut self, heap: u8, member: MemberRank) {
        let me = self.me;
        loop {
            let Some(open) = self.open.iter_mut().find(|open| open.part.heap == heap) else { return };
            let part = &open.part;
            let asking = open.asking.get_mut(member as usize);
            let (Some(asking), Some(peer)) = (asking, part.peers.get(member as usize)) else { return };
            let number = asking.next;
            let Some(place) = asking.places.get_mut((number % POST_PLACES) as usize) else { return };
            let Some(&at) = asking.waiting.front().filter(|_| *place == NONE) else { return };
            let boxes = PostBox::new(part.boxes, member).zip(PostBox::new(peer.boxes, me));
            let (Some((own, theirs)), Some(op)) = (boxes, self.ops.get_mut(at as usize)) else { return };
            // The request is staged in the box of this rank: that memory is registered, and stays unchanged until the reply frees the
            // place.
            let words = PostRequest { number, ask: op.ask }.to_words();
            let from = own.request_out(number);
            for (nth, word) in (0..).zip(words) {
                let _inside = part.memory.store(from + nth * 8, word);
            }
            let to = HeapAddress { member, heap: peer.heap, offset: theirs.request_offset(number) };
            let from = PutSource::Heap(HeapRange { heap: part.heap, offset: from, len: REQUEST_BYTES });
            let cookie = u64::from(op.generation) << 32 | OURS | u64::from(at);
            match self.network.put(cookie, to, from) {
                BeginOutcome::Begun(_) => {
                    (op.stage, op.number) = (ProxyStage::Asked, number);
                    *place = at;
                    asking.next = number.wrapping_add(1);
                    asking.under_way += 1;
                    asking.waiting.pop_front();
                }
                BeginOutcome::Busy => return,
                BeginOutcome::Failed(failure) => return self.fail_requests(heap, member, failure),
            }
        }
    }

    /// Fails all operations that wait for the owner of a part.
    fn fail_requests(&mut self, heap: u8, member: MemberRank, failure: EntryFailure) {
        let Some((_, asking)) = self.requests_mut(heap, member) else { return };
        asking.failed = asking.failed.or(Some(failure));
        let places = std::mem::replace(&mut asking.places, [NONE; POST_PLACES as usize]);
        let waiting = std::mem::take(&mut asking.waiting);
        asking.under_way = 0;
        for at in places.into_iter().filter(|at| *at != NONE).chain(waiting) {
            // Gets in progress still write to their target, so they must end before the operation fails.
            match self.ops.get_mut(at as usize).filter(|op| op.stage == ProxyStage::Getting && op.gets > 0) {
                Some(op) => op.failed = op.failed.or(Some(failure)),
                None => self.finish_op(at, Err(failure)),
            }
        }
    }

    /// Handles the completion of one of the proxy's own operations.
    fn on_ended(&mut self, one: NetworkCompletion) {
        if one.cookie & REPLIES != 0 {
            return self.deliveries.on_replied(&mut self.network, self.me, one);
        }
        let at = (one.cookie & (OURS - 1)) as u32;
        let generation = (one.cookie >> 32) as u32;
        let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.generation == generation) else { return };
        match (op.stage, one.how) {
            (ProxyStage::Putting, Ok(_)) => self.enqueue_request(at),
            (ProxyStage::Putting, Err(failure)) => self.finish_op(at, Err(failure)),
            (ProxyStage::Asked, Ok(_)) => {
                op.sent = true;
                self.handle_reply(at);
            }
            (ProxyStage::Asked, Err(failure)) => {
                let heap = op.heap;
                let member = op.member;
                self.fail_requests(heap, member, failure);
            }
            (ProxyStage::Getting, how) => {
                op.gets -= 1;
                op.failed = op.failed.or(how.err());
                self.post_gets(at);
            }
            (ProxyStage::Free | ProxyStage::Waiting, _) => {}
        }
    }

    /// Handles a reply, once the request's own put has also completed: until then the request's memory is still read.
    fn handle_reply(&mut self, at: u32) {
        let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.sent && op.stage == ProxyStage::Asked)
        else {
            return;
        };
        let Some(reply) = op.reply else { return };
        let heap = op.heap;
        let member = op.member;
        let number = op.number;
        let is_get = op.rest.is_some() && reply.how.is_ok();
        if is_get {
            op.stage = ProxyStage::Getting;
            let me = self.me;
            let rooms = self.requests_mut(heap, member).map(|(part, _)| part.rooms);
            let rest = self.ops.get_mut(at as usize).and_then(|op| op.rest.as_mut());
            if let Some(((from, _), rooms)) = rest.zip(rooms) {
                from.offset = rooms.room_offset(me, number);
            }
            return self.post_gets(at);
        }
        self.release_place(at);
        self.finish_op(at, reply.how.map_err(|(status, reason)| EntryFailure { status, reason }));
        self.send_requests(heap, member);
    }

    /// Frees the place of an operation for another request. The room of a get belongs to its place, so the place is freed only when the
    /// bytes have been read.
    fn release_place(&mut self, at: u32) {
        let Some(&ProxyOp { heap, member, number, .. }) = self.ops.get(at as usize) else { return };
        let Some((_, asking)) = self.requests_mut(heap, member) else { return };
        if let Some(place) =
            asking.places.get_mut((number % POST_PLACES) as usize).filter(|place| **place == at)
        {
            *place = NONE;
            asking.under_way -= 1;
        }
    }

    /// Reads the bytes that the owner has copied to the room, as far as the network has room.
    fn post_gets(&mut self, at: u32) {
        let cookie = self.op_cookie(at);
        let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.stage == ProxyStage::Getting) else {
            return;
        };
        while let Some((from, into)) =
            op.rest.as_mut().filter(|(_, into)| into.len > 0 && op.failed.is_none())
        {
            match self.network.get(cookie, *from, *into) {
                BeginOutcome::Begun(bytes) => {
                    (from.offset, into.offset, into.len) =
                        (from.offset + bytes, into.offset + bytes, into.len - bytes);
                    op.gets += 1;
                }
                BeginOutcome::Busy => {
                    self.again.push_back(at);
                    return;
                }
                BeginOutcome::Failed(failure) => op.failed = Some(failure),
            }
        }
        if op.gets == 0 {
            let how = op.failed.map_or(Ok(0), Err);
            let heap = op.heap;
            let member = op.member;
            self.release_place(at);
            self.finish_op(at, how);
            self.send_requests(heap, member);
        }
    }

    /// Polls for replies. Returns whether any has arrived.
    fn poll_replies(&mut self) -> bool {
        let mut moved = false;
        for nth in 0..self.open.len() {
            let members = self.open.get(nth).map_or(0, |open| open.asking.len());
            for member in 0..members {
                moved |= self.poll_replies_of(nth, member);
            }
        }
        moved
    }

    fn poll_replies_of(&mut self, nth: usize, member: usize) -> bool {
        let Some(PostedWindow { part, asking }) = self.open.get(nth) else { return false };
        let Some(asking) = asking.get(member).filter(|asking| asking.under_way > 0) else { return false };
        let Some(own) = PostBox::new(part.boxes, member as u32) else { return false };
        let heap = part.heap;
        let places = asking.places;
        // The owner sets this word by the control stream when a reply could not be sent. Replies that arrived are handled first, and the
        // word is read again by the next poll.
        let is_lost = part.memory.load(own.lost_word()).is_ok_and(|lost| lost != 0);
        let mut found = [NONE; POST_PLACES as usize];
        for (at, into) in places.into_iter().filter(|at| *at != NONE).zip(&mut found) {
            let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.reply.is_none()) else { continue };
            let Ok(words) = part.memory.load_row(own.reply_offset(op.number)) else { continue };
            op.reply = PostReply::from_words(&words, op.number);
            if op.reply.is_some() {
                *into = at;
            }
        }
        let mut moved = false;
        for at in found.into_iter().filter(|at| *at != NONE) {
            moved = true;
            self.handle_reply(at);
        }
        if is_lost && !moved {
            self.fail_requests(heap, member as u32, EntryFailure::from_status(EntryStatus::Network));
        }
        moved
    }

    /// Fails the requests to dead owners, as no reply can arrive.
    fn fail_dead_owners(&mut self) {
        for nth in 0..self.open.len() {
            let Some(PostedWindow { part, asking }) = self.open.get(nth) else { return };
            let heap = part.heap;
            let waits = |asking: &OwnerRequests| asking.under_way > 0 || !asking.waiting.is_empty();
            for member in 0..asking.len() {
                let open = self.open.get(nth).and_then(|open| open.asking.get(member));
                if open.is_some_and(waits) && self.network.is_gone(member as u32) {
                    self.fail_requests(heap, member as u32, EntryFailure::from_status(EntryStatus::PeerDead));
                }
            }
        }
    }
}

impl<N: MemberNetwork> MemberNetwork for ProxyNetwork<N> {
    fn own_rank(&self) -> MemberRank {
        self.me
    }

    fn can_execute_locally(&self) -> bool {
        self.network.can_execute_locally()
    }

    #[inline]
    fn put(&mut self, cookie: u64, to: HeapAddress, from: PutSource<'_>) -> BeginOutcome {
        let Some(open) = self.posted_window(to.member, to.heap) else {
            return self.network.put(cookie, to, from);
        };
        let heap = open.part.heap;
        // A put is cut into pieces: the owner copies each to the device while the next one arrives.
        let from = match from {
            PutSource::Heap(bytes) => {
                PutSource::Heap(HeapRange { len: bytes.len.min(DEVICE_PIECE_BYTES), ..bytes })
            }
            from => from,
        };
        let whole = from.byte_len();
        let ask = OwnerAction::Bring { addr: to.offset, len: whole };
        let Some(at) = self.allocate_op(cookie, heap, to.member, ask) else { return BeginOutcome::Busy };
        let carried = self.network.put(self.op_cookie(at), to, from);
        let BeginOutcome::Begun(bytes) = carried else {
            self.drop_op(at);
            return carried;
        };
        if let Some(op) = self.ops.get_mut(at as usize) {
            // The network may have begun fewer bytes. The owner must copy only bytes that arrive.
            op.ask = OwnerAction::Bring { addr: to.offset, len: bytes.min(whole) };
        }
        carried
    }

    #[inline]
    fn get(&mut self, cookie: u64, from: HeapAddress, into: HeapRange) -> BeginOutcome {
        let Some(open) = self.posted_window(from.member, from.heap) else {
            return self.network.get(cookie, from, into);
        };
        let heap = open.part.heap;
        let len = into.len.min(open.part.rooms.room_bytes());
        let ask = OwnerAction::Show { addr: from.offset, len };
        let Some(at) = self.allocate_op(cookie, heap, from.member, ask) else { return BeginOutcome::Busy };
        if let Some(op) = self.ops.get_mut(at as usize) {
            op.rest = Some((from, HeapRange { len, ..into }));
        }
        self.enqueue_request(at);
        BeginOutcome::Begun(len)
    }

    #[inline]
    fn post_atomic(
        &mut self,
        cookie: u64,
        at: HeapAddress,
        action: AtomicAction,
        fetches: bool,
    ) -> BeginOutcome {
        let Some(open) = self.posted_window(at.member, at.heap) else {
            return self.network.post_atomic(cookie, at, action, fetches);
        };
        let heap = open.part.heap;
        let ask = OwnerAction::Change { addr: at.offset, action };
        let Some(op) = self.allocate_op(cookie, heap, at.member, ask) else { return BeginOutcome::Busy };
        if let Some(op) = self.ops.get_mut(op as usize) {
            op.fetches = fetches;
        }
        self.enqueue_request(op);
        BeginOutcome::Begun(8)
    }

    #[inline]
    fn make_progress(&mut self, ended: &mut Vec<NetworkCompletion>) -> bool {
        // Without posted windows a pass costs no more than that of the wrapped network.
        if self.open.is_empty() && self.over.is_empty() {
            return self.network.make_progress(ended);
        }
        let from = ended.len();
        let mut moved = self.network.make_progress(ended);
        let mut at = from;
        while let Some(one) = ended.get(at) {
            if one.cookie & OURS == 0 {
                at += 1;
            } else {
                // Completions are identified by number, so their order is free.
                self.mine.push(ended.swap_remove(at));
            }
        }
        while let Some(one) = self.mine.pop() {
            self.on_ended(one);
        }
        for _ in 0..self.again.len() {
            if let Some(at) = self.again.pop_front() {
                self.post_gets(at);
            }
        }
        moved |= self.poll_replies();
        for nth in 0..self.open.len() {
            let Some(open) = self.open.get(nth) else { break };
            let heap = open.part.heap;
            for member in 0..open.asking.len() {
                self.send_requests(heap, member as u32);
            }
        }
        moved |= self.deliveries.make_progress(&mut self.network, self.me);
        moved |= !self.over.is_empty();
        ended.append(&mut self.over);
        moved
    }

    fn send_error_word(&mut self, at: HeapAddress, value: u64) -> bool {
        let said = self.network.send_error_word(at, value);
        let Some(open) = self.posted_window(at.member, at.heap) else { return said };
        let boxes = open.part.peers.get(at.member as usize).map(|peer| peer.boxes);
        let told = boxes.and_then(|boxes| PostBox::new(boxes, self.me)).map(PostBox::error_word);
        // The error word was set in host memory beside the part. The second word has the owner copy it to the device.
        said && told.is_some_and(|offset| self.network.send_error_word(HeapAddress { offset, ..at }, 1))
    }

    fn detach_job(&mut self) {
        self.network.detach_job();
    }

    fn poll_control_streams(&mut self) {
        self.network.poll_control_streams();
        self.fail_dead_owners();
        self.deliveries.bring_error_words();
    }

    fn is_gone(&mut self, member: MemberRank) -> bool {
        self.network.is_gone(member)
    }
}
