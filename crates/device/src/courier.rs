//! Windows whose memory no network reaches, as it is a device's: their owners are asked, by post boxes in memory of the host (docs/wire.md, "Post boxes").
//!
//! A [`Courier`] is a network around another one, which it leaves as it is but for parts of windows that are [posted](super::Peer::is_posted): a put goes to the memory beside
//! such a part, and ends when the owner has replied that it has brought the bytes; a get is shown first; a word is changed by its owner alone. `Deliveries` is what an owner does.

use std::collections::VecDeque;

use trunkline_proto::holding::{try_hold, try_hold_queue};
use trunkline_proto::limits::DEVICE_PIECE_BYTES;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_deque, try_grow, try_vec};
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Ask, POST_PLACES, PostBox, REQUEST_BYTES, Reply, Request, Status};

use crate::deliver::Deliveries;
use crate::network::{Carried, Ended, Failure, Network, Place};
use crate::part::{Part, Peer};
use trunkline_engine::rma::{Local, Member, Source};

/// Numbers of operations that are the courier's own have this bit; those of who uses it do not: they count places below it, with a generation above 32 bits.
const OURS: u64 = 1 << 31;
/// And of these, those of replies.
pub(super) const REPLIES: u64 = 1 << 30;
/// Operations for which there is room from the beginning.
const ROOM: usize = 256;
/// No operation.
const NONE: u32 = u32::MAX;

/// Requests to a rank.
#[derive(Debug)]
struct Asking {
    next: u64,
    /// Who has each place.
    places: [u32; POST_PLACES as usize],
    under_way: u32,
    waiting: VecDeque<u32>,
    /// Nothing is asked any more.
    failed: Option<Failure>,
}

#[derive(Debug)]
struct Open {
    part: Part,
    asking: Vec<Asking>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Free,
    /// Bytes go beside the part.
    Putting,
    /// It waits for a place.
    Waiting,
    /// The request is on its way, or the reply.
    Asked,
    /// Bytes that were shown come.
    Getting,
}

/// An operation on a part that is posted.
#[derive(Clone, Copy, Debug)]
struct Op {
    generation: u32,
    /// What it is to who has begun it.
    cookie: u64,
    heap: u8,
    member: Member,
    ask: Ask,
    stage: Stage,
    number: u64,
    /// The request has been placed.
    sent: bool,
    reply: Option<Reply>,
    fetches: bool,
    /// Of a get: what is left of it.
    rest: Option<(Place, Local)>,
    gets: u32,
    failed: Option<Failure>,
}

/// A network that asks owners for what it does not reach itself.
#[derive(Debug)]
pub struct Courier<N> {
    network: N,
    me: Member,
    open: Vec<Open>,
    ops: Vec<Op>,
    free: Vec<u32>,
    /// Gets that found no room.
    again: VecDeque<u32>,
    over: Vec<Ended>,
    mine: Vec<Ended>,
    deliveries: Deliveries,
    mutant: Mutant,
}

impl<N: Network> Courier<N> {
    /// Around a network, with nothing that it does not reach yet.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(network: N, mutant: Mutant) -> Result<Self, OutOfMemory> {
        Ok(Self {
            me: network.me(),
            network,
            open: Vec::new(),
            ops: Vec::new(),
            free: Vec::new(),
            again: try_deque(ROOM)?,
            over: try_vec(ROOM)?,
            mine: try_vec(ROOM)?,
            deliveries: Deliveries::new(mutant),
            mutant,
        })
    }

    /// The network below.
    pub const fn network(&mut self) -> &mut N {
        &mut self.network
    }

    /// Takes a part of a window on, before any rank uses it. Windows that lie in memory of hosts at all ranks need not be told of.
    ///
    /// # Errors
    /// [`OutOfMemory`]; then it is not taken on.
    pub fn open(&mut self, part: Part) -> Result<(), OutOfMemory> {
        self.grow()?;
        let asking = |_: &Peer| Asking {
            next: 0,
            places: [NONE; POST_PLACES as usize],
            under_way: 0,
            waiting: VecDeque::with_capacity(64),
            failed: None,
        };
        let asking = try_collect(part.peers.iter().map(asking))?;
        try_grow(&mut self.open, 1)?;
        self.deliveries.open(&part)?;
        self.open.push(Open { part, asking });
        Ok(())
    }

    /// Ends it: nobody uses it any more. What is under way there has failed, whatever still becomes of it.
    pub fn close(&mut self, heap: u8) {
        self.open.retain(|open| open.part.heap != heap);
        self.deliveries.close(heap);
        for at in 0..self.ops.len() as u32 {
            let is_of_it = self.ops.get(at as usize).is_some_and(|op| op.heap == heap);
            if is_of_it && !self.mutant.is("post-keeps-what-was-closed") {
                self.finish(at, Err(Failure::of(Status::Stale)));
            }
        }
    }

    /// Whether nothing is under way on a part, of this rank's and of the requests of others here.
    #[must_use]
    pub fn is_idle(&self, heap: u8) -> bool {
        let is_under_way = |op: &Op| op.heap == heap && op.stage != Stage::Free;
        !self.ops.iter().any(is_under_way) && self.deliveries.is_idle(heap)
    }

    fn grow(&mut self) -> Result<(), OutOfMemory> {
        let op = Op {
            generation: 0,
            cookie: 0,
            heap: 0,
            member: 0,
            ask: Ask::Bring { addr: 0, len: 0 },
            stage: Stage::Free,
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

    /// The window of which a rank's heap is a part that is posted.
    #[inline]
    fn posted(&self, member: Member, heap: u8) -> Option<&Open> {
        let is_it = |open: &&Open| {
            let peer = open.part.peers.get(member as usize);
            peer.is_some_and(|peer| peer.is_posted && peer.heap == heap)
        };
        self.open.iter().find(is_it)
    }

    fn asking(&mut self, heap: u8, member: Member) -> Option<(&Part, &mut Asking)> {
        let open = self.open.iter_mut().find(|open| open.part.heap == heap)?;
        Some((&open.part, open.asking.get_mut(member as usize)?))
    }

    /// A place for an operation; `None` if there is no memory for more of them now.
    fn launch(&mut self, cookie: u64, (heap, member): (u8, Member), ask: Ask) -> Option<u32> {
        if self.free.is_empty() {
            self.grow().ok()?;
        }
        let at = self.free.pop()?;
        if let Some(op) = self.ops.get_mut(at as usize) {
            let generation = op.generation.wrapping_add(1);
            let stage = Stage::Putting;
            *op = Op {
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

    fn cookie(&self, at: u32) -> u64 {
        let generation = self.ops.get(at as usize).map_or(0, |op| op.generation);
        u64::from(generation) << 32 | OURS | u64::from(at)
    }

    fn drop_op(&mut self, at: u32) {
        if let Some(op) = self.ops.get_mut(at as usize) {
            (op.stage, op.generation) = (Stage::Free, op.generation.wrapping_add(1));
            self.free.push(at);
        }
    }

    fn finish(&mut self, at: u32, how: Result<u64, Failure>) {
        let Some(op) = self.ops.get(at as usize).filter(|op| op.stage != Stage::Free) else { return };
        let how = how.map(|value| if op.fetches { value } else { 0 });
        self.over.push(Ended { cookie: op.cookie, how });
        self.drop_op(at);
    }

    /// Asks for it as soon as there is a place.
    fn enqueue(&mut self, at: u32) {
        let Some(op) = self.ops.get_mut(at as usize) else { return };
        op.stage = Stage::Waiting;
        let heap = op.heap;
        let member = op.member;
        let Some((_, asking)) = self.asking(heap, member) else {
            return self.finish(at, Err(Failure::of(Status::Stale)));
        };
        match asking.failed {
            Some(failure) => self.finish(at, Err(failure)),
            None => {
                asking.waiting.push_back(at);
                self.ask(heap, member);
            }
        }
    }

    /// Sends the requests for which there are places.
    fn ask(&mut self, heap: u8, member: Member) {
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
            let words = Request { number, ask: op.ask }.to_words();
            let from = own.request_out(number);
            for (nth, word) in (0..).zip(words) {
                let _inside = part.memory.store(from + nth * 8, word);
            }
            let to = Place { member, heap: peer.heap, offset: theirs.request(number) };
            let from = Source::Heap(Local { heap: part.heap, offset: from, len: REQUEST_BYTES });
            let cookie = u64::from(op.generation) << 32 | OURS | u64::from(at);
            match self.network.put(cookie, to, from) {
                Carried::Begun(_) => {
                    (op.stage, op.number) = (Stage::Asked, number);
                    *place = at;
                    asking.next = number.wrapping_add(1);
                    asking.under_way += 1;
                    asking.waiting.pop_front();
                }
                Carried::Busy => return,
                Carried::Failed(failure) => return self.give_up(heap, member, failure),
            }
        }
    }

    /// Nothing that a rank was asked for comes any more.
    fn give_up(&mut self, heap: u8, member: Member, failure: Failure) {
        let Some((_, asking)) = self.asking(heap, member) else { return };
        asking.failed = asking.failed.or(Some(failure));
        let places = std::mem::replace(&mut asking.places, [NONE; POST_PLACES as usize]);
        let waiting = std::mem::take(&mut asking.waiting);
        asking.under_way = 0;
        for at in places.into_iter().filter(|at| *at != NONE).chain(waiting) {
            // Bytes that come already come to their end first.
            match self.ops.get_mut(at as usize).filter(|op| op.stage == Stage::Getting && op.gets > 0) {
                Some(op) => op.failed = op.failed.or(Some(failure)),
                None => self.finish(at, Err(failure)),
            }
        }
    }

    /// The end of an operation of the network that is the courier's own.
    fn on_ended(&mut self, one: Ended) {
        if one.cookie & REPLIES != 0 {
            return self.deliveries.on_replied(&mut self.network, self.me, one);
        }
        let at = (one.cookie & (OURS - 1)) as u32;
        let generation = (one.cookie >> 32) as u32;
        let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.generation == generation) else { return };
        match (op.stage, one.how) {
            (Stage::Putting, Ok(_)) => self.enqueue(at),
            (Stage::Putting, Err(failure)) => self.finish(at, Err(failure)),
            (Stage::Asked, Ok(_)) => {
                op.sent = true;
                self.conclude(at);
            }
            (Stage::Asked, Err(failure)) => {
                let heap = op.heap;
                let member = op.member;
                self.give_up(heap, member, failure);
            }
            (Stage::Getting, how) => {
                op.gets -= 1;
                op.failed = op.failed.or(how.err());
                self.fetch(at);
            }
            (Stage::Free | Stage::Waiting, _) => {}
        }
    }

    /// Once the request is placed and the reply is there.
    fn conclude(&mut self, at: u32) {
        let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.sent && op.stage == Stage::Asked) else {
            return;
        };
        let Some(reply) = op.reply else { return };
        let heap = op.heap;
        let member = op.member;
        let number = op.number;
        let is_get = op.rest.is_some() && reply.how.is_ok();
        if is_get {
            op.stage = Stage::Getting;
            let me = self.me;
            let unmoved = self.mutant.is("post-shows-where-puts-land");
            let rooms = self.asking(heap, member).map(|(part, _)| part.rooms).filter(|_| !unmoved);
            let rest = self.ops.get_mut(at as usize).and_then(|op| op.rest.as_mut());
            if let Some(((from, _), rooms)) = rest.zip(rooms) {
                from.offset = rooms.room(me, number);
            }
            if self.mutant.is("post-gives-rooms-back-early") {
                self.vacate(at);
            }
            return self.fetch(at);
        }
        self.vacate(at);
        self.finish(at, reply.how.map_err(|(status, reason)| Failure { status, reason }));
        self.ask(heap, member);
    }

    /// Gives an operation's place to another request. Of a get its room goes with it, so it is given back when the bytes have come.
    fn vacate(&mut self, at: u32) {
        let Some(&Op { heap, member, number, .. }) = self.ops.get(at as usize) else { return };
        let Some((_, asking)) = self.asking(heap, member) else { return };
        if let Some(place) =
            asking.places.get_mut((number % POST_PLACES) as usize).filter(|place| **place == at)
        {
            *place = NONE;
            asking.under_way -= 1;
        }
    }

    /// Gets what was shown, as far as there is room.
    fn fetch(&mut self, at: u32) {
        let cookie = self.cookie(at);
        let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.stage == Stage::Getting) else { return };
        while let Some((from, into)) =
            op.rest.as_mut().filter(|(_, into)| into.len > 0 && op.failed.is_none())
        {
            match self.network.get(cookie, *from, *into) {
                Carried::Begun(bytes) => {
                    (from.offset, into.offset, into.len) =
                        (from.offset + bytes, into.offset + bytes, into.len - bytes);
                    op.gets += 1;
                }
                Carried::Busy => {
                    self.again.push_back(at);
                    return;
                }
                Carried::Failed(failure) => op.failed = Some(failure),
            }
        }
        if op.gets == 0 {
            let how = op.failed.map_or(Ok(0), Err);
            let heap = op.heap;
            let member = op.member;
            self.vacate(at);
            self.finish(at, how);
            self.ask(heap, member);
        }
    }

    /// Looks for replies; whether any has come.
    fn take_replies(&mut self) -> bool {
        let mut moved = false;
        for nth in 0..self.open.len() {
            let members = self.open.get(nth).map_or(0, |open| open.asking.len());
            for member in 0..members {
                moved |= self.take_replies_of(nth, member);
            }
        }
        moved
    }

    fn take_replies_of(&mut self, nth: usize, member: usize) -> bool {
        let Some(Open { part, asking }) = self.open.get(nth) else { return false };
        let Some(asking) = asking.get(member).filter(|asking| asking.under_way > 0) else { return false };
        let Some(own) = PostBox::new(part.boxes, member as u32) else { return false };
        let heap = part.heap;
        let places = asking.places;
        let is_lost = part.memory.load(own.lost()).is_ok_and(|lost| lost != 0);
        let mut found = [NONE; POST_PLACES as usize];
        for (at, into) in places.into_iter().filter(|at| *at != NONE).zip(&mut found) {
            let Some(op) = self.ops.get_mut(at as usize).filter(|op| op.reply.is_none()) else { continue };
            let Ok(words) = part.memory.load_row(own.reply(op.number)) else { continue };
            op.reply = Reply::from_words(&words, op.number, self.mutant);
            if op.reply.is_some() {
                *into = at;
            }
        }
        let mut moved = false;
        for at in found.into_iter().filter(|at| *at != NONE) {
            moved = true;
            self.conclude(at);
        }
        if is_lost && !moved {
            self.give_up(heap, member as u32, Failure::of(Status::Network));
        }
        moved
    }

    /// Whoever is gone replies to nothing.
    fn bury(&mut self) {
        for nth in 0..self.open.len() {
            let Some(Open { part, asking }) = self.open.get(nth) else { return };
            let heap = part.heap;
            let waits = |asking: &Asking| asking.under_way > 0 || !asking.waiting.is_empty();
            for member in 0..asking.len() {
                let open = self.open.get(nth).and_then(|open| open.asking.get(member));
                if open.is_some_and(waits)
                    && self.network.is_gone(member as u32)
                    && !self.mutant.is("post-waits-for-the-dead")
                {
                    self.give_up(heap, member as u32, Failure::of(Status::PeerDead));
                }
            }
        }
    }
}

impl<N: Network> Network for Courier<N> {
    fn me(&self) -> Member {
        self.me
    }

    fn executes(&self) -> bool {
        self.network.executes()
    }

    #[inline]
    fn put(&mut self, cookie: u64, to: Place, from: Source<'_>) -> Carried {
        let Some(open) = self.posted(to.member, to.heap) else { return self.network.put(cookie, to, from) };
        let heap = open.part.heap;
        // The owner brings each piece as soon as it has come.
        let is_whole = self.mutant.is("post-brings-once-all-has-come");
        let from = match from {
            Source::Heap(bytes) if !is_whole => {
                Source::Heap(Local { len: bytes.len.min(DEVICE_PIECE_BYTES), ..bytes })
            }
            from => from,
        };
        let whole = from.byte_len();
        let ask = Ask::Bring { addr: to.offset, len: whole };
        let Some(at) = self.launch(cookie, (heap, to.member), ask) else { return Carried::Busy };
        let carried = self.network.put(self.cookie(at), to, from);
        let Carried::Begun(bytes) = carried else {
            self.drop_op(at);
            return carried;
        };
        if let Some(op) = self.ops.get_mut(at as usize) {
            op.ask = Ask::Bring { addr: to.offset, len: bytes.min(whole) };
        }
        if self.mutant.is("post-asks-before-the-bytes") {
            self.enqueue(at);
        }
        carried
    }

    #[inline]
    fn get(&mut self, cookie: u64, from: Place, into: Local) -> Carried {
        let Some(open) = self.posted(from.member, from.heap) else {
            return self.network.get(cookie, from, into);
        };
        let heap = open.part.heap;
        let len = into.len.min(open.part.rooms.room_bytes());
        let ask = Ask::Show { addr: from.offset, len };
        let Some(at) = self.launch(cookie, (heap, from.member), ask) else { return Carried::Busy };
        if let Some(op) = self.ops.get_mut(at as usize) {
            op.rest = Some((from, Local { len, ..into }));
        }
        self.enqueue(at);
        Carried::Begun(len)
    }

    #[inline]
    fn atomic(&mut self, cookie: u64, at: Place, action: Action, fetches: bool) -> Carried {
        let Some(open) = self.posted(at.member, at.heap) else {
            return self.network.atomic(cookie, at, action, fetches);
        };
        let heap = open.part.heap;
        let ask = Ask::Change { addr: at.offset, action };
        let Some(op) = self.launch(cookie, (heap, at.member), ask) else { return Carried::Busy };
        if let Some(op) = self.ops.get_mut(op as usize) {
            op.fetches = fetches;
        }
        self.enqueue(op);
        Carried::Begun(8)
    }

    #[inline]
    fn go_on(&mut self, ended: &mut Vec<Ended>) -> bool {
        if self.open.is_empty() && self.over.is_empty() {
            return self.network.go_on(ended);
        }
        let from = ended.len();
        let mut moved = self.network.go_on(ended);
        let mut at = from;
        while let Some(one) = ended.get(at) {
            if one.cookie & OURS == 0 {
                at += 1;
            } else {
                self.mine.push(ended.swap_remove(at));
            }
        }
        while let Some(one) = self.mine.pop() {
            self.on_ended(one);
        }
        for _ in 0..self.again.len() {
            if let Some(at) = self.again.pop_front() {
                self.fetch(at);
            }
        }
        moved |= self.take_replies();
        for nth in 0..self.open.len() {
            let Some(open) = self.open.get(nth) else { break };
            let heap = open.part.heap;
            for member in 0..open.asking.len() {
                self.ask(heap, member as u32);
            }
        }
        moved |= self.deliveries.go_on(&mut self.network, self.me);
        moved |= !self.over.is_empty();
        ended.append(&mut self.over);
        moved
    }

    fn spoil(&mut self, at: Place, value: u64) -> bool {
        let said = self.network.spoil(at, value);
        let Some(open) = self.posted(at.member, at.heap) else { return said };
        let boxes = open.part.peers.get(at.member as usize).map(|peer| peer.boxes);
        let told = boxes.and_then(|boxes| PostBox::new(boxes, self.me)).map(PostBox::spoiled);
        // What was set beside the part is brought to it.
        said && told.is_some_and(|offset| self.network.spoil(Place { offset, ..at }, 1))
    }

    fn leave(&mut self) {
        self.network.leave();
    }

    fn hear(&mut self) {
        self.network.hear();
        self.bury();
        self.deliveries.bring_spoiled();
    }

    fn is_gone(&mut self, member: Member) -> bool {
        self.network.is_gone(member)
    }
}
