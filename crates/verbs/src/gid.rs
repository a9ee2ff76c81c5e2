//! The choice of a port's address. Pure; called when a port is found, and again once its address is no longer in the table. The rules for
//! RoCE are those of NCCL's own transport, so that a job which sets its variables gets the same address here.

use std::net::{IpAddr, Ipv6Addr};

use trunkline_sys::verbs::{LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND};

use crate::config::{GidFamily, VerbsConfig};

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GidTableEntry {
    /// Its index in the table.
    pub(crate) index: u32,
    /// The address in network order.
    pub(crate) raw: [u8; 16],
    /// Version of RoCE, 1 or 2; 0 on InfiniBand, or if it is not known.
    pub(crate) roce: u8,
}

impl GidTableEntry {
    fn ip_address(&self) -> IpAddr {
        Ipv6Addr::from(self.raw).to_canonical()
    }

    fn gid_family(&self) -> GidFamily {
        match self.ip_address() {
            IpAddr::V4(_) => GidFamily::V4,
            IpAddr::V6(_) => GidFamily::V6,
        }
    }

    /// Whether links may use it after `before`, the port's first address, has left the table: it must be of the same
    /// kind and scope. So a link-local address is not used while an interface has lost one address and not yet got
    /// the next.
    pub(crate) fn may_replace(&self, before: &Self) -> bool {
        self.gid_family() == before.gid_family()
            && self.roce == before.roce
            && (self.is_routable() || !before.is_routable())
    }

    /// Whether it is set, and not link-local.
    fn is_routable(&self) -> bool {
        let set = self.raw[8..] != [0; 8];
        set && !Ipv6Addr::from(self.raw).is_unicast_link_local()
    }
}

/// Returns the entry to use for a port on this link layer.
pub(crate) fn choose_gid(
    link_layer: u8,
    table: &[GidTableEntry],
    config: &VerbsConfig,
) -> Option<GidTableEntry> {
    match link_layer {
        LINK_LAYER_INFINIBAND => of_infiniband(table, config),
        LINK_LAYER_ETHERNET => of_roce(table, config),
        _ => None,
    }
}

/// Returns the entry of a RoCE port to use, from its entries by ascending index.
///
/// An index given by the user has precedence if it exists. Else the first entry is replaced by one of the wanted family in the wanted range,
/// and that by one with the wanted version of RoCE, if it is routable.
pub(crate) fn of_roce(table: &[GidTableEntry], config: &VerbsConfig) -> Option<GidTableEntry> {
    if let Some(forced) = config.gid_index {
        return table.iter().find(|one| one.index == forced).copied();
    }
    let mut best = *table.first()?;
    for candidate in &table[1..] {
        let wanted = candidate.gid_family() == config.family
            && config.range.is_none_or(|range| range.contains(candidate.ip_address()));
        if !wanted {
            continue;
        }
        let other = best.gid_family() != config.family;
        let newer = candidate.is_routable()
            && (candidate.roce != best.roce || !best.is_routable())
            && candidate.roce == config.roce_version;
        if other || newer {
            best = *candidate;
        }
    }
    Some(best)
}

/// Returns the entry of an InfiniBand port to use: the routable one if it names a subnet to route by, else the first.
pub(crate) fn of_infiniband(table: &[GidTableEntry], config: &VerbsConfig) -> Option<GidTableEntry> {
    let at = |index: u32| table.iter().find(|one| one.index == index).copied();
    if let Some(forced) = config.gid_index {
        return at(forced);
    }
    // Bytes 4 and 5 are the identifier that routers forward by (FLID).
    at(config.routable_gid_index).filter(|one| one.raw[4..6] != [0; 2]).or_else(|| at(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GidRange;

    fn entry(index: u32, address: &str, roce: u8) -> GidTableEntry {
        let raw = match address.parse().unwrap() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        GidTableEntry { index, raw, roce }
    }

    fn chosen(table: &[GidTableEntry], config: &VerbsConfig) -> Option<u32> {
        of_roce(table, config).map(|one| one.index)
    }

    fn range(text: &str) -> Option<GidRange> {
        Some(GidRange::parse(text).unwrap())
    }

    /// A port with two addresses: each of them with both versions, after the link-local one that every port has.
    fn table() -> Vec<GidTableEntry> {
        vec![
            entry(0, "fe80::5", 1),
            entry(1, "fe80::5", 2),
            entry(2, "10.1.0.5", 1),
            entry(3, "10.1.0.5", 2),
            entry(4, "10.2.0.5", 1),
            entry(5, "10.2.0.5", 2),
            entry(6, "fd00::5", 1),
            entry(7, "fd00::5", 2),
        ]
    }

    #[test]
    fn gid_is_chosen_by_family_range_and_version() {
        let usual = VerbsConfig::default();
        assert_eq!(chosen(&table(), &usual), Some(3), "IPv4, version 2");
        let old = VerbsConfig { roce_version: 1, ..usual.clone() };
        assert_eq!(chosen(&table(), &old), Some(2));
        let six = VerbsConfig { family: GidFamily::V6, ..usual.clone() };
        assert_eq!(chosen(&table(), &six), Some(7), "not the link-local one");
        let other = VerbsConfig { range: range("10.2.0.0/16"), ..usual.clone() };
        assert_eq!(chosen(&table(), &other), Some(5));
        let none = VerbsConfig { range: range("10.3.0.0/16"), ..usual.clone() };
        assert_eq!(chosen(&table(), &none), Some(0), "no entry is better than the first");
        let six = VerbsConfig { family: GidFamily::V6, range: range("fd00::/8"), ..usual };
        assert_eq!(chosen(&table(), &six), Some(7));
    }

    #[test]
    fn removed_address_is_replaced_by_its_kind() {
        let before = entry(3, "10.1.0.5", 2);
        assert!(entry(5, "10.2.0.5", 2).may_replace(&before));
        assert!(!entry(3, "10.1.0.5", 1).may_replace(&before), "another version of RoCE");
        assert!(!entry(0, "fe80::5", 2).may_replace(&before), "another family");
        let before = entry(3, "fd00::5", 2);
        assert!(!entry(0, "fe80::5", 2).may_replace(&before), "it is link-local");
        assert!(entry(4, "fd00::6", 2).may_replace(&entry(0, "fe80::5", 2)), "it is routable");
    }

    #[test]
    fn configured_index_is_used_if_it_exists() {
        let forced = VerbsConfig { gid_index: Some(6), ..VerbsConfig::default() };
        assert_eq!(chosen(&table(), &forced), Some(6));
        let forced = VerbsConfig { gid_index: Some(8), ..VerbsConfig::default() };
        assert_eq!(chosen(&table(), &forced), None);
        assert_eq!(chosen(&[], &VerbsConfig::default()), None);
    }

    #[test]
    fn unset_addresses_are_skipped() {
        let six = VerbsConfig { family: GidFamily::V6, ..VerbsConfig::default() };
        let table = [entry(0, "fe80::", 2), entry(1, "fd00::7", 2), entry(2, "fe80::9", 2)];
        assert_eq!(chosen(&table, &six), Some(1));
    }

    #[test]
    fn infiniband_uses_the_routable_gid_if_it_routes() {
        let mut table = vec![entry(0, "fe80::a:b:c:d", 0), entry(1, "fe80::a:b:c:d", 0)];
        assert_eq!(of_infiniband(&table, &VerbsConfig::default()).unwrap().index, 0);
        table[1].raw[5] = 3;
        assert_eq!(of_infiniband(&table, &VerbsConfig::default()).unwrap().index, 1);
        let forced = VerbsConfig { gid_index: Some(0), ..VerbsConfig::default() };
        assert_eq!(of_infiniband(&table, &forced).unwrap().index, 0);
    }
}
