//! A registration is used after it was closed.

use trunkline_ofi::typed::{Data, Endpoint, How, Mr, Peer, Remote, Slot, Source};

fn write(data: &mut Endpoint<Data>, peer: Peer<Data>, mr: Mr<Data>, to: Remote<Data>) {
    let from = mr.local(0, 1).unwrap();
    drop(mr);
    let _ = data.write(peer, Source::One(from), to, None, Slot(0), How::TOLD);
}

fn main() {
    let _ = write;
}
