//! Connections that share queue pairs: the resources of NIC and system that they use, the fate of messages, and effects between members.

pub(crate) mod churn;
mod counts;
pub(crate) mod crowds;
pub(crate) mod flow;
pub(crate) mod flushes;
pub(crate) mod neighbours;
mod same;

use std::time::{Duration, Instant};

use trunkline_engine::read_status;
use trunkline_mem::PageView;
use trunkline_proto::limits::RANGE_RECVS;
use trunkline_proto::wire::status::{NAME, NicUsage, StatusSnapshot};

use crate::net::{Comm, Net, until};
use crate::run::{Scene, Setting, scenario};

/// Whether the long tests are requested.
pub(crate) fn is_full() -> bool {
    std::env::var_os("TRUNKLINE_FULL").is_some()
}

/// A scenario whose connections of one direction share `groups` groups.
fn shared(name: &'static str, groups: u8) -> Setting {
    scenario(name).env("TRUNKLINE_QP_SHARING", "on").env("TRUNKLINE_QP_GROUPS", groups)
}

/// The status page of the plugin in this process.
pub(crate) fn status() -> StatusSnapshot {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let named = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(&format!("/memfd:{NAME}")))
    };
    let page = descriptors.map(|entry| entry.path()).find(|path| named(path)).expect("a status page");
    let view = PageView::open(&std::fs::File::open(page).expect("the page")).expect("a page");
    read_status(&view).expect("a status")
}

/// The usage of the plugin's NICs in this process, as the NICs report.
pub(crate) fn usage() -> NicUsage {
    let mut all = NicUsage::default();
    for nic in status().head.usage {
        all.queue_pairs += nic.queue_pairs;
        all.completion_queues += nic.completion_queues;
        all.regions += nic.regions;
    }
    all
}

pub(crate) fn queue_pairs() -> u32 {
    usage().queue_pairs
}

/// Time limit of events that are immediate when both ends work; the peer time limit is 10 s.
const SOON: Duration = Duration::from_secs(5);

/// Polls until `count` queue pairs are left, which must not take the peer time limit.
#[track_caller]
pub(crate) fn wait_for_queue_pairs(net: &Net, count: u32) {
    let (listen, _) = net.listen();
    let began = Instant::now();
    until("the release of queue pairs", || {
        assert_eq!(net.try_accept(listen), Ok(None));
        (queue_pairs() == count).then_some(())
    });
    let took = began.elapsed();
    assert!(took < SOON, "it took {took:?} until {count} queue pairs were left");
    net.close_listen(listen).expect("closeListen");
}

/// Makes `count` connections from the second process to the first.
pub(crate) fn connect_many(net: &Net, scene: &mut Scene, count: usize) -> Vec<Comm> {
    let comms;
    if scene.role == 0 {
        let (listen, handle) = net.listen();
        scene.say(&handle);
        comms = (0..count).map(|_| until("accept", || net.try_accept(listen).expect("accept"))).collect();
        net.close_listen(listen).expect("closeListen");
    } else {
        let handle = scene.hear_handle();
        let connect = |_| {
            let mut handle = handle;
            until("connect", || net.try_connect(&mut handle).expect("connect"))
        };
        comms = (0..count).map(connect).collect();
    }
    comms
}

#[test]
fn an_aborted_member_affects_no_other_member() {
    for way in ["deregister", "close"] {
        for end in ["receiving", "sending"] {
            let of = |name| shared(name, 1).env("TEST_WAY", way).env("TEST_END", end);
            of("a_member_is_aborted_inside_one").alone();
            for (wire, copy) in
                [("soft:shm", "auto"), ("soft:shm", "staging"), ("soft:shm", "pull"), ("soft:tcp", "auto")]
            {
                let setting = of("a_member_is_aborted_between_processes").env("TRUNKLINE_FABRIC", wire);
                setting.env("TRUNKLINE_SOFT_COPY", copy).two();
            }
        }
    }
}

#[test]
fn joining_without_descriptors_affects_no_other_member() {
    for end in ["receiving", "sending"] {
        let two = shared("a_member_joins_without_free_descriptors", 1).env("TEST_END", end);
        two.env("TRUNKLINE_FABRIC", "soft:shm").env("TRUNKLINE_LINKS_PER_RAIL", 2).two();
    }
}

#[test]
fn one_connection_carries_the_same_shared_and_alone() {
    same::the_same_digest();
}

#[test]
fn sharing_off_changes_no_count() {
    counts::sharing_off_changes_nothing();
}

#[test]
fn queue_pair_counts_equal_the_formula() {
    counts::queue_pairs_match_the_formula(1..=1, &[1]);
}

#[test]
fn queue_pair_counts_over_links_equal_the_formula() {
    counts::queue_pairs_match_the_formula(1..=4, &[1]);
}

#[test]
fn queue_pair_counts_over_nics_equal_the_formula() {
    counts::queue_pairs_match_the_formula(1..=2, &[1, 2, 4]);
}

#[test]
fn more_members_than_a_group_holds_begin_another() {
    counts::more_than_a_group_holds();
}

#[test]
fn groups_spread_over_pipelines_by_their_weight() {
    counts::pipelines_are_balanced();
}

#[test]
fn a_budget_makes_comms_share() {
    counts::a_budget_makes_comms_share();
}

#[test]
fn sixteen_communicators_take_a_hundredth_of_the_queue_pairs() {
    counts::a_hundredth_of_the_queue_pairs();
}

#[test]
fn members_take_neither_registrations_nor_descriptors() {
    counts::members_cost_little();
}

#[test]
fn members_close_in_every_order() {
    for wire in ["soft:shm", "soft:tcp"] {
        shared("members_close_in_every_order", 1).env("TRUNKLINE_FABRIC", wire).two();
    }
}

#[test]
fn all_close_on_one_side_only() {
    for wire in ["soft:shm", "soft:tcp"] {
        for groups in [1, 4] {
            shared("all_close_on_one_side_only", groups).env("TRUNKLINE_FABRIC", wire).two();
        }
    }
}

#[test]
fn thousands_of_connections_open_and_close() {
    let setting = shared("thousands_of_connections_open_and_close", 2);
    setting.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0").two();
}

#[test]
fn eight_threads_connect_at_once() {
    for groups in [1, 4] {
        shared("eight_threads_connect_at_once", groups).alone();
    }
}

#[test]
fn eight_threads_test_on_one_group() {
    shared("eight_threads_test_on_one_group", 1).alone();
    shared("eight_threads_test_on_one_group", 1).env("TRUNKLINE_FABRIC", "soft:shm").alone();
}

/// The contract, with all connections of one direction on one queue pair or on some.
#[test]
fn the_contract_holds_on_shared_queue_pairs() {
    let played = [
        "any_order_of_connect_and_accept",
        "one_thread_connects_to_itself",
        "one_listener_accepts_many",
        "stale_requests_are_overwritten",
        "every_message_size_between_threads",
        "sends_end_without_their_receiver",
        "grouped_receives_match_by_tag",
        "requests_are_tested_in_any_order",
        "messages_pass_one_whose_receive_is_late",
        "a_flush_has_nothing_to_wait_for",
        "a_range_registers_repeatedly",
        "comms_close_in_any_order",
        "comms_close_with_work_in_flight",
        "registration_beside_traffic",
        "communicators_end_and_start_again",
    ];
    for played in played {
        for (wire, groups) in [("soft", 1), ("soft:shm", 1), ("soft:tcp", 1), ("soft", 4)] {
            let setting = shared(played, groups).env("TRUNKLINE_FABRIC", wire);
            setting.env("TEST_RECEIVES", RANGE_RECVS).alone();
        }
    }
    shared("a_flush_is_a_request", 1).env("TRUNKLINE_SOFT_DELAYED", 1).alone();
}

#[test]
fn flushes_are_among_receives_on_shared_queue_pairs() {
    for (wire, links) in [("soft", 1), ("soft:shm", 1), ("soft:tcp", 1), ("soft", 2)] {
        let setting = shared("flushes_are_among_receives", 1).env("TRUNKLINE_FABRIC", wire);
        setting.env("TRUNKLINE_LINKS_PER_RAIL", links).env("TRUNKLINE_SOFT_DELAYED", 1).alone();
    }
}

/// Settings of two processes that share.
const BETWEEN: [(&str, &str); 6] = [
    ("TRUNKLINE_FABRIC", "soft:shm"),
    ("TRUNKLINE_FABRIC", "soft:tcp"),
    ("TRUNKLINE_EAGER_CREDITS", "1"),
    ("TRUNKLINE_EAGER_MAX", "0"),
    ("TRUNKLINE_SOFT_COPY", "staging"),
    ("TRUNKLINE_MATCH", "nic"),
];

#[test]
fn two_processes_exchange_messages_on_shared_queue_pairs() {
    for (name, value) in BETWEEN {
        shared("two_processes_exchange_messages", 1).env(name, value).two();
    }
}

#[test]
fn two_processes_that_share_close_at_any_time() {
    for (name, value) in BETWEEN {
        let began = Instant::now();
        shared("two_processes_close_at_any_time", 1).env(name, value).two();
        assert!(began.elapsed() < SOON, "{name}={value}: {:?}", began.elapsed());
    }
}

#[test]
fn messages_beyond_4_gib_on_shared_queue_pairs() {
    if is_full() {
        shared("messages_beyond_4_gib", 1).alone();
        shared("messages_beyond_4_gib", 1).env("TRUNKLINE_FABRIC", "soft:shm").alone();
    }
}

#[test]
fn shared_messages_at_the_borders_of_31_and_32_bits() {
    if is_full() {
        shared("messages_at_the_borders_of_31_bits", 1).alone();
        shared("messages_at_the_borders_of_32_bits", 1).env("TRUNKLINE_FABRIC", "soft:shm").alone();
        let spread = shared("messages_at_the_borders_of_32_bits", 1).env("TRUNKLINE_LINKS_PER_RAIL", 2);
        spread.alone();
    }
}

#[test]
fn processes_behind_one_nic_share_nothing() {
    for wire in ["soft:shm", "soft:tcp"] {
        shared("processes_behind_one_nic_share_nothing", 1).env("TRUNKLINE_FABRIC", wire).two();
    }
}

#[test]
fn hints_set_the_weight_of_a_connection() {
    for version in [11, 12] {
        shared("hints_set_the_weight_of_a_connection", 2).version(version).alone();
    }
}

#[test]
fn all_messages_are_in_flight_at_once() {
    for wire in ["soft:shm", "soft:tcp"] {
        for depth in [1, 4] {
            let setting = shared("all_messages_are_in_flight_at_once", 1).env("TRUNKLINE_FABRIC", wire);
            setting.env("TRUNKLINE_QP_DEPTH_MULTIPLIER", depth).two();
        }
    }
}

#[test]
fn queues_have_the_requested_depth() {
    for wire in ["soft:shm", "soft:tcp"] {
        for times in [1, 2, 4] {
            let setting = shared("queues_have_the_requested_depth", 1).env("TRUNKLINE_FABRIC", wire);
            setting.env("TRUNKLINE_QP_DEPTH_MULTIPLIER", times).alone();
        }
    }
}

/// Several members on a link whose NIC matches sends with receives.
#[test]
fn members_share_a_matching_nic() {
    let of = |name| shared(name, 1).env("TRUNKLINE_MATCH", "nic");
    for wire in ["soft:shm", "soft:tcp"] {
        of("members_close_in_every_order").env("TRUNKLINE_FABRIC", wire).two();
        of("all_messages_are_in_flight_at_once").env("TRUNKLINE_FABRIC", wire).two();
        of("all_close_on_one_side_only").env("TRUNKLINE_FABRIC", wire).two();
        for end in ["receiving", "sending"] {
            let setting = of("a_member_is_aborted_between_processes").env("TRUNKLINE_FABRIC", wire);
            setting.env("TEST_WAY", "close").env("TEST_END", end).two();
        }
    }
}

/// Members that each use several NICs, with equal or different numbers at both ends.
#[test]
fn members_use_several_nics() {
    let of = |name, shape, wire| {
        let setting = shared(name, 1).env("TRUNKLINE_SOFT_NICS", 4).env("TEST_FUSED", shape);
        setting.env("TRUNKLINE_FABRIC", wire)
    };
    for (shape, wire) in [("2", "soft:shm"), ("4", "soft:tcp"), ("4,2", "soft:shm"), ("1,2", "soft:tcp")] {
        of("two_processes_exchange_messages", shape, wire).two();
    }
    for (shape, wire) in [("2", "soft:tcp"), ("4,2", "soft:shm")] {
        of("members_close_in_every_order", shape, wire).two();
        of("all_messages_are_in_flight_at_once", shape, wire).two();
        for end in ["receiving", "sending"] {
            let setting = of("a_member_is_aborted_between_processes", shape, wire);
            setting.env("TEST_WAY", "close").env("TEST_END", end).two();
        }
    }
}

#[test]
fn a_killed_peer_fails_each_member_once() {
    for wire in ["soft:shm", "soft:tcp"] {
        let setting = shared("a_killed_peer_fails_each_member_once", 1).env("TRUNKLINE_FABRIC", wire);
        setting.two_and_one_dies();
    }
}

#[test]
fn ends_with_different_settings_agree() {
    // Groups configured at the first and the second process, and queue pairs of twelve connections.
    for wanted in ["off,4=12", "4,off=12", "1,8=1", "8,1=1", "3,5=3", "8,8=8"] {
        shared("ends_with_different_settings_agree", 1).env("TEST_WANTED", wanted).two();
    }
}

#[test]
fn a_small_message_waits_for_few_slices_of_long_ones() {
    counts::a_small_message_waits_for_few_slices();
}
