//! Answers that bring no comm. Made by the control plane and by the answering side of a connection.

use trunkline_proto::wire::frame::{Answer, Frame, Open, Region, Reply};
use trunkline_proto::wire::share::{self, Given};

/// A RESULT that says no.
pub(crate) fn refusal(open: &Open, answer: Answer) -> Frame {
    without_comm(open, answer, Given::Alone)
}

/// A RESULT that brings no comm.
pub(crate) fn without_comm(open: &Open, answer: Answer, given: Given) -> Frame {
    Frame::Result(Reply {
        conn: open.conn,
        answer,
        matched: false,
        remote_len: false,
        comm: 0,
        fins: Region { key: 0, addr: 0 },
        eager_max: 0,
        eager_credits: 0,
        link: Vec::new(),
        share: share::Answer { given, turn: open.share.turn },
    })
}
