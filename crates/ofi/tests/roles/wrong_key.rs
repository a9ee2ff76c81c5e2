//! A key of the control path as the target of payload.

use trunkline_ofi::typed::{Ctrl, Data, Endpoint, How, Local, Peer, RKey, Remote, Slot, Source};

fn write(data: &mut Endpoint<Data>, peer: Peer<Data>, from: Local<'_, Data>, mailbox: RKey<Ctrl>) {
    let _ = data.write(peer, Source::One(from), Remote::new(mailbox, 0), None, Slot(0), How::TOLD);
}

fn main() {
    let _ = write;
}
