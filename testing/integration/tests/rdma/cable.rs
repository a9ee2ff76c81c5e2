//! Another cable between the two ends of `scripts/rxe-vm`'s machine, with a software RDMA device at each end, which
//! tests can cut. It is made of network interfaces, so it needs a machine that tests may change
//! (`TRUNKLINE_TEST_MACHINE`).

use std::cell::Cell;
use std::process::Command;

/// The routing table that has precedence over the one of local addresses.
const TABLE: &str = "90";

/// The cable; removed on drop.
pub(super) struct Cable {
    /// The device at each end.
    pub(super) devices: [&'static str; 2],
    /// Last part of the first end's address; that of the other end is 2.
    address: Cell<u8>,
}

const INTERFACES: [&str; 2] = ["left2", "right2"];

/// Runs a command given as a line of words.
#[track_caller]
pub(super) fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    let output = command.args(words).output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Packets that a device has sent.
pub(super) fn sent(device: &str) -> u64 {
    counted(device, "sent_pkts")
}

/// Packets that a device has received, which are those to an address of its interface.
pub(super) fn received(device: &str) -> u64 {
    counted(device, "rcvd_pkts")
}

fn counted(device: &str, counter: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}");
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl Cable {
    /// Creates a cable; `None`, counted as a skip, on a machine that tests may not change.
    pub(super) fn lay() -> Option<Self> {
        if std::env::var_os("TRUNKLINE_TEST_MACHINE").is_none() {
            let reason = "the ports of this machine are not taken down; scripts/rxe-vm has one for that";
            trunkline_integration::skip_test(
                "ports that go down, over verbs",
                "a machine of its own",
                reason,
            );
            return None;
        }
        let cable = Self { devices: ["rxe2", "rxe3"], address: Cell::new(1) };
        let [left, right] = INTERFACES;
        run(&format!(
            "ip link add {left} address 02:00:5e:91:00:01 mtu 5000 type veth peer name {right} address 02:00:5e:91:00:02 mtu 5000"
        ));
        for interface in INTERFACES {
            for (setting, value) in [("accept_local", "1"), ("arp_ignore", "1"), ("rp_filter", "0")] {
                std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/{setting}"), value)
                    .expect("a setting");
            }
        }
        cable.raise();
        for (device, interface) in cable.devices.into_iter().zip(INTERFACES) {
            run(&format!("rdma link add {device} type rxe netdev {interface}"));
        }
        Some(cable)
    }

    /// Brings both ends up, and restores everything that the kernel discards when one goes down.
    fn raise(&self) {
        for interface in INTERFACES {
            run(&format!("ip link set {interface} up"));
        }
        self.lead();
    }

    /// Assigns addresses to both ends, and routes each to the other. Each address is in a network of its own: of two in
    /// the same network the kernel would remove both with the first.
    fn lead(&self) {
        let addresses = [self.address.get(), 2];
        for (at, interface) in INTERFACES.into_iter().enumerate() {
            let (own, other, place) = (addresses[at], addresses[1 - at], 2 - at);
            run(&format!("ip addr replace 10.91.0.{own}/32 dev {interface} noprefixroute"));
            run(&format!(
                "ip neigh replace 10.91.0.{other} lladdr 02:00:5e:91:00:0{place} dev {interface} nud permanent"
            ));
            run(&format!(
                "ip route replace 10.91.0.{other}/32 dev {interface} src 10.91.0.{own} table {TABLE}"
            ));
        }
    }

    /// Removes an address of the first end.
    pub(super) fn remove_address(&self, address: u8) {
        run(&format!("ip addr del 10.91.0.{address}/32 dev {}", INTERFACES[0]));
    }

    /// Adds an address to the first end, beside any other.
    pub(super) fn add_address(&self, address: u8) {
        self.address.set(address);
        self.lead();
    }

    /// Takes one end down, and the other with it.
    pub(super) fn cut(&self) {
        run(&format!("ip link set {} down", INTERFACES[0]));
    }

    pub(super) fn mend(&self) {
        self.raise();
    }

    /// Removes the addresses of the first end.
    pub(super) fn forget_addresses(&self) {
        for family in ["-4", "-6"] {
            run(&format!("ip {family} addr flush dev {}", INTERFACES[0]));
        }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for device in self.devices {
            let _ = Command::new("rdma").args(["link", "delete", device]).output();
        }
        let _ = Command::new("ip").args(["link", "delete", INTERFACES[0]]).output();
    }
}
