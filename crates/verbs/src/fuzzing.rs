//! The check that the fuzz target of this crate runs on its input: link addresses. Input that parses must encode to bytes that parse to the
//! same value.

use trunkline_proto::fuzzing::{FuzzTarget, make_variants};
use trunkline_sys::verbs::Ece;

use crate::connect::VerbsLinkAddress;

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "verbs_address", check: check_address, seeds: address_seeds }];

/// Runs the target of that name.
///
/// # Panics
/// When there is none, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}

fn check_address(bytes: &[u8]) {
    let Ok(parsed) = VerbsLinkAddress::parse(bytes) else { return };
    assert_eq!(parsed.to_bytes(), bytes);
    assert_eq!(VerbsLinkAddress::parse(&parsed.to_bytes()), Ok(parsed));
}

fn address_seeds() -> Vec<Vec<u8>> {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1];
    let roce = VerbsLinkAddress {
        infiniband: false,
        mtu: 5,
        number: 17,
        psn: 0xff_ffff,
        lid: 0,
        serves: 16,
        gid,
        class: (106, 0),
        ece: None,
    };
    let ece = Some(Ece { vendor_id: 0x15b3, options: 3, comp_mask: 0 });
    let infiniband = VerbsLinkAddress { infiniband: true, lid: 7, gid: [0; 16], class: (0, 15), ece, ..roce };
    make_variants(&[roce, infiniband].map(|one| one.to_bytes()))
}
