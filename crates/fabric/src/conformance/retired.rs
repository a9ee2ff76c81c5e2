//! Cases: peers' writes to a region that was retired complete, and touch no memory.

use super::pair::{ConformanceSetup, PolledCompletions, TestRegion, default_config};
use crate::{AccessRights, CompletionKind, Op, OpSource, OpStatus, Rail};

const SIZE: usize = 1 << 20;
/// Sizes that are sent inline, staged and otherwise.
const LENS: [u64; 6] = [1, 8, 4096, 20_000, 256 << 10, 1 << 20];

/// Writes to a retired region complete at both ends and touch nothing; the link carries on.
pub fn writes_to_retired_regions_are_dropped<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.b.caps().retires || !ends.a.caps().write_data {
        return;
    }
    let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
    from.fill_pattern(1);
    let other = TestRegion::new(&ends.b, SIZE, AccessRights::ALL);
    ends.lend_receives(&from, &other);
    for len in LENS {
        let into = TestRegion::new(&ends.b, SIZE, AccessRights::ALL);
        into.retire();
        for (wr_id, to) in [(1, into.remote_at(0)), (2, other.remote_at(0)), (3, into.remote_at(0))] {
            let source = OpSource::Region(from.extent_at(0, len));
            ends.on_a(wr_id, Op::Write { from: source, to, imm: Some(wr_id as u32) });
        }
        let seen = ends.expect_completions(3, 3);
        assert!(seen.a.iter().all(|one| one.status == OpStatus::Ok), "{len} bytes: {:?}", seen.a);
        let written: Vec<_> = seen.b.iter().map(|one| (one.done, one.status)).collect();
        assert_eq!(written, [(CompletionKind::Written, OpStatus::Ok); 3], "{len} bytes");
        let mut told: Vec<_> = seen.b.iter().filter_map(|one| one.imm).collect();
        told.sort_unstable();
        assert_eq!(told, [1, 2, 3]);
        into.assert_untouched();
        if ends.b.caps().needs_flush {
            ends.on_b(4, Op::Flush);
            ends.expect_completions(0, 1);
        }
        into.assert_untouched();
        assert!(other.read_bytes(0, len as usize) == from.read_bytes(0, len as usize), "{len} bytes differ");
    }
}

/// A region that is retired while writes are in transit does not change from then on; all writes complete.
pub fn regions_can_be_retired_under_writes<S: ConformanceSetup>(setup: &S) {
    for (len, polls) in LENS.into_iter().flat_map(|len| [0, 1, 3, 10].map(|polls| (len, polls))) {
        let mut ends = setup.open_pair(&default_config());
        if !ends.b.caps().retires || !ends.a.caps().write_data {
            return;
        }
        let from = TestRegion::new(&ends.a, SIZE, AccessRights::LOCAL);
        let into = TestRegion::new(&ends.b, SIZE, AccessRights::ALL);
        from.fill_pattern(3);
        ends.lend_receives(&from, &into);
        let mut seen = PolledCompletions::default();
        for round in 0..8_u32 {
            let source = OpSource::Region(from.extent_at(0, len));
            let op = Op::Write { from: source, to: into.remote_at(0), imm: Some(round) };
            ends.post_a(round.into(), op, true, &mut seen);
        }
        for _ in 0..polls {
            ends.poll(&mut seen);
        }
        into.retire();
        // The memory has a new use now.
        into.fill_pattern(9);
        let rest = ends.expect_completions(8 - seen.a.len(), 8 - seen.b.len());
        let all = || seen.a.iter().chain(&rest.a).chain(&seen.b).chain(&rest.b);
        assert!(all().all(|one| one.status == OpStatus::Ok), "{len} bytes, {polls} polls");
        let clean =
            into.read_bytes(0, SIZE).iter().zip(0..).all(|(&byte, at)| byte == super::pattern_byte(9, at));
        assert!(clean, "{len} bytes, {polls} polls: a byte landed late");
    }
}

/// Only writes that were permitted before are accepted on a retired region; all other operations on it fail.
pub fn retired_regions_are_only_written<S: ConformanceSetup>(setup: &S) {
    for (readable, case) in [(true, "a read"), (false, "a write without the right")] {
        let mut ends = setup.open_pair(&default_config());
        if !ends.b.caps().retires {
            return;
        }
        let here = TestRegion::new(&ends.a, 64, AccessRights::LOCAL);
        let access = AccessRights { write: readable, read: true, atomic: false };
        let there = TestRegion::new(&ends.b, 64, access);
        there.retire();
        let op = if readable {
            Op::Read { into: here.extent_at(0, 64), from: there.remote_at(0) }
        } else {
            Op::Write { from: OpSource::Region(here.extent_at(0, 64)), to: there.remote_at(0), imm: None }
        };
        ends.on_a(5, op);
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::RemoteAccess, "{case}");
    }
}
