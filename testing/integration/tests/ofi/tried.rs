//! The tests of a NIC's abilities when it is found, over the enforcing provider, in a process whose environment sets these abilities.

use std::path::Path;

use crate::net::{LINES, Net, logged};
use crate::run::{Scene, Setting, scenario};

scenarios! {
    a_missing_nic_ability_logs_one_line,
}

/// A scenario over `strict`; `None`, a counted skip, where there is no libfabric.
fn over_strict(name: &'static str, folder: &Path) -> Option<Setting> {
    let library = std::env::var_os(super::LIBRARY);
    if let Err(missing) = trunkline_ofi::OfiLibrary::open(library.as_deref()) {
        trunkline_integration::skip_test("abilities tried over ofi:strict", "ofi", &missing.to_string());
        return None;
    }
    strict_fi::place_in(folder).unwrap();
    let setting = scenario(name).env_os("FI_PROVIDER_PATH", folder.into()).env("FI_PROVIDER", "strict");
    let setting = library.into_iter().fold(setting, |setting, at| setting.env_os(super::LIBRARY, at));
    Some(setting.env("TRUNKLINE_FABRIC", "ofi:strict").env("FI_STRICT_ABORT", 1))
}

/// Asserts that the line was logged `TEST_LINES` times.
fn a_missing_nic_ability_logs_one_line(scene: Scene) {
    let wanted: usize = std::env::var("TEST_LINES").unwrap().parse().unwrap();
    let net = Net::start(scene.version);
    assert!(net.devices() >= 1);
    let line =
        "cannot write with data (function not implemented (FI_ENOSYS)): long messages end with a record";
    assert_eq!(logged(line), wanted, "{:?}", LINES.lock().unwrap());
}

#[test]
fn writes_with_data_are_tested_at_open() {
    let folder = tempfile::tempdir().unwrap();
    let Some(setting) = over_strict("a_missing_nic_ability_logs_one_line", folder.path()) else { return };
    let of =
        |data: u32, lines: u32| setting.clone().env("FI_STRICT_WRITEDATA", data).env("TEST_LINES", lines);
    of(0, 1).alone();
    of(0, 2).env("FI_STRICT_NICS", 2).alone();
    of(0, 1).env("FI_STRICT_CQ_DATA", 4).alone();
    // A NIC that can write with data is not reported, with any other demands.
    of(1, 0).alone();
    of(1, 0).env("FI_STRICT_CQ_DATA", 4).env("FI_STRICT_MR", "virt_addr,local").alone();
    of(1, 0).env("FI_STRICT_EAGAIN", "0.9").env("FI_STRICT_REORDER", 1).env("FI_STRICT_DELAY", 2000).alone();
    of(1, 0).env("FI_STRICT_PROGRESS", "auto").alone();
}
