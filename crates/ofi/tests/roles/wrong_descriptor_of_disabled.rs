//! The descriptor of a registration that is not enabled.

use trunkline_ofi::typed::{Data, MrBound, MrDisabled};

fn local(disabled: &MrDisabled, bound: &MrBound<Data>) {
    let _ = disabled.local(0, 1);
    let _ = bound.local(0, 1);
}

fn main() {
    let _ = local;
}
