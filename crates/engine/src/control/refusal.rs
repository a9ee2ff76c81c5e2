//! RESULT frames without a comm. Made by the control plane and by the accepting side of a connection.

use trunkline_proto::wire::frame::{ControlFrame, OpenAnswer, OpenFrame, RemoteRegion, ResultFrame};
use trunkline_proto::wire::share::{self, ShareOutcome};

/// Returns a RESULT that refuses.
pub(crate) fn refusal_frame(open: &OpenFrame, answer: OpenAnswer) -> ControlFrame {
    without_comm(open, answer, ShareOutcome::Alone)
}

/// Returns a RESULT without a comm.
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
