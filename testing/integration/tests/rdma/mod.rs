//! The engine over RDMA devices: asserts the kernel's counters, and changes ports through the kernel. Without a device
//! each test is a counted skip; `scripts/rxe-vm --tests` has two software devices, `./test --fabric verbs` uses those
//! of the machine.

mod cable;
pub(crate) mod counts;
pub(crate) mod sizes;
mod unused;

use std::time::{Duration, Instant};

use crate::run::{Setting, scenario};
use cable::Cable;

/// Shortest time after which a silent link, or a silent peer, is considered dead.
const RAIL_TIME: Duration = Duration::from_secs(2);
/// Additional time for emulated processors, retransmissions and the interval of checks.
const SLACK: Duration = Duration::from_secs(10);
/// Time until a mended port carries again.
const RETAKEN: Duration = Duration::from_secs(20);
/// The same where only unanswered retransmissions detect the failure: emulated processors that share theirs with other work reply late.
const LONG_RAIL_TIME: Duration = Duration::from_secs(6);
/// Time until a port with a changed address carries again.
const READDRESSED: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A scenario over RDMA devices; `None`, counted as a skip, where there are none.
fn over_devices(name: &'static str) -> Option<Setting> {
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    if devices == 0 {
        trunkline_integration::skip_test(
            "the engine over verbs",
            "verbs",
            "there is no RDMA device; scripts/rxe-vm has some",
        );
        return None;
    }
    let mut setting = scenario(name);
    let fabric = std::env::var("TRUNKLINE_FABRIC").ok().filter(|fabric| fabric.starts_with("verbs"));
    setting = setting.env("TRUNKLINE_FABRIC", fabric.as_deref().unwrap_or("verbs"));
    for name in ["TRUNKLINE_TEST_EMULATED", "TRUNKLINE_TEST_PLUGIN"] {
        if let Some(value) = std::env::var_os(name) {
            setting = setting.env_os(name, value);
        }
    }
    Some(setting)
}

fn shared(setting: Setting, groups: u32) -> Setting {
    setting.env("TRUNKLINE_QP_SHARING", "on").env("TRUNKLINE_QP_GROUPS", groups)
}

#[test]
fn kernel_counts_equal_the_queue_pair_formula() {
    for (groups, links) in [(0, 1), (1, 1), (2, 2), (4, 1)] {
        let Some(setting) = over_devices("the_kernel_counts_queue_pairs") else { return };
        let setting = setting.env("TRUNKLINE_LINKS_PER_RAIL", links).env("TEST_GROUPS", groups);
        let setting = if groups > 0 { shared(setting, groups) } else { setting };
        setting.env("TEST_LINKS", links).env("TEST_RAILS", 1).two();
    }
}

#[test]
fn kernel_counts_equal_the_formula_on_two_devices() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|devices| devices.count() == 1) {
        trunkline_integration::skip_test("queue pairs over two devices", "two RDMA devices", "there is one");
        return;
    }
    for groups in [0, 2] {
        let Some(setting) = over_devices("the_kernel_counts_queue_pairs") else { return };
        let setting = setting.env("TEST_FUSED", 2).env("TEST_GROUPS", groups);
        let setting = if groups > 0 { shared(setting, groups) } else { setting };
        setting.env("TEST_LINKS", 2).env("TEST_RAILS", 2).two();
    }
}

#[test]
fn an_aborted_member_affects_no_other_over_rdma() {
    for way in ["deregister", "close"] {
        for end in ["receiving", "sending"] {
            for name in ["a_member_is_aborted_between_processes", "a_member_is_aborted_inside_one"] {
                let Some(setting) = over_devices(name) else { return };
                let setting = shared(setting, 1).env("TEST_WAY", way).env("TEST_END", end);
                if name.ends_with("inside_one") { setting.alone() } else { setting.two() }
            }
        }
    }
}

#[test]
fn a_message_arrives_although_all_short_ones_wait() {
    let name = "a_message_arrives_although_all_short_ones_wait";
    let Some(setting) = over_devices(name) else { return };
    setting.alone();
    shared(over_devices(name).expect("the devices of the earlier call"), 1).alone();
}

#[test]
fn sizes_are_exact_with_and_without_adaptive_routing() {
    // With adaptive routing, a message's bytes and its immediate are two operations, which the network may reorder.
    for routing in [0, 1] {
        for name in ["every_message_size_between_threads", "grouped_receives_match_by_tag"] {
            let Some(setting) = over_devices(name) else { return };
            let setting = setting.env("NCCL_IB_ADAPTIVE_ROUTING", routing).env("NCCL_IB_AR_THRESHOLD", 0);
            shared(setting, 2).alone();
        }
    }
}

/// Plays a stream over the machine's first rail and another one, and calls `act` meanwhile. The stream gets its signal
/// when `act` calls its argument, or after `act` at the latest.
fn during(setting: Setting, rail_time: Duration, act: impl FnOnce(&dyn Fn())) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("told");
    let setting =
        setting.env("TEST_FILE", path.display()).env("TRUNKLINE_RAIL_TIME_MS", rail_time.as_millis());
    std::thread::scope(|scope| {
        scope.spawn(|| setting.two());
        // Signal the stream even if `act` panics.
        let tell = || std::fs::write(&path, b"").unwrap();
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&tell)));
        tell();
        if let Err(why) = told {
            std::panic::resume_unwind(why);
        }
    });
}

/// Waits until a device has sent `packets` more.
#[track_caller]
fn wait_for(sent: impl Fn() -> u64, packets: u64, limit: Duration, what: &str) -> Duration {
    let (since, before) = (Instant::now(), sent());
    while sent() - before < packets {
        assert!(since.elapsed() < limit, "{what}: {} packets in {limit:?}", sent() - before);
        std::thread::sleep(Duration::from_millis(5));
    }
    since.elapsed()
}

#[test]
fn a_rail_with_a_disabled_port_is_left_and_taken_back() {
    let Some(setting) = over_devices("a_stream_arrives_whole") else { return };
    let Some(cable) = Cable::lay() else { return };
    let setting = setting.env("TEST_NICS", format!("rxe0+{},rxe1+{}", cable.devices[0], cable.devices[1]));
    let setting = setting.env("TEST_WAYS", "both").env("TEST_LENGTH", MIB);
    during(setting.env("TEST_PAUSE_MS", (RAIL_TIME + SLACK).as_millis()), RAIL_TIME, |_| {
        let (first, other) = (|| cable::sent("rxe0"), || cable::sent(cable.devices[0]));
        for round in 0..2 {
            wait_for(other, 2000, RETAKEN, "the rail before");
            cable.cut();
            let goes_on = wait_for(first, 5000, RAIL_TIME + SLACK, "the other rail");
            cable.mend();
            let back = wait_for(other, 2000, RETAKEN, "the rail that was mended");
            println!(
                "figure: round {round}: continues {goes_on:?} after the cut, back {back:?} after it was mended"
            );
        }
    });
}

#[test]
fn a_rail_whose_address_changes_is_left_and_taken_back() {
    let Some(setting) = over_devices("a_stream_arrives_whole") else { return };
    let Some(cable) = Cable::lay() else { return };
    let setting = setting.env("TEST_NICS", format!("rxe0+{},rxe1+{}", cable.devices[0], cable.devices[1]));
    // Soft-RoCE treats 7 retransmissions, the default, as endless ones.
    let setting = setting.env("NCCL_IB_RETRY_CNT", 6).env("TEST_WAYS", "both").env("TEST_LENGTH", MIB / 4);
    during(setting.env("TEST_PAUSE_MS", READDRESSED.as_millis()), LONG_RAIL_TIME, |_| {
        // Packets to a removed address never arrive, even if they are retransmitted.
        let (first, other) = (|| cable::sent("rxe0"), || cable::received(cable.devices[0]));
        // First the address is missing for a while before another is added; then another is added beside it, at another
        // index of the port's table.
        for beside in [false, true] {
            wait_for(other, 100, READDRESSED, "the rail before");
            let (before, after) = if beside { (3, 4) } else { (1, 3) };
            if beside {
                cable.add_address(after);
            }
            cable.remove_address(before);
            let goes_on = wait_for(first, 500, READDRESSED, "the other rail");
            if !beside {
                cable.add_address(after);
            }
            let back = wait_for(other, 100, READDRESSED, "the rail with another address");
            println!("figure: beside {beside}: continues {goes_on:?} after the change, back {back:?} later");
        }
    });
}

#[test]
fn disabling_the_only_port_fails_with_its_name() {
    let Some(setting) = over_devices("a_stream_fails_once") else { return };
    let Some(cable) = Cable::lay() else { return };
    let setting = setting.env("TEST_NICS", format!("{},{}", cable.devices[0], cable.devices[1]));
    let setting = setting.env("TEST_WAYS", "both").env("TRUNKLINE_PEER_TIME_MS", RAIL_TIME.as_millis());
    during(setting.env("TEST_LIMIT_MS", (2 * RAIL_TIME + SLACK).as_millis()), RAIL_TIME, |tell| {
        wait_for(|| cable::sent(cable.devices[0]), 2000, RETAKEN, "the rail before");
        // The error may arrive before the command that cuts has ended.
        tell();
        cable.cut();
    });
}
