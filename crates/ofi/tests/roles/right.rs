//! The same as in the other files, without the mistake.

use trunkline_ofi::typed::{Anchor, Ctrl, Data, Endpoint, How, Local, MrBound, MrDisabled, Peer, RKey, Remote, Slot, Source};

fn write(
    data: &mut Endpoint<Data>,
    ctrl: &mut Endpoint<Ctrl>,
    payload: (Peer<Data>, Local<'_, Data>, RKey<Data>),
    record: (Peer<Ctrl>, Local<'_, Ctrl>, RKey<Ctrl>),
) {
    let _ = data.write(payload.0, Source::One(payload.1), Remote::new(payload.2, 0), None, Slot(0), How::TOLD);
    let _ = ctrl.write(record.0, Source::One(record.1), Remote::new(record.2, 0), None, Slot(0), How::TOLD);
}

fn enable(disabled: MrDisabled, endpoint: &Anchor<Data>) -> u64 {
    let bound: MrBound<Data> = disabled.bind(endpoint).unwrap();
    let mr = bound.enable().unwrap();
    let local = mr.local(0, 1).unwrap();
    mr.key().unwrap().number() + local.len() as u64
}

fn main() {
    let _ = (write, enable);
}
