//! What a driver gave for the exports of this process, beside their names. Owned by the node; knows no neighbour.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::Export;
use trunkline_proto::intervals::Span;
use trunkline_proto::ipc::exporter::Allocation;
use trunkline_proto::wire::ipc::{Announce, Handle, Name};

/// An export, and what it is of.
#[derive(Debug)]
struct Exported {
    name: Name,
    allocation: Allocation,
    handle: Handle,
    export: Export,
}

/// All of them, by the places of their names.
#[derive(Debug, Default)]
pub(super) struct Exports {
    places: Vec<Option<Exported>>,
}

impl Exports {
    /// A driver has exported an allocation; gives the export back if its handle is longer than a message takes.
    pub(super) fn add(
        &mut self,
        name: Name,
        allocation: Allocation,
        export: Export,
    ) -> Result<(), Box<Export>> {
        let Some(handle) = Handle::new(export.handle.kind(), export.handle.bytes()) else {
            return Err(Box::new(export));
        };
        let place = name.id().slot as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        if let Some(at) = self.places.get_mut(place) {
            *at = Some(Exported { name, allocation, handle, export });
        }
        Ok(())
    }

    /// What a neighbour is told of it, and the descriptor that goes along.
    pub(super) fn announce(&self, name: Name) -> Option<(Announce, Option<OwnedFd>)> {
        let found = self.places.get(name.id().slot as usize)?.as_ref().filter(|one| one.name == name)?;
        // A process that can have no more descriptors sends none: then it is not mapped, and goes another way.
        let fd = found.export.descriptor.as_ref().and_then(|fd| fd.try_clone().ok());
        let Allocation { span, device, .. } = found.allocation;
        let span: Span = span;
        Some((Announce { name, span, device, descriptor: fd.is_some(), handle: found.handle }, fd))
    }

    /// It is over.
    pub(super) fn take(&mut self, name: Name) -> Option<Export> {
        let place = self.places.get_mut(name.id().slot as usize)?;
        place.take_if(|one| one.name == name).map(|one| one.export)
    }
}
