//! Registered memory of a simulated NIC: limits, unpredictable keys, addresses based or from zero.

use std::cell::RefCell;

use trunkline_fabric::{
    AccessRights, DeregisterError, LocalKey, MemoryRegistrar, RegionKeys, RegionPurpose, RegisterError,
    RemoteKey,
};
use trunkline_mem::{MemoryKind, MemoryRange};

use crate::denied::DeniedResource;
use crate::region_bytes::RegionEntry;
use crate::world::SimCore;
use crate::{SimPid, SimWorld};

/// The regions of one rail.
#[derive(Debug)]
pub struct SimRegistrar {
    world: SimWorld,
    rail: usize,
    process: SimPid,
}

impl SimRegistrar {
    pub(crate) fn new(world: SimWorld, rail: usize, process: SimPid) -> Self {
        Self { world, rail, process }
    }
}

impl MemoryRegistrar for SimRegistrar {
    fn register(
        &self,
        memory: &MemoryRange,
        access: AccessRights,
        purpose: RegionPurpose,
    ) -> Result<RegionKeys, RegisterError> {
        let mut state = self.world.lock();
        if memory.kind() != MemoryKind::Host {
            return Err(RegisterError::Kind(memory.kind()));
        }
        state.end_abandoned(self.rail);
        let limit = state.weather.caps.regions_max;
        let nic = state.rails[self.rail].nic;
        if state.is_denied(self.process, DeniedResource::Regions) {
            return Err(RegisterError::Exhausted(limit));
        }
        let same_nic = |rail: usize| {
            let rail = &state.rails[rail];
            rail.process == self.process && rail.nic == nic
        };
        if state.regions.values().filter(|region| same_nic(region.rail)).count() >= limit as usize {
            return Err(RegisterError::Exhausted(limit));
        }
        let local = state.dice.draw_u64();
        let remote = state.dice.draw_u64();
        // Not the real address, which would make two runs of a seed differ.
        let base = if state.weather.based { state.dice.draw_u64() >> 17 << 12 } else { 0 };
        let rail = self.rail;
        let memory = memory.clone();
        state.note_trace(format_args!("{} registers {local:#x}, {} bytes", self.process, memory.len()));
        let region =
            RegionEntry { rail, memory, access, purpose, remote, base, closed: false, copying: None };
        state.remote_keys.insert(remote, local);
        state.regions.insert(local, region);
        Ok(RegionKeys { local: LocalKey(local), remote: RemoteKey(remote), remote_base: base })
    }

    fn deregister(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.end_registration(key, false)
    }

    fn retire(&self, key: LocalKey) -> Result<(), DeregisterError> {
        self.end_registration(key, true)
    }

    fn abandon(&self, key: LocalKey) {
        let ended = self.end_registration(key, false);
        let mut state = self.world.lock();
        if let Err(DeregisterError::InUse { .. } | DeregisterError::Draining) = ended {
            let of = state.nic_of(self.rail);
            state.abandoned.entry(of).or_default().keep_key(key);
        }
    }
}

impl SimCore {
    /// Returns the error for a region that is still in use.
    fn in_use_error(&self) -> DeregisterError {
        if self.weather.drains { DeregisterError::Draining } else { DeregisterError::InUse { peer: 0 } }
    }

    /// Returns the process and the NIC number of a rail.
    fn nic_of(&self, rail: usize) -> (SimPid, usize) {
        (self.rails[rail].process, self.rails[rail].nic)
    }

    /// Ends regions of a rail's NIC whose owners have dropped them, once the copies stuck in them have ended.
    pub(crate) fn end_abandoned(&mut self, rail: usize) {
        let of = self.nic_of(rail);
        let Some(abandoned) = self.abandoned.remove(&of) else { return };
        let state = RefCell::new(self);
        abandoned.try_some(|LocalKey(key)| {
            let mut state = state.borrow_mut();
            let now = state.now;
            match state.regions.get(&key).map(|region| region.copying.is_some_and(|until| now < until)) {
                Some(true) => Err(state.in_use_error()),
                Some(false) => {
                    state.note_trace(format_args!("{} deregisters {key:#x} at last", of.0));
                    state.regions.remove(&key);
                    Ok(())
                }
                None => Err(DeregisterError::Unknown),
            }
        });
        if !abandoned.is_empty() {
            state.into_inner().abandoned.insert(of, abandoned);
        }
    }
}

impl SimRegistrar {
    fn end_registration(&self, key: LocalKey, retire: bool) -> Result<(), DeregisterError> {
        let mut state = self.world.lock();
        state.end_abandoned(self.rail);
        if let Some(region) = state.regions.get(&key.0)
            && retire
            && state.weather.caps.retires
            && region.access.write
        {
            let remote = region.remote;
            state.retired.insert(remote, self.rail);
        }
        let now = state.now;
        let known = state.regions.get(&key.0).filter(|region| region.rail == self.rail);
        let copying = known.map(|region| region.copying).ok_or(DeregisterError::Unknown)?;
        // The end of a network's copy becomes known only by a poll.
        let seen = if state.weather.drains { state.rails[self.rail].polled } else { now };
        match copying {
            Some(until) if seen < until => return Err(state.in_use_error()),
            None if state.begin_stuck_copy(key.0) => return Err(state.in_use_error()),
            _ => {}
        }
        state.close_region(key.0);
        state.note_trace(format_args!("{} deregisters {:#x}", self.process, key.0));
        state.regions.remove(&key.0);
        Ok(())
    }
}
