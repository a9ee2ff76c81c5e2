//! A key of the control path as the target of payload.

use trunkline_ofi::typed::{ControlTraffic, PayloadTraffic, OfiEndpoint, PostOptions, LocalSlice, EndpointPeer, RKey, RemotePlace, OpSlot, PayloadSource};

fn write(data: &mut OfiEndpoint<PayloadTraffic>, peer: EndpointPeer<PayloadTraffic>, from: LocalSlice<'_, PayloadTraffic>, mailbox: RKey<ControlTraffic>) {
    let _ = data.write(peer, PayloadSource::One(from), RemotePlace::new(mailbox, 0), None, OpSlot(0), PostOptions::TOLD);
}

fn main() {
    let _ = write;
}
