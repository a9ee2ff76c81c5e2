//! A stream at its target: counts arrivals, returns signals in order, and knows which acknowledgements are due. The engine calls it for each arrival.
//! Its memory is bounded by the number of epochs that may be live, whatever arrives.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::limits::LINKS_MAX;
use crate::reserve::{OutOfMemory, try_filled};
use crate::rma::shape::EpochShape;
use crate::rma::{PathId, ProtocolFault, extend_number, truncate_number};
use crate::wire::rma::RmaStream;
use crate::wire::rma::signal::{AckRequest, SignalMessage, SignalUpdate};

/// A target's report of the writes that it counted on a lost path. The default, without writes, is the report of a stream that the target does not
/// know.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PathDeliveryReport {
    /// Epochs that were applied; the lowest 48 bits.
    pub applied: u64,
    /// Each live epoch with arrivals on the path: its number on the wire and the number of arrivals; oldest first.
    pub seen: Vec<(u16, u32)>,
    /// Live epochs whose signal has arrived, over any path.
    pub signals: Vec<u16>,
}

/// Counted writes of a live epoch that were lost, and have been written again without immediates. The target counts them by this number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MakeUp {
    /// The sender's stream.
    pub stream: RmaStream,
    /// The epoch, by its number on the wire.
    pub epoch: u16,
    /// Number of writes.
    pub count: u32,
}

/// Whether an arriving signal is new.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SignalArrival {
    /// The signal is new.
    New,
    /// The signal arrived before.
    Repeated,
}

/// A live epoch; one cache line.
#[derive(Clone, Copy, Debug, Default)]
struct LiveEpoch {
    arrived: u32,
    /// Number of counted writes, once the signal has arrived.
    count: u32,
    /// The update of its signal, once that has arrived.
    update: Option<SignalUpdate>,
    at_once: bool,
    /// Arrivals by path.
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

/// One stream, at its target.
#[derive(Debug)]
pub struct IncomingStream {
    /// Number of epochs applied: the oldest live epoch.
    applied: u64,
    epochs: Box<[LiveEpoch]>,
    shape: EpochShape,
    /// Number of applied epochs in the last acknowledgement; one less than `applied` if that has to be sent again.
    told: u64,
    /// Whether any acknowledgement was sent.
    has_told: bool,
    /// The initiator requested an acknowledgement as soon as this many epochs are applied.
    wanted: u64,
}

impl IncomingStream {
    /// Creates a stream without history. Allocates for [`EpochShape::epoch_window`] epochs.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(shape: EpochShape) -> Result<Self, OutOfMemory> {
        Self::from_number(0, shape)
    }

    /// Creates a stream whose first epoch has this number.
    pub(super) fn from_number(from: u64, shape: EpochShape) -> Result<Self, OutOfMemory> {
        let epochs = try_filled(LiveEpoch::default(), shape.epoch_window() as usize)?;
        Ok(Self { applied: from, epochs, shape, told: from, has_told: false, wanted: from })
    }

    /// Returns the full number of a live epoch, from its number on the wire.
    #[inline]
    fn live_number(&self, epoch: u16) -> Result<u64, ProtocolFault> {
        let ahead = self.shape.epochs_ahead(epoch, self.applied);
        if ahead >= self.shape.epoch_window() || !self.shape.is_valid_epoch(epoch) {
            return Err(ProtocolFault::Epoch(epoch.into()));
        }
        Ok(self.applied.wrapping_add(ahead))
    }

    /// Counts a write of that epoch that arrived over `path`. Returns true if a signal may be ready to apply.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the epoch is not live, or more writes arrived than its signal counts.
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

    /// Records a signal that has arrived.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the signal contradicts another one or the arrivals, or names an epoch that is not live.
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

    /// Handles a signal that was applied before. Its initiator has no acknowledgement, or lost the path before it got one.
    fn on_repeated(&mut self, signal: &SignalMessage) -> Result<SignalArrival, ProtocolFault> {
        let behind = self.shape.epochs_ahead(self.shape.wire_epoch(self.applied), signal.epoch.into());
        if behind > self.shape.epoch_window() || !self.shape.is_valid_epoch(signal.epoch) {
            return Err(ProtocolFault::Epoch(signal.epoch.into()));
        }
        self.tell_again();
        Ok(SignalArrival::Repeated)
    }

    /// Returns whether a signal is ready to apply.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.epochs[self.shape.ring_index(self.applied)].is_complete()
    }

    /// Returns the update of the next signal, if everything before it in its stream has arrived. The caller applies the update before it makes any
    /// other call on this stream.
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

    /// Records that the initiator requests an acknowledgement once epochs before that number are applied.
    ///
    /// # Errors
    /// [`ProtocolFault::Epoch`] if such an epoch cannot have been sent.
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

    /// Makes the last acknowledgement due again, because the message that carried it may be lost.
    pub fn tell_again(&mut self) {
        if !self.has_told {
            return;
        }
        self.told = self.applied.wrapping_sub(1);
        self.request_ack(self.applied);
    }

    /// Returns whether an applied epoch is not acknowledged yet.
    #[inline]
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.applied != self.told
    }

    /// Returns whether an acknowledgement is due as a message of its own.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        let owed = self.applied.wrapping_sub(self.told);
        let wanted = self.wanted.wrapping_sub(self.told) as i64;
        let is_wanted = wanted > 0 && wanted as u64 <= owed;
        owed >= self.shape.acknowledge_after() || is_wanted
    }

    /// Returns the lowest 48 bits of the number of applied epochs, and records them as acknowledged. The caller must be certain that the message that
    /// carries the number is accepted.
    #[inline]
    pub fn acknowledge_applied(&mut self) -> u64 {
        (self.told, self.has_told) = (self.applied, true);
        truncate_number(self.applied)
    }

    /// Returns the writes that were counted on a lost path, after its last arrival was taken in. Counts on the path start again at 0.
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

    /// Counts writes of a lost path that were written again. Returns true if a signal may be ready to apply.
    ///
    /// # Errors
    /// [`ProtocolFault`] if the epoch is not live, or then has more writes than its signal counts.
    pub fn make_up(&mut self, lost: &MakeUp) -> Result<bool, ProtocolFault> {
        let number = self.live_number(lost.epoch)?;
        let slot = &mut self.epochs[self.shape.ring_index(number)];
        slot.arrived = slot.arrived.wrapping_add(lost.count);
        slot.check_count()?;
        Ok(self.is_ready())
    }
}
