//! A copy between a buffer and an inbox that may go on after it was begun: its owner begins it once there is a place among those under way, and polls for
//! its end. Never waits.

use trunkline_mem::ipc::{CopyBatch, CopyError, IpcMemory};

use super::request::TaggedFailure;
use crate::ipc::MessageBuffer;

/// One copy.
#[derive(Debug)]
pub(super) struct CopyAhead {
    stands: CopyStands,
    pub(super) failed: Option<TaggedFailure>,
}

#[derive(Debug)]
enum CopyStands {
    /// There was no place among those under way.
    Waiting,
    UnderWay(CopyBatch),
    /// A part of it is under way, and the rest found a device that is not ready: all of it is begun again behind that part.
    PartUnderWay(CopyBatch),
    Ended,
}

impl CopyAhead {
    /// One that has not begun.
    pub(super) const fn new() -> Self {
        Self { stands: CopyStands::Waiting, failed: None }
    }

    /// Nothing is to be copied any more.
    pub(super) fn skip_copy(&mut self) {
        self.stands = CopyStands::Ended;
    }

    /// Whether it has not begun.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.stands, CopyStands::Waiting)
    }

    /// The batch of its copies under way.
    pub(super) fn into_batch(self) -> Option<CopyBatch> {
        match self.stands {
            CopyStands::UnderWay(batch) | CopyStands::PartUnderWay(batch) => Some(batch),
            CopyStands::Waiting | CopyStands::Ended => None,
        }
    }

    /// Begins it if it has not begun, and polls for its end; whether it has ended.
    pub(super) fn advance_copy<M: IpcMemory>(
        &mut self,
        memory: &M,
        begin: impl FnOnce(&mut Option<CopyBatch>) -> Result<(), CopyError>,
    ) -> bool {
        if let CopyStands::PartUnderWay(batch) = &self.stands {
            match memory.has_ended(batch) {
                Ok(false) => return false,
                Ok(true) => {}
                Err(error) => self.failed = self.failed.take().or(Some(error.into())),
            }
            self.stands = CopyStands::Waiting;
        }
        if matches!(self.stands, CopyStands::Waiting) {
            let mut batch = None;
            // A message that failed before has nothing more to copy.
            let begun = if self.failed.is_some() { Ok(()) } else { begin(&mut batch) };
            if begun == Err(CopyError::Busy) {
                self.stands = batch.map_or(CopyStands::Waiting, CopyStands::PartUnderWay);
                return false;
            }
            self.failed = self.failed.take().or(begun.err().map(TaggedFailure::from));
            self.stands = batch.map_or(CopyStands::Ended, CopyStands::UnderWay);
        }
        if let CopyStands::UnderWay(batch) = &self.stands {
            match memory.has_ended(batch) {
                Ok(false) => return false,
                Ok(true) => {}
                Err(error) => self.failed = self.failed.take().or(Some(error.into())),
            }
            self.stands = CopyStands::Ended;
        }
        true
    }
}

/// Whether copies from and to a buffer go on after they were begun.
#[inline]
pub(super) fn is_copied_ahead<M: IpcMemory>(memory: &M, buffer: &MessageBuffer) -> bool {
    buffer.own_address().is_some() && memory.batch_bytes().is_some()
}
