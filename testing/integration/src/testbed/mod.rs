//! A network for tests: hosts in network namespaces of one machine, joined by cables.
//!
//! Called by the tests of this crate, never by the product. It never changes the machine's own network: it works in
//! namespaces that end with the test.
//!
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use trunkline_integration::testbed::{self, LineShape};
//!
//! // In a #[test] function. Its name is derived from the closure, so the closure is written directly inside.
//! testbed::run(|testbed| {
//!     let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
//!     let fast = testbed.add_veth(&left, &right);
//!     let slow = testbed.add_relay(&left, &right, LineShape { delay: Duration::from_millis(5), ..LineShape::PLAIN });
//!     let server = right.start_process(Command::new("some-server").arg(fast.end_at(&right).v4.to_string()));
//!     left.call_on_host(|| { /* sockets opened here are the left host's */ });
//!     slow.cut();
//!     assert_eq!(slow.tally_from(&left).lost, 0);
//!     drop(server); // kills it and all processes that it started
//! });
//! ```
//!
//! **Hosts.** A host has its own namespaces for network, mounts and host name:
//!
//! - `lo` is up, and `/sys/class/net` shows only the devices of the host;
//! - `/dev/shm` is empty;
//! - `gethostname` returns its name, and `/proc/sys/kernel/random/boot_id` differs from that of other hosts.
//!
//! All hosts share the space of process ids, and all files other than these.
//!
//! **Cables.** Cable number `n`, counted from 0 in each test, is the device `railN` at both ends. The host named first
//! has the addresses `10.77.n.1/24` and `fd77:0:0:n::1/64` on it, the second `10.77.n.2` and `fd77:0:0:n::2`. They are
//! usable at once. A cable of [`Testbed::add_veth`] is a plain pair as fast as the kernel. One of [`Testbed::add_relay`]
//! is two TUN devices and a thread between them, which delays, loses or slows down packets by a [`LineShape`], and can
//! cut the cable. The shape can be changed at any time.
//!
//! **Rights.** A testbed needs root, or a kernel that lets users create namespaces. A test whose testbed cannot be made
//! is skipped with the reason ([`crate::skip_test`], fabric `hosts`).

mod cable;
mod host;
mod inner_program;
mod line;
mod relay;

pub use cable::{CableEnd, DeviceCounters, NetworkCable, TrafficCount};
pub use host::{RunningProcess, TestHost};
pub use inner_program::{run, run_within};
pub use line::{CableLine, LineShape, LineTally};
pub use relay::RelayCable;

/// Most hosts, and most cables, of one testbed.
pub const MANY: usize = 100;

/// Makes the hosts and cables of a test.
#[derive(Debug)]
pub struct Testbed {
    /// Largest packet on cables made from now on, in bytes; initially 1500.
    pub mtu: u16,
    /// Seed of the losses and jitter of relays made from now on; each direction of each cable draws differently.
    pub seed: u64,
    hosts: usize,
    cables: usize,
}

impl Testbed {
    fn new() -> Self {
        Self { mtu: 1500, seed: 1, hosts: 0, cables: 0 }
    }

    /// Adds a host of this name (letters and digits). It exists until its last clone and the last of its cables are
    /// dropped.
    ///
    /// # Panics
    /// If the kernel refuses, which [`run`] turns into a skip, and beyond [`MANY`] hosts.
    pub fn add_host(&mut self, name: &str) -> TestHost {
        self.hosts += 1;
        assert!(self.hosts <= MANY, "at most {MANY} hosts");
        TestHost::new(name, self.hosts)
    }

    /// Adds a plain pair of virtual Ethernet devices, as fast as the kernel.
    ///
    /// # Panics
    /// If the kernel refuses, which [`run`] turns into a skip, and beyond [`MANY`] cables.
    pub fn add_veth(&mut self, near: &TestHost, far: &TestHost) -> NetworkCable {
        let number = self.next_cable();
        NetworkCable::make_veth(near, far, number, self.mtu)
    }

    /// Adds two TUN devices and a thread between them that applies the shape to packets of both directions.
    ///
    /// # Panics
    /// If the kernel refuses, which [`run`] turns into a skip, and beyond [`MANY`] cables.
    pub fn add_relay(&mut self, near: &TestHost, far: &TestHost, shape: LineShape) -> RelayCable {
        let number = self.next_cable();
        let seed = self.seed.wrapping_add(2 * number as u64);
        RelayCable::new(
            near,
            far,
            number,
            self.mtu,
            [CableLine::new(shape, seed), CableLine::new(shape, seed ^ (1 << 63))],
        )
    }

    fn next_cable(&mut self) -> usize {
        assert!(self.cables < MANY, "at most {MANY} cables");
        self.cables += 1;
        self.cables - 1
    }
}
