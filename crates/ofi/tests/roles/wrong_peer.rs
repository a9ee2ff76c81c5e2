//! A peer of the endpoint for payload on that of the control path.

use trunkline_ofi::typed::{ControlTraffic, PayloadTraffic, OfiEndpoint, EndpointPeer, RemotePlace};

fn write(ctrl: &mut OfiEndpoint<ControlTraffic>, peer: EndpointPeer<PayloadTraffic>, to: RemotePlace<ControlTraffic>) {
    let _ = ctrl.inject_write(peer, &[1], to, None);
}

fn main() {
    let _ = write;
}
