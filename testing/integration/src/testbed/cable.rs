//! Cables between two hosts: devices, addresses, and counts of their packets.
//!
//! Called by the testbed and by tests; [`super::RelayCable`] is a cable too. It never changes a device after its creation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::host::TestHost;

/// A cable between two hosts; dropping it removes both its devices.
#[derive(Debug)]
#[must_use = "dropping a cable removes it"]
pub struct NetworkCable {
    ends: [CableEnd; 2],
    /// Deletes the pair when dropped; the kernel removes the devices of a relay when their files close.
    is_veth: bool,
}

/// One end of a cable.
#[derive(Clone, Debug)]
pub struct CableEnd {
    /// The host of this end.
    pub host: TestHost,
    /// Name of its device on that host.
    pub device: String,
    /// Its address in a network of 24 bits.
    pub v4: Ipv4Addr,
    /// Its address in a network of 64 bits.
    pub v6: Ipv6Addr,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCount {
    /// Packets. On a plain pair one packet may be many of the largest size, unsegmented.
    pub packets: u64,
    /// Bytes with the headers of IP, and of Ethernet on a plain pair.
    pub bytes: u64,
}

/// The packets that the device at one end has counted, including the kernel's own small ones (IPv6 neighbours and
/// routers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Packets that left the host.
    pub sent: TrafficCount,
    /// Packets that reached the host.
    pub received: TrafficCount,
}

impl CableEnd {
    /// Both addresses.
    #[must_use]
    pub fn ip_addresses(&self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }
}

impl NetworkCable {
    /// Returns the two ends of cable `number`, whose devices do not exist yet.
    pub(super) fn plan_cable(near: &TestHost, far: &TestHost, number: usize, is_veth: bool) -> Self {
        assert!(!near.is_same_host(far), "a cable joins two hosts");
        let end = |host: &TestHost, which: u8| CableEnd {
            host: host.clone(),
            device: format!("rail{number}"),
            v4: Ipv4Addr::new(10, 77, number as u8, which),
            v6: Ipv6Addr::new(0xfd77, 0, 0, number as u16, 0, 0, 0, which.into()),
        };
        Self { ends: [end(near, 1), end(far, 2)], is_veth }
    }

    pub(super) fn make_veth(near: &TestHost, far: &TestHost, number: usize, mtu: u16) -> Self {
        let mut cable = Self::plan_cable(near, far, number, false);
        let device = &cable.ends[0].device;
        near.run_ip(&format!("link add {device} type veth peer name {device} netns {}", far.network_path()));
        cable.is_veth = true;
        cable.set_up(mtu);
        cable
    }

    /// Gives both devices their addresses and starts them.
    pub(super) fn set_up(&self, mtu: u16) {
        for CableEnd { host, device, v4, v6 } in &self.ends {
            host.run_ip(&format!(
                "link set {device} mtu {mtu} txqueuelen 4096\n\
                 addr add {v4}/24 dev {device}\n\
                 addr add {v6}/64 dev {device} nodad\n\
                 link set {device} up\n"
            ));
        }
    }

    /// Returns both ends, in the order in which the hosts were named.
    #[must_use]
    pub fn both_ends(&self) -> &[CableEnd; 2] {
        &self.ends
    }

    /// Returns the end at a host.
    ///
    /// # Panics
    /// If the cable has no end at that host.
    #[track_caller]
    #[must_use]
    pub fn end_at(&self, host: &TestHost) -> &CableEnd {
        &self.ends[self.side_of(host)]
    }

    /// Returns the counters of the device at a host.
    ///
    /// # Panics
    /// If the cable has no end at that host.
    #[track_caller]
    #[must_use]
    pub fn device_counters(&self, host: &TestHost) -> DeviceCounters {
        let CableEnd { device, .. } = self.end_at(host);
        let path = "/proc/thread-self/net/dev";
        let text = host.call_on_host(|| std::fs::read_to_string(path));
        let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
        parse_counters(&text, device).unwrap_or_else(|| panic!("no device {device} in {path}:\n{text}"))
    }

    /// Returns 0 for the host named first, 1 for the other.
    #[track_caller]
    pub(super) fn side_of(&self, host: &TestHost) -> usize {
        let side = self.ends.iter().position(|end| end.host.is_same_host(host));
        side.unwrap_or_else(|| panic!("{} does not end at {}", self.ends[0].device, host.host_name()))
    }
}

impl Drop for NetworkCable {
    fn drop(&mut self) {
        if self.is_veth {
            let command = || {
                let mut command = std::process::Command::new("ip");
                command.args(["link", "delete", &self.ends[0].device]);
                command.output()
            };
            // A failure is ignored: the kernel removes the device with its namespaces.
            let _ = self.ends[0].host.call_on_host(command);
        }
    }
}

/// Reads one line of the kernel's table: eight figures received, eight sent, bytes and packets first.
fn parse_counters(text: &str, device: &str) -> Option<DeviceCounters> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'))?;
    let figures: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let traffic = |at: usize| Some(TrafficCount { bytes: *figures.get(at)?, packets: *figures.get(at + 1)? });
    Some(DeviceCounters { received: traffic(0)?, sent: traffic(8)? })
}
