//! Frees the plugin's process-wide state at the end of the library, unless a call may still arrive. Called by the
//! dynamic linker and the C library; `world` decides which objects are closed.
//!
//! The dynamic linker runs `.fini_array` both when the library is unloaded and when the process ends, and the two
//! cases differ. A library that is being unloaded receives no further calls: its code is unmapped next. While a
//! process ends, its other threads continue until the very last moment, and may be inside a call. Functions
//! registered with `atexit` distinguish the two. The C library runs them before `.fini_array` when the process ends,
//! and after ours when the library is unloaded.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use trunkline_proto::reserve::{OutOfMemory, try_vec};

use crate::world::{self, PluginWorld};

/// Memory for a value, reserved before the value is made: a failed allocation afterwards would have to undo the
/// value.
pub(crate) struct ReservedPlace<T>(Vec<T>);

impl<T> ReservedPlace<T> {
    /// Reserves memory for one value.
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        Ok(Self(try_vec(1)?))
    }
}

/// A cell for a value that is made once, lent to every call, and freed when the library is unloaded.
pub(crate) struct UnloadCell<T: 'static> {
    /// Null before the value is made, and after it was freed; otherwise from a `Box`.
    at: AtomicPtr<T>,
    /// Whether the process ends, so that the value is never freed.
    ending: AtomicBool,
}

impl<T: Send + Sync> UnloadCell<T> {
    /// Creates an empty cell.
    pub(crate) const fn new() -> Self {
        Self { at: AtomicPtr::new(std::ptr::null_mut()), ending: AtomicBool::new(false) }
    }

    /// Returns the value, if it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or from a `Box`, which `give_back` frees only when no call uses the value any more.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }

    /// Stores a value in memory that was reserved for it. Concurrent calls would leak all values but one: the caller
    /// serialises them.
    pub(crate) fn keep_value(&self, reserved: ReservedPlace<T>, value: T) -> &'static T {
        let ReservedPlace(mut place) = reserved;
        place.clear();
        place.push(value);
        // The vector has one value and no spare capacity, so it can be freed as a `Box` of one value.
        let all = Box::leak(place.into_boxed_slice());
        let value = &mut all[0];
        self.at.store(value, Ordering::Release);
        value
    }

    /// Keeps the value until the process has ended.
    fn keep_forever(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Frees the value, unless the process ends.
    ///
    /// # Safety
    /// If the process does not end, no thread uses a value that `get` or `keep_value` returned, and no thread calls
    /// them any more.
    unsafe fn give_back(&self) {
        if self.ending.load(Ordering::Acquire) {
            return;
        }
        let at = self.at.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !at.is_null() {
            // SAFETY: from a `Box` (`keep_value`), and no thread uses it any more, by the contract of this function.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

/// Registers `process_ends` with the C library. If that fails, the value is kept as if the process were ending.
pub(crate) fn watch_for_the_end(kept: &UnloadCell<PluginWorld>) {
    // SAFETY: `process_ends` is valid while the library is loaded; the C library does not call it after that.
    if unsafe { libc::atexit(process_ends) } != 0 {
        kept.keep_forever();
    }
}

/// Called when the process ends, and, after [`fini`], when the library is unloaded.
extern "C" fn process_ends() {
    world::world_cell().keep_forever();
}

/// Called when the library is unloaded or the process ends.
extern "C" fn fini() {
    // A panic here would abort the process that unloads the library.
    let _ = std::panic::catch_unwind(|| {
        if world::end_world() {
            // SAFETY: this process made the value. If the process does not end, the library is being unloaded, and no
            // thread can be inside a call: it would return to unmapped code.
            unsafe { world::world_cell().give_back() };
        }
    });
}

#[used]
// SAFETY: the section holds pointers to functions without arguments, which the dynamic linker calls once at unload.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;
