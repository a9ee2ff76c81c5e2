//! Out of memory: an allocator that refuses the n-th large allocation, for every n, runs through the life of a rail
//! over the recording library (`tests/recording/device.rs`). The allocator and the trials are those of
//! `crates/engine/tests/refusals`. `TRUNKLINE_FULL=1` runs every n; otherwise three of each quick case run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

#[path = "../../../engine/tests/refusals/allocator.rs"]
mod allocator;
#[path = "../../../engine/tests/refusals/child.rs"]
mod child;
#[path = "../recording/device.rs"]
#[allow(dead_code, reason = "these tests use a part of the module")]
mod device;
#[path = "../common/rails.rs"]
mod rails;
#[path = "../../../engine/tests/refusals/trials.rs"]
mod trials;

use std::sync::Arc;

use trunkline_fabric::{
    AccessRights, Completion, Fabric as _, LinkControl as _, Op, OpSource, OpStatus, Rail as _, RegionExtent,
    RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_verbs::{VerbsConfig, VerbsFabric};

use rails::rail_config;
use trials::{Case, Outcome, told};

#[global_allocator]
static ALLOCATOR: allocator::Refusing = allocator::Refusing;

/// The part of `speeds` that `device` uses: the library is older than the call.
mod speeds {
    use trunkline_sys::verbs::QueryPortEx;

    pub(crate) fn slot() -> Option<QueryPortEx> {
        None
    }
}

const DEPTH: u32 = 512;

const ALL: &[Case] = &[
    ("requests one by one", || rail(VerbsConfig { extended: false, ..VerbsConfig::default() })),
    ("requests that are built", || rail(VerbsConfig { extended: true, ..VerbsConfig::default() })),
    ("many regions", regions),
];

fn fabric(config: VerbsConfig) -> Result<VerbsFabric, String> {
    VerbsFabric::with_library(Arc::new(device::library()), config).map_err(told)
}

/// A rail with links that are connected to themselves, and writes on each.
fn rail(of: VerbsConfig) -> Outcome {
    let fabric = fabric(of)?;
    let mut rail = fabric.open_rail(0, &rail_config(DEPTH, 4)).map_err(told)?;
    let memory = MemoryRange::try_heap(1 << 16).map_err(told)?;
    let registrar = rail.registrar();
    let keys = registrar.register(&memory, AccessRights::ALL, RegionPurpose::Data).map_err(told)?;
    let from = RegionExtent { key: keys.local, offset: 0, len: 4096 };
    let to = RemoteLocation { key: keys.remote, addr: keys.remote_base, purpose: RegionPurpose::Data };
    for _ in 0..2 {
        let link = rail.create_link().map_err(told)?;
        let own = rail.link_address(link).map_err(told)?;
        rail.connect(link, own).map_err(told)?;
        rail.post(link, 1, Op::Write { from: OpSource::Region(from), to, imm: None }, true).map_err(told)?;
        rail.flush();
        let mut out = [Completion::BLANK; 8];
        if rail.poll(&mut out) != 1 || out[0].status != OpStatus::Ok {
            return Err("the write did not complete".to_owned());
        }
        rail.destroy_link(link);
    }
    registrar.deregister(keys.local).map_err(told)
}

/// Enough registrations that the tables grow several times.
fn regions() -> Outcome {
    let fabric = fabric(VerbsConfig::default())?;
    let rail = fabric.open_rail(0, &rail_config(DEPTH, 4)).map_err(told)?;
    let registrar = rail.registrar();
    let memory = MemoryRange::try_heap(64).map_err(told)?;
    let mut keys = trunkline_proto::reserve::try_vec(900).map_err(told)?;
    for _ in 0..900 {
        match registrar.register(&memory, AccessRights::ALL, RegionPurpose::Data) {
            Ok(made) => keys.push(made.local),
            Err(error) => {
                keys.iter().for_each(|key| registrar.deregister(*key).unwrap());
                return Err(told(error));
            }
        }
    }
    keys.into_iter().try_for_each(|key| registrar.deregister(key).map_err(told))
}

/// The entry point of child processes: does nothing unless the parent test started this process.
#[test]
fn a_child_plays_its_trials() {
    let Some((_, case)) = trials::asked() else { return };
    let case = ALL.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("no case {case}"));
    trials::play(case, trials::Refused::OneOfEachSize, trials::Small::KeptByOthers);
}

#[test]
fn a_rail_holds_without_memory() {
    trials::all_hold("a rail", ALL);
}
