//! The key of a registration that is not enabled.

use trunkline_ofi::typed::{ControlTraffic, MrBound, MrDisabled};

fn key(disabled: &MrDisabled, bound: &MrBound<ControlTraffic>) -> u64 {
    disabled.key().number() + bound.key().number()
}

fn main() {
    let _ = key;
}
