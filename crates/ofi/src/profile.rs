//! What is known of a provider beyond what it grants: where it differs from what libfabric's documents promise. One value for
//! each, decided when NICs are looked for; after that nobody asks which provider it is.

use trunkline_sys::ofi::caps;

use crate::provider_grant::{CallExclusion, ProviderGrant};

/// How a provider is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProviderProfile {
    /// The provider, as people name it: `net`, `tcp;ofi_rxm`.
    pub name: &'static str,
    /// What has completed is at the target. Providers over sockets complete what the kernel has taken.
    pub arrives: bool,
    /// It pairs tagged messages, whichever comes first, without holding others up that come behind.
    pub matches: bool,
    /// A write that the target refused fails. Elsewhere it seems to work.
    pub tells_refusals: bool,
    /// Links have an endpoint each, which ends with them: then nothing of the peer lands any more. Elsewhere endpoints are
    /// too dear, or registrations are bound to them.
    pub endpoint_each: bool,
    /// Endpoints may be closed before peers have taken what was sent from them. Elsewhere those of several links are closed with
    /// their rail: peers of the same process look at memory that goes with them, and crash.
    pub closes_early: bool,
    /// One endpoint is for payload and records, over one connection: both arrive in the order in which they were posted, and
    /// complete so.
    pub one_stream: bool,
    /// Rails have a domain each. Providers over sockets make progress for a whole domain at once, and not all of it is for
    /// several threads, whatever they grant.
    pub domain_each: bool,
    /// What was injected may still be here, and leaves with a later call; what has completed has left.
    pub lingers: bool,
    /// What it has taken is with the NIC, or the peer. Elsewhere, where programs make the progress, it may keep that back until
    /// a later call.
    pub hands_over: bool,
    /// Remote CQ data has room to name the link besides the immediate. Elsewhere a rail has one link.
    pub marks: bool,
    /// The queue's descriptor tells when there is something.
    pub wakes: bool,
    /// Its software is known to do what it says. Elsewhere a NIC is tried out when it is found.
    pub known: bool,
    /// Writes tell their target by their own data. Promised where it is known; elsewhere it has been tried.
    pub write_data: bool,
    /// What makes them, where they may not by default.
    pub write_data_by: Option<&'static str>,
}

/// Providers, by how their names begin; the first that fits counts.
const KNOWN: [(&str, ProviderProfile); 9] = [
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

/// What goes out is one stream of bytes. One message that nobody waits for stops all that comes behind it, so that messages
/// are not left to the provider to pair.
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

/// One that nothing is known of: as documented.
const OTHER: ProviderProfile = over_a_nic("other");

impl ProviderProfile {
    /// That of a provider of this name.
    #[must_use]
    pub fn from_provider(provider: &str) -> Self {
        KNOWN.iter().find(|(name, _)| provider.starts_with(name)).map_or(OTHER, |(_, profile)| *profile)
    }

    /// Which calls must not happen at the same time. `net` of 1.17 grants that all may, and loses registrations that several
    /// threads make and close at once, or crashes; what comes in looks at the same tree.
    #[must_use]
    pub fn call_exclusion(&self, granted: &ProviderGrant) -> CallExclusion {
        if self.domain_each { CallExclusion::All } else { granted.call_exclusion() }
    }

    /// The same with what was granted.
    #[must_use]
    pub fn with_grant(self, granted: &ProviderGrant) -> Self {
        let apart = !granted.endpoint_scoped && granted.cq_data_bytes >= 8;
        let tagged = granted.caps & caps::TAGGED != 0;
        Self {
            endpoint_each: self.endpoint_each && apart,
            one_stream: self.one_stream && apart && granted.keeps_order(),
            lingers: self.lingers || !self.hands_over && !granted.data_auto,
            marks: granted.cq_data_bytes >= 8,
            // With one endpoint for all links, a tag does not tell whose it is.
            matches: self.matches && tagged && self.endpoint_each && apart,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_that_fits_counts() {
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
