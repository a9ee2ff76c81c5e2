//! The remaining work of a sending lane for each request. Held by the lane; decides nothing.

use trunkline_fabric::RemoteLocation;
use trunkline_proto::wire::imm::BufferToken;

use crate::MrId;
use crate::memory::regions::NO_MR;

/// A message to send.
#[derive(Clone, Copy)]
pub(crate) struct SendMessage {
    pub(crate) mr: MrId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) tag: u32,
}

/// The part of a request that is not done yet.
#[derive(Clone, Copy)]
pub(crate) struct PendingSend {
    pub(crate) mr: MrId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes in posted operations so far.
    pub(crate) given: u64,
    /// Operations that have not completed.
    pub(crate) left: u32,
    pub(crate) to: RemoteLocation,
    pub(crate) token: BufferToken,
    /// The fin record that follows the data.
    pub(crate) fin: FinDue,
    /// It is sent in slices.
    pub(crate) sliced: bool,
    /// The immediate of the last slice.
    pub(crate) last: Option<u32>,
}

/// When the fin record of a message is due.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum FinDue {
    /// Never.
    No,
    /// At once. It announces this many stripes; 0 on a link that keeps order, where the record arrives after all bytes.
    Now(u8),
    /// When everything is placed: all operations have completed. Until then the request is not among the unposted ones.
    Placed,
    /// As `Placed`, where placement also requires a final operation as proof, which is not posted yet.
    Proven,
}

impl PendingSend {
    /// Whether each piece is a stripe, which an immediate announces.
    pub(crate) fn is_striped(&self) -> bool {
        matches!(self.fin, FinDue::Now(1..))
    }

    /// Whether all bytes are placed and the fin record is to be posted.
    pub(crate) fn is_fin_due(&self) -> bool {
        self.left == 0 && self.fin == FinDue::Placed
    }

    /// Returns the value of a slot without a request.
    pub(crate) fn without_request() -> Self {
        Self {
            mr: NO_MR,
            offset: 0,
            len: 0,
            given: 0,
            left: 0,
            to: RemoteLocation::for_data(0, 0),
            token: BufferToken::new(0, 0),
            fin: FinDue::No,
            sliced: false,
            last: None,
        }
    }
}
