//! A role of somebody else's.

use trunkline_ofi::typed::Role;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Mine {}

impl Role for Mine {
    const NAME: &'static str = "mine";
}

fn main() {}
