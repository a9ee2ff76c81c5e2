//! The user's configuration, from settings that are known from NCCL. Pure: the front end reads the environment.

use std::net::IpAddr;
use std::path::PathBuf;

use trunkline_settings::rows::rdma;
use trunkline_settings::{SectionReader, SettingErrors, SettingValues};

use crate::HcaFilter;

/// A text is no list of ports, or no range of addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{text:?} {fault}")]
pub struct ConfigTextError {
    /// The text, or the part of it that is invalid.
    pub text: String,
    /// Why it is invalid.
    pub fault: &'static str,
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
    /// [`ConfigTextError`].
    pub fn parse(text: &str) -> Result<Self, ConfigTextError> {
        let bad = || ConfigTextError { text: text.to_owned(), fault: "is no address range like 10.1.0.0/16" };
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

impl VerbsConfig {
    /// Reads the configuration from the settings of a process.
    ///
    /// # Errors
    /// [`SettingErrors`]: all settings with invalid values.
    pub fn from_settings(values: &SettingValues) -> Result<Self, SettingErrors> {
        let mut reader = values.reader();
        let usual = Self::default();
        let hca = read_port_filter(&mut reader);
        let families = [("AF_INET", GidFamily::V4), ("AF_INET6", GidFamily::V6)];
        let family = reader.choose(&rdma::ADDR_FAMILY, usual.family, &families);
        let range = reader.text(&rdma::ADDR_RANGE).map(|text| GidRange::parse(&text)).transpose();
        let range = range.unwrap_or_else(|_| {
            reader.reject(&rdma::ADDR_RANGE, rdma::ADDR_RANGE.kind.to_string());
            None
        });
        if range.is_some_and(|range| range.gid_family() != family) {
            reader.reject(&rdma::ADDR_RANGE, "a range of the family that NCCL_IB_ADDR_FAMILY names");
        }
        let config = Self {
            disabled: reader.switch(&rdma::DISABLE),
            hca,
            gid_index: reader.optional_number(&rdma::GID_INDEX).map(|index| index as u32),
            routable_gid_index: reader.number(&rdma::ROUTABLE_GID_INDEX) as u32,
            family,
            range,
            roce_version: reader.number(&rdma::ROCE_VERSION) as u8,
            timeout: reader.optional_number(&rdma::TIMEOUT).map(|timeout| timeout as u8),
            retries: reader.number(&rdma::RETRY_COUNT) as u8,
            pkey_index: reader.number(&rdma::PKEY) as u16,
            service_level: reader.optional_number(&rdma::SERVICE_LEVEL).map(|level| level as u8),
            traffic_class: reader.optional_number(&rdma::TRAFFIC_CLASS).map(|class| class as u8),
            record_class: reader.optional_number(&rdma::FIFO_TRAFFIC_CLASS).map(|class| class as u8),
            routing: reader.choose(
                &rdma::ADAPTIVE_ROUTING,
                usual.routing,
                &[("-2", PacketRouting::Usual), ("0", PacketRouting::Fixed), ("1", PacketRouting::Adaptive)],
            ),
            adaptive_above: reader.number(&rdma::ADAPTIVE_THRESHOLD),
            ece: reader.switch(&rdma::ECE_ENABLE),
            merge_functions: reader.switch(&rdma::MERGE_VFS),
            merge_nics: reader.switch(&rdma::MERGE_NICS),
            ordering: match reader.number(&rdma::RELAXED_ORDERING) {
                0 => BusOrdering::Strict,
                _ => BusOrdering::Relaxed,
            },
            async_events: reader.switch(&rdma::ASYNC_EVENTS),
            device_flush: !reader.switch(&rdma::GDR_FLUSH_DISABLE),
            ..usual
        };
        // It has no effect, but a wrong value is an error as in other settings.
        reader.switch(&rdma::USE_INLINE);
        reader.finish(config)
    }

    /// Reads the filter of ports alone; other settings may be invalid.
    ///
    /// # Errors
    /// [`SettingErrors`]: the list of ports is invalid.
    pub fn port_filter(values: &SettingValues) -> Result<HcaFilter, SettingErrors> {
        let mut reader = values.reader();
        let filter = read_port_filter(&mut reader);
        reader.finish(filter)
    }
}

fn read_port_filter(reader: &mut SectionReader<'_>) -> HcaFilter {
    let Some(text) = reader.text(&rdma::HCA) else { return HcaFilter::default() };
    HcaFilter::parse(&text).unwrap_or_else(|error| {
        reader.reject(&rdma::HCA, format!("{}; {error}", rdma::HCA.kind));
        HcaFilter::default()
    })
}

#[cfg(test)]
mod tests {
    use trunkline_settings::FrontEndKind;

    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<VerbsConfig, SettingErrors> {
        VerbsConfig::from_settings(&SettingValues::from_lookup(FrontEndKind::Nccl, |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into())
        }))
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
            assert!(error.to_string().starts_with(&format!("{name}={text}: expected ")), "{error}");
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
