//! Known behaviour of providers beyond their grants: where they differ from libfabric's documents. One value per provider, selected when NICs
//! are found; later code never tests which provider it is.

use trunkline_sys::ofi::caps;

use crate::provider_grant::{CallExclusion, ProviderGrant};

/// The behaviour of a provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProviderProfile {
    /// The provider's name: `net`, `tcp;ofi_rxm`.
    pub name: &'static str,
    /// A completion proves arrival at the target. Providers over sockets complete once the kernel has the data.
    pub arrives: bool,
    /// It matches tagged messages in any order, without blocking messages behind an unmatched one.
    pub matches: bool,
    /// A write that the target rejects fails. Otherwise it seems to succeed.
    pub tells_refusals: bool,
    /// Each link has its own endpoints, which are closed with it, so that no later write of the peer can arrive. Otherwise endpoints are too
    /// expensive, or registrations are bound to them.
    pub endpoint_each: bool,
    /// Endpoints may be closed before peers have received everything sent from them. Otherwise shared endpoints are closed with their rail only:
    /// peers in the same process access memory that is freed with them, and crash.
    pub closes_early: bool,
    /// One endpoint, over one connection, serves payload and records: both arrive and complete in the order in which they were posted.
    pub one_stream: bool,
    /// Each rail has its own domain. Providers over sockets make progress for a whole domain at once, and not all of that is thread-safe, whichever
    /// threading model they grant.
    pub domain_each: bool,
    /// An injected operation may be sent by a later call; a completed one has been sent.
    pub lingers: bool,
    /// An accepted operation is in the NIC, or at the peer. Otherwise, with manual progress, the provider may delay it until a later call.
    pub hands_over: bool,
    /// Remote CQ data has room for the link's mark in addition to the immediate. Otherwise a rail has one link.
    pub marks: bool,
    /// The queue's descriptor becomes readable when an entry arrives.
    pub wakes: bool,
    /// The provider is known to keep its promises. Otherwise a NIC is probed when it is found.
    pub known: bool,
    /// Writes carry CQ data to their target. Assumed for known providers, probed for others.
    pub write_data: bool,
    /// The setting that enables this, where it is disabled by default.
    pub write_data_by: Option<&'static str>,
}

/// Providers, by prefix of their names; the first match counts.
const KNOWN: [(&str, ProviderProfile); 9] = [
    // Longer names are listed first, because the first prefix that matches is used.
    ("tcp;ofi_rxm", over_sockets("tcp;ofi_rxm")),
    ("net;ofi_rxm", over_sockets("net;ofi_rxm")),
    ("net", over_one_stream("net")),
    ("tcp", over_one_stream("tcp")),
    ("sockets", ProviderProfile { tells_refusals: true, matches: false, ..over_sockets("sockets") }),
    ("efa", over_a_nic("efa")),
    (
        "cxi",
        ProviderProfile {
            hands_over: true,
            write_data_by: Some("FI_CXI_ENABLE_WRITEDATA=1"),
            ..over_a_nic("cxi")
        },
    ),
    ("verbs;ofi_rxm", over_a_nic("verbs;ofi_rxm")),
    (
        "shm",
        ProviderProfile { hands_over: true, tells_refusals: false, closes_early: false, ..over_a_nic("shm") },
    ),
];

const fn over_sockets(name: &'static str) -> ProviderProfile {
    ProviderProfile {
        name,
        arrives: false,
        matches: true,
        tells_refusals: false,
        endpoint_each: true,
        closes_early: true,
        one_stream: false,
        domain_each: true,
        lingers: true,
        hands_over: false,
        marks: true,
        wakes: false,
        known: true,
        write_data: true,
        write_data_by: None,
    }
}

/// All operations share one byte stream. A message without a receive blocks all bytes behind it, so matching is not left to the provider.
const fn over_one_stream(name: &'static str) -> ProviderProfile {
    ProviderProfile { matches: false, one_stream: true, ..over_sockets(name) }
}

const fn over_a_nic(name: &'static str) -> ProviderProfile {
    ProviderProfile {
        name,
        arrives: true,
        matches: true,
        tells_refusals: true,
        endpoint_each: false,
        closes_early: true,
        one_stream: false,
        domain_each: false,
        lingers: false,
        hands_over: false,
        marks: true,
        wakes: false,
        known: false,
        write_data: true,
        write_data_by: None,
    }
}

/// The profile of unknown providers: as documented.
const OTHER: ProviderProfile = over_a_nic("other");

impl ProviderProfile {
    /// Returns the profile of a provider.
    #[must_use]
    pub fn from_provider(provider: &str) -> Self {
        KNOWN.iter().find(|(name, _)| provider.starts_with(name)).map_or(OTHER, |(_, profile)| *profile)
    }

    /// Returns which calls exclude each other. `net` of 1.17 grants full thread safety, but loses registrations or crashes if several threads
    /// register and close concurrently, because incoming operations use the same tree.
    #[must_use]
    pub fn call_exclusion(&self, granted: &ProviderGrant) -> CallExclusion {
        if self.domain_each { CallExclusion::All } else { granted.call_exclusion() }
    }

    /// Adapts the profile to a grant.
    #[must_use]
    pub fn with_grant(self, granted: &ProviderGrant) -> Self {
        let apart = !granted.endpoint_scoped && granted.cq_data_bytes >= 8;
        let tagged = granted.caps & caps::TAGGED != 0;
        Self {
            endpoint_each: self.endpoint_each && apart,
            one_stream: self.one_stream && apart && granted.keeps_order(),
            // With manual progress an accepted operation may wait for a later call, unless the provider hands it over.
            lingers: self.lingers || !self.hands_over && !granted.data_auto,
            marks: granted.cq_data_bytes >= 8,
            // Needs an endpoint per link, because with shared endpoints a tag does not identify the link.
            matches: self.matches && tagged && self.endpoint_each && apart,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_is_selected_by_the_longest_prefix() {
        for (provider, name) in [
            ("net", "net"),
            ("tcp", "tcp"),
            ("tcp;ofi_rxm", "tcp;ofi_rxm"),
            ("efa-direct", "efa"),
            ("new", "other"),
        ] {
            assert_eq!(ProviderProfile::from_provider(provider).name, name);
        }
        assert!(
            ProviderProfile::from_provider("tcp;ofi_rxm").matches
                && !ProviderProfile::from_provider("net").matches
        );
        assert!(
            ProviderProfile::from_provider("net").one_stream
                && !ProviderProfile::from_provider("net;ofi_rxm").one_stream
        );
    }
}
