//! One import, its mappings, and the tokens of those who use it. Owned by the importer, which alone changes it.
//!
//! ```text
//! Vacant --announced--> Known --retired--> Retiring --nobody uses it, nothing is mapped--> Vacant
//!   |                     ^
//!   +--referred to--> Awaited
//! ```

use alloc::vec::Vec;

use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::wire::ipc::ExportName;

/// An exporting process, from its coming to its end. A process that comes again is another one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SourceId(pub(in crate::ipc) SlotId);

impl SourceId {
    /// The place in which the caller may keep what belongs to it.
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.0.slot
    }
}

/// How memory is mapped.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MappingKind {
    /// For a device: what copy engines take.
    Device,
    /// For the host: what a processor may load and store.
    Host,
}

/// Where and how memory is mapped. A mapping serves who asks for the same place, and nobody else.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MappingPlace {
    /// This process's number of the device.
    pub device: u32,
    /// How.
    pub way: MappingKind,
}

/// A mapping: of one export, in one place.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MappingId {
    /// Whose memory.
    pub source: SourceId,
    /// Which export.
    pub name: ExportName,
    /// Where.
    pub place: MappingPlace,
}

/// The right of one operation to use an import: nobody unmaps it before this is given back. There is one for each that was given;
/// one that is dropped keeps its import for ever.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Eq, Hash, PartialEq)]
#[must_use = "a use that does not end keeps its import for ever"]
pub struct ImportPin {
    pub(super) source: SourceId,
    pub(super) name: ExportName,
    pub(super) part: ByteSpan,
}

impl ImportPin {
    /// Which import.
    #[must_use]
    pub const fn export_name(&self) -> ExportName {
        self.name
    }

    /// Its bytes, counted from the first of the allocation.
    #[must_use]
    pub const fn part(&self) -> ByteSpan {
        self.part
    }
}

/// Where an import stands.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ImportState {
    /// There is none.
    Vacant,
    /// Something was referred to, and is not announced yet.
    Awaited,
    /// It may be mapped.
    Known,
    /// It is to be forgotten.
    Retiring,
}

/// Where a mapping stands.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum MappingPhase {
    /// Somebody is mapping it, for the second time where that is true.
    Opening { again: bool },
    /// It can be used, at that address.
    Open { address: u64 },
    /// The driver took it for mapped already; to be tried again when others are unmapped.
    Refused,
    /// It could not be mapped; whoever uses the import now is told.
    Failed,
    /// It is to be unmapped, or somebody is doing so.
    Closing { address: u64, told: bool },
}

/// A mapping.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct ImportMapping {
    pub(super) place: MappingPlace,
    pub(super) state: MappingPhase,
}

/// An import, or its place.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct ImportEntry {
    /// Which use of the place it is, or was.
    pub(super) generation: u32,
    pub(super) state: ImportState,
    /// Where it lies at the exporter, once that is known.
    pub(super) span: Option<ByteSpan>,
    /// Which announcement of its exporter it is: of two that overlap the later one is there, and the other one gone.
    pub(super) order: u64,
    /// Operations that use it.
    pub(super) pins: u32,
    /// Few: a place each.
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

    /// The mapping in that place.
    #[inline]
    pub(super) fn mapping(&self, place: MappingPlace) -> Option<&ImportMapping> {
        self.mappings.iter().find(|mapping| mapping.place == place)
    }

    pub(super) fn mapping_mut(&mut self, place: MappingPlace) -> Option<&mut ImportMapping> {
        self.mappings.iter_mut().find(|mapping| mapping.place == place)
    }
}
