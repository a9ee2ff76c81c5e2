//! Batches of copies that are under way, each on a lane of the driver's. What a batch copies from and to is held, and what it uses of peers stays mapped,
//! until its end is known: for ever where the driver does not tell it.

use super::Driver;
use crate::Memory;
use crate::ipc::{Cause, CopyBatch, CopyError};

/// All lanes.
#[derive(Debug)]
pub(super) struct Batches {
    lanes: Vec<Option<Batch>>,
    next: u64,
}

/// One that is under way.
#[derive(Debug)]
struct Batch {
    number: u64,
    device: Option<u32>,
    stands: Stands,
    /// What it uses of peers, by the numbers of what is open.
    imports: Vec<u64>,
    held: Vec<Memory>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stands {
    /// There may be copies without a mark behind them.
    Unmarked,
    Marked,
    /// It has ended, and its owner was not told.
    Ended,
    /// Its owner was told that it failed, and copies may go on.
    Lost,
}

impl Batches {
    pub(super) fn of(lanes: usize) -> Self {
        Self { lanes: (0..lanes).map(|_| None).collect(), next: 1 }
    }

    /// The lane of a batch, and its device; a new one is made where there is none yet.
    ///
    /// # Errors
    /// [`CopyError::Busy`]; [`CopyError::Closed`] of a batch that is over.
    pub(super) fn lane(
        &mut self,
        batch: &mut Option<CopyBatch>,
        device: Option<u32>,
    ) -> Result<(usize, Option<u32>), CopyError> {
        if let Some(CopyBatch(number)) = batch {
            let lane = self.find(*number).ok_or(CopyError::Closed)?;
            return Ok((lane, self.lanes[lane].as_ref().and_then(|one| one.device)));
        }
        let lane = self.lanes.iter().position(Option::is_none).ok_or(CopyError::Busy)?;
        let number = self.next;
        self.next += 1;
        let (imports, held) = (Vec::new(), Vec::new());
        self.lanes[lane] = Some(Batch { number, device, stands: Stands::Unmarked, imports, held });
        *batch = Some(CopyBatch(number));
        Ok((lane, device))
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.as_ref().is_some_and(|one| one.number == number))
    }

    /// A lane has a copy more, between what is open and that memory.
    pub(super) fn note(&mut self, lane: usize, imports: [Option<u64>; 2], held: Option<&Memory>) {
        let Some(Some(batch)) = self.lanes.get_mut(lane) else { return };
        batch.stands = Stands::Unmarked;
        for import in imports.into_iter().flatten() {
            if !batch.imports.contains(&import) {
                batch.imports.push(import);
            }
        }
        batch.held.extend(held.cloned());
    }

    /// Whether a batch has ended; then it is over.
    pub(super) fn has_ended<D: Driver>(&mut self, driver: &D, of: &CopyBatch) -> Result<bool, CopyError> {
        // One that failed was told so.
        let Some(lane) = self.find(of.0) else { return Ok(true) };
        let Some(Some(batch)) = self.lanes.get_mut(lane) else { return Ok(true) };
        let marked = match batch.stands {
            Stands::Unmarked => driver.mark(lane, batch.device),
            Stands::Marked => Ok(()),
            Stands::Ended => {
                self.lanes[lane] = None;
                return Ok(true);
            }
            Stands::Lost => return Ok(true),
        };
        batch.stands = Stands::Marked;
        match marked.and_then(|()| driver.is_over(lane, batch.device)) {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.lanes[lane] = None;
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
        for lane in 0..self.lanes.len() {
            let Some(Some(batch)) = self.lanes.get_mut(lane) else { continue };
            let uses = import.is_none_or(|import| batch.imports.contains(&import));
            if !uses || batch.stands == Stands::Ended {
                continue;
            }
            driver.wait_for(lane, batch.device)?;
            if batch.stands == Stands::Lost {
                self.lanes[lane] = None;
            } else {
                batch.stands = Stands::Ended;
            }
        }
        Ok(())
    }
}
