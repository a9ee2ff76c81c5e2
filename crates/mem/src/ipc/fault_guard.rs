//! A copy that stops where memory no longer exists, instead of killing the process: attached memory of another process disappears when that
//! process frees it or dies, even during a copy. Called by the kinds that attach memory.
//!
//! The kernel reports such an access by a signal (`SIGBUS`, or `SIGSEGV` for an unmapped address). The handler ends the copy if the fault is at
//! its one copying instruction; it passes all other signals to the handler that was installed before.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::OnceLock;

use super::error::CallFailure;
use super::mapping::cause_of;

const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// The previous actions, which the handler calls.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// Proof that the handler is installed. It stays until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultGuard(());

impl FaultGuard {
    /// Installs the handler, once per process.
    ///
    /// # Errors
    /// The system's error; `ENOSYS` on architectures without a guarded copy.
    pub(super) fn install() -> Result<Self, CallFailure> {
        if !machine::IS_KNOWN {
            return Err(CallFailure::System { call: "sigaction", code: libc::ENOSYS });
        }
        let before = [get(SIGNALS[0])?, get(SIGNALS[1])?];
        if BEFORE.set(before).is_ok() {
            let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            for signal in SIGNALS {
                set_handler(signal, handler as *const () as usize, flags)?;
            }
        }
        Ok(Self(()))
    }

    /// Returns whether the handler is still installed: another library may have replaced it.
    pub(super) fn is_in_place(self) -> bool {
        let ours = handler as *const () as usize;
        SIGNALS.iter().all(|signal| get(*signal).is_ok_and(|now| now.sa_sigaction == ours))
    }

    /// Copies bytes. Returns whether all of them were accessible; otherwise some may have been copied.
    ///
    /// # Safety
    /// If the bytes at `to` are mapped, the caller may write them and no reference to them exists. The bytes at `from` need not be mapped, but this
    /// process must not write them during the copy.
    pub(super) unsafe fn copy_guarded(self, to: usize, from: usize, len: usize) -> bool {
        let to = ptr::with_exposed_provenance_mut(to);
        let from = ptr::with_exposed_provenance(from);
        if !lets_in() {
            return false;
        }
        // SAFETY: the caller guarantees the conditions above; an access to an unmapped byte ends the copy.
        unsafe { machine::copy(to, from, len) == 0 }
    }
}

/// Returns whether the thread accepts both signals: a blocked fault signal kills the process. Checked before each copy, because a thread may
/// block them at any time.
fn lets_in() -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a null set changes nothing; the call fills a local variable.
    let code = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) };
    let blocks = |signal: &c_int| {
        // SAFETY: the closure runs only if `code == 0`, when the call above has filled in the mask.
        unsafe { libc::sigismember(mask.as_ptr(), *signal) != 0 }
    };
    code == 0 && !SIGNALS.iter().any(blocks)
}

fn get(signal: c_int) -> Result<libc::sigaction, CallFailure> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action changes nothing; the call fills a local variable.
    let code = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) };
    if code != 0 {
        return Err(cause_of("sigaction")(std::io::Error::last_os_error()));
    }
    // SAFETY: all zeros are a valid value, and the call has filled it in.
    Ok(unsafe { now.assume_init() })
}

fn set_handler(signal: c_int, to: usize, flags: c_int) -> Result<(), CallFailure> {
    // SAFETY: all zeros are a valid value, with an empty signal mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (to, flags);
    // SAFETY: the action is either the default or the handler below, which is safe to run at any time.
    match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(cause_of("sigaction")(std::io::Error::last_os_error())),
    }
}

/// Runs in the thread that receives the signal: takes no lock and allocates nothing.
extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` for this call (`SA_SIGINFO`).
    let is_fault = unsafe { (*info).si_code } > 0;
    // SAFETY: the kernel passes a valid `ucontext_t` for this call (`SA_SIGINFO`).
    if is_fault && unsafe { machine::end_copy(context) } {
        return;
    }
    let number = usize::from(signal == SIGNALS[1]);
    let before = BEFORE.get().and_then(|all| all.get(number));
    match before.map_or((libc::SIG_DFL, 0), |before| (before.sa_sigaction, before.sa_flags)) {
        (libc::SIG_IGN, _) if !is_fault => {}
        (libc::SIG_DFL | libc::SIG_IGN, _) => {
            // After the return, the faulting instruction faults again and kills the process by default.
            let _ = set_handler(signal, libc::SIG_DFL, 0);
            if !is_fault {
                // SAFETY: raises a signal in this thread; its default action kills the process.
                unsafe { libc::raise(signal) };
            }
        }
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with this flag the value is a function of this type, which was installed for this signal.
            let handler = unsafe {
                transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(handler)
            };
            handler(signal, info, context);
        }
        (handler, _) => {
            // SAFETY: without the flag the value is a function of this type.
            let handler = unsafe { transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine {
    use std::arch::global_asm;
    use std::ffi::c_void;

    pub(super) const IS_KNOWN: bool = true;

    // One instruction moves all bytes and keeps the number of remaining bytes in RCX, also when it is interrupted (Intel SDM, volume 2, REP).
    global_asm!(
        ".pushsection .text.trunkline_guarded_copy, \"ax\", @progbits",
        ".globl trunkline_guarded_copy",
        ".hidden trunkline_guarded_copy",
        ".type trunkline_guarded_copy, @function",
        "trunkline_guarded_copy:",
        ".cfi_startproc",
        "mov rcx, rdx",
        ".globl trunkline_guarded_copy_moves",
        ".hidden trunkline_guarded_copy_moves",
        "trunkline_guarded_copy_moves:",
        "rep movsb",
        ".globl trunkline_guarded_copy_ends",
        ".hidden trunkline_guarded_copy_ends",
        "trunkline_guarded_copy_ends:",
        "mov rax, rcx",
        "ret",
        ".cfi_endproc",
        ".size trunkline_guarded_copy, . - trunkline_guarded_copy",
        ".popsection",
    );

    unsafe extern "C" {
        fn trunkline_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
        static trunkline_guarded_copy_moves: u8;
        static trunkline_guarded_copy_ends: u8;
    }

    /// Copies bytes; returns the number of bytes not copied because an access faulted.
    ///
    /// # Safety
    /// As [`super::FaultGuard::copy_guarded`].
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
        // SAFETY: the caller guarantees the conditions above.
        unsafe { trunkline_guarded_copy(to, from, len) }
    }

    /// Makes the interrupted copy return, if the fault was in it; returns whether it was.
    ///
    /// # Safety
    /// `context` is the context of a running signal handler.
    pub(super) unsafe fn end_copy(context: *mut c_void) -> bool {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the caller guarantees a valid context, which only the running handler uses.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        let Some(at) = registers.get_mut(libc::REG_RIP as usize) else { return false };
        let moves = &raw const trunkline_guarded_copy_moves;
        let ends = &raw const trunkline_guarded_copy_ends;
        let is_copy = *at as usize == moves.addr();
        if is_copy {
            *at = ends.addr() as i64;
        }
        is_copy
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod machine {
    use std::ffi::c_void;

    pub(super) const IS_KNOWN: bool = false;

    /// # Safety
    /// Never called.
    pub(super) unsafe fn copy(_: *mut u8, _: *const u8, len: usize) -> usize {
        len
    }

    /// # Safety
    /// None is needed.
    pub(super) unsafe fn end_copy(_: *mut c_void) -> bool {
        false
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
#[allow(clippy::unwrap_used, reason = "a failed setup step ends the test")]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;

    const PAGE: usize = 4096;

    fn pages(protection: ProtFlags) -> usize {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), 2 * PAGE, protection, MapFlags::PRIVATE) };
        at.unwrap().expose_provenance()
    }

    #[test]
    fn thread_that_blocks_signals_later_copies_nothing() {
        let guard = FaultGuard::install().unwrap();
        let from = [7_u8; 64];
        let mut into = [0_u8; 64];
        let to = into.as_mut_ptr().expose_provenance();
        let copy = || {
            // SAFETY: both are arrays of this test.
            unsafe { guard.copy_guarded(to, from.as_ptr().expose_provenance(), 64) }
        };
        assert!(copy());
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the call fills a local variable.
        unsafe { libc::sigemptyset(mask.as_mut_ptr()) };
        // SAFETY: the set was filled in above.
        unsafe { libc::sigaddset(mask.as_mut_ptr(), libc::SIGBUS) };
        // SAFETY: the call reads the set, and changes the mask of this thread only.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, mask.as_ptr(), ptr::null_mut()) };
        assert!(!copy());
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, mask.as_ptr(), ptr::null_mut()) };
        assert!(copy());
    }

    #[test]
    fn copy_ends_at_unmapped_memory() {
        let guard = FaultGuard::install().unwrap();
        let from = pages(ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the page was mapped above.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(from).write_bytes(7, 2 * PAGE) };
        let mut into = [0_u8; 64];
        let to = into.as_mut_ptr().expose_provenance();
        // SAFETY: both ranges are memory of this test.
        assert!(unsafe { guard.copy_guarded(to, from + PAGE - 32, 64) });
        assert_eq!(into, [7; 64]);
        let second = ptr::with_exposed_provenance_mut(from + PAGE);
        // SAFETY: the range is mapped above, and no reference to it exists.
        unsafe { rustix::mm::mprotect(second, PAGE, rustix::mm::MprotectFlags::empty()) }.unwrap();
        into = [0; 64];
        // SAFETY: as above.
        assert!(!unsafe { guard.copy_guarded(to, from + PAGE - 32, 64) });
        assert_eq!((&into[..32], &into[32..]), (&[7; 32][..], &[0; 32][..]));
        // SAFETY: the target is not writable, which ends the copy.
        assert!(!unsafe { guard.copy_guarded(from + PAGE, to, 64) });
        for addr in [8, usize::MAX / 2] {
            // SAFETY: as above.
            assert!(!unsafe { guard.copy_guarded(to, addr, 64) });
        }
        assert!(guard.is_in_place());
    }

    #[test]
    fn truncated_file_ends_a_copy() {
        let guard = FaultGuard::install().unwrap();
        let file = rustix::fs::memfd_create("trunkline.test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * PAGE as u64).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at = unsafe {
            rustix::mm::mmap(ptr::null_mut(), 2 * PAGE, ProtFlags::READ, MapFlags::SHARED, &file, 0)
        };
        let at = at.unwrap().expose_provenance();
        let mut into = vec![1_u8; 2 * PAGE];
        let to = into.as_mut_ptr().expose_provenance();
        rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
        // SAFETY: an array of this test, and a mapping whose missing pages end the copy.
        assert!(!unsafe { guard.copy_guarded(to, at, 2 * PAGE) });
        assert!(into[..PAGE].iter().all(|byte| *byte == 0) && into[PAGE..].iter().all(|byte| *byte == 1));
    }

    #[test]
    fn file_truncated_during_a_copy_ends_it() {
        const LEN: usize = 16 << 20;
        let guard = FaultGuard::install().unwrap();
        let file = rustix::fs::memfd_create("trunkline.test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LEN as u64).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at =
            unsafe { rustix::mm::mmap(ptr::null_mut(), LEN, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
        let at = at.unwrap().expose_provenance();
        let copies = std::thread::spawn(move || {
            let mut into = vec![1_u8; LEN];
            let to = into.as_mut_ptr().expose_provenance();
            // SAFETY: an array of this thread, and a mapping whose missing pages end the copy.
            (0..u32::MAX).find(|_| !unsafe { guard.copy_guarded(to, at, LEN) })
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        rustix::fs::ftruncate(&file, 0).unwrap();
        assert!(copies.join().unwrap().is_some());
    }

    #[test]
    fn thread_that_blocks_signals_copies_nothing() {
        let guard = FaultGuard::install().unwrap();
        let copied = std::thread::spawn(move || {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: the call fills a local variable.
            unsafe { libc::sigfillset(all.as_mut_ptr()) };
            // SAFETY: the call changes the mask of this thread only, which ends after the test.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut()) };
            let mut into = [0_u8; 8];
            // SAFETY: the target is a local array; the source address is not mapped.
            unsafe { guard.copy_guarded(into.as_mut_ptr().expose_provenance(), 8, 8) }
        });
        assert!(!copied.join().unwrap());
    }

    #[test]
    fn other_faults_and_signals_keep_their_handlers() {
        FaultGuard::install().unwrap();
        for (signal, fault) in [(libc::SIGSEGV, true), (libc::SIGBUS, false)] {
            // SAFETY: the child takes no lock, and ends here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                if fault {
                    // SAFETY: the address is not mapped; the fault ends the child, as the test expects.
                    unsafe { ptr::with_exposed_provenance::<u8>(8).read_volatile() };
                } else {
                    // Rust's own handler was installed before; it treats the first signal as a fault that will repeat.
                    for _ in 0..2 {
                        // SAFETY: the signal ends the child.
                        unsafe { libc::raise(signal) };
                    }
                }
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: the process is a child of this test, and the pointer is a local variable.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{signal}: {status:#x}");
        }
    }
}
