//! Outstanding values of atomics. The engine keeps few values per rank, so this table collects those that have
//! arrived before another atomic begins. Called by atomics and by [`PendingFetch`]; it begins no operation.

use std::cell::RefCell;
use std::marker::PhantomData;

use trunkline_engine::rma::{FetchHandle, RmaError};
use trunkline_runtime::{ContextCalls, FetchSink};

use crate::context::Context;
use crate::error::Error;
use crate::word::Word;

/// The largest number of values of a context that are requested and not collected.
pub(crate) const FETCHES_MAX: usize = 64;

/// The state of a place of the table.
#[derive(Clone, Copy, Debug)]
enum FetchEntry {
    Free,
    Asked(FetchHandle),
    Known(u64),
}

/// The outstanding values of a context. One thread uses it.
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
        Err(Error::Argument(
            "64 values of this context are outstanding, the most at a time; wait for one of them first",
        ))
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
            // The caller that waits for this value receives its error.
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

/// The value of an atomic that was posted by [`Context::fetch_nbi`]. [`wait`](Self::wait) returns it; dropping this
/// discards it. The atomic is executed in either case.
#[derive(Debug)]
#[must_use = "dropping a pending fetch discards its value"]
pub struct PendingFetch<'a, T> {
    context: &'a Context,
    at: usize,
    value: PhantomData<T>,
}

impl<'a, T: Word> PendingFetch<'a, T> {
    /// Keeps the handle of an atomic of `context`, or its value.
    pub(crate) fn new(context: &'a Context, entry: Result<FetchHandle, u64>) -> Self {
        let at = context.fetches.keep_fetch(entry);
        Self { context, at, value: PhantomData }
    }

    /// Waits for the value, and returns it. Serves requests of other ranks meanwhile.
    ///
    /// # Errors
    /// [`Error::Gone`]: the rank has ended. [`Error::Engine`]: the rank has no such word.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::FetchOp;
    /// # let world = trunkline::World::start()?;
    /// # let next = (world.rank() + 1) % world.size();
    /// let counts = world.alloc::<u64>(2)?;
    /// // Both values are requested before the first wait, so their round trips overlap.
    /// let first = world.fetch_nbi(next, counts.at(0), FetchOp::Fetch)?;
    /// let second = world.fetch_nbi(next, counts.at(1), FetchOp::Fetch)?;
    /// let values: [u64; 2] = [first.wait()?, second.wait()?];
    /// # Ok::<(), trunkline::Error>(())
    /// ```
    pub fn wait(self) -> Result<T, Error> {
        self.context.fabric_calls().wait_until(|| self.poll())
    }

    /// Returns the value if it has arrived. Does not wait.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::FetchOp;
    /// # let world = trunkline::World::start()?;
    /// # fn relax_row(_row: usize) {}
    /// # let mut row = 0;
    /// let tickets = world.alloc_one::<u64>()?;
    /// let pending = world.fetch_nbi(0, &tickets, FetchOp::Add(1))?;
    /// let ticket: u64 = loop {
    ///     if let Some(value) = pending.poll()? {
    ///         break value;
    ///     }
    ///     relax_row(row); // computes until the ticket has arrived
    ///     row += 1;
    /// };
    /// # Ok::<(), trunkline::Error>(())
    /// ```
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
            Some(FetchEntry::Free) | None => Err(Error::Argument("no fetch of this value is pending")),
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
            // The only error is an unknown context, which has no handle to end.
            let _ = self.context.fabric_calls().give_up(fetch);
        }
    }
}
