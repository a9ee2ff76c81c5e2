//! Another process that exchanges messages with this one, and the inboxes of both. Owned by the endpoint.

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

/// Another process of the host. The number is its own until the endpoint ends.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TaggedPeerId(pub(super) u32);

impl TaggedPeerId {
    /// Returns its number: peers are counted from 0 in the order in which they joined.
    #[must_use]
    pub const fn peer_number(self) -> u32 {
        self.0
    }
}

/// The state of a peer.
#[derive(Debug)]
pub(super) struct TaggedPeer {
    pub(super) neighbour: NeighbourId,
    pub(super) inbox: InboundChannel,
    /// `None` until its INBOX message has arrived, and once it is gone.
    pub(super) outbox: Option<OutboundChannel>,
    /// Whether it is gone: only messages that are already in the inbox can still be read.
    pub(super) gone: bool,
    /// Replies that wait for room in its ring, the earliest first.
    pub(super) unsaid: VecDeque<TaggedAnswer>,
    /// Sends in pieces, in order.
    pub(super) pieces: VecDeque<SlotId>,
    /// Copies of pieces in progress, into its stage and out of its inbox here; the earliest first.
    pub(super) staging: VecDeque<StagedPiece>,
    pub(super) unstaging: VecDeque<StagedPiece>,
    /// A short message that is being copied into its ring; no other message is sent to it before that has ended.
    pub(super) eager_send: Option<EagerSend>,
    /// Short messages of it that are being copied to their receives, or wait for their copy; in the order of arrival.
    pub(super) eager_receives: VecDeque<EagerReceive>,
    /// The pins of its inbox here and of the inbox of this process there, for those copies.
    pub(super) pins: [InboxPin; 2],
    /// The learned copy methods of long messages to it; `None` before the first one.
    pub(super) learned: Option<Box<LearnedMethods>>,
}

/// The inbox that the peer writes into.
#[derive(Debug)]
pub(super) struct InboundChannel {
    /// Keeps the memory mapped.
    memory: MemoryRange,
    pub(super) messages: RingReader,
    pub(super) answers: RingReader,
    pub(super) inbox: InboxSizes,
    /// The peer's count of frames on the stream when the stream was last read.
    heard: u64,
}

/// The inbox of the peer that this process writes into.
#[derive(Debug)]
pub(super) struct OutboundChannel {
    memory: MemoryRange,
    pub(super) messages: RingWriter,
    answers: RingWriter,
    stage: StageWriter,
    inbox: InboxSizes,
    /// The last frame count that was written to the inbox.
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

    /// Whether the stream has new frames.
    #[inline]
    pub(super) fn take_frames_flag(&mut self) -> bool {
        let said = self.memory.load(SAID_AT).unwrap_or(0);
        std::mem::replace(&mut self.heard, said) != said
    }

    /// Returns the bytes of a piece, if all of them are inside the stage.
    #[inline]
    pub(super) fn staged_piece(&self, position: u64, len: u32) -> Option<StageOffset<'_>> {
        let place = StageWriter::locate_piece(
            self.inbox.stage_bytes(),
            trunkline_proto::tagged::StagePiece { position, len },
        )?;
        Some(StageOffset { memory: &self.memory, at: self.inbox.stage_at() + place })
    }

    /// Releases a piece whose bytes were copied.
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

    /// Writes a reply; returns whether there was room.
    #[inline]
    pub(super) fn push_answer(&mut self, answer: &TaggedAnswer) -> Result<bool, InvalidConsumedCount> {
        let room = self.answers.has_room(1)?;
        if room {
            self.answers.push(&answer.to_words());
        }
        Ok(room)
    }

    /// Reserves up to `want` bytes of the stage, if there is also room for the PIECE reply that announces them.
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

    /// Returns the offset of a reserved piece.
    pub(super) fn piece_offset(&self, piece: trunkline_proto::tagged::StagePiece) -> u64 {
        self.inbox.stage_at() + StageWriter::offset_of(self.inbox.stage_bytes(), piece.position)
    }

    /// Whether there is room for a reply.
    pub(super) fn has_room(&mut self) -> Result<bool, InvalidConsumedCount> {
        self.answers.has_room(1)
    }

    /// Whether the reader has consumed the stage up to that position.
    #[inline]
    pub(super) fn is_consumed(&mut self, position: u64) -> Result<bool, InvalidConsumedCount> {
        if !self.stage.is_behind(position) {
            let freed = self.memory.load(STAGE_AT).unwrap_or(0);
            self.stage.free_until(freed).map_err(|_| InvalidConsumedCount)?;
        }
        Ok(self.stage.is_behind(position))
    }

    /// Returns the position up to which the stage was filled.
    #[inline]
    pub(super) const fn staged_position(&self) -> u64 {
        self.stage.head_position()
    }

    #[inline]
    pub(super) const fn memory(&self) -> &MemoryRange {
        &self.memory
    }

    /// Cells of the longest possible eager message.
    #[inline]
    pub(super) const fn eager_cells(&self) -> u64 {
        self.inbox.message_cells() / 2
    }

    /// Publishes the number of frames on the stream, so that the peer reads them.
    #[inline]
    pub(super) fn publish_frame_count(&mut self, said: u64) {
        if self.said != said {
            let _ = self.memory.store(SAID_AT, said);
            self.said = said;
        }
    }
}
