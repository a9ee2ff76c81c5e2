//! The announced exports of one neighbour and their mappings, by export name. Owned by the neighbour's entry; decides
//! nothing.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::{IpcHandle, OpenedHandle};
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::importer::MappingPlace;
use trunkline_proto::wire::ipc::{ExportAnnouncement, ExportName};

use super::DESCRIPTORS_MAX;

/// An announced export.
#[derive(Debug)]
pub(super) struct NeighbourImport {
    name: ExportName,
    pub(super) span: ByteSpan,
    pub(super) handle: IpcHandle,
    /// The descriptor of the announcement. Each further mapping needs it again.
    pub(super) descriptor: Option<OwnedFd>,
    mapped: Vec<(MappingPlace, OpenedHandle)>,
}

/// All imports, indexed by the slots of their names.
#[derive(Debug, Default)]
pub(super) struct NeighbourImports {
    places: Vec<Option<Box<NeighbourImport>>>,
    descriptors: usize,
}

impl NeighbourImports {
    /// Adds an announced export. The importer has checked that its name is unused.
    pub(super) fn add_import(&mut self, announce: &ExportAnnouncement, fd: Option<OwnedFd>) {
        let Some(handle) = IpcHandle::new(announce.handle.memory_kind(), announce.handle.as_bytes()) else {
            return;
        };
        let name = announce.name;
        let span = announce.span;
        let descriptor = fd.filter(|_| self.descriptors < DESCRIPTORS_MAX);
        self.descriptors += usize::from(descriptor.is_some());
        let place = name.slot_id().slot as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        let import = NeighbourImport { name, span, handle, descriptor, mapped: Vec::new() };
        if let Some(at) = self.places.get_mut(place) {
            *at = Some(Box::new(import));
        }
    }

    pub(super) fn get(&self, name: ExportName) -> Option<&NeighbourImport> {
        self.places.get(name.slot_id().slot as usize)?.as_deref().filter(|import| import.name == name)
    }

    fn get_mut(&mut self, name: ExportName) -> Option<&mut NeighbourImport> {
        let place = self.places.get_mut(name.slot_id().slot as usize)?;
        place.as_deref_mut().filter(|import| import.name == name)
    }

    /// Records a mapping of an import in a place.
    pub(super) fn record_mapping(&mut self, name: ExportName, place: MappingPlace, mapped: OpenedHandle) {
        if let Some(import) = self.get_mut(name) {
            import.mapped.push((place, mapped));
        }
    }

    /// Returns the mapping of an import in a place.
    #[inline]
    pub(super) fn find_mapping(&self, name: ExportName, place: MappingPlace) -> Option<&OpenedHandle> {
        self.get(name)?.mapped.iter().find(|(other, _)| *other == place).map(|(_, mapped)| mapped)
    }

    /// Removes the mapping of an import in a place, and returns it to be closed.
    pub(super) fn take_mapping(&mut self, name: ExportName, place: MappingPlace) -> Option<OpenedHandle> {
        let import = self.get_mut(name)?;
        let at = import.mapped.iter().position(|(other, _)| *other == place)?;
        Some(import.mapped.swap_remove(at).1)
    }

    /// Removes an import that is retired; it has no mapping left.
    pub(super) fn remove_import(&mut self, name: ExportName) {
        let Some(place) = self.places.get_mut(name.slot_id().slot as usize) else { return };
        if let Some(gone) = place.take_if(|import| import.name == name) {
            self.descriptors -= usize::from(gone.descriptor.is_some());
        }
    }
}
