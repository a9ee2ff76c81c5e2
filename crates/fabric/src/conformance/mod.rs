//! The requirements on every fabric, as tests over the contract alone. Each fabric provides a [`ConformanceSetup`] that makes connected pairs
//! and instantiates all cases with [`fabric_conformance!`](crate::fabric_conformance). The cases do not know which fabric
//! they run on, and every wait has a limit.

mod cancelled_matches;
mod errors;
mod events;
mod exported;
mod immediates;
mod ops;
mod pair;
mod pipelines;
mod queues;
mod retired;
mod wait;

pub use cancelled_matches::*;
pub use errors::*;
pub use events::*;
pub use exported::*;
pub use immediates::*;
pub use ops::*;
pub use pair::{ConformanceSetup, PolledCompletions, RailPair, TestRegion, default_config, pattern_byte};
pub use pipelines::*;
pub use queues::*;
pub use retired::*;
pub use wait::*;

/// Makes one `#[test]` of every case for the [`ConformanceSetup`](crate::conformance::ConformanceSetup) that `$setup` evaluates to; or only of
/// those that are named after `@cases $setup;`.
#[macro_export]
macro_rules! fabric_conformance {
    ($setup:expr) => {
        $crate::conformance_cases! { $crate::fabric_conformance; @cases $setup;
            exported_bytes_are_reached_by_their_descriptor,
            exported_bytes_end_where_the_memory_does,
        }
    };
    (@cases $setup:expr; $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::$case(&$setup);
            }
        )*
    };
}

/// Calls the macro `$then` with the tokens `$before` and then the names of all cases, without those of memory registered by a descriptor.
#[macro_export]
macro_rules! conformance_cases {
    ($then:path; $($before:tt)*) => {
        $crate::conformance_cases_of_lossy_ends! { $then; $($before)*
            destroyed_links_flush_the_peer,
            failed_links_deliver_what_arrived,
            a_full_pipeline_names_itself,
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
        }
    };
}

/// As [`conformance_cases!`](crate::conformance_cases), but only with the cases for a NIC without completion queues to wait for, that drops
/// messages in transit when the peer destroys or fails its link.
#[macro_export]
macro_rules! conformance_cases_of_lossy_ends {
    ($then:path; $($before:tt)*) => {
        $then! { $($before)*
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
    };
}
