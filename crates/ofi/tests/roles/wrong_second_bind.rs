//! A registration is bound twice.

use trunkline_ofi::typed::{EndpointAnchor, ControlTraffic, PayloadTraffic, MrDisabled};

fn bind(disabled: MrDisabled, data: &EndpointAnchor<PayloadTraffic>, ctrl: &EndpointAnchor<ControlTraffic>) {
    let _ = disabled.bind_endpoint(data);
    let _ = disabled.bind_endpoint(ctrl);
}

fn main() {
    let _ = bind;
}
