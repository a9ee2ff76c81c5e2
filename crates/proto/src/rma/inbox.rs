//! The streams of one peer at their target. Called for each immediate and message that comes from it, and once a turn for what
//! is to be told it.

use alloc::vec::Vec;

use crate::limits::RMA_STREAMS_MAX;
use crate::reserve::{OutOfMemory, try_grow};
use crate::rma::incoming::{IncomingStream, MakeUp, PathDeliveryReport, SignalArrival};
use crate::rma::shape::EpochShape;
use crate::rma::{PathId, ProtocolFault};
use crate::wire::imm::CountedImmediate;
use crate::wire::rma::RmaStream;
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage, SignalUpdate};

/// What a write or a message has led to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArrivalEffect {
    /// It is counted. Nothing is to be done.
    Counted,
    /// There is a signal to apply: [`StreamInbox::take_signal`] that stream until there is none.
    Ready(RmaStream),
    /// Nothing was taken: [`StreamInbox::add_stream`] for that stream, and tell again.
    Unknown(RmaStream),
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InboxCounts {
    /// Writes that were counted.
    pub writes: u64,
    /// Signals that were given out to be applied.
    pub signals: u64,
    /// Signals that came again.
    pub repeated: u64,
    /// Acknowledgements that rode on signals.
    pub rode: u64,
    /// Acknowledgements that were messages.
    pub acks: u64,
}

/// The streams.
#[derive(Debug)]
pub struct StreamInbox {
    streams: Vec<Option<IncomingStream>>,
    /// Of which streams the peer was not told all, by number.
    owed: u64,
    shape: EpochShape,
    seen: InboxCounts,
}

impl StreamInbox {
    /// Of a peer that has sent nothing. Takes no memory.
    #[must_use]
    pub const fn new(shape: EpochShape) -> Self {
        Self {
            streams: Vec::new(),
            owed: 0,
            shape,
            seen: InboxCounts { writes: 0, signals: 0, repeated: 0, rode: 0, acks: 0 },
        }
    }

    /// Makes room for a stream, if there is none yet. Allocates; at most for [`RMA_STREAMS_MAX`] streams.
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

    /// A write of the peer with that immediate has come over `path`.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it cannot be.
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

    /// A signal of the peer has come. What rides on it is not looked at here.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it cannot be.
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

    /// The peer asks to be told.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it asks for what cannot be.
    pub fn on_ask(&mut self, ask: &AckRequest) -> Result<ArrivalEffect, ProtocolFault> {
        let Some(stream) = self.stream_mut(ask.stream) else {
            return Ok(ArrivalEffect::Unknown(ask.stream));
        };
        stream.on_ask(ask)?;
        let owed = stream.is_owed();
        self.mark_owed(ask.stream, owed);
        Ok(ArrivalEffect::Counted)
    }

    /// Writes of a lost path were written again.
    ///
    /// # Errors
    /// [`ProtocolFault`] if that cannot be.
    pub fn make_up(&mut self, lost: &MakeUp) -> Result<ArrivalEffect, ProtocolFault> {
        let Some(stream) = self.stream_mut(lost.stream) else {
            return Ok(ArrivalEffect::Unknown(lost.stream));
        };
        Ok(if stream.make_up(lost)? { ArrivalEffect::Ready(lost.stream) } else { ArrivalEffect::Counted })
    }

    /// What the next signal of a stream does, as [`IncomingStream::take_signal`] says.
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

    /// What a signal to the peer can carry: an acknowledgement of a stream that it was not told all of, due ones first. Only when
    /// the message is certain to be taken.
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

    /// The next acknowledgement that is due as a message by itself. Only when that is certain to be taken.
    pub fn next_ack(&mut self) -> Option<SignalAck> {
        self.next_ack_where(|_| true)
    }

    /// The same, of a stream that can be told now; the others stay due.
    pub fn next_ack_where(&mut self, can: impl Fn(RmaStream) -> bool) -> Option<SignalAck> {
        if self.owed == 0 {
            return None;
        }
        let due = |stream, incoming: &IncomingStream| incoming.is_due() && can(stream);
        let ack = self.next_where(due).and_then(|stream| self.acknowledge_stream(stream))?;
        self.seen.acks += 1;
        Some(ack)
    }

    /// Whether [`StreamInbox::next_ack`] has one.
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

    /// A path of a stream is lost, and the last of it has come: what was counted there, for the peer. What was acknowledged may be
    /// lost with it, so all of it becomes due again.
    pub fn close_path(&mut self, stream: RmaStream, path: PathId) -> PathDeliveryReport {
        let Some(incoming) = self.stream_mut(stream) else { return PathDeliveryReport::default() };
        let standing = incoming.close_path(path);
        incoming.tell_again();
        let owed = incoming.is_owed();
        self.mark_owed(stream, owed);
        standing
    }

    /// The peer is done with a stream: nothing is known of it any more, and its memory is given back.
    pub fn forget_stream(&mut self, stream: RmaStream) {
        if let Some(known) = self.streams.get_mut(stream.index()) {
            *known = None;
        }
        self.owed &= !(1 << stream.index());
    }

    /// What has happened so far.
    #[must_use]
    pub const fn arrival_counts(&self) -> InboxCounts {
        self.seen
    }

    /// Streams that there is room for, and epochs of each: what the peer takes of memory here.
    #[must_use]
    pub fn stream_capacity(&self) -> (usize, u64) {
        (self.streams.iter().flatten().count(), self.shape.epoch_window())
    }
}

const _: () = assert!(RMA_STREAMS_MAX == u64::BITS as usize);
