//! A descriptor of the control path on an endpoint for payload.

use trunkline_ofi::typed::{ControlTraffic, PayloadTraffic, OfiEndpoint, PostOptions, LocalSlice, EndpointPeer, RemotePlace, OpSlot, PayloadSource};

fn write(data: &mut OfiEndpoint<PayloadTraffic>, peer: EndpointPeer<PayloadTraffic>, record: LocalSlice<'_, ControlTraffic>, to: RemotePlace<PayloadTraffic>) {
    let _ = data.write(peer, PayloadSource::One(record), to, None, OpSlot(0), PostOptions::TOLD);
}

fn main() {
    let _ = write;
}
