//! What a provider is to the library: the one symbol that its file has, and what that tells.

use core::ffi::{CStr, c_char, c_int, c_void};

use super::{Context, FabricAttr, FidFabric, Info};

/// The symbol of a provider's file, an [`Init`].
pub const PROVIDER_SYMBOL: &CStr = c"fi_prov_ini";
/// How the name of a provider's file ends, in the folder that `FI_PROVIDER_PATH` names: `libNAME-fi.so`.
pub const PROVIDER_SUFFIX: &str = "-fi.so";

/// `fi_prov_ini`: the provider, which stays for as long as its file is loaded; NULL if it cannot work here.
pub type Init = unsafe extern "C" fn() -> *mut Provider;
/// `getinfo` of [`Provider`]: what it offers for the hints, which may be NULL; the list is freed by `fi_freeinfo`.
pub type ProviderGetinfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int;
/// `fabric` of [`Provider`]: opens one.
pub type ProviderFabric =
    unsafe extern "C" fn(attr: *mut FabricAttr, fabric: *mut *mut FidFabric, context: *mut c_void) -> c_int;
/// `cleanup` of [`Provider`]: the library goes.
pub type Cleanup = unsafe extern "C" fn();

/// `struct fi_provider`: a provider.
#[repr(C)]
pub struct Provider {
    /// Its own version, major in the upper half.
    pub version: u32,
    /// The version of the interface that it was written for.
    pub fi_version: u32,
    /// The library's.
    pub context: Context,
    /// Its name.
    pub name: *const c_char,
    /// What it offers.
    pub getinfo: Option<ProviderGetinfo>,
    /// Opens a fabric.
    pub fabric: Option<ProviderFabric>,
    /// The library goes.
    pub cleanup: Option<Cleanup>,
}
