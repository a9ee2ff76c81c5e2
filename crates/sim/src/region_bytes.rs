//! The bytes of registered memory: rights, words that arrive one by one, and writes that stay invisible until a
//! flush. Called by the wire when something arrives; never decides when that is.

use trunkline_fabric::{AccessRights, Op, RegionExtent, RegionPurpose, RemoteLocation, WriteVisibility};
use trunkline_mem::MemoryRange;

use crate::world::SimCore;

/// A registered region.
pub(crate) struct RegionEntry {
    pub(crate) rail: usize,
    pub(crate) memory: MemoryRange,
    pub(crate) access: AccessRights,
    pub(crate) purpose: RegionPurpose,
    pub(crate) remote: u64,
    pub(crate) base: u64,
    /// Deregistered, but a copy is in progress.
    pub(crate) closed: bool,
    /// When the copy in progress ends.
    pub(crate) copying: Option<u64>,
}

/// Bytes that were written, but are not visible yet.
pub(crate) struct ShadowWrite {
    /// The target region.
    pub(crate) region: u64,
    /// The offset in the region.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// The operation of the peer that wrote them.
    pub(crate) seq: u64,
    /// Whether that operation is complete at this side.
    pub(crate) complete: bool,
    /// The first flush that must make it visible.
    pub(crate) flush: Option<u64>,
}

/// The right a remote operation needs.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum RequiredRight {
    Write,
    Read,
    Atomic,
}

/// A part of a write that lands at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WritePiece {
    /// Bytes from..from+len of the write.
    Bytes { from: u64, len: u64 },
    /// The 8-byte words of the write whose bits are set.
    Words(u64),
}

impl SimCore {
    /// Returns the region and offset of a remote operation, if it has the right.
    pub(crate) fn remote_range(
        &self,
        link: usize,
        at: RemoteLocation,
        len: u64,
        right: RequiredRight,
    ) -> Option<(u64, u64)> {
        let rail = self.links.get(link)?.rail;
        let local = *self.remote_keys.get(&at.key.0)?;
        let fits = |region: &&RegionEntry| region.rail == rail && region.purpose.is_compatible(at.purpose);
        let region = self.regions.get(&local).filter(fits)?;
        let granted = match right {
            RequiredRight::Write => region.access.write,
            RequiredRight::Read => region.access.read,
            RequiredRight::Atomic => region.access.atomic,
        };
        let offset = at.addr.checked_sub(region.base)?;
        (granted && region.memory.checked_address(offset, len).is_ok()).then_some((local, offset))
    }

    /// Whether a write there is accepted and discarded, because the region is retired.
    pub(crate) fn goes_nowhere(&self, link: usize, at: RemoteLocation) -> bool {
        let rail = self.links.get(link).map(|link| link.rail);
        rail.is_some() && self.retired.get(&at.key.0).copied() == rail
    }

    /// Returns the memory of a local extent, if it is registered on the link's rail and inside its region.
    pub(crate) fn local_memory(&self, link: usize, extent: RegionExtent) -> Option<MemoryRange> {
        let rail = self.links.get(link)?.rail;
        let region = self.regions.get(&extent.key.0)?;
        let fits = region.memory.checked_address(extent.offset, extent.len).is_ok();
        (region.rail == rail && !region.closed && fits).then(|| region.memory.clone())
    }

    /// Whether an operation may use its memory here. Registrations are bound to the endpoint of their purpose, as on
    /// the strictest networks.
    pub(crate) fn is_usable(&self, link: usize, extent: RegionExtent, op: &Op<'_>) -> bool {
        let purpose = if let Op::Write { to, .. } = op { to.purpose } else { RegionPurpose::Data };
        let bound =
            self.regions.get(&extent.key.0).is_some_and(|region| region.purpose.is_compatible(purpose));
        bound && self.local_memory(link, extent).is_some()
    }

    /// Whether writes into the region on that link stay invisible until a flush.
    pub(crate) fn is_delayed(&self, region: u64) -> bool {
        self.weather.caps.needs_flush
            && self
                .regions
                .get(&region)
                .is_some_and(|region| region.purpose.write_visibility() == WriteVisibility::Relaxed)
    }

    /// Writes bytes that arrived over `link` as part of the peer's operation `seq`.
    pub(crate) fn place_bytes(&mut self, link: usize, region: u64, offset: u64, bytes: Vec<u8>, seq: u64) {
        if self.is_delayed(region) {
            let shadow = ShadowWrite { region, offset, bytes, seq, complete: false, flush: None };
            self.links[link].shadow.push(shadow);
        } else if let Some(region) = self.regions.get(&region) {
            // The range was checked, and a region never changes its size.
            let _ = region.memory.write(offset, &bytes);
        }
    }

    /// Writes aligned words one by one; returns `false` if the target is not aligned.
    pub(crate) fn place_words(&mut self, region: u64, offset: u64, bytes: &[u8], mask: u64) -> bool {
        let Some(region) = self.regions.get(&region) else { return true };
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            if mask >> i & 1 == 1 {
                let mut raw = [0; 8];
                raw.copy_from_slice(word);
                if region.memory.store(offset + 8 * i as u64, u64::from_le_bytes(raw)).is_err() {
                    return false;
                }
            }
        }
        true
    }

    /// Marks the bytes of the peer's operation `seq` as complete.
    pub(crate) fn complete_shadow(&mut self, link: usize, seq: u64) {
        for shadow in self.links[link].shadow.iter_mut().filter(|shadow| shadow.seq == seq) {
            shadow.complete = true;
        }
    }

    /// Marks the bytes that a posted flush must make visible: those that are complete now.
    pub(crate) fn mark_shadow(&mut self, link: usize, flush: u64) {
        for shadow in self.links[link].shadow.iter_mut().filter(|shadow| shadow.complete) {
            shadow.flush.get_or_insert(flush);
        }
    }

    /// Makes the bytes visible that a completed flush covers.
    pub(crate) fn reveal_shadow(&mut self, link: usize, flush: u64) {
        let shadows = std::mem::take(&mut self.links[link].shadow);
        for shadow in shadows {
            if shadow.flush.is_some_and(|marked| marked <= flush) {
                self.reveal_write(&shadow);
            } else {
                self.links[link].shadow.push(shadow);
            }
        }
    }

    /// Makes earlier writes to a region visible: a remote read or atomic pushes them out.
    pub(crate) fn reveal_region(&mut self, link: usize, region: u64) {
        let shadows = std::mem::take(&mut self.links[link].shadow);
        for shadow in shadows {
            if shadow.region == region {
                self.reveal_write(&shadow);
            } else {
                self.links[link].shadow.push(shadow);
            }
        }
    }

    fn reveal_write(&self, shadow: &ShadowWrite) {
        if let Some(region) = self.regions.get(&shadow.region) {
            let _ = region.memory.write(shadow.offset, &shadow.bytes);
        }
    }
}
