//! NCCL's contract, for every version of the interface.

pub(crate) mod arguments;
pub(crate) mod connections;
pub(crate) mod fabrics;
pub(crate) mod fused;
pub(crate) mod lifetimes;
pub(crate) mod messages;

use crate::run::scenario;

/// Scenarios that every version plays in one process.
macro_rules! in_every_version {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            scenario(stringify!($name)).alone_in_every_version();
        })*
    };
}

in_every_version! {
    any_order_of_connect_and_accept,
    connecting_under_load_never_blocks,
    one_thread_connects_to_itself,
    one_listener_accepts_many,
    listeners_close_at_any_time,
    stale_requests_are_overwritten,
    every_message_size_between_threads,
    sends_end_without_their_receiver,
    grouped_receives_match_by_tag,
    requests_are_tested_in_any_order,
    messages_pass_one_whose_receive_is_late,
    an_optional_receive_can_be_tested,
    a_message_arrives_although_all_short_ones_wait,
    a_flush_has_nothing_to_wait_for,
    a_range_registers_repeatedly,
    comms_close_in_any_order,
    comms_close_with_work_in_flight,
    registration_beside_traffic,
    properties_stay,
    fused_devices_and_hints,
    communicators_end_and_start_again,
    null_and_unknown_arguments,
}

#[test]
fn two_processes_exchange_messages() {
    scenario("two_processes_exchange_messages").two_in_every_version();
}

#[test]
fn a_forked_child_ends() {
    scenario("a_forked_child_ends").two();
}

#[test]
fn two_processes_close_at_any_time() {
    scenario("two_processes_close_at_any_time").two_in_every_version();
}

#[test]
fn a_registration_may_be_larger_than_4_gib() {
    for version in 8..=12 {
        scenario("a_registration_may_be_larger_than_4_gib").version(version).alone();
    }
}

#[test]
fn flushes_are_real_when_visibility_is_delayed() {
    for version in crate::run::VERSIONS {
        scenario("a_flush_is_a_request").version(version).env("TRUNKLINE_SOFT_DELAYED", 1).alone();
    }
}

/// The contract with each other wire or way of matching.
#[test]
fn the_contract_holds_with_every_setting() {
    let settings = [
        ("TRUNKLINE_MATCH", "nic"),
        ("TRUNKLINE_FABRIC", "soft:shm"),
        ("TRUNKLINE_FABRIC", "soft:tcp"),
        ("TRUNKLINE_FABRIC", "soft"),
        ("TRUNKLINE_EAGER_MAX", "0"),
        ("TRUNKLINE_EAGER_CREDITS", "1"),
        ("TRUNKLINE_SOFT_COPY", "staging"),
        ("TRUNKLINE_SOFT_NICS", "3"),
        ("TRUNKLINE_DEPTH", "64"),
    ];
    let played = [
        "any_order_of_connect_and_accept",
        "stale_requests_are_overwritten",
        "every_message_size_between_threads",
        "grouped_receives_match_by_tag",
        "requests_are_tested_in_any_order",
        "messages_pass_one_whose_receive_is_late",
        "comms_close_in_any_order",
        "comms_close_with_work_in_flight",
        "registration_beside_traffic",
    ];
    for (name, value) in settings {
        for played in played {
            scenario(played).env(name, value).alone();
        }
        scenario("two_processes_exchange_messages").env(name, value).two();
    }
    let both = scenario("every_message_size_between_threads").env("TRUNKLINE_MATCH", "nic");
    both.env("TRUNKLINE_FABRIC", "soft:shm").alone();
}

/// NICs of the software NIC, and how many of them each of two processes uses together.
const SHAPES: [&str; 4] = ["1,2", "2,4", "4,1", "4,4"];

/// Scenarios about virtual devices, in every version that makes them.
macro_rules! in_versions_that_fuse {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            for version in 9..=12 {
                scenario(stringify!($name)).version(version).env("TRUNKLINE_SOFT_NICS", 4).alone();
            }
        })*
    };
}

in_versions_that_fuse! {
    virtual_devices_follow_physical_ones,
    impossible_member_lists_are_refused,
    older_versions_see_no_virtual_devices,
    virtual_devices_outlive_the_last_communicator,
    threads_fuse_beside_traffic,
}

/// NCCL fuses NICs by default. Once fused, a NIC without a place in the PCI tree would be unreachable in NCCL's topology.
#[test]
fn nics_without_a_pci_path_are_fused_only_on_request() {
    for version in [9, 12] {
        let setting = scenario("nics_without_a_pci_path_are_fused_only_on_request").version(version);
        setting.env("TRUNKLINE_SOFT_NICS", 4).env("TRUNKLINE_FUSE", "placed").alone();
    }
}

#[test]
fn fused_devices_connect_to_any_other() {
    for version in 9..=12 {
        for wire in ["soft", "soft:shm", "soft:tcp"] {
            let setting = scenario("fused_devices_connect_to_any_other").version(version);
            setting.env("TRUNKLINE_SOFT_NICS", 4).env("TRUNKLINE_FABRIC", wire).alone();
        }
    }
}

#[test]
fn two_processes_exchange_messages_over_fused_devices() {
    for version in 9..=12 {
        for wire in ["soft", "soft:tcp"] {
            for shape in SHAPES {
                let setting = scenario("two_processes_exchange_messages").version(version);
                let setting = setting.env("TRUNKLINE_SOFT_NICS", 4).env("TRUNKLINE_FABRIC", wire);
                setting.env("TEST_FUSED", shape).two();
            }
        }
    }
}

/// The contract with all comms on a virtual device.
#[test]
fn the_contract_holds_on_fused_devices() {
    let played = [
        "any_order_of_connect_and_accept",
        "one_thread_connects_to_itself",
        "listeners_close_at_any_time",
        "stale_requests_are_overwritten",
        "every_message_size_between_threads",
        "grouped_receives_match_by_tag",
        "requests_are_tested_in_any_order",
        "messages_pass_one_whose_receive_is_late",
        "a_flush_has_nothing_to_wait_for",
        "comms_close_in_any_order",
        "comms_close_with_work_in_flight",
        "registration_beside_traffic",
    ];
    for wire in ["soft", "soft:tcp"] {
        for played in played {
            let setting = scenario(played).env("TRUNKLINE_SOFT_NICS", 4).env("TRUNKLINE_FABRIC", wire);
            setting.env("TEST_FUSED", 4).alone();
        }
    }
}

#[test]
fn messages_at_the_borders_of_31_and_32_bits() {
    scenario("messages_at_the_borders_of_31_bits").version(9).alone();
    scenario("messages_at_the_borders_of_31_bits").version(8).alone();
    if std::env::var_os("TRUNKLINE_FULL").is_some() {
        scenario("messages_at_the_borders_of_32_bits").alone();
        scenario("messages_at_the_borders_of_32_bits").env("TRUNKLINE_FABRIC", "soft:tcp").alone();
    }
}

#[test]
fn messages_beyond_4_gib() {
    if std::env::var_os("TRUNKLINE_FULL").is_none() {
        return;
    }
    scenario("messages_beyond_4_gib").version(9).alone();
    scenario("messages_beyond_4_gib").version(12).env("TRUNKLINE_FABRIC", "soft:shm").alone();
}
