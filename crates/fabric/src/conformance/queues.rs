//! Cases: queues, their limits, and the life of links.

use super::pair::{ConformanceSetup, LIMIT, PolledCompletions, TestRegion, default_config, zeroed_bytes};
use crate::{
    AccessRights, CompletionKind, DeregisterError, LinkControl, Op, OpSource, OpStatus, PostError, Rail,
    RailConfig, RegionPurpose,
};

/// The time that a flushed operation may take to a peer on the same host, whose processors may be busy.
const ARRIVAL: std::time::Duration = std::time::Duration::from_millis(500);

/// A send without a posted receive waits, and the operations behind it wait too.
pub fn sends_wait_for_receives<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().sends_wait {
        return;
    }
    let from = TestRegion::new(&ends.a, 100_000, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, 100_000, AccessRights::READ_WRITE);
    from.fill_pattern(1);
    ends.on_a(1, Op::Send { head: b"hello", body: OpSource::Inline(&[]), imm: Some(1) });
    ends.on_a(2, Op::Send { head: &[], body: OpSource::Region(from.extent_at(0, 100_000)), imm: Some(2) });
    ends.on_a(3, Op::Nop);
    ends.expect_completions(0, 0);
    // The other direction continues.
    let back = TestRegion::new(&ends.b, 8, AccessRights::LOCAL);
    let here = TestRegion::new(&ends.a, 8, AccessRights::READ_WRITE);
    ends.on_b(9, Op::Read { into: back.extent_at(0, 8), from: here.remote_at(0) });
    assert_eq!(ends.expect_completions(0, 1).b[0].status, OpStatus::Ok);
    ends.on_b(10, Op::Recv { into: into.extent_at(0, 5) });
    let seen = ends.expect_completions(1, 1);
    assert_eq!((seen.a[0].wr_id, seen.b[0].wr_id, seen.b[0].imm), (1, 10, Some(1)));
    ends.on_b(11, Op::Recv { into: into.extent_at(0, 100_000) });
    let seen = ends.expect_completions(2, 1);
    assert_eq!((seen.a[0].wr_id, seen.a[1].wr_id, seen.b[0].imm), (2, 3, Some(2)));
    assert!(into.read_bytes(0, 100_000) == from.read_bytes(0, 100_000));
}

/// The number of operations that can be posted equals the number of credits; a poll after progress returns the
/// credits.
pub fn credits_allow_exactly_that_many_posts<S: ConformanceSetup>(setup: &S) {
    let config = RailConfig { depth: 10, ..default_config() };
    let mut ends = setup.open_pair(&config);
    let into = TestRegion::new(&ends.b, 4096, AccessRights::WRITE);
    let from = TestRegion::new(&ends.a, 2 << 20, AccessRights::LOCAL);
    let target = TestRegion::new(&ends.b, 2 << 20, AccessRights::WRITE);
    for signalled in [true, false] {
        for round in 0..20u64 {
            let credits = ends.a.post_credits(ends.at_a);
            assert!(credits <= 10 && credits > 0);
            for wr_id in 0..u64::from(credits) {
                let small = Op::Write { from: OpSource::Inline(&[1]), to: into.remote_at(wr_id), imm: None };
                let source = OpSource::Region(from.extent_at(0, 2 << 20));
                let large = Op::Write { from: source, to: target.remote_at(0), imm: None };
                let op = if wr_id % 4 == round % 4 { large } else { small };
                ends.a
                    .post(ends.at_a, wr_id, op, signalled)
                    .unwrap_or_else(|e| panic!("credit {wr_id}: {e}"));
            }
            // Operations that are copied when posted take none.
            assert!(ends.a.post_credits(ends.at_a) == 0 || !signalled || !ends.a.caps().arrives);
            let more = Op::Write { from: OpSource::Inline(&[1]), to: into.remote_at(0), imm: None };
            let posted = ends.a.post(ends.at_a, 99, more, signalled);
            // An unsignalled operation may have been executed meanwhile.
            let waits = signalled && ends.a.caps().arrives;
            assert!(posted == Err(PostError::Busy) || (!waits && posted == Ok(())));
            let on_a = if signalled { credits as usize + usize::from(posted.is_ok()) } else { 0 };
            let mut seen = ends.poll_until(|seen| seen.a.len() >= on_a);
            let started = std::time::Instant::now();
            while ends.a.post_credits(ends.at_a) < 6 {
                ends.poll(&mut seen);
                assert!(started.elapsed().as_secs() < 20, "credits are not returned");
            }
            assert_eq!((seen.a.len(), seen.b.len()), (on_a, 0));
        }
    }
    // Operations without a completion may be outstanding, and use memory that is freed with this case.
    ends.fail_ends();
}

/// How a link's memory is released.
#[derive(Clone, Copy, Debug)]
enum MemoryReturn {
    /// The link fails, and the region is deregistered.
    FailsAndDeregisters,
    /// It fails and is quiet; the region stays.
    FailsAndIsQuiet,
    /// It is destroyed, and the region is deregistered.
    IsDestroyed,
}

/// Released memory of a failed or destroyed link is no longer in use, so bytes that are stored there stay unchanged.
pub fn released_memory_is_no_longer_used<S: ConformanceSetup>(setup: &S) {
    const LEN: usize = 1 << 20;
    let ways = [MemoryReturn::FailsAndDeregisters, MemoryReturn::FailsAndIsQuiet, MemoryReturn::IsDestroyed];
    for (back, polls) in ways.into_iter().flat_map(|back| [(back, 0), (back, 3)]) {
        let mut ends = setup.open_pair(&default_config());
        let from = TestRegion::with_purpose(&ends.a, LEN, AccessRights::LOCAL, RegionPurpose::Data);
        let into = TestRegion::new(&ends.b, LEN, AccessRights::WRITE);
        for wr_id in 0..4 {
            let source = OpSource::Region(from.extent_at(0, LEN as u64));
            ends.on_a(wr_id, Op::Write { from: source, to: into.remote_at(0), imm: None });
        }
        let mut seen = PolledCompletions::default();
        ends.a.flush();
        (0..polls).for_each(|_| ends.poll(&mut seen));
        match back {
            MemoryReturn::IsDestroyed => ends.a.destroy_link(ends.at_a),
            MemoryReturn::FailsAndDeregisters | MemoryReturn::FailsAndIsQuiet => ends.a.fail_link(ends.at_a),
        }
        let started = std::time::Instant::now();
        loop {
            let given = match back {
                MemoryReturn::FailsAndIsQuiet => ends.a.poll_link_quiet(ends.at_a),
                MemoryReturn::FailsAndDeregisters | MemoryReturn::IsDestroyed => {
                    match from.try_deregister() {
                        Ok(()) => true,
                        Err(error) => {
                            assert_eq!(error, DeregisterError::Draining);
                            false
                        }
                    }
                }
            };
            if given {
                break;
            }
            assert!(started.elapsed() < LIMIT, "{back:?}: the memory is never released");
            ends.poll(&mut seen);
        }
        let mut bytes = zeroed_bytes(LEN);
        bytes.fill(0xdd);
        from.memory.write(0, &bytes).unwrap_or_else(|e| panic!("write: {e}"));
        ends.settle(&mut seen);
        assert!(!into.read_bytes(0, LEN).contains(&0xdd), "{back:?}, {polls} polls");
    }
}

/// A queue of receives holds exactly the requested number.
pub fn receives_are_bounded<S: ConformanceSetup>(setup: &S) {
    let config = RailConfig { recv_depth: 5, ..default_config() };
    let mut ends = setup.open_pair(&config);
    let into = TestRegion::new(&ends.b, 64, AccessRights::LOCAL);
    for round in 0..50 {
        let op = Op::Recv { into: into.extent_at(0, 64) };
        let missing = if round == 0 { 5 } else { 2 };
        for wr_id in 0..missing {
            ends.on_b(wr_id, op);
        }
        assert_eq!(ends.b.post(ends.at_b, 9, op, true), Err(PostError::Busy));
        for wr_id in 0..2 {
            ends.on_a(wr_id, Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None });
        }
        ends.expect_completions(2, 2);
    }
}

/// A peer's operations before it destroyed its link arrive; then the link is flushed.
pub fn destroyed_links_flush_the_peer<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().ends_are_told || !ends.a.caps().write_data {
        return;
    }
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    ends.on_b(50, Op::Recv { into: into.extent_at(0, 8) });
    ends.on_b(51, Op::Recv { into: into.extent_at(0, 8) });
    // Some peers must learn of receives before they can send.
    ends.settle(&mut PolledCompletions::default());
    ends.on_a(1, Op::Send { head: &[7], body: OpSource::Inline(&[]), imm: None });
    ends.on_a(2, Op::Write { from: OpSource::Inline(&[8; 8]), to: into.remote_at(8), imm: Some(3) });
    ends.a.flush();
    ends.a.destroy_link(ends.at_a);
    let seen = ends.poll_until(|seen| seen.b.len() >= 3);
    let told: Vec<(u64, CompletionKind, OpStatus)> =
        seen.b.iter().map(|one| (one.wr_id, one.done, one.status)).collect();
    assert_eq!(
        told,
        [
            (50, CompletionKind::Received, OpStatus::Ok),
            (0, CompletionKind::Written, OpStatus::Ok),
            (51, CompletionKind::Received, OpStatus::Flushed)
        ]
    );
    assert_eq!(into.read_bytes(0, 1), [7]);
    ends.b.destroy_link(ends.at_b);
}

/// A link that is failed still delivers the operations that had arrived, then flushes all others once.
pub fn failed_links_deliver_what_arrived<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().sends_wait {
        return;
    }
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    for wr_id in 50..54 {
        ends.on_b(wr_id, Op::Recv { into: into.extent_at(0, 8) });
    }
    ends.on_b(40, Op::Send { head: &[1], body: OpSource::Inline(&[]), imm: None });
    ends.on_b(41, Op::Nop);
    ends.settle(&mut PolledCompletions::default());
    ends.on_a(1, Op::Send { head: &[7], body: OpSource::Inline(&[]), imm: None });
    ends.poll_a_for(ARRIVAL);
    ends.b.fail_link(ends.at_b);
    let seen = ends.poll_until(|seen| seen.b.len() >= 6);
    let received: Vec<(u64, OpStatus)> = seen
        .b
        .iter()
        .filter(|one| one.done == CompletionKind::Received)
        .map(|one| (one.wr_id, one.status))
        .collect();
    assert_eq!(received[0], (50, OpStatus::Ok));
    assert!(received[1..].iter().all(|(_, status)| *status == OpStatus::Flushed));
    assert_eq!(received.iter().map(|one| one.0).collect::<Vec<_>>(), [50, 51, 52, 53]);
    let posted: Vec<(u64, OpStatus)> = seen
        .b
        .iter()
        .filter(|one| one.done == CompletionKind::Posted)
        .map(|one| (one.wr_id, one.status))
        .collect();
    // Operations in transit may have been cut off.
    assert!(
        matches!(posted[..], [(40, OpStatus::PeerDead | OpStatus::Flushed), (41, OpStatus::Flushed)]),
        "{posted:?}"
    );
    let mut seen = PolledCompletions::default();
    ends.settle(&mut seen);
    assert!(seen.b.is_empty());
    assert_eq!(ends.b.post(ends.at_b, 1, Op::Nop, true), Err(PostError::Refused(OpStatus::Flushed)));
}

/// A link that is failed becomes quiet soon, even if the operations posted last succeeded without a completion.
pub fn failed_links_are_quiet_after_unsignalled_work<S: ConformanceSetup>(setup: &S) {
    for posted in [0, 1, 5] {
        let mut ends = setup.open_pair(&default_config());
        let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
        let mut seen = PolledCompletions::default();
        for wr_id in 0..posted {
            let op = Op::Write { from: OpSource::Inline(&[7]), to: into.remote_at(wr_id), imm: None };
            ends.post_a(wr_id, op, false, &mut seen);
        }
        ends.settle(&mut seen);
        ends.a.fail_link(ends.at_a);
        let started = std::time::Instant::now();
        while !ends.a.poll_link_quiet(ends.at_a) {
            ends.poll(&mut seen);
            assert!(
                started.elapsed().as_secs() < 20,
                "{posted} posted: the link does not become quiet: {:?}",
                seen.a
            );
        }
        assert!(seen.a.iter().all(|one| one.status != OpStatus::Ok), "{:?}", seen.a);
    }
}

/// Links can be destroyed and made again many times, also in error, without using anything up.
pub fn links_can_be_made_again<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let breaks = ends.a.caps().refusals_are_told;
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    for round in 0..200u64 {
        ends.on_b(3, Op::Recv { into: into.extent_at(0, 8) });
        let bytes = round.to_le_bytes();
        let bad = breaks && round % 3 == 0;
        let to = into.remote_at(if bad { 60 } else { 0 });
        let imm = ends.a.caps().write_data.then_some(1);
        ends.on_a(round, Op::Write { from: OpSource::Inline(&bytes), to, imm });
        let seen = ends.poll_until(|seen| !seen.a.is_empty());
        let want = if bad { OpStatus::RemoteAccess } else { OpStatus::Ok };
        assert_eq!(seen.a[0].status, want);
        ends.a.destroy_link(ends.at_a);
        ends.b.destroy_link(ends.at_b);
        (ends.at_a, ends.at_b) = ends.add_link();
    }
    assert!(ends.a.post_credits(ends.at_a) > 0);
}

/// A link with much to do does not starve the others.
pub fn many_links_are_served<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let mut links = vec![(ends.at_a, ends.at_b)];
    for _ in 1..8 {
        links.push(ends.add_link());
    }
    assert!(ends.a.create_link().is_err(), "the rail created more links than requested");
    let from = TestRegion::new(&ends.a, 8 << 20, AccessRights::LOCAL);
    let into = TestRegion::new(&ends.b, 8 << 20, AccessRights::WRITE);
    from.fill_pattern(1);
    let source = OpSource::Region(from.extent_at(0, 8 << 20));
    ends.on_a(0, Op::Write { from: source, to: into.remote_at(0), imm: None });
    for (index, (at_a, _)) in links.iter().enumerate().skip(1) {
        let byte = [index as u8];
        let op = Op::Write { from: OpSource::Inline(&byte), to: into.remote_at(index as u64), imm: None };
        ends.a.post(*at_a, index as u64, op, true).unwrap_or_else(|e| panic!("{e}"));
    }
    let seen = ends.expect_completions(8, 0);
    let mut all: Vec<u64> = seen.a.iter().map(|one| one.wr_id).collect();
    all.sort_unstable();
    assert_eq!(all, (0..8).collect::<Vec<_>>());
    for one in &seen.a {
        assert_eq!(one.link, links[one.wr_id as usize].0);
    }
    assert!(into.read_bytes(8, 1 << 20) == from.read_bytes(8, 1 << 20));
}
