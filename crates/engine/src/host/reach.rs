//! Who may reach this process, and how soon a host that is silent is given up. Chosen by a front end; used by control
//! streams.

use std::net::IpAddr;

use trunkline_proto::time::Duration;

/// Whose processes may be at the other end of a local control stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LocalUsers {
    /// Those of this process's effective user, as the kernel says.
    #[default]
    Same,
    /// Those of every user of the host.
    Any,
}

/// How control streams reach this process and others.
#[derive(Clone, Debug)]
pub struct ControlReach {
    /// Processes of this host reach each other by local sockets; otherwise by the network, like those of other hosts.
    pub local: bool,
    /// Whose processes may share a local socket with this one.
    pub users: LocalUsers,
    /// The addresses that other hosts are told, of which the first four are used; none: they do not reach this
    /// process. Control streams go over all of them.
    pub addresses: Vec<IpAddr>,
    /// How long a host may be silent before the kernel gives it up. What a process does or does not do is not seen
    /// here: the kernels talk to each other.
    pub silence: Duration,
}

impl Default for ControlReach {
    fn default() -> Self {
        Self { local: true, users: LocalUsers::Same, addresses: Vec::new(), silence: Duration::from_secs(10) }
    }
}
