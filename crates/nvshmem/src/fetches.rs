//! Values that atomics have fetched, on their way to the kernels that wait for them: each goes to a place in the memory of this PE, and its flag after it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use trunkline_choose::Running;
use trunkline_engine::rma::{ContextId, Fetch};
use trunkline_proto::wire::rma::word::Width;

use crate::error::{CallError, Result};
use crate::memory::Place;

/// One that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Awaited {
    pub(crate) fetch: Fetch,
    /// Where the value goes, and behind it the flag.
    pub(crate) to: Place,
    pub(crate) flag: u64,
}

/// Those of one lane, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Fetches(Mutex<VecDeque<Awaited>>);

impl Fetches {
    /// One more.
    pub(crate) fn push(&self, awaited: Awaited) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(awaited);
    }

    /// Brings what is known to where it goes. Whether there was any.
    ///
    /// # Errors
    /// A word was not there, or a PE is lost: told once for each.
    pub(crate) fn deliver(&self, job: &Running, id: ContextId) -> Result<bool> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut moved, mut at) = (false, 0);
        while let Some(awaited) = all.get(at) {
            match job.found(id, awaited.fetch) {
                Ok(None) => at += 1,
                Ok(Some(value)) => {
                    let Some(Awaited { to, flag, .. }) = all.remove(at) else { break };
                    moved = true;
                    let mut words = [(0, value), (8, flag)];
                    if crate::planted("nvshmem-flags-before-values") {
                        words.reverse();
                    }
                    let placed = words.iter().all(|&(at, word)| {
                        if at == 0 && crate::planted("nvshmem-flags-before-values") {
                            std::thread::sleep(std::time::Duration::from_millis(5));
                        }
                        to.store(at, Width::Eight, word)
                    });
                    if !placed {
                        return Err(CallError::Argument("the place of a fetched value cannot be written"));
                    }
                }
                Err(error) => {
                    all.remove(at);
                    return Err(error.into());
                }
            }
        }
        Ok(moved)
    }

    /// None is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
