//! A network for tests: hosts in network namespaces of one machine, joined by cables.
//!
//! Called by the tests of this crate, never by the product. Nothing here touches the machine's own network: all of it
//! happens in namespaces that end with the test.
//!
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use trunkline_integration::testbed::{self, LineShape};
//!
//! // In a #[test] function; its name is taken from the closure, so the closure stands directly inside.
//! testbed::run(|testbed| {
//!     let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
//!     let fast = testbed.add_veth(&left, &right);
//!     let slow = testbed.add_relay(&left, &right, LineShape { delay: Duration::from_millis(5), ..LineShape::PLAIN });
//!     let server = right.start_process(Command::new("some-server").arg(fast.end_at(&right).v4.to_string()));
//!     left.call_on_host(|| { /* sockets opened here are the left host's */ });
//!     slow.cut();
//!     assert_eq!(slow.tally_from(&left).lost, 0);
//!     drop(server); // kills it and all that it started
//! });
//! ```
//!
//! **What a host is.** Namespaces of its own for network, mounts and host name: `lo` is up, `/sys/class/net` shows its
//! devices only, `/dev/shm` is empty, `gethostname` says the name it was given and
//! `/proc/sys/kernel/random/boot_id` differs from the other hosts'. Processes have ids of one space, and files other
//! than these are shared.
//!
//! **What a cable is.** Cable number `n`, counted from 0 in each test, is the device `railN` at both ends. The host
//! named first has `10.77.n.1/24` and `fd77:0:0:n::1/64` on it, the second `10.77.n.2` and `fd77:0:0:n::2`; addresses
//! are usable at once. [`Testbed::add_veth`] is a plain pair as fast as the kernel; [`Testbed::add_relay`] is two TUN devices
//! and a thread between them that delays, loses, slows down or cuts as its [`LineShape`] says, changed at any time.
//!
//! **Rights.** Root, or a user where the kernel lets users have namespaces. A test that cannot have its testbed is
//! skipped with the reason ([`crate::skip_test`], fabric `hosts`).

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

/// What a test is given: the maker of hosts and cables.
#[derive(Debug)]
pub struct Testbed {
    /// Largest packet on cables made from now on, in bytes; 1500 at first.
    pub mtu: u16,
    /// What relays made from now on draw losses and jitter from; each direction of each cable draws differently.
    pub seed: u64,
    hosts: usize,
    cables: usize,
}

impl Testbed {
    fn new() -> Self {
        Self { mtu: 1500, seed: 1, hosts: 0, cables: 0 }
    }

    /// A host of this name (letters and digits), which lasts until its last clone and the last of its cables are
    /// dropped.
    ///
    /// # Panics
    /// When the kernel refuses, which [`run`] turns into a skip, and beyond [`MANY`] hosts.
    pub fn add_host(&mut self, name: &str) -> TestHost {
        self.hosts += 1;
        assert!(self.hosts <= MANY, "at most {MANY} hosts");
        TestHost::new(name, self.hosts)
    }

    /// A plain pair of virtual Ethernet devices, as fast as the kernel.
    ///
    /// # Panics
    /// When the kernel refuses, which [`run`] turns into a skip, and beyond [`MANY`] cables.
    pub fn add_veth(&mut self, near: &TestHost, far: &TestHost) -> NetworkCable {
        let number = self.next_cable();
        NetworkCable::make_veth(near, far, number, self.mtu)
    }

    /// Two TUN devices and a thread between them that treats packets of both directions as the shape says.
    ///
    /// # Panics
    /// When the kernel refuses, which [`run`] turns into a skip, and beyond [`MANY`] cables.
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
