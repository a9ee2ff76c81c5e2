//! What a sending lane still has to do for each request. Held by the lane; decides nothing.

use trunkline_fabric::Remote;
use trunkline_proto::wire::imm::Token;

use crate::MrId;
use crate::memory::regions::NO_MR;

/// A message to send.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    pub(crate) mr: MrId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) tag: u32,
}

/// The part of a request that is not done yet.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) mr: MrId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes given to operations so far.
    pub(crate) given: u64,
    /// Operations that have not completed.
    pub(crate) left: u32,
    pub(crate) to: Remote,
    pub(crate) token: Token,
    /// What follows the data.
    pub(crate) fin: FinDue,
    /// It goes in slices.
    pub(crate) sliced: bool,
    /// The immediate of the last slice.
    pub(crate) last: Option<u32>,
}

/// When a fin record is due.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum FinDue {
    /// Never.
    No,
    /// At once. It announces so many stripes; 0 on a link that keeps order, where the record arrives behind all bytes.
    Now(u8),
    /// When everything is placed: all has completed. Until then the request is not among the unposted ones.
    Placed,
    /// The same, where that takes an operation behind all, which is not posted yet.
    Proven,
}

impl Outgoing {
    /// Whether each piece is a stripe, which an immediate announces.
    pub(crate) fn is_striped(&self) -> bool {
        matches!(self.fin, FinDue::Now(1..))
    }

    /// Whether all bytes are placed and the fin record is to be posted.
    pub(crate) fn owes_fin(&self) -> bool {
        self.left == 0 && self.fin == FinDue::Placed
    }

    /// Of no request.
    pub(crate) fn idle() -> Self {
        Self {
            mr: NO_MR,
            offset: 0,
            len: 0,
            given: 0,
            left: 0,
            to: Remote::data(0, 0),
            token: Token::new(0, 0),
            fin: FinDue::No,
            sliced: false,
            last: None,
        }
    }
}
