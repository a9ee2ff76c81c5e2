//! The streams of one peer at their target. Called for each immediate and message that comes from it, and once a turn for what
//! is to be told it.

use alloc::vec::Vec;

use crate::limits::RMA_STREAMS_MAX;
use crate::mutant::Mutant;
use crate::reserve::{OutOfMemory, try_grow};
use crate::rma::incoming::{Arrival, Incoming, MakeUp, Standing};
use crate::rma::shape::Shape;
use crate::rma::{Fault, Path};
use crate::wire::imm::Counted;
use crate::wire::rma::Stream;
use crate::wire::rma::signal::{Ack, Ask, Signal, Update};

/// What a write or a message has led to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Took {
    /// It is counted. Nothing is to be done.
    Counted,
    /// There is a signal to apply: [`Inbox::take`] that stream until there is none.
    Ready(Stream),
    /// Nothing was taken: [`Inbox::grow`] for that stream, and tell again.
    Unknown(Stream),
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seen {
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
pub struct Inbox {
    streams: Vec<Option<Incoming>>,
    /// Of which streams the peer was not told all, by number.
    owed: u64,
    shape: Shape,
    seen: Seen,
    mutant: Mutant,
}

impl Inbox {
    /// Of a peer that has sent nothing. Takes no memory.
    #[must_use]
    pub const fn new(shape: Shape, mutant: Mutant) -> Self {
        Self {
            streams: Vec::new(),
            owed: 0,
            shape,
            seen: Seen { writes: 0, signals: 0, repeated: 0, rode: 0, acks: 0 },
            mutant,
        }
    }

    /// Makes room for a stream, if there is none yet. Allocates; at most for [`RMA_STREAMS_MAX`] streams.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn grow(&mut self, stream: Stream) -> Result<(), OutOfMemory> {
        let at = stream.index();
        if at >= self.streams.len() {
            let more = at + 1 - self.streams.len();
            try_grow(&mut self.streams, more)?;
            self.streams.resize_with(at + 1, || None);
        }
        if self.streams[at].is_none() {
            self.streams[at] = Some(Incoming::new(self.shape, self.mutant)?);
        }
        Ok(())
    }

    #[inline]
    fn stream(&mut self, stream: Stream) -> Option<&mut Incoming> {
        self.streams.get_mut(stream.index())?.as_mut()
    }

    /// A write of the peer with that immediate has come over `path`.
    ///
    /// # Errors
    /// [`Fault`] if it cannot be.
    #[inline]
    pub fn on_write(&mut self, imm: u32, path: Path) -> Result<Took, Fault> {
        let counted = Counted::from_bits(imm).ok_or(Fault::Immediate(imm))?;
        if self.mutant.is("rma-arrivals-make-room") {
            let _ = self.grow(counted.stream());
        }
        let Some(stream) = self.stream(counted.stream()) else {
            return Ok(Took::Unknown(counted.stream()));
        };
        let ready = stream.count(counted.epoch(), path)?;
        self.seen.writes += 1;
        Ok(if ready { Took::Ready(counted.stream()) } else { Took::Counted })
    }

    /// A signal of the peer has come. What rides on it is not looked at here.
    ///
    /// # Errors
    /// [`Fault`] if it cannot be.
    pub fn on_signal(&mut self, signal: &Signal) -> Result<Took, Fault> {
        let Some(stream) = self.stream(signal.stream) else {
            return Ok(Took::Unknown(signal.stream));
        };
        let arrival = stream.on_signal(signal)?;
        let ready = stream.is_ready();
        let owed = stream.is_owed();
        self.seen.repeated += u64::from(arrival == Arrival::Repeated);
        self.owe(signal.stream, owed);
        Ok(if ready { Took::Ready(signal.stream) } else { Took::Counted })
    }

    /// The peer asks to be told.
    ///
    /// # Errors
    /// [`Fault`] if it asks for what cannot be.
    pub fn on_ask(&mut self, ask: &Ask) -> Result<Took, Fault> {
        let Some(stream) = self.stream(ask.stream) else {
            return Ok(Took::Unknown(ask.stream));
        };
        stream.on_ask(ask)?;
        let owed = stream.is_owed();
        self.owe(ask.stream, owed);
        Ok(Took::Counted)
    }

    /// Writes of a lost path were written again.
    ///
    /// # Errors
    /// [`Fault`] if that cannot be.
    pub fn make_up(&mut self, lost: &MakeUp) -> Result<Took, Fault> {
        let Some(stream) = self.stream(lost.stream) else {
            return Ok(Took::Unknown(lost.stream));
        };
        Ok(if stream.make_up(lost)? { Took::Ready(lost.stream) } else { Took::Counted })
    }

    /// What the next signal of a stream does, as [`Incoming::take`] says.
    pub fn take(&mut self, stream: Stream) -> Option<Update> {
        if self.mutant.is("rma-streams-wait-in-line") {
            let mut before = self.streams.iter().take(stream.index()).flatten();
            before.all(|other| !other.has_signal()).then_some(())?;
        }
        let update = self.stream(stream)?.take()?;
        self.owe(stream, true);
        self.seen.signals += 1;
        Some(update)
    }

    #[inline]
    fn owe(&mut self, stream: Stream, owed: bool) {
        self.owed |= u64::from(owed) << stream.index();
    }

    /// What a signal to the peer can carry: an acknowledgement of a stream that it was not told all of, due ones first. Only when
    /// the message is certain to be taken.
    pub fn ride(&mut self) -> Option<Ack> {
        if self.owed == 0 {
            return None;
        }
        let ack = match self.next(Incoming::is_due) {
            Some(stream) => self.tell(stream),
            None => self.next(Incoming::is_owed).and_then(|stream| self.tell(stream)),
        }?;
        self.seen.rode += 1;
        Some(ack)
    }

    /// The next acknowledgement that is due as a message by itself. Only when that is certain to be taken.
    pub fn next_ack(&mut self) -> Option<Ack> {
        self.next_ack_where(|_| true)
    }

    /// The same, of a stream that can be told now; the others stay due.
    pub fn next_ack_where(&mut self, can: impl Fn(Stream) -> bool) -> Option<Ack> {
        if self.owed == 0 {
            return None;
        }
        let due = |stream, incoming: &Incoming| incoming.is_due() && can(stream);
        let ack = self.next_where(due).and_then(|stream| self.tell(stream))?;
        self.seen.acks += 1;
        Some(ack)
    }

    /// Whether [`Inbox::next_ack`] has one.
    #[must_use]
    pub fn has_ack(&self) -> bool {
        self.owed != 0 && self.next(Incoming::is_due).is_some()
    }

    fn next(&self, want: impl Fn(&Incoming) -> bool) -> Option<Stream> {
        self.next_where(|_, incoming| want(incoming))
    }

    fn next_where(&self, want: impl Fn(Stream, &Incoming) -> bool) -> Option<Stream> {
        let mut left = self.owed;
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            let stream = Stream::new(at as u8)?;
            if self.streams.get(at as usize)?.as_ref().is_some_and(|incoming| want(stream, incoming)) {
                return Some(stream);
            }
            if self.mutant.is("rma-streams-hide-others") {
                break;
            }
        }
        None
    }

    fn tell(&mut self, stream: Stream) -> Option<Ack> {
        let number = self.stream(stream)?.tell();
        self.owed &= !(1 << stream.index());
        Some(Ack { stream, number })
    }

    /// A path of a stream is lost, and the last of it has come: what was counted there, for the peer. What was acknowledged may be
    /// lost with it, so all of it becomes due again.
    pub fn leave(&mut self, stream: Stream, path: Path) -> Standing {
        let resends = !self.mutant.is("rma-lost-acks-stay-lost");
        let Some(incoming) = self.stream(stream) else { return Standing::default() };
        let standing = incoming.leave(path);
        if resends {
            incoming.tell_again();
            let owed = incoming.is_owed();
            self.owe(stream, owed);
        }
        standing
    }

    /// The peer is done with a stream: nothing is known of it any more, and its memory is given back.
    pub fn forget(&mut self, stream: Stream) {
        if self.mutant.is("rma-left-streams-go-on") {
            return;
        }
        if let Some(known) = self.streams.get_mut(stream.index()) {
            *known = None;
        }
        self.owed &= !(1 << stream.index());
    }

    /// What has happened so far.
    #[must_use]
    pub const fn seen(&self) -> Seen {
        self.seen
    }

    /// Streams that there is room for, and epochs of each: what the peer takes of memory here.
    #[must_use]
    pub fn rooms(&self) -> (usize, u64) {
        (self.streams.iter().flatten().count(), self.shape.window())
    }
}

const _: () = assert!(RMA_STREAMS_MAX == u64::BITS as usize);
