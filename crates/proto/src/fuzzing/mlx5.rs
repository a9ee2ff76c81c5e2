//! Fuzzing of work entries and completions of NVIDIA's NICs.

use alloc::vec;
use alloc::vec::Vec;

use super::wire::pad_input;
use crate::wire::mlx5::{
    BYTES, CqeSyndrome, InlineSegment, LocalSegment, Mlx5Completion, Mlx5Entry, Mlx5Fence, Mlx5Work,
    RemoteSegment,
};

/// Input: an entry, then a completion. A parsed value encodes to the same bytes, except those that the NIC does not read.
pub(super) fn check_queues(bytes: &[u8]) {
    let both = pad_input::<{ 2 * BYTES }>(bytes);
    let half = |at: usize| core::array::from_fn(|n| both[at + n]);
    if let Ok(entry) = Mlx5Entry::from_bytes(&half(0)) {
        assert_eq!(Mlx5Entry::from_bytes(&entry.to_bytes()), Ok(entry));
        let used = 16 * usize::from(both[7] & 0x3f).min(4);
        let inline = matches!(entry.work, Mlx5Work::WriteInline(..));
        assert!(inline || entry.to_bytes()[..used] == both[..used]);
    }
    for lap in [false, true] {
        if let Ok(Some(completion)) = Mlx5Completion::from_bytes(&half(BYTES), lap) {
            assert_eq!(Mlx5Completion::from_bytes(&completion.to_bytes(lap), lap), Ok(Some(completion)));
            assert_eq!(Mlx5Completion::from_bytes(&completion.to_bytes(lap), !lap), Ok(None));
        }
    }
}

pub(super) fn queue_seeds() -> Vec<Vec<u8>> {
    let there = RemoteSegment { addr: 0x7f00_0000_1000, key: 0x1234 };
    let here = LocalSegment::new(0x10, 0x55, 4096);
    let old = LocalSegment::of_word(0, 0x66);
    let mut works = vec![
        Mlx5Work::Nop,
        Mlx5Work::Write(there, here),
        Mlx5Work::Write(there, None),
        Mlx5Work::FetchAdd { word: there, add: 1, old },
        Mlx5Work::CompareSwap { word: there, compare: 1, swap: 2, old },
        Mlx5Work::Wait { cq: 7, index: 0xffff_ffff },
        Mlx5Work::Dump(old),
        Mlx5Work::Read(there, old),
    ];
    works.extend(
        [1, 12, 13, 28]
            .into_iter()
            .filter_map(|len| Some(Mlx5Work::WriteInline(there, InlineSegment::new(&[9; 28][..len])?))),
    );
    let seed = |(at, work): (usize, Mlx5Work)| {
        let fence = if at % 2 == 0 { Mlx5Fence::None } else { Mlx5Fence::ReadsAndAtomics };
        let entry = Mlx5Entry { index: 0xfffe, qp: 0x12, fence, signalled: at % 3 > 0, work };
        let failed = (at % 2 == 0).then_some((CqeSyndrome::from_number(at as u8), 0x89));
        let (bytes, time) = if failed.is_some() { (0, 0) } else { (8, 1 << 40) };
        let completion = Mlx5Completion { qp: 0x12, index: 0xfffe, bytes, time, failed };
        [entry.to_bytes(), completion.to_bytes(at % 4 < 2)].concat()
    };
    works.into_iter().enumerate().map(seed).collect()
}
