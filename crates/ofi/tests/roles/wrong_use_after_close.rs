//! A registration is used after it was closed.

use trunkline_ofi::typed::{PayloadTraffic, OfiEndpoint, PostOptions, MrEnabled, EndpointPeer, RemotePlace, OpSlot, PayloadSource};

fn write(data: &mut OfiEndpoint<PayloadTraffic>, peer: EndpointPeer<PayloadTraffic>, mr: MrEnabled<PayloadTraffic>, to: RemotePlace<PayloadTraffic>) {
    let from = mr.local_slice(0, 1).unwrap();
    drop(mr);
    let _ = data.write(peer, PayloadSource::One(from), to, None, OpSlot(0), PostOptions::TOLD);
}

fn main() {
    let _ = write;
}
