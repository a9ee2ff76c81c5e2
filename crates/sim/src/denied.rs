//! What a NIC of one process refuses from now on, as one does that has run out of something. Set by tests; asked by the rail
//! and the registrar before they do anything.

use crate::SimPid;
use crate::world::SimCore;

/// What is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeniedResource {
    /// New links.
    Links,
    /// The addresses of links, which cost a descriptor on some networks.
    Addresses,
    /// To connect a link.
    Connections,
    /// Registrations.
    Regions,
}

impl SimCore {
    /// Whether a process is refused that.
    pub(crate) fn is_denied(&self, process: SimPid, what: DeniedResource) -> bool {
        self.denied == Some((process, what))
    }
}
