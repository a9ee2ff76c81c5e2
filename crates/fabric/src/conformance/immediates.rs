//! Cases: the effect of a write with immediate on posted receives, as the NIC declares it
//! ([`Caps::immediate_takes_receive`](crate::Caps::immediate_takes_receive)).

use super::pair::{
    ConformanceSetup, PolledCompletions, RailPair, TestRegion, default_config, extend_completions,
};
use crate::{
    AccessRights, Completion, CompletionKind, LinkControl, Op, OpSource, OpStatus, PostError, Rail,
    RailConfig,
};

/// Longest time that flushed operations may take to a peer on the same host.
const ARRIVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// More immediates than receives.
const MANY: u32 = 40;

fn write_immediate<R: Rail>(
    ends: &mut RailPair<R>,
    into: &TestRegion,
    imm: u32,
    seen: &mut PolledCompletions,
) {
    let op = Op::Write { from: OpSource::Inline(&[1; 8]), to: into.remote_at(8), imm: Some(imm) };
    ends.post_a(imm.into(), op, true, seen);
}

/// Returns the immediates of the completions, in order; checks that no other completion was polled.
fn received_immediates(seen: &PolledCompletions) -> Vec<u32> {
    let all = seen.b.iter();
    assert!(
        all.clone()
            .all(|one| (one.done, one.status, one.wr_id) == (CompletionKind::Written, OpStatus::Ok, 0))
    );
    all.filter_map(|one| one.imm).collect()
}

/// Immediates arrive with few receives or many, and each receive is still posted for a send afterwards.
pub fn immediates_leave_the_receives_posted<S: ConformanceSetup>(setup: &S) {
    const ROUNDS: u32 = 3;
    for receives in [1, 5] {
        let config = RailConfig { recv_depth: receives, ..default_config() };
        let mut ends = setup.open_pair(&config);
        if !ends.a.caps().write_data {
            return;
        }
        let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
        for wr_id in 0..receives {
            ends.on_b(wr_id.into(), Op::Recv { into: into.extent_at(0, 8) });
        }
        let mut seen = PolledCompletions::default();
        for round in 0..ROUNDS {
            seen.b.clear();
            (0..MANY).for_each(|imm| write_immediate(&mut ends, &into, imm, &mut seen));
            let missing = MANY as usize - seen.b.len();
            let rest = ends.poll_until(|rest| rest.b.len() >= missing);
            extend_completions(&mut seen.a, rest.a.into_iter());
            extend_completions(&mut seen.b, rest.b.into_iter());
            assert_eq!(received_immediates(&seen), (0..MANY).collect::<Vec<_>>(), "round {round}");
            let full = ends.b.post(ends.at_b, 9, Op::Recv { into: into.extent_at(0, 8) }, true);
            assert_eq!(full, Err(PostError::Busy), "no immediate has completed");
        }
        // Operations that have arrived may complete at their sender later.
        let owed = (ROUNDS * MANY) as usize - seen.a.len();
        ends.poll_until(|rest| rest.a.len() >= owed);
        for wr_id in 0..receives {
            ends.on_a(wr_id.into(), Op::Send { head: &[7], body: OpSource::Inline(&[]), imm: None });
        }
        let mut filled: Vec<u64> = ends
            .expect_completions(receives as usize, receives as usize)
            .b
            .iter()
            .map(|one| one.wr_id)
            .collect();
        filled.sort_unstable();
        assert_eq!(filled, (0..receives.into()).collect::<Vec<_>>());
    }
}

/// An immediate needs a receive if the NIC declares so, and none otherwise. If it does, the operations behind it wait too.
pub fn immediates_wait_for_receives_where_they_take_them<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    write_immediate(&mut ends, &into, 3, &mut PolledCompletions::default());
    ends.on_a(4, Op::Nop);
    if !ends.b.caps().immediate_takes_receive {
        assert_eq!(received_immediates(&ends.expect_completions(2, 1)), [3]);
        return;
    }
    let ordered = ends.a.caps().link_order;
    ends.expect_completions(usize::from(!ordered), 0);
    ends.on_b(50, Op::Recv { into: into.extent_at(0, 8) });
    assert_eq!(received_immediates(&ends.expect_completions(1 + usize::from(ordered), 1)), [3]);
}

/// A receive that an immediate consumed ends with its link like the other receives, once, even if the immediate was not yet polled.
pub fn receives_of_immediates_end_with_their_link<S: ConformanceSetup>(setup: &S) {
    for polled in [true, false] {
        let mut ends = setup.open_pair(&default_config());
        if !ends.a.caps().write_data {
            return;
        }
        let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
        for wr_id in 50..54 {
            ends.on_b(wr_id, Op::Recv { into: into.extent_at(0, 8) });
        }
        let mut seen = PolledCompletions::default();
        ends.settle(&mut seen);
        (0..3).for_each(|imm| write_immediate(&mut ends, &into, imm, &mut seen));
        if polled {
            seen = ends.poll_until(|seen| seen.b.len() == 3);
        } else {
            ends.a.flush();
            std::thread::sleep(ARRIVAL);
        }
        ends.b.fail_link(ends.at_b);
        let started = std::time::Instant::now();
        while !ends.b.poll_link_quiet(ends.at_b) {
            ends.poll(&mut seen);
            assert!(started.elapsed().as_secs() < 20, "the link does not become quiet: {:?}", seen.b);
        }
        let (written, received): (Vec<Completion>, Vec<Completion>) =
            seen.b.into_iter().partition(|one| one.done == CompletionKind::Written);
        assert!(written.iter().all(|one| one.status == OpStatus::Ok) && written.len() <= 3, "{written:?}");
        assert!(!polled || written.len() == 3, "{written:?}");
        // Operations in transit may have been cut off.
        let cut = |one: &Completion| matches!(one.status, OpStatus::Flushed | OpStatus::PeerDead);
        assert!(received.iter().all(cut), "{received:?}");
        let mut ended: Vec<u64> = received.iter().map(|one| one.wr_id).collect();
        ended.sort_unstable();
        assert_eq!(ended, [50, 51, 52, 53]);
    }
}

/// Immediates and sends in one stream: each send fills a receive of its own, and all of them arrive.
pub fn immediates_and_sends_share_the_receives<S: ConformanceSetup>(setup: &S) {
    const ROUNDS: u64 = 300;
    let mut ends = setup.open_pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let into = TestRegion::new(&ends.b, 4096, AccessRights::WRITE);
    for wr_id in 0..8 {
        ends.on_b(wr_id, Op::Recv { into: into.extent_at(64 + 8 * wr_id, 8) });
    }
    let mut posted = 0;
    let mut imms = Vec::new();
    let mut sends = Vec::new();
    let started = std::time::Instant::now();
    while (imms.len() + sends.len()) < ROUNDS as usize {
        if posted < ROUNDS {
            let bytes = posted.to_le_bytes();
            let op = match posted % 3 {
                0 => Op::Send { head: &bytes, body: OpSource::Inline(&[]), imm: None },
                _ => Op::Write {
                    from: OpSource::Inline(&bytes),
                    to: into.remote_at(0),
                    imm: Some(posted as u32),
                },
            };
            posted += u64::from(ends.a.post(ends.at_a, posted, op, false).is_ok());
        }
        let mut seen = PolledCompletions::default();
        ends.poll(&mut seen);
        for one in seen.b {
            assert_eq!(one.status, OpStatus::Ok);
            if one.done == CompletionKind::Written {
                imms.extend(one.imm);
                continue;
            }
            sends.extend(into.memory.load(64 + 8 * one.wr_id).ok());
            ends.on_b(one.wr_id, Op::Recv { into: into.extent_at(64 + 8 * one.wr_id, 8) });
        }
        assert!(started.elapsed().as_secs() < 20, "{imms:?}, {sends:?} of {posted}");
    }
    let (third, others): (Vec<u64>, Vec<u64>) = (0..ROUNDS).partition(|at| at % 3 == 0);
    assert_eq!(sends, third);
    assert_eq!(imms.iter().map(|imm| u64::from(*imm)).collect::<Vec<_>>(), others);
}
