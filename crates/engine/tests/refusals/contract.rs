//! The contract of fabrics, over the wires of the software NIC that lie inside a host.

use trunkline_fabric::conformance::{self, Setup};
use trunkline_fabric::{Fabric, RailConfig};
use trunkline_softnic::{CopyMode, SoftConfig, SoftFabric, SoftRail};

use crate::trials::{Case, Outcome};

/// Rails of one fabric, whose ends are in one process.
struct Mem;

/// Rails of two fabrics, with a segment of shared memory between them.
struct Shm;

impl Mem {
    fn fabric() -> SoftFabric {
        SoftFabric::new(SoftConfig::default()).unwrap()
    }
}

impl Setup for Mem {
    type Rail = SoftRail;

    fn rails(&self, config: &RailConfig) -> (SoftRail, SoftRail) {
        let fabric = Self::fabric();
        (fabric.open(0, config).unwrap(), fabric.open(0, config).unwrap())
    }

    fn trio(&self, config: &RailConfig) -> Option<[SoftRail; 3]> {
        let fabric = Self::fabric();
        Some([(); 3].map(|()| fabric.open(0, config).unwrap()))
    }
}

impl Shm {
    fn fabric() -> SoftFabric {
        SoftFabric::new(SoftConfig { copy: CopyMode::Staging, ..SoftConfig::default() }).unwrap()
    }
}

impl Setup for Shm {
    type Rail = SoftRail;

    fn rails(&self, config: &RailConfig) -> (SoftRail, SoftRail) {
        (Self::fabric().open(0, config).unwrap(), Self::fabric().open(0, config).unwrap())
    }

    fn trio(&self, config: &RailConfig) -> Option<[SoftRail; 3]> {
        let (first, other) = (Self::fabric(), Self::fabric());
        Some([&first, &first, &other].map(|fabric| fabric.open(0, config).unwrap()))
    }
}

/// The cases of the suite, each over both.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        /// Over rails of one fabric.
        pub(crate) const OVER_MEM: &[Case] = &[$((stringify!($case), || -> Outcome {
            conformance::$case(&Mem);
            Ok(())
        })),*];
        /// Over shared memory.
        pub(crate) const OVER_SHM: &[Case] = &[$((stringify!($case), || -> Outcome {
            conformance::$case(&Shm);
            Ok(())
        })),*];
    };
}

cases!(
    sends_fill_receives_in_order,
    sends_join_head_and_body,
    writes_land_at_every_size,
    writes_with_immediate_tell_the_target,
    immediates_leave_the_receives_posted,
    immediates_wait_for_receives_where_they_take_them,
    receives_of_immediates_end_with_their_link,
    immediates_and_sends_share_the_receives,
    reads_fetch_every_size,
    atomics_return_the_old_value,
    matched_sends_find_their_receives,
    matched_sends_wait_for_their_receives,
    matched_operations_can_be_taken_back,
    matched_receives_are_taken_back_under_sends,
    matched_sends_that_are_too_long_harm_nobody,
    flushes_complete,
    nops_complete_in_order,
    nops_prove_that_all_before_arrived,
    placed_writes_complete_when_they_are_there,
    unsignalled_operations_stay_silent,
    both_directions_at_once,
    wrong_keys_are_refused,
    refusals_stay_on_their_link,
    missing_rights_are_refused,
    accesses_outside_are_refused,
    deregistered_regions_are_refused,
    writes_to_retired_regions_go_nowhere,
    regions_can_be_retired_under_writes,
    retired_regions_are_only_written,
    refusals_reach_unsignalled_operations,
    refused_reads_and_atomics_place_nothing,
    sends_that_are_too_long_fail_on_both_sides,
    errors_flush_what_is_posted,
    foreign_local_keys_are_refused,
    sends_wait_for_receives,
    credits_are_honest,
    memory_that_is_given_back_is_free,
    receives_are_bounded,
    destroyed_links_flush_the_peer,
    failed_links_deliver_what_arrived,
    failed_links_are_quiet_after_untold_work,
    links_can_be_made_again,
    many_links_are_served,
    links_are_spread_over_pipelines,
    links_go_where_they_are_asked_to,
    a_pipeline_that_is_not_there_is_refused,
    destroyed_links_leave_their_pipeline,
    a_full_pipeline_names_itself,
    waits_for_unknown_queues_are_refused,
    waits_hold_what_comes_after_them,
    waits_end_with_their_completion,
    waits_for_the_past_end_at_once,
    errors_fail_the_waits_from_them_on,
    closed_rails_fail_their_waits,
    waits_may_be_for_their_own_rail,
    waits_fill_the_queue,
    links_that_end_give_back_their_waits,
    companions_count_what_has_ended,
    events_end_the_wait_for_a_send,
    events_of_failed_links_end_no_wait,
    event_descriptors_outlive_their_rail,
);
