//! Counter words with one writer thread at a time and any number of readers, in ordinary memory or on a page that other processes map. Used for
//! statistics; no decision may depend on them.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::PublishedPage;

/// `N` words of 8 bytes. Cheap to clone; the memory stays until the last clone is dropped.
#[derive(Clone)]
pub struct CounterWords<const N: usize> {
    addr: usize,
    #[expect(dead_code, reason = "held so that the words stay mapped")]
    keep: Arc<dyn Any + Send + Sync>,
}

/// Words aligned to two cache lines, so that no other data shares a line with them.
#[repr(align(128))]
struct PaddedWords<const N: usize>([AtomicU64; N]);

impl<const N: usize> CounterWords<N> {
    /// Creates zeroed words that only this process can read.
    #[must_use]
    pub fn heap() -> Self {
        let owner = Arc::new(PaddedWords([const { AtomicU64::new(0) }; N]));
        let addr = ptr::from_ref(&owner.0).expose_provenance();
        Self { addr, keep: owner }
    }

    /// Returns the words of a page at `offset`, in bytes; `None` unless they lie inside the page and are aligned.
    #[must_use]
    pub fn of_page(page: &Arc<PublishedPage>, offset: usize) -> Option<Self> {
        Some(Self { addr: page.word_address(offset, N.checked_mul(8)?)?, keep: Arc::clone(page) as _ })
    }
}

impl<const N: usize> Deref for CounterWords<N> {
    type Target = [AtomicU64; N];

    #[inline]
    fn deref(&self) -> &[AtomicU64; N] {
        // SAFETY: the constructors checked that `N` aligned words lie at the address, and `keep` keeps them mapped; every access to them is atomic.
        unsafe { &*ptr::with_exposed_provenance(self.addr) }
    }
}

impl<const N: usize> fmt::Debug for CounterWords<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn clones_share_their_words() {
        let words = CounterWords::<4>::heap();
        let other = words.clone();
        words[3].store(7, Ordering::Relaxed);
        drop(words);
        assert_eq!(other[3].load(Ordering::Relaxed), 7);
        assert_eq!(other[0].load(Ordering::Relaxed), 0);
    }
}
