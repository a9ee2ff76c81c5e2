//! The names of the devices for which rdma-core has a provider. `crates/runtime` calls it when a device is not used; it opens no device.

use std::ffi::CStr;

use crate::{VerbsLibrary, VerbsUnavailable};

/// Lists the RDMA devices that libibverbs has found a provider for; a device of the kernel that is not among them has none. An empty list also
/// means that the kernel has no interface for them (module `ib_uverbs`).
///
/// # Errors
/// [`VerbsUnavailable::Library`] or [`VerbsUnavailable::Symbol`].
pub fn device_names() -> Result<Vec<String>, VerbsUnavailable> {
    let library = VerbsLibrary::open()?;
    let calls = library.calls();
    let mut count = 0;
    // SAFETY: `count` is valid for writes.
    let list = unsafe { (calls.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `at` is less than the number of entries that the library returned.
        let entry = unsafe { list.add(at) };
        // SAFETY: an entry of the list, which has not been freed.
        let device = unsafe { *entry };
        // SAFETY: `device` is an entry of the list, which has not been freed.
        let name = unsafe { (calls.get_device_name)(device) };
        // SAFETY: the library returns a zero-terminated text inside the device, which stays valid until the list is
        // freed.
        let name = unsafe { CStr::from_ptr(name) };
        names.push(name.to_string_lossy().into_owned());
    }
    // SAFETY: the list was returned above and is freed once; no device of it is open.
    unsafe { (calls.free_device_list)(list) };
    Ok(names)
}
