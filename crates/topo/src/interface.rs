//! Lists the network interfaces of this host, as the kernel reports them.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// A network interface that is up and has an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NetworkInterface {
    /// The name that `ip link` shows.
    pub name: String,
    /// In the kernel's order, without link-local IPv6 addresses.
    pub addresses: Vec<IpAddr>,
    /// Speed in Mb/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
    /// Whether it reaches only this host.
    pub loopback: bool,
}

/// Returns all interfaces of this host that are up and have an address, in the kernel's order.
///
/// # Errors
/// If the kernel does not list them.
pub fn list_interfaces() -> io::Result<Vec<NetworkInterface>> {
    let mut found: Vec<NetworkInterface> = Vec::new();
    for entry in getifaddrs()? {
        // Whether the cable is connected is known only some time later, so that is not checked.
        let up = entry.flags.contains(InterfaceFlags::IFF_UP);
        let Some(address) = entry.address.as_ref().filter(|_| up).and_then(usable_ip) else { continue };
        if let Some(known) = found.iter_mut().find(|known| known.name == entry.interface_name) {
            known.addresses.push(address);
            continue;
        }
        found.push(NetworkInterface {
            speed_mbps: read_speed(Path::new("/sys/class/net"), &entry.interface_name),
            name: entry.interface_name,
            addresses: vec![address],
            loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
        });
    }
    Ok(found)
}

fn usable_ip(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip()));
    }
    let v6 = address.as_sockaddr_in6()?.ip();
    // A link-local address is useless to another host without the name of that host's own interface.
    (!v6.is_unicast_link_local()).then_some(IpAddr::V6(v6))
}

fn read_speed(sys: &Path, name: &str) -> Option<u32> {
    // Virtual interfaces have no speed: the kernel reports -1 or an error.
    std::fs::read_to_string(sys.join(name).join("speed")).ok()?.trim().parse().ok().filter(|&speed| speed > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_list_contains_loopback() {
        let all = list_interfaces().unwrap();
        let loopback = all.iter().find(|one| one.loopback).unwrap();
        assert!(loopback.addresses.iter().all(IpAddr::is_loopback), "{loopback:?}");
        assert!(all.iter().all(|one| !one.addresses.is_empty()));
    }

    #[test]
    fn invalid_interface_speeds_are_unknown() {
        let dir = std::env::temp_dir().join(format!("trunkline-topo-{}", std::process::id()));
        for (name, text) in [("fast", "100000\n"), ("virtual", "-1\n"), ("odd", "quick\n")] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
            std::fs::write(dir.join(name).join("speed"), text).unwrap();
        }
        let found = ["fast", "virtual", "odd", "gone"].map(|name| read_speed(&dir, name));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [Some(100_000), None, None, None]);
    }
}
