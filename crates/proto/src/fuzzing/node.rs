//! Fuzzing of the page of memory that is shared inside a node.

use alloc::vec;
use alloc::vec::Vec;

use super::make_variants;
use crate::id::ProcessId;
use crate::wire::status::Number;
use crate::wire::status::node::{
    EXPORTS, ExportStatus, NEIGHBOURS, NeighbourRecord, PageExport, PageOwner, SharedMemoryPage,
};

pub(super) fn check_page(bytes: &[u8]) {
    let Ok(parsed) = SharedMemoryPage::from_bytes(bytes) else { return };
    assert!(parsed.neighbours.len() <= NEIGHBOURS && parsed.exports.len() <= EXPORTS);
    // Every holder of an export has a record.
    for export in &parsed.exports {
        assert!(export.holder_records().all(|at| at < parsed.neighbours.len()));
    }
    assert_eq!(SharedMemoryPage::from_bytes(&parsed.to_bytes()).as_ref(), Ok(&parsed));
}

pub(super) fn page_seeds() -> Vec<Vec<u8>> {
    let owner = PageOwner {
        process: ProcessId([0x33; 16]),
        pid: 4242,
        rank: Some(0),
        made_unix: 1_700_000_000_000_000_000,
        made: 1 << 40,
    };
    let neighbour = NeighbourRecord {
        pid: 4243,
        rank: Some(1),
        mappings: 3,
        mapped_bytes: 3 << 20,
        ..NeighbourRecord::default()
    };
    let gone = NeighbourRecord { gone: true, rank: None, ..neighbour };
    let export = |stands, held_by: u64| PageExport {
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
    let page = |neighbours: Vec<NeighbourRecord>, exports| {
        let numbers = core::array::from_fn(|at| at as u64);
        debug_assert!(numbers.len() == Number::LEN);
        SharedMemoryPage { owner, written: 1 << 42, numbers, neighbours, exports }.to_bytes()
    };
    let all = [ExportStatus::Exporting, ExportStatus::Live, ExportStatus::Retiring, ExportStatus::Leaving]
        .map(|stands| export(stands, 0b11));
    make_variants(&[
        page(vec![neighbour, gone], all.to_vec()),
        page(vec![neighbour; NEIGHBOURS], vec![export(ExportStatus::Live, u64::MAX); EXPORTS]),
    ])
}
