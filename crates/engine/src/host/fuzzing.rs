//! The fuzz targets of control streams: addresses at which processes say that they listen.

use std::net::SocketAddr;

use trunkline_fabric::OobAddress;
use trunkline_proto::fuzzing::variants;
use trunkline_proto::wire::strand::STRANDS_MAX;

use super::oob::Places;
pub(crate) use super::remote::fuzzing::{action_seeds, actions};

pub(crate) fn address(bytes: &[u8]) {
    let given = OobAddress(bytes.to_vec());
    let Some(places) = Places::parse(&given) else { return };
    assert!(places.remote.len() <= STRANDS_MAX && (places.local.is_some() || !places.remote.is_empty()));
    assert!(places.remote.iter().all(|place| place.port() != 0), "no socket listens at port 0");
    if bytes.len() <= OobAddress::MAX {
        assert_eq!(places.address(), given);
    }
}

pub(crate) fn address_seeds() -> Vec<Vec<u8>> {
    let remote =
        |all: &[&str]| -> Vec<SocketAddr> { all.iter().filter_map(|one| one.parse().ok()).collect() };
    let all = [
        Places { local: Some([7; 16]), remote: Vec::new() },
        Places { local: None, remote: remote(&["192.0.2.7:4711"]) },
        Places { local: Some([0xff; 16]), remote: remote(&["[2001:db8::7]:4711", "10.0.0.1:1"]) },
        Places { local: None, remote: remote(&["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3", "10.0.0.4:65535"]) },
    ];
    variants(&all.map(|places| places.address().0))
}
