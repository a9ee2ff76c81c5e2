//! The addresses that rank 0 announces, and the choice of usable ones. Called when a job is joined.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs as _};

use trunkline_topo::NetworkInterface;

use crate::secret::JobSecret;

/// Addresses that are announced, at most.
const ADDRESSES_MAX: usize = 8;
/// Prefixes of interfaces that seldom lead to another host.
const INNER: [&str; 6] = ["docker", "virbr", "veth", "br-", "cni", "podman"];

/// Ports below the system's ephemeral range, so that no connection of the job uses one by chance.
const PORT_FIRST: u16 = 20_000;
const PORTS: u16 = 10_000;
const PORT_TRIES: u16 = 50;

/// Rank 0's address, as it is put into a launcher's key-value space.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RendezvousAddress {
    pub(crate) secret: JobSecret,
    pub(crate) port: u16,
    pub(crate) addresses: Vec<IpAddr>,
}

impl RendezvousAddress {
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("1,{},{}", self.secret.to_hex(), self.port);
        for address in self.addresses.iter().take(ADDRESSES_MAX) {
            text.push_str(&format!(",{address}"));
        }
        text
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut fields = text.split(',');
        if fields.next() != Some("1") {
            return None;
        }
        let secret = JobSecret::from_hex(fields.next()?)?;
        let port = fields.next()?.parse().ok().filter(|port| *port > 0)?;
        let addresses: Vec<IpAddr> =
            fields.take(ADDRESSES_MAX).map(|field| field.parse().ok()).collect::<Option<_>>()?;
        (!addresses.is_empty()).then_some(Self { secret, port, addresses })
    }

    pub(crate) fn socket_addrs(&self) -> Vec<SocketAddr> {
        self.addresses.iter().map(|address| SocketAddr::new(*address, self.port)).collect()
    }
}

/// Returns this host's addresses, the most probably reachable ones first; only the loopback if all processes run on
/// this host.
pub(crate) fn announced_addresses(all_here: bool) -> io::Result<Vec<IpAddr>> {
    if all_here {
        return Ok(vec![Ipv4Addr::LOCALHOST.into()]);
    }
    let named = |one: NetworkInterface| one.addresses.into_iter().map(move |ip| (one.name.clone(), ip));
    let found =
        sort_by_reachability(trunkline_topo::list_interfaces()?.into_iter().flat_map(named).collect());
    Ok(if found.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { found })
}

/// Returns this host's addresses, those first that other hosts most probably reach.
///
/// # Errors
/// If the system does not list them.
pub fn host_addresses() -> io::Result<Vec<IpAddr>> {
    announced_addresses(false)
}

/// Sorts addresses: interfaces between hosts before virtual ones, IPv4 before IPv6. Addresses that need a scope are
/// left out.
fn sort_by_reachability(mut found: Vec<(String, IpAddr)>) -> Vec<IpAddr> {
    found.retain(|(_, ip)| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    });
    found.sort_by_key(|(name, ip)| (INNER.iter().any(|inner| name.starts_with(inner)), ip.is_ipv6()));
    found.into_iter().map(|(_, ip)| ip).take(ADDRESSES_MAX).collect()
}

/// Returns the loopback address of a host name, if it is one.
pub(crate) fn parse_loopback(host: &str) -> Option<IpAddr> {
    if host == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)
}

/// Returns all addresses of a host with all ports of a window.
///
/// # Errors
/// If the name cannot be resolved; the error contains the name.
pub(crate) fn resolve_host(
    host: &str,
    ports: impl Iterator<Item = u16> + Clone,
) -> io::Result<Vec<SocketAddr>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot resolve {host}: {error}"));
    let hosts: Vec<SocketAddr> = (host, 0).to_socket_addrs().map_err(named)?.take(ADDRESSES_MAX).collect();
    Ok(ports.flat_map(|port| hosts.iter().map(move |host| SocketAddr::new(host.ip(), port))).collect())
}

/// Returns a port of this host that is free now, for rank 0 of a job that is started here. The ports of the window
/// after it are not checked.
///
/// # Errors
/// The error of the last attempt, if no port is free.
pub fn free_port() -> io::Result<u16> {
    let offset = (std::process::id() % u32::from(PORTS)) as u16;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for step in 0..PORT_TRIES {
        // The distance of 16 keeps the windows of different jobs apart.
        let port = PORT_FIRST + (offset.wrapping_mul(16) % PORTS + step * 16) % PORTS;
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_address_round_trips_without_launcher_separators() {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::2".parse().unwrap()];
        let notice = RendezvousAddress { secret: JobSecret::from_texts(&["x"]), port: 4711, addresses };
        let text = notice.encode();
        assert!(text.len() < 832 && !text.contains([' ', '=', ';', '\n']), "{text}");
        assert_eq!(RendezvousAddress::decode(&text), Some(notice.clone()));
        assert_eq!(notice.socket_addrs()[1].to_string(), "[fd00::2]:4711");
        let secret = JobSecret::from_texts(&["x"]).to_hex();
        for bad in [
            String::new(),
            format!("2,{secret},1,10.0.0.1"),
            format!("1,{secret},1"),
            format!("1,{secret},0,10.0.0.1"),
            format!("1,{secret},1,host"),
            "1,abc,1,10.0.0.1".into(),
        ] {
            assert_eq!(RendezvousAddress::decode(&bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_between_hosts_are_sorted_first() {
        let row = |name: &str, ip: &str| (name.to_owned(), ip.parse().unwrap());
        let found = vec![
            row("lo", "127.0.0.1"),
            row("docker0", "172.17.0.1"),
            row("eth0", "fe80::1"),
            row("eth0", "fd00::5"),
            row("eth0", "10.0.0.5"),
            row("eth1", "169.254.1.1"),
        ];
        let names: Vec<String> = sort_by_reachability(found).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["10.0.0.5", "fd00::5", "172.17.0.1"]);
        assert_eq!(announced_addresses(true).unwrap(), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }

    #[test]
    fn loopback_names_are_recognised() {
        assert_eq!(parse_loopback("localhost"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(parse_loopback("::1"), "::1".parse().ok());
        assert_eq!(parse_loopback("127.0.1.1"), "127.0.1.1".parse().ok());
        assert_eq!(parse_loopback("10.0.0.1"), None);
        assert_eq!(parse_loopback("node1"), None);
    }

    proptest::proptest! {
        #[test]
        fn address_decoder_never_panics(text in ".{0,100}|1,[0-9a-f]{60,68},[0-9]{0,6}(,[0-9.:a-f]{0,20}){0,10}") {
            if let Some(notice) = RendezvousAddress::decode(&text) {
                proptest::prop_assert!(notice.addresses.len() <= ADDRESSES_MAX);
                proptest::prop_assert_eq!(RendezvousAddress::decode(&notice.encode()), Some(notice));
            }
        }
    }
}
