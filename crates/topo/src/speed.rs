//! The speeds in Mb/s that the software NICs of this host report: the speed of each NIC's interface, divided by the
//! NICs that use it. Called once, when the NICs are made. Pure: the interfaces are an argument.

use std::net::IpAddr;

use crate::NetworkInterface;

/// Mb/s of an interface whose driver reports no speed, or an implausible one: NCCL's socket transport assumes 10
/// Gb/s.
pub const SPEED_UNKNOWN_MBPS: u32 = 10_000;

/// Slower interfaces count as unknown: drivers of virtual ones report 10 or 100 Mb/s and carry much more.
const SPEED_MIN_MBPS: u32 = 1_000;

/// Returns the speeds of `nics` software NICs that use these addresses in turn, starting again at the first if there
/// are more NICs. A NIC without an address connects only processes of this host, so no interface limits it; it
/// reports [`SPEED_UNKNOWN_MBPS`].
#[must_use]
pub fn share_speeds(all: &[NetworkInterface], addresses: &[IpAddr], nics: usize) -> Vec<u32> {
    let interface_of = |nic: usize| {
        let address = addresses[nic.checked_rem(addresses.len())?];
        all.iter().position(|one| one.addresses.contains(&address))
    };
    let used: Vec<Option<usize>> = (0..nics).map(interface_of).collect();
    let share = |interface: &Option<usize>| {
        let Some(at) = *interface else { return SPEED_UNKNOWN_MBPS };
        let sharing = used.iter().filter(|other| *other == interface).count();
        plausible_speed(all[at].speed_mbps) / u32::try_from(sharing).unwrap_or(u32::MAX)
    };
    used.iter().map(share).collect()
}

fn plausible_speed(speed_mbps: Option<u32>) -> u32 {
    speed_mbps.filter(|&speed| speed >= SPEED_MIN_MBPS).unwrap_or(SPEED_UNKNOWN_MBPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Interfaces with these speeds; the first has the address 192.0.2.0.
    fn interfaces(speeds: &[Option<u32>]) -> Vec<NetworkInterface> {
        let one = |(at, &speed_mbps): (usize, &Option<u32>)| NetworkInterface {
            name: format!("eth{at}"),
            addresses: vec![address(at as u8)],
            speed_mbps,
            loopback: false,
        };
        speeds.iter().enumerate().map(one).collect()
    }

    fn speeds(interfaces_have: &[Option<u32>], used: &[u8], nics: usize) -> Vec<u32> {
        let addresses: Vec<IpAddr> = used.iter().map(|&last| address(last)).collect();
        share_speeds(&interfaces(interfaces_have), &addresses, nics)
    }

    #[test]
    fn a_nic_has_the_speed_of_its_interface() {
        let have = [Some(25_000), Some(100_000), Some(1_000)];
        assert_eq!(speeds(&have, &[1, 0, 2], 3), [100_000, 25_000, 1_000]);
    }

    #[test]
    fn speeds_below_one_gigabit_count_as_unknown() {
        assert_eq!(speeds(&[None, Some(10), Some(999)], &[0, 1, 2], 3), [SPEED_UNKNOWN_MBPS; 3]);
    }

    #[test]
    fn nics_of_one_interface_divide_its_speed() {
        assert_eq!(speeds(&[Some(100_000)], &[0], 3), [33_333; 3]);
        // Of three NICs over two interfaces, the first and the third share.
        assert_eq!(speeds(&[Some(100_000), Some(40_000)], &[0, 1], 3), [50_000, 40_000, 50_000]);
        assert_eq!(speeds(&[None], &[0], 2), [SPEED_UNKNOWN_MBPS / 2; 2]);
    }

    #[test]
    fn nics_without_an_interface_share_nothing() {
        assert_eq!(speeds(&[Some(100_000)], &[], 2), [SPEED_UNKNOWN_MBPS; 2]);
        assert_eq!(speeds(&[Some(100_000)], &[7], 2), [SPEED_UNKNOWN_MBPS; 2]);
        assert_eq!(speeds(&[], &[], 0), []);
    }
}
