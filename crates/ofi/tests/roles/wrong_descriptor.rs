//! A descriptor of the control path on an endpoint for payload.

use trunkline_ofi::typed::{Ctrl, Data, Endpoint, How, Local, Peer, Remote, Slot, Source};

fn write(data: &mut Endpoint<Data>, peer: Peer<Data>, record: Local<'_, Ctrl>, to: Remote<Data>) {
    let _ = data.write(peer, Source::One(record), to, None, Slot(0), How::TOLD);
}

fn main() {
    let _ = write;
}
