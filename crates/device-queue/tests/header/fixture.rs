//! The device header as a library of this process, compiled by an installed C++ compiler.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;
use trunkline_device_queue::QueueView;

/// The options of every compiler. The header must compile without a warning.
const FLAGS: [&str; 8] =
    ["-std=c++17", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fno-exceptions", "-fno-rtti", "-fPIC"];

type New = unsafe extern "C" fn(*const QueueView, u32, *mut u64, *mut u64, *mut u64) -> *mut c_void;
type Do = unsafe extern "C" fn(*mut c_void, u64, *const u64, *mut u64);
type Step = unsafe extern "C" fn(*mut c_void, *const c_char);

/// Returns a function of a library of ours; the caller states its type.
pub(crate) fn symbol<T: Copy>(library: &Library, name: &str) -> T {
    // SAFETY: each name here is that of a function whose source has the type that is written at the call.
    *unsafe { library.get::<T>(name.as_bytes()) }.unwrap()
}

/// Words of a result.
pub(crate) type Out = [u64; 8];

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/header")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reports that a test was skipped, with the reason, in the log that `./test` counts.
pub(crate) fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}

/// Compiles a file of this folder; `false` if there is no such compiler.
pub(crate) fn compile(compiler: &str, source: &str, more: &[&str]) -> bool {
    let include = root().join("include");
    let mut command = Command::new(compiler);
    command.args(FLAGS).arg("-I").arg(include).args(more).arg(folder().join(source));
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => panic!("{compiler}: {error}"),
        Ok(output) => {
            assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
    }
}

/// Compiles a file of this folder to a library, with that optimisation level; `None` if there is no compiler.
pub(crate) fn library(source: &str, level: &str) -> Option<Library> {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("library.so");
    let there = compile("c++", source, &[level, "-shared", "-o", to.to_str().unwrap()]);
    // SAFETY: the library was just built from our own source; its constructors do nothing.
    there.then(|| unsafe { Library::new(&to) }.unwrap())
}

/// The library.
pub(crate) struct Fixture {
    library: Library,
    act: Do,
    /// Makes tests take turns, because the library's steps are global and it is loaded once.
    turn: Mutex<()>,
}

/// Returns the library; `None`, after a counted skip, if there is no compiler.
pub(crate) fn fixture(test: &str) -> Option<&'static Fixture> {
    static MADE: OnceLock<Option<Fixture>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let library = library("fixture.cpp", "-O1")?;
        let act = symbol::<Do>(&library, "twin_do");
        Some(Fixture { library, act, turn: Mutex::new(()) })
    });
    if made.is_none() {
        skip(test, "no C++ compiler (Debian: g++)");
    }
    made.as_ref()
}

/// The header's side of a world.
pub(crate) struct Twin<'f> {
    fixture: &'f Fixture,
    at: *mut c_void,
}

/// Runs `run`, and calls `step` at each step that the header of a library reaches meanwhile; `step` may use the header.
pub(crate) fn with_steps<T>(
    library: &Library,
    function: &str,
    step: impl Fn(&str),
    run: impl FnOnce() -> T,
) -> T {
    unsafe extern "C" fn call(context: *mut c_void, name: *const c_char) {
        // SAFETY: `context` is the reference that is passed below.
        let step = unsafe { *context.cast::<&dyn Fn(&str)>() };
        // SAFETY: the name is a string literal of the header.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        step(name.to_str().unwrap());
    }
    type Set = unsafe extern "C" fn(Option<Step>, *mut c_void);
    let mut step: &dyn Fn(&str) = &step;
    let set = symbol::<Set>(library, function);
    // SAFETY: the reference lives until the callback is removed.
    unsafe { set(Some(call), (&raw mut step).cast()) };
    let result = run();
    // SAFETY: a null pointer removes the callback.
    unsafe { set(None, std::ptr::null_mut()) };
    result
}

impl Fixture {
    /// Excludes other tests while the guard lives.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the header's side of a world with these words.
    pub(crate) fn twin(
        &self,
        views: &[QueueView],
        channel: *mut u64,
        slots: *mut u64,
        group: *mut u64,
    ) -> Twin<'_> {
        let new = symbol::<New>(&self.library, "twin_new");
        // SAFETY: the caller's words outlive the twin, which copies the views.
        let at = unsafe { new(views.as_ptr(), views.len() as u32 / 2, channel, slots, group) };
        Twin { fixture: self, at }
    }

    /// Sets the memory that no atomic may change from now on, as pairs of first address and end.
    pub(crate) fn guard(&self, ranges: &[[u64; 2]]) {
        let guard = symbol::<unsafe extern "C" fn(*const [u64; 2], u32)>(&self.library, "twin_guard");
        // SAFETY: the call copies the given number of pairs.
        unsafe { guard(ranges.as_ptr(), ranges.len() as u32) };
    }

    /// Returns the number of violations.
    pub(crate) fn changes(&self) -> u64 {
        let changes = symbol::<unsafe extern "C" fn() -> u64>(&self.library, "twin_changes");
        // SAFETY: the call only reads a number.
        unsafe { changes() }
    }

    pub(crate) fn is_usable(&self, view: &QueueView) -> bool {
        let is_usable =
            symbol::<unsafe extern "C" fn(*const QueueView) -> u32>(&self.library, "twin_is_usable");
        // SAFETY: the call only reads the view.
        unsafe { is_usable(view) != 0 }
    }

    /// Returns the header's offsets and numbers.
    pub(crate) fn layout(&self) -> Vec<u64> {
        let mut words = [0; 128];
        let layout = symbol::<unsafe extern "C" fn(*mut u64) -> u32>(&self.library, "twin_layout");
        // SAFETY: the call writes fewer words than the buffer has.
        let count = unsafe { layout(words.as_mut_ptr()) };
        words[..count as usize].to_vec()
    }

    /// Runs `run`, and calls `step` at each step that the header reaches meanwhile.
    pub(crate) fn with_steps<T>(&self, step: impl Fn(&str), run: impl FnOnce() -> T) -> T {
        with_steps(&self.library, "twin_steps", step, run)
    }
}

impl Twin<'_> {
    /// Performs an act. Returns its results.
    pub(crate) fn act(&self, act: u64, args: &[u64; 10]) -> Out {
        let mut out = [0; 8];
        // SAFETY: both arrays have the number of words that every act reads and writes.
        unsafe { (self.fixture.act)(self.at, act, args.as_ptr(), out.as_mut_ptr()) };
        out
    }
}

impl Drop for Twin<'_> {
    fn drop(&mut self) {
        let free = symbol::<unsafe extern "C" fn(*mut c_void)>(&self.fixture.library, "twin_free");
        // SAFETY: the pointer is a twin, which is freed only here.
        unsafe { free(self.at) };
    }
}
