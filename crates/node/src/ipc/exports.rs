//! The driver's handles for the exports of this process, by export name. Owned by the node; knows no neighbour.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::ExportedHandle;
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::DriverAllocation;
use trunkline_proto::wire::ipc::{ExportAnnouncement, ExportHandle, ExportName};

/// An export, its allocation and its handle.
#[derive(Debug)]
struct DriverExport {
    name: ExportName,
    allocation: DriverAllocation,
    handle: ExportHandle,
    export: ExportedHandle,
}

/// All exports, indexed by the slots of their names.
#[derive(Debug, Default)]
pub(super) struct ExportTable {
    places: Vec<Option<DriverExport>>,
}

impl ExportTable {
    /// Records an export. Returns it as the error if its handle is longer than a message can carry.
    pub(super) fn add_export(
        &mut self,
        name: ExportName,
        allocation: DriverAllocation,
        export: ExportedHandle,
    ) -> Result<(), Box<ExportedHandle>> {
        let Some(handle) = ExportHandle::new(export.handle.kind(), export.handle.bytes()) else {
            return Err(Box::new(export));
        };
        let place = name.slot_id().slot as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        if let Some(at) = self.places.get_mut(place) {
            *at = Some(DriverExport { name, allocation, handle, export });
        }
        Ok(())
    }

    /// Returns the announcement of an export, and the descriptor to send with it.
    pub(super) fn make_announcement(
        &self,
        name: ExportName,
    ) -> Option<(ExportAnnouncement, Option<OwnedFd>)> {
        let found = self.places.get(name.slot_id().slot as usize)?.as_ref().filter(|one| one.name == name)?;
        // If this process has no free descriptors, the announcement is sent without one: the neighbour then does not
        // map the export, and messages use another method.
        let fd = found.export.descriptor.as_ref().and_then(|fd| fd.try_clone().ok());
        let DriverAllocation { span, device, .. } = found.allocation;
        let span: ByteSpan = span;
        Some((ExportAnnouncement { name, span, device, descriptor: fd.is_some(), handle: found.handle }, fd))
    }

    /// Removes an export that has ended.
    pub(super) fn take_export(&mut self, name: ExportName) -> Option<ExportedHandle> {
        let place = self.places.get_mut(name.slot_id().slot as usize)?;
        place.take_if(|one| one.name == name).map(|one| one.export)
    }
}
