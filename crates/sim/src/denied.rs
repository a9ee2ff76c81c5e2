//! What a NIC of one process refuses from now on, as one does that has run out of something. Set by tests; asked by the rail
//! and the registrar before they do anything.

use crate::Pid;
use crate::world::State;

/// What is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Denied {
    /// New links.
    Links,
    /// The addresses of links, which cost a descriptor on some networks.
    Addresses,
    /// To connect a link.
    Connections,
    /// Registrations.
    Regions,
}

impl State {
    /// Whether a process is refused that.
    pub(crate) fn denies(&self, process: Pid, what: Denied) -> bool {
        self.denied == Some((process, what))
    }
}
