//! A registration is bound twice.

use trunkline_ofi::typed::{Anchor, Ctrl, Data, MrDisabled};

fn bind(disabled: MrDisabled, data: &Anchor<Data>, ctrl: &Anchor<Ctrl>) {
    let _ = disabled.bind(data);
    let _ = disabled.bind(ctrl);
}

fn main() {
    let _ = bind;
}
