//! Two hosts: the plugin's contract across a network, and what a network does that one host never does.

pub(crate) mod cable;

use std::time::Duration;

use trunkline_tests::testbed::{self, Shape};

use crate::run::scenario;

#[test]
fn the_contract_holds_between_hosts() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.host("left"), testbed.host("right"));
        let cable = testbed.veth(&left, &right);
        let before = cable.counters(&left).sent.bytes;
        for family in ["AF_INET", "AF_INET6"] {
            for played in ["two_processes_exchange_messages", "two_processes_close_at_any_time"] {
                scenario(played).env("NCCL_SOCKET_FAMILY", family).on([&left, &right]).two();
            }
        }
        let sent = cable.counters(&left).sent.bytes - before;
        assert!(sent > 1 << 20, "{sent} bytes went over the cable");
        scenario("two_processes_exchange_messages").env("TRUNKLINE_MATCH", "nic").on([&left, &right]).two();
    });
}

#[test]
fn messages_survive_loss_and_delay() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.host("left"), testbed.host("right"));
        let delay = Duration::from_millis(1);
        let cable = testbed.relay(&left, &right, Shape { delay, jitter: delay, loss: 0.005, ..Shape::PLAIN });
        scenario("two_processes_exchange_messages").on([&left, &right]).two();
        assert!(cable.tally(&left).lost + cable.tally(&right).lost > 0, "nothing was lost");
    });
}

#[test]
fn a_slow_cable_is_no_error() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.host("left"), testbed.host("right"));
        let _cable = testbed.relay(&left, &right, Shape { rate: Some(40 << 20), ..Shape::PLAIN });
        // What is under way fills every buffer, and the limit is shorter than the transfer.
        let setting = scenario("a_large_message_takes_its_time").env("TRUNKLINE_PEER_TIME_MS", 1000);
        setting.on([&left, &right]).two();
    });
}

#[test]
fn a_peer_killed_on_another_host_fails_every_request_soon() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.host("left"), testbed.host("right"));
        let _cable = testbed.veth(&left, &right);
        for case in ["idle", "sending", "receiving", "connecting", "both"] {
            let setting = scenario("a_killed_peer_fails_every_request_soon").env("TEST_CASE", case);
            setting.on([&left, &right]).two_and_one_dies();
        }
    });
}

/// Stopped with full buffers for longer than a silent host may be.
#[test]
fn a_peer_stopped_on_another_host_is_no_error() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.host("left"), testbed.host("right"));
        let _cable = testbed.veth(&left, &right);
        let setting = scenario("a_stopped_peer_is_no_error").env("TRUNKLINE_PEER_TIME_MS", 1000);
        setting.on([&left, &right]).two();
    });
}

#[test]
fn a_cut_cable_fails_every_request_in_time() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.host("left"), testbed.host("right"));
        let cable = testbed.relay(&left, &right, Shape::PLAIN);
        for case in ["busy", "idle"] {
            let setting = scenario("a_cut_cable_fails_every_request_in_time").env("TEST_CASE", case);
            let setting = setting.env("TRUNKLINE_PEER_TIME_MS", 2000).on([&left, &right]);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(cable::UNTIL_CUT);
                    cable.cut();
                });
                setting.two();
            });
            cable.mend();
        }
    });
}
