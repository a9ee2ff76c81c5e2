//! The plugin and `trunkline bench` over the enforcing provider, with different demands and fault injections. After
//! each run its report is checked: no rule was violated, and each domain was closed without open objects.

use std::collections::BTreeSet;
use std::ffi::OsString;

use strict_fi::StrictReport;
use trunkline_ofi::OfiLibrary;

use super::{LIBRARY, rights};
use crate::run::{Scene, Setting, scenario};
use crate::sharing::is_full;
use crate::stage;

scenarios! {
    several_in_a_row,
}

/// Names and values of the environment.
pub(crate) type Env<'a> = &'a [(&'a str, &'a str)];

/// A folder with the provider and its report.
pub(crate) struct Strict(tempfile::TempDir);

impl Strict {
    /// Builds it; `None`, counted as a skip, without libfabric.
    pub(crate) fn here(name: &str) -> Option<Self> {
        if let Err(missing) = OfiLibrary::open(std::env::var_os(LIBRARY).as_deref()) {
            trunkline_integration::skip_test(name, "ofi", &missing.to_string());
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        strict_fi::place_in(folder.path()).unwrap();
        Some(Self(folder))
    }

    /// The environment of the processes.
    pub(super) fn environment(&self, more: Env<'_>) -> Vec<(String, OsString)> {
        let own = [
            ("TRUNKLINE_FABRIC", "ofi:strict".into()),
            ("FI_PROVIDER_PATH", self.0.path().as_os_str().to_owned()),
            ("FI_PROVIDER", "strict".into()),
            ("FI_STRICT_REPORT", self.0.path().join("report").into_os_string()),
            ("TEST_FINALIZE", "1".into()),
        ];
        let library = std::env::var_os(LIBRARY).map(|library| (LIBRARY, library));
        let more = more.iter().map(|&(name, value)| (name, value.into()));
        own.into_iter().chain(library).chain(more).map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// A scenario over it; each communicator is finalized at the end of its scenario.
    pub(crate) fn over(&self, name: &'static str, more: Env<'_>) -> Setting {
        let environment = self.environment(more).into_iter();
        environment.fold(scenario(name), |setting, (name, value)| setting.env_os(&name, value))
    }

    /// Scenarios of one process, played one after another in the same process.
    pub(super) fn row(&self, names: &[&str], more: Env<'_>) -> Setting {
        self.over("several_in_a_row", more).env("TEST_PLAY", names.join(","))
    }

    /// Asserts that `processes` processes have reported since the last check, that no rule was violated and that no object is open.
    #[track_caller]
    pub(super) fn clean(&self, processes: usize) -> StrictReport {
        let found = self.unbroken();
        let pids: BTreeSet<_> = found.accounts.iter().map(|account| account["pid"].as_u64()).collect();
        assert_eq!(pids.len(), processes, "accounts: {:#?}", found.accounts);
        assert!(found.open_accounts().is_empty(), "domains were not closed: {:#?}", found.open_accounts());
        found
    }

    /// Asserts that no process violated a rule; also valid if processes were killed, which leave no account.
    #[track_caller]
    pub(super) fn unbroken(&self) -> StrictReport {
        let path = self.0.path().join("report");
        let found = StrictReport::read_file(&path).unwrap();
        let _ = std::fs::remove_file(path);
        assert!(found.violations.is_empty(), "rules were broken: {:#?}", found.violations);
        found
    }
}

/// Plays the scenarios that `TEST_PLAY` names.
fn several_in_a_row(scene: Scene) {
    for name in std::env::var("TEST_PLAY").expect("names").split(',') {
        let play = stage::find(name).unwrap_or_else(|| panic!("no scenario {name}"));
        println!("{name}");
        play(scene.another());
    }
}

/// Demands of providers, and fault injections.
pub(super) const DEMANDS: [Env<'static>; 8] = [
    // As of Slingshot: registrations bound to endpoints, keys of the provider, offsets, progress by calls.
    &[],
    &[("FI_STRICT_MR", "endpoint,allocated,local,virt_addr"), ("FI_STRICT_EAGAIN", "0.5")],
    &[("FI_STRICT_MR", "endpoint,prov_key,local"), ("FI_STRICT_DEPTH", "64")],
    &[("FI_STRICT_MR", "none"), ("FI_STRICT_EAGAIN", "0.9"), ("FI_STRICT_INJECT", "0")],
    // As of EFA, with progress made by any call.
    &[
        ("FI_STRICT_MR", "prov_key,allocated,local,virt_addr"),
        ("FI_STRICT_PROGRESS", "auto"),
        ("FI_STRICT_REORDER", "0.5"),
        ("FI_STRICT_DELAY", "50"),
    ],
    // Delayed operations are sent by later calls; here the progress thread makes them.
    &[
        ("FI_STRICT_REORDER", "0.5"),
        ("FI_STRICT_EAGAIN", "0.3"),
        ("FI_STRICT_CQ_DATA", "4"),
        ("TRUNKLINE_PROGRESS_THREAD", "1"),
    ],
    &[("FI_STRICT_MR", "none"), ("FI_STRICT_REORDER", "0.9"), ("TRUNKLINE_EAGER_MAX", "0")],
    &[("TRUNKLINE_EAGER_CREDITS", "1"), ("FI_STRICT_EAGAIN", "0.5"), ("TRUNKLINE_DEPTH", "64")],
];

/// Scenarios of one process, over the provider with Slingshot's demands.
const PLAYED: [&str; 13] = [
    "any_order_of_connect_and_accept",
    "one_thread_connects_to_itself",
    "one_listener_accepts_many",
    "listeners_close_at_any_time",
    "stale_requests_are_overwritten",
    "every_message_size_between_threads",
    "sends_end_without_their_receiver",
    "grouped_receives_match_by_tag",
    "requests_are_tested_in_any_order",
    "messages_pass_one_whose_receive_is_late",
    "a_flush_has_nothing_to_wait_for",
    "a_range_registers_repeatedly",
    "comms_close_in_any_order",
];

/// Scenarios that are played with all other demands, too.
const FEW: [&str; 3] = [
    "any_order_of_connect_and_accept",
    "every_message_size_between_threads",
    "grouped_receives_match_by_tag",
];

#[test]
fn the_contract_holds_whatever_is_demanded() {
    let Some(strict) = Strict::here("the plugin over ofi:strict") else { return };
    for (at, demands) in DEMANDS.into_iter().enumerate() {
        if at > 1 && at % 2 == 0 && !is_full() {
            continue;
        }
        let played: &[&str] = if at == 0 || is_full() { &PLAYED } else { &FEW };
        strict.row(played, demands).alone();
        let found = strict.clean(1);
        let storm = demands.iter().any(|(name, _)| *name == "FI_STRICT_EAGAIN");
        assert_eq!(found.sum_of("eagain") > 100, storm, "{demands:?}");
        if at % 2 == 1 || is_full() {
            strict.over("two_processes_exchange_messages", demands).two();
            strict.clean(2);
            strict.over("a_forked_child_ends", demands).two();
            // The children leave accounts, too, of the objects that they inherited.
            strict.unbroken();
        }
    }
}

#[test]
fn registration_beside_traffic_breaks_no_rule() {
    let Some(strict) = Strict::here("registration over ofi:strict") else { return };
    let demands = if is_full() { &DEMANDS[..] } else { &DEMANDS[1..2] };
    for demands in demands {
        strict.row(&["registration_beside_traffic", "communicators_end_and_start_again"], demands).alone();
        strict.clean(1);
    }
}

#[test]
fn every_version_leaves_nothing() {
    let Some(strict) = Strict::here("versions over ofi:strict") else { return };
    // Older versions have no finalize; their communicators end with the process.
    let versions = if is_full() { 11..=12 } else { 11..=11 };
    for version in versions {
        strict.row(&FEW, &[]).version(version).alone();
        strict.clean(1);
    }
}

#[test]
fn the_contract_holds_over_links_and_nics_of_strict() {
    let Some(strict) = Strict::here("NICs of ofi:strict") else { return };
    let links: Env<'_> = &[("TRUNKLINE_LINKS_PER_RAIL", "4"), ("FI_STRICT_EAGAIN", "0.3")];
    let nics: Env<'_> = &[("FI_STRICT_NICS", "4"), ("TEST_FUSED", "4"), ("FI_STRICT_EAGAIN", "0.3")];
    let copies: Env<'_> = &[("TRUNKLINE_OFI_NICS", "2"), ("TEST_FUSED", "2"), ("FI_STRICT_MR", "none")];
    for more in [links, nics, copies] {
        strict.row(&FEW[1..], more).alone();
        strict.clean(1);
    }
    let shapes = if is_full() { &["4,4", "1,2", "4,1"][..] } else { &["4,2"][..] };
    for shape in shapes {
        let shape: Env<'_> = &[("FI_STRICT_NICS", "4"), ("TEST_FUSED", shape)];
        strict.over("two_processes_exchange_messages", shape).two();
        strict.clean(2);
    }
}

#[test]
fn an_insufficient_provider_is_named() {
    let Some(strict) = Strict::here("missing abilities of ofi:strict") else { return };
    let lacks = [("FI_STRICT_TAGGED", "0")];
    let setting = strict.over("a_missing_libfabric_part_fails_init_and_is_named", &lacks);
    setting.env("TEST_NAME", "libfabric has no usable provider strict here").alone();
    strict.clean(0);
}

#[test]
fn a_bench_over_a_strict_provider_has_no_wrong_byte() {
    let Some(strict) = Strict::here("trunkline bench over ofi:strict") else { return };
    type Run = (&'static str, Vec<(&'static str, &'static str)>, usize);
    let mut runs: Vec<Run> = vec![
        ("all_reduce -b 8 -e 1M -f 32 -w 1 -i 2", vec![("FI_STRICT_EAGAIN", "0.5")], 2),
        ("p2p -b 8 -e 2M -f 64 -w 1 -i 2 --merge", vec![("FI_STRICT_NICS", "2")], 2),
    ];
    if is_full() {
        for demands in DEMANDS {
            for collective in ["all_reduce", "alltoallv", "reduce_scatter", "sendrecv", "p2p"] {
                // A rank that has finished makes no more calls, which delayed operations need: docs/acceptance-libfabric.md, P6.
                let calls = ("TRUNKLINE_PROGRESS_THREAD", "1");
                runs.push((collective, demands.iter().copied().chain([calls]).collect(), 2));
            }
        }
        runs.push(("all_gather -n 3 -b 8 -e 64K -f 32 -w 1 -i 2", Vec::new(), 3));
    }
    for (args, more, ranks) in runs {
        let args =
            if args.contains(' ') { args.to_owned() } else { format!("{args} -b 8 -e 1M -f 8 -w 1 -i 2") };
        rights(&args, &strict.environment(&more));
        strict.clean(ranks);
    }
}
