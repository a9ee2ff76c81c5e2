//! The eager messages of a comm that may be in flight where messages overtake each other. The sender keeps the window and sends
//! no message eagerly that is too far ahead of the oldest one. It has no knowledge of tags or records.

use crate::limits::RECVS_MAX;

/// Knows the oldest eager message that the receiver may still have to place.
///
/// The receiver does not acknowledge eager messages, but it starts receive `n` only after receive `n - 64` is done. So the
/// record of receive `n` proves that the messages of receive `n - 64` and of earlier receives have been placed:
///
/// ```text
///   eager numbers   ...  placed  |  matched, perhaps under way  |  unmatched  |  next
///                                ^ first                        ^ floor of the latest receive
/// ```
#[derive(Debug)]
pub struct EagerWindow {
    /// Messages before this number have been placed.
    first: u32,
    /// For each of the latest receives, by its number modulo [`RECVS_MAX`]: eager messages before this number belong to
    /// it or to earlier receives.
    floors: [u32; RECVS_MAX],
}

impl EagerWindow {
    /// Returns the window before the first message, which will have that number.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self { first: number, floors: [number; RECVS_MAX] }
    }

    /// The oldest message that may not have been placed, or else the number of the next one.
    #[inline]
    #[must_use]
    pub fn first_number(&self) -> u32 {
        self.first
    }

    /// Records that all records of a receive have been read: eager messages before `floor` belong to it or to earlier
    /// receives.
    #[inline]
    pub fn record_receive(&mut self, number: u32, floor: u32) {
        self.first = core::mem::replace(&mut self.floors[number as usize % RECVS_MAX], floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_ends_64_receives_after_the_oldest_message() {
        for start in [0, u32::MAX - 70] {
            let mut window = EagerWindow::new(start);
            // Receive n is filled by message n, and the two numbers wrap at different times.
            for n in 0..1_000_u32 {
                window.record_receive(n.wrapping_sub(40), start.wrapping_add(n + 1));
                assert_eq!(window.first_number(), start.wrapping_add((n + 1).saturating_sub(64)), "{n}");
            }
        }
    }

    #[test]
    fn messages_without_a_receive_stay_in_the_window() {
        let mut window = EagerWindow::new(5);
        (0..200).for_each(|n| window.record_receive(n, 5));
        (200..264).for_each(|n| window.record_receive(n, 100));
        assert_eq!(window.first_number(), 5, "the receive of message 5 may be outstanding");
        window.record_receive(264, 100);
        assert_eq!(window.first_number(), 100);
    }
}
