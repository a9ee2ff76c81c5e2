//! A stream at its target: counts what arrives, gives signals out in order, and knows what is to be acknowledged. Called for
//! each arrival. Its memory is that of as many epochs as may be live, whatever arrives.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::LINKS_MAX;
use crate::reserve::{OutOfMemory, try_filled};
use crate::rma::shape::EpochShape;
use crate::rma::{PathId, ProtocolFault, extend_number, truncate_number};
use crate::wire::rma::RmaStream;
use crate::wire::rma::signal::{AckRequest, SignalMessage, SignalUpdate};

/// What a target has counted on a path that was lost. Of a stream that it does not know, nothing: the default.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PathDeliveryReport {
    /// Epochs that were applied; the lowest 48 bits.
    pub applied: u64,
    /// Of each live epoch that had some: its number on the wire and how many; oldest first.
    pub seen: Vec<(u16, u32)>,
    /// Live epochs whose signal has come, over whatever path.
    pub signals: Vec<u16>,
}

/// Writes of a live epoch that came without being counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MakeUp {
    /// Of which stream of the sender.
    pub stream: RmaStream,
    /// Of which epoch: its number on the wire.
    pub epoch: u16,
    /// How many.
    pub count: u32,
}

/// Whether a signal that came was one before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalArrival {
    /// It is new.
    New,
    /// It came before.
    Repeated,
}

/// A live epoch: a line of the cache.
#[derive(Clone, Copy, Debug, Default)]
struct LiveEpoch {
    arrived: u32,
    /// How many there are, once its signal has come.
    count: u32,
    /// What its signal does, once it has come.
    update: Option<SignalUpdate>,
    at_once: bool,
    /// Of those that arrived, by path.
    seen: [u32; LINKS_MAX],
}

const _: () = assert!(size_of::<LiveEpoch>() == 64);

impl LiveEpoch {
    #[inline]
    fn is_complete(&self) -> bool {
        self.update.is_some() && self.count == self.arrived
    }

    fn check_count(&self) -> Result<(), ProtocolFault> {
        let arrived = self.arrived;
        let count = self.count;
        let fits = self.update.is_none() || arrived <= count;
        if fits { Ok(()) } else { Err(ProtocolFault::Count { arrived, count }) }
    }

    fn is_of(&self, signal: &SignalMessage) -> bool {
        (self.update, self.count, self.at_once) == (Some(signal.update), signal.count, signal.at_once)
    }
}

/// The stream.
#[derive(Debug)]
pub struct IncomingStream {
    /// The oldest live epoch: so many were applied.
    applied: u64,
    epochs: Box<[LiveEpoch]>,
    shape: EpochShape,
    /// The initiator was told that so many were applied.
    told: u64,
    /// It was told anything.
    has_told: bool,
    /// It wants to know as soon as so many were.
    wanted: u64,
}

impl IncomingStream {
    /// A stream that has carried nothing. Allocates for as many epochs as may be live.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(shape: EpochShape) -> Result<Self, OutOfMemory> {
        Self::from_number(0, shape)
    }

    /// The same, with the number of its first epoch.
    pub(super) fn from_number(from: u64, shape: EpochShape) -> Result<Self, OutOfMemory> {
        let epochs = try_filled(LiveEpoch::default(), shape.epoch_window() as usize)?;
        Ok(Self { applied: from, epochs, shape, told: from, has_told: false, wanted: from })
    }

    /// The number of a live epoch.
    #[inline]
    fn live_number(&self, epoch: u16) -> Result<u64, ProtocolFault> {
        let ahead = self.shape.epochs_ahead(epoch, self.applied);
        if ahead >= self.shape.epoch_window() || !self.shape.is_valid_epoch(epoch) {
            return Err(ProtocolFault::Epoch(epoch.into()));
        }
        Ok(self.applied.wrapping_add(ahead))
    }

    /// Counts a write of that epoch that came over `path`. True if there may be a signal to apply.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it cannot be.
    #[inline]
    pub fn count_write(&mut self, epoch: u16, path: PathId) -> Result<bool, ProtocolFault> {
        let number = self.live_number(epoch)?;
        let slot = &mut self.epochs[self.shape.ring_index(number)];
        slot.arrived = slot.arrived.wrapping_add(1);
        slot.seen[path.index()] = slot.seen[path.index()].wrapping_add(1);
        if slot.update.is_none() {
            return Ok(false);
        }
        slot.check_count()?;
        Ok(self.is_ready())
    }

    /// A signal has come.
    ///
    /// # Errors
    /// [`ProtocolFault`] if it cannot be.
    pub fn on_signal(&mut self, signal: &SignalMessage) -> Result<SignalArrival, ProtocolFault> {
        let Ok(number) = self.live_number(signal.epoch) else {
            return self.on_repeated(signal);
        };
        let slot = &mut self.epochs[self.shape.ring_index(number)];
        if slot.update.is_some() {
            let contradicts = ProtocolFault::Contradiction(signal.epoch);
            return if slot.is_of(signal) { Ok(SignalArrival::Repeated) } else { Err(contradicts) };
        }
        (slot.update, slot.count, slot.at_once) = (Some(signal.update), signal.count, signal.at_once);
        slot.check_count()?;
        if signal.at_once {
            self.request_ack(number.wrapping_add(1));
        }
        Ok(SignalArrival::New)
    }

    /// One that was applied: its initiator does not know, or its path was lost too early to tell.
    fn on_repeated(&mut self, signal: &SignalMessage) -> Result<SignalArrival, ProtocolFault> {
        let behind = self.shape.epochs_ahead(self.shape.wire_epoch(self.applied), signal.epoch.into());
        if behind > self.shape.epoch_window() || !self.shape.is_valid_epoch(signal.epoch) {
            return Err(ProtocolFault::Epoch(signal.epoch.into()));
        }
        self.tell_again();
        Ok(SignalArrival::Repeated)
    }

    /// Whether a signal is to be applied.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.epochs[self.shape.ring_index(self.applied)].is_complete()
    }

    /// What the next signal does, if it is its turn: everything before it in its stream is there. To be applied before anything
    /// else of this stream is asked for.
    pub fn take_signal(&mut self) -> Option<SignalUpdate> {
        let slot = &mut self.epochs[self.shape.ring_index(self.applied)];
        if !slot.is_complete() {
            return None;
        }
        let update = slot.update.take();
        slot.arrived = 0;
        slot.seen = [0; LINKS_MAX];
        self.applied = self.applied.wrapping_add(1);
        update
    }

    /// The initiator wants to know when epochs before that were applied.
    ///
    /// # Errors
    /// [`ProtocolFault::Epoch`] if there can be none such.
    pub fn on_ask(&mut self, ask: &AckRequest) -> Result<(), ProtocolFault> {
        let number = extend_number(ask.number, self.applied);
        let ahead = number.wrapping_sub(self.applied) as i64;
        if ahead > self.shape.epoch_window() as i64 {
            return Err(ProtocolFault::Epoch(ask.number));
        }
        if ahead <= 0 {
            self.tell_again();
        }
        self.request_ack(number);
        Ok(())
    }

    fn request_ack(&mut self, number: u64) {
        if number.wrapping_sub(self.wanted) as i64 > 0 {
            self.wanted = number;
        }
    }

    /// Makes the last acknowledgement due again: what carried it may be lost.
    pub fn tell_again(&mut self) {
        if !self.has_told {
            return;
        }
        self.told = self.applied.wrapping_sub(1);
        self.request_ack(self.applied);
    }

    /// Whether anything was applied that the initiator was not told of.
    #[inline]
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.applied != self.told
    }

    /// Whether it is time for a message of its own.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        let owed = self.applied.wrapping_sub(self.told);
        let wanted = self.wanted.wrapping_sub(self.told) as i64;
        let is_wanted = wanted > 0 && wanted as u64 <= owed;
        owed >= self.shape.acknowledge_after() || is_wanted
    }

    /// The lowest 48 bits of how many were applied; the initiator is being told, so that nothing is owed any more. Only when
    /// the message that carries it is certain to be taken.
    #[inline]
    pub fn acknowledge_applied(&mut self) -> u64 {
        (self.told, self.has_told) = (self.applied, true);
        truncate_number(self.applied)
    }

    /// What was counted on a path that was lost, after the last of it has come. Counts on it begin anew.
    pub fn close_path(&mut self, path: PathId) -> PathDeliveryReport {
        let mut seen = Vec::new();
        let mut signals = Vec::new();
        for ahead in 0..self.shape.epoch_window() {
            let number = self.applied.wrapping_add(ahead);
            let slot = &mut self.epochs[self.shape.ring_index(number)];
            let count = core::mem::take(&mut slot.seen[path.index()]);
            if count > 0 {
                seen.push((self.shape.wire_epoch(number), count));
            }
            if slot.update.is_some() {
                signals.push(self.shape.wire_epoch(number));
            }
        }
        PathDeliveryReport { applied: truncate_number(self.applied), seen, signals }
    }

    /// Writes of a lost path were written again. True if there may be a signal to apply.
    ///
    /// # Errors
    /// [`ProtocolFault`] if that cannot be.
    pub fn make_up(&mut self, lost: &MakeUp) -> Result<bool, ProtocolFault> {
        let number = self.live_number(lost.epoch)?;
        let slot = &mut self.epochs[self.shape.ring_index(number)];
        slot.arrived = slot.arrived.wrapping_add(lost.count);
        slot.check_count()?;
        Ok(self.is_ready())
    }
}
