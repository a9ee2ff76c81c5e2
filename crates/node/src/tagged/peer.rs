//! Another process that messages go to and come from: the inboxes of both.

use std::collections::VecDeque;

use trunkline_mem::{MemoryRange, SharedMemory};
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::StageWriter;
use trunkline_proto::wire::tagged::{
    ANSWERS_AT, InboxSizes, MESSAGES_AT, RINGS_AT, SAID_AT, STAGE_AT, TaggedAnswer,
};

use super::eager::{EagerReceive, EagerSend};
use super::learned::LearnedMethods;
use super::pinning::InboxPin;
use super::ring::{InvalidConsumedCount, RingLayout, RingReader, RingWriter};
use super::staging::StagedPiece;
use crate::ipc::{NeighbourId, StageOffset};

/// Another process of the node. It has that number until the endpoint ends.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TaggedPeerId(pub(super) u32);

impl TaggedPeerId {
    /// Its number: peers are counted from 0 in the order in which they joined.
    #[must_use]
    pub const fn peer_number(self) -> u32 {
        self.0
    }
}

/// What is known of it.
#[derive(Debug)]
pub(super) struct TaggedPeer {
    pub(super) neighbour: NeighbourId,
    pub(super) inbox: InboundChannel,
    /// `None` until it has said where it reads, and once it is gone.
    pub(super) outbox: Option<OutboundChannel>,
    /// Nothing comes from it any more but what is in the inbox.
    pub(super) gone: bool,
    /// Answers that there was no room for, the earliest first.
    pub(super) unsaid: VecDeque<TaggedAnswer>,
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
    pub(super) learned: Option<Box<LearnedMethods>>,
}

/// Where it writes.
#[derive(Debug)]
pub(super) struct InboundChannel {
    /// Held for its memory.
    memory: MemoryRange,
    pub(super) messages: RingReader,
    pub(super) answers: RingReader,
    pub(super) inbox: InboxSizes,
    /// Frames of the stream that it had said when the stream was read last.
    heard: u64,
}

/// Where this process writes.
#[derive(Debug)]
pub(super) struct OutboundChannel {
    memory: MemoryRange,
    pub(super) messages: RingWriter,
    answers: RingWriter,
    stage: StageWriter,
    inbox: InboxSizes,
    /// Frames of the stream that it was told of.
    said: u64,
}

const fn ring_layouts(inbox: InboxSizes) -> [RingLayout; 2] {
    [
        RingLayout { at: RINGS_AT, cells: inbox.message_cells(), consumed_at: MESSAGES_AT },
        RingLayout { at: inbox.answers_at(), cells: inbox.answer_cells(), consumed_at: ANSWERS_AT },
    ]
}

impl InboundChannel {
    pub(super) fn new(inbox: InboxSizes, shared: &SharedMemory) -> Self {
        let memory = shared.memory().clone();
        let [messages, answers] = ring_layouts(inbox).map(|place| RingReader::new(memory.clone(), place));
        Self { memory, messages, answers, inbox, heard: 0 }
    }

    /// Whether the stream has frames that were not heard.
    #[inline]
    pub(super) fn take_frames_flag(&mut self) -> bool {
        let said = self.memory.load(SAID_AT).unwrap_or(0);
        std::mem::replace(&mut self.heard, said) != said
    }

    /// The bytes of a piece, if they are all in the stage.
    #[inline]
    pub(super) fn staged_piece(&self, position: u64, len: u32) -> Option<StageOffset<'_>> {
        let place = StageWriter::locate_piece(
            self.inbox.stage_bytes(),
            trunkline_proto::tagged::StagePiece { position, len },
        )?;
        Some(StageOffset { memory: &self.memory, at: self.inbox.stage_at() + place })
    }

    /// A piece was taken out.
    #[inline]
    pub(super) fn release_piece(&self, position: u64, len: u32) {
        let behind = StageWriter::end_position(trunkline_proto::tagged::StagePiece { position, len });
        let _ = self.memory.store(STAGE_AT, behind);
    }
}

impl OutboundChannel {
    pub(super) fn new(inbox: InboxSizes, memory: MemoryRange) -> Self {
        let [messages, answers] = ring_layouts(inbox).map(|place| RingWriter::new(memory.clone(), place));
        Self { memory, messages, answers, stage: StageWriter::new(inbox.stage_bytes()), inbox, said: 0 }
    }

    /// Says an answer; whether there was room.
    #[inline]
    pub(super) fn push_answer(&mut self, answer: &TaggedAnswer) -> Result<bool, InvalidConsumedCount> {
        let room = self.answers.has_room(1)?;
        if room {
            self.answers.push(&answer.to_words());
        }
        Ok(room)
    }

    /// Room in the stage for so many bytes or less, and for the answer that says so.
    #[inline]
    pub(super) fn reserve_stage(
        &mut self,
        want: u32,
    ) -> Result<Option<(trunkline_proto::tagged::StagePiece, u64)>, InvalidConsumedCount> {
        if !self.answers.has_room(1)? {
            return Ok(None);
        }
        let mut piece = self.stage.take_piece(want);
        if piece.is_none() {
            let freed = self.memory.load(STAGE_AT).unwrap_or(0);
            self.stage.free_until(freed).map_err(|_| InvalidConsumedCount)?;
            piece = self.stage.take_piece(want);
        }
        let at =
            |position| self.inbox.stage_at() + StageWriter::offset_of(self.inbox.stage_bytes(), position);
        Ok(piece.map(|piece| (piece, at(piece.position))))
    }

    /// Where a piece that was taken is.
    pub(super) fn piece_offset(&self, piece: trunkline_proto::tagged::StagePiece) -> u64 {
        self.inbox.stage_at() + StageWriter::offset_of(self.inbox.stage_bytes(), piece.position)
    }

    /// Whether there is room for an answer.
    pub(super) fn has_room(&mut self) -> Result<bool, InvalidConsumedCount> {
        self.answers.has_room(1)
    }

    /// Whether the reader has consumed the stage up to there.
    #[inline]
    pub(super) fn is_consumed(&mut self, position: u64) -> Result<bool, InvalidConsumedCount> {
        if !self.stage.is_behind(position) {
            let freed = self.memory.load(STAGE_AT).unwrap_or(0);
            self.stage.free_until(freed).map_err(|_| InvalidConsumedCount)?;
        }
        Ok(self.stage.is_behind(position))
    }

    /// Up to where the stage was filled.
    #[inline]
    pub(super) const fn staged_position(&self) -> u64 {
        self.stage.head_position()
    }

    #[inline]
    pub(super) const fn memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// Cells of an eager message that can go at all.
    #[inline]
    pub(super) const fn eager_cells(&self) -> u64 {
        self.inbox.message_cells() / 2
    }

    /// The stream has so many frames for it.
    #[inline]
    pub(super) fn publish_frame_count(&mut self, said: u64) {
        if self.said != said {
            let _ = self.memory.store(SAID_AT, said);
            self.said = said;
        }
    }
}
