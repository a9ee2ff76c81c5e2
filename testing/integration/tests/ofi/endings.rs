//! Peers that die, stop or leave, over providers for TCP and over the enforcing one, in two processes. The surviving
//! process continues and keeps none of their objects.

use super::strict::{Env, Strict};
use super::{NATIVE, has, over};
use crate::sharing::is_full;

/// The activity of the peer when it is killed.
const CASES: [&str; 5] = ["idle", "sending", "receiving", "connecting", "both"];

/// The demands of the enforcing provider. A process that waits for the other one makes no calls, so the progress thread
/// must repeat refused calls.
const DEMANDS: [Env<'static>; 2] = [
    &[("FI_STRICT_EAGAIN", "0.3"), ("TRUNKLINE_PROGRESS_THREAD", "1")],
    &[("FI_STRICT_MR", "none"), ("FI_STRICT_PROGRESS", "auto")],
];

#[test]
fn a_killed_peer_fails_every_request_soon_over_tcp() {
    if !has(NATIVE) {
        return;
    }
    for case in CASES {
        over(NATIVE, "a_killed_peer_fails_every_request_soon").env("TEST_CASE", case).two_and_one_dies();
    }
    let nics = over(NATIVE, "a_killed_peer_fails_every_request_soon").env("TRUNKLINE_OFI_NICS", 2);
    nics.env("TEST_FUSED", 2).env("TEST_CASE", "both").two_and_one_dies();
}

#[test]
fn a_killed_peer_leaves_nothing_in_its_survivor() {
    let Some(strict) = Strict::here("killed peers over ofi:strict") else { return };
    for (at, case) in CASES.into_iter().enumerate() {
        for (which, demands) in DEMANDS.into_iter().enumerate() {
            if at % 2 == which || is_full() {
                let setting = strict.over("a_killed_peer_fails_every_request_soon", demands);
                setting.env("TEST_CASE", case).two_and_one_dies();
                // The killed process left an account of the domain with which it tested its NIC.
                strict.clean(2);
            }
        }
    }
}

#[test]
fn a_stopped_peer_is_waited_for() {
    let Some(strict) = Strict::here("stopped peers over ofi:strict") else { return };
    strict.over("a_stopped_peer_is_no_error", &[]).two();
    strict.clean(2);
    if is_full() {
        over(NATIVE, "a_stopped_peer_is_no_error").two();
    }
}

#[test]
fn progress_thread_serves_a_silent_process() {
    let Some(strict) = Strict::here("silent peers over ofi:strict") else { return };
    let helped: Env<'_> = &[("TRUNKLINE_PROGRESS_THREAD", "1")];
    for helped in [&[], helped] {
        strict.over("a_receiver_makes_no_call", helped).two();
        strict.clean(2);
    }
}

#[test]
fn p6_completed_sends_arrive_despite_delayed_operations() {
    let Some(strict) = Strict::here("operations kept back over ofi:strict") else { return };
    // The processes leave with a call after that delay.
    strict.over("a_sender_makes_no_call", &[("FI_STRICT_DELAY", "2000")]).two();
    strict.clean(2);
    over(NATIVE, "a_sender_makes_no_call").two();
}

#[test]
fn connecting_to_a_dead_process_fails() {
    let Some(strict) = Strict::here("dead handles over ofi:strict") else { return };
    strict.over("a_handle_of_a_dead_process_is_an_error", &[]).two_and_one_dies();
    strict.clean(2);
    over(NATIVE, "a_handle_of_a_dead_process_is_an_error").two_and_one_dies();
}

#[test]
fn peers_close_at_any_time() {
    let Some(strict) = Strict::here("closing peers over ofi:strict") else { return };
    for demands in DEMANDS {
        strict.over("two_processes_close_at_any_time", demands).two();
        strict.clean(2);
    }
}
