//! The tables of a sending lane, allocated together before a connection takes anything else: without memory nothing has to be given back.

use std::collections::VecDeque;

use trunkline_proto::limits::SENDS_MAX;
use trunkline_proto::reserve::{OutOfMemory, try_deque, try_filled};

use crate::MrId;
use crate::comm::outgoing::PendingSend;
use crate::comm::stripe::MultiLink;
use crate::memory::regions::NO_MR;

/// The tables of a sending lane, made before it takes anything else.
pub(crate) struct SendTables {
    pub(crate) many: Option<Box<MultiLink>>,
    pub(crate) outgoing: Box<[PendingSend]>,
    pub(crate) unposted: VecDeque<u16>,
    pub(crate) leaving: VecDeque<u16>,
    pub(crate) marks: Box<[u64]>,
    pub(crate) copied: Box<[MrId]>,
}

impl SendTables {
    /// Of a lane with one path, or with many.
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
