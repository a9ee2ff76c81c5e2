//! Assigns ranks to hosts. Pure; called by the launcher.

use thiserror::Error;
use trunkline_bootstrap::RANKS_MAX;

/// Most hosts of one job.
const HOSTS_MAX: usize = 1024;

/// A host, and its ranks, whose numbers are consecutive.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct JobHost {
    pub(crate) name: String,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// The arguments do not describe a job.
#[derive(Debug, Error, Eq, PartialEq)]
#[non_exhaustive]
pub(crate) enum HostsError {
    /// A host's name is invalid.
    #[error("--hosts: {0:?} is not a host; write A,B or A:4,B:2 (an IPv6 address in brackets)")]
    Name(String),
    /// More ranks than places.
    #[error("-n {ranks} does not fit into the {places} places of --hosts; raise the numbers in --hosts")]
    TooMany {
        /// Requested ranks.
        ranks: usize,
        /// Places of all hosts.
        places: usize,
    },
    /// More ranks or hosts than the limits.
    #[error("a job has 1 to {RANKS_MAX} ranks on at most {HOSTS_MAX} hosts; change -n or --hosts")]
    Limits,
}

/// Places ranks in blocks: the requested number on each host, else evenly.
pub(crate) fn place_ranks(ranks: Option<usize>, hosts: Option<&str>) -> Result<Vec<JobHost>, HostsError> {
    let named = match hosts {
        None => vec![("localhost".to_owned(), Some(ranks.unwrap_or(1)))],
        Some(list) => list.split(',').map(parse_host).collect::<Result<_, _>>()?,
    };
    let numbered = named.iter().any(|(_, places)| places.is_some());
    let places = |places: &Option<usize>| places.unwrap_or(1);
    let total: usize = named.iter().map(|(_, one)| places(one)).sum();
    let ranks = ranks.unwrap_or(total);
    if ranks == 0 || ranks > RANKS_MAX || named.len() > HOSTS_MAX {
        return Err(HostsError::Limits);
    }
    if numbered && ranks > total {
        return Err(HostsError::TooMany { ranks, places: total });
    }
    let hosts = named.len();
    let mut first = 0;
    let mut placed = Vec::new();
    for (index, (name, one)) in named.into_iter().enumerate() {
        let even = ranks / hosts + usize::from(index < ranks % hosts);
        let count = if numbered { places(&one).min(ranks - first) } else { even };
        if count > 0 {
            placed.push(JobHost { name, first, count });
        }
        first += count;
    }
    Ok(placed)
}

/// Parses `name` or `name:places`.
fn parse_host(text: &str) -> Result<(String, Option<usize>), HostsError> {
    let bad = || HostsError::Name(text.to_owned());
    let (name, places) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, rest) = rest.split_once(']').ok_or_else(bad)?;
            (name, rest.strip_prefix(':').or(if rest.is_empty() { None } else { Some("") }))
        }
        None => text.split_once(':').map_or((text, None), |(name, places)| (name, Some(places))),
    };
    // The name becomes a word of the remote shell's command, which must not parse it as an option.
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "-._:@%/".contains(letter);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(letters) {
        return Err(bad());
    }
    let places = places.map(|places| places.parse().ok().filter(|places| *places > 0).ok_or_else(bad));
    Ok((name.to_owned(), places.transpose()?))
}

/// The placement in the format of PMI's key `PMI_process_mapping`.
pub(crate) fn pmi_mapping(hosts: &[JobHost]) -> String {
    let blocks: Vec<String> =
        hosts.iter().enumerate().map(|(index, host)| format!("({index},1,{})", host.count)).collect();
    format!("(vector,{})", blocks.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(ranks: Option<usize>, hosts: Option<&str>) -> Vec<(String, usize, usize)> {
        let hosts = place_ranks(ranks, hosts).unwrap();
        hosts.into_iter().map(|host| (host.name, host.first, host.count)).collect()
    }

    fn row(name: &str, first: usize, count: usize) -> (String, usize, usize) {
        (name.into(), first, count)
    }

    #[test]
    fn ranks_are_placed_in_blocks() {
        assert_eq!(placed(Some(3), None), [row("localhost", 0, 3)]);
        assert_eq!(placed(None, None), [row("localhost", 0, 1)]);
        assert_eq!(placed(Some(5), Some("a,b")), [row("a", 0, 3), row("b", 3, 2)]);
        assert_eq!(placed(None, Some("a,b")), [row("a", 0, 1), row("b", 1, 1)]);
        assert_eq!(placed(None, Some("a:4,b:2")), [row("a", 0, 4), row("b", 4, 2)]);
        assert_eq!(placed(Some(5), Some("a:4,b:2")), [row("a", 0, 4), row("b", 4, 1)]);
        assert_eq!(placed(Some(2), Some("a:2,b")), [row("a", 0, 2)]);
        assert_eq!(placed(Some(1), Some("a,b")), [row("a", 0, 1)]);
        assert_eq!(placed(None, Some("[fd00::1]:2,[::1]")), [row("fd00::1", 0, 2), row("::1", 2, 1)]);
        let hosts = place_ranks(Some(5), Some("a,b")).unwrap();
        assert_eq!(pmi_mapping(&hosts), "(vector,(0,1,3),(1,1,2))");
    }

    #[test]
    fn place_ranks_refuses_invalid_jobs() {
        for bad in ["", "a,", "a:0", "a:x", "-oProxyCommand=x", "a b", "a;b", "$(x)", "[::1", "[::1]2", ":3"]
        {
            assert!(matches!(place_ranks(Some(1), Some(bad)), Err(HostsError::Name(_))), "{bad}");
        }
        assert_eq!(place_ranks(Some(4), Some("a:2,b")), Err(HostsError::TooMany { ranks: 4, places: 3 }));
        assert_eq!(place_ranks(Some(0), None), Err(HostsError::Limits));
        assert_eq!(place_ranks(Some(RANKS_MAX + 1), None), Err(HostsError::Limits));
    }
}
