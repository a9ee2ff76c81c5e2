//! libfabric, opened at run time by the versions of its symbols. Opened once per fabric; never unloaded, because its providers may have threads
//! and handlers in this process.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_void};
use std::mem::{MaybeUninit, transmute};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::NonNull;

use trunkline_sys::ofi::{self, API, Calls, LIBRARY, VERSIONS};

use crate::handlers;

/// The first interface version with dma-buf registration.
const WITH_DMABUF: u32 = ofi::version(1, 20);

/// Why no libfabric can be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfiUnavailable {
    /// It is not installed.
    #[error("{name} cannot be opened ({why}); Debian: package libfabric1")]
    Library {
        /// The library's name.
        name: String,
        /// The linker's error.
        why: String,
    },
    /// It is too old.
    #[error("libfabric has no {symbol} of version {version}; it is too old, install 1.17 or later")]
    Symbol {
        /// The function.
        symbol: String,
        /// The version of its symbol.
        version: String,
    },
}

/// The functions of libfabric.
pub struct OfiLibrary {
    calls: Calls,
}

/// Fills [`Calls`]: each function by its symbol.
macro_rules! load {
    ($find:expr; $($field:ident $symbol:literal $kind:ident)*) => { Calls {
        // SAFETY: the symbol of this name and version is a function of the field's type, which `cargo xtask bindings`
        // compares with the library's header.
        $($field: unsafe { transmute::<NonNull<c_void>, ofi::$kind>($find($symbol)?) },)*
    } };
}

impl OfiLibrary {
    /// Opens the system's libfabric, or the file at `instead`. Users name that by the environment variable
    /// `TRUNKLINE_OFI_LIBRARY`, which this function does not read. The process's signal handlers are restored.
    ///
    /// # Errors
    /// [`OfiUnavailable`].
    pub fn open(instead: Option<&OsStr>) -> Result<Self, OfiUnavailable> {
        let name = instead.map_or_else(|| LIBRARY.to_string_lossy().into_owned().into(), OsStr::to_owned);
        let open = || {
            // SAFETY: the library's constructors run as in any program that is linked with it. Its symbols are not visible to other libraries.
            unsafe { libloading::os::unix::Library::new(&name) }
        };
        // Constructors of libraries below libfabric may replace signal handlers.
        let library = handlers::with_handlers_kept(open);
        // Never closed, because threads of providers may still run its code.
        let handle = library
            .map_err(|error| OfiUnavailable::Library {
                name: name.to_string_lossy().into_owned(),
                // The linker's text is the source of this error, not part of its message.
                why: error.source().map_or(error.to_string(), ToString::to_string),
            })?
            .into_raw();
        let find = |symbol: &str| find_symbol(handle, symbol);
        let calls = load!(find;
            getinfo "fi_getinfo" Getinfo freeinfo "fi_freeinfo" Freeinfo dupinfo "fi_dupinfo" Dupinfo
            fabric "fi_fabric" OpenFabric open "fi_open" Open version "fi_version" Version
            strerror "fi_strerror" Strerror tostr "fi_tostr" ToStr tostr_r "fi_tostr_r" ToStrR
        );
        Ok(Self { calls })
    }

    /// Wraps a table of functions.
    ///
    /// # Safety
    /// The functions, and those in the tables of their results, behave as libfabric specifies.
    #[must_use]
    pub unsafe fn from_calls(calls: Calls) -> Self {
        Self { calls }
    }

    /// Returns the path of the opened file, if the linker knows it.
    #[must_use]
    pub fn file_path(&self) -> Option<PathBuf> {
        let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the call accepts any address, and writes to a local variable.
        let known = unsafe { libc::dladdr(self.calls.version as *const c_void, found.as_mut_ptr()) };
        // SAFETY: all zeros are a valid value, a null pointer and numbers.
        let name = unsafe { found.assume_init() }.dli_fname;
        if known == 0 || name.is_null() {
            return None;
        }
        // SAFETY: the linker's text ends with zero, and stays valid because the library is never closed.
        let name = unsafe { CStr::from_ptr(name) };
        Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
    }

    /// Returns the version of the library's interface: `major << 16 | minor`.
    #[must_use]
    pub fn library_version(&self) -> u32 {
        // SAFETY: the call takes no arguments and is valid at any time.
        unsafe { (self.calls.version)() }
    }

    /// Returns the interface version to request: the version of this crate's structures, or the first one with dma-buf registration if the library
    /// has it. Fields of that version behind this crate's structures are zeros wherever a structure is passed.
    #[must_use]
    pub fn requested_version(&self) -> u32 {
        if self.library_version() >= WITH_DMABUF { WITH_DMABUF } else { API }
    }

    #[inline]
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }
}

/// Returns whether dma-bufs can be registered with objects opened for that interface version.
pub(crate) fn has_dmabuf(api: u32) -> bool {
    api >= WITH_DMABUF
}

/// Returns the symbol in the version that this crate's types are for.
fn find_symbol(handle: *mut c_void, symbol: &str) -> Result<NonNull<c_void>, OfiUnavailable> {
    let missing = |version: &CStr| OfiUnavailable::Symbol {
        symbol: symbol.to_owned(),
        version: version.to_string_lossy().into_owned(),
    };
    let known = VERSIONS.iter().find(|(name, _)| name.to_bytes() == symbol.as_bytes());
    let Some((name, version)) = known else { return Err(missing(c"of no known kind")) };
    // SAFETY: the handle is of a library that is never closed, and both texts end with zero.
    // By version, because libfabric keeps old versions of a symbol with other structures, and `dlsym` returns the newest.
    let at = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    NonNull::new(at).ok_or_else(|| missing(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_version() {
        // Every field of the table is a pointer.
        assert_eq!(size_of::<Calls>() / size_of::<usize>(), VERSIONS.len());
    }

    #[test]
    fn missing_libraries_and_symbols_are_named() {
        let error = OfiLibrary::open(Some(OsStr::new("/no/such/library.so"))).err().unwrap().to_string();
        assert!(error.contains("/no/such/library.so") && error.contains("package libfabric1"), "{error}");
        // The C library does not have libfabric's symbols.
        let error = OfiLibrary::open(Some(OsStr::new("libc.so.6"))).err().unwrap().to_string();
        assert!(error.contains("fi_getinfo") && error.contains("FABRIC_1.3"), "{error}");
    }

    #[test]
    fn dmabufs_need_interface_version_1_20() {
        assert!(!has_dmabuf(API) && has_dmabuf(ofi::version(1, 20)) && has_dmabuf(ofi::version(2, 0)));
    }
}
