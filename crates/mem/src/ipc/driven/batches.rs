//! Batches of copies that are under way, each in a slot of the driver's. What a batch copies from and to is held, and what it uses of peers stays mapped,
//! until its end is known: for ever where the driver does not tell it. Nothing is allocated once a slot was used.

use super::Driver;
use crate::Memory;
use crate::ipc::{Cause, CopyBatch, CopyError, planted};

/// All slots.
#[derive(Debug)]
pub(super) struct Batches {
    slots: Vec<BatchSlot>,
    next: u64,
}

/// A place for a batch, and what the batch uses.
#[derive(Debug, Default)]
struct BatchSlot {
    batch: Option<Batch>,
    /// What it uses of peers, by the numbers of what is open.
    imports: Vec<u64>,
    held: Vec<Memory>,
}

/// One that is under way.
#[derive(Debug)]
struct Batch {
    number: u64,
    device: Option<u32>,
    stands: Stands,
}

impl BatchSlot {
    /// Its batch is over.
    fn clear(&mut self) {
        self.batch = None;
        self.imports.clear();
        self.held.clear();
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stands {
    /// No mark is behind its copies.
    Unmarked,
    /// A mark is behind its first copies, and none behind the last.
    MarkedBefore,
    Marked,
    /// It has ended, and its owner was not told.
    Ended,
    /// Its owner was told that it failed, and copies may go on.
    Lost,
}

impl Batches {
    pub(super) fn of(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| BatchSlot::default()).collect(), next: 1 }
    }

    /// The slot of a batch, and its device; a new one is made where there is none yet.
    ///
    /// # Errors
    /// [`CopyError::Busy`]; [`CopyError::Closed`] of a batch that is over.
    pub(super) fn slot(
        &mut self,
        batch: &mut Option<CopyBatch>,
        device: Option<u32>,
    ) -> Result<(usize, Option<u32>), CopyError> {
        if let Some(CopyBatch(number)) = batch {
            let slot = self.find(*number).ok_or(CopyError::Closed)?;
            return Ok((slot, self.slots[slot].batch.as_ref().and_then(|one| one.device)));
        }
        let slot = self.slots.iter().position(|slot| slot.batch.is_none()).ok_or(CopyError::Busy)?;
        let number = self.next;
        self.next += 1;
        self.slots[slot].batch = Some(Batch { number, device, stands: Stands::Unmarked });
        *batch = Some(CopyBatch(number));
        Ok((slot, device))
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.batch.as_ref().is_some_and(|one| one.number == number))
    }

    /// A slot has a copy more, between what is open and that memory.
    pub(super) fn note(&mut self, slot: usize, imports: [Option<u64>; 2], held: Option<&Memory>) {
        let Some(of) = self.slots.get_mut(slot) else { return };
        if let Some(batch) = &mut of.batch {
            let is_marked = matches!(batch.stands, Stands::Marked | Stands::MarkedBefore)
                && !planted("mem-gpu-marks-again-at-once");
            batch.stands = if is_marked { Stands::MarkedBefore } else { Stands::Unmarked };
        }
        for import in imports.into_iter().flatten() {
            if !of.imports.contains(&import) {
                of.imports.push(import);
            }
        }
        of.held.extend(held.cloned());
    }

    /// Whether a batch has ended; then it is over.
    pub(super) fn has_ended<D: Driver>(&mut self, driver: &D, of: &CopyBatch) -> Result<bool, CopyError> {
        // One that failed was told so.
        let Some(number) = self.find(of.0) else { return Ok(true) };
        let Some(slot) = self.slots.get_mut(number) else { return Ok(true) };
        let Some(batch) = &mut slot.batch else { return Ok(true) };
        let marked = match batch.stands {
            Stands::Unmarked => driver.mark(number, batch.device),
            Stands::MarkedBefore => match driver.is_over(number, batch.device) {
                Ok(false) => return Ok(false),
                Ok(true) => driver.mark(number, batch.device),
                Err(cause) => Err(cause),
            },
            Stands::Marked => Ok(()),
            Stands::Ended => {
                slot.clear();
                return Ok(true);
            }
            Stands::Lost => return Ok(true),
        };
        batch.stands = Stands::Marked;
        match marked.and_then(|()| driver.is_over(number, batch.device)) {
            Ok(false) => Ok(false),
            Ok(true) => {
                slot.clear();
                Ok(true)
            }
            Err(cause) => {
                (batch.stands, batch.number) = (Stands::Lost, 0);
                Err(CopyError::Other(cause))
            }
        }
    }

    /// Waits for what uses something that is open, or for all.
    ///
    /// # Errors
    /// What the driver says: it may be used still.
    pub(super) fn wait<D: Driver>(&mut self, driver: &D, import: Option<u64>) -> Result<(), Cause> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let uses = import.is_none_or(|import| slot.imports.contains(&import));
            let Some(batch) = slot.batch.as_mut().filter(|batch| uses && batch.stands != Stands::Ended)
            else {
                continue;
            };
            driver.wait_for(number, batch.device)?;
            if batch.stands == Stands::Lost {
                slot.clear();
            } else {
                batch.stands = Stands::Ended;
            }
        }
        Ok(())
    }
}
