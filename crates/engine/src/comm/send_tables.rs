//! The tables of a sending lane, allocated before a connection acquires any other resource: out of memory, nothing has to be
//! released.

use std::collections::VecDeque;

use trunkline_proto::limits::SENDS_MAX;
use trunkline_proto::reserve::{OutOfMemory, try_deque, try_filled};

use crate::MrId;
use crate::comm::outgoing::PendingSend;
use crate::comm::stripe::MultiLink;
use crate::memory::regions::NO_MR;

/// The tables of a sending lane, allocated before it acquires any other resource.
pub(crate) struct SendTables {
    pub(crate) many: Option<Box<MultiLink>>,
    pub(crate) outgoing: Box<[PendingSend]>,
    pub(crate) unposted: VecDeque<u16>,
    pub(crate) leaving: VecDeque<u16>,
    pub(crate) marks: Box<[u64]>,
    pub(crate) copied: Box<[MrId]>,
}

impl SendTables {
    /// Allocates the tables of a lane with one path, or with several.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(crate) fn new(are_many: bool) -> Result<Self, OutOfMemory> {
        Ok(Self {
            many: if are_many { Some(Box::new(MultiLink::new()?)) } else { None },
            outgoing: try_filled(PendingSend::without_request(), SENDS_MAX)?,
            unposted: try_deque(SENDS_MAX)?,
            leaving: try_deque(SENDS_MAX)?,
            marks: try_filled(0, SENDS_MAX)?,
            copied: try_filled(NO_MR, SENDS_MAX)?,
        })
    }
}
