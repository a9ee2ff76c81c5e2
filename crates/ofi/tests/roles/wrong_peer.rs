//! A peer of the endpoint for payload on that of the control path.

use trunkline_ofi::typed::{Ctrl, Data, Endpoint, Peer, Remote};

fn write(ctrl: &mut Endpoint<Ctrl>, peer: Peer<Data>, to: Remote<Ctrl>) {
    let _ = ctrl.inject_write(peer, &[1], to, None);
}

fn main() {
    let _ = write;
}
