//! Addresses and paths in a PCI tree, as sysfs writes them. Pure: parses text, and returns nothing for invalid text.
//! Used for GPUs and NICs by the whole crate; it reads no file.

use std::fmt;
use std::str::FromStr;

/// Most addresses in a path, from below the host bridge to the device. Real trees have about eight.
const HOPS_MAX: usize = 32;

/// A function on a PCI bus: `domain:bus:device.function`, ordered by these numbers.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text is not a valid PCI address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid PCI address: the form is domain:bus:device.function, as in 0000:17:00.0")]
pub struct AddressError;

impl FromStr for PciAddress {
    type Err = AddressError;

    /// Parses an address as the kernel or a GPU driver writes it: the domain has 4 to 8 hexadecimal digits, in either
    /// case.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (bus, function) = text.rsplit_once('.').ok_or(AddressError)?;
        let (bus, device) = bus.rsplit_once(':').ok_or(AddressError)?;
        let (domain, bus) = bus_of(bus)?;
        let device = parse_hex(device, 2..=2)?;
        let function = parse_hex(function, 1..=1)?;
        match (u8::try_from(device), u8::try_from(function)) {
            (Ok(device @ 0..=31), Ok(function @ 0..=7)) => Ok(Self { domain, bus, device, function }),
            _ => Err(AddressError),
        }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
    }
}

impl PciAddress {
    /// Returns domain and bus, as `/sys/class/pci_bus` names them.
    #[must_use]
    pub fn bus_name(&self) -> String {
        format!("{:04x}:{:02x}", self.domain, self.bus)
    }

    /// Returns the address without the function, which identifies the card.
    #[must_use]
    pub fn card_name(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// Parses `domain:bus`.
fn bus_of(text: &str) -> Result<(u32, u8), AddressError> {
    let (domain, bus) = text.split_once(':').ok_or(AddressError)?;
    let bus = u8::try_from(parse_hex(bus, 2..=2)?).map_err(|_| AddressError)?;
    Ok((parse_hex(domain, 4..=8)?, bus))
}

/// Parses hexadecimal digits, with a length in that range, and nothing else: no sign, no space.
fn parse_hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Result<u32, AddressError> {
    if !digits.contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(AddressError);
    }
    u32::from_str_radix(text, 16).map_err(|_| AddressError)
}

/// The path of a device below its host bridge: the bridges downwards, then the device. Never empty, never more than
/// 32.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PciPath {
    /// The folders up to and including the host bridge. Two devices share a host bridge if these are equal.
    root: String,
    /// The host bridge alone, for display: `0000:16`.
    bridge: String,
    hops: Vec<PciAddress>,
}

impl PciPath {
    /// Parses the path of a device's folder, relative to sysfs: `devices/pci0000:16/0000:16:01.0/0000:17:00.0`. Parts
    /// below the last PCI address (`virtio2`) are ignored. If one host bridge is below another one's device (Intel's
    /// VMD), the lower host bridge counts.
    ///
    /// `None` if the path has no host bridge, no address below it, or more than 32 addresses.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
        let at = words.iter().rposition(|word| host_bridge(word).is_some())?;
        let hops: Vec<PciAddress> = words[at + 1..].iter().map_while(|word| word.parse().ok()).collect();
        if hops.is_empty() || hops.len() > HOPS_MAX {
            return None;
        }
        let bridge = host_bridge(words[at])?.to_owned();
        Some(Self { root: words[..=at].join("/"), bridge, hops })
    }

    /// Returns the address of the device.
    #[must_use]
    pub fn device_address(&self) -> PciAddress {
        // Never empty: `parse` checks that.
        self.hops[self.hops.len() - 1]
    }

    /// Returns the host bridge for display: `0000:16`.
    #[must_use]
    pub fn bridge_name(&self) -> &str {
        &self.bridge
    }

    /// Returns the folders up to the host bridge, which identify it.
    #[must_use]
    pub fn root_path(&self) -> &str {
        &self.root
    }

    /// Returns the bridges below the host bridge, then the device.
    #[must_use]
    pub fn hops(&self) -> &[PciAddress] {
        &self.hops
    }

    /// Returns the device's folder, relative to sysfs.
    #[must_use]
    pub fn sysfs_folder(&self) -> String {
        self.hops.iter().fold(self.root.clone(), |path, hop| format!("{path}/{hop}"))
    }
}

/// Returns `pci0000:16` without its prefix `pci`.
fn host_bridge(word: &str) -> Option<&str> {
    word.strip_prefix("pci").filter(|bus| bus_of(bus).is_ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_of_kernel_and_drivers_are_parsed() {
        for (text, shown) in [
            ("0000:17:00.0", "0000:17:00.0"),
            ("ffff:FF:1F.7", "ffff:ff:1f.7"),
            ("10000:e1:00.0", "10000:e1:00.0"),
            ("00000000:3B:00.0", "0000:3b:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in [
            "",
            ".",
            ":",
            "0000:17:00",
            "17:00.0",
            "000:17:00.0",
            "0000:17:20.0",
            "0000:17:00.8",
            "0000:17:00.a",
            "0000:17:0.0",
            "0000:117:00.0",
            "+000:17:00.0",
            "0000:17:00.0 ",
            "123456789:17:00.0",
            "new_id",
            "0000:17:00.0/x",
            "0000:17:00.00",
            "0000:1\u{664}:00.0",
        ] {
            assert_eq!(text.parse::<PciAddress>(), Err(AddressError), "{text:?}");
        }
    }

    #[test]
    fn addresses_are_ordered_by_number() {
        let sorted = |a: &str, b: &str| a.parse::<PciAddress>().unwrap() < b.parse().unwrap();
        // Compared as text, the order would be reversed.
        assert!(sorted("ffff:00:00.0", "10000:00:00.0"));
        assert!(sorted("0000:09:00.0", "0000:10:00.0"));
    }

    #[test]
    fn path_ends_at_the_last_pci_address() {
        let path = PciPath::parse("devices/pci0000:00/0000:00:03.0/virtio2").unwrap();
        assert_eq!(
            (path.bridge_name(), path.hops().len(), path.device_address().bus_name().as_str()),
            ("0000:00", 1, "0000:00")
        );
        assert_eq!(path.sysfs_folder(), "devices/pci0000:00/0000:00:03.0");
        let vmd = PciPath::parse("/devices/pci0000:ae/0000:ae:05.5/pci10000:00/10000:00:02.0/10000:01:00.0")
            .unwrap();
        assert_eq!(
            (vmd.bridge_name(), vmd.root_path()),
            ("10000:00", "devices/pci0000:ae/0000:ae:05.5/pci10000:00")
        );
        assert_eq!(vmd.device_address().to_string(), "10000:01:00.0");
    }

    #[test]
    fn invalid_paths_are_rejected() {
        for text in [
            "",
            "devices",
            "devices/pci0000:00",
            "devices/pci0/0000:00:03.0",
            "devices/virtual/net/lo",
            "0000:00:03.0",
        ] {
            assert_eq!(PciPath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn path_of_more_than_32_addresses_is_rejected() {
        let path = |hops: usize| {
            let hops: String = (0..hops).map(|at| format!("/0000:{at:02x}:00.0")).collect();
            PciPath::parse(&format!("devices/pci0000:00{hops}"))
        };
        assert_eq!(path(HOPS_MAX).unwrap().hops().len(), HOPS_MAX);
        assert_eq!(path(HOPS_MAX + 1), None);
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected(text in ".{0,60}", path in "[/a-z0-9:.]{0,60}") {
            if let Ok(address) = text.parse::<PciAddress>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
            if let Some(path) = PciPath::parse(&path) {
                prop_assert_eq!(PciPath::parse(&path.sysfs_folder()).map(|again| again.hops), Some(path.hops));
            }
        }
    }
}
