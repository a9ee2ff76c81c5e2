//! The simulated network does what every fabric must do, and in every weather that keeps the order of a link.

use trunkline_fabric::conformance::{self as suite, Setup};
use trunkline_fabric::{Fabric, RailConfig};

use crate::{Mutant, SimFabric, SimRail, Weather, World};

struct Sim(Weather);

impl Setup for Sim {
    type Rail = SimRail;

    fn rails(&self, config: &RailConfig) -> (SimRail, SimRail) {
        let world = World::new(5, self.0.clone(), Mutant::None, false);
        let open = || SimFabric::new(&world, world.add_process()).open(0, config).unwrap();
        (open(), open())
    }
}

/// The cases, less those that a NIC whose peer has destroyed or failed its link cannot promise: what had not arrived by
/// then is gone (`destroyed_links_flush_the_peer`, `failed_links_deliver_what_arrived`).
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod calm {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(calm())); })*
        }
        mod rough {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(rough())); })*
        }
        mod lending {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(lending())); })*
        }
        mod held_back {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(held_back())); })*
        }
        mod without_immediates {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(calm().without_immediates())); })*
        }
        mod untold {
            use super::*;
            $(#[test] fn $case() { suite::$case(&Sim(rough().untold())); })*
        }
    };
}

fn calm() -> Weather {
    let mut weather = Weather::calm();
    // The suite's receives leave a hundred bytes for an inline head.
    weather.caps.inline_max = 100;
    weather
}

fn rough() -> Weather {
    Weather {
        jitter: 5_000,
        slow: 100,
        kib_time: 400,
        pieces: 8,
        short_poll: 500,
        based: true,
        poll_time: 5_000,
        ..calm()
    }
}

/// Immediates take receives.
fn lending() -> Weather {
    let mut weather = rough();
    weather.caps.immediate_takes_receive = true;
    weather
}

/// Links that come up late, and a network that takes little at once.
fn held_back() -> Weather {
    Weather { dialled: true, dial_time: 20_000, cramped: 500, ..calm() }
}

cases! {
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
    failed_links_are_quiet_after_untold_work,
    links_can_be_made_again,
    many_links_are_served,
    links_are_spread_over_pipelines,
    links_go_where_they_are_asked_to,
    a_pipeline_that_is_not_there_is_refused,
    destroyed_links_leave_their_pipeline,
    waits_for_unknown_queues_are_refused,
}
