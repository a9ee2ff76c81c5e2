//! The pattern of put data: bytes that depend on their offset, and the check of received ones. Works in pieces, so that
//! it allocates little memory.

use trunkline_mem::MemoryRange;

/// Bytes of a piece.
const PIECE: usize = 1 << 20;

/// The bytes of the word with index `at`. Different indices give different words, also a GiB apart.
const fn pattern_word(at: u64, seed: u64) -> [u8; 8] {
    (at ^ (seed << 56)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn fill_piece(begin: usize, len: usize, seed: u64, into: &mut Vec<u8>) {
    into.clear();
    let first = begin as u64 / 8;
    into.extend((first..first + len.div_ceil(8) as u64).flat_map(|at| pattern_word(at, seed)));
    into.truncate(len);
}

fn piece_ranges(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(PIECE).map(move |begin| (begin, PIECE.min(bytes - begin)))
}

/// Fills the source with the pattern, and clears the target.
pub(super) fn fill_source([source, target]: [&MemoryRange; 2], bytes: usize, seed: u64) {
    let mut data = Vec::with_capacity(PIECE);
    let zeros = vec![0; PIECE.min(bytes)];
    for (begin, len) in piece_ranges(bytes) {
        fill_piece(begin, len, seed, &mut data);
        // The memory is longer than the largest size.
        let _ = source.write(begin as u64, &data);
        let _ = target.write(begin as u64, zeros.get(..len).unwrap_or_default());
    }
}

/// Counts the wrong bytes at the target.
pub(super) fn count_wrong(target: &MemoryRange, bytes: usize, seed: u64) -> u64 {
    let mut data = Vec::with_capacity(PIECE);
    let mut there = vec![0; PIECE.min(bytes)];
    let mut wrong = 0;
    for (begin, len) in piece_ranges(bytes) {
        fill_piece(begin, len, seed, &mut data);
        let there = there.get_mut(..len).unwrap_or_default();
        wrong += match target.read(begin as u64, there) {
            Ok(()) if *there == *data => 0,
            Ok(()) => there.iter().zip(&data).filter(|(found, expected)| found != expected).count() as u64,
            Err(_) => len as u64,
        };
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_wrong_checks_every_byte() {
        let bytes = 2 * PIECE + 13;
        let [source, target] = [0, 1].map(|_| MemoryRange::heap(bytes));
        fill_source([&source, &target], bytes, 3);
        assert_eq!(count_wrong(&source, bytes, 3), 0);
        assert!(count_wrong(&target, bytes, 3) > bytes as u64 / 2, "the target was cleared");
        target.copy_from(0, &source, 0, bytes as u64).unwrap();
        assert_eq!(count_wrong(&target, bytes, 3), 0);
        for at in [0, PIECE as u64 - 1, PIECE as u64, bytes as u64 - 1] {
            let mut byte = [0];
            target.read(at, &mut byte).unwrap();
            target.write(at, &[!byte[0]]).unwrap();
            assert_eq!(count_wrong(&target, bytes, 3), 1, "{at}");
            target.write(at, &byte).unwrap();
        }
        assert!(count_wrong(&target, bytes, 4) > 0, "another seed has other bytes");
        // A word from a GiB further on must count as wrong here.
        let far = |at: u64| pattern_word(at + (1 << 27), 3) == pattern_word(at, 3);
        assert!(!(0..1000).any(far));
    }
}
