//! The delivery report in LINK_DOWN: the arrivals at a receiving end. The receiver makes it once no operation can arrive over the lost link any more;
//! the sender reads from it which of its operations arrived. The layout is in docs/wire.md, "Control frames", after the links.

use alloc::vec::Vec;

use crate::limits::{MAILBOX_SLOTS, TOKENS_MAX};
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::imm::BufferToken;

/// Number of eager messages from the frontier on that the report covers.
const AHEAD: usize = MAILBOX_SLOTS;

const _: () = assert!(AHEAD == 128, "two words of bits");

/// A buffer that is not full, and the parts of its message that have arrived (6 bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WaitingBuffer {
    /// The token of the buffer (bits 0-23 of 4 bytes).
    pub token: BufferToken,
    /// Bit i: stripe i has arrived (2 bytes).
    pub stripes: u16,
    /// Whether the fin record has arrived (bit 24 of the 4 bytes).
    pub fin: bool,
}

/// The part of a message that one operation carried.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessagePart {
    /// The whole message, or bytes that are announced by a fin record only.
    Bytes,
    /// The stripe with that index.
    Stripe(u8),
    /// The fin record.
    Fin,
}

/// The arrivals at a receiving end.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeliveryReport {
    /// The number of the next receive (4 bytes).
    pub next: u32,
    /// The number of the first eager message that has not arrived (4 bytes).
    pub frontier: u32,
    /// Bit i: eager message `frontier + i` has arrived out of order (16 bytes).
    pub ahead: u128,
    /// Buffers of outstanding receives that are not full; all other buffers of earlier receives are. At most [`TOKENS_MAX`], after their number (2
    /// bytes).
    pub waiting: Vec<WaitingBuffer>,
}

/// Why a report is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeliveryReportError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// It lists more buffers than [`TOKENS_MAX`].
    #[error("a delivery report lists {0} buffers, which exceeds the limit")]
    Buffers(u16),
}

impl DeliveryReport {
    /// Returns whether an eager message has arrived.
    #[must_use]
    pub fn has_eager(&self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.frontier);
        match ahead as usize {
            ahead if ahead < AHEAD => self.ahead >> ahead & 1 == 1,
            // Numbers wrap: those in the lower half are before the frontier.
            _ => ahead > u32::MAX / 2,
        }
    }

    /// Returns whether part of the message for a buffer of that receive has arrived.
    #[must_use]
    pub fn has_part(&self, receive: u32, token: BufferToken, part: MessagePart) -> bool {
        if receive.wrapping_sub(self.next) <= u32::MAX / 2 {
            // The receive was posted after the report was made, when no operation could arrive over the lost link any more.
            return false;
        }
        let Some(waiting) = self.waiting.iter().find(|waiting| waiting.token == token) else { return true };
        match part {
            MessagePart::Bytes => false,
            MessagePart::Stripe(index) => waiting.stripes >> (index & 15) & 1 == 1,
            MessagePart::Fin => waiting.fin,
        }
    }

    /// Appends the report's bytes.
    pub(crate) fn write_to(&self, out: &mut FieldWriter) {
        let count = self.waiting.len().min(TOKENS_MAX);
        out.u32(self.next).u32(self.frontier).u64(self.ahead as u64).u64((self.ahead >> 64) as u64);
        out.u16(count as u16);
        for waiting in &self.waiting[..count] {
            out.u32(waiting.token.to_bits() | u32::from(waiting.fin) << 24).u16(waiting.stripes);
        }
    }

    /// Parses a report.
    pub(crate) fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, DeliveryReportError> {
        let next = reader.u32()?;
        let frontier = reader.u32()?;
        let ahead = u128::from(reader.u64()?) | u128::from(reader.u64()?) << 64;
        let count = reader.u16()?;
        if usize::from(count) > TOKENS_MAX {
            return Err(DeliveryReportError::Buffers(count));
        }
        let mut waiting = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let bits = reader.u32()?;
            let stripes = reader.u16()?;
            waiting.push(WaitingBuffer {
                token: BufferToken::from_bits(bits),
                stripes,
                fin: bits >> 24 & 1 == 1,
            });
        }
        Ok(Self { next, frontier, ahead, waiting })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn numbers_near_the_wrap_are_distinguished() {
        let standing = DeliveryReport { frontier: u32::MAX, ahead: 0b110, ..DeliveryReport::default() };
        let told = [u32::MAX - 1, u32::MAX, 0, 1, 2, 200].map(|number| standing.has_eager(number));
        assert_eq!(told, [true, false, true, true, false, false]);
    }

    #[test]
    fn unlisted_buffer_is_full_unless_it_is_newer() {
        let known = BufferToken::new(3, 4);
        let other = BufferToken::new(4, 4);
        let waiting = vec![WaitingBuffer { token: known, stripes: 0b100, fin: true }];
        let standing = DeliveryReport { next: 1, waiting, ..DeliveryReport::default() };
        let has = |receive, token, part| standing.has_part(receive, token, part);
        assert!(has(0, other, MessagePart::Bytes));
        assert!(!has(1, other, MessagePart::Bytes), "receive 1 is not posted yet");
        assert!(has(u32::MAX, known, MessagePart::Stripe(2)));
        assert!(!has(u32::MAX, known, MessagePart::Stripe(1)));
        assert!(has(0, known, MessagePart::Fin));
        assert!(!has(0, known, MessagePart::Bytes));
    }

    #[test]
    fn longest_report_fits_a_frame() {
        let waiting =
            vec![WaitingBuffer { token: BufferToken::new(1, 1), stripes: 1, fin: false }; TOKENS_MAX + 5];
        let standing = DeliveryReport { waiting, ..DeliveryReport::default() };
        let mut out = FieldWriter::default();
        standing.write_to(&mut out);
        assert!(out.0.len() < 3500, "{}", out.0.len());
        let read =
            DeliveryReport::from_reader(&mut FieldReader(&out.0)).map(|standing| standing.waiting.len());
        assert_eq!(read, Ok(TOKENS_MAX));
    }
}
