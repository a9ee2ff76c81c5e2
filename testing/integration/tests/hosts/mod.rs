//! Two hosts: the plugin's contract across a network, and failures that only a network has.

pub(crate) mod cable;
mod cuts;
pub(crate) mod look;
mod rails;
pub(crate) mod stream;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use trunkline_integration::testbed::{self, LineShape, RunningProcess, TestHost};

use crate::run::scenario;

#[test]
fn the_contract_holds_between_hosts() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let cable = testbed.add_veth(&left, &right);
        let before = cable.device_counters(&left).sent.bytes;
        for family in ["AF_INET", "AF_INET6"] {
            for played in ["two_processes_exchange_messages", "two_processes_close_at_any_time"] {
                scenario(played).env("NCCL_SOCKET_FAMILY", family).on([&left, &right]).two();
            }
        }
        let sent = cable.device_counters(&left).sent.bytes - before;
        assert!(sent > 1 << 20, "only {sent} bytes were sent over the cable");
        scenario("two_processes_exchange_messages").env("TRUNKLINE_MATCH", "nic").on([&left, &right]).two();
        let fused = scenario("two_processes_exchange_messages").env("TRUNKLINE_SOFT_NICS", 4);
        fused.env("TEST_FUSED", "4,2").on([&left, &right]).two();
    });
}

#[test]
fn messages_survive_loss_and_delay() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let delay = Duration::from_millis(1);
        let cable = testbed.add_relay(
            &left,
            &right,
            LineShape { delay, jitter: delay, loss: 0.005, ..LineShape::PLAIN },
        );
        scenario("two_processes_exchange_messages").on([&left, &right]).two();
        assert!(cable.tally_from(&left).lost + cable.tally_from(&right).lost > 0, "nothing was lost");
    });
}

#[test]
fn a_slow_cable_is_no_error() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let _cable = testbed.add_relay(&left, &right, LineShape { rate: Some(40 << 20), ..LineShape::PLAIN });
        // The outstanding data fills every buffer, and the limit is shorter than the transfer.
        let setting =
            scenario("a_large_message_completes_over_a_slow_cable").env("TRUNKLINE_PEER_TIME_MS", 1000);
        setting.on([&left, &right]).two();
    });
}

#[test]
fn a_peer_killed_on_another_host_fails_every_request_soon() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let _cable = testbed.add_veth(&left, &right);
        for case in ["idle", "sending", "receiving", "connecting", "both"] {
            let setting = scenario("a_killed_peer_fails_every_request_soon").env("TEST_CASE", case);
            setting.on([&left, &right]).two_and_one_dies();
        }
    });
}

/// Stopped with full buffers for longer than the limit for a silent host.
#[test]
fn a_peer_stopped_on_another_host_is_no_error() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let _cable = testbed.add_veth(&left, &right);
        let setting = scenario("a_stopped_peer_is_no_error").env("TRUNKLINE_PEER_TIME_MS", 1000);
        setting.on([&left, &right]).two();
    });
}

#[test]
fn a_cut_cable_fails_every_request_in_time() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let cable = testbed.add_relay(&left, &right, LineShape::PLAIN);
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

/// Plays the scenario on two hosts, and calls `cut` in the middle.
fn cut(name: &'static str, case: &str, hosts: [&TestHost; 2], cut: impl FnOnce() + Send) {
    let setting = scenario(name).env("TEST_CASE", case).on(hosts);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(cable::UNTIL_CUT);
            cut();
        });
        setting.two();
    });
}

#[test]
fn check_link_reports_a_cut_cable() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let cable = testbed.add_relay(&left, &right, LineShape::PLAIN);
        for case in ["busy", "idle"] {
            cut("check_link_reports_a_cut_cable", case, [&left, &right], || cable.cut());
            cable.mend();
        }
    });
}

#[test]
fn check_link_reports_a_removed_interface() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let _cable = testbed.add_veth(&left, &right);
        for (case, change) in [("busy", "addr del 10.77.0.1/24 dev rail0"), ("idle", "link set rail0 down")] {
            let ip = || Command::new("ip").args(change.split(' ')).status();
            cut("check_link_reports_a_cut_cable", case, [&left, &right], || {
                assert!(left.call_on_host(ip).unwrap().success(), "ip {change}");
            });
            if case == "busy" {
                let add = "addr add 10.77.0.1/24 dev rail0";
                left.call_on_host(|| Command::new("ip").args(add.split(' ')).status()).unwrap();
            }
        }
    });
}

#[test]
fn check_link_accepts_a_lossy_cable() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let shape = LineShape { delay: Duration::from_millis(20), loss: 0.05, ..LineShape::PLAIN };
        let cable = testbed.add_relay(&left, &right, shape);
        scenario("check_link_accepts_a_lossy_cable").on([&left, &right]).two();
        assert!(cable.tally_from(&left).lost > 0 && cable.tally_from(&right).lost > 0, "nothing was lost");
    });
}

#[test]
fn check_link_accepts_a_stopped_peer() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let _cable = testbed.add_veth(&left, &right);
        scenario("check_link_accepts_a_stopped_peer").on([&left, &right]).two();
    });
}

/// One rank of a job of two, started as torchrun does; rank 0 is on the left host and writes the trace.
fn rank(host: &TestHost, rank: usize, trace: &Path) -> RunningProcess {
    let mut command = Command::new(trunkline_integration::command_path().unwrap());
    command.args(["bench", "all_reduce", "-b", "8", "-e", "4M", "-f", "64", "--json", "--trace"]).arg(trace);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("LOCAL_RANK", "0");
    command.env("MASTER_ADDR", "10.77.0.1").env("MASTER_PORT", "29555");
    command.env("TRUNKLINE_PLUGIN", trunkline_integration::plugin_path().unwrap());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    host.start_process(&mut command).unwrap()
}

#[test]
fn the_bench_runs_across_hosts() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let cable = testbed.add_veth(&left, &right);
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("trace.json");
        let (first, second) = (rank(&left, 0, &trace), rank(&right, 1, &trace));
        let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
        let text = [&first.stdout, &first.stderr, &second.stdout, &second.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes));
        assert!(first.status.success() && second.status.success(), "{text:#?}");
        let rows: Vec<serde_json::Value> =
            text[0].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 10, "5 sizes, in place and not: {text:#?}");
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["ranks"] == 2), "{text:#?}");
        assert_eq!(text[2], "", "only the first rank prints");
        let carried = cable.device_counters(&left).sent.bytes;
        assert!(carried > 4 << 20, "only {carried} bytes were sent over the cable");
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for process in [1, 2] {
            let long = |event: &serde_json::Value| event["args"]["bytes"].as_u64() > Some(4096);
            let of = |event: &serde_json::Value| event["pid"] == process && event["ph"] == "X" && long(event);
            // Long messages must be visible in the trace.
            assert!(events.iter().any(of), "rank {} of the trace", process - 1);
        }
    });
}
