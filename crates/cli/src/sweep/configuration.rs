//! The compared configurations: how many links, and whether and how they are shared. Pure.

use std::fmt;
use std::str::FromStr;

/// One way to use queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SweepConfiguration {
    /// Groups of queue pairs for the connections of one direction between two processes; 0: each has its own.
    pub(crate) groups: u8,
    /// Depth of a group's queues, as a multiple of one connection's; 1 if connections share nothing.
    pub(crate) depth: u8,
    /// Links per connection.
    pub(crate) links: u8,
}

/// Links per connection of the configurations without sharing.
const UNSHARED: [u8; 2] = [1, 4];
const GROUPS: [u8; 4] = [1, 2, 4, 8];
const DEPTHS: [u8; 3] = [1, 2, 4];

impl SweepConfiguration {
    /// All configurations; those without sharing are first, because they are the baseline of the others.
    pub(crate) fn all() -> Vec<Self> {
        let unshared = UNSHARED.into_iter().map(|links| Self { groups: 0, depth: 1, links });
        let shared = GROUPS.into_iter().flat_map(|groups| DEPTHS.map(|depth| (groups, depth)));
        unshared.chain(shared.map(|(groups, depth)| Self { groups, depth, links: 1 })).collect()
    }

    /// Whether connections share queue pairs.
    pub(crate) const fn is_shared(self) -> bool {
        self.groups > 0
    }

    /// The environment of the plugin. It uses our own variables, which take precedence over all aliases.
    pub(crate) fn environment_variables(self) -> Vec<(String, String)> {
        let sharing = if self.is_shared() { "on" } else { "off" };
        let mut set = vec![
            // The queue counts of the NICs are read from the status page.
            ("TRUNKLINE_STATUS", "1".to_owned()),
            ("TRUNKLINE_LINKS_PER_RAIL", self.links.to_string()),
            ("TRUNKLINE_QP_SHARING", sharing.to_owned()),
            ("TRUNKLINE_QP_DEPTH_MULTIPLIER", self.depth.to_string()),
        ];
        if self.is_shared() {
            set.push(("TRUNKLINE_QP_GROUPS", self.groups.to_string()));
        }
        set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The configuration in words.
    pub(crate) fn to_words(self) -> String {
        match self {
            Self { groups: 0, links: 1, .. } => "not shared, 1 link".to_owned(),
            Self { groups: 0, links, .. } => format!("not shared, {links} links"),
            Self { groups: 1, depth, .. } => format!("1 group, depth times {depth}"),
            Self { groups, depth, .. } => format!("{groups} groups, depth times {depth}"),
        }
    }
}

impl fmt::Display for SweepConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { groups: 0, links, .. } => f.pad(&format!("q{links}")),
            Self { groups, depth, .. } => f.pad(&format!("m{groups}d{depth}")),
        }
    }
}

impl FromStr for SweepConfiguration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::all().into_iter().find(|one| one.to_string() == text);
        found.ok_or_else(|| {
            let names: Vec<String> = Self::all().iter().map(Self::to_string).collect();
            format!("use one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fourteen_configurations_have_names() {
        let all = SweepConfiguration::all();
        assert_eq!(all.len(), 14);
        for one in &all {
            assert_eq!(one.to_string().parse(), Ok(*one));
        }
        assert_eq!((all[0].to_string(), all[1].to_string()), ("q1".to_owned(), "q4".to_owned()));
        assert_eq!("m8d2".parse(), Ok(SweepConfiguration { groups: 8, depth: 2, links: 1 }));
        assert!("m3d1".parse::<SweepConfiguration>().unwrap_err().contains("m1d1, m1d2"));
    }

    #[test]
    fn environment_variables_are_parameters_of_the_plugin() {
        for one in SweepConfiguration::all() {
            let set = one.environment_variables();
            let value = |name: &str| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.into());
            let params = trunkline_engine::EngineParams::from_lookup(value).unwrap();
            let shares = params.sharing.sharing != trunkline_proto::pool::config::SharingMode::Off;
            assert_eq!((shares, params.links_per_rail), (one.is_shared(), one.links.into()));
            let groups = if one.is_shared() { one.groups } else { params.sharing.groups };
            assert_eq!((params.sharing.groups, params.sharing.depth_multiplier), (groups, one.depth));
            assert!(set.iter().all(|(name, _)| trunkline_settings::rows::is_known_name(name)));
        }
    }
}
