//! The required results, kept apart from the state machines: every write and signal in the order of its program, and one clock for all processes.

use std::collections::BTreeMap;
use std::vec::Vec;

use crate::wire::rma::signal::SignalMessage;

/// A write of a put, or of a put with signal.
#[derive(Debug, Default)]
struct Piece {
    /// When its bytes were placed.
    placed: Option<u64>,
    /// When the target counted it, if it is counted.
    noticed: Option<u64>,
    /// The immediate it carried.
    imm: Option<u32>,
    /// The first signal after it.
    signal: usize,
    /// It was lost with its path, and written again.
    again: bool,
    /// Its initiator knows that it has completed.
    done: bool,
}

/// One stream towards one target.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pieces: Vec<Piece>,
    /// For each signal: how many pieces precede it, and which of them are its own.
    signals: Vec<(usize, core::ops::Range<usize>)>,
    applied: usize,
    acknowledged: u64,
    /// Writes and messages in flight, by the full number of their epoch.
    flying: BTreeMap<u64, u32>,
}

impl Stream {
    /// Records a write that begins. The wire carries `bits` bits of its epoch's number.
    pub(super) fn write(&mut self, imm: Option<u32>, bits: u32) -> usize {
        let signal = self.signals.len();
        self.pieces.push(Piece { imm, signal, ..Piece::default() });
        if let Some(imm) = imm {
            self.fly(signal as u64, imm as u16, bits);
        }
        self.pieces.len() - 1
    }

    /// Records a write or message of an epoch that is now in flight. No other epoch in flight may have the same bits on the wire (I4).
    fn fly(&mut self, number: u64, wire: u16, bits: u32) {
        let mask = (1 << bits) - 1;
        assert_eq!(u64::from(wire), number & mask, "I9: the two ends count differently");
        for (&other, &flying) in &self.flying {
            let alias = other != number && other & mask == number & mask && flying > 0;
            assert!(!alias, "I4: epochs {other} and {number} are in flight at once");
        }
        *self.flying.entry(number).or_default() += 1;
    }

    fn land(&mut self, number: u64) {
        *self.flying.get_mut(&number).expect("the epoch is in flight") -= 1;
        self.flying.retain(|_, flying| *flying > 0);
    }

    /// Records a signal that ends its epoch, with these writes of its own.
    pub(super) fn seal(&mut self, signal: &SignalMessage, own: core::ops::Range<usize>, bits: u32) {
        let number = self.signals.len() as u64;
        for piece in &self.pieces[own.clone()] {
            let epoch = piece.imm.map(|imm| imm as u16);
            assert!(
                epoch.is_none_or(|epoch| epoch == signal.epoch),
                "I3: a write of a signal carries another epoch"
            );
            assert_eq!(piece.signal as u64, number, "I3: a signal was sent between the writes of another");
        }
        self.signals.push((self.pieces.len(), own));
        self.fly(number, signal.epoch, bits);
    }

    pub(super) fn send_again(&mut self, number: u64, wire: u16, bits: u32) {
        self.fly(number, wire, bits);
    }

    pub(super) fn placed(&mut self, piece: usize, now: u64) {
        let (applied, one) = (self.applied, &mut self.pieces[piece]);
        assert!(!one.done, "I10: a write landed after its completion");
        assert!(one.signal >= applied, "I10: a write landed after a later signal was applied");
        one.placed.get_or_insert(now);
    }

    pub(super) fn done(&mut self, piece: usize) {
        self.pieces[piece].done = true;
    }

    pub(super) fn noticed(&mut self, piece: usize, now: u64) {
        let one = &mut self.pieces[piece];
        assert_eq!(one.noticed.replace(now), None, "I5: a write was counted twice");
        let number = one.signal as u64;
        self.land(number);
    }

    /// Records a counted write that the target will never count by its arrival.
    pub(super) fn lost(&mut self, piece: usize) {
        self.pieces[piece].again = true;
        let number = self.pieces[piece].signal as u64;
        self.land(number);
    }

    pub(super) fn message_gone(&mut self, number: u64) {
        self.land(number);
    }

    /// Checks a signal that the target applies as number `said` of its stream.
    pub(super) fn apply(&mut self, said: u64, now: u64) {
        assert_eq!(said, self.applied as u64, "I2: a signal was applied out of order");
        let (before, _) = self.signals[self.applied];
        for (at, piece) in self.pieces[..before].iter().enumerate() {
            assert!(
                piece.placed.is_some_and(|then| then <= now),
                "I1: write {at} was not placed before signal {said}"
            );
            let known = piece.imm.is_none() || piece.again || piece.noticed.is_some();
            assert!(known, "I1: write {at} was not counted before signal {said}");
        }
        self.applied += 1;
    }

    pub(super) fn acknowledge(&mut self, news: u64) {
        self.acknowledged += news;
        assert!(
            self.acknowledged <= self.applied as u64,
            "I5: a signal was acknowledged before it was applied"
        );
    }

    /// Checks a quiet of the stream that returns.
    pub(super) fn quiet(&self) {
        assert_eq!(self.applied, self.signals.len(), "a quiet returned before its signals were applied");
        assert!(
            self.pieces.iter().all(|piece| piece.placed.is_some()),
            "a quiet returned before its writes were placed"
        );
    }

    /// Checks the end of a run. Returns how many writes the target counted, and how many signals it applied.
    pub(super) fn end(&self) -> (u64, u64) {
        self.quiet();
        assert_eq!(self.acknowledged, self.applied as u64, "I5: not every epoch is acknowledged once");
        assert!(self.flying.is_empty());
        let counted = self.pieces.iter().filter(|piece| piece.noticed.is_some()).count();
        (counted as u64, self.applied as u64)
    }

    pub(super) fn writes(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied as u64
    }
}
