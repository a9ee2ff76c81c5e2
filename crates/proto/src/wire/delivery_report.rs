//! What a receiving end has, told in LINK_DOWN: after it, whoever lost a link knows which of the operations it posted
//! there arrived. Made by the receiver once nothing more can arrive over that link, read by the sender.

use alloc::vec::Vec;

use crate::limits::{MAILBOX_SLOTS, TOKENS_MAX};
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::imm::BufferToken;

/// Eager numbers after the frontier that may have arrived.
const AHEAD: usize = MAILBOX_SLOTS;

const _: () = assert!(AHEAD == 128, "two words of bits");

/// A buffer that waits, and what has come for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WaitingBuffer {
    /// The buffer.
    pub token: BufferToken,
    /// Bit i: stripe i has arrived.
    pub stripes: u16,
    /// The fin record has arrived.
    pub fin: bool,
}

/// Part of a message, as one operation carried it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessagePart {
    /// All of it, or bytes that are announced by a fin record alone.
    Bytes,
    /// The stripe of that index.
    Stripe(u8),
    /// The fin record.
    Fin,
}

/// What has arrived at a receiving end.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeliveryReport {
    /// The number the next receive will have.
    pub next: u32,
    /// The first eager message that has not arrived.
    pub frontier: u32,
    /// Bit i: eager message `frontier + i` has arrived all the same.
    pub ahead: u128,
    /// Buffers of earlier receives that still wait. The others have all they need.
    pub waiting: Vec<WaitingBuffer>,
}

/// A standing could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeliveryReportError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// It lists more buffers than there can be.
    #[error("{0} buffers wait")]
    Buffers(u16),
}

impl DeliveryReport {
    /// Whether an eager message has arrived.
    #[must_use]
    pub fn has_eager(&self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.frontier);
        match ahead as usize {
            ahead if ahead < AHEAD => self.ahead >> ahead & 1 == 1,
            // Numbers wrap: the nearer half lies behind.
            _ => ahead > u32::MAX / 2,
        }
    }

    /// Whether part of the message for a buffer of that receive has arrived.
    #[must_use]
    pub fn has_part(&self, receive: u32, token: BufferToken, part: MessagePart) -> bool {
        if receive.wrapping_sub(self.next) <= u32::MAX / 2 {
            // It was posted after this was told, when nothing could arrive over the lost link any more.
            return false;
        }
        let Some(waiting) = self.waiting.iter().find(|waiting| waiting.token == token) else { return true };
        match part {
            MessagePart::Bytes => false,
            MessagePart::Stripe(index) => waiting.stripes >> (index & 15) & 1 == 1,
            MessagePart::Fin => waiting.fin,
        }
    }

    /// Appends its bytes.
    pub(crate) fn write_to(&self, out: &mut FieldWriter) {
        let count = self.waiting.len().min(TOKENS_MAX);
        out.u32(self.next).u32(self.frontier).u64(self.ahead as u64).u64((self.ahead >> 64) as u64);
        out.u16(count as u16);
        for waiting in &self.waiting[..count] {
            out.u32(waiting.token.to_bits() | u32::from(waiting.fin) << 24).u16(waiting.stripes);
        }
    }

    /// Reads one.
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
    fn numbers_near_the_wrap_are_told_apart() {
        let standing = DeliveryReport { frontier: u32::MAX, ahead: 0b110, ..DeliveryReport::default() };
        let told = [u32::MAX - 1, u32::MAX, 0, 1, 2, 200].map(|number| standing.has_eager(number));
        assert_eq!(told, [true, false, true, true, false, false]);
    }

    #[test]
    fn a_buffer_that_is_not_listed_is_full_unless_it_is_newer() {
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
    fn the_longest_fits_a_frame() {
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
