//! Failures: peers that die or stop, unauthenticated peers, stale handles, limits, panics.

pub(crate) mod limits;
pub(crate) mod many;
pub(crate) mod peers;
pub(crate) mod silent;
pub(crate) mod strangers;

use std::os::unix::ffi::OsStringExt as _;

use crate::run::scenario;

#[test]
fn a_killed_peer_fails_every_request_soon() {
    for case in ["idle", "sending", "receiving", "connecting", "both"] {
        for copy in ["auto", "staging"] {
            let setting = scenario("a_killed_peer_fails_every_request_soon").env("TEST_CASE", case);
            setting.env("TRUNKLINE_SOFT_COPY", copy).two_and_one_dies();
        }
    }
    let nic = scenario("a_killed_peer_fails_every_request_soon").env("TEST_CASE", "both");
    nic.env("TRUNKLINE_MATCH", "nic").version(8).two_and_one_dies();
}

#[test]
fn a_stopped_peer_is_no_error() {
    scenario("a_stopped_peer_is_no_error").two();
}

#[test]
fn progress_thread_serves_a_silent_receiver() {
    scenario("a_receiver_makes_no_call").two();
    scenario("a_receiver_makes_no_call").env("TRUNKLINE_PROGRESS_THREAD", 1).two();
}

#[test]
fn finalize_ends_the_progress_thread() {
    scenario("finalize_ends_the_progress_thread").env("TRUNKLINE_PROGRESS_THREAD", 1).alone();
}

#[test]
fn a_handle_of_a_dead_process_is_an_error() {
    scenario("a_handle_of_a_dead_process_is_an_error").two_and_one_dies();
}

#[test]
fn invalid_peers_are_refused_with_one_line_each() {
    scenario("invalid_peers_are_refused_with_one_line_each").alone();
}

#[test]
fn a_flood_of_silent_connections_does_no_harm() {
    scenario("a_flood_of_silent_connections_does_no_harm").alone();
}

#[test]
fn limits_are_named_and_nothing_is_lost() {
    scenario("a_limit_of_comms_is_named").env("TRUNKLINE_COMMS_MAX", 2).alone();
    scenario("a_limit_of_queue_pairs_is_named").env("TRUNKLINE_SOFT_MAX_QP", 4).alone();
    scenario("a_limit_of_regions_is_named").env("TRUNKLINE_SOFT_MAX_MR", 40).alone();
    scenario("a_limit_of_descriptors_is_named").env("TRUNKLINE_FABRIC", "soft:shm").alone();
    for spare in 0..4 {
        let setting = scenario("a_limit_of_descriptors_is_named").env("TRUNKLINE_FABRIC", "soft:tcp");
        setting.env("TEST_SPARE", spare).alone();
    }
}

#[test]
fn a_thousand_connections_with_256_descriptors() {
    scenario("a_thousand_connections_at_once").two();
    scenario("a_thousand_connections_at_once").env("TRUNKLINE_FABRIC", "soft:shm").two();
    scenario("a_thousand_connections_one_after_another").env("TRUNKLINE_FABRIC", "soft:tcp").two();
}

#[test]
fn connection_costs_stay_within_bounds() {
    // The settings in between use one of the two.
    let is_full = std::env::var_os("TRUNKLINE_FULL").is_some();
    for wire in ["soft:tcp", "soft", "soft:shm"].into_iter().filter(|wire| is_full || *wire != "soft") {
        scenario("an_idle_connection_is_small").env("TRUNKLINE_FABRIC", wire).measures().two();
        scenario("a_connection_is_set_up_quickly").env("TRUNKLINE_FABRIC", wire).measures().two();
    }
}

#[test]
fn a_failing_listener_is_logged_once() {
    scenario("a_failing_listener_is_logged_once").alone();
}

#[test]
fn a_bad_value_fails_init_and_is_named() {
    let values = [
        ("TRUNKLINE_FABRIC", "token-ring"),
        ("TRUNKLINE_MATCH", "cat"),
        ("TRUNKLINE_EAGER_MAX", "-1"),
        ("TRUNKLINE_EAGER_CREDITS", "33"),
        ("TRUNKLINE_PEER_TIME_MS", "soon"),
        ("TRUNKLINE_RAIL_TIME_MS", "999"),
        ("TRUNKLINE_DEPTH", "31"),
        ("TRUNKLINE_COMMS_MAX", "0"),
        ("TRUNKLINE_REGIONS_MAX", "0"),
        ("TRUNKLINE_STATUS", "on"),
        ("TRUNKLINE_NEAR", "2"),
        ("TRUNKLINE_PROGRESS_THREAD", "2"),
        ("TRUNKLINE_SOFT_NICS", "17"),
        ("TRUNKLINE_SOFT_COPY", "cma"),
        ("TRUNKLINE_SOFT_DELAYED", "yes"),
        ("TRUNKLINE_SOFT_MAX_QP", "1048577"),
        ("TRUNKLINE_SOFT_PIPELINES", "65"),
        ("TRUNKLINE_SOFT_MAX_MR", "1e3"),
    ];
    for (at, (name, value)) in values.into_iter().enumerate() {
        let setting = scenario("a_bad_value_fails_init_and_is_named").env(name, value).env("TEST_NAME", name);
        setting.version(crate::run::VERSIONS[at % 7]).alone();
    }
    let no_text = std::ffi::OsString::from_vec(b"so\xfft".to_vec());
    let setting = scenario("a_bad_value_fails_init_and_is_named").env_os("TRUNKLINE_FABRIC", no_text);
    setting.env("TEST_NAME", "TRUNKLINE_FABRIC=so\u{fffd}t: expected ").alone();
}

/// A peer in PID, IPC and mount namespaces of its own; also in its own user namespace, which is all that users other than root can create.
#[test]
fn a_peer_in_other_namespaces_connects() {
    const UNSHARE: [&str; 7] =
        ["unshare", "--pid", "--fork", "--ipc", "--mount", "--user", "--map-root-user"];
    let mut played = false;
    for words in [&UNSHARE[..5], &UNSHARE] {
        let allowed = std::process::Command::new(words[0]).args(&words[1..]).arg("true").output();
        if !allowed.is_ok_and(|output| output.status.success()) {
            continue;
        }
        played = true;
        for copy in ["auto", "staging", "pull", "share"] {
            let setting = scenario("two_processes_exchange_messages").env("TRUNKLINE_SOFT_COPY", copy);
            setting.second_in(words).two();
        }
    }
    if !played {
        trunkline_integration::skip_test(
            "a_peer_in_other_namespaces_connects",
            "soft",
            "unshare is not permitted",
        );
    }
}
