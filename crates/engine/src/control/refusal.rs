//! Answers that bring no comm. Made by the control plane and by the answering side of a connection.

use trunkline_proto::wire::frame::{ControlFrame, OpenAnswer, OpenFrame, RemoteRegion, ResultFrame};
use trunkline_proto::wire::share::{self, ShareOutcome};

/// A RESULT that says no.
pub(crate) fn refusal_frame(open: &OpenFrame, answer: OpenAnswer) -> ControlFrame {
    without_comm(open, answer, ShareOutcome::Alone)
}

/// A RESULT that brings no comm.
pub(crate) fn without_comm(open: &OpenFrame, answer: OpenAnswer, given: ShareOutcome) -> ControlFrame {
    ControlFrame::Result(ResultFrame {
        conn: open.conn,
        answer,
        matched: false,
        remote_len: false,
        comm: 0,
        fins: RemoteRegion { key: 0, addr: 0 },
        eager_max: 0,
        eager_credits: 0,
        link: Vec::new(),
        share: share::ShareAnswer { given, turn: open.share.turn },
    })
}
