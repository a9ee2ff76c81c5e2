//! Atomics whose values are asked for and not yet collected. The engine keeps a few for each rank, so those that are known are taken in
//! here before another atomic begins.

use std::cell::RefCell;
use std::marker::PhantomData;

use trunkline_engine::rma::{FetchHandle, RmaError};
use trunkline_runtime::{ContextCalls, FetchSink};

use crate::context::Context;
use crate::error::Error;
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

/// The values of a context that are asked for and not yet collected. One thread uses it.
///
/// A [`Context`] has one; its atomics and [`PendingFetch`] call it. It never waits, and never begins an atomic.
#[derive(Debug, Default)]
pub(crate) struct FetchTable {
    rows: RefCell<FetchRows>,
}

/// The rows of a [`FetchTable`].
///
/// - `entries` has a place per value, and never gets shorter: a [`PendingFetch`] names a place by its number.
/// - `asked` is the number of entries that are [`FetchEntry::Asked`].
#[derive(Debug, Default)]
struct FetchRows {
    entries: Vec<FetchEntry>,
    asked: usize,
}

impl FetchTable {
    /// Checks that another fetch may begin.
    ///
    /// # Errors
    /// [`Error::Argument`] if [`FETCHES_MAX`] are not collected.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        let rows = self.rows.borrow();
        let used = rows.entries.iter().filter(|entry| !matches!(entry, FetchEntry::Free)).count();
        if used < FETCHES_MAX {
            return Ok(());
        }
        Err(Error::Argument("64 values of this context are not collected; wait for one of them first"))
    }

    /// Keeps a fetch, or a value that is known at once, and returns the number of its place.
    fn keep_fetch(&self, entry: Result<FetchHandle, u64>) -> usize {
        let FetchRows { entries, asked } = &mut *self.rows.borrow_mut();
        *asked += usize::from(entry.is_ok());
        let entry = entry.map_or_else(FetchEntry::Known, FetchEntry::Asked);
        let free = entries.iter().position(|entry| matches!(entry, FetchEntry::Free));
        let at = free.unwrap_or(entries.len());
        match entries.get_mut(at) {
            Some(place) => *place = entry,
            None => entries.push(entry),
        }
        at
    }
}

impl FetchSink for FetchTable {
    fn deliver_fetches(&self, calls: &ContextCalls<'_, Self>) -> Result<(), RmaError> {
        let FetchRows { entries, asked } = &mut *self.rows.borrow_mut();
        if *asked == 0 {
            return Ok(());
        }
        for entry in entries {
            // What is wrong with one is told to the caller that waits for it.
            if let FetchEntry::Asked(fetch) = *entry
                && let Ok(Some(value)) = calls.poll_ready_fetch(fetch)
            {
                *entry = FetchEntry::Known(value);
                *asked -= 1;
            }
        }
        Ok(())
    }
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

impl<'a, T: Word> PendingFetch<'a, T> {
    /// One that `context` asked for, or knows at once.
    pub(crate) fn new(context: &'a Context, entry: Result<FetchHandle, u64>) -> Self {
        let at = context.fetches.keep_fetch(entry);
        Self { context, at, value: PhantomData }
    }

    /// Waits for the value.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn wait(self) -> Result<T, Error> {
        self.context.fabric_calls().wait_until(|| self.poll())
    }

    /// The value, if it is known.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn poll(&self) -> Result<Option<T>, Error> {
        let FetchRows { entries, asked } = &mut *self.context.fetches.rows.borrow_mut();
        match entries.get_mut(self.at) {
            Some(FetchEntry::Known(value)) => Ok(Some(T::from_word(*value))),
            Some(entry @ FetchEntry::Asked(_)) => {
                let FetchEntry::Asked(fetch) = *entry else { return Ok(None) };
                let Some(value) = self.context.fabric_calls().poll_fetch(fetch)? else {
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
        let FetchRows { entries, asked } = &mut *self.context.fetches.rows.borrow_mut();
        let Some(entry) = entries.get_mut(self.at) else { return };
        let was = std::mem::replace(entry, FetchEntry::Free);
        if let FetchEntry::Asked(fetch) = was {
            *asked -= 1;
            // A context that is gone keeps nothing.
            let _ = self.context.fabric_calls().give_up(fetch);
        }
    }
}
