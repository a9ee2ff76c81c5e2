//! Memory of users that is asked for again: one registration for all who ask for the same bytes, at an endpoint or, where
//! registrations are the domain's, on the NIC. Used by the registrars of rails, for payload of users and nothing else.
//!
//! A registration that others use stays open when one of them gives it back. So what keeps a peer's late writes out is not its
//! end but that of the rail's endpoints, which go with its last link (`OfiRail::close_if_idle`). Endpoints to which registrations
//! are bound cannot: there a registration is closed at once that is [retired](trunkline_fabric::MemoryRegistrar::retire) when its
//! rail has no link left, whoever uses it.

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

/// How long who asks waits for a thread that registers the same memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// The registrations of a NIC that can be shared.
pub(crate) struct NicRegistrations {
    cache: RegistrationCache<MrEnabled<PayloadTraffic>>,
    /// Of the domain, for registrations that are bound to no endpoint.
    domain: Option<RegistrationScope>,
}

impl NicRegistrations {
    /// None, of a domain that has just been opened.
    pub(crate) fn new() -> Self {
        let cache = RegistrationCache::new(REGIONS_MAX);
        let domain = cache.open_scope().ok();
        Self { cache, domain }
    }

    /// None of them is ever closed.
    pub(crate) fn leak_all(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::new()));
    }

    /// One user gives its registration back.
    pub(crate) fn release_registration(&self, shared: SharedRegistration) {
        self.cache.release(shared.grant);
    }

    /// Forgets memory that is freed or remapped: no rail is given a registration that has a byte of it any more. Each is closed
    /// with its last user.
    pub(crate) fn forget_memory(&self, memory: &MemoryRange, exported: Option<&ExportedDmaBuf<'_>>) {
        if let Some((of, span)) = bytes_of(memory, exported) {
            self.cache.forget_memory(of, span);
        }
    }

    /// How many the NIC has, whoever and however many use each.
    pub(crate) fn len(&self) -> usize {
        self.cache.registration_count()
    }
}

/// The right to use a registration, for the bytes that were asked for.
pub(crate) struct SharedRegistration {
    grant: RegistrationGrant,
    /// These bytes.
    pub(crate) local: LocalSlice<'static, PayloadTraffic>,
    /// Whoever asked keeps them mapped by this.
    _memory: MemoryRange,
}

impl SharedRegistration {
    /// Which registration it is.
    pub(crate) fn entry_id(&self) -> EntryId {
        self.grant.entry_id()
    }
}

/// What a registration is for peers, from the bytes that were asked for on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ForPeers {
    pub(crate) key: Option<u64>,
    pub(crate) base: u64,
}

impl ForPeers {
    /// All of a registration.
    pub(crate) fn from_mr<R: EndpointRole>(mr: &MrEnabled<R>) -> Self {
        Self { key: mr.key().map(RKey::number), base: mr.remote_base() }
    }
}

/// A rail's part of its NIC's registrations.
pub(crate) struct RegistrationSharing {
    nic: Arc<OpenNic>,
    /// None if there are too many; then nothing is shared.
    scope: Option<RegistrationScope>,
    /// Registrations are bound to the rail's endpoint: the scope is the rail's alone.
    bound: bool,
    /// The rail's endpoints go with its last link.
    closes: bool,
    /// Links that are not in error.
    live: AtomicU32,
}

impl RegistrationSharing {
    /// That of a rail whose registrations are `bound` to an endpoint of its own, or are the domain's. Whether endpoints are
    /// closed with their last link is `closes`; without, nothing of the domain's is shared.
    pub(crate) fn new(nic: &Arc<OpenNic>, bound: bool, closes: bool) -> Self {
        let of_domain = nic.registrations.domain.filter(|_| closes);
        let scope = if bound { nic.registrations.cache.open_scope().ok() } else { of_domain };
        Self { nic: Arc::clone(nic), scope, bound, closes: closes && !bound, live: AtomicU32::new(0) }
    }

    fn nic_cache(&self) -> &RegistrationCache<MrEnabled<PayloadTraffic>> {
        &self.nic.registrations.cache
    }

    /// The rail has one more link.
    pub(crate) fn link_begins(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// One of its links has ended.
    pub(crate) fn link_ends(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether that was the last, and the endpoints of all are to go with it.
    pub(crate) fn is_idle(&self) -> bool {
        let last = self.live.load(Ordering::Acquire) == 0;
        last && self.closes
    }

    /// The rail ends: nothing of its endpoint is found any more.
    pub(crate) fn end_scope(&self) {
        if let Some(scope) = self.scope.filter(|_| self.bound) {
            self.nic_cache().end_scope(scope);
        }
    }

    /// Memory by a registration that there is, or by the one that `make` makes; nothing if it is none that can be shared, and is
    /// to be registered by itself.
    ///
    /// # Errors
    /// What `make` said, or that another thread takes too long.
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
        // A dma-buf may be mapped at several addresses, and operations name the one that was registered.
        let same = addr.wrapping_add(inset as usize) == memory.addr();
        let Some(local) = place.local_slice(inset, span.len()).filter(|_| same) else {
            self.nic_cache().release(grant);
            return Ok(None);
        };
        // Who asked for itself alone is told no key that peers could use.
        let key = whole.key.filter(|_| access != AccessRights::LOCAL);
        let peers = ForPeers { key, base: whole.base.wrapping_add(inset) };
        Ok(Some((SharedRegistration { grant, local, _memory: memory.clone() }, peers)))
    }

    /// Whether nobody has closed a registration under its users.
    pub(crate) fn is_current(&self, entry: EntryId) -> bool {
        self.nic_cache().is_valid(entry)
    }

    /// Whether memory whose keys peers have is closed at once, under all who use the same registration.
    pub(crate) fn is_revoking(&self) -> bool {
        self.bound && self.live.load(Ordering::Acquire) == 0
    }

    /// Closes a registration under its users, who all name it no more.
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

/// Whose bytes memory is, and which of them: to the byte, whatever pages they are on. Nothing if it is none that has a name.
///
/// Memory of a device goes by its address, also where it is given as a dma-buf: callers make a new one each time, and while
/// somebody holds a registration there is no other memory at its addresses.
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
        rustix::fs::memfd_create("stands for a dma-buf", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    fn of(memory: &MemoryRange, file: &File, offset: u64) -> (key::MemorySpace, ByteSpan) {
        bytes_of(memory, Some(&ExportedDmaBuf { fd: file.as_fd(), offset })).unwrap()
    }

    #[test]
    fn a10_ranges_of_dma_bufs_that_begin_within_pages_are_distinct() {
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
        // Within one page, and not in one another.
        assert_eq!([0, 1, 77, 4095, 4096].map(|offset| registrations(&one, offset)), [1, 2, 3, 4, 5]);
        // Those of another file are other bytes, and by another descriptor they are the same.
        assert_eq!([registrations(&other, 77), registrations(&one.try_clone().unwrap(), 77)], [6, 6]);
        held.into_iter().for_each(|grant| cache.release(grant));
    }

    #[test]
    fn memory_has_a_name_to_the_byte() {
        let memory = MemoryRange::heap(100);
        let addr = memory.addr() as u64;
        assert_eq!(
            bytes_of(&memory, None),
            Some((key::MemorySpace::Host, ByteSpan::new(addr, 100).unwrap()))
        );
        assert_eq!(bytes_of(&MemoryRange::heap(0), None), None);
        let (_, span) = of(&memory, &dmabuf(), 4097);
        assert_eq!((span.start(), span.len()), (4097, 100));
        // SAFETY: nobody touches it.
        let device = unsafe { MemoryRange::from_raw(0x7000_0001, 5, MemoryKind::Device(3)) };
        let named = key::MemorySpace::Device { device: 3 };
        let named = Some((named, ByteSpan::new(0x7000_0001, 5).unwrap()));
        assert_eq!(bytes_of(&device, None), named);
        let file = dmabuf();
        assert_eq!(bytes_of(&device, Some(&ExportedDmaBuf { fd: file.as_fd(), offset: 77 })), named);
    }

    #[test]
    fn rights_are_kept_apart() {
        assert_eq!(access_rights(AccessRights::LOCAL), RegistrationRights::LOCAL);
        assert_eq!(access_rights(AccessRights::WRITE), RegistrationRights::WRITE);
        assert_eq!(
            access_rights(AccessRights::READ_WRITE),
            RegistrationRights::WRITE.with_rights(RegistrationRights::READ)
        );
    }
}
