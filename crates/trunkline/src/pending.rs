//! Atomics whose values are asked for and not yet collected. The engine keeps a few for each rank, so those that are known are taken in
//! here before another atomic begins.

use std::marker::PhantomData;

use trunkline_engine::rma::FetchHandle;

use crate::context::Context;
use crate::error::Error;
use crate::wait::wait_until;
use crate::word::Word;

/// Values of a context that may be asked for and not collected.
pub(crate) const FETCHES_MAX: usize = 64;

/// How one stands.
#[derive(Clone, Copy, Debug)]
enum FetchEntry {
    Free,
    Asked(FetchHandle),
    Known(u64),
}

/// Those of a context.
#[derive(Debug, Default)]
pub(crate) struct FetchTable {
    entries: Vec<FetchEntry>,
    /// How many are asked for and not known.
    asked: usize,
}

/// A value that was asked for: see [`Context::fetch_nbi`]. It is collected by [`wait`](Self::wait), or given up when this is
/// dropped; the atomic is executed in any case.
#[derive(Debug)]
#[must_use = "the value is given up"]
pub struct PendingFetch<'a, T> {
    context: &'a Context,
    at: usize,
    value: PhantomData<T>,
}

impl Context {
    /// Takes in the values that are known, so that other atomics can have their places.
    pub(crate) fn collect_ready_fetches(&self) -> Result<(), Error> {
        let mut table = self.fetches.borrow_mut();
        if table.asked == 0 {
            return Ok(());
        }
        let forgets = crate::is_planted("api-forgets-values");
        let FetchTable { entries, asked } = &mut *table;
        for entry in entries {
            if let FetchEntry::Asked(fetch) = *entry
                && let Ok(Some(value)) = self.shared.job.collect_ready_fetch(self.id, fetch)
            {
                *entry = FetchEntry::Known(if forgets { 0 } else { value });
                *asked -= 1;
            }
        }
        Ok(())
    }

    /// Whether another value may be asked for.
    pub(crate) fn has_room(&self) -> Result<(), Error> {
        let table = self.fetches.borrow();
        let used = table.entries.iter().filter(|entry| !matches!(entry, FetchEntry::Free)).count();
        if used < FETCHES_MAX {
            return Ok(());
        }
        Err(Error::Argument("64 values of this context are not collected; wait for one of them first"))
    }

    /// Keeps one that was asked for.
    pub(crate) fn keep_fetch<T: Word>(&self, entry: Result<FetchHandle, u64>) -> PendingFetch<'_, T> {
        let mut table = self.fetches.borrow_mut();
        table.asked += usize::from(entry.is_ok());
        let entry = entry.map_or_else(FetchEntry::Known, FetchEntry::Asked);
        let free = table.entries.iter().position(|entry| matches!(entry, FetchEntry::Free));
        let at = free.unwrap_or(table.entries.len());
        match table.entries.get_mut(at) {
            Some(place) => *place = entry,
            None => table.entries.push(entry),
        }
        PendingFetch { context: self, at, value: PhantomData }
    }
}

impl<T: Word> PendingFetch<'_, T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn wait(self) -> Result<T, Error> {
        wait_until(self.context, || self.poll())
    }

    /// The value, if it is known.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn poll(&self) -> Result<Option<T>, Error> {
        let mut table = self.context.fetches.borrow_mut();
        let FetchTable { entries, asked } = &mut *table;
        match entries.get_mut(self.at) {
            Some(FetchEntry::Known(value)) => Ok(Some(T::from_word(*value))),
            Some(entry @ FetchEntry::Asked(_)) => {
                let FetchEntry::Asked(fetch) = *entry else { return Ok(None) };
                let Some(value) = self.context.shared.job.collect_fetch(self.context.id, fetch)? else {
                    return Ok(None);
                };
                *entry = FetchEntry::Known(value);
                *asked -= 1;
                Ok(Some(T::from_word(value)))
            }
            Some(FetchEntry::Free) | None => Err(Error::Argument("this value is not asked for")),
        }
    }
}

impl<T> Drop for PendingFetch<'_, T> {
    fn drop(&mut self) {
        let mut table = self.context.fetches.borrow_mut();
        let Some(entry) = table.entries.get_mut(self.at) else { return };
        let was = std::mem::replace(entry, FetchEntry::Free);
        if let FetchEntry::Asked(fetch) = was {
            table.asked -= 1;
            // A context that is gone keeps nothing.
            let _ = self.context.shared.job.give_up(self.context.id, fetch);
        }
    }
}
