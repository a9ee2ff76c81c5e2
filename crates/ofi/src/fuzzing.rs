//! The fuzz target of this crate: link addresses. An address that parses must encode to bytes that parse to the same address.

use trunkline_fabric::LinkAddress;
use trunkline_proto::fuzzing::{FuzzTarget, make_variants};

use crate::address::{NAME_MAX, OfiLinkAddress, ProofTarget};

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "ofi_address", check: check_address, seeds: address_seeds }];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}

fn check_address(bytes: &[u8]) {
    let Ok(parsed) = OfiLinkAddress::parse(bytes) else { return };
    assert!(parsed.names.iter().all(|name| (1..=NAME_MAX).contains(&name.len())));
    let printed = parsed.to_bytes();
    assert!(printed.len() == bytes.len() && printed.len() <= LinkAddress::BYTES_MAX);
    assert_eq!(OfiLinkAddress::parse(&printed), Ok(parsed));
}

fn address_seeds() -> Vec<Vec<u8>> {
    let over_tcp = OfiLinkAddress {
        mark: 0x8123_4567,
        cookie: 0x0123_4567_89ab_cdef,
        landings: [ProofTarget { key: 1, addr: 2 }, ProofTarget { key: u64::MAX, addr: 1 << 63 }],
        names: [vec![2, 0, 0x1f, 0x90, 10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], vec![2; 16]],
    };
    let of_hardware = OfiLinkAddress {
        landings: <[ProofTarget; 2]>::default(),
        names: [vec![0xfe; 32], vec![0x80; NAME_MAX]],
        ..over_tcp.clone()
    };
    make_variants(&[over_tcp, of_hardware].map(|one| one.to_bytes()))
}
