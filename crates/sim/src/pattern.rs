//! Bytes that identify their message: every message, background and reused range has its own pattern, made from a
//! number.

use trunkline_mem::MemoryRange;

use crate::rng::mix_bits;

/// Returns the first `len` bytes of pattern number `seed`.
pub(crate) fn bytes(seed: u64, len: u64, out: &mut Vec<u8>) {
    out.clear();
    let start = mix_bits(seed);
    let words = len.div_ceil(8);
    for i in 0..words {
        // Multiplying by an odd number makes neighbouring words differ in most bytes.
        out.extend_from_slice(&(start ^ (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes());
    }
    out.truncate(len as usize);
}

/// Fills `len` bytes at `offset` with a pattern.
pub(crate) fn fill(memory: &MemoryRange, offset: u64, len: u64, seed: u64) {
    let mut wanted = Vec::new();
    bytes(seed, len, &mut wanted);
    // The caller's ranges are inside memory that it allocated.
    let _ = memory.write(offset, &wanted);
}

/// Returns the first byte that differs from the pattern, with the found and the expected value.
pub(crate) fn first_mismatch(
    memory: &MemoryRange,
    offset: u64,
    len: u64,
    seed: u64,
) -> Option<(u64, u8, u8)> {
    mismatch_after(memory, offset, 0, len, seed)
}

/// As [`first_mismatch`], for bytes `from..len` of a pattern that starts at `offset`.
pub(crate) fn mismatch_after(
    memory: &MemoryRange,
    offset: u64,
    from: u64,
    len: u64,
    seed: u64,
) -> Option<(u64, u8, u8)> {
    let mut wanted = Vec::new();
    let mut found = vec![0; len as usize];
    bytes(seed, len, &mut wanted);
    if memory.read(offset, &mut found).is_err() {
        return Some((0, 0, 0));
    }
    let pairs = found.iter().zip(&wanted).enumerate().skip(from as usize);
    pairs.filter(|(_, (found, wanted))| found != wanted).map(|(at, (f, w))| (at as u64, *f, *w)).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_mismatch_finds_the_first_wrong_byte() {
        let memory = MemoryRange::heap(100);
        fill(&memory, 3, 50, 9);
        assert_eq!(first_mismatch(&memory, 3, 50, 9), None);
        let mut byte = [0];
        memory.read(3 + 17, &mut byte).unwrap();
        memory.write(3 + 17, &[!byte[0]]).unwrap();
        assert_eq!(first_mismatch(&memory, 3, 50, 9), Some((17, !byte[0], byte[0])));
        assert_eq!(mismatch_after(&memory, 3, 18, 50, 9), None);
        assert!(first_mismatch(&memory, 3, 50, 8).is_some());
    }
}
