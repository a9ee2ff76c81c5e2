//! Providers, rails and registrations of the cases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_fabric::conformance::{PolledCompletions, RailPair, default_config};
use trunkline_fabric::{
    AccessRights, DeregisterError, Fabric as _, LinkControl as _, LinkId, MemoryRegistrar, Op, OpSource,
    OpStatus, Rail as _, RegionExtent, RegionKeys, RegionPurpose, RemoteLocation,
};
use trunkline_mem::MemoryRange;
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};

/// A provider and its demands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Over {
    /// The provider for TCP: one domain per rail, and registrations of the domain.
    Tcp,
    /// Registrations are bound to the endpoint of a rail; the provider chooses keys.
    Bound,
    /// The same, but the application chooses keys.
    BoundKeys,
    /// Registrations belong to a domain that rails share; peers use offsets from their start.
    Domain,
    /// The same, but peers use virtual addresses.
    DomainAddresses,
}

impl Over {
    pub(crate) const ALL: [Self; 5] =
        [Self::Tcp, Self::Bound, Self::BoundKeys, Self::Domain, Self::DomainAddresses];
    pub(crate) const BOUND: [Self; 2] = [Self::Bound, Self::BoundKeys];
    pub(crate) const DOMAIN: [Self; 2] = [Self::Domain, Self::DomainAddresses];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Bound => "endpoints",
            Self::BoundKeys => "endpoints with keys",
            Self::Domain => "domain",
            Self::DomainAddresses => "domain with addresses",
        }
    }

    /// Returns the value of `FI_STRICT_MR`.
    pub(crate) fn demands(self) -> Option<&'static str> {
        match self {
            Self::Tcp => None,
            Self::Bound => Some("endpoint,prov_key,allocated"),
            Self::BoundKeys => Some("endpoint"),
            Self::Domain => Some("none"),
            Self::DomainAddresses => Some("prov_key,virt_addr,local"),
        }
    }

    /// Returns whether two rails of a NIC share registrations.
    pub(crate) fn shares_between_rails(self) -> bool {
        Self::DOMAIN.contains(&self)
    }
}

/// The set-up of a case.
pub(crate) struct Setup {
    pub(crate) over: Over,
    pub(crate) fabric: OfiFabric,
}

/// Opens the fabric of a provider; the error is the reason why there is none.
pub(crate) fn fabric(over: Over) -> Result<OfiFabric, String> {
    let provider = if over == Over::Tcp { "tcp" } else { "strict" }.to_owned();
    let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
    let config = OfiConfig { provider: Some(provider), library, ..OfiConfig::default() };
    OfiFabric::new(&config).map_err(|missing| missing.to_string())
}

impl Setup {
    pub(crate) fn rail(&self) -> OfiRail {
        self.fabric.open_rail(0, &default_config()).unwrap()
    }

    /// Returns the number of the NIC's registrations for users.
    pub(crate) fn registrations(&self) -> u32 {
        self.fabric.nic_usage(0).regions
    }

    /// Returns the number of open endpoints.
    pub(crate) fn fabric_endpoints(&self) -> u32 {
        self.fabric.nic_usage(0).queue_pairs
    }

    /// Opens two rails with a connected link between them.
    pub(crate) fn pair(&self) -> RailPair<OfiRail> {
        let mut ends = RailPair { a: self.rail(), b: self.rail(), at_a: LinkId(0), at_b: LinkId(0) };
        (ends.at_a, ends.at_b) = ends.add_link();
        up(&mut ends);
        ends
    }
}

/// Waits until both ends of the newest link are up.
pub(crate) fn up(ends: &mut RailPair<OfiRail>) {
    let end = Instant::now() + Duration::from_secs(20);
    while !(ends.a.poll_link_up(ends.at_a).unwrap() & ends.b.poll_link_up(ends.at_b).unwrap()) {
        assert!(Instant::now() < end, "the link was not established in time");
    }
}

/// Memory registered with a rail, as a user does.
pub(crate) struct Held {
    pub(crate) memory: MemoryRange,
    pub(crate) keys: RegionKeys,
    registrar: Arc<dyn MemoryRegistrar>,
}

impl Held {
    pub(crate) fn new(rail: &OfiRail, memory: &MemoryRange, access: AccessRights) -> Self {
        Self::by(&rail.registrar(), memory, access)
    }

    pub(crate) fn by(
        registrar: &Arc<dyn MemoryRegistrar>,
        memory: &MemoryRange,
        access: AccessRights,
    ) -> Self {
        Self::try_by(registrar, memory, access).unwrap()
    }

    /// Returns the result of a registration that may fail.
    pub(crate) fn try_by(
        registrar: &Arc<dyn MemoryRegistrar>,
        memory: &MemoryRange,
        access: AccessRights,
    ) -> Result<Self, String> {
        let keys =
            registrar.register(memory, access, RegionPurpose::Data).map_err(|error| error.to_string())?;
        Ok(Self { memory: memory.clone(), keys, registrar: Arc::clone(registrar) })
    }

    pub(crate) fn end(self) {
        self.registrar.deregister(self.keys.local).unwrap();
        assert_eq!(self.registrar.deregister(self.keys.local), Err(DeregisterError::Unknown), "once");
    }

    pub(crate) fn retire(self) {
        self.registrar.retire(self.keys.local).unwrap();
    }

    pub(crate) fn extent(&self, offset: u64, len: u64) -> RegionExtent {
        RegionExtent { key: self.keys.local, offset, len }
    }

    pub(crate) fn remote(&self, offset: u64) -> RemoteLocation {
        let (key, addr) = (self.keys.remote, self.keys.remote_base.wrapping_add(offset));
        RemoteLocation { key, addr, purpose: RegionPurpose::Data }
    }

    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(offset, &mut out).unwrap();
        out
    }
}

/// Returns a part of a memory range, which keeps the whole range mapped.
pub(crate) fn part(memory: &MemoryRange, offset: usize, len: usize) -> MemoryRange {
    assert!(offset + len <= memory.len());
    // SAFETY: the bytes are those of memory that its owner keeps.
    unsafe { MemoryRange::with_owner(memory.addr() + offset, len, memory.kind(), Arc::new(memory.clone())) }
}

/// Writes from `a` into memory at `b`; returns the status.
pub(crate) fn write(ends: &mut RailPair<OfiRail>, bytes: &[u8], to: RemoteLocation) -> OpStatus {
    let op = Op::Write { from: OpSource::Inline(bytes), to, imm: Some(7) };
    if ends.a.post(ends.at_a, 1, op, true).is_err() {
        return OpStatus::Flushed;
    }
    let seen = ends.poll_until(|seen| seen.a.iter().any(|one| one.wr_id == 1));
    let status = seen.a.iter().find(|one| one.wr_id == 1).unwrap().status;
    if status == OpStatus::Ok && !seen.b.iter().any(|one| one.imm == Some(7)) {
        // The data has arrived when the peer receives the completion.
        ends.poll_until(|seen| seen.b.iter().any(|one| one.imm == Some(7)));
    }
    status
}

/// Lets `a` write for a while, to any target; some writes may be rejected.
pub(crate) fn shoot(ends: &mut RailPair<OfiRail>, to: RemoteLocation, bytes: &[u8]) {
    let mut seen = PolledCompletions::default();
    let end = Instant::now() + Duration::from_millis(100);
    while Instant::now() < end {
        let _ = ends.a.post(ends.at_a, 9, Op::Write { from: OpSource::Inline(bytes), to, imm: None }, true);
        ends.settle(&mut seen);
    }
}
