//! The end of the library: what the process keeps for it is closed, and given back unless a call may still come. Called by
//! the dynamic linker and the C library; decides nothing of what is closed.
//!
//! The dynamic linker runs `.fini_array` both when the library is unloaded and when the process ends, and the two are not
//! alike. Nobody calls a library that is being unloaded: its code goes next. While a process ends, its other threads go on
//! until the very last, and may be inside a call. What tells the two apart is `atexit`: the C library runs its functions
//! before `.fini_array` when the process ends, and after ours when the library is unloaded.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use trunkline_proto::reserve::{OutOfMemory, try_vec};

use crate::world::{self, PluginWorld};

/// Memory for a value that is to be kept: reserved before the value is made, which may be hard to take back.
pub(crate) struct ReservedPlace<T>(Vec<T>);

impl<T> ReservedPlace<T> {
    /// Room for one.
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        Ok(Self(try_vec(1)?))
    }
}

/// A value that is made once, lent to every call, and given back when the library is unloaded.
pub(crate) struct UnloadCell<T: 'static> {
    /// Null before it is made, and after it was given back; else from a `Box`.
    at: AtomicPtr<T>,
    /// The process ends, so it is never given back.
    ending: AtomicBool,
}

impl<T: Send + Sync> UnloadCell<T> {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self { at: AtomicPtr::new(std::ptr::null_mut()), ending: AtomicBool::new(false) }
    }

    /// The value, if it was made.
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a value from a `Box` that is given back only once nobody calls any more.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }

    /// Keeps a value, in memory that was reserved for it. Of two at a time one is lost: the caller lets in one.
    pub(crate) fn keep_value(&self, reserved: ReservedPlace<T>, value: T) -> &'static T {
        let ReservedPlace(mut place) = reserved;
        place.clear();
        place.push(value);
        // One value and no room beside it, so it is given back as a `Box` of one.
        let all = Box::leak(place.into_boxed_slice());
        let value = &mut all[0];
        self.at.store(value, Ordering::Release);
        value
    }

    /// It is kept for ever.
    fn keep_forever(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// Gives the value back, unless the process ends.
    ///
    /// # Safety
    /// Nobody uses what `get` and `put` returned, or calls them, any more, if the process does not end.
    unsafe fn give_back(&self) {
        if self.ending.load(Ordering::Acquire) {
            return;
        }
        let at = self.at.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !at.is_null() {
            // SAFETY: from a `Box`, and nobody's any more, as the caller vouches.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

/// Has the C library say when the process ends. If it cannot, that is taken for said.
pub(crate) fn watch_for_the_end(kept: &UnloadCell<PluginWorld>) {
    // SAFETY: the function is there as long as the library is, after which the C library does not call it.
    if unsafe { libc::atexit(process_ends) } != 0 {
        kept.keep_forever();
    }
}

/// Runs when the process ends, and, after [`fini`], when the library is unloaded.
extern "C" fn process_ends() {
    world::world_cell().keep_forever();
}

/// Runs when the library is unloaded or the process ends.
extern "C" fn fini() {
    // A panic here would abort the process that unloads us.
    let _ = std::panic::catch_unwind(|| {
        if world::end_world() {
            // SAFETY: this is the process that made it; if it does not end, the library is unloaded, and whoever was inside
            // it would come back to code that is not there any more.
            unsafe { world::world_cell().give_back() };
        }
    });
}

#[used]
// SAFETY: the section holds pointers to functions without arguments, which the dynamic linker calls once at unload.
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;
