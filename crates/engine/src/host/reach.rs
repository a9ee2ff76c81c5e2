//! The permitted peers of this process, and the silence after which a host is given up. Chosen by a front end; used by control streams.

use std::net::IpAddr;

use trunkline_proto::time::Duration;

/// The permitted users of the process at the other end of a local control stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LocalUsers {
    /// The effective user of this process, according to the kernel.
    #[default]
    Same,
    /// Every user of the host.
    Any,
}

/// How control streams connect this process with others.
#[derive(Clone, Debug)]
pub struct ControlReach {
    /// Processes of this host connect by local sockets; otherwise by the network, as those of other hosts.
    pub local: bool,
    /// The users whose processes may share a local socket with this one.
    pub users: LocalUsers,
    /// The addresses that this process announces to other hosts; the first four are used. Empty: other hosts cannot connect to
    /// this process. Control streams use all of them.
    pub addresses: Vec<IpAddr>,
    /// The time after which the kernel gives up a silent host. It does not detect a stopped process, whose kernel still
    /// acknowledges.
    pub silence: Duration,
}

impl Default for ControlReach {
    fn default() -> Self {
        Self { local: true, users: LocalUsers::Same, addresses: Vec::new(), silence: Duration::from_secs(10) }
    }
}
