//! Atomics whose values are asked for and not yet collected. The engine keeps a few for each rank, so those that are known are taken in
//! here before another atomic begins.

use std::marker::PhantomData;

use trunkline_engine::rma::Fetch;

use crate::context::Context;
use crate::error::Error;
use crate::wait::until;
use crate::word::Word;

/// Values of a context that may be asked for and not collected.
pub(crate) const FETCHES_MAX: usize = 64;

/// How one stands.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Free,
    Asked(Fetch),
    Known(u64),
}

/// Those of a context.
#[derive(Debug, Default)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    /// How many are asked for and not known.
    asked: usize,
}

/// A value that was asked for: see [`Context::fetch_nbi`]. It is collected by [`wait`](Self::wait), or given up when this is
/// dropped; the atomic is executed in any case.
#[derive(Debug)]
#[must_use = "the value is given up"]
pub struct Pending<'a, T> {
    context: &'a Context,
    at: usize,
    value: PhantomData<T>,
}

impl Context {
    /// Takes in the values that are known, so that other atomics can have their places.
    pub(crate) fn collect(&self) -> Result<(), Error> {
        let mut table = self.fetches.borrow_mut();
        if table.asked == 0 {
            return Ok(());
        }
        let forgets = crate::planted("api-forgets-values");
        let Table { entries, asked } = &mut *table;
        for entry in entries {
            if let Entry::Asked(fetch) = *entry
                && let Ok(Some(value)) = self.shared.job.found(self.id, fetch)
            {
                *entry = Entry::Known(if forgets { 0 } else { value });
                *asked -= 1;
            }
        }
        Ok(())
    }

    /// Whether another value may be asked for.
    pub(crate) fn has_room(&self) -> Result<(), Error> {
        let table = self.fetches.borrow();
        let used = table.entries.iter().filter(|entry| !matches!(entry, Entry::Free)).count();
        if used < FETCHES_MAX {
            return Ok(());
        }
        Err(Error::Argument("64 values of this context are not collected; wait for one of them first"))
    }

    /// Keeps one that was asked for.
    pub(crate) fn keep<T: Word>(&self, entry: Result<Fetch, u64>) -> Pending<'_, T> {
        let mut table = self.fetches.borrow_mut();
        table.asked += usize::from(entry.is_ok());
        let entry = entry.map_or_else(Entry::Known, Entry::Asked);
        let free = table.entries.iter().position(|entry| matches!(entry, Entry::Free));
        let at = free.unwrap_or(table.entries.len());
        match table.entries.get_mut(at) {
            Some(place) => *place = entry,
            None => table.entries.push(entry),
        }
        Pending { context: self, at, value: PhantomData }
    }
}

impl<T: Word> Pending<'_, T> {
    /// Waits for the value.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn wait(self) -> Result<T, Error> {
        until(self.context, || self.poll())
    }

    /// The value, if it is known.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn poll(&self) -> Result<Option<T>, Error> {
        let mut table = self.context.fetches.borrow_mut();
        let Table { entries, asked } = &mut *table;
        match entries.get_mut(self.at) {
            Some(Entry::Known(value)) => Ok(Some(T::from_word(*value))),
            Some(entry @ Entry::Asked(_)) => {
                let Entry::Asked(fetch) = *entry else { return Ok(None) };
                let Some(value) = self.context.shared.job.fetched(self.context.id, fetch)? else {
                    return Ok(None);
                };
                *entry = Entry::Known(value);
                *asked -= 1;
                Ok(Some(T::from_word(value)))
            }
            Some(Entry::Free) | None => Err(Error::Argument("this value is not asked for")),
        }
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        let mut table = self.context.fetches.borrow_mut();
        let Some(entry) = table.entries.get_mut(self.at) else { return };
        let was = std::mem::replace(entry, Entry::Free);
        if let Entry::Asked(fetch) = was {
            table.asked -= 1;
            // A context that is gone keeps nothing.
            let _ = self.context.shared.job.give_up(self.context.id, fetch);
        }
    }
}
