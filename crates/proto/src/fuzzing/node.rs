//! Fuzzing of the page of memory that is shared inside a node.

use alloc::vec;
use alloc::vec::Vec;

use super::variants;
use crate::id::ProcessId;
use crate::wire::status::Number;
use crate::wire::status::node::{EXPORTS, Export, NEIGHBOURS, Neighbour, Owner, Page, Stands};

pub(super) fn page(bytes: &[u8]) {
    let Ok(parsed) = Page::from_bytes(bytes) else { return };
    assert!(parsed.neighbours.len() <= NEIGHBOURS && parsed.exports.len() <= EXPORTS);
    // Whoever holds an export can be looked up.
    for export in &parsed.exports {
        assert!(export.holding().all(|at| at < parsed.neighbours.len()));
    }
    assert_eq!(Page::from_bytes(&parsed.to_bytes()).as_ref(), Ok(&parsed));
}

pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    let owner = Owner {
        process: ProcessId([0x33; 16]),
        pid: 4242,
        rank: Some(0),
        made_unix: 1_700_000_000_000_000_000,
        made: 1 << 40,
    };
    let neighbour =
        Neighbour { pid: 4243, rank: Some(1), mappings: 3, mapped_bytes: 3 << 20, ..Neighbour::default() };
    let gone = Neighbour { gone: true, rank: None, ..neighbour };
    let export = |stands, held_by: u64| Export {
        stands,
        passing: held_by == 0,
        device: 1,
        base: 0x7f00_0000_0000,
        len: 1 << 21,
        allocation: 7,
        pins: 1,
        holders: held_by.count_ones() + 1,
        used: 1 << 41,
        held_by,
    };
    let page = |neighbours: Vec<Neighbour>, exports| {
        let numbers = core::array::from_fn(|at| at as u64);
        debug_assert!(numbers.len() == Number::LEN);
        Page { owner, written: 1 << 42, numbers, neighbours, exports }.to_bytes()
    };
    let all = [Stands::Exporting, Stands::Live, Stands::Retiring, Stands::Leaving]
        .map(|stands| export(stands, 0b11));
    variants(&[
        page(vec![neighbour, gone], all.to_vec()),
        page(vec![neighbour; NEIGHBOURS], vec![export(Stands::Live, u64::MAX); EXPORTS]),
    ])
}
