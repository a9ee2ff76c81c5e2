//! One more cable between the two ends of `scripts/rxe-vm`'s machine, with a device in software at each end, to be cut. Made of
//! network interfaces, so only where the machine is ours to change (`TRUNKLINE_TEST_MACHINE`).

use std::cell::Cell;
use std::process::Command;

/// The table of routes that is asked before the one of local addresses.
const TABLE: &str = "90";

/// The cable; it is gone when this is dropped.
pub(super) struct Cable {
    /// At each end.
    pub(super) devices: [&'static str; 2],
    /// Last part of the first end's address; the other's is 2.
    address: Cell<u8>,
}

const INTERFACES: [&str; 2] = ["left2", "right2"];

/// Runs a command of a few words.
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

/// Packets that have reached a device: those to an address that its interface has.
pub(super) fn received(device: &str) -> u64 {
    counted(device, "rcvd_pkts")
}

fn counted(device: &str, counter: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}");
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl Cable {
    /// Lays one; `None`, counted as a skip, on a machine that is not for that.
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

    /// Brings both ends up, with all that the kernel forgets when one goes down.
    fn raise(&self) {
        for interface in INTERFACES {
            run(&format!("ip link set {interface} up"));
        }
        self.lead();
    }

    /// Gives both ends their addresses, and leads each to the other. An address is a network of its own: of two in one network the kernel
    /// would remove both with the first.
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

    /// Takes an address of the first end away.
    pub(super) fn remove_address(&self, address: u8) {
        run(&format!("ip addr del 10.91.0.{address}/32 dev {}", INTERFACES[0]));
    }

    /// Gives the first end another address, beside the one that it may have.
    pub(super) fn add_address(&self, address: u8) {
        self.address.set(address);
        self.lead();
    }

    /// Takes one end down, and with it the other.
    pub(super) fn cut(&self) {
        run(&format!("ip link set {} down", INTERFACES[0]));
    }

    pub(super) fn mend(&self) {
        self.raise();
    }

    /// Takes the addresses of the first end away.
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
