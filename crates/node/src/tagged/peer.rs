//! Another process that messages go to and come from: the inboxes of both.

use std::collections::VecDeque;

use trunkline_mem::{Memory, Shared};
use trunkline_proto::mutant::Mutant;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::Stage;
use trunkline_proto::wire::tagged::{ANSWERS_AT, Answer, Inbox, MESSAGES_AT, RINGS_AT, SAID_AT, STAGE_AT};

use super::eager::{EagerReceive, EagerSend};
use super::learned::Learned;
use super::pinning::InboxPin;
use super::ring::{NeverThere, Place, Reader, Writer};
use super::staging::StagedPiece;
use crate::ipc::Neighbour;

/// Another process of the node. It has that number until the endpoint ends.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PeerId(pub(super) u32);

impl PeerId {
    /// Its number: peers are counted from 0 in the order in which they joined.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// What is known of it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) neighbour: Neighbour,
    pub(super) inbox: Inward,
    /// `None` until it has said where it reads, and once it is gone.
    pub(super) outbox: Option<Outward>,
    /// Nothing comes from it any more but what is in the inbox.
    pub(super) gone: bool,
    /// Answers that there was no room for, the earliest first.
    pub(super) unsaid: VecDeque<Answer>,
    /// Sends that go in pieces, one after another.
    pub(super) pieces: VecDeque<SlotId>,
    /// Copies of pieces into its stage, and out of its inbox here, that are under way; the earliest first.
    pub(super) staging: VecDeque<StagedPiece>,
    pub(super) unstaging: VecDeque<StagedPiece>,
    /// A short message whose copy into its ring is under way: nothing else is sent to it before that has ended.
    pub(super) eager_send: Option<EagerSend>,
    /// Short messages of it whose copies into their receives' memory are under way, or wait for that; in the order in which they came.
    pub(super) eager_receives: VecDeque<EagerReceive>,
    /// Its inbox here, and where it reads, as they are pinned for those copies.
    pub(super) pins: [InboxPin; 2],
    /// What was learned of long messages to it; `None` until there is one.
    pub(super) learned: Option<Box<Learned>>,
}

/// Where it writes.
#[derive(Debug)]
pub(super) struct Inward {
    /// Held for its memory.
    memory: Memory,
    pub(super) messages: Reader,
    pub(super) answers: Reader,
    pub(super) inbox: Inbox,
    /// Frames of the stream that it had said when the stream was read last.
    heard: u64,
}

/// Where this process writes.
#[derive(Debug)]
pub(super) struct Outward {
    memory: Memory,
    pub(super) messages: Writer,
    answers: Writer,
    stage: Stage,
    inbox: Inbox,
    /// Frames of the stream that it was told of.
    said: u64,
}

const fn places(inbox: Inbox) -> [Place; 2] {
    [
        Place { at: RINGS_AT, cells: inbox.messages(), consumed_at: MESSAGES_AT },
        Place { at: inbox.answers_at(), cells: inbox.answers(), consumed_at: ANSWERS_AT },
    ]
}

impl Inward {
    pub(super) fn new(inbox: Inbox, shared: &Shared) -> Self {
        let memory = shared.memory().clone();
        let [messages, answers] = places(inbox).map(|place| Reader::new(memory.clone(), place));
        Self { memory, messages, answers, inbox, heard: 0 }
    }

    /// Whether the stream has frames that were not heard.
    #[inline]
    pub(super) fn has_news(&mut self) -> bool {
        let said = self.memory.load(SAID_AT).unwrap_or(0);
        std::mem::replace(&mut self.heard, said) != said
    }

    /// The bytes of a piece, if they are all in the stage.
    #[inline]
    pub(super) fn staged(&self, position: u64, len: u32) -> Option<(&Memory, u64)> {
        let place = Stage::hold(self.inbox.stage(), trunkline_proto::tagged::Piece { position, len })?;
        Some((&self.memory, self.inbox.stage_at() + place))
    }

    /// A piece was taken out.
    #[inline]
    pub(super) fn unstaged(&self, position: u64, len: u32) {
        let behind = Stage::behind(trunkline_proto::tagged::Piece { position, len });
        let _ = self.memory.store(STAGE_AT, behind);
    }
}

impl Outward {
    pub(super) fn new(inbox: Inbox, memory: Memory, mutant: Mutant) -> Self {
        let [messages, answers] = places(inbox).map(|place| Writer::new(memory.clone(), place, mutant));
        Self { memory, messages, answers, stage: Stage::new(inbox.stage()), inbox, said: 0 }
    }

    /// Says an answer; whether there was room.
    #[inline]
    pub(super) fn say(&mut self, answer: &Answer) -> Result<bool, NeverThere> {
        let room = self.answers.has_room(1)?;
        if room {
            self.answers.push(&answer.to_words());
        }
        Ok(room)
    }

    /// Room in the stage for so many bytes or less, and for the answer that says so.
    #[inline]
    pub(super) fn take(
        &mut self,
        want: u32,
    ) -> Result<Option<(trunkline_proto::tagged::Piece, u64)>, NeverThere> {
        if !self.answers.has_room(1)? {
            return Ok(None);
        }
        let mut piece = self.stage.take(want);
        if piece.is_none() {
            let freed = self.memory.load(STAGE_AT).unwrap_or(0);
            self.stage.freed(freed).map_err(|_| NeverThere)?;
            piece = self.stage.take(want);
        }
        let at = |position| self.inbox.stage_at() + Stage::place(self.inbox.stage(), position);
        Ok(piece.map(|piece| (piece, at(piece.position))))
    }

    /// Where a piece that was taken is.
    pub(super) fn place(&self, piece: trunkline_proto::tagged::Piece) -> u64 {
        self.inbox.stage_at() + Stage::place(self.inbox.stage(), piece.position)
    }

    /// Whether there is room for an answer.
    pub(super) fn has_room(&mut self) -> Result<bool, NeverThere> {
        self.answers.has_room(1)
    }

    /// Whether the reader has consumed the stage up to there.
    #[inline]
    pub(super) fn is_consumed(&mut self, position: u64) -> Result<bool, NeverThere> {
        if !self.stage.is_behind(position) {
            let freed = self.memory.load(STAGE_AT).unwrap_or(0);
            self.stage.freed(freed).map_err(|_| NeverThere)?;
        }
        Ok(self.stage.is_behind(position))
    }

    /// Up to where the stage was filled.
    #[inline]
    pub(super) const fn staged(&self) -> u64 {
        self.stage.head()
    }

    #[inline]
    pub(super) const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Cells of an eager message that can go at all.
    #[inline]
    pub(super) const fn eager_cells(&self) -> u64 {
        self.inbox.messages() / 2
    }

    /// The stream has so many frames for it.
    #[inline]
    pub(super) fn told(&mut self, said: u64) {
        if self.said != said {
            let _ = self.memory.store(SAID_AT, said);
            self.said = said;
        }
    }
}
