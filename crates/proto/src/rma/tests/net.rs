//! A few processes over a few rails that keep no order, with at most two sends in flight per path. Signals and
//! acknowledgements are encoded as bytes. One clock and one seed determine the run.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::vec::Vec;

use super::oracle;
use crate::limits::LINKS_MAX;
use crate::rma::PathId;
use crate::rma::inbox::{ArrivalEffect, StreamInbox};
use crate::rma::incoming::{MakeUp, PathDeliveryReport};
use crate::rma::ledger::{self, OperationLedger};
use crate::rma::outgoing::{self, OutgoingStream, PutTag, SignalBatch, SignalOrdering, StreamBusy};
use crate::rma::paths::{PathStep, PeerPaths};
use crate::rma::redo::{RedoKind, RedoQueue, RedoWork};
use crate::rma::shape::EpochShape;
use crate::slots::SlotId;
use crate::wire::rma::signal::{SignalMessage, SignalUpdate, UpdateOp};
use crate::wire::rma::word::{SymmetricWord, WordWidth};
use crate::wire::rma::{RmaMessage, RmaStream};

/// Sends in flight per path, at most.
const DEPTH: u32 = 2;

/// A step of a program on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A put in this number of pieces.
    Put(u32),
    /// A put with signal in this number of pieces; 0: a signal.
    Signal(u32),
    /// A quiet.
    Quiet,
}

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) bits: u32,
    pub(super) shape: EpochShape,
    pub(super) order: SignalOrdering,
    /// Delay of each path. A message takes up to four times this delay, so no path keeps the order.
    pub(super) delays: [u64; LINKS_MAX],
    pub(super) rails: u8,
    pub(super) processes: usize,
    pub(super) streams: u8,
    /// Two threads use each stream; each executes every other step.
    pub(super) two_threads: bool,
}

/// The note of an operation in the ledger.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Note {
    Plain(usize),
    /// The piece, and the number of its epoch.
    Counted(usize, u64),
    Rewritten(usize),
}

impl Note {
    const fn kind(self) -> RedoKind {
        match self {
            Self::Plain(_) => RedoKind::Other,
            Self::Counted(_, epoch) => RedoKind::Counted(epoch),
            Self::Rewritten(_) => RedoKind::Rewritten,
        }
    }

    const fn piece(self) -> usize {
        match self {
            Self::Plain(piece) | Self::Counted(piece, _) | Self::Rewritten(piece) => piece,
        }
    }
}

/// Stream, id in its ledger, and note.
type Operation = (u8, SlotId, Note);

#[derive(Clone, Debug)]
enum Load {
    Write { imm: Option<u32>, piece: usize, stream: u8 },
    Message(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Packet {
    from: usize,
    to: usize,
    path: u8,
    load: Load,
    op: Option<Operation>,
    /// Stream and number of the signal, if the packet is one.
    signal: Option<(u8, u64)>,
    arrived: bool,
    noticed: bool,
    completed: bool,
    /// The network has lost the packet, or delays it or its completion.
    held: bool,
    mute: bool,
}

/// One end of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Up,
    /// In error; completions may still arrive.
    Failed,
    /// In error, and all completions have arrived.
    Quiet,
}

#[derive(Clone, Debug)]
enum Event {
    Arrive(usize),
    Notice(usize),
    Complete(usize),
    /// A packet that the network kept arrives late.
    Late(usize),
    /// The path between two processes loses everything; neither end has noticed.
    Lose(usize, usize, u8),
    /// One end of a path fails, and later has reported all completions.
    Fail(usize, usize, u8),
    Quiet(usize, usize, u8),
    /// Messages of the control stream from the first process to the second, in order.
    Down(usize, usize, u8),
    Standing(usize, usize, u8, Vec<PathDeliveryReport>),
    MakeUp(usize, usize, MakeUp),
}

/// A thread that uses a stream.
#[derive(Debug, Default)]
struct Thread {
    steps: VecDeque<Step>,
    batch: Option<SignalBatch>,
    left: Option<u32>,
    own: Option<usize>,
}

/// A stream of one process towards another.
#[derive(Debug)]
struct Out {
    machine: OutgoingStream,
    ledger: OperationLedger<Note>,
    threads: Vec<Thread>,
    sealed: u64,
    paths: PeerPaths,
    redo: RedoQueue,
}

#[derive(Debug)]
struct Peer {
    inbox: StreamInbox,
    outs: Vec<Out>,
    ready: VecDeque<RmaStream>,
    under_way: [u32; LINKS_MAX],
    ends: [End; LINKS_MAX],
    /// The network loses everything on this path.
    dead: [bool; LINKS_MAX],
    /// When the last control message to the peer arrives.
    control: u64,
}

/// Counts of the messages other than first writes and signals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) acks: u64,
    pub(super) asks: u64,
    pub(super) counted: u64,
    /// Writes and signals that were sent again.
    pub(super) again: u64,
    /// Messages that made up for writes.
    pub(super) made_up: u64,
}

pub(super) struct World {
    config: Config,
    now: u64,
    random: u64,
    queue: BinaryHeap<core::cmp::Reverse<(u64, usize)>>,
    events: Vec<Event>,
    packets: Vec<Packet>,
    peers: BTreeMap<(usize, usize), Peer>,
    pub(super) oracle: BTreeMap<(usize, usize, u8), oracle::Stream>,
    pub(super) sent: Sent,
}

impl World {
    pub(super) fn new(config: Config, seed: u64) -> Self {
        let mut peers = BTreeMap::new();
        let mut oracle = BTreeMap::new();
        for from in 0..config.processes {
            for to in (0..config.processes).filter(|&to| to != from) {
                let out = |number| {
                    let stream = RmaStream::new(number).unwrap();
                    let mut ledger = OperationLedger::new();
                    ledger.grow_capacity(1, 64).unwrap();
                    let threads = (0..1 + usize::from(config.two_threads)).map(|_| Thread::default());
                    Out {
                        machine: OutgoingStream::new(stream, config.order, config.shape).unwrap(),
                        ledger,
                        threads: threads.collect(),
                        sealed: 0,
                        paths: all_up(config.rails),
                        redo: RedoQueue::new(),
                    }
                };
                let peer = Peer {
                    inbox: StreamInbox::new(config.shape),
                    outs: (0..config.streams).map(out).collect(),
                    ready: VecDeque::new(),
                    under_way: [0; LINKS_MAX],
                    ends: [End::Up; LINKS_MAX],
                    dead: [false; LINKS_MAX],
                    control: 0,
                };
                peers.insert((from, to), peer);
                (0..config.streams)
                    .for_each(|stream| drop(oracle.insert((from, to, stream), Default::default())));
            }
        }
        Self {
            config,
            now: 0,
            random: seed | 1,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            packets: Vec::new(),
            peers,
            oracle,
            sent: Sent::default(),
        }
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) % end
    }

    /// Sets the steps of a stream, and adds a quiet at the end.
    pub(super) fn program(&mut self, from: usize, to: usize, stream: u8, steps: &[Step]) {
        let threads = &mut self.peers.get_mut(&(from, to)).unwrap().outs[usize::from(stream)].threads;
        let many = threads.len();
        for (at, &step) in steps.iter().enumerate() {
            threads[at % many].steps.push_back(step);
        }
        threads.iter_mut().for_each(|thread| thread.steps.push_back(Step::Quiet));
    }

    pub(super) fn lose_at(&mut self, time: u64, one: usize, two: usize, path: u8) {
        self.at(time, Event::Lose(one, two, path));
    }

    /// Schedules the failure of one end of a path.
    pub(super) fn fail_at(&mut self, time: u64, me: usize, peer: usize, path: u8) {
        self.at(time, Event::Fail(me, peer, path));
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.push(event);
        self.queue.push(core::cmp::Reverse((time, self.events.len() - 1)));
    }

    /// Runs until no event is left. All programs must then have ended, since no further event could continue one.
    pub(super) fn run(&mut self) {
        let pairs: Vec<_> = self.peers.keys().copied().collect();
        pairs.iter().for_each(|&pair| self.turn(pair));
        let mut steps = 0_u64;
        while let Some(core::cmp::Reverse((time, at))) = self.queue.pop() {
            self.now = time;
            let event = self.events[at].clone();
            let (one, two) = self.happen(event);
            self.turn((one, two));
            self.turn((two, one));
            steps += 1;
            assert!(steps < 4_000_000, "the run did not end");
        }
        for ((from, to), peer) in &mut self.peers {
            for out in &mut peer.outs {
                let left: usize = out.threads.iter().map(|thread| thread.steps.len()).sum();
                assert_eq!(left, 0, "process {from} still waits for {to}");
                assert_eq!(out.ledger.quiet(), Ok(ledger::QuietProgress::Done));
                assert_eq!(out.ledger.unknown_completions(), 0);
                assert!(out.redo.is_empty());
            }
        }
    }

    /// Checks at the end that each target counted each counted write and applied each signal exactly once.
    pub(super) fn check_end(&self) {
        for (&(from, to), peer) in &self.peers {
            let of_peer =
                self.oracle.range((to, from, 0)..(to, from, u8::MAX)).map(|(_, stream)| stream.end());
            let (writes, signals) = of_peer.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let seen = peer.inbox.arrival_counts();
            assert_eq!((seen.writes, seen.signals), (writes, signals), "of {to} at {from}");
            assert_eq!(seen.repeated, 0, "a signal arrived twice");
            assert!(peer.inbox.stream_capacity().0 <= usize::from(self.config.streams), "I8");
            assert_eq!(peer.inbox.stream_capacity().1, self.config.shape.epoch_window(), "I8");
        }
    }

    fn happen(&mut self, event: Event) -> (usize, usize) {
        match event {
            Event::Arrive(at) => self.arrive(at),
            Event::Late(at) => {
                self.packets[at].held = false;
                self.arrive(at)
            }
            Event::Notice(at) => {
                self.notice(at);
                (self.packets[at].from, self.packets[at].to)
            }
            Event::Complete(at) => {
                let pair = (self.packets[at].from, self.packets[at].to);
                let is_told = self.peers[&pair].ends[usize::from(self.packets[at].path)] == End::Quiet;
                if !is_told && !self.packets[at].mute {
                    self.complete(at);
                }
                pair
            }
            Event::Lose(one, two, path) => {
                self.lose(one, two, path);
                (one, two)
            }
            Event::Fail(me, peer, path) | Event::Down(peer, me, path) => {
                self.fail((me, peer), path);
                (me, peer)
            }
            Event::Quiet(me, peer, path) => {
                self.peers.get_mut(&(me, peer)).unwrap().ends[usize::from(path)] = End::Quiet;
                self.settle((me, peer), path);
                (me, peer)
            }
            Event::Standing(from, to, path, standings) => {
                for (number, standing) in standings.into_iter().enumerate() {
                    let out = self.out((to, from), number as u8);
                    if out.paths.on_delivery_report(place(path), standing) != PathStep::Nothing {
                        self.fail((to, from), path);
                    }
                }
                self.settle((to, from), path);
                (to, from)
            }
            Event::MakeUp(from, to, lost) => {
                let peer = self.peers.get_mut(&(to, from)).unwrap();
                // All earlier messages of the stream may have been lost.
                peer.inbox.add_stream(lost.stream).unwrap();
                if peer.inbox.make_up(&lost).unwrap() == ArrivalEffect::Ready(lost.stream) {
                    peer.ready.push_back(lost.stream);
                }
                (from, to)
            }
        }
    }

    /// Delivers a packet to the NIC of its target.
    fn arrive(&mut self, at: usize) -> (usize, usize) {
        let packet = &self.packets[at];
        let (pair, path) = ((packet.from, packet.to), packet.path);
        if packet.held || packet.noticed {
            return pair;
        }
        let (delay, poll) = (self.delay(path), self.below(8));
        if self.peers[&(pair.1, pair.0)].ends[usize::from(path)] != End::Up {
            self.vanish(at, false);
            return pair;
        }
        let packet = &mut self.packets[at];
        packet.arrived = true;
        if let Load::Write { piece, stream, .. } = packet.load {
            let now = self.now;
            self.stream(pair, stream).placed(piece, now);
        }
        self.at(self.now + poll, Event::Notice(at));
        if !self.peers[&pair].dead[usize::from(path)] {
            self.at(self.now + delay, Event::Complete(at));
        }
        pair
    }

    /// Sends a message over the control stream, which keeps its order.
    fn say(&mut self, (from, to): (usize, usize), event: Event) {
        let later = self.now + 1 + self.below(200);
        let last = &mut self.peers.get_mut(&(from, to)).unwrap().control;
        *last = later.max(*last);
        let at = *last;
        self.at(at, event);
    }

    fn stream(&mut self, (from, to): (usize, usize), stream: u8) -> &mut oracle::Stream {
        self.oracle.get_mut(&(from, to, stream)).unwrap()
    }

    fn out(&mut self, pair: (usize, usize), stream: u8) -> &mut Out {
        &mut self.peers.get_mut(&pair).unwrap().outs[usize::from(stream)]
    }

    fn delay(&mut self, path: u8) -> u64 {
        let delay = self.config.delays[usize::from(path)];
        delay + self.below(3 * delay)
    }

    /// The target takes in a packet that has arrived.
    fn notice(&mut self, at: usize) {
        let packet = &mut self.packets[at];
        if core::mem::replace(&mut packet.noticed, true) {
            return;
        }
        let (pair, path) = ((packet.from, packet.to), place(packet.path));
        match packet.load.clone() {
            Load::Write { imm: None, .. } => {}
            Load::Write { imm: Some(imm), piece, stream } => {
                let now = self.now;
                self.stream(pair, stream).noticed(piece, now);
                let peer = self.peers.get_mut(&(pair.1, pair.0)).unwrap();
                let mut took = peer.inbox.on_write(imm, path).unwrap();
                if let ArrivalEffect::Unknown(stream) = took {
                    peer.inbox.add_stream(stream).unwrap();
                    took = peer.inbox.on_write(imm, path).unwrap();
                }
                if let ArrivalEffect::Ready(stream) = took {
                    peer.ready.push_back(stream);
                }
            }
            Load::Message(bytes) => self.on_message(at, pair, &bytes),
        }
    }

    fn on_message(&mut self, at: usize, (from, to): (usize, usize), bytes: &[u8]) {
        if let Some((stream, number)) = self.packets[at].signal {
            self.stream((from, to), stream).message_gone(number);
        }
        let mut message = RmaMessage::from_bytes(bytes).unwrap();
        let peer = self.peers.get_mut(&(to, from)).unwrap();
        let took = loop {
            let took = match &message {
                RmaMessage::Signal(signal) => peer.inbox.on_signal(signal),
                RmaMessage::Ask(ask) => peer.inbox.on_ask(ask),
                RmaMessage::Ack(_) => break ArrivalEffect::Counted,
                RmaMessage::Request(_) | RmaMessage::Reply(_) => unreachable!(),
            };
            match took.unwrap() {
                ArrivalEffect::Unknown(stream) => peer.inbox.add_stream(stream).unwrap(),
                took => break took,
            }
        };
        if let ArrivalEffect::Ready(stream) = took {
            peer.ready.push_back(stream);
        }
        let ack = match &mut message {
            RmaMessage::Signal(signal) => signal.ack,
            RmaMessage::Ack(ack) => Some(*ack),
            _ => None,
        };
        if let Some(ack) = ack {
            let out = &mut peer.outs[ack.stream.index()];
            let news = out.machine.on_ack(ack).unwrap();
            out.ledger.complete_signals(0, news as u32).unwrap();
            self.stream((to, from), ack.stream.number()).acknowledge(news);
        }
    }

    /// The initiator learns that an operation is complete at its target.
    fn complete(&mut self, at: usize) {
        let packet = &mut self.packets[at];
        if core::mem::replace(&mut packet.completed, true) {
            return;
        }
        let (pair, path, op) = ((packet.from, packet.to), usize::from(packet.path), packet.op);
        self.peers.get_mut(&pair).unwrap().under_way[path] -= 1;
        let Some((stream, id, note)) = op else { return };
        let out = self.out(pair, stream);
        assert_eq!(out.ledger.complete_operation(id).unwrap().note, note);
        match note {
            Note::Plain(_) => assert!(out.machine.on_plain_done()),
            Note::Counted(..) => {}
            Note::Rewritten(_) => out.redo.on_rewritten(),
        }
        self.stream(pair, stream).done(note.piece());
    }

    /// Loses everything in flight on a path, except for some packets that arrive late. Each end notices later.
    fn lose(&mut self, one: usize, two: usize, path: u8) {
        for (me, peer) in [(one, two), (two, one)] {
            self.peers.get_mut(&(me, peer)).unwrap().dead[usize::from(path)] = true;
            let notices = self.now + self.below(600);
            self.at(notices, Event::Fail(me, peer, path));
        }
        for at in 0..self.packets.len() {
            let packet = &self.packets[at];
            let pair = (packet.from, packet.to);
            if packet.path != path || pair != (one, two) && pair != (two, one) {
                continue;
            }
            match packet.arrived {
                true => self.packets[at].mute = self.below(2) == 0,
                false => self.keep(at),
            }
        }
    }

    /// The network keeps a packet, perhaps until the end of the run.
    fn keep(&mut self, at: usize) {
        self.packets[at].held = true;
        if self.below(2) == 0 {
            let later = self.now + 1 + self.below(3000);
            self.at(later, Event::Late(at));
        }
    }

    /// Fails one end of a path. As a target, the process processes all arrivals and reports them; nothing lands there
    /// any more. As an initiator, it notifies its target.
    fn fail(&mut self, (me, peer): (usize, usize), path: u8) {
        let end = &mut self.peers.get_mut(&(me, peer)).unwrap().ends[usize::from(path)];
        if *end != End::Up {
            return;
        }
        *end = End::Failed;
        let quiet = self.now + 1 + self.below(100);
        self.at(quiet, Event::Quiet(me, peer, path));
        for at in 0..self.packets.len() {
            let packet = &self.packets[at];
            if packet.path != path || (packet.from, packet.to) != (peer, me) {
                continue;
            }
            match (packet.arrived, packet.noticed) {
                (true, false) => self.notice(at),
                (false, false) => self.vanish(at, true),
                _ => {}
            }
        }
        let of = self.peers.get_mut(&(me, peer)).unwrap();
        let streams = (0..self.config.streams).map(|number| RmaStream::new(number).unwrap());
        let standings = streams.map(|stream| of.inbox.close_path(stream, place(path))).collect();
        let steps = of.outs.iter_mut().map(|out| out.paths.on_failed(place(path)));
        let says = steps.fold(false, |says, step| says | (step == PathStep::Leave { say: true }));
        self.say((me, peer), Event::Standing(me, peer, path, standings));
        if says {
            self.say((me, peer), Event::Down(me, peer, path));
        }
    }

    /// Loses a packet. Its bytes may have been placed.
    fn vanish(&mut self, at: usize, may_be_there: bool) {
        let placed = may_be_there && self.below(2) == 0;
        let (now, packet) = (self.now, &mut self.packets[at]);
        packet.noticed = true;
        let (pair, signal) = ((packet.from, packet.to), packet.signal);
        if let Load::Write { imm, piece, stream } = packet.load {
            let stream = self.stream(pair, stream);
            if placed {
                stream.placed(piece, now);
            }
            if imm.is_some() {
                stream.lost(piece);
            }
        }
        if let Some((stream, number)) = signal {
            self.stream(pair, stream).message_gone(number);
        }
    }

    /// Continues with the operations of a path that both ends have left.
    fn settle(&mut self, pair: (usize, usize), path: u8) {
        let is_quiet = self.peers[&pair].ends[usize::from(path)] == End::Quiet;
        for number in 0..self.config.streams {
            let out = self.out(pair, number);
            let Some(standing) = out.paths.take_delivery_report(place(path), is_quiet) else { continue };
            let (before, path) = (out.machine.unacknowledged_signals(), place(path));
            let (machine, ledger) = (&mut out.machine, &mut out.ledger);
            out.redo.queue_lost_work(0, path, &standing, machine, ledger, |note| note.kind()).unwrap();
            let news = before - out.machine.unacknowledged_signals();
            self.stream(pair, number).acknowledge(news);
        }
    }

    /// Returns any path with room.
    fn path(&mut self, pair: (usize, usize)) -> Option<u8> {
        let peer = &self.peers[&pair];
        let free: Vec<u8> = (0..self.config.rails)
            .filter(|&path| {
                let at = usize::from(path);
                peer.ends[at] == End::Up && peer.under_way[at] < DEPTH
            })
            .collect();
        if free.is_empty() { None } else { Some(free[self.below(free.len() as u64) as usize]) }
    }

    fn post(&mut self, pair: (usize, usize), path: u8, load: Load, op: Option<Operation>) {
        self.send(pair, path, load, (op, None));
    }

    fn send(
        &mut self,
        (from, to): (usize, usize),
        path: u8,
        load: Load,
        (op, signal): (Option<Operation>, Option<(u8, u64)>),
    ) {
        let peer = self.peers.get_mut(&(from, to)).unwrap();
        peer.under_way[usize::from(path)] += 1;
        let is_dead = peer.dead[usize::from(path)];
        let later = self.now + self.delay(path);
        let packet = Packet {
            from,
            to,
            path,
            load,
            op,
            signal,
            arrived: false,
            noticed: false,
            completed: false,
            held: false,
            mute: false,
        };
        self.packets.push(packet);
        let at = self.packets.len() - 1;
        if self.peers[&(to, from)].ends[usize::from(path)] != End::Up {
            self.vanish(at, false);
        } else if is_dead {
            self.keep(at);
        } else {
            self.at(later, Event::Arrive(at));
        }
    }

    /// Does all work of a process for one peer.
    fn turn(&mut self, pair: (usize, usize)) {
        loop {
            let mut went_on = self.apply(pair);
            for stream in 0..self.config.streams {
                went_on |= self.redo(pair, stream);
                for thread in 0..self.out(pair, stream).threads.len() {
                    went_on |= self.advance(pair, stream, thread);
                }
            }
            // Last, so that acknowledgements are piggybacked where possible.
            if !went_on && !self.acknowledge(pair) {
                break;
            }
        }
    }

    fn apply(&mut self, (me, peer): (usize, usize)) -> bool {
        let this = self.peers.get_mut(&(me, peer)).unwrap();
        let Some(&stream) = this.ready.front() else { return false };
        let Some(update) = this.inbox.take_signal(stream) else {
            this.ready.pop_front();
            return true;
        };
        let now = self.now;
        self.stream((peer, me), stream.number()).apply(update.value(), now);
        true
    }

    fn acknowledge(&mut self, pair: (usize, usize)) -> bool {
        if !self.peers[&pair].inbox.has_ack() {
            return false;
        }
        let Some(path) = self.path(pair) else { return false };
        let Some(ack) = self.peers.get_mut(&pair).unwrap().inbox.next_ack() else { return false };
        self.sent.acks += 1;
        self.post(pair, path, Load::Message(ack.to_bytes().to_vec()), None);
        true
    }

    fn redo(&mut self, pair: (usize, usize), stream: u8) -> bool {
        let bits = self.config.bits;
        if let Some(lost) = self.out(pair, stream).redo.make_up(3) {
            self.sent.made_up += 1;
            lost.into_iter().for_each(|lost| self.say(pair, Event::MakeUp(pair.0, pair.1, lost)));
            return true;
        }
        let Some(again) = self.out(pair, stream).redo.next() else { return false };
        let Some(path) = self.path(pair) else { return false };
        self.sent.again += 1;
        let out = self.out(pair, stream);
        out.redo.pop_posted();
        match again {
            RedoWork::Op(id) => {
                let note = out.ledger.note_mut(id).unwrap();
                let piece = note.piece();
                if let Note::Counted(..) = *note {
                    *note = Note::Rewritten(piece);
                }
                let note = *note;
                out.ledger.move_operation(id, place(path)).unwrap();
                self.post(pair, path, Load::Write { imm: None, piece, stream }, Some((stream, id, note)));
            }
            RedoWork::Signal(number, signal) => {
                out.machine.sent_over(number, place(path));
                self.stream(pair, stream).send_again(number, signal.epoch, bits);
                let load = Load::Message(signal.to_bytes().to_vec());
                self.send(pair, path, load, (None, Some((stream, number))));
            }
        }
        true
    }

    /// Executes one step of a thread's program; returns false if it has to wait.
    fn advance(&mut self, pair: (usize, usize), stream: u8, thread: usize) -> bool {
        let this = &mut self.out(pair, stream).threads[thread];
        match this.steps.front().copied() {
            None => false,
            Some(Step::Put(pieces)) => {
                let left = *this.left.get_or_insert(pieces);
                if left > 0 {
                    return self.write(pair, stream, thread);
                }
                self.finish(pair, stream, thread)
            }
            Some(Step::Signal(pieces)) => {
                if this.batch.is_none() {
                    let out = self.out(pair, stream);
                    let Ok(batch) = out.machine.begin_signal() else { return false };
                    out.threads[thread].batch = Some(batch);
                    out.threads[thread].own = None;
                }
                let left = *self.out(pair, stream).threads[thread].left.get_or_insert(pieces);
                if left > 0 {
                    return self.write(pair, stream, thread);
                }
                self.seal(pair, stream, thread)
            }
            Some(Step::Quiet) => self.quiet(pair, stream, thread),
        }
    }

    fn finish(&mut self, pair: (usize, usize), stream: u8, thread: usize) -> bool {
        let this = &mut self.out(pair, stream).threads[thread];
        this.steps.pop_front();
        this.left = None;
        true
    }

    fn write(&mut self, pair: (usize, usize), stream: u8, thread: usize) -> bool {
        let (Some(path), bits) = (self.path(pair), self.config.bits) else { return false };
        let out = self.out(pair, stream);
        let (place, epoch) = (place(path), out.machine.next_number());
        let this = &mut out.threads[thread];
        let tag = match &this.batch {
            Some(batch) => out.machine.tag_piece(batch, place),
            None => out.machine.tag_put(place),
        };
        let Ok(tag) = tag else { return false };
        *this.left.as_mut().unwrap() -= 1;
        let imm = match tag {
            PutTag::Plain => None,
            PutTag::Counted(imm) => Some(imm),
        };
        self.sent.counted += u64::from(imm.is_some());
        let piece = self.stream(pair, stream).write(imm, bits);
        let note = if imm.is_some() { Note::Counted(piece, epoch) } else { Note::Plain(piece) };
        let out = self.out(pair, stream);
        out.threads[thread].own.get_or_insert(piece);
        let id = out.ledger.begin_operation(0, place, note).unwrap();
        self.post(pair, path, Load::Write { imm, piece, stream }, Some((stream, id, note)));
        true
    }

    fn seal(&mut self, pair: (usize, usize), stream: u8, thread: usize) -> bool {
        let (Some(path), bits) = (self.path(pair), self.config.bits) else { return false };
        let out = self.out(pair, stream);
        let word = SymmetricWord::new(0, 8, WordWidth::Eight).unwrap();
        let update = SignalUpdate::new(UpdateOp::Set, word, out.sealed).unwrap();
        let this = &mut out.threads[thread];
        let Some(batch) = this.batch.take() else { return false };
        let signal = match out.machine.end_signal(batch, update, false) {
            Ok(signal) => signal,
            Err((batch, busy)) => {
                assert_eq!(busy, StreamBusy::Plain);
                this.batch = Some(batch);
                return false;
            }
        };
        let number = out.sealed;
        out.sealed += 1;
        out.ledger.begin_signal(0).unwrap();
        out.machine.sent_over(number, place(path));
        let (own, alone) = (out.threads[thread].own.take(), !self.config.two_threads);
        let oracle = self.stream(pair, stream);
        let end = oracle.writes();
        // With two threads, only the first write is known to belong to this signal.
        let own = own.map_or(end..end, |first| first..if alone { end } else { first + 1 });
        oracle.seal(&signal, own, bits);
        let ack = self.peers.get_mut(&pair).unwrap().inbox.piggyback_ack();
        let bytes = SignalMessage { ack, ..signal }.to_bytes().to_vec();
        self.send(pair, path, Load::Message(bytes), (None, Some((stream, number))));
        self.finish(pair, stream, thread)
    }

    fn quiet(&mut self, pair: (usize, usize), stream: u8, thread: usize) -> bool {
        let Some(path) = self.path(pair) else { return false };
        let out = self.out(pair, stream);
        let mut went_on = false;
        if let outgoing::QuietStep::Ask(ask) = out.machine.quiet() {
            self.sent.asks += 1;
            self.post(pair, path, Load::Message(ask.to_bytes().to_vec()), None);
            went_on = true;
        }
        let out = self.out(pair, stream);
        match out.ledger.quiet_peer(0) {
            Ok(ledger::QuietProgress::Done) => {
                self.stream(pair, stream).quiet();
                self.finish(pair, stream, thread)
            }
            Ok(ledger::QuietProgress::Pending) => went_on,
            Err(failed) => panic!("{failed}"),
        }
    }

    pub(super) fn seen(&self, me: usize, peer: usize) -> crate::rma::inbox::InboxCounts {
        self.peers[&(me, peer)].inbox.arrival_counts()
    }
}

fn place(path: u8) -> PathId {
    PathId::new(path).unwrap()
}

fn all_up(rails: u8) -> PeerPaths {
    let mut paths = PeerPaths::new(rails.into());
    for path in (0..rails).map(place) {
        assert!(paths.on_taken(path));
        paths.on_up(path);
    }
    paths
}
