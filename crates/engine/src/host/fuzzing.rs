//! The fuzz targets of control streams: listening addresses of processes.

use std::net::SocketAddr;

use trunkline_fabric::OobAddress;
use trunkline_proto::fuzzing::make_variants;
use trunkline_proto::wire::strand::STRANDS_MAX;

use super::oob::ListenAddresses;
pub(crate) use super::remote::fuzzing::{action_seeds, check_actions};

pub(crate) fn check_address(bytes: &[u8]) {
    let given = OobAddress(bytes.to_vec());
    let Some(places) = ListenAddresses::parse_address(&given) else { return };
    assert!(places.remote.len() <= STRANDS_MAX && (places.local.is_some() || !places.remote.is_empty()));
    assert!(places.remote.iter().all(|place| place.port() != 0), "a listen address has port 0");
    if bytes.len() <= OobAddress::MAX {
        assert_eq!(places.to_address(), given);
    }
}

pub(crate) fn address_seeds() -> Vec<Vec<u8>> {
    let remote =
        |all: &[&str]| -> Vec<SocketAddr> { all.iter().filter_map(|one| one.parse().ok()).collect() };
    let all = [
        ListenAddresses { local: Some([7; 16]), remote: Vec::new() },
        ListenAddresses { local: None, remote: remote(&["192.0.2.7:4711"]) },
        ListenAddresses { local: Some([0xff; 16]), remote: remote(&["[2001:db8::7]:4711", "10.0.0.1:1"]) },
        ListenAddresses {
            local: None,
            remote: remote(&["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3", "10.0.0.4:65535"]),
        },
    ];
    make_variants(&all.map(|places| places.to_address().0))
}
