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
            full_pipeline_errors_name_the_pipeline,
            waits_hold_later_operations,
            waits_end_with_their_completion,
            waits_for_past_completions_end_at_once,
            errors_fail_the_waits_for_later_completions,
            closed_rails_fail_their_waits,
            waits_may_be_for_their_own_rail,
            waits_fill_the_queue,
            ending_links_flush_their_waits,
            companions_count_completed_operations,
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
            writes_with_immediate_notify_the_target,
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
            matched_sends_too_long_keep_the_link_usable,
            flushes_complete,
            nops_complete_in_order,
            nops_prove_that_earlier_operations_arrived,
            placed_writes_complete_after_placement,
            unsignalled_operations_complete_only_on_failure,
            both_directions_keep_order_at_once,
            wrong_keys_are_refused,
            refusals_stay_on_their_link,
            missing_rights_are_refused,
            accesses_outside_are_refused,
            deregistered_regions_are_refused,
            writes_to_retired_regions_are_dropped,
            regions_can_be_retired_under_writes,
            retired_regions_are_only_written,
            refusals_reach_unsignalled_operations,
            refused_reads_and_atomics_place_nothing,
            too_long_sends_fail_on_both_sides,
            errors_flush_posted_operations,
            foreign_local_keys_are_refused,
            sends_wait_for_receives,
            credits_allow_exactly_that_many_posts,
            released_memory_is_no_longer_used,
            receives_are_bounded,
            failed_links_are_quiet_after_unsignalled_work,
            links_can_be_made_again,
            many_links_are_served,
            links_are_spread_over_pipelines,
            links_are_created_on_the_requested_pipeline,
            unknown_pipelines_are_refused,
            destroyed_links_leave_their_pipeline,
            waits_for_unknown_queues_are_refused,
        }
    };
}
