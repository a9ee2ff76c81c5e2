//! The streams of one peer at their target. The engine calls it for each immediate and message from the peer, and once per poll for acknowledgements
//! that are due.

use alloc::vec::Vec;

use crate::limits::RMA_STREAMS_MAX;
use crate::reserve::{OutOfMemory, try_grow};
use crate::rma::incoming::{IncomingStream, MakeUp, PathDeliveryReport, SignalArrival};
use crate::rma::shape::EpochShape;
use crate::rma::{PathId, ProtocolFault};
use crate::wire::imm::CountedImmediate;
use crate::wire::rma::RmaStream;
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage, SignalUpdate};

/// The effect of a write or a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArrivalEffect {
    /// It was recorded; the caller does nothing.
    Counted,
    /// A signal is ready: the caller calls [`StreamInbox::take_signal`] for that stream until it returns `None`.
    Ready(RmaStream),
    /// The stream is unknown, and nothing was recorded: the caller calls [`StreamInbox::add_stream`] for it and repeats the call.
    Unknown(RmaStream),
}

/// Event counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InboxCounts {
    /// Writes that were counted.
    pub writes: u64,
    /// Signals that were returned to be applied.
    pub signals: u64,
    /// Signals that arrived again.
    pub repeated: u64,
    /// Acknowledgements that were piggybacked on signals.
    pub rode: u64,
    /// Acknowledgements that were messages of their own.
    pub acks: u64,
}

/// All streams of one peer.
#[derive(Debug)]
pub struct StreamInbox {
    streams: Vec<Option<IncomingStream>>,
    /// Bit i: stream i has applied epochs that are not acknowledged.
    owed: u64,
    shape: EpochShape,
    seen: InboxCounts,
}

impl StreamInbox {
    /// Creates the inbox of a peer that has sent nothing. Allocates nothing.
    #[must_use]
    pub const fn new(shape: EpochShape) -> Self {
        Self {
            streams: Vec::new(),
            owed: 0,
            shape,
            seen: InboxCounts { writes: 0, signals: 0, repeated: 0, rode: 0, acks: 0 },
        }
    }

    /// Creates the state of a stream unless it exists. Allocates; at most for [`RMA_STREAMS_MAX`] streams.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_stream(&mut self, stream: RmaStream) -> Result<(), OutOfMemory> {
        let at = stream.index();
        if at >= self.streams.len() {
            let more = at + 1 - self.streams.len();
            try_grow(&mut self.streams, more)?;
            self.streams.resize_with(at + 1, || None);
        }
        if self.streams[at].is_none() {
            self.streams[at] = Some(IncomingStream::new(self.shape)?);
        }
        Ok(())
    }

    #[inline]
    fn stream_mut(&mut self, stream: RmaStream) -> Option<&mut IncomingStream> {
        self.streams.get_mut(stream.index())?.as_mut()
    }

    /// Counts a write of the peer with that immediate, which arrived over `path`.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the immediate or its epoch is invalid.
    #[inline]
    pub fn on_write(&mut self, imm: u32, path: PathId) -> Result<ArrivalEffect, ProtocolFault> {
        let counted = CountedImmediate::from_bits(imm).ok_or(ProtocolFault::Immediate(imm))?;
        let Some(stream) = self.stream_mut(counted.stream()) else {
            return Ok(ArrivalEffect::Unknown(counted.stream()));
        };
        let ready = stream.count_write(counted.epoch(), path)?;
        self.seen.writes += 1;
        Ok(if ready { ArrivalEffect::Ready(counted.stream()) } else { ArrivalEffect::Counted })
    }

    /// Records a signal of the peer. The caller handles the acknowledgement that is piggybacked on it.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the signal is invalid ([`IncomingStream::on_signal`]).
    pub fn on_signal(&mut self, signal: &SignalMessage) -> Result<ArrivalEffect, ProtocolFault> {
        let Some(stream) = self.stream_mut(signal.stream) else {
            return Ok(ArrivalEffect::Unknown(signal.stream));
        };
        let arrival = stream.on_signal(signal)?;
        let ready = stream.is_ready();
        let owed = stream.is_owed();
        self.seen.repeated += u64::from(arrival == SignalArrival::Repeated);
        self.mark_owed(signal.stream, owed);
        Ok(if ready { ArrivalEffect::Ready(signal.stream) } else { ArrivalEffect::Counted })
    }

    /// Records that the peer requests an acknowledgement.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it names epochs that it cannot have sent.
    pub fn on_ask(&mut self, ask: &AckRequest) -> Result<ArrivalEffect, ProtocolFault> {
        let Some(stream) = self.stream_mut(ask.stream) else {
            return Ok(ArrivalEffect::Unknown(ask.stream));
        };
        stream.on_ask(ask)?;
        let owed = stream.is_owed();
        self.mark_owed(ask.stream, owed);
        Ok(ArrivalEffect::Counted)
    }

    /// Counts writes of a lost path that were written again.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the message is invalid ([`IncomingStream::make_up`]).
    pub fn make_up(&mut self, lost: &MakeUp) -> Result<ArrivalEffect, ProtocolFault> {
        let Some(stream) = self.stream_mut(lost.stream) else {
            return Ok(ArrivalEffect::Unknown(lost.stream));
        };
        Ok(if stream.make_up(lost)? { ArrivalEffect::Ready(lost.stream) } else { ArrivalEffect::Counted })
    }

    /// Returns the update of the next signal of a stream, as [`IncomingStream::take_signal`] does.
    pub fn take_signal(&mut self, stream: RmaStream) -> Option<SignalUpdate> {
        let update = self.stream_mut(stream)?.take_signal()?;
        self.mark_owed(stream, true);
        self.seen.signals += 1;
        Some(update)
    }

    #[inline]
    fn mark_owed(&mut self, stream: RmaStream, owed: bool) {
        self.owed |= u64::from(owed) << stream.index();
    }

    /// Returns the acknowledgement that the next signal to the peer carries: of a stream that is not fully acknowledged, due ones first. The caller
    /// must be certain that the message is accepted.
    pub fn piggyback_ack(&mut self) -> Option<SignalAck> {
        if self.owed == 0 {
            return None;
        }
        let ack = match self.next(IncomingStream::is_due) {
            Some(stream) => self.acknowledge_stream(stream),
            None => self.next(IncomingStream::is_owed).and_then(|stream| self.acknowledge_stream(stream)),
        }?;
        self.seen.rode += 1;
        Some(ack)
    }

    /// Returns the next acknowledgement that is due as a message of its own. The caller must be certain that the message is accepted.
    pub fn next_ack(&mut self) -> Option<SignalAck> {
        self.next_ack_where(|_| true)
    }

    /// Returns the next due acknowledgement of a stream for which `can` returns true; other streams stay due.
    pub fn next_ack_where(&mut self, can: impl Fn(RmaStream) -> bool) -> Option<SignalAck> {
        if self.owed == 0 {
            return None;
        }
        let due = |stream, incoming: &IncomingStream| incoming.is_due() && can(stream);
        let ack = self.next_where(due).and_then(|stream| self.acknowledge_stream(stream))?;
        self.seen.acks += 1;
        Some(ack)
    }

    /// Returns whether [`StreamInbox::next_ack`] would return an acknowledgement.
    #[must_use]
    pub fn has_ack(&self) -> bool {
        self.owed != 0 && self.next(IncomingStream::is_due).is_some()
    }

    fn next(&self, want: impl Fn(&IncomingStream) -> bool) -> Option<RmaStream> {
        self.next_where(|_, incoming| want(incoming))
    }

    fn next_where(&self, want: impl Fn(RmaStream, &IncomingStream) -> bool) -> Option<RmaStream> {
        let mut left = self.owed;
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            let stream = RmaStream::new(at as u8)?;
            if self.streams.get(at as usize)?.as_ref().is_some_and(|incoming| want(stream, incoming)) {
                return Some(stream);
            }
        }
        None
    }

    fn acknowledge_stream(&mut self, stream: RmaStream) -> Option<SignalAck> {
        let number = self.stream_mut(stream)?.acknowledge_applied();
        self.owed &= !(1 << stream.index());
        Some(SignalAck { stream, number })
    }

    /// Returns the writes that were counted on a lost path of a stream, for the peer, after the last arrival was taken in. Acknowledgements may be
    /// lost with the path, so the last one becomes due again.
    pub fn close_path(&mut self, stream: RmaStream, path: PathId) -> PathDeliveryReport {
        let Some(incoming) = self.stream_mut(stream) else { return PathDeliveryReport::default() };
        let standing = incoming.close_path(path);
        incoming.tell_again();
        let owed = incoming.is_owed();
        self.mark_owed(stream, owed);
        standing
    }

    /// Forgets a stream that the peer has finished with, and frees its memory.
    pub fn forget_stream(&mut self, stream: RmaStream) {
        if let Some(known) = self.streams.get_mut(stream.index()) {
            *known = None;
        }
        self.owed &= !(1 << stream.index());
    }

    /// Returns the event counts so far.
    #[must_use]
    pub const fn arrival_counts(&self) -> InboxCounts {
        self.seen
    }

    /// Returns the number of streams with memory, and of epochs of each: the memory that the peer uses here.
    #[must_use]
    pub fn stream_capacity(&self) -> (usize, u64) {
        (self.streams.iter().flatten().count(), self.shape.epoch_window())
    }
}

const _: () = assert!(RMA_STREAMS_MAX == u64::BITS as usize);
