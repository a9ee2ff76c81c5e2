//! A stream at its initiator, towards one target. It decides whether a put is counted and with which immediate, when a signal may be sent, and which
//! acknowledgement a quiet requests. The engine calls it for each put and signal; it posts nothing.
//!
//! Puts cost the target nothing until the stream first signals it. That signal waits until the puts before it, which are not counted, are complete at
//! the target; their completions report that. Puts from then on are counted, until `revert_after` of them were posted without a signal; later puts
//! are not counted. No operation waits at that point: the epoch stays open and keeps its count. The signal that ends the epoch carries that count,
//! and waits for the uncounted puts itself. An epoch with counted writes must never be forgotten; therefore a stream exists until its context ends.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::{LINKS_MAX, RMA_EPOCH_WRITES_MAX};
use crate::reserve::{OutOfMemory, try_filled};
use crate::rma::incoming::{MakeUp, PathDeliveryReport};
use crate::rma::shape::EpochShape;
use crate::rma::{PathId, ProtocolFault, extend_number, truncate_number};
use crate::wire::imm::CountedImmediate;
use crate::wire::rma::RmaStream;
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage, SignalUpdate};

/// How signals are ordered after the puts before them. Chosen from the capabilities of the NICs at both ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalOrdering {
    /// Writes carry immediates, and the target counts them.
    Counted {
        /// Number of counted writes without a signal after which later writes are not counted; at least 1.
        revert_after: u32,
    },
    /// Writes carry no immediates: a signal waits until all puts before it are complete at the target.
    Completed,
}

/// The immediate of a put.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PutTag {
    /// No immediate. The caller reports completion at the target to [`OutgoingStream::on_plain_done`].
    Plain,
    /// This immediate.
    Counted(u32),
}

/// Why a put or signal cannot begin now; the stream has not changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamBusy {
    /// The window of live epochs is full of signals that wait for their acknowledgement, which the target sends without a request.
    Acknowledgement,
    /// Puts that were not counted are not yet complete at the target: the caller first waits for them, as a quiet of this peer does.
    Plain,
    /// A put with signal has begun and not ended.
    Held,
}

/// A signal, or a put with signal, that has begun: no other signal ends its epoch.
#[derive(Debug)]
#[must_use = "the stream sends no other signal until this one ends"]
pub struct SignalBatch(());

/// The next step of a quiet of this stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuietStep {
    /// The target has applied all signals.
    Applied,
    /// The caller sends this request, over any path, and then waits for its acknowledgement.
    Ask(AckRequest),
    /// The acknowledgement was requested; the caller waits for it.
    Wait,
}

/// A signal that was sent and is not acknowledged; one cache line.
#[derive(Clone, Copy, Debug, Default)]
struct SentSignal {
    update: Option<SignalUpdate>,
    count: u32,
    at_once: bool,
    posted: [u32; LINKS_MAX],
    /// The path of its last message, until that path is lost.
    over: Option<PathId>,
}

const _: () = assert!(size_of::<SentSignal>() <= 64);

/// One stream, at its initiator.
#[derive(Debug)]
pub struct OutgoingStream {
    /// Counted writes of the open epoch.
    count: u32,
    /// Puts are counted while `count` is below this; 0 while puts are not counted.
    limit: u32,
    /// The immediate of the open epoch.
    imm: u32,
    counting: bool,
    held: bool,
    /// Puts that were not counted and are not complete.
    plain: u32,
    /// Writes of the open epoch by path.
    posted: [u32; LINKS_MAX],
    /// Signals sent so far: the number of the open epoch.
    sealed: u64,
    /// Epochs that the target has applied, as far as acknowledged.
    acked: u64,
    /// An acknowledgement of all epochs before this one was requested.
    asked: u64,
    sent: Box<[SentSignal]>,
    order: SignalOrdering,
    shape: EpochShape,
    stream: RmaStream,
}

impl OutgoingStream {
    /// Creates a stream without history. Allocates for [`EpochShape::epoch_window`] signals.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(stream: RmaStream, order: SignalOrdering, shape: EpochShape) -> Result<Self, OutOfMemory> {
        Self::from_number(0, stream, order, shape)
    }

    /// Creates a stream whose first epoch has this number.
    pub(super) fn from_number(
        from: u64,
        stream: RmaStream,
        order: SignalOrdering,
        shape: EpochShape,
    ) -> Result<Self, OutOfMemory> {
        let sent = try_filled(SentSignal::default(), shape.epoch_window() as usize)?;
        Ok(Self {
            count: 0,
            limit: 0,
            imm: CountedImmediate::new(stream, shape.wire_epoch(from)).to_bits(),
            counting: false,
            held: false,
            plain: 0,
            posted: [0; LINKS_MAX],
            sealed: from,
            acked: from,
            asked: from,
            sent,
            order,
            shape,
            stream,
        })
    }

    /// Returns the tag of one write that is about to be posted on `path`, and records the write. The caller must be certain that the path accepts the
    /// write. A put in several pieces calls this for each piece.
    ///
    /// # Errors
    /// [`StreamBusy`] names the condition to wait for.
    #[inline]
    pub fn tag_put(&mut self, path: PathId) -> Result<PutTag, StreamBusy> {
        if self.count < self.limit {
            return Ok(PutTag::Counted(self.count_write(path)));
        }
        if self.counting {
            return self.at_limit();
        }
        self.plain += 1;
        Ok(PutTag::Plain)
    }

    #[inline]
    fn count_write(&mut self, path: PathId) -> u32 {
        self.count += 1;
        self.posted[path.index()] += 1;
        self.imm
    }

    #[cold]
    fn at_limit(&mut self) -> Result<PutTag, StreamBusy> {
        if self.is_full() {
            return Err(StreamBusy::Acknowledgement);
        }
        if self.held {
            return Err(StreamBusy::Held);
        }
        self.counting = false;
        self.limit = 0;
        self.plain += 1;
        Ok(PutTag::Plain)
    }

    fn is_full(&self) -> bool {
        self.unacknowledged_signals() >= self.shape.epoch_window()
    }

    /// Records that a write that was not counted is complete at the target. Returns false if no such write was pending, so that the completion was
    /// reported twice.
    #[inline]
    #[must_use]
    pub fn on_plain_done(&mut self) -> bool {
        let left = self.plain.checked_sub(1);
        self.plain = left.unwrap_or(0);
        left.is_some()
    }

    /// Begins a signal, with or without writes of its own.
    ///
    /// # Errors
    /// [`StreamBusy`] names the condition to wait for.
    pub fn begin_signal(&mut self) -> Result<SignalBatch, StreamBusy> {
        if self.held {
            return Err(StreamBusy::Held);
        }
        if self.is_full() {
            return Err(StreamBusy::Acknowledgement);
        }
        self.held = true;
        self.counting = matches!(self.order, SignalOrdering::Counted { .. });
        self.renew_limit();
        Ok(SignalBatch(()))
    }

    /// Tags one write of a put with signal, as [`OutgoingStream::tag_put`] does.
    ///
    /// # Errors
    /// [`StreamBusy::Held`] if the epoch has the maximum number of writes of a signal; the caller can then only end or abandon the batch.
    #[inline]
    pub fn tag_piece(&mut self, _batch: &SignalBatch, path: PathId) -> Result<PutTag, StreamBusy> {
        self.tag_put(path)
    }

    /// Ends a batch and returns its signal, which the caller sends over any path. `at_once` requests an acknowledgement as soon as the target has
    /// applied the signal: for a signal that a caller waits for.
    ///
    /// # Errors
    /// The batch and [`StreamBusy::Plain`]: puts before the signal that were not counted have not completed.
    pub fn end_signal(
        &mut self,
        batch: SignalBatch,
        update: SignalUpdate,
        at_once: bool,
    ) -> Result<SignalMessage, (SignalBatch, StreamBusy)> {
        if self.plain > 0 {
            return Err((batch, StreamBusy::Plain));
        }
        let number = self.sealed;
        let count = self.count;
        let posted = self.posted;
        let sent = SentSignal { update: Some(update), count, at_once, posted, over: None };
        self.sent[self.shape.ring_index(number)] = sent;
        self.sealed = self.sealed.wrapping_add(1);
        if at_once {
            self.asked = self.sealed;
        }
        (self.count, self.posted) = (0, [0; LINKS_MAX]);
        self.imm = CountedImmediate::new(self.stream, self.shape.wire_epoch(self.sealed)).to_bits();
        self.abandon_signal(batch);
        let stream = self.stream;
        let epoch = self.shape.wire_epoch(number);
        Ok(SignalMessage { stream, epoch, count, update, at_once, ack: None })
    }

    /// Abandons a batch. Its tagged writes belong to the epoch that the next signal ends.
    pub fn abandon_signal(&mut self, _batch: SignalBatch) {
        self.held = false;
        self.renew_limit();
    }

    /// Recomputes how many counted writes the open epoch may have.
    fn renew_limit(&mut self) {
        self.limit = match self.order {
            SignalOrdering::Counted { .. } if !self.counting || self.is_full() => 0,
            SignalOrdering::Counted { .. } if self.held => RMA_EPOCH_WRITES_MAX,
            SignalOrdering::Counted { revert_after } => revert_after.min(RMA_EPOCH_WRITES_MAX),
            SignalOrdering::Completed => 0,
        };
    }

    /// Applies an acknowledgement. Returns how many signals it acknowledges for the first time.
    ///
    /// # Errors
    /// [`ProtocolFault::Acknowledged`] if it covers signals that were not sent.
    pub fn on_ack(&mut self, ack: SignalAck) -> Result<u64, ProtocolFault> {
        let number = extend_number(ack.number, self.acked);
        let news = number.wrapping_sub(self.acked) as i64;
        if news <= 0 {
            return Ok(0);
        }
        if news as u64 > self.unacknowledged_signals() {
            return Err(ProtocolFault::Acknowledged(ack.number));
        }
        self.acked = number;
        self.renew_limit();
        Ok(news as u64)
    }

    /// Returns how many signals were sent and are not acknowledged.
    #[inline]
    #[must_use]
    pub fn unacknowledged_signals(&self) -> u64 {
        self.sealed.wrapping_sub(self.acked)
    }

    /// Returns whether the target sends an acknowledgement without a request: enough signals are not acknowledged.
    #[inline]
    #[must_use]
    pub fn is_told_unasked(&self) -> bool {
        self.unacknowledged_signals() >= self.shape.acknowledge_after()
    }

    /// Returns the next step of a quiet of this stream. Of two quiets after the same signal, the second requests no acknowledgement.
    pub fn quiet(&mut self) -> QuietStep {
        if self.unacknowledged_signals() == 0 {
            return QuietStep::Applied;
        }
        if self.asked == self.sealed {
            return QuietStep::Wait;
        }
        self.asked = self.sealed;
        QuietStep::Ask(AckRequest { stream: self.stream, number: truncate_number(self.sealed) })
    }

    /// Records that the message of signal `number` is being sent over `path`, for the first time or again.
    #[inline]
    pub fn sent_over(&mut self, number: u64, path: PathId) {
        self.sent[self.shape.ring_index(number)].over = Some(path);
    }

    /// Returns the signals whose messages were sent over a lost path and, by the target's delivery report, have not arrived. The caller sends them
    /// again.
    pub fn lost_signals(&mut self, path: PathId, standing: &PathDeliveryReport) -> Vec<(u64, SignalMessage)> {
        let mut lost = Vec::new();
        for back in (1..=self.unacknowledged_signals()).rev() {
            let number = self.sealed.wrapping_sub(back);
            let sent = &mut self.sent[self.shape.ring_index(number)];
            if sent.over == Some(path) {
                sent.over = None;
                lost.extend(self.resend_signal(number, standing).map(|signal| (number, signal)));
            }
        }
        lost
    }

    /// Returns whether a write that was counted in epoch `number`, on a lost path, may be among those in `lost`. All other counted writes have
    /// arrived.
    #[must_use]
    pub fn is_missing(&self, number: u64, lost: &[MakeUp]) -> bool {
        let is_live = number.wrapping_sub(self.acked) as i64 >= 0;
        is_live && lost.iter().any(|one| one.epoch == self.shape.wire_epoch(number))
    }

    /// Returns signal `number`, to be sent again because its message was sent over a lost path; `None` if the target's delivery report shows that it
    /// has arrived. So a message is sent again only when the first copy can no longer arrive, and no late copy meets a later epoch of the same 16
    /// bits.
    #[must_use]
    pub fn resend_signal(&self, number: u64, standing: &PathDeliveryReport) -> Option<SignalMessage> {
        let back = self.sealed.wrapping_sub(number);
        if back == 0 || back > self.unacknowledged_signals() {
            return None;
        }
        let epoch = self.shape.wire_epoch(number);
        let applied = extend_number(standing.applied, self.acked);
        let has_come = (number.wrapping_sub(applied) as i64) < 0 || standing.signals.contains(&epoch);
        if has_come {
            return None;
        }
        let SentSignal { update, count, at_once, .. } = self.sent[self.shape.ring_index(number)];
        Some(SignalMessage { stream: self.stream, epoch, count, update: update?, at_once, ack: None })
    }

    /// The number of the open epoch, and of the next signal.
    #[inline]
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.sealed
    }

    /// Returns the number of the stream.
    #[must_use]
    pub const fn stream(&self) -> RmaStream {
        self.stream
    }

    /// Takes a lost path out of account, by the target's report of the writes counted there. The report is final: nothing arrives over the path any
    /// more. Returns the writes that the target has to count without their arrival. The caller sends those counts once all writes that had not
    /// completed on the path were written again, without immediates, and have completed or failed finally; a quiet reports failures. A later quiet
    /// requests its acknowledgement again.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the report is invalid.
    pub fn lose_path(
        &mut self,
        path: PathId,
        standing: &PathDeliveryReport,
    ) -> Result<Vec<MakeUp>, ProtocolFault> {
        let applied = extend_number(standing.applied, self.acked);
        // Epochs of the report may have been acknowledged since; no acknowledged epoch lacks a write.
        let known = (self.acked.wrapping_sub(applied) as i64).max(0) as u64;
        let start = applied.wrapping_add(known);
        if self.sealed.wrapping_sub(start) > self.unacknowledged_signals() {
            return Err(ProtocolFault::Acknowledged(standing.applied));
        }
        self.asked = self.acked;
        let seen = standing.seen.iter().map(|&(epoch, seen)| (self.shape.epochs_ahead(epoch, applied), seen));
        let mut seen = seen.skip_while(|&(ahead, _)| ahead < known).peekable();
        let mut lost = Vec::new();
        for back in (0..=self.sealed.wrapping_sub(start)).rev() {
            let number = self.sealed.wrapping_sub(back);
            let epoch = self.shape.wire_epoch(number);
            let ahead = number.wrapping_sub(applied);
            let seen = seen.next_if(|&(of, _)| of == ahead).map_or(0, |(_, seen)| seen);
            let posted = match back {
                0 => &mut self.posted,
                _ => &mut self.sent[self.shape.ring_index(number)].posted,
            };
            let posted = core::mem::take(&mut posted[path.index()]);
            let count = posted.checked_sub(seen).ok_or(ProtocolFault::Standing { seen, posted })?;
            if count > 0 {
                lost.push(MakeUp { stream: self.stream, epoch, count });
            }
        }
        seen.next().map_or(Ok(lost), |(ahead, _)| Err(ProtocolFault::Epoch(applied.wrapping_add(ahead))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::rma::signal::UpdateOp;
    use crate::wire::rma::word::{SymmetricWord, WordWidth};

    #[test]
    fn epoch_is_limited_to_countable_writes() {
        let stream = RmaStream::new(0).unwrap();
        let order = SignalOrdering::Counted { revert_after: u32::MAX };
        let mut out = OutgoingStream::new(stream, order, EpochShape::WIRE).unwrap();
        let path = PathId::new(0).unwrap();
        let word = SymmetricWord::new(0, 0, WordWidth::Eight).unwrap();
        let batch = out.begin_signal().unwrap();
        out.count = RMA_EPOCH_WRITES_MAX - 1;
        assert!(matches!(out.tag_piece(&batch, path), Ok(PutTag::Counted(_))));
        assert_eq!(out.tag_piece(&batch, path), Err(StreamBusy::Held));
        let update = SignalUpdate::new(UpdateOp::Set, word, 0).unwrap();
        let Ok(signal) = out.end_signal(batch, update, false) else { panic!("the signal waits for no put") };
        assert_eq!(signal.count, RMA_EPOCH_WRITES_MAX);
        out.count = RMA_EPOCH_WRITES_MAX;
        assert_eq!(out.tag_put(path), Ok(PutTag::Plain), "further puts are not counted");
    }
}
