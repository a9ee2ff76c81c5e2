//! Contexts that tell how each of their operations ended, by a number that their owner gave it: for who has to answer for each one,
//! where a quiet answers for all. Used by the executor of device queues.

use trunkline_fabric::{Fabric, Host, Rail, Status};
use trunkline_proto::reserve::{OutOfMemory, try_filled, try_vec};
use trunkline_proto::rma::atomic::Atomic;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::dial::Word as Say;
use trunkline_proto::wire::rma::word::{Width, Word};

use crate::rma::context::{Context, ContextId, Local, OPS, Source};
use crate::rma::error::RmaError;
use crate::rma::job::{Job, Member};
use crate::rma::place::named;

/// How an operation ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ended {
    /// The number that its owner gave it.
    pub cookie: u64,
    /// The value before, of an atomic that fetches; else 0. Or how the network calls the failure.
    pub how: Result<u64, Status>,
}

/// What may be begun on such a context.
#[derive(Clone, Copy, Debug)]
pub enum Begin<'a> {
    /// The first of these bytes into a heap of a member.
    Put {
        /// Which heap.
        heap: u8,
        /// Where in it.
        offset: u64,
        /// The bytes. Those of a heap are not to be changed before the end is told.
        from: Source<'a>,
    },
    /// The first bytes of a heap of a member that have room.
    Get {
        /// Which heap.
        heap: u8,
        /// Where in it.
        offset: u64,
        /// Where to.
        into: Local,
    },
    /// An atomic.
    Atomic {
        /// The word.
        word: Word,
        /// What is done with it.
        atomic: Atomic,
    },
}

/// What a context has to tell.
#[derive(Debug)]
pub(super) struct Telling {
    /// Numbers of what is under way, by its slot in the ledger.
    by_slot: Box<[u64]>,
    /// The number of what is being begun.
    begins: u64,
    ended: Vec<Ended>,
}

impl Telling {
    /// For all that may be under way.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn new() -> Result<Self, OutOfMemory> {
        let ended = try_vec(OPS as usize)?;
        Ok(Self { by_slot: try_filled(0, OPS as usize)?, begins: 0, ended })
    }

    /// An operation has begun.
    #[inline]
    pub(super) fn begun(&mut self, id: SlotId) {
        if let Some(number) = self.by_slot.get_mut(id.slot as usize) {
            *number = self.begins;
        }
    }

    /// It has ended.
    #[inline]
    pub(super) fn ended(&mut self, id: SlotId, how: Result<u64, Status>) {
        if let Some(&cookie) = self.by_slot.get(id.slot as usize) {
            self.ended.push(Ended { cookie, how });
        }
    }
}

impl<R: Rail> Context<R> {
    /// Notes that an operation has begun, if somebody wants to hear of its end.
    #[inline]
    pub(super) fn note_begun(&mut self, id: SlotId) {
        if let Some(telling) = &mut self.telling {
            telling.begun(id);
        }
    }

    /// Tells of its end.
    #[inline]
    pub(super) fn tell(&mut self, id: SlotId, how: Result<u64, Status>) {
        if let Some(telling) = &mut self.telling {
            telling.ended(id, how);
        }
    }

    /// Tells of all that was under way towards a peer that is lost.
    pub(super) fn tell_lost(&mut self, at: u32) {
        let Some(telling) = &mut self.telling else { return };
        for (id, _) in self.ledger.ops().filter(|(_, op)| op.peer == at) {
            telling.ended(id, Err(self.why));
        }
    }
}

impl<F: Fabric, H: Host> Job<F, H> {
    /// A new context that tells how each operation ended. Only [`Job::begin`] begins something on it.
    ///
    /// # Errors
    /// As [`Job::context`].
    pub fn telling_context(&self) -> Result<ContextId, RmaError> {
        let telling = Telling::new()?;
        let id = self.context()?;
        if let Some(context) = self.place(id)?.claim().as_mut() {
            context.telling = Some(telling);
        }
        Ok(id)
    }

    /// Begins something towards a member, and tells its end by that number: for how many of its bytes, 8 of an atomic. The rest is to
    /// be begun by another call. `None`: not now; nothing has begun.
    ///
    /// # Errors
    /// As [`Job::put`].
    pub fn begin(
        &self,
        id: ContextId,
        cookie: u64,
        member: Member,
        what: Begin<'_>,
    ) -> Result<Option<u64>, RmaError> {
        let Some(mut slot) = self.place(id)?.try_claim() else { return Ok(None) };
        let context = named(&mut slot, id)?;
        if !self.reach(context, member)? {
            drop(slot);
            // What it waits for comes by a control stream.
            self.hear_streams();
            return Ok(None);
        }
        if let Some(telling) = &mut context.telling {
            telling.begins = cookie;
        }
        match what {
            Begin::Put { heap, offset, from } => context.put(member, heap, offset, from),
            Begin::Get { heap, offset, into } => context.get(member, heap, offset, into),
            Begin::Atomic { word, atomic } => {
                Ok(context.atomic(member, word, atomic)?.map(|_told| Width::Eight.bytes()))
            }
        }
    }

    /// Goes on with everything, and takes what has ended. Whether anything moved.
    ///
    /// # Errors
    /// [`RmaError::Unknown`].
    pub fn ends(&self, id: ContextId, into: &mut Vec<Ended>) -> Result<bool, RmaError> {
        let mut moved = self.go_on();
        let place = self.place(id)?;
        let Some(mut slot) = place.try_claim() else { return Ok(moved) };
        let context = named(&mut slot, id)?;
        moved |= self.go_on_with(place, context);
        // Nobody asks for a quiet here, so nothing else posts proofs of what was written.
        if !context.ledger.is_idle() {
            (0..context.peers.len() as u32).for_each(|at| context.prove_if_alive(at));
        }
        if let Some(telling) = &mut context.telling {
            moved |= !telling.ended.is_empty();
            into.append(&mut telling.ended);
        }
        Ok(moved)
    }

    /// Tells a member, by the control stream, that a word of one of its heaps will not be changed by what was to change it: the word at
    /// `offset`, if it is 0, becomes `value`. For when no link leads there any more. Whether it could be said; whether it comes is
    /// not known.
    ///
    /// # Errors
    /// [`RmaError::Argument`]: there is no such member. [`RmaError::Lost`]: it is gone.
    pub fn spoil(&self, member: Member, heap: u8, offset: u64, value: u64) -> Result<bool, RmaError> {
        let card = self.card_of(member)?;
        let mut desk = self.desk.claim();
        let dead = crate::rma::Lost::Dead(card.process);
        let control = desk.streams.to(&self.host, card.process, &card.address);
        let Some(control) = control.map_err(|_| RmaError::Lost { member, lost: dead })? else {
            return Ok(false);
        };
        let proof = self.proof_for(member)?;
        let word = Say::Spoil { proof, heap, offset, value };
        desk.streams.say(control, &word, None);
        Ok(true)
    }
}
