//! The same as in the other files, without the mistake.

use trunkline_ofi::typed::{EndpointAnchor, ControlTraffic, PayloadTraffic, OfiEndpoint, PostOptions, LocalSlice, MrBound, MrDisabled, EndpointPeer, RKey, RemotePlace, OpSlot, PayloadSource};

fn write(
    data: &mut OfiEndpoint<PayloadTraffic>,
    ctrl: &mut OfiEndpoint<ControlTraffic>,
    payload: (EndpointPeer<PayloadTraffic>, LocalSlice<'_, PayloadTraffic>, RKey<PayloadTraffic>),
    record: (EndpointPeer<ControlTraffic>, LocalSlice<'_, ControlTraffic>, RKey<ControlTraffic>),
) {
    let _ = data.write(payload.0, PayloadSource::One(payload.1), RemotePlace::new(payload.2, 0), None, OpSlot(0), PostOptions::TOLD);
    let _ = ctrl.write(record.0, PayloadSource::One(record.1), RemotePlace::new(record.2, 0), None, OpSlot(0), PostOptions::TOLD);
}

fn enable(disabled: MrDisabled, endpoint: &EndpointAnchor<PayloadTraffic>) -> u64 {
    let bound: MrBound<PayloadTraffic> = disabled.bind_endpoint(endpoint).unwrap();
    let mr = bound.enable().unwrap();
    let local = mr.local_slice(0, 1).unwrap();
    mr.key().unwrap().number() + local.len() as u64
}

fn main() {
    let _ = (write, enable);
}
