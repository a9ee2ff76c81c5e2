//! An asynchronous copy between a buffer and an inbox. Its owner begins it as soon as the kind accepts it, and polls
//! for its end. Never waits.

use trunkline_mem::ipc::{CopyBatch, CopyError, IpcMemory};

use super::request::TaggedFailure;
use crate::ipc::MessageBuffer;

/// One copy and its state.
#[derive(Debug)]
pub(super) struct CopyAhead {
    stands: CopyStands,
    pub(super) failed: Option<TaggedFailure>,
}

#[derive(Debug)]
enum CopyStands {
    /// The kind had no room for it among its copies in progress.
    Waiting,
    UnderWay(CopyBatch),
    /// A part of it is in progress; the kind was busy for the rest. The whole copy begins again when that part has
    /// ended.
    PartUnderWay(CopyBatch),
    Ended,
}

impl CopyAhead {
    /// Creates a copy that has not begun.
    pub(super) const fn new() -> Self {
        Self { stands: CopyStands::Waiting, failed: None }
    }

    /// Ends the copy before it has begun: there is nothing to copy.
    pub(super) fn skip_copy(&mut self) {
        self.stands = CopyStands::Ended;
    }

    /// Whether it has not begun.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.stands, CopyStands::Waiting)
    }

    /// Returns the batch of its copies in progress.
    pub(super) fn into_batch(self) -> Option<CopyBatch> {
        match self.stands {
            CopyStands::UnderWay(batch) | CopyStands::PartUnderWay(batch) => Some(batch),
            CopyStands::Waiting | CopyStands::Ended => None,
        }
    }

    /// Begins the copy if it has not begun, and polls for its end; returns whether it has ended.
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
            // The rest of a failed message need not be copied.
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

/// Whether copies from and to a buffer are asynchronous.
#[inline]
pub(super) fn is_copied_ahead<M: IpcMemory>(memory: &M, buffer: &MessageBuffer) -> bool {
    buffer.own_address().is_some() && memory.batch_bytes().is_some()
}
