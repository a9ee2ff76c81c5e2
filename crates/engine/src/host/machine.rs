//! The operating system's clock, random numbers and pages, and who may reach this process.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use trunkline_fabric::{Host, HostPage, Level};
use trunkline_mem::Page;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::status;

use super::oob::UnixOob;

type Log = Box<dyn Fn(Level, &str) + Send + Sync>;

/// How control streams reach this process and others.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Processes of this host reach each other by local sockets; otherwise by the network, like those of other hosts.
    pub local: bool,
    /// The addresses that other hosts are told, of which the first four are used; none: they do not reach this
    /// process. Control streams go over all of them.
    pub addresses: Vec<IpAddr>,
    /// How long a host may be silent before the kernel gives it up. What a process does or does not do is not seen
    /// here: the kernels talk to each other.
    pub silence: Duration,
    /// A planted bug.
    pub mutant: Mutant,
}

impl Default for Reach {
    fn default() -> Self {
        Self { local: true, addresses: Vec::new(), silence: Duration::secs(10), mutant: Mutant::NONE }
    }
}

/// The machine.
pub struct UnixHost {
    oob: UnixOob,
    log: Log,
}

impl UnixHost {
    /// A host that gives its log lines to `log`; only processes of the same host reach each other.
    pub fn new(log: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self::reached(Reach::default(), log)
    }

    /// The same, for processes of other hosts too.
    pub fn reached(reach: Reach, log: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        Self { oob: UnixOob::new(reach), log: Box::new(log) }
    }
}

impl Host for UnixHost {
    type Oob = UnixOob;

    fn now(&self) -> Instant {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Instant((now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64))
    }

    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            // Fails only when interrupted before the pool is ready, early at boot.
            if let Ok(n) =
                rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            {
                filled += n;
            }
        }
        bytes
    }

    fn oob(&self) -> &UnixOob {
        &self.oob
    }

    fn log(&self, level: Level, text: &str) {
        (self.log)(level, text);
    }

    fn page(&self, bytes: usize) -> io::Result<Option<HostPage>> {
        let page = Arc::new(Page::make(status::NAME, bytes)?);
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let unix_ns = (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64);
        Ok(Some(HostPage { page, pid, unix_ns }))
    }
}
