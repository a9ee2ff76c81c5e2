//! What one neighbour has announced, and what is mapped of it, beside their names. Owned by the neighbour's entry; decides nothing.

use std::os::fd::OwnedFd;

use trunkline_mem::ipc::{Handle, Mapped};
use trunkline_proto::intervals::Span;
use trunkline_proto::ipc::importer::Place;
use trunkline_proto::wire::ipc::{Announce, Name};

use super::DESCRIPTORS_MAX;

/// Something that may be mapped.
#[derive(Debug)]
pub(super) struct Import {
    name: Name,
    pub(super) span: Span,
    pub(super) handle: Handle,
    /// What came along; it is needed again for each place that this is mapped in.
    pub(super) descriptor: Option<OwnedFd>,
    mapped: Vec<(Place, Mapped)>,
}

/// All of them, by the places of their names.
#[derive(Debug, Default)]
pub(super) struct Imports {
    places: Vec<Option<Box<Import>>>,
    descriptors: usize,
}

impl Imports {
    /// Something may be mapped from now on. Its name is vacant, as the importer says.
    pub(super) fn add(&mut self, announce: &Announce, fd: Option<OwnedFd>) {
        let Some(handle) = Handle::new(announce.handle.kind(), announce.handle.bytes()) else { return };
        let name = announce.name;
        let span = announce.span;
        let descriptor = fd.filter(|_| self.descriptors < DESCRIPTORS_MAX);
        self.descriptors += usize::from(descriptor.is_some());
        let place = name.id().slot as usize;
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        let import = Import { name, span, handle, descriptor, mapped: Vec::new() };
        if let Some(at) = self.places.get_mut(place) {
            *at = Some(Box::new(import));
        }
    }

    pub(super) fn get(&self, name: Name) -> Option<&Import> {
        self.places.get(name.id().slot as usize)?.as_deref().filter(|import| import.name == name)
    }

    fn get_mut(&mut self, name: Name) -> Option<&mut Import> {
        let place = self.places.get_mut(name.id().slot as usize)?;
        place.as_deref_mut().filter(|import| import.name == name)
    }

    /// It is mapped there.
    pub(super) fn mapped(&mut self, name: Name, place: Place, mapped: Mapped) {
        if let Some(import) = self.get_mut(name) {
            import.mapped.push((place, mapped));
        }
    }

    /// The mapping in a place.
    #[inline]
    pub(super) fn find(&self, name: Name, place: Place) -> Option<&Mapped> {
        self.get(name)?.mapped.iter().find(|(other, _)| *other == place).map(|(_, mapped)| mapped)
    }

    /// The mapping in a place, to be closed.
    pub(super) fn unmap(&mut self, name: Name, place: Place) -> Option<Mapped> {
        let import = self.get_mut(name)?;
        let at = import.mapped.iter().position(|(other, _)| *other == place)?;
        Some(import.mapped.swap_remove(at).1)
    }

    /// It may not be mapped any more, and is mapped nowhere.
    pub(super) fn forget(&mut self, name: Name) {
        let Some(place) = self.places.get_mut(name.id().slot as usize) else { return };
        if let Some(gone) = place.take_if(|import| import.name == name) {
            self.descriptors -= usize::from(gone.descriptor.is_some());
        }
    }
}
