//! The descriptor of a registration that is not enabled.

use trunkline_ofi::typed::{PayloadTraffic, MrBound, MrDisabled};

fn local(disabled: &MrDisabled, bound: &MrBound<PayloadTraffic>) {
    let _ = disabled.local_slice(0, 1);
    let _ = bound.local_slice(0, 1);
}

fn main() {
    let _ = local;
}
