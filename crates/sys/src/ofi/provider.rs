//! The interface of a provider to the library: the only symbol of its file, and the structure that this symbol
//! returns.

use core::ffi::{CStr, c_char, c_int, c_void};

use super::{Context, FabricAttr, FidFabric, Info};

/// The symbol of a provider's file, a function of type [`Init`].
pub const PROVIDER_SYMBOL: &CStr = c"fi_prov_ini";
/// Suffix of a provider's file, `libNAME-fi.so`, in the folder that `FI_PROVIDER_PATH` names.
pub const PROVIDER_SUFFIX: &str = "-fi.so";

/// `fi_prov_ini`: returns the provider, which is valid while its file is loaded; NULL if it cannot work on this host.
pub type Init = unsafe extern "C" fn() -> *mut Provider;
/// `getinfo` of [`Provider`]: returns its offers for the hints, which may be NULL. `fi_freeinfo` frees the list.
pub type ProviderGetinfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int;
/// `fabric` of [`Provider`]: opens a fabric.
pub type ProviderFabric =
    unsafe extern "C" fn(attr: *mut FabricAttr, fabric: *mut *mut FidFabric, context: *mut c_void) -> c_int;
/// `cleanup` of [`Provider`]: called before the library is unloaded.
pub type Cleanup = unsafe extern "C" fn();

/// `struct fi_provider`: a provider.
#[repr(C)]
pub struct Provider {
    /// Version of the provider; the major number is in the upper half.
    pub version: u32,
    /// The version of the interface that it implements.
    pub fi_version: u32,
    /// Private to the library.
    pub context: Context,
    /// Its name.
    pub name: *const c_char,
    /// Returns its offers.
    pub getinfo: Option<ProviderGetinfo>,
    /// Opens a fabric.
    pub fabric: Option<ProviderFabric>,
    /// Called before the library is unloaded.
    pub cleanup: Option<Cleanup>,
}
