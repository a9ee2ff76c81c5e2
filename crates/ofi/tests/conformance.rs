//! The conformance suite of fabrics, over a provider of libfabric: the one that `TRUNKLINE_OFI_PROVIDER` names, or
//! the one for TCP. It runs again over the enforcing provider, in a process of its own. Without libfabric each case
//! is a counted skip.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::sync::OnceLock;

use trunkline_fabric::conformance::ConformanceSetup;
use trunkline_fabric::{Fabric as _, RailConfig, fabric_conformance};
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};

/// Two rails of one NIC.
struct Pair {
    fabric: &'static OfiFabric,
}

/// Opens the fabric; returns `None`, counted as a skip, if libfabric is missing.
fn found() -> Option<&'static OfiFabric> {
    static FOUND: OnceLock<Result<OfiFabric, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let provider = std::env::var("TRUNKLINE_OFI_PROVIDER").unwrap_or_else(|_| "tcp".to_owned());
        let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
        let config = OfiConfig { provider: Some(provider), library, ..OfiConfig::default() };
        OfiFabric::new(&config).map_err(|missing| missing.to_string())
    });
    let missing = |missing: &String| common::skip("the conformance suite over libfabric", missing);
    found.as_ref().inspect_err(|why| missing(why)).ok()
}

impl ConformanceSetup for Pair {
    type Rail = OfiRail;

    fn open_rails(&self, config: &RailConfig) -> (OfiRail, OfiRail) {
        (self.fabric.open_rail(0, config).unwrap(), self.fabric.open_rail(0, config).unwrap())
    }
}

fabric_conformance!(match found() {
    Some(fabric) => Pair { fabric },
    None => return,
});

/// Registration modes and settings of the enforcing provider.
const DEMANDS: [&[(&str, &str)]; 4] = [
    &[],
    &[("FI_STRICT_MR", "none"), ("FI_STRICT_EAGAIN", "0.5")],
    &[("FI_STRICT_MR", "endpoint,allocated,local,virt_addr"), ("FI_STRICT_EAGAIN", "0.2")],
    &[("FI_STRICT_MR", "prov_key,local,virt_addr"), ("FI_STRICT_PROGRESS", "auto")],
];

/// The variable of a process that runs the suite for another test.
const INNER: &str = "TRUNKLINE_TEST_INNER_SUITE";

/// Returns the command that runs the suite over a provider, without the tests of this file that run it again.
fn inner_suite(provider: &str) -> std::process::Command {
    assert!(
        std::env::var_os(INNER).is_none(),
        "the inner suite must skip the tests that start it: correct --skip"
    );
    let mut suite = std::process::Command::new(std::env::current_exe().unwrap());
    suite.args(["--skip", "suite_passes_over"]).env(INNER, "1").env("TRUNKLINE_OFI_PROVIDER", provider);
    suite
}

#[test]
fn suite_passes_over_the_enforcing_provider() {
    let name = "suite_passes_over_the_enforcing_provider";
    let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
    if let Err(missing) = trunkline_ofi::OfiLibrary::open(library.as_deref()) {
        return common::skip(name, &missing.to_string());
    }
    let full = std::env::var_os("TRUNKLINE_FULL").is_some();
    for demands in &DEMANDS[..if full { 4 } else { 2 }] {
        let folder = tempfile::tempdir().unwrap();
        strict_fi::place_in(folder.path()).unwrap();
        let report = folder.path().join("report");
        let mut suite = inner_suite("strict");
        suite
            .envs(demands.iter().copied())
            .env("FI_PROVIDER_PATH", folder.path())
            .env("FI_PROVIDER", "strict")
            .env("FI_STRICT_REPORT", &report);
        let output = suite.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{demands:?}: {said}");
        // This case breaks rules on purpose, so reported violations are expected.
        let found = strict_fi::StrictReport::read_file(&report).unwrap();
        assert!(!found.accounts.is_empty(), "{demands:?}: the report has no account of a domain");
        assert!(found.open_accounts().is_empty(), "{demands:?}: {:#?}", found.open_accounts());
    }
}

/// Other providers that are tested, each with a case that it has not enough memory for. All but the first need
/// `TRUNKLINE_FULL`.
const OTHERS: [(&str, Option<&str>); 3] =
    [("shm", None), ("sockets", None), ("tcp;ofi_rxm", Some("links_can_be_made_again"))];

#[test]
fn suite_passes_over_other_providers() {
    let full = std::env::var_os("TRUNKLINE_FULL").is_some();
    for (provider, without) in &OTHERS[..if full { OTHERS.len() } else { 1 }] {
        let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
        let config = OfiConfig { provider: Some((*provider).to_owned()), library, ..OfiConfig::default() };
        if let Err(missing) = OfiFabric::new(&config) {
            common::skip(&format!("the conformance suite over {provider}"), &missing.to_string());
            continue;
        }
        let mut suite = inner_suite(provider);
        suite.args(without.iter().flat_map(|case| ["--skip", case]));
        let output = suite.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{provider}: {said}");
        assert!(said.contains(" passed") && !said.contains("SKIPPED"), "{provider}: {said}");
    }
}
