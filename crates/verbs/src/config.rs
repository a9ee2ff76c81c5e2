//! The user's configuration, by variables that are known from NCCL. Pure: text in, values out; the front end reads the environment.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::HcaFilter;

/// A variable has an invalid value.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{name}{}\"{value}\" {why}", if .name.is_empty() { "" } else { " = " })]
pub struct VerbsConfigError {
    /// The variable.
    pub name: String,
    /// Its value, or the invalid part of it.
    pub value: String,
    /// Why it is invalid.
    pub why: String,
}

impl VerbsConfigError {
    pub(crate) fn bad_value(value: &str, why: impl Into<String>) -> Self {
        Self { name: String::new(), value: value.to_owned(), why: why.into() }
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GidFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The addresses that share their first bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GidRange {
    base: IpAddr,
    bits: u8,
}

impl GidRange {
    /// Parses `address/bits`.
    ///
    /// # Errors
    /// [`VerbsConfigError`], without the variable's name.
    pub fn parse(text: &str) -> Result<Self, VerbsConfigError> {
        let bad = || VerbsConfigError::bad_value(text, "is no address range like 10.1.0.0/16");
        let (base, bits) = text.split_once('/').ok_or_else(bad)?;
        let base: IpAddr = base.parse().map_err(|_| bad())?;
        let bits: u8 = bits.parse().map_err(|_| bad())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        if bits > most { Err(bad()) } else { Ok(Self { base, bits }) }
    }

    /// Its family.
    #[must_use]
    pub fn gid_family(&self) -> GidFamily {
        if self.base.is_ipv4() { GidFamily::V4 } else { GidFamily::V6 }
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let same = match (self.base, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => return false,
        };
        same >= u32::from(self.bits)
    }
}

/// Whether data regions are registered for relaxed ordering on the bus.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BusOrdering {
    /// Never.
    Strict,
    /// If the library supports it (`ibv_reg_mr_iova2`).
    Relaxed,
}

/// Whether a network may send the packets of one write over several paths.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PacketRouting {
    /// The usual setting: on InfiniBand they may, on Ethernet they may not.
    Usual,
    /// They may.
    Adaptive,
    /// They may not.
    Fixed,
}

/// The user's configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VerbsConfig {
    /// No device is used.
    pub disabled: bool,
    /// The ports to use.
    pub hca: HcaFilter,
    /// The address of the port by its index in the GID table; chosen automatically if not given.
    pub gid_index: Option<u32>,
    /// On InfiniBand, the index of the address to use between subnets.
    pub routable_gid_index: u32,
    /// The wanted family of the address.
    pub family: GidFamily,
    /// The range in which the address should be.
    pub range: Option<GidRange>,
    /// The wanted version of RoCE, 1 or 2.
    pub roce_version: u8,
    /// Local ACK timeout: 4.096 us times two to this, 1 to 31 (InfiniBand Architecture Specification, volume 1, section 9.7.6.1.3). Not given: the
    /// longest with which all retries fit into the rail's time, at least 14.
    pub timeout: Option<u8>,
    /// How often an unacknowledged packet is sent again, 0 to 7.
    pub retries: u8,
    /// Index in the table of partition keys.
    pub pkey_index: u16,
    /// Service level, 0 to 15; not given is 0.
    pub service_level: Option<u8>,
    /// Traffic class, 0 to 255; not given is the communicator's, or 0.
    pub traffic_class: Option<u8>,
    /// The traffic class of packets from the receiving end of a connection; not given is the connection's.
    pub record_class: Option<u8>,
    /// Whether packets of one write may take several paths.
    pub routing: PacketRouting,
    /// With adaptive routing, bytes above which a write is sent without its immediate, which follows in a request of its own. A write with an
    /// immediate would keep to one path.
    pub adaptive_above: u64,
    /// Whether the devices of both ends negotiate extensions to the standard (ECE).
    pub ece: bool,
    /// Whether virtual functions of a card count as one device.
    pub merge_functions: bool,
    /// Whether NICs may be fused.
    pub merge_nics: bool,
    /// Ordering of data on the bus.
    pub ordering: BusOrdering,
    /// Whether asynchronous events of a device end links.
    pub async_events: bool,
    /// Whether requested flushes of a GPU's memory are executed; else they complete at once.
    pub device_flush: bool,
    /// Root directory of `/sys`; not set by a variable.
    pub root: PathBuf,
    /// Whether requests are built in place (ibv_wr_post(3)) if the provider supports it.
    pub extended: bool,
    /// Most operations of a link that devices are requested to support; not set by a variable of this crate.
    pub depth: u32,
    /// Most inline bytes of a request that devices are requested to support; not set by a variable.
    pub inline: u32,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            disabled: false,
            hca: HcaFilter::default(),
            gid_index: None,
            routable_gid_index: 1,
            family: GidFamily::V4,
            range: None,
            roce_version: 2,
            timeout: None,
            retries: 7,
            pkey_index: 0,
            service_level: None,
            traffic_class: None,
            record_class: None,
            routing: PacketRouting::Usual,
            adaptive_above: 8192,
            ece: true,
            merge_functions: true,
            merge_nics: true,
            ordering: BusOrdering::Relaxed,
            async_events: true,
            device_flush: true,
            root: PathBuf::from("/"),
            extended: true,
            depth: 512,
            inline: 256,
        }
    }
}

/// Sets one value from a variable's text.
type VariableSetter = fn(&mut VerbsConfig, &str) -> Result<(), VerbsConfigError>;

/// The variables, without `NCCL_` and `TRUNKLINE_`, and the value that each sets.
const VARIABLES: &[(&str, VariableSetter)] = &[
    ("IB_DISABLE", |config, text| parse_flag(text).map(|on| config.disabled = on)),
    ("IB_HCA", |config, text| HcaFilter::parse(text).map(|list| config.hca = list)),
    ("IB_GID_INDEX", |config, text| parse_optional(text, 255).map(|found| config.gid_index = found)),
    ("IB_ROUTABLE_FLID_GID_INDEX", |config, text| {
        parse_number(text, 0, 255).map(|found| config.routable_gid_index = found)
    }),
    ("IB_ADDR_FAMILY", |config, text| parse_family(text).map(|found| config.family = found)),
    ("IB_ADDR_RANGE", |config, text| GidRange::parse(text).map(|found| config.range = Some(found))),
    ("IB_ROCE_VERSION_NUM", |config, text| {
        parse_number(text, 1, 2).map(|found| config.roce_version = found as u8)
    }),
    ("IB_TIMEOUT", |config, text| parse_number(text, 1, 31).map(|found| config.timeout = Some(found as u8))),
    ("IB_RETRY_CNT", |config, text| parse_number(text, 0, 7).map(|found| config.retries = found as u8)),
    ("IB_PKEY", |config, text| parse_number(text, 0, 65535).map(|found| config.pkey_index = found as u16)),
    ("IB_SL", |config, text| parse_optional(text, 15).map(|sl| config.service_level = sl.map(|sl| sl as u8))),
    ("IB_TC", |config, text| {
        parse_optional(text, 255).map(|tc| config.traffic_class = tc.map(|tc| tc as u8))
    }),
    ("IB_FIFO_TC", |config, text| {
        parse_optional(text, 255).map(|tc| config.record_class = tc.map(|tc| tc as u8))
    }),
    ("IB_ADAPTIVE_ROUTING", |config, text| parse_routing(text).map(|found| config.routing = found)),
    ("IB_AR_THRESHOLD", |config, text| {
        parse_number(text, 0, u32::MAX).map(|n| config.adaptive_above = n.into())
    }),
    ("IB_ECE_ENABLE", |config, text| parse_flag(text).map(|on| config.ece = on)),
    ("IB_MERGE_VFS", |config, text| parse_flag(text).map(|on| config.merge_functions = on)),
    ("IB_MERGE_NICS", |config, text| parse_flag(text).map(|on| config.merge_nics = on)),
    ("IB_USE_INLINE", |_, text| parse_flag(text).map(drop)),
    ("IB_PCI_RELAXED_ORDERING", |config, text| {
        let relaxed = parse_number(text, 0, 2)? > 0;
        config.ordering = if relaxed { BusOrdering::Relaxed } else { BusOrdering::Strict };
        Ok(())
    }),
    ("IB_RETURN_ASYNC_EVENTS", |config, text| parse_flag(text).map(|on| config.async_events = on)),
    ("GDR_FLUSH_DISABLE", |config, text| parse_flag(text).map(|off| config.device_flush = !off)),
];

impl VerbsConfig {
    /// Returns the `TRUNKLINE_` names of the variables that [`VerbsConfig::read`] reads.
    pub fn variable_names() -> impl Iterator<Item = String> {
        VARIABLES.iter().map(|(variable, _)| format!("TRUNKLINE_{variable}"))
    }

    /// Reads the variables through `look_up`: `TRUNKLINE_IB_HCA` before `NCCL_IB_HCA`, and so on. An empty variable counts
    /// as not set.
    ///
    /// # Errors
    /// [`VerbsConfigError`] names the variable.
    pub fn read(look_up: impl Fn(&str) -> Option<String>) -> Result<Self, VerbsConfigError> {
        let mut config = Self::default();
        let mut range_from = String::new();
        for (variable, set) in VARIABLES {
            for family in ["TRUNKLINE", "NCCL"] {
                let name = format!("{family}_{variable}");
                let Some(text) = look_up(&name).filter(|text| !text.trim().is_empty()) else { continue };
                set(&mut config, text.trim())
                    .map_err(|error| VerbsConfigError { name: name.clone(), ..error })?;
                if *variable == "IB_ADDR_RANGE" {
                    range_from = name;
                }
                break;
            }
        }
        match config.range {
            Some(range) if range.gid_family() != config.family => Err(VerbsConfigError {
                name: range_from,
                value: format!("{}/{}", range.base, range.bits),
                why: "is of another family than NCCL_IB_ADDR_FAMILY says".to_owned(),
            }),
            _ => Ok(config),
        }
    }
}

/// Parses a whole number from `least` to `most`.
fn parse_number(text: &str, least: u32, most: u32) -> Result<u32, VerbsConfigError> {
    match text.parse::<u32>() {
        Ok(found) if (least..=most).contains(&found) => Ok(found),
        _ => Err(VerbsConfigError::bad_value(text, format!("is no number from {least} to {most}"))),
    }
}

/// Parses a whole number up to `most`; a negative one is `None`.
fn parse_optional(text: &str, most: u32) -> Result<Option<u32>, VerbsConfigError> {
    if text.parse::<i64>().is_ok_and(|found| found < 0) {
        return Ok(None);
    }
    parse_number(text, 0, most).map(Some)
}

fn parse_flag(text: &str) -> Result<bool, VerbsConfigError> {
    parse_number(text, 0, 1).map(|on| on == 1)
}

/// Parses whether a network routes adaptively; -2 is the usual setting.
fn parse_routing(text: &str) -> Result<PacketRouting, VerbsConfigError> {
    match text {
        "-2" => Ok(PacketRouting::Usual),
        "0" => Ok(PacketRouting::Fixed),
        "1" => Ok(PacketRouting::Adaptive),
        _ => Err(VerbsConfigError::bad_value(text, "is none of 0, 1 and -2")),
    }
}

fn parse_family(text: &str) -> Result<GidFamily, VerbsConfigError> {
    match text {
        "AF_INET" => Ok(GidFamily::V4),
        "AF_INET6" => Ok(GidFamily::V6),
        _ => Err(VerbsConfigError::bad_value(text, "is neither AF_INET nor AF_INET6")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<VerbsConfig, VerbsConfigError> {
        VerbsConfig::read(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn each_variable_sets_its_value() {
        let usual = VerbsConfig::default();
        assert_eq!(read(&[]), Ok(usual.clone()));
        let cases: &[(&str, &str, VerbsConfig)] = &[
            ("IB_HCA", "^=a:2", VerbsConfig { hca: HcaFilter::parse("^=a:2").unwrap(), ..usual.clone() }),
            ("IB_GID_INDEX", "3", VerbsConfig { gid_index: Some(3), ..usual.clone() }),
            ("IB_GID_INDEX", "-1", usual.clone()),
            ("IB_ROUTABLE_FLID_GID_INDEX", "0", VerbsConfig { routable_gid_index: 0, ..usual.clone() }),
            ("IB_ADDR_FAMILY", "AF_INET6", VerbsConfig { family: GidFamily::V6, ..usual.clone() }),
            ("IB_ROCE_VERSION_NUM", "1", VerbsConfig { roce_version: 1, ..usual.clone() }),
            ("IB_TIMEOUT", "22", VerbsConfig { timeout: Some(22), ..usual.clone() }),
            ("IB_RETRY_CNT", "0", VerbsConfig { retries: 0, ..usual.clone() }),
            ("IB_PKEY", "65535", VerbsConfig { pkey_index: 65535, ..usual.clone() }),
            ("IB_SL", "0", VerbsConfig { service_level: Some(0), ..usual.clone() }),
            ("IB_SL", "-1", usual.clone()),
            ("IB_TC", "106", VerbsConfig { traffic_class: Some(106), ..usual.clone() }),
            ("IB_DISABLE", "1", VerbsConfig { disabled: true, ..usual.clone() }),
            ("IB_FIFO_TC", "0", VerbsConfig { record_class: Some(0), ..usual.clone() }),
            ("IB_FIFO_TC", "-1", usual.clone()),
            ("IB_ADAPTIVE_ROUTING", "1", VerbsConfig { routing: PacketRouting::Adaptive, ..usual.clone() }),
            ("IB_ADAPTIVE_ROUTING", "0", VerbsConfig { routing: PacketRouting::Fixed, ..usual.clone() }),
            ("IB_ADAPTIVE_ROUTING", "-2", usual.clone()),
            ("IB_AR_THRESHOLD", "0", VerbsConfig { adaptive_above: 0, ..usual.clone() }),
            ("IB_ECE_ENABLE", "0", VerbsConfig { ece: false, ..usual.clone() }),
            ("IB_MERGE_VFS", "0", VerbsConfig { merge_functions: false, ..usual.clone() }),
            ("IB_MERGE_NICS", "0", VerbsConfig { merge_nics: false, ..usual.clone() }),
            ("IB_USE_INLINE", "1", usual.clone()),
            ("IB_PCI_RELAXED_ORDERING", "0", VerbsConfig { ordering: BusOrdering::Strict, ..usual.clone() }),
            ("IB_PCI_RELAXED_ORDERING", "2", usual.clone()),
            ("IB_RETURN_ASYNC_EVENTS", "0", VerbsConfig { async_events: false, ..usual.clone() }),
            ("GDR_FLUSH_DISABLE", "1", VerbsConfig { device_flush: false, ..usual.clone() }),
            ("GDR_FLUSH_DISABLE", "0", usual.clone()),
            ("IB_TIMEOUT", " ", usual.clone()),
        ];
        for (variable, text, want) in cases {
            for family in ["NCCL", "TRUNKLINE"] {
                let name = format!("{family}_{variable}");
                assert_eq!(read(&[(&name, text)]).as_ref(), Ok(want), "{name}={text}");
            }
        }
        let range = read(&[("NCCL_IB_ADDR_RANGE", "10.1.0.0/16")]).unwrap().range.unwrap();
        let inside = |text: &str| range.contains(text.parse().unwrap());
        assert!(inside("10.1.255.1") && !inside("10.2.0.1") && !inside("::ffff:10.1.0.1"));
        assert_eq!(range.gid_family(), GidFamily::V4);
    }

    #[test]
    fn our_own_names_come_first() {
        let both = [("NCCL_IB_TIMEOUT", "18"), ("TRUNKLINE_IB_TIMEOUT", "16")];
        assert_eq!(read(&both).unwrap().timeout, Some(16));
    }

    #[test]
    fn bad_values_name_their_variable() {
        let bad = [
            ("NCCL_IB_HCA", "a:b"),
            ("NCCL_IB_GID_INDEX", "256"),
            ("NCCL_IB_GID_INDEX", "x"),
            ("NCCL_IB_ADDR_FAMILY", "inet"),
            ("NCCL_IB_ADDR_RANGE", "10.0.0.0"),
            ("NCCL_IB_ADDR_RANGE", "10.0.0.0/33"),
            ("NCCL_IB_ADDR_RANGE", "fd00::/8"),
            ("NCCL_IB_ROCE_VERSION_NUM", "3"),
            ("NCCL_IB_TIMEOUT", "0"),
            ("NCCL_IB_TIMEOUT", "32"),
            ("NCCL_IB_RETRY_CNT", "8"),
            ("NCCL_IB_PKEY", "65536"),
            ("NCCL_IB_SL", "16"),
            ("NCCL_IB_TC", "256"),
            ("NCCL_IB_PCI_RELAXED_ORDERING", "3"),
            ("NCCL_IB_RETURN_ASYNC_EVENTS", "2"),
            ("NCCL_GDR_FLUSH_DISABLE", "2"),
            ("NCCL_IB_DISABLE", "yes"),
            ("NCCL_IB_FIFO_TC", "256"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "2"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "-1"),
            ("NCCL_IB_AR_THRESHOLD", "-1"),
            ("NCCL_IB_ECE_ENABLE", "2"),
            ("NCCL_IB_MERGE_VFS", "2"),
            ("NCCL_IB_MERGE_NICS", "2"),
            ("NCCL_IB_USE_INLINE", "2"),
        ];
        for (name, text) in bad {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{name} = \"")), "{error}");
        }
        let six = [("NCCL_IB_ADDR_RANGE", "fd00::/8"), ("NCCL_IB_ADDR_FAMILY", "AF_INET6")];
        assert!(read(&six).is_ok());
    }

    #[test]
    fn ranges_compare_just_their_bits() {
        let contains = |range: &str, ip: &str| GidRange::parse(range).unwrap().contains(ip.parse().unwrap());
        assert!(contains("0.0.0.0/0", "255.1.2.3"));
        assert!(contains("10.77.0.1/32", "10.77.0.1") && !contains("10.77.0.1/32", "10.77.0.0"));
        assert!(contains("fd77::/127", "fd77::1") && !contains("fd77::/127", "fd77::2"));
    }
}
