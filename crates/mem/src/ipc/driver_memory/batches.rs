//! Batches of copies in flight, each in a slot of the driver. The memory of a batch is held, and the imports that it uses stay mapped, until
//! its completion is known: forever if the driver never reports it. Once a slot has been used, its reuse allocates no memory.

use super::IpcDriver;
use crate::MemoryRange;
use crate::ipc::{CallFailure, CopyBatch, CopyError};

/// All slots.
#[derive(Debug)]
pub(super) struct CopyBatches {
    slots: Vec<BatchSlot>,
    next: u64,
}

/// One slot: a batch, and the memory that the batch uses.
#[derive(Debug, Default)]
struct BatchSlot {
    batch: Option<ActiveBatch>,
    /// Its copies, by the device that makes them.
    shares: Vec<BatchShare>,
    /// The imports that it uses, by number.
    imports: Vec<u64>,
    held: Vec<MemoryRange>,
}

/// A batch in flight.
#[derive(Debug)]
struct ActiveBatch {
    number: u64,
    fate: BatchStatus,
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BatchStatus {
    UnderWay,
    /// Completed, and not yet reported to its owner.
    Ended,
    /// Reported to its owner as failed; its copies may still be running.
    Lost,
}

/// The copies of a batch that one device makes.
#[derive(Debug)]
struct BatchShare {
    device: Option<u32>,
    mark: MarkPosition,
}

/// Whether an event (mark) covers the copies of a share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum MarkPosition {
    /// No mark was recorded.
    None,
    /// A mark covers the first copies, but not the last.
    Before,
    /// A mark covers all copies.
    Behind,
}

impl BatchSlot {
    /// Releases the slot after its batch has completed.
    fn clear(&mut self) {
        self.batch = None;
        self.shares.clear();
        self.imports.clear();
        self.held.clear();
    }
}

impl BatchShare {
    /// Returns whether all copies of this share have completed. Records a mark if the last copies have none.
    fn has_ended<D: IpcDriver>(&mut self, driver: &D, slot: usize) -> Result<bool, CallFailure> {
        if self.mark == MarkPosition::Before {
            if !driver.is_over(slot, self.device)? {
                return Ok(false);
            }
            self.mark = MarkPosition::None;
        }
        if self.mark == MarkPosition::None {
            driver.mark_slot(slot, self.device)?;
            self.mark = MarkPosition::Behind;
        }
        driver.is_over(slot, self.device)
    }
}

impl CopyBatches {
    pub(super) fn with_slots(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| BatchSlot::default()).collect(), next: 1 }
    }

    /// Returns the slot of a batch; acquires a free slot if `batch` is `None`.
    ///
    /// # Errors
    /// [`CopyError::Busy`] if all slots are in use; [`CopyError::Closed`] for a batch that has completed.
    pub(super) fn acquire_slot(&mut self, batch: &mut Option<CopyBatch>) -> Result<usize, CopyError> {
        if let Some(CopyBatch(number)) = batch {
            return self.find_slot(*number).ok_or(CopyError::Closed);
        }
        let slot = self.slots.iter().position(|slot| slot.batch.is_none()).ok_or(CopyError::Busy)?;
        let number = self.next;
        self.next += 1;
        self.slots[slot].batch = Some(ActiveBatch { number, fate: BatchStatus::UnderWay });
        *batch = Some(CopyBatch(number));
        Ok(slot)
    }

    fn find_slot(&self, number: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.batch.as_ref().is_some_and(|one| one.number == number))
    }

    /// Records that a slot has one more copy, made by `device`, between the imports and the held memory.
    pub(super) fn record_copy(
        &mut self,
        slot: usize,
        device: Option<u32>,
        imports: [Option<u64>; 2],
        held: Option<&MemoryRange>,
    ) {
        let Some(of) = self.slots.get_mut(slot) else { return };
        match of.shares.iter_mut().find(|share| share.device == device) {
            Some(share) if share.mark != MarkPosition::None => {
                share.mark = MarkPosition::Before;
            }
            Some(share) => share.mark = MarkPosition::None,
            None => of.shares.push(BatchShare { device, mark: MarkPosition::None }),
        }
        for import in imports.into_iter().flatten() {
            if !of.imports.contains(&import) {
                of.imports.push(import);
            }
        }
        of.held.extend(held.cloned());
    }

    /// Returns whether a batch has completed, and releases its slot then.
    pub(super) fn has_ended<D: IpcDriver>(&mut self, driver: &D, of: &CopyBatch) -> Result<bool, CopyError> {
        // An unknown batch has completed or was already reported as failed.
        let Some(number) = self.find_slot(of.0) else { return Ok(true) };
        let Some(slot) = self.slots.get_mut(number) else { return Ok(true) };
        let Some(batch) = &mut slot.batch else { return Ok(true) };
        match batch.fate {
            BatchStatus::UnderWay => {}
            BatchStatus::Ended => {
                slot.clear();
                return Ok(true);
            }
            BatchStatus::Lost => return Ok(true),
        }
        let shares = slot.shares.iter_mut();
        let ended =
            shares.map(|share| share.has_ended(driver, number)).try_fold(true, |all, one| Ok(all & one?));
        match ended {
            Ok(false) => Ok(false),
            Ok(true) => {
                slot.clear();
                Ok(true)
            }
            Err(cause) => {
                (batch.fate, batch.number) = (BatchStatus::Lost, 0);
                Err(CopyError::Other(cause))
            }
        }
    }

    /// Polls the batches that use an import; returns whether copies of them are in flight. Never waits. Their owner receives their completion when
    /// it polls itself.
    ///
    /// # Errors
    /// The driver's error: copies may be under way.
    pub(super) fn poll_users<D: IpcDriver>(&mut self, driver: &D, import: u64) -> Result<bool, CallFailure> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let uses = slot.imports.contains(&import);
            let Some(batch) = slot.batch.as_mut().filter(|batch| uses && batch.fate != BatchStatus::Ended)
            else {
                continue;
            };
            for share in &mut slot.shares {
                if !share.has_ended(driver, number)? {
                    return Ok(true);
                }
            }
            if batch.fate == BatchStatus::Lost {
                slot.clear();
            } else {
                batch.fate = BatchStatus::Ended;
            }
        }
        Ok(false)
    }

    /// Waits for the batches that use an import, or for all batches.
    ///
    /// # Errors
    /// The driver's error: the import may still be in use.
    pub(super) fn wait_for_users<D: IpcDriver>(
        &mut self,
        driver: &D,
        import: Option<u64>,
    ) -> Result<(), CallFailure> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let uses = import.is_none_or(|import| slot.imports.contains(&import));
            let Some(batch) = slot.batch.as_mut().filter(|batch| uses && batch.fate != BatchStatus::Ended)
            else {
                continue;
            };
            slot.shares.iter().try_for_each(|share| driver.wait_for(number, share.device))?;
            if batch.fate == BatchStatus::Lost {
                slot.clear();
            } else {
                batch.fate = BatchStatus::Ended;
            }
        }
        Ok(())
    }
}
