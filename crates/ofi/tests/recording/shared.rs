//! Registrations that several requests share, over the library that is a table of functions, with its calls checked
//! one by one. A5: a failure on any rail leaves no object open, and the request can be repeated.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use trunkline_fabric::conformance::default_config;
use trunkline_fabric::{
    AccessRights, Fabric as _, LocalKey, MemoryRegistrar, Rail as _, RegionKeys, RegionPurpose, RegisterError,
};
use trunkline_mem::MemoryRange;
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};
use trunkline_sys::ofi::{class, errno, mr_mode};

use crate::life::{MODES, kind};
use crate::world::{Echo, Point, World};

/// Rails of a connection, each on a NIC of its own.
const RAILS: usize = 3;

struct Rails {
    world: Arc<World>,
    fabric: OfiFabric,
    rails: Vec<OfiRail>,
    /// Registrations that a rail makes for its own buffers.
    own: usize,
    memory: MemoryRange,
}

impl Rails {
    fn new(mode: i32) -> Self {
        let (world, library) = World::begin(kind(mode));
        // Writes complete until the NIC has been probed.
        *world.echo.lock().unwrap() = Echo::Whole;
        let config =
            OfiConfig { provider: Some("first".to_owned()), copies: RAILS as u32, ..OfiConfig::default() };
        let fabric = OfiFabric::with_library(&library, &config).unwrap();
        *world.echo.lock().unwrap() = Echo::Silent;
        let rails = (0..RAILS).map(|nic| fabric.open_rail(nic, &default_config()).unwrap()).collect();
        let own = world.open_of(class::MR) / RAILS;
        Self { world, fabric, rails, own, memory: MemoryRange::heap(4096) }
    }

    fn register(&self, rail: usize) -> Result<RegionKeys, RegisterError> {
        self.rails[rail].registrar().register(&self.memory, AccessRights::WRITE, RegionPurpose::Data)
    }

    fn end(&self, rail: usize, key: LocalKey) {
        self.rails[rail].registrar().deregister(key).unwrap();
    }

    /// Returns the numbers of registrations that the provider has, that the NICs count, and of keys in use, without
    /// those of the rails' own buffers.
    fn open(&self) -> (usize, u32, usize) {
        let counted = (0..RAILS).map(|nic| self.fabric.nic_usage(nic).regions).sum();
        let (open, own) = (self.world.open_of(class::MR), self.own * self.rails.len());
        (open - own, counted, self.world.keys.lock().unwrap().len().saturating_sub(own))
    }
}

#[test]
fn a5_failed_steps_on_any_rail_leave_nothing() {
    for mode in MODES {
        let all = Rails::new(mode);
        let keys = |registrations: usize| {
            let own = mode & mr_mode::PROV_KEY == 0;
            (registrations, registrations as u32, if own { registrations } else { 0 })
        };
        for point in [Point::Regattr, Point::BindMr, Point::EnableMr, Point::Key] {
            let bound = mode & mr_mode::ENDPOINT != 0;
            // Only keys that the provider chooses can be missing.
            let there = match point {
                Point::Regattr => true,
                Point::Key => bound && mode & mr_mode::PROV_KEY != 0,
                _ => bound,
            };
            if !there {
                continue;
            }
            for failing in 0..RAILS {
                let before: Vec<_> = (0..failing).map(|rail| all.register(rail).unwrap()).collect();
                assert_eq!(all.open(), keys(failing));
                all.world.refuse(point, errno::EINVAL);
                let error = all.register(failing).unwrap_err().to_string();
                assert_eq!(error, "registering memory with libfabric failed", "{point:?}");
                // Existing registrations are shared although no new one can be made now.
                for (rail, first) in before.iter().enumerate() {
                    let again = all.register(rail).unwrap();
                    assert_eq!(again.remote, first.remote);
                    all.end(rail, again.local);
                }
                assert_eq!(all.open(), keys(failing), "{point:?} on {failing} with {mode:#x}");
                all.world.relent();
                let again = all.register(failing).unwrap();
                assert_eq!(all.open(), keys(failing + 1));
                all.end(failing, again.local);
                before.iter().enumerate().for_each(|(rail, one)| all.end(rail, one.local));
                assert_eq!(all.open(), keys(0));
            }
        }
        let world = Arc::clone(&all.world);
        drop(all);
        assert_eq!((world.open(), world.infos.load(SeqCst)), (0, 0));
    }
}

#[test]
fn shared_registration_is_made_once_and_closed_once() {
    for mode in MODES {
        let all = Rails::new(mode);
        all.world.take_log();
        all.world.asked.lock().unwrap().clear();
        let held: Vec<_> = (0..5).map(|_| all.register(0).unwrap()).collect();
        assert_eq!(all.world.asked.lock().unwrap().len(), 1, "{mode:#x}");
        for one in &held {
            assert_eq!(all.open().0, 1);
            all.end(0, one.local);
        }
        assert_eq!(all.open(), (0, 0, 0));
        let closed = all.world.take_log().iter().filter(|what| **what == "mr").count();
        assert_eq!(closed, 1, "{mode:#x}");
    }
}

#[test]
fn forgotten_memory_is_registered_again_on_each_rail() {
    for mode in MODES {
        let all = Rails::new(mode);
        let old: Vec<_> = (0..RAILS).map(|rail| all.register(rail).unwrap()).collect();
        let part = all.memory.sub_range(4000, 96).unwrap();
        let elsewhere = MemoryRange::heap(4096);
        all.fabric.forget_memory(&elsewhere, None);
        let same: Vec<_> = (0..RAILS).map(|rail| all.register(rail).unwrap()).collect();
        assert_eq!(all.open().0, RAILS, "{mode:#x}");
        all.fabric.forget_memory(&part, None);
        let new: Vec<_> = (0..RAILS).map(|rail| all.register(rail).unwrap()).collect();
        assert_eq!(all.open().0, 2 * RAILS, "{mode:#x}");
        for held in [old, same, new] {
            held.iter().enumerate().for_each(|(rail, one)| all.end(rail, one.local));
        }
        assert_eq!(all.open(), (0, 0, 0));
    }
}

#[test]
fn rails_may_end_before_their_registrations() {
    for mode in MODES {
        let mut all = Rails::new(mode);
        let registrar: Arc<dyn MemoryRegistrar> = all.rails[0].registrar();
        let held = all.register(0).unwrap();
        let rail = all.rails.remove(0);
        drop(rail);
        // Its registrations are not found any more, but can still be released.
        let more = registrar.register(&all.memory, AccessRights::WRITE, RegionPurpose::Data).unwrap();
        let bound = mode & mr_mode::ENDPOINT != 0;
        assert_eq!(more.remote == held.remote, !bound, "{mode:#x}");
        for one in [held, more] {
            registrar.deregister(one.local).unwrap();
        }
        assert_eq!(all.open(), (0, 0, 0));
        let world = Arc::clone(&all.world);
        drop((registrar, all));
        assert_eq!(world.open(), 0);
    }
}
