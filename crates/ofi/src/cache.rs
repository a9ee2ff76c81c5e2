//! Memory of users that is registered repeatedly: all requests for the same bytes share one registration, at an
//! endpoint or, where registrations belong to the domain, on the NIC. Used by the registrars of rails, for payload of
//! users and nothing else.
//!
//! A registration stays open when one of its users releases it. So the barrier against a peer's late writes is not
//! its end but the end of the rail's endpoints, which are closed with the rail's last link
//! (`OfiRail::close_if_idle`). Endpoints to which registrations are bound cannot be closed before these. There a
//! registration that is [retired](trunkline_fabric::MemoryRegistrar::retire) while its rail has no link is closed at
//! once, although it has other users.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use trunkline_fabric::cache::{AcquireError, RegistrationCache, RegistrationGrant};
use trunkline_fabric::{AccessRights, ExportedDmaBuf, RegisterError};
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::registrations::EntryId;
use trunkline_proto::registrations::key::{self, RegistrationKey, RegistrationRights, RegistrationScope};

use crate::nic::OpenNic;
use crate::region::{LocalSlice, MrEnabled, RKey};
use crate::role::{EndpointRole, PayloadTraffic};
use crate::table::{OfiRegionTable, REGIONS_MAX};

/// How long a request waits for a thread that registers the same memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// The registrations of a NIC that can be shared.
pub(crate) struct NicRegistrations {
    cache: RegistrationCache<MrEnabled<PayloadTraffic>>,
    /// The scope of the domain, for registrations that are bound to no endpoint.
    domain: Option<RegistrationScope>,
}

impl NicRegistrations {
    /// Creates the empty set of a domain that has just been opened.
    pub(crate) fn new() -> Self {
        let cache = RegistrationCache::new(REGIONS_MAX);
        let domain = cache.open_scope().ok();
        Self { cache, domain }
    }

    /// Leaks all registrations: none of them is ever closed.
    pub(crate) fn leak_all(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::new()));
    }

    /// Releases one user's share of a registration.
    pub(crate) fn release_registration(&self, shared: SharedRegistration) {
        self.cache.release(shared.grant);
    }

    /// Forgets memory that is freed or remapped: no rail receives a registration that contains a byte of it any more.
    /// Each is closed with its last user.
    pub(crate) fn forget_memory(&self, memory: &MemoryRange, exported: Option<&ExportedDmaBuf<'_>>) {
        if let Some((of, span)) = bytes_of(memory, exported) {
            self.cache.forget_memory(of, span);
        }
    }

    /// Returns the number of the NIC's registrations, each counted once regardless of its users.
    pub(crate) fn len(&self) -> usize {
        self.cache.registration_count()
    }
}

/// The right to use a registration, for the requested bytes.
pub(crate) struct SharedRegistration {
    grant: RegistrationGrant,
    /// The requested bytes.
    pub(crate) local: LocalSlice<'static, PayloadTraffic>,
    /// Keeps the requester's memory mapped.
    _memory: MemoryRange,
}

impl SharedRegistration {
    /// Returns the registration's id.
    pub(crate) fn entry_id(&self) -> EntryId {
        self.grant.entry_id()
    }
}

/// A registration as peers see it, from the first requested byte on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ForPeers {
    pub(crate) key: Option<u64>,
    pub(crate) base: u64,
}

impl ForPeers {
    /// Returns the key and base of a whole registration.
    pub(crate) fn from_mr<R: EndpointRole>(mr: &MrEnabled<R>) -> Self {
        Self { key: mr.key().map(RKey::number), base: mr.remote_base() }
    }
}

/// A rail's part of its NIC's registrations.
pub(crate) struct RegistrationSharing {
    nic: Arc<OpenNic>,
    /// `None` if there are too many scopes; then nothing is shared.
    scope: Option<RegistrationScope>,
    /// Registrations are bound to the rail's endpoint, so the scope belongs to the rail alone.
    bound: bool,
    /// The rail's endpoints are closed with its last link.
    closes: bool,
    /// Links that are not in error.
    live: AtomicU32,
}

impl RegistrationSharing {
    /// Creates the part of a rail whose registrations are `bound` to an endpoint of its own, or belong to the domain.
    /// `closes` states whether its endpoints are closed with their last link. If they are not, no registration of the
    /// domain is shared, because its end would have to stop late writes.
    pub(crate) fn new(nic: &Arc<OpenNic>, bound: bool, closes: bool) -> Self {
        let of_domain = nic.registrations.domain.filter(|_| closes);
        let scope = if bound { nic.registrations.cache.open_scope().ok() } else { of_domain };
        Self { nic: Arc::clone(nic), scope, bound, closes: closes && !bound, live: AtomicU32::new(0) }
    }

    fn nic_cache(&self) -> &RegistrationCache<MrEnabled<PayloadTraffic>> {
        &self.nic.registrations.cache
    }

    /// Counts one more link of the rail.
    pub(crate) fn link_begins(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts the end of one of its links.
    pub(crate) fn link_ends(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether the rail has no link left and its endpoints are to be closed.
    pub(crate) fn is_idle(&self) -> bool {
        let last = self.live.load(Ordering::Acquire) == 0;
        last && self.closes
    }

    /// Ends the rail's scope: registrations bound to its endpoint are no longer found.
    pub(crate) fn end_scope(&self) {
        if let Some(scope) = self.scope.filter(|_| self.bound) {
            self.nic_cache().end_scope(scope);
        }
    }

    /// Acquires an existing registration of the memory, or the one that `make` makes. Returns `None` if the memory
    /// cannot be shared; the caller then registers it by itself.
    ///
    /// # Errors
    /// The error of `make`, or that another thread takes too long.
    pub(crate) fn acquire_registration(
        &self,
        memory: &MemoryRange,
        exported: Option<&ExportedDmaBuf<'_>>,
        access: AccessRights,
        make: impl FnOnce() -> Result<MrEnabled<PayloadTraffic>, RegisterError>,
    ) -> Result<Option<(SharedRegistration, ForPeers)>, RegisterError> {
        let Some((scope, (of, span))) = self.scope.zip(bytes_of(memory, exported)) else { return Ok(None) };
        let key = RegistrationKey { scope, memory: of, rights: access_rights(access) };
        let look =
            |mr: &MrEnabled<PayloadTraffic>| (mr.whole_extent(), mr.memory().addr(), ForPeers::from_mr(mr));
        let (grant, (place, addr, whole)) = match self.nic_cache().acquire(&key, span, PATIENCE, make, look) {
            Ok(got) => got,
            Err(AcquireError::Refused(_)) => return Ok(None),
            Err(AcquireError::Make(error)) => return Err(error),
            Err(error) => return Err(system_error(io::Error::other(error.to_string()))),
        };
        let inset = grant.start_offset();
        // A dma-buf may be mapped at several addresses, and operations use the address that was registered.
        let same = addr.wrapping_add(inset as usize) == memory.addr();
        let Some(local) = place.local_slice(inset, span.len()).filter(|_| same) else {
            self.nic_cache().release(grant);
            return Ok(None);
        };
        // A request without rights for peers receives no key that peers could use.
        let key = whole.key.filter(|_| access != AccessRights::LOCAL);
        let peers = ForPeers { key, base: whole.base.wrapping_add(inset) };
        Ok(Some((SharedRegistration { grant, local, _memory: memory.clone() }, peers)))
    }

    /// Returns whether a registration is still open, and was not closed under its users.
    pub(crate) fn is_current(&self, entry: EntryId) -> bool {
        self.nic_cache().is_valid(entry)
    }

    /// Returns whether memory whose keys peers have is closed at once, although the registration has other users.
    pub(crate) fn is_revoking(&self) -> bool {
        self.bound && self.live.load(Ordering::Acquire) == 0
    }

    /// Closes a registration under its users, whose later operations can no longer use it.
    pub(crate) fn revoke_registration(&self, shared: SharedRegistration, table: &OfiRegionTable) {
        self.nic_cache().revoke(shared.grant, |entry| table.withdraw_entry(entry));
    }
}

fn system_error(source: io::Error) -> RegisterError {
    RegisterError::System { what: "registering memory with libfabric", source }
}

fn access_rights(access: AccessRights) -> RegistrationRights {
    let right = |on: bool, right| if on { right } else { RegistrationRights::LOCAL };
    right(access.write, RegistrationRights::WRITE).with_rights(right(access.read, RegistrationRights::READ))
}

/// Identifies the memory and the range in it, to the byte, whatever pages it is on. Returns `None` for memory that
/// cannot be identified.
///
/// Memory of a device is identified by its address, also if it is passed as a dma-buf. Callers export a new dma-buf
/// each time, and while a registration is held no other memory has its addresses.
fn bytes_of(
    memory: &MemoryRange,
    exported: Option<&ExportedDmaBuf<'_>>,
) -> Option<(key::MemorySpace, ByteSpan)> {
    let (of, start) = match (memory.kind(), exported) {
        (MemoryKind::Device(device), _) => (key::MemorySpace::Device { device }, memory.addr() as u64),
        (_, Some(exported)) => {
            let file = rustix::fs::fstat(exported.fd).ok()?;
            (key::MemorySpace::DmaBuf { dev: file.st_dev, inode: file.st_ino }, exported.offset)
        }
        (MemoryKind::Host, None) => (key::MemorySpace::Host, memory.addr() as u64),
        (_, None) => return None,
    };
    Some((of, ByteSpan::new(start, memory.len() as u64)?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    fn dmabuf() -> File {
        rustix::fs::memfd_create("replaces a dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    fn of(memory: &MemoryRange, file: &File, offset: u64) -> (key::MemorySpace, ByteSpan) {
        bytes_of(memory, Some(&ExportedDmaBuf { fd: file.as_fd(), offset })).unwrap()
    }

    #[test]
    fn a10_dma_buf_ranges_within_pages_are_distinct() {
        let one = dmabuf();
        let other = dmabuf();
        let memory = MemoryRange::heap(100);
        let cache = RegistrationCache::<u32>::new(100);
        let scope = cache.open_scope().unwrap();
        let mut held = Vec::new();
        let mut registrations = |file: &File, offset: u64| {
            let (memory, span) = of(&memory, file, offset);
            let key = RegistrationKey { scope, memory, rights: RegistrationRights::WRITE };
            held.push(cache.acquire(&key, span, PATIENCE, || Ok::<_, ()>(0), |_| ()).unwrap().0);
            cache.registration_count()
        };
        // The ranges begin within one page or the next, and none contains another.
        assert_eq!([0, 1, 77, 4095, 4096].map(|offset| registrations(&one, offset)), [1, 2, 3, 4, 5]);
        // The same offsets of another file are other bytes; a duplicated descriptor names the same bytes.
        assert_eq!([registrations(&other, 77), registrations(&one.try_clone().unwrap(), 77)], [6, 6]);
        held.into_iter().for_each(|grant| cache.release(grant));
    }

    #[test]
    fn memory_is_identified_to_the_byte() {
        let memory = MemoryRange::heap(100);
        let addr = memory.addr() as u64;
        assert_eq!(
            bytes_of(&memory, None),
            Some((key::MemorySpace::Host, ByteSpan::new(addr, 100).unwrap()))
        );
        assert_eq!(bytes_of(&MemoryRange::heap(0), None), None);
        let (_, span) = of(&memory, &dmabuf(), 4097);
        assert_eq!((span.start(), span.len()), (4097, 100));
        // SAFETY: no code accesses the memory.
        let device = unsafe { MemoryRange::from_raw(0x7000_0001, 5, MemoryKind::Device(3)) };
        let named = key::MemorySpace::Device { device: 3 };
        let named = Some((named, ByteSpan::new(0x7000_0001, 5).unwrap()));
        assert_eq!(bytes_of(&device, None), named);
        let file = dmabuf();
        assert_eq!(bytes_of(&device, Some(&ExportedDmaBuf { fd: file.as_fd(), offset: 77 })), named);
    }

    #[test]
    fn access_rights_are_distinguished() {
        assert_eq!(access_rights(AccessRights::LOCAL), RegistrationRights::LOCAL);
        assert_eq!(access_rights(AccessRights::WRITE), RegistrationRights::WRITE);
        assert_eq!(
            access_rights(AccessRights::READ_WRITE),
            RegistrationRights::WRITE.with_rights(RegistrationRights::READ)
        );
    }
}
