//! The resource that the NICs of one process refuse from now on, as a NIC without free resources does. Set by tests;
//! read by the rail and the registrar before they act.

use crate::SimPid;
use crate::world::SimCore;

/// The kind of a refused resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeniedResource {
    /// New links.
    Links,
    /// The addresses of links, which cost a descriptor on some networks.
    Addresses,
    /// Connecting a link.
    Connections,
    /// Registrations.
    Regions,
}

impl SimCore {
    /// Whether a process is refused that resource.
    pub(crate) fn is_denied(&self, process: SimPid, what: DeniedResource) -> bool {
        self.denied == Some((process, what))
    }
}
