//! Selects network interfaces by NCCL's variables `NCCL_SOCKET_IFNAME` and `NCCL_SOCKET_FAMILY`. Pure: the interfaces
//! are an argument.

use std::net::IpAddr;

use trunkline_settings::rows::network;
use trunkline_settings::{SectionReader, SettingErrors, SettingValues};

use crate::NetworkInterface;

/// Interfaces that are used at once, at most.
const INTERFACES_MAX: usize = 16;

/// Restricts addresses to one family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddressFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Selects interfaces by names and address family.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct InterfaceChoice {
    names: Option<InterfaceNames>,
    family: Option<AddressFamily>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct InterfaceNames {
    /// Whether the list names the excluded interfaces.
    except: bool,
    /// Whether the names are whole names instead of prefixes.
    whole: bool,
    names: Vec<String>,
}

/// No interface matches the filter.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no network interface fits {filter}; this host has: {interfaces}")]
pub struct ChoiceError {
    /// The settings.
    filter: String,
    /// The interfaces.
    interfaces: String,
}

impl InterfaceChoice {
    /// Reads the filter from the settings of a process.
    ///
    /// # Errors
    /// [`SettingErrors`]: all settings with invalid values.
    pub fn from_settings(values: &SettingValues) -> Result<Self, SettingErrors> {
        let mut reader = values.reader();
        let names = read_names(&mut reader);
        let families =
            [("", None), ("AF_INET", Some(AddressFamily::V4)), ("AF_INET6", Some(AddressFamily::V6))];
        let family = reader.choose(&network::SOCKET_FAMILY, None, &families);
        reader.finish(Self { names, family })
    }

    /// Reads the filter of names alone; the family of addresses may be invalid.
    ///
    /// # Errors
    /// [`SettingErrors`]: the value is not UTF-8.
    pub fn name_filter(values: &SettingValues) -> Result<Self, SettingErrors> {
        let mut reader = values.reader();
        let names = read_names(&mut reader);
        reader.finish(Self { names, family: None })
    }

    /// Returns the selected interfaces, each with one address; at most 16. Without any filter, interfaces that reach
    /// other hosts are preferred over those that do not.
    ///
    /// # Errors
    /// [`ChoiceError`] if there is a filter and nothing matches it. Without one, an empty list is not an
    /// error.
    pub fn select_interfaces<'a>(
        &self,
        all: &'a [NetworkInterface],
    ) -> Result<Vec<(&'a NetworkInterface, IpAddr)>, ChoiceError> {
        let usable = |one: &'a NetworkInterface| Some((one, self.pick_address(one)?));
        let found: Vec<_> = match &self.names {
            Some(names) => {
                all.iter().filter(|one| names.matches_name(&one.name)).filter_map(usable).collect()
            }
            None => ORDER
                .iter()
                .map(|class| all.iter().filter(|one| class(one)).filter_map(usable).collect::<Vec<_>>())
                .find(|found| !found.is_empty())
                .unwrap_or_default(),
        };
        if found.is_empty() && *self != Self::default() {
            let have: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
            return Err(ChoiceError { filter: self.describe_filter(), interfaces: have.join(", ") });
        }
        Ok(found.into_iter().take(INTERFACES_MAX).collect())
    }

    /// Whether the filter of names includes an interface; without a filter, every interface is included.
    #[must_use]
    pub fn includes_name(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.matches_name(name))
    }

    fn pick_address(&self, one: &NetworkInterface) -> Option<IpAddr> {
        let fits = |address: &&IpAddr| match self.family {
            None => true,
            Some(AddressFamily::V4) => address.is_ipv4(),
            Some(AddressFamily::V6) => address.is_ipv6(),
        };
        one.addresses.iter().find(fits).copied()
    }

    fn describe_filter(&self) -> String {
        let names = self.names.as_ref().map(|names| format!("{}={names}", network::SOCKET_IFNAME.name));
        let family = self.family.map(|family| {
            let value = if family == AddressFamily::V4 { "AF_INET" } else { "AF_INET6" };
            format!("{}={value}", network::SOCKET_FAMILY.name)
        });
        names.into_iter().chain(family).collect::<Vec<_>>().join(" and ")
    }
}

fn read_names(reader: &mut SectionReader<'_>) -> Option<InterfaceNames> {
    reader.text(&network::SOCKET_IFNAME).map(|text| InterfaceNames::parse(&text))
}

/// Classes of interfaces, the best first.
const ORDER: &[fn(&NetworkInterface) -> bool] = &[
    |one| one.name.starts_with("ib"),
    |one| !one.loopback && !is_inner(&one.name),
    |one| !one.loopback,
    |one| one.loopback,
];

/// Whether an interface leads only to containers and virtual machines of this host.
fn is_inner(name: &str) -> bool {
    name.starts_with("docker") || name.starts_with("virbr")
}

impl InterfaceNames {
    fn parse(text: &str) -> Self {
        let (except, text) = text.strip_prefix('^').map_or((false, text), |text| (true, text));
        let (whole, text) = text.strip_prefix('=').map_or((false, text), |text| (true, text));
        let names = text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Self { except, whole, names }
    }

    fn matches_name(&self, name: &str) -> bool {
        let fits = |wish: &String| if self.whole { name == wish } else { name.starts_with(wish.as_str()) };
        self.names.iter().any(fits) != self.except
    }
}

impl std::fmt::Display for InterfaceNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let except = if self.except { "^" } else { "" };
        let whole = if self.whole { "=" } else { "" };
        write!(f, "{except}{whole}{}", self.names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use proptest::prelude::*;
    use trunkline_settings::FrontEndKind;

    use super::*;

    fn host() -> Vec<NetworkInterface> {
        let one = |name: &str, addresses: &[&str]| NetworkInterface {
            name: name.to_owned(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            speed_mbps: None,
            loopback: name == "lo",
        };
        vec![
            one("lo", &["127.0.0.1", "::1"]),
            one("docker0", &["172.17.0.1"]),
            one("eth0", &["192.0.2.1", "2001:db8::1"]),
            one("eth1", &["2001:db8:1::1"]),
            one("eth10", &["192.0.2.10"]),
        ]
    }

    fn choose(
        names: Option<&str>,
        family: Option<&str>,
        all: &[NetworkInterface],
    ) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let lookup = |name: &str| match name {
            "NCCL_SOCKET_IFNAME" => names.map(OsString::from),
            "NCCL_SOCKET_FAMILY" => family.map(OsString::from),
            _ => None,
        };
        let values = SettingValues::from_lookup(FrontEndKind::Nccl, lookup);
        let chosen = InterfaceChoice::from_settings(&values)?.select_interfaces(all)?;
        Ok(chosen.into_iter().map(|(one, address)| format!("{} {address}", one.name)).collect())
    }

    #[test]
    fn names_are_prefixes_whole_or_excluded() {
        let all = host();
        let chosen = |names| choose(Some(names), None, &all).unwrap().join(", ");
        assert_eq!(chosen("eth"), "eth0 192.0.2.1, eth1 2001:db8:1::1, eth10 192.0.2.10");
        assert_eq!(chosen("eth1"), "eth1 2001:db8:1::1, eth10 192.0.2.10");
        assert_eq!(chosen("=eth1"), "eth1 2001:db8:1::1");
        assert_eq!(chosen("=eth1,lo"), "lo 127.0.0.1, eth1 2001:db8:1::1");
        assert_eq!(chosen("^eth,docker"), "lo 127.0.0.1");
        assert_eq!(chosen("^=eth1,lo"), "docker0 172.17.0.1, eth0 192.0.2.1, eth10 192.0.2.10");
        let takes = |names: &str, name| {
            InterfaceChoice { names: Some(InterfaceNames::parse(names)), family: None }.includes_name(name)
        };
        assert!(takes("eth", "eth1") && !takes("^eth", "eth1") && !takes("=eth", "eth1"));
        assert!(InterfaceChoice::default().includes_name("docker0"));
    }

    #[test]
    fn without_a_wish_the_best_class_is_taken() {
        let mut all = host();
        let chosen = |all: &[NetworkInterface]| choose(None, None, all).unwrap().join(", ");
        assert_eq!(chosen(&all), "eth0 192.0.2.1, eth1 2001:db8:1::1, eth10 192.0.2.10");
        all.push(NetworkInterface { name: "ib0".to_owned(), ..all[2].clone() });
        assert_eq!(chosen(&all), "ib0 192.0.2.1");
        all.truncate(2);
        assert_eq!(chosen(&all), "docker0 172.17.0.1");
        all.truncate(1);
        assert_eq!(chosen(&all), "lo 127.0.0.1");
        assert_eq!(chosen(&[]), "");
        assert_eq!(choose(Some(""), Some(""), &all).unwrap(), ["lo 127.0.0.1"], "empty is unset");
    }

    #[test]
    fn a_family_leaves_interfaces_without_it_out() {
        let all = host();
        let chosen = |names, family| choose(names, Some(family), &all).unwrap().join(", ");
        assert_eq!(chosen(None, "AF_INET"), "eth0 192.0.2.1, eth10 192.0.2.10");
        assert_eq!(chosen(Some("eth0"), "AF_INET6"), "eth0 2001:db8::1");
    }

    #[test]
    fn what_cannot_be_had_names_what_there_is() {
        let error = choose(Some("wlan"), Some("AF_INET6"), &host()).unwrap_err().to_string();
        let wish = "NCCL_SOCKET_IFNAME=wlan and NCCL_SOCKET_FAMILY=AF_INET6";
        assert_eq!(
            error,
            format!("no network interface fits {wish}; this host has: lo, docker0, eth0, eth1, eth10")
        );
        let error = choose(None, Some("AF_UNIX"), &host()).unwrap_err().to_string();
        assert_eq!(error, "NCCL_SOCKET_FAMILY=AF_UNIX: expected AF_INET or AF_INET6");
    }

    #[test]
    fn no_more_than_sixteen() {
        let many: Vec<_> =
            (0..40).map(|n| NetworkInterface { name: format!("eth{n}"), ..host()[2].clone() }).collect();
        assert_eq!(choose(None, None, &many).unwrap().len(), INTERFACES_MAX);
    }

    proptest! {
        #[test]
        fn wishes_print_as_they_were(text in "\\^?=?[a-z0-9]{0,4}(,[a-z0-9]{0,4}){0,3}") {
            let names = InterfaceNames::parse(&text);
            prop_assert_eq!(InterfaceNames::parse(&names.to_string()), names);
        }
    }
}
