//! A stream at its initiator, towards one target: whether a put is counted, and with which immediate; when a signal may go;
//! what a quiet has to wait for. Called for each put and signal.
//!
//! Puts cost the target nothing until the stream first signals it. The signal then waits until what was not counted is
//! complete at the target, which its completions tell; puts from then on are counted. After so many counted puts without a
//! signal they are not counted any more. Nothing needs to be waited for then: the epoch stays open and keeps its count, and the
//! signal that ends it, whenever that is, tells of the counted ones by number and waits itself for the others. What may not happen
//! is that an epoch with counted writes is forgotten: a stream lives as long as its context does.

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

/// How signals come after the puts before them. Chosen from what the NICs of both ends can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalOrdering {
    /// Writes bring immediates, and the target counts them.
    Counted {
        /// Counted writes without a signal after which writes are not counted any more; at least 1.
        revert_after: u32,
    },
    /// Writes bring none: a signal waits until all puts before it are complete at the target.
    Completed,
}

/// What a put carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PutTag {
    /// No immediate. [`OutgoingStream::on_plain_done`] is to be told when it is complete at the target.
    Plain,
    /// This immediate.
    Counted(u32),
}

/// Not now; nothing was taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StreamBusy {
    /// As many epochs as may be live wait for their acknowledgement, which comes without being asked for.
    Acknowledgement,
    /// Puts that were not counted are not yet complete at the target: quiet this peer, so far as they go.
    Plain,
    /// A put with signal has begun and not ended.
    Held,
}

/// A signal, or a put with signal, that has begun: no other signal ends its epoch.
#[derive(Debug)]
#[must_use = "no signal of the stream goes until it has ended"]
pub struct SignalBatch(());

/// What a quiet of this stream waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuietStep {
    /// All signals were applied.
    Applied,
    /// This message is to be sent, over any path, and then the answer awaited.
    Ask(AckRequest),
    /// The answer will come.
    Wait,
}

/// A signal that was sent and is not acknowledged: a line of the cache.
#[derive(Clone, Copy, Debug, Default)]
struct SentSignal {
    update: Option<SignalUpdate>,
    count: u32,
    at_once: bool,
    posted: [u32; LINKS_MAX],
    /// The path that its message went over last, while that is not lost.
    over: Option<PathId>,
}

const _: () = assert!(size_of::<SentSignal>() <= 64);

/// The stream.
#[derive(Debug)]
pub struct OutgoingStream {
    /// Writes of the open epoch.
    count: u32,
    /// Counted puts end when there are so many; 0 while none is counted.
    limit: u32,
    /// The immediate of the open epoch.
    imm: u32,
    counting: bool,
    held: bool,
    /// Puts that were not counted and are not complete.
    plain: u32,
    /// Writes of the open epoch by path.
    posted: [u32; LINKS_MAX],
    /// Signals so far: the number of the open epoch.
    sealed: u64,
    /// Epochs that the target has applied, as far as it is known.
    acked: u64,
    /// An acknowledgement of all epochs before this was asked for.
    asked: u64,
    sent: Box<[SentSignal]>,
    order: SignalOrdering,
    shape: EpochShape,
    stream: RmaStream,
}

impl OutgoingStream {
    /// A stream that has carried nothing. Allocates for as many signals as may be live.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(stream: RmaStream, order: SignalOrdering, shape: EpochShape) -> Result<Self, OutOfMemory> {
        Self::from_number(0, stream, order, shape)
    }

    /// The same, with the number of its first epoch.
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

    /// Takes one write of a put that is about to be posted on `path`: only when it is certain to be taken there. A put in
    /// several pieces takes each of them.
    ///
    /// # Errors
    /// [`StreamBusy`] says what is waited for.
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

    /// A write that was not counted is complete at the target. False if there was none: it was told twice.
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
    /// [`StreamBusy`] says what is waited for.
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

    /// Takes one write of a put with signal, as [`OutgoingStream::tag_put`] does.
    ///
    /// # Errors
    /// [`StreamBusy::Held`] if the epoch has as many writes as a signal can tell; the batch can only end.
    #[inline]
    pub fn tag_piece(&mut self, _batch: &SignalBatch, path: PathId) -> Result<PutTag, StreamBusy> {
        self.tag_put(path)
    }

    /// Ends a batch: the signal is to be sent, over any path. `at_once` asks for an acknowledgement as soon as the signal was applied: for a signal that is waited for.
    ///
    /// # Errors
    /// The batch and [`StreamBusy::Plain`]: puts before the signal that are not counted have not completed.
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

    /// Gives a batch up. The writes it took belong to the epoch that the next signal ends.
    pub fn abandon_signal(&mut self, _batch: SignalBatch) {
        self.held = false;
        self.renew_limit();
    }

    /// How many writes the open epoch may have now.
    fn renew_limit(&mut self) {
        self.limit = match self.order {
            SignalOrdering::Counted { .. } if !self.counting || self.is_full() => 0,
            SignalOrdering::Counted { .. } if self.held => RMA_EPOCH_WRITES_MAX,
            SignalOrdering::Counted { revert_after } => revert_after.min(RMA_EPOCH_WRITES_MAX),
            SignalOrdering::Completed => 0,
        };
    }

    /// An acknowledgement has come: how many signals it tells of that none told of before.
    ///
    /// # Errors
    /// [`ProtocolFault::Acknowledged`] if it tells of some that were not sent.
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

    /// Signals that were sent and are not acknowledged.
    #[inline]
    #[must_use]
    pub fn unacknowledged_signals(&self) -> u64 {
        self.sealed.wrapping_sub(self.acked)
    }

    /// Whether an acknowledgement comes without being asked for: enough signals are not acknowledged.
    #[inline]
    #[must_use]
    pub fn is_told_unasked(&self) -> bool {
        self.unacknowledged_signals() >= self.shape.acknowledge_after()
    }

    /// What a quiet of this stream has to do for its signals. Of two that come after the same signal the second asks nothing.
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

    /// The message of the signal of that number is sent, for the first time or again, over that path.
    #[inline]
    pub fn sent_over(&mut self, number: u64, path: PathId) {
        self.sent[self.shape.ring_index(number)].over = Some(path);
    }

    /// The signals whose messages went over a path that is lost, and have not come, as the target says: they are to be sent again.
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

    /// Whether a write that was counted in the epoch of that number, and whose path is lost, may be one of those that are made up
    /// for. All others have come.
    #[must_use]
    pub fn is_missing(&self, number: u64, lost: &[MakeUp]) -> bool {
        let is_live = number.wrapping_sub(self.acked) as i64 >= 0;
        is_live && lost.iter().any(|one| one.epoch == self.shape.wire_epoch(number))
    }

    /// The signal of that number, to be sent again as its message went over a path that was lost; `None` if it has come all the
    /// same, as the target says. So no message is sent again while one like it may still come, and none that comes late meets a
    /// later epoch of its number.
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

    /// Which stream it is.
    #[must_use]
    pub const fn stream(&self) -> RmaStream {
        self.stream
    }

    /// A path is lost, and the target says what it has counted there, after the last of it has come. Gives what the target is to
    /// take for counted once all writes that had not completed there were written again, without immediates, and are complete, or
    /// have failed for good, which a quiet tells. A later quiet asks again.
    ///
    /// # Errors
    /// [`ProtocolFault`] if what it says cannot be.
    pub fn lose_path(
        &mut self,
        path: PathId,
        standing: &PathDeliveryReport,
    ) -> Result<Vec<MakeUp>, ProtocolFault> {
        let applied = extend_number(standing.applied, self.acked);
        // What it tells of may have been acknowledged since: no epoch that was lacks a write.
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
    fn an_epoch_has_as_many_writes_as_a_signal_can_tell() {
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
        let Ok(signal) = out.end_signal(batch, update, false) else { panic!("nothing is in its way") };
        assert_eq!(signal.count, RMA_EPOCH_WRITES_MAX);
        out.count = RMA_EPOCH_WRITES_MAX;
        assert_eq!(out.tag_put(path), Ok(PutTag::Plain), "and goes on without being counted");
    }
}
