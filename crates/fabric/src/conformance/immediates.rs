//! Cases: what a write with immediate does to posted receives, in the way that the NIC says it does
//! ([`Caps::immediate_takes_receive`](crate::Caps::immediate_takes_receive)).

use super::pair::{Ends, Region, Seen, Setup, add, default_config};
use crate::{Access, Completion, Done, Links, Op, PostError, Rail, RailConfig, Source, Status};

/// How long what was flushed may take to a peer on the same host.
const ARRIVAL: std::time::Duration = std::time::Duration::from_millis(20);
/// More immediates than there are receives.
const MANY: u32 = 40;

fn tell<R: Rail>(ends: &mut Ends<R>, into: &Region, imm: u32, seen: &mut Seen) {
    let op = Op::Write { from: Source::Inline(&[1; 8]), to: into.remote(8), imm: Some(imm) };
    ends.post_a(imm.into(), op, true, seen);
}

/// The immediates that were told, in order; nothing else was.
fn told(seen: &Seen) -> Vec<u32> {
    let all = seen.b.iter();
    assert!(all.clone().all(|one| (one.done, one.status, one.wr_id) == (Done::Written, Status::Ok, 0)));
    all.filter_map(|one| one.imm).collect()
}

/// Immediates come whether there are few receives or many, and each receive is still there for a send afterwards.
pub fn immediates_leave_the_receives_posted<S: Setup>(setup: &S) {
    const ROUNDS: u32 = 3;
    for receives in [1, 5] {
        let config = RailConfig { recv_depth: receives, ..default_config() };
        let mut ends = setup.pair(&config);
        if !ends.a.caps().write_data {
            return;
        }
        let into = Region::new(&ends.b, 64, Access::WRITE);
        for wr_id in 0..receives {
            ends.on_b(wr_id.into(), Op::Recv { into: into.extent(0, 8) });
        }
        let mut seen = Seen::default();
        for round in 0..ROUNDS {
            seen.b.clear();
            (0..MANY).for_each(|imm| tell(&mut ends, &into, imm, &mut seen));
            let missing = MANY as usize - seen.b.len();
            let rest = ends.until(|rest| rest.b.len() >= missing);
            add(&mut seen.a, rest.a.into_iter());
            add(&mut seen.b, rest.b.into_iter());
            assert_eq!(told(&seen), (0..MANY).collect::<Vec<_>>(), "round {round}");
            let full = ends.b.post(ends.at_b, 9, Op::Recv { into: into.extent(0, 8) }, true);
            assert_eq!(full, Err(PostError::Busy), "none of them has ended");
        }
        // What has arrived may be told to its sender later.
        let owed = (ROUNDS * MANY) as usize - seen.a.len();
        ends.until(|rest| rest.a.len() >= owed);
        for wr_id in 0..receives {
            ends.on_a(wr_id.into(), Op::Send { head: &[7], body: Source::Inline(&[]), imm: None });
        }
        let mut filled: Vec<u64> =
            ends.expect(receives as usize, receives as usize).b.iter().map(|one| one.wr_id).collect();
        filled.sort_unstable();
        assert_eq!(filled, (0..receives.into()).collect::<Vec<_>>());
    }
}

/// An immediate needs a receive, or does not, as the NIC says; where it does, what is behind it waits too.
pub fn immediates_wait_for_receives_where_they_take_them<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let into = Region::new(&ends.b, 64, Access::WRITE);
    tell(&mut ends, &into, 3, &mut Seen::default());
    ends.on_a(4, Op::Nop);
    if !ends.b.caps().immediate_takes_receive {
        assert_eq!(told(&ends.expect(2, 1)), [3]);
        return;
    }
    let ordered = ends.a.caps().link_order;
    ends.expect(usize::from(!ordered), 0);
    ends.on_b(50, Op::Recv { into: into.extent(0, 8) });
    assert_eq!(told(&ends.expect(1 + usize::from(ordered), 1)), [3]);
}

/// A receive that an immediate took ends with its link like the others, once, also if the immediate was not yet polled.
pub fn receives_of_immediates_end_with_their_link<S: Setup>(setup: &S) {
    for polled in [true, false] {
        let mut ends = setup.pair(&default_config());
        if !ends.a.caps().write_data {
            return;
        }
        let into = Region::new(&ends.b, 64, Access::WRITE);
        for wr_id in 50..54 {
            ends.on_b(wr_id, Op::Recv { into: into.extent(0, 8) });
        }
        let mut seen = Seen::default();
        ends.settle(&mut seen);
        (0..3).for_each(|imm| tell(&mut ends, &into, imm, &mut seen));
        if polled {
            seen = ends.until(|seen| seen.b.len() == 3);
        } else {
            ends.a.flush();
            std::thread::sleep(ARRIVAL);
        }
        ends.b.fail(ends.at_b);
        let started = std::time::Instant::now();
        while !ends.b.is_quiet(ends.at_b) {
            ends.poll(&mut seen);
            assert!(started.elapsed().as_secs() < 20, "it is never quiet: {:?}", seen.b);
        }
        let (written, received): (Vec<Completion>, Vec<Completion>) =
            seen.b.into_iter().partition(|one| one.done == Done::Written);
        assert!(written.iter().all(|one| one.status == Status::Ok) && written.len() <= 3, "{written:?}");
        assert!(!polled || written.len() == 3, "{written:?}");
        // What was under way may have been cut off.
        let cut = |one: &Completion| matches!(one.status, Status::Flushed | Status::PeerDead);
        assert!(received.iter().all(cut), "{received:?}");
        let mut ended: Vec<u64> = received.iter().map(|one| one.wr_id).collect();
        ended.sort_unstable();
        assert_eq!(ended, [50, 51, 52, 53]);
    }
}

/// Immediates and sends in one stream: each send fills a receive of its own, and all of them come.
pub fn immediates_and_sends_share_the_receives<S: Setup>(setup: &S) {
    const ROUNDS: u64 = 300;
    let mut ends = setup.pair(&default_config());
    if !ends.a.caps().write_data {
        return;
    }
    let into = Region::new(&ends.b, 4096, Access::WRITE);
    for wr_id in 0..8 {
        ends.on_b(wr_id, Op::Recv { into: into.extent(64 + 8 * wr_id, 8) });
    }
    let mut posted = 0;
    let mut imms = Vec::new();
    let mut sends = Vec::new();
    let started = std::time::Instant::now();
    while (imms.len() + sends.len()) < ROUNDS as usize {
        if posted < ROUNDS {
            let bytes = posted.to_le_bytes();
            let op = match posted % 3 {
                0 => Op::Send { head: &bytes, body: Source::Inline(&[]), imm: None },
                _ => Op::Write { from: Source::Inline(&bytes), to: into.remote(0), imm: Some(posted as u32) },
            };
            posted += u64::from(ends.a.post(ends.at_a, posted, op, false).is_ok());
        }
        let mut seen = Seen::default();
        ends.poll(&mut seen);
        for one in seen.b {
            assert_eq!(one.status, Status::Ok);
            if one.done == Done::Written {
                imms.extend(one.imm);
                continue;
            }
            sends.extend(into.memory.load(64 + 8 * one.wr_id).ok());
            ends.on_b(one.wr_id, Op::Recv { into: into.extent(64 + 8 * one.wr_id, 8) });
        }
        assert!(started.elapsed().as_secs() < 20, "{imms:?}, {sends:?} of {posted}");
    }
    let (third, others): (Vec<u64>, Vec<u64>) = (0..ROUNDS).partition(|at| at % 3 == 0);
    assert_eq!(sends, third);
    assert_eq!(imms.iter().map(|imm| u64::from(*imm)).collect::<Vec<_>>(), others);
}
