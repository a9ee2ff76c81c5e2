//! Where strands meet their streams: whoever accepts one that belongs to a stream of this process leaves it here, and the
//! stream fetches it. Shared by the listener's streams; holds no more than a few strands for each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_proto::wire::strand::{Name, STRANDS_MAX};

use super::strand::Strand;

/// A strand that says how many frames of its stream the other end has taken.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) strand: Strand,
    pub(super) received: u64,
}

/// Streams by name, with the strands that wait for each.
#[derive(Debug, Default)]
pub(super) struct Lobby(Mutex<HashMap<Name, Vec<Guest>>>);

impl Lobby {
    fn streams(&self) -> MutexGuard<'_, HashMap<Name, Vec<Guest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a strand for the stream of that name; gives it back if there is none. One too many takes the place of the
    /// oldest.
    pub(super) fn leave(&self, name: &Name, guest: Guest) -> Option<Guest> {
        let mut streams = self.streams();
        let Some(guests) = streams.get_mut(name) else { return Some(guest) };
        if guests.len() == STRANDS_MAX {
            guests.remove(0);
        }
        guests.push(guest);
        None
    }

    /// A stream begins.
    pub(super) fn enter(&self, name: Name) {
        self.streams().insert(name, Vec::new());
    }

    /// The strands that came for a stream.
    pub(super) fn fetch(&self, name: &Name) -> Vec<Guest> {
        self.streams().get_mut(name).map(std::mem::take).unwrap_or_default()
    }

    /// A stream is over.
    pub(super) fn exit(&self, name: &Name) {
        self.streams().remove(name);
    }
}
