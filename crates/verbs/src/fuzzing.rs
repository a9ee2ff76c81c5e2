//! What the fuzz target of this crate does with its input: link addresses. Whatever parses must print to what parses to the
//! same.

use trunkline_proto::fuzzing::{Target, variants};

use crate::connect::Address;

/// The targets of this crate.
pub const TARGETS: &[Target] = &[Target { name: "verbs_address", check: address, seeds: address_seeds }];

fn address(bytes: &[u8]) {
    let Ok(parsed) = Address::parse(bytes) else { return };
    assert_eq!(parsed.bytes(), bytes);
    assert_eq!(Address::parse(&parsed.bytes()), Ok(parsed));
}

fn address_seeds() -> Vec<Vec<u8>> {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1];
    let roce = Address { infiniband: false, mtu: 5, number: 17, psn: 0xff_ffff, lid: 0, serves: 16, gid };
    let infiniband = Address { infiniband: true, lid: 7, gid: [0; 16], ..roce };
    variants(&[roce, infiniband].map(|one| one.bytes()))
}
