//! C libraries that stand for rdma-core and for a GPU driver, compiled here and opened by the plugin in their place.
//! Their NIC moves bytes; their GPU memory has addresses that a processor cannot access.

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::net::opaque;
use crate::run::{Setting, scenario};

/// Compiles one of our sources to a library.
fn compile(folder: &Path, library: &str, source: &str, map: Option<&str>) -> Result<(), String> {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/gpu");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(folder.join(library));
    cc.arg(sources.join(source)).arg(format!("-Wl,-soname,{library}"));
    if let Some(map) = map {
        cc.arg(format!("-Wl,--version-script,{}", sources.join(map).display()));
    }
    let status = cc.status().map_err(|error| format!("no cc: {error}"))?;
    assert!(status.success(), "{source} is compiled");
    Ok(())
}

/// The folder of both libraries; or the reason why they cannot be built.
fn built() -> &'static Result<tempfile::TempDir, String> {
    static BUILT: OnceLock<Result<tempfile::TempDir, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        if !Path::new("/usr/include/infiniband/verbs.h").exists() {
            return Err("no infiniband/verbs.h (Debian: libibverbs-dev)".to_owned());
        }
        let folder = tempfile::tempdir().expect("a folder");
        compile(folder.path(), "libcuda.so.1", "fake_cuda.c", None)?;
        compile(folder.path(), "libibverbs.so.1", "fake_verbs.c", Some("fake_verbs.map"))?;
        Ok(folder)
    })
}

/// The first version of libfabric with dma-bufs.
const WITH_DMABUFS: u32 = 1 << 16 | 20;

/// The folder of the driver alone, for the libfabric provider that supports it; and libfabric's version.
fn provided() -> &'static Result<(tempfile::TempDir, u32), String> {
    static PROVIDED: OnceLock<Result<(tempfile::TempDir, u32), String>> = OnceLock::new();
    PROVIDED.get_or_init(|| {
        let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
        let library = trunkline_ofi::OfiLibrary::open(library.as_deref());
        let version = library.map_err(|missing| missing.to_string())?.library_version();
        let folder = tempfile::tempdir().expect("a folder");
        compile(folder.path(), "libcuda.so.1", "fake_cuda.c", None)?;
        strict_fi::place_in(folder.path()).expect("the provider that was built");
        Ok((folder, version))
    })
}

/// A scenario over the provider `strict`, which accesses the driver's memory and aborts a process that violates a rule.
/// `None`, a counted skip, without libfabric.
pub(crate) fn over_strict(name: &'static str) -> Option<Setting> {
    match provided() {
        Ok((folder, version)) => {
            let folder: OsString = folder.path().into();
            let setting = scenario(name).env_os("LD_LIBRARY_PATH", folder.clone());
            let setting = setting.env("TEST_DMABUFS", u32::from(*version >= WITH_DMABUFS));
            let setting = setting.env_os("FI_PROVIDER_PATH", folder).env("FI_PROVIDER", "strict");
            let library = std::env::var_os("TRUNKLINE_OFI_LIBRARY").into_iter();
            let setting = library.fold(setting, |setting, at| setting.env_os("TRUNKLINE_OFI_LIBRARY", at));
            Some(
                setting
                    .env("TRUNKLINE_FABRIC", "ofi:strict")
                    .env("FI_STRICT_HMEM", 1)
                    .env("FI_STRICT_ABORT", 1),
            )
        }
        Err(reason) => {
            trunkline_integration::skip_test(
                "memory of GPUs through the plugin over libfabric",
                "ofi",
                reason,
            );
            None
        }
    }
}

/// A scenario over both libraries; `None`, a counted skip, if they cannot be built.
pub(crate) fn over_fakes(name: &'static str) -> Option<Setting> {
    match built() {
        Ok(folder) => {
            let folder: OsString = folder.path().into();
            Some(scenario(name).env_os("LD_LIBRARY_PATH", folder).env("TRUNKLINE_FABRIC", "verbs"))
        }
        Err(reason) => {
            trunkline_integration::skip_test("memory of GPUs through the plugin", "gpu", reason);
            None
        }
    }
}

/// Opens one of the libraries, which the plugin has opened or will open.
fn open(name: &str) -> Library {
    // SAFETY: its functions do nothing when it is opened.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        .expect("a fake library in a folder of LD_LIBRARY_PATH")
}

/// The fakes as a scenario sees them.
pub(crate) struct Fakes {
    cuda: Library,
    /// `None` over libfabric.
    verbs: Option<Library>,
}

impl Fakes {
    pub(crate) fn open() -> Self {
        let is_verbs = std::env::var("TRUNKLINE_FABRIC").as_deref() == Ok("verbs");
        Self { cuda: open("libcuda.so.1"), verbs: is_verbs.then(|| open("libibverbs.so.1")) }
    }

    /// Whether dma-bufs are registered, according to the versions of the libraries.
    pub(crate) fn has_dmabufs() -> bool {
        std::env::var("TEST_DMABUFS").as_deref() != Ok("0")
    }

    /// Whether the NIC is a fake that counts its operations.
    pub(crate) fn counts(&self) -> bool {
        self.verbs.is_some()
    }

    fn verbs(&self) -> &Library {
        self.verbs.as_ref().expect("a NIC that counts")
    }

    /// A counter of the NIC; 0 if it does not count.
    fn of_nic(&self, name: &CStr) -> i32 {
        self.verbs.as_ref().map_or(0, |verbs| Self::number(verbs, name))
    }

    /// Allocates memory of the GPU, or managed memory.
    pub(crate) fn allocate(&self, len: usize, managed: bool) -> Device<'_> {
        // SAFETY: the function's type.
        let allocate = unsafe {
            self.cuda.get::<unsafe extern "C" fn(usize, c_int) -> *mut c_void>(b"fake_allocate").expect("it")
        };
        // SAFETY: any size.
        let at = unsafe { allocate(len, managed.into()) };
        assert!(!at.is_null(), "memory of the fake");
        Device { fakes: self, addr: at.expose_provenance(), len }
    }

    fn number(library: &Library, name: &CStr) -> i32 {
        // SAFETY: these functions have no argument, and return a number.
        let ask = unsafe { library.get::<unsafe extern "C" fn() -> c_int>(name.to_bytes()) }.expect("it");
        // SAFETY: as above.
        unsafe { ask() }
    }

    /// Drops all traffic from and to a device, except its traffic to itself.
    pub(crate) fn cut(&self, device: c_int) {
        // SAFETY: the function's type.
        let cut = unsafe { self.verbs().get::<unsafe extern "C" fn(c_int)>(b"fake_cut") }.expect("it");
        // SAFETY: a number of a device.
        unsafe { cut(device) };
    }

    /// Whether a device delays bytes that it should write into memory of the GPU.
    pub(crate) fn holds(&self, device: c_int) -> bool {
        // SAFETY: the function's type.
        let ask =
            unsafe { self.verbs().get::<unsafe extern "C" fn(c_int) -> c_int>(b"fake_holds") }.expect("it");
        // SAFETY: a number of a device.
        unsafe { ask(device) != 0 }
    }

    /// Reads of GPU memory by the NIC, which are flushes.
    pub(crate) fn reads_of_device(&self) -> i32 {
        self.of_nic(c"fake_device_reads")
    }

    /// Reads of memory of the host.
    pub(crate) fn reads_of_host(&self) -> i32 {
        self.of_nic(c"fake_host_reads")
    }

    /// Number of registered dma-bufs.
    pub(crate) fn dmabufs(&self) -> i32 {
        self.of_nic(c"fake_dmabufs")
    }

    /// Number of dma-bufs that the driver has exported.
    pub(crate) fn exported(&self) -> i32 {
        Self::number(&self.cuda, c"fake_exported")
    }

    /// Exports whole pages, as NCCL does for `regMrDmaBuf`.
    pub(crate) fn export(&self, addr: usize, len: usize) -> c_int {
        type Export = unsafe extern "C" fn(*mut c_int, u64, usize, u32, u64) -> c_int;
        // SAFETY: the function's type.
        let export =
            unsafe { self.cuda.get::<Export>(b"cuMemGetHandleForAddressRange") }.expect("the function");
        let mut fd = -1;
        // SAFETY: a place for the descriptor.
        assert_eq!(unsafe { export(&raw mut fd, addr as u64, len, 1, 0) }, 0);
        fd
    }
}

/// Memory of the GPU.
#[derive(Clone, Copy)]
pub(crate) struct Device<'a> {
    fakes: &'a Fakes,
    pub(crate) addr: usize,
    pub(crate) len: usize,
}

impl Device<'_> {
    /// The address of its bytes that the processor can access.
    fn bytes(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= self.len);
        // SAFETY: the function's type.
        let find = unsafe {
            self.fakes
                .cuda
                .get::<unsafe extern "C" fn(*mut c_void) -> *mut c_char>(b"fake_bytes")
                .expect("the function")
        };
        // SAFETY: an address that the fake has returned.
        unsafe { find(opaque(self.addr + at)) }.cast()
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.bytes(at, bytes.len());
        // SAFETY: both ranges have `bytes.len()` bytes, and no reference to the target exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = self.bytes(at, len);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Whether the driver was requested to complete synchronous copies before they return.
    pub(crate) fn is_synced(&self) -> bool {
        // SAFETY: the function's type.
        let ask = unsafe {
            self.fakes.cuda.get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"fake_is_synced").expect("it")
        };
        // SAFETY: an address that the fake has returned.
        unsafe { ask(opaque(self.addr)) != 0 }
    }
}
