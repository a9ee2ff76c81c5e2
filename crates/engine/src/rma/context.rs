//! What a process begins itself: puts, gets, atomics and signals of one context, towards any member. A lane with rails of its
//! own, used by one thread at a time; the rules are in `trunkline_proto::rma`.

use std::collections::HashMap;

use trunkline_fabric::{Access, Completion, Done, LinkId, Rail, Status};
use trunkline_mem::Memory;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::rma::calls::Answer;
use trunkline_proto::rma::ledger::Ledger;
use trunkline_proto::rma::outgoing::Order;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::rma::atomic::{Outcome, Reply, Slot};
use trunkline_proto::wire::rma::{Message, Stream};

use crate::rma::error::{Lost, RmaError};
use crate::rma::heap::Heap;
use crate::rma::job::{Member, caps_of};
use crate::rma::peer::{Found, Peer, Stage};

/// Operations of a context that may be under way.
const OPS: u32 = 4096;
/// Completions that one look at a rail takes.
const BATCH: usize = 32;
/// Answers that may be under way to one link of a context: replies and acknowledgements.
pub(super) const ANSWERS_MAX: u32 = 64 + 8;
/// Puts without a signal after which they are not counted any more.
const REVERT_AFTER: u32 = 256;
/// `wr_id` of messages, of which only failures are told.
pub(super) const MESSAGE: u64 = u64::MAX;

/// Names a context of a job.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ContextId(pub(super) Stream);

/// Bytes of a heap of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Local {
    /// Which heap.
    pub heap: u8,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Where the bytes of a put come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source<'a> {
    /// Copied before the call returns; at most [`Job::inline_max`](crate::rma::Job::inline_max).
    Bytes(&'a [u8]),
    /// A heap of this process, not to be changed before a quiet.
    Heap(Local),
}

/// Names an atomic whose value was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "the value is lost"]
pub struct Fetch {
    pub(super) peer: u32,
    pub(super) slot: Slot,
}

/// What an operation in the ledger is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Note {
    /// A write that was counted, or a read; its bytes.
    Plain(u32),
    /// A write that was not counted, of which the stream is to know; its bytes.
    Uncounted(u32),
    /// A proof that all before it on its path is there, and how many uncounted writes that are.
    Proof(u32),
    /// An atomic, until its reply.
    Call,
}

impl Note {
    const fn bytes(self) -> u64 {
        match self {
            Self::Plain(bytes) | Self::Uncounted(bytes) => bytes as u64,
            Self::Proof(_) | Self::Call => 0,
        }
    }
}

/// The lane.
pub(super) struct Context<R: Rail> {
    pub(super) stream: Stream,
    pub(super) rails: Vec<R>,
    pub(super) heaps: Vec<Heap>,
    pub(super) ledger: Ledger<Note>,
    pub(super) peers: Vec<Peer>,
    /// By member.
    pub(super) known: HashMap<Member, u32>,
    /// By rail, then by the link's number: peer and path.
    pub(super) names: Vec<Vec<Option<(u32, u8)>>>,
    /// Completed means arrived.
    pub(super) arrives: bool,
    pub(super) order: Order,
    pub(super) inline_max: u64,
    pub(super) message_max: u64,
    pub(super) batch: [Completion; BATCH],
    /// Receives of each link, for answers.
    pub(super) answers: u32,
    /// Some link has receives that found no room.
    pub(super) starves: bool,
    /// How the last failure was called.
    pub(super) why: Status,
    pub(super) mutant: Mutant,
}

const NOTHING: Completion =
    Completion { wr_id: 0, link: LinkId(0), done: Done::Posted, status: Status::Ok, imm: None, len: 0 };

/// Context, peer and path in the id of a link that is dialled.
pub(super) fn dialled(id: u64) -> (usize, u32, u8) {
    ((id >> 40) as usize & 63, (id >> 8) as u32, id as u8)
}

impl<R: Rail> Context<R> {
    /// One on these rails, for these heaps.
    pub(super) fn new(
        stream: Stream,
        (rails, answers): (Vec<R>, u32),
        heaps: &[Memory],
        mutant: Mutant,
    ) -> Result<Self, RmaError> {
        let register = |memory| Heap::new(&rails, memory, Access::LOCAL);
        let heaps = heaps.iter().map(register).collect::<Result<_, _>>()?;
        let (arrives, write_data, inline_max, message_max) = caps_of(&rails);
        let order = if write_data { Order::Counted { revert_after: REVERT_AFTER } } else { Order::Completed };
        let mut ledger = Ledger::new(mutant);
        ledger.grow(0, OPS);
        let names = rails.iter().map(|_| Vec::new()).collect();
        let (peers, known) = (Vec::new(), HashMap::new());
        let (batch, why) = ([NOTHING; BATCH], Status::Ok);
        Ok(Self {
            stream,
            rails,
            heaps,
            ledger,
            peers,
            known,
            names,
            arrives,
            order,
            inline_max,
            message_max,
            batch,
            answers,
            starves: false,
            why,
            mutant,
        })
    }

    /// Takes what has finished. Whether there was anything.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = self.raise();
        if self.starves {
            self.feed();
        }
        for rail in 0..self.rails.len() {
            let count = self.rails[rail].poll(&mut self.batch);
            moved |= count > 0;
            for index in 0..count {
                let completion = self.batch[index];
                let name = self.names[rail].get(completion.link.0 as usize).copied().flatten();
                if let Some((at, path)) = name {
                    self.on_completion(at, path, &completion);
                }
            }
        }
        moved
    }

    /// Posts receives that found no room before.
    #[cold]
    pub(super) fn feed(&mut self) {
        self.starves = false;
        for link in self.peers.iter_mut().flat_map(|peer| &mut peer.links) {
            self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
        }
    }

    /// Looks whether links that are made are up.
    pub(super) fn raise(&mut self) -> bool {
        let mut raised = false;
        for at in 0..self.peers.len() {
            if !self.peers[at].links.iter().any(|link| link.stage == Stage::Made) {
                continue;
            }
            for path in 0..self.peers[at].links.len() {
                let link = &mut self.peers[at].links[path];
                if link.stage != Stage::Made {
                    continue;
                }
                match self.rails[link.rail].is_up(link.link) {
                    Ok(false) => {}
                    Ok(true) => (link.stage, raised) = (Stage::Up, true),
                    Err(_) => {
                        self.lose(at as u32, path as u8, Lost::Rails(Status::PeerDead));
                        break;
                    }
                }
            }
        }
        raised
    }

    pub(super) fn on_completion(&mut self, at: u32, path: u8, completion: &Completion) {
        if completion.status != Status::Ok {
            return self.lose(at, path, Lost::Rails(completion.status));
        }
        match completion.done {
            // What is told of a link that was given up was counted as failed.
            _ if self.peers.get(at as usize).is_none_or(|peer| peer.lost.is_some()) => {}
            Done::Posted if completion.wr_id == MESSAGE => {}
            Done::Posted => self.on_done(SlotId::from_bits(completion.wr_id)),
            // Nobody writes here but with records, of which there are none.
            Done::Written => {}
            Done::Received => self.on_message(at, path, completion),
        }
    }

    pub(super) fn on_done(&mut self, id: SlotId) {
        let Ok(op) = self.ledger.done(id) else { return };
        let Some(peer) = self.peers.get_mut(op.peer as usize) else { return };
        if let Some(link) = peer.links.get_mut(op.path.index()) {
            link.bytes -= op.note.bytes();
        }
        match op.note {
            // Told twice it is told to the ledger twice, which counts that.
            Note::Uncounted(_) if self.arrives => {
                let _ = peer.outgoing.on_plain_done();
            }
            Note::Proof(writes) => {
                for _ in 0..writes {
                    let _ = peer.outgoing.on_plain_done();
                }
            }
            Note::Uncounted(_) | Note::Plain(_) | Note::Call => {}
        }
    }

    pub(super) fn on_message(&mut self, at: u32, path: u8, completion: &Completion) {
        let Some(peer) = self.peers.get_mut(at as usize) else { return };
        let Some(link) = peer.links.get_mut(usize::from(path)) else { return };
        let message = link.receives.take(completion.wr_id, completion.len);
        self.starves |= !link.receives.post(&mut self.rails[link.rail], link.link);
        let kept = match message {
            Ok(Message::Reply(reply)) if reply.stream == self.stream => self.on_reply(at, &reply),
            Ok(Message::Ack(ack)) if ack.stream == self.stream => match peer.outgoing.on_ack(ack) {
                Ok(signals) => self.ledger.acknowledged(at, signals as u32).is_ok(),
                Err(_) => false,
            },
            _ => false,
        };
        if !kept {
            self.lose(at, path, Lost::Protocol);
        }
    }

    /// Whether somebody asked for it.
    pub(super) fn on_reply(&mut self, at: u32, reply: &Reply) -> bool {
        let peer = &mut self.peers[at as usize];
        let Ok(answer) = peer.calls.on_reply(reply) else { return false };
        let Answer::First(_, outcome) = answer else { return true };
        let found = &mut peer.found[reply.slot.index()];
        found.2 = match outcome {
            Outcome::Done(value) => Found::Value(value),
            Outcome::Refused => Found::Nowhere,
        };
        let Some(id) = found.1.take() else { return true };
        match outcome {
            Outcome::Done(_) => self.ledger.done(id).is_ok(),
            Outcome::Refused => {
                self.why = Status::RemoteAccess;
                self.ledger.failed(id).is_ok()
            }
        }
    }
}
