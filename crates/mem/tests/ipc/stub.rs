//! C libraries that replace the drivers of vendors and libxpmem, compiled here and opened by the product. `stub/` has
//! one source file per library. Also the memory file that contains the devices of all drivers, and the folder that
//! replaces XPMEM's module.

use std::ffi::{CString, c_char};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use libloading::os::unix::Library;

/// Kinds whose processes run over a stub, with its source and the file name by which the product opens the library.
const STUBS: [(&str, &str, &str); 5] = [
    ("xpmem", "xpmem.c", "libxpmem.so.0"),
    ("cuda", "cuda.c", "libcuda.so.1"),
    ("cuda_segment", "cuda.c", "libcuda.so.1"),
    ("hip", "hip.c", "libamdhip64.so.7"),
    ("ze", "ze.c", "libze_loader.so.1"),
];

/// Returns the library that a kind uses.
pub(crate) fn library_of(kind: &str) -> Option<&'static str> {
    let kind = kind.strip_prefix("native_").unwrap_or(kind);
    STUBS.iter().find(|(name, ..)| *name == kind).map(|(.., library)| *library)
}

/// Returns a folder with all stubs, or the reason why they cannot be built.
fn built() -> &'static Result<tempfile::TempDir, String> {
    static BUILT: OnceLock<Result<tempfile::TempDir, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        for (_, source, library) in STUBS {
            let at = folder.path().join(library);
            if !at.exists() {
                compile(source, &at)?;
            }
        }
        Ok(folder)
    })
}

fn compile(source: &str, to: &Path) -> Result<(), String> {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/ipc/stub").join(source);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread", "-o"]).arg(to).arg(from);
    let status = cc.status().map_err(|error| format!("cannot run cc: {error}"))?;
    assert!(status.success(), "cc cannot compile {source}");
    Ok(())
}

/// Reports that a test was skipped, with the reason, in the log that `./test` counts. Fails instead if the test is
/// required (`TRUNKLINE_REQUIRE` names it).
pub(crate) fn skip(name: &str, word: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|one| one.trim() == word), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}

/// Whether a kind can run here: it needs no stub, or its stub works. A skip is counted.
pub(crate) fn is_there(kind: &str) -> bool {
    match built() {
        Err(reason) if library_of(kind).is_some() => {
            skip(&format!("{kind}, over a stub of its driver"), "cc", reason);
            false
        }
        _ if kind == "xpmem" => match faults() {
            Ok(()) => true,
            Err(reason) => {
                skip("xpmem, over a stub of its library", "userfaultfd", &reason);
                false
            }
        },
        _ => true,
    }
}

/// Checks that this process can handle page faults in user mode, as XPMEM's stub needs, on a supported processor.
fn faults() -> Result<(), String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("XPMEM is for x86-64 only".to_owned());
    }
    if !Path::new(SHM).is_dir() {
        return Err(format!("{SHM} does not exist"));
    }
    let flags = libc::O_CLOEXEC | 1; // UFFD_USER_MODE_ONLY
    // SAFETY: creates a descriptor, or returns an error.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return Err(format!("userfaultfd: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was created above, and no other code owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(())
}

/// A folder whose files are in memory.
const SHM: &str = "/dev/shm";

/// Replaces XPMEM's module in a world: a folder with files of its processes.
#[derive(Clone)]
pub(crate) struct Module {
    folder: Arc<tempfile::TempDir>,
}

impl Module {
    pub(crate) fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::Builder::new().prefix("trunkline.xpmem").tempdir_in(SHM).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Self { folder: Arc::new(folder) }
    }

    /// Makes a process use this module.
    pub(crate) fn give(&self, command: &mut Command) {
        let libraries = built().as_ref().expect("`is_there` has built the stubs").path();
        command.env("LD_LIBRARY_PATH", libraries).env("STUB_XPMEM", self.folder.path());
    }

    /// Marks a process as dead: memory of it that other processes have attached is removed.
    pub(crate) fn bury(&self, pid: u32) {
        let of = format!("{pid}.");
        for file in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
            if file.file_name().to_string_lossy().starts_with(&of) {
                std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(0).unwrap();
                std::fs::remove_file(file.path()).unwrap();
            }
        }
    }
}

/// The device of a world.
pub(crate) struct StubDevice {
    file: OwnedFd,
}

impl StubDevice {
    /// Creates a device with that capacity, whose first allocation has that id.
    pub(crate) fn new(capacity: u64, first: u64) -> Self {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("trunkline.stub", flags).unwrap();
        rustix::fs::ftruncate(&file, 1 << 46).unwrap();
        let head: Vec<u8> =
            [capacity, first, 65536, 1].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        assert_eq!(rustix::io::pwrite(&file, &head, 0), Ok(32));
        Self { file }
    }

    /// Makes a process use this device.
    pub(crate) fn give(&self, command: &mut Command) {
        let at = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        let folder = built().as_ref().expect("`is_there` has built the stubs").path();
        command.env("LD_LIBRARY_PATH", folder).env("STUB_DEVICE", at);
    }
}

/// Opens the library of a kind again, to call its additional functions.
pub(crate) fn open(library: &str) -> Library {
    // SAFETY: the product has already opened it; otherwise its constructors run as in any program.
    unsafe { Library::new(library) }.unwrap()
}

/// Calls a function of a stub that returns a number.
pub(crate) fn number(library: &str, name: &str, argument: u64) -> u64 {
    let library = std::mem::ManuallyDrop::new(open(library));
    let symbol = CString::new(name).unwrap();
    // SAFETY: these functions of a stub take one number, or nothing, and return a number.
    let ask = unsafe { library.get::<unsafe extern "C" fn(u64) -> u64>(symbol.as_bytes_with_nul()) };
    let ask = ask.unwrap();
    // SAFETY: as above; a function without arguments ignores the number.
    unsafe { ask(argument) }
}

/// Lets a stub allocate memory of some sort; returns its address.
pub(crate) fn make(library: &str, sort: &str, len: u64) -> Option<u64> {
    let library = std::mem::ManuallyDrop::new(open(library));
    let sort = CString::new(sort).unwrap();
    // SAFETY: this function of a stub takes a text and a number, and returns a number.
    let make = unsafe { library.get::<unsafe extern "C" fn(*const c_char, u64) -> u64>(b"stub_make\0") };
    let make = make.unwrap();
    // SAFETY: the text ends with zero, and lives until the call returns.
    Some(unsafe { make(sort.as_ptr(), len) }).filter(|at| *at != 0)
}
