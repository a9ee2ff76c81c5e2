//! Batches of copies that are under way, each in a slot of the driver's. The memory that a batch copies from and to is held, and the imports that it uses stay mapped,
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

/// A place for a batch, and the memory that the batch uses.
#[derive(Debug, Default)]
struct BatchSlot {
    batch: Option<Batch>,
    /// Its copies, by the devices that make them.
    shares: Vec<BatchShare>,
    /// The imports that it uses, by their numbers.
    imports: Vec<u64>,
    held: Vec<Memory>,
}

/// One that is under way.
#[derive(Debug)]
struct Batch {
    number: u64,
    fate: Fate,
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    UnderWay,
    /// It has ended, and its owner was not told.
    Ended,
    /// Its owner was told that it failed, and copies may go on.
    Lost,
}

/// The copies of a batch that one device makes.
#[derive(Debug)]
struct BatchShare {
    device: Option<u32>,
    mark: Mark,
}

/// Where the mark of a share is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mark {
    /// Nowhere.
    None,
    /// Behind its first copies, and not behind the last.
    Before,
    /// Behind all its copies.
    Behind,
}

impl BatchSlot {
    /// Its batch is over.
    fn clear(&mut self) {
        self.batch = None;
        self.shares.clear();
        self.imports.clear();
        self.held.clear();
    }
}

impl BatchShare {
    /// Whether all its copies in that slot have ended. They are marked if need be.
    fn has_ended<D: Driver>(&mut self, driver: &D, slot: usize) -> Result<bool, Cause> {
        if self.mark == Mark::Before {
            if !driver.is_over(slot, self.device)? {
                return Ok(false);
            }
            self.mark = Mark::None;
        }
        if self.mark == Mark::None {
            driver.mark(slot, self.device)?;
            self.mark = Mark::Behind;
        }
        driver.is_over(slot, self.device)
    }
}

impl Batches {
    pub(super) fn of(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| BatchSlot::default()).collect(), next: 1 }
    }

    /// The slot of a batch; a new one is made where there is none yet.
    ///
    /// # Errors
    /// [`CopyError::Busy`]; [`CopyError::Closed`] of a batch that is over.
    pub(super) fn slot(&mut self, batch: &mut Option<CopyBatch>) -> Result<usize, CopyError> {
        if let Some(CopyBatch(number)) = batch {
            return self.find(*number).ok_or(CopyError::Closed);
        }
        let slot = self.slots.iter().position(|slot| slot.batch.is_none()).ok_or(CopyError::Busy)?;
        let number = self.next;
        self.next += 1;
        self.slots[slot].batch = Some(Batch { number, fate: Fate::UnderWay });
        *batch = Some(CopyBatch(number));
        Ok(slot)
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.batch.as_ref().is_some_and(|one| one.number == number))
    }

    /// A slot has a copy more, by that device, between an import and that memory.
    pub(super) fn note(
        &mut self,
        slot: usize,
        device: Option<u32>,
        imports: [Option<u64>; 2],
        held: Option<&Memory>,
    ) {
        let Some(of) = self.slots.get_mut(slot) else { return };
        match of.shares.iter_mut().find(|share| share.device == device) {
            Some(share) if share.mark != Mark::None && !planted("mem-gpu-marks-again-at-once") => {
                share.mark = Mark::Before;
            }
            Some(share) => share.mark = Mark::None,
            None => of.shares.push(BatchShare { device, mark: Mark::None }),
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
        match batch.fate {
            Fate::UnderWay => {}
            Fate::Ended => {
                slot.clear();
                return Ok(true);
            }
            Fate::Lost => return Ok(true),
        }
        let first_alone = planted("mem-gpu-asks-one-device");
        let shares = slot.shares.iter_mut().take(if first_alone { 1 } else { usize::MAX });
        let ended =
            shares.map(|share| share.has_ended(driver, number)).try_fold(true, |all, one| Ok(all & one?));
        match ended {
            Ok(false) => Ok(false),
            Ok(true) => {
                slot.clear();
                Ok(true)
            }
            Err(cause) => {
                (batch.fate, batch.number) = (Fate::Lost, 0);
                Err(CopyError::Other(cause))
            }
        }
    }

    /// Polls the batches that use a mapping; returns whether copies of them are under way. Never waits. Their owner learns of their ends when it polls itself.
    ///
    /// # Errors
    /// The driver's error: copies may be under way.
    pub(super) fn poll_users<D: Driver>(&mut self, driver: &D, import: u64) -> Result<bool, Cause> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let uses = slot.imports.contains(&import);
            let Some(batch) = slot.batch.as_mut().filter(|batch| uses && batch.fate != Fate::Ended) else {
                continue;
            };
            for share in &mut slot.shares {
                if !share.has_ended(driver, number)? {
                    return Ok(true);
                }
            }
            if batch.fate == Fate::Lost {
                slot.clear();
            } else {
                batch.fate = Fate::Ended;
            }
        }
        Ok(false)
    }

    /// Waits for what uses something that is open, or for all.
    ///
    /// # Errors
    /// The driver's error: the import may still be in use.
    pub(super) fn wait<D: Driver>(&mut self, driver: &D, import: Option<u64>) -> Result<(), Cause> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            let uses = import.is_none_or(|import| slot.imports.contains(&import));
            let Some(batch) = slot.batch.as_mut().filter(|batch| uses && batch.fate != Fate::Ended) else {
                continue;
            };
            slot.shares.iter().try_for_each(|share| driver.wait_for(number, share.device))?;
            if batch.fate == Fate::Lost {
                slot.clear();
            } else {
                batch.fate = Fate::Ended;
            }
        }
        Ok(())
    }
}
