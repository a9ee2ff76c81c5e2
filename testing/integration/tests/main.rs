//! The plugin through its C tables, with valid and with invalid calls.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue must stop")]

#[macro_use]
mod stage;
mod command;
mod contract;
mod gpu;
mod hosts;
mod loading;
mod near;
mod net;
mod ofi;
mod raw;
mod rdma;
mod run;
mod sharing;
mod trouble;
mod unused;

/// The entry of processes that the tests start: does nothing unless the environment names a scenario.
#[test]
fn a_process_plays_its_scenario() {
    let Some((name, scene)) = run::asked() else { return };
    let scenario = stage::find(&name).unwrap_or_else(|| panic!("unknown scenario {name}"));
    scenario(scene);
}
