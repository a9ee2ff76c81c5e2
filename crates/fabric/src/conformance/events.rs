//! Cases: threads that wait for the event descriptor of a rail. For a rail without events they only check that it reports none.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::pair::{ConformanceSetup, LIMIT, PolledCompletions, RailPair, TestRegion, default_config};
use crate::{AccessRights, CompletionKind, Op, OpSource, OpStatus, Rail, WaitMethod};

/// Polls of a rail that has nothing to do, after which it must have events to wait for.
const POLLS: usize = 2000;

/// Whether a descriptor is readable.
fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&limit)).unwrap_or_else(|e| panic!("poll: {e}")) > 0
}

/// Polls the sender alone until the descriptor of the other rail is readable.
fn wait_for_event<R: Rail>(ends: &mut RailPair<R>, seen: &mut PolledCompletions, descriptor: &OwnedFd) {
    let started = Instant::now();
    while !is_readable(descriptor) {
        ends.poll_a(seen);
        assert!(started.elapsed() < LIMIT, "nothing ended the wait");
    }
}

/// Polls both rails until `b` can be waited for; returns its descriptor, or `None` if it never can.
fn fall_asleep<R: Rail>(ends: &mut RailPair<R>, seen: &mut PolledCompletions) -> Option<Arc<OwnedFd>> {
    for _ in 0..POLLS {
        ends.poll(seen);
        if ends.b.arm_wait() == WaitMethod::Event {
            return Some(
                ends.b.event_descriptor().unwrap_or_else(|| panic!("an event without a descriptor")),
            );
        }
    }
    None
}

/// Checks that the rails of this setup can be waited for if it claims so; returns the claim.
fn check_events<S: ConformanceSetup>(setup: &S, ends: &mut RailPair<S::Rail>) -> bool {
    let sleeps = fall_asleep(ends, &mut PolledCompletions::default()).is_some();
    assert_eq!(sleeps, setup.has_events(), "whether the rail has events to wait for");
    sleeps
}

/// A send ends the wait of the rail that receives it, each time, also if it arrives between the last poll and the wait.
pub fn events_end_the_wait_for_a_send<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let there = TestRegion::new(&ends.b, 64, AccessRights::LOCAL);
    let mut seen = PolledCompletions::default();
    if !check_events(setup, &mut ends) {
        return;
    }
    for round in 0..20 {
        ends.on_b(round, Op::Recv { into: there.extent_at(0, 8) });
        let is_late = round % 2 == 1;
        let before = if is_late { None } else { fall_asleep(&mut ends, &mut seen) };
        if let Some(descriptor) = &before {
            assert!(!is_readable(descriptor), "readable although nothing arrived");
        }
        ends.on_a(round, Op::Send { head: &[7; 8], body: OpSource::Inline(&[]), imm: None });
        ends.a.flush();
        // Completions that have arrived already need not be an event, if `arm_wait` returns another method.
        let started = Instant::now();
        if before.is_some() || ends.b.arm_wait() == WaitMethod::Event {
            let descriptor = ends.b.event_descriptor().unwrap_or_else(|| panic!("no descriptor"));
            wait_for_event(&mut ends, &mut seen, &descriptor);
        }
        let came = |seen: &PolledCompletions| {
            seen.b.iter().any(|one| one.done == CompletionKind::Received && one.wr_id == round)
        };
        while !came(&seen) {
            ends.poll(&mut seen);
            assert!(started.elapsed() < LIMIT, "the send did not arrive");
        }
    }
    assert!(seen.b.iter().all(|one| one.status == OpStatus::Ok), "{:?}", seen.b);
}

/// A link that has failed keeps no descriptor readable, and another one of the rail still ends the wait.
pub fn events_of_failed_links_end_no_wait<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    let there = TestRegion::new(&ends.b, 64, AccessRights::LOCAL);
    let mut seen = PolledCompletions::default();
    if !check_events(setup, &mut ends) {
        return;
    }
    ends.fail_ends();
    (ends.at_a, ends.at_b) = ends.add_link();
    ends.on_b(1, Op::Recv { into: there.extent_at(0, 8) });
    let descriptor =
        fall_asleep(&mut ends, &mut seen).unwrap_or_else(|| panic!("a failed link prevents waits"));
    assert!(!is_readable(&descriptor), "the failed link keeps the descriptor readable");
    ends.on_a(1, Op::Send { head: &[7; 8], body: OpSource::Inline(&[]), imm: None });
    wait_for_event(&mut ends, &mut seen, &descriptor);
}

/// The descriptor of a rail that is closed meanwhile stays valid for its holder.
pub fn event_descriptors_outlive_their_rail<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !check_events(setup, &mut ends) {
        return;
    }
    let descriptor = ends.b.event_descriptor().unwrap_or_else(|| panic!("no descriptor"));
    drop(ends);
    // For a closed rail either result is allowed; only the call must work.
    is_readable(&descriptor);
}
