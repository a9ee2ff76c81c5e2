//! The receives of one end of a link, for short messages. Made with the link, and posted again as their messages are read.

use trunkline_fabric::{
    AccessRights, BounceRole, LinkId, Op, PostError, Rail, RegisterError, RegisteredRegion,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::try_collect;
use trunkline_proto::wire::rma::{BYTES_MAX, RmaMessage, RmaMessageError};

/// One receive per message that the other end may have in flight, so that a message never waits for a receive.
#[derive(Debug)]
pub(super) struct LinkReceives {
    mr: RegisteredRegion<BounceRole>,
    count: u32,
    /// Receives that are not posted for lack of credit.
    due: Vec<u32>,
}

impl LinkReceives {
    /// Creates `count` receives for a link of this rail.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(super) fn new(rail: &impl Rail, count: u32) -> Result<Self, RegisterError> {
        let memory = MemoryRange::try_heap(BYTES_MAX.saturating_mul(count as usize))?;
        let due = try_collect((0..count).rev())?;
        let mr = RegisteredRegion::register(&rail.registrar(), memory, AccessRights::LOCAL)?;
        Ok(Self { mr, count, due })
    }

    /// Posts all receives that are not posted. False if the NIC has no room now: call again then. True for a link in error, which
    /// accepts no receive any more.
    pub(super) fn post_due(&mut self, rail: &mut impl Rail, link: LinkId) -> bool {
        while let Some(&at) = self.due.last() {
            let into = self.mr.extent_at(u64::from(at) * BYTES_MAX as u64, BYTES_MAX as u64);
            match rail.post(link, at.into(), Op::Recv { into }, true) {
                Ok(()) => drop(self.due.pop()),
                Err(PostError::Busy) => return false,
                Err(PostError::Refused(_)) => return true,
            }
        }
        true
    }

    /// Returns the message in one of the receives, and marks the receive to be posted again.
    ///
    /// # Errors
    /// [`RmaMessageError`]: the peer violates the protocol.
    pub(super) fn take_message(&mut self, wr_id: u64, len: u64) -> Result<RmaMessage, RmaMessageError> {
        let at = wr_id.min(u64::from(self.count)) as u32;
        let len = (len as usize).min(BYTES_MAX);
        let mut bytes = [0; BYTES_MAX];
        // In range, because `count` buffers of this size were registered.
        let _ = self.mr.memory().read(u64::from(at) * BYTES_MAX as u64, &mut bytes[..len]);
        self.due.push(at);
        RmaMessage::from_bytes(&bytes[..len])
    }
}
