//! The owner's side of posted windows in memory of a device. It takes requests from the post boxes, copies bytes between the device and
//! host memory, changes words, and replies when the device has the result. Called by `proxy`. It trusts no request before its bounds are
//! checked.

use std::collections::VecDeque;

use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::reserve::{OutOfMemory, try_filled, try_grow};
use trunkline_proto::rma::atomic::{AtomicType, TypedAtomic};
use trunkline_proto::table_capacity::{try_hold, try_hold_queue};
use trunkline_proto::wire::device_queue::{
    EntryStatus, OwnerAction, POST_PLACES, PostBox, PostReply, PostRequest, REPLY_BYTES,
};

use crate::network::{BeginOutcome, MemberNetwork, NetworkCompletion};
use crate::proxy::REPLIES;
use crate::window_part::LocalPart;
use trunkline_engine::rma::{HeapAddress, HeapRange, MemberRank, PutSource};

/// As in `proxy`.
const OURS: u64 = 1 << 31;
const NONE: u32 = u32::MAX;

/// The result in a reply: the old value of the word, or the status and reason of a failure.
type ReplyResult = Result<u64, (EntryStatus, u32)>;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ServedStage {
    Free,
    /// A copy must begin: to the device, or from it to a room.
    Move {
        room: Option<u64>,
    },
    Moving,
    Reply,
    Replying,
}

/// A range of a part in memory of a device.
#[derive(Clone, Copy, Debug)]
struct PartRange {
    /// Offset of the first byte in the part.
    offset: u64,
    /// The length in bytes.
    len: u64,
}

/// A request in progress.
#[derive(Clone, Copy, Debug)]
struct ServedRequest {
    generation: u32,
    /// This process's heap of the part.
    heap: u8,
    /// The rank that awaits the reply, and the request's number; `None` for a copy without a request.
    to: Option<(MemberRank, u64)>,
    at: PartRange,
    stage: ServedStage,
    how: ReplyResult,
}

#[derive(Debug)]
struct ServedPart {
    part: LocalPart,
    /// The number of requests taken, by rank.
    taken: Box<[u64]>,
}

/// The requests of other ranks to this owner.
#[derive(Debug)]
pub(super) struct RequestService {
    served: Vec<ServedPart>,
    all: Vec<ServedRequest>,
    free: Vec<u32>,
    /// Requests that could not continue for lack of room.
    todo: VecDeque<u32>,
    copied: Vec<(u64, Result<(), u32>)>,
}

impl RequestService {
    pub(super) fn new() -> Self {
        let all = Vec::new();
        let free = Vec::new();
        let copied = Vec::new();
        Self { served: Vec::new(), all, free, todo: VecDeque::new(), copied }
    }

    pub(super) fn open_part(&mut self, part: &LocalPart) -> Result<(), OutOfMemory> {
        if part.device.is_some() {
            let taken = try_filled(0, part.peers.len())?;
            try_grow(&mut self.served, 1)?;
            self.grow_capacity(64)?;
            self.served.push(ServedPart { part: part.clone(), taken });
        }
        Ok(())
    }

    pub(super) fn close_part(&mut self, heap: u8) {
        self.served.retain(|served| served.part.heap != heap);
        for place in 0..self.all.len() as u32 {
            let delivery = self.all.get(place as usize);
            if delivery.is_some_and(|delivery| delivery.heap == heap && delivery.stage != ServedStage::Free) {
                self.todo.retain(|&todo| todo != place);
                self.release_request(place);
            }
        }
    }

    /// Returns whether no request for a part is in progress: also its reply has been placed.
    pub(super) fn is_idle(&self, heap: u8) -> bool {
        !self.all.iter().any(|delivery| delivery.heap == heap && delivery.stage != ServedStage::Free)
    }

    fn grow_capacity(&mut self, more: u32) -> Result<(), OutOfMemory> {
        let first = self.all.len() as u32;
        let room = (first + more) as usize;
        let none = ServedRequest {
            generation: 0,
            heap: 0,
            to: None,
            at: PartRange { offset: 0, len: 0 },
            stage: ServedStage::Free,
            how: Ok(0),
        };
        try_grow(&mut self.all, more as usize)?;
        try_hold(&mut self.free, room)?;
        try_hold_queue(&mut self.todo, room)?;
        try_hold(&mut self.copied, room)?;
        self.all.resize(room, none);
        self.free.extend((first..first + more).rev());
        Ok(())
    }

    fn allocate_request(
        &mut self,
        heap: u8,
        to: Option<(MemberRank, u64)>,
        at: PartRange,
        stage: ServedStage,
        how: ReplyResult,
    ) -> u32 {
        let place = self.free.pop().unwrap_or(NONE);
        if let Some(delivery) = self.all.get_mut(place as usize) {
            // The generation leaves the top bit clear, so it fits in the cookie beside the flags.
            let generation = delivery.generation.wrapping_add(1) & (u32::MAX >> 1);
            *delivery = ServedRequest { generation, heap, to, at, stage, how };
        }
        place
    }

    fn release_request(&mut self, place: u32) {
        if let Some(delivery) = self.all.get_mut(place as usize) {
            delivery.stage = ServedStage::Free;
            self.free.push(place);
        }
    }

    /// Progresses all requests. Returns whether anything advanced.
    pub(super) fn make_progress<N: MemberNetwork>(&mut self, network: &mut N, me: MemberRank) -> bool {
        if self.served.is_empty() {
            return false;
        }
        let mut moved = self.poll_copies(network, me);
        for _ in 0..self.todo.len() {
            if let Some(place) = self.todo.pop_front() {
                self.advance_request(network, me, place);
            }
        }
        for nth in 0..self.served.len() {
            let members = self.served.get(nth).map_or(0, |served| served.taken.len());
            for member in 0..members {
                moved |= self.poll_requests(network, me, nth, member);
            }
        }
        moved
    }

    fn poll_requests<N: MemberNetwork>(
        &mut self,
        network: &mut N,
        me: MemberRank,
        part_index: usize,
        member: usize,
    ) -> bool {
        let mut moved = false;
        // At most one round of the box per pass, so that a fast peer does not delay the others.
        for _ in 0..POST_PLACES {
            // Without a free entry the request stays in its box, and is taken by a later call.
            if self.free.is_empty() && self.grow_capacity(64).is_err() {
                break;
            }
            let Some(ServedPart { part, taken }) = self.served.get_mut(part_index) else { break };
            let Some((of, taken)) = PostBox::new(part.boxes, member as u32).zip(taken.get_mut(member)) else {
                break;
            };
            let Ok(words) = part.memory.load_row(of.request_offset(*taken)) else { break };
            let Some(request) = PostRequest::from_words(&words, *taken) else { break };
            *taken = taken.wrapping_add(1);
            let heap = part.heap;
            let (at, stage, how) = plan_request(part, member as u32, request);
            let place = self.allocate_request(heap, Some((member as u32, request.number)), at, stage, how);
            self.advance_request(network, me, place);
            moved = true;
        }
        moved
    }

    /// Continues a request as far as there is room.
    fn advance_request<N: MemberNetwork>(&mut self, network: &mut N, me: MemberRank, place: u32) {
        let Some(delivery) = self.all.get_mut(place as usize) else { return };
        let Some(served) = self.served.iter().find(|served| served.part.heap == delivery.heap) else {
            return self.release_request(place);
        };
        let part = &served.part;
        if let (ServedStage::Move { room }, Some((device, copies))) = (delivery.stage, &part.device) {
            let PartRange { offset, len } = delivery.at;
            let cookie = u64::from(delivery.generation) << 32 | u64::from(place);
            let on_device = MemoryLocation { memory: device, offset };
            let (from, to) = match room {
                Some(room) => (on_device, MemoryLocation { memory: &part.memory, offset: room }),
                None => (MemoryLocation { memory: &part.memory, offset }, on_device),
            };
            if !copies.begin_copy(cookie, from, to, len) {
                return self.todo.push_back(place);
            }
            delivery.stage = ServedStage::Moving;
        }
        let Some((member, number)) = delivery.to.filter(|_| delivery.stage == ServedStage::Reply) else {
            return;
        };
        let Some(peer) = part.peers.get(member as usize) else { return };
        let boxes = PostBox::new(part.boxes, member).zip(PostBox::new(peer.boxes, me));
        let Some((own, theirs)) = boxes else { return };
        let from = own.reply_out(number);
        for (nth, word) in (0..).zip((PostReply { number, how: delivery.how }).to_words()) {
            let _inside = part.memory.store(from + nth * 8, word);
        }
        let to = HeapAddress { member, heap: peer.heap, offset: theirs.reply_offset(number) };
        let from = PutSource::Heap(HeapRange { heap: part.heap, offset: from, len: REPLY_BYTES });
        let cookie = u64::from(delivery.generation) << 32 | OURS | REPLIES | u64::from(place);
        match network.put(cookie, to, from) {
            BeginOutcome::Begun(_) => delivery.stage = ServedStage::Replying,
            BeginOutcome::Busy => self.todo.push_back(place),
            BeginOutcome::Failed(_) => {
                // Without a reply the peer's operation would never end, so the peer is notified by the control stream.
                network.send_error_word(HeapAddress { offset: theirs.lost_word(), ..to }, 1);
                self.release_request(place);
            }
        }
    }

    fn poll_copies<N: MemberNetwork>(&mut self, network: &mut N, me: MemberRank) -> bool {
        let mut copied = std::mem::take(&mut self.copied);
        for served in &self.served {
            if let Some((_, copies)) = &served.part.device {
                copies.take_ended(&mut copied);
            }
        }
        let moved = !copied.is_empty();
        for (cookie, how) in copied.drain(..) {
            let place = cookie as u32;
            let generation = (cookie >> 32) as u32;
            let Some(delivery) = self.all.get_mut(place as usize) else { continue };
            // The part may have been closed, and the place reused, while the copy ran.
            if delivery.generation != generation || delivery.stage != ServedStage::Moving {
                continue;
            }
            if let Err(reason) = how {
                delivery.how = Err((EntryStatus::Network, reason));
            }
            delivery.stage = ServedStage::Reply;
            match delivery.to {
                Some(_) => self.advance_request(network, me, place),
                None => self.release_request(place),
            }
        }
        self.copied = copied;
        moved
    }

    /// Handles the completion of a reply. If it could not be placed, the rank is notified by the control stream that no reply will arrive.
    pub(super) fn on_replied<N: MemberNetwork>(
        &mut self,
        network: &mut N,
        me: MemberRank,
        one: NetworkCompletion,
    ) {
        let place = (one.cookie & (REPLIES - 1)) as u32;
        let Some(delivery) = self.all.get(place as usize).copied() else { return };
        if delivery.generation != (one.cookie >> 32) as u32 || delivery.stage != ServedStage::Replying {
            return;
        }
        let served = self.served.iter().find(|served| served.part.heap == delivery.heap);
        if let (Err(_), Some(ServedPart { part, .. }), Some((member, _))) = (one.how, served, delivery.to) {
            let peer = part.peers.get(member as usize);
            if let Some((heap, theirs)) =
                peer.and_then(|peer| Some((peer.heap, PostBox::new(peer.boxes, me)?)))
            {
                network.send_error_word(HeapAddress { member, heap, offset: theirs.lost_word() }, 1);
            }
        }
        self.release_request(place);
    }

    /// Copies error words that other ranks have set by the control stream to the device.
    pub(super) fn bring_error_words(&mut self) {
        let mut words = Vec::new();
        for ServedPart { part, .. } in &self.served {
            for (member, peer) in (0..).zip(&part.peers) {
                let Some(of) = PostBox::new(part.boxes, member) else { continue };
                if part.memory.load(of.error_word()) == Ok(0) {
                    continue;
                }
                // The flag is cleared first: an error word that is set during this loop sets it again.
                let _inside = part.memory.store(of.error_word(), 0);
                let errors = peer.slots.iter().flat_map(|slots| (0..).map_while(|nth| slots.slot_at(nth)));
                let set = errors.filter(|slot| part.memory.load(slot.error).is_ok_and(|word| word != 0));
                words.extend(set.map(|slot| (part.heap, slot.error, of.error_word())));
            }
        }
        for (heap, at, spoiled) in words {
            if self.free.is_empty() && self.grow_capacity(64).is_err() {
                // The flag is set again, so that the next call retries.
                let served = self.served.iter().find(|served| served.part.heap == heap);
                let _inside = served.map(|served| served.part.memory.store(spoiled, 1));
                continue;
            }
            let word = PartRange { offset: at, len: 8 };
            let place = self.allocate_request(heap, None, word, ServedStage::Move { room: None }, Ok(0));
            self.todo.push_back(place);
        }
    }
}

/// Returns the copy and the reply for a request.
fn plan_request(
    part: &LocalPart,
    member: MemberRank,
    PostRequest { number, ask }: PostRequest,
) -> (PartRange, ServedStage, ReplyResult) {
    let refused = (PartRange { offset: 0, len: 0 }, ServedStage::Reply, Err((EntryStatus::Access, 0)));
    let Some((device, _)) = &part.device else { return refused };
    // The request is written by another rank, so its range is checked against the part here.
    let inside = |addr, len| device.checked_address(addr, len).is_ok();
    match ask {
        OwnerAction::Bring { addr, len } if inside(addr, len) => {
            (PartRange { offset: addr, len }, ServedStage::Move { room: None }, Ok(0))
        }
        OwnerAction::Show { addr, len } if inside(addr, len) && len <= part.rooms.room_bytes() => (
            PartRange { offset: addr, len },
            ServedStage::Move { room: Some(part.rooms.room_offset(member, number)) },
            Ok(0),
        ),
        OwnerAction::Change { addr, action } if inside(addr, 8) => {
            let Some(atomic) = TypedAtomic::new(AtomicType::U64, action, true) else { return refused };
            match part.memory.fetch_update(addr, |old| atomic.apply_to(old)) {
                Ok(old) => (PartRange { offset: addr, len: 8 }, ServedStage::Move { room: None }, Ok(old)),
                Err(_) => refused,
            }
        }
        OwnerAction::Bring { .. } | OwnerAction::Show { .. } | OwnerAction::Change { .. } => refused,
    }
}
