//! The state of one import and its mappings, and the tokens of its users. Owned by the importer, which alone changes it.
//!
//! ```text
//! Vacant --announced--> Known --retired--> Retiring --no user, no mapping--> Vacant
//!   |                     ^
//!   +--referred to--> Awaited
//! ```

use alloc::vec::Vec;

use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::wire::ipc::ExportName;

/// An exporting process, from its arrival to its end. A process that returns gets a new id.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SourceId(pub(in crate::ipc) SlotId);

impl SourceId {
    /// Returns the slot by which the caller may store its own data.
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0.slot
    }
}

/// The kind of a mapping.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MappingKind {
    /// For a device: its copy engines can access it.
    Device,
    /// For the host: the CPU can load and store.
    Host,
}

/// The device and the kind of a mapping. A mapping serves requests for the same place only.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MappingPlace {
    /// This process's number of the device.
    pub device: u32,
    /// The kind of mapping.
    pub way: MappingKind,
}

/// A mapping of one export, in one place.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MappingId {
    /// The exporting process.
    pub source: SourceId,
    /// The export.
    pub name: ExportName,
    /// The place.
    pub place: MappingPlace,
}

/// The right of one operation to use an import, which stays mapped until the pin is returned. Each pin must be returned once; a dropped pin keeps its
/// import for ever.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use = "a use that does not end keeps its import for ever"]
pub struct ImportPin {
    pub(super) source: SourceId,
    pub(super) name: ExportName,
    pub(super) part: ByteSpan,
}

impl ImportPin {
    /// Returns the name of the import.
    #[must_use]
    pub const fn export_name(&self) -> ExportName {
        self.name
    }

    /// Returns its bytes, as offsets from the first byte of the allocation.
    #[must_use]
    pub const fn part(&self) -> ByteSpan {
        self.part
    }
}

/// The state of an import.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ImportState {
    /// The slot has no import.
    Vacant,
    /// A message referred to it before its announcement arrived.
    Awaited,
    /// It was announced and may be mapped.
    Known,
    /// It is to be unmapped and forgotten.
    Retiring,
}

/// The state of a mapping.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum MappingPhase {
    /// A caller is mapping it; `again` if for the second time.
    Opening { again: bool },
    /// It is mapped at that address.
    Open { address: u64 },
    /// The driver reported the memory as mapped already; it is to be tried again after other mappings have been unmapped.
    Refused,
    /// It could not be mapped; current users of the import get the error.
    Failed,
    /// It is to be unmapped; `told` once a caller has received the command.
    Closing { address: u64, told: bool },
}

/// A mapping.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct ImportMapping {
    pub(super) place: MappingPlace,
    pub(super) state: MappingPhase,
}

/// An import, or its vacant slot.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct ImportEntry {
    /// The generation of the slot's current or last use.
    pub(super) generation: u32,
    pub(super) state: ImportState,
    /// Its address range at the exporter, once known.
    pub(super) span: Option<ByteSpan>,
    /// The sequence number of its announcement. Of two imports that overlap, the one announced later exists and the other was freed.
    pub(super) order: u64,
    /// Operations that use it.
    pub(super) pins: u32,
    /// Few: one per place.
    pub(super) mappings: Vec<ImportMapping>,
}

impl ImportEntry {
    pub(super) const NONE: Self = Self {
        generation: 0,
        state: ImportState::Vacant,
        span: None,
        order: 0,
        pins: 0,
        mappings: Vec::new(),
    };

    /// Returns the mapping in that place.
    #[inline]
    pub(super) fn mapping(&self, place: MappingPlace) -> Option<&ImportMapping> {
        self.mappings.iter().find(|mapping| mapping.place == place)
    }

    pub(super) fn mapping_mut(&mut self, place: MappingPlace) -> Option<&mut ImportMapping> {
        self.mappings.iter_mut().find(|mapping| mapping.place == place)
    }
}
