//! Puts and gets that this rank copies by itself: to and from mapped parts, and its own part. Called by `window`.
//! Each returns when its bytes have arrived. While a device copies, the rank keeps serving other ranks.

use trunkline_mem::ipc::{CopyError, IpcMemory};
use trunkline_node::tagged::MemoryLoan;
use trunkline_proto::wire::window::AccessKind;

use super::window::{HostWindow, WindowPlace};
use super::{Buffer, MessageError, Messages};

/// Bytes per copy between two polls, for memory that is copied synchronously.
const COPY: u64 = 1 << 20;

impl<M: IpcMemory> Messages<M> {
    pub(super) fn copy_mapped(
        &mut self,
        deed: AccessKind,
        loan: MemoryLoan,
        place: WindowPlace,
        buffer: &Buffer,
    ) -> Result<(), MessageError> {
        let in_one_row = place.spot.rows.is_whole() && buffer.ipc_buffer().rows().is_whole();
        let len = buffer.len() as u64;
        let most = self.bytes_at_once(in_one_row);
        let mut done = 0;
        while done < len {
            let part = most.min(len - done);
            let copied = loop {
                let begun = match deed {
                    AccessKind::Put => {
                        self.endpoint.begin_put(loan, place.spot, buffer.ipc_buffer(), done, part)
                    }
                    AccessKind::Get => self.endpoint.get(loan, place.spot, buffer.ipc_buffer(), done, part),
                };
                match begun.and_then(|()| self.end_window_copy(|one| one.endpoint.has_copied(loan))) {
                    Err(CopyError::Busy) => self.progress_or_pause(),
                    copied => break copied,
                }
            };
            copied.map_err(|error| MessageError::of_copy(error, place.rank))?;
            done += part;
            if done < len {
                self.progress();
            }
        }
        self.windows.counts.copies += 1;
        Ok(())
    }

    pub(super) fn copy_own(
        &mut self,
        deed: AccessKind,
        window: &HostWindow,
        place: WindowPlace,
        buffer: &Buffer,
    ) -> Result<(), MessageError> {
        let live = self.windows.find_window(window.call).ok_or(MessageError::NoWindow { rank: self.rank })?;
        let own = live.spot_buffer(place.spot, buffer.len() as u64)?;
        let (from, into) = match deed {
            AccessKind::Put => (buffer, &own),
            AccessKind::Get => (&own, buffer),
        };
        let in_one_row = from.ipc_buffer().rows().is_whole() && into.ipc_buffer().rows().is_whole();
        let len = buffer.len() as u64;
        let most = self.bytes_at_once(in_one_row);
        let mut done = 0;
        while done < len {
            let part = most.min(len - done);
            let copied = loop {
                let mut batch = None;
                let into = into.ipc_buffer();
                let begun = from.ipc_buffer().begin_copy(self.memory(), &mut batch, into, done, part);
                // If the copy could not be started as a whole, the pieces that were started end first.
                let ended = match &batch {
                    Some(batch) => self.end_window_copy(|one| one.memory().has_ended(batch)),
                    None => Ok(()),
                };
                match begun.and(ended) {
                    Err(CopyError::Busy) => self.progress_or_pause(),
                    copied => break copied,
                }
            };
            copied.map_err(|error| MessageError::of_copy(error, place.rank))?;
            done += part;
        }
        Ok(())
    }

    fn bytes_at_once(&self, in_one_row: bool) -> u64 {
        self.memory().batch_bytes().filter(|_| in_one_row).unwrap_or(COPY)
    }

    /// Serves other ranks until a copy has ended.
    fn end_window_copy(
        &mut self,
        mut has_ended: impl FnMut(&mut Self) -> Result<bool, CopyError>,
    ) -> Result<(), CopyError> {
        while !has_ended(self)? {
            self.progress_or_pause();
        }
        Ok(())
    }
}
