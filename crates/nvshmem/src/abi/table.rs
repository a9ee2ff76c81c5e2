//! The common part of the tables of all versions: the state of a transport, and the paths of its devices.

use core::ffi::{c_char, c_int};
use std::ffi::CString;
use std::sync::Arc;

use trunkline_sys::nvshmem::{ATTR_CONNECTED, Head};

use super::guard::borrow;
use crate::error::{CallError, Result};
use crate::plugin::{SharedPlugin, TransportPlugin};

/// A transport of some version. It begins with the common head.
pub(super) trait TransportVersion: Sized {
    /// Returns a pointer to its head.
    fn head_pointer(this: *mut Self) -> *mut Head;

    /// Returns its head, and drops the rest.
    fn into_head(self: Box<Self>) -> Box<Head>;
}

/// Returns a head for a plugin. NVSHMEM sets the remaining fields.
pub(super) fn make_head(plugin: TransportPlugin, ours: c_int, host: c_int) -> Head {
    let paths: Vec<*mut c_char> = plugin.nics.iter().map(|nic| to_c_path(nic.pci_path.as_deref())).collect();
    let n_devices = c_int::try_from(paths.len()).unwrap_or(c_int::MAX);
    let paths = Box::into_raw(paths.into_boxed_slice());
    Head {
        api_version: ours.min(host),
        lib_code: 0,
        cap: core::ptr::null_mut(),
        boot_handle: core::ptr::null_mut(),
        state: Arc::into_raw(SharedPlugin::new(plugin)).cast_mut().cast(),
        type_specific_shared_state: core::ptr::null_mut(),
        cache_handle: core::ptr::null_mut(),
        device_pci_paths: paths.cast(),
        attr: ATTR_CONNECTED,
        n_devices,
        // A kernel waits for the flag behind its value, and for no other operation.
        atomics_complete_on_quiet: false,
        is_successfully_initialized: true,
        no_proxy: false,
        heap_base: core::ptr::null_mut(),
        log2_cumem_granularity: 0,
        max_op_len: 0,
        atomic_host_endian_min_size: 0,
        index: 0,
        my_pe: 0,
        n_pes: 0,
        alias_va_map: core::ptr::null(),
        egm_map: core::ptr::null(),
    }
}

/// Returns a path in sysfs for C. A NIC without one gets a path that is near no GPU.
fn to_c_path(of: Option<&str>) -> *mut c_char {
    let path = CString::new(of.unwrap_or("/sys/devices/virtual")).unwrap_or_default();
    path.into_raw()
}

/// Returns the plugin of a transport.
///
/// # Safety
/// If not null, `transport` was created here, and is not finalized during `'a`.
pub(super) unsafe fn transport_plugin<'a, T: TransportVersion>(
    transport: *mut T,
) -> Result<&'a TransportPlugin> {
    // SAFETY: by the contract of this function.
    let head = unsafe { borrow(T::head_pointer(transport), "null transport") }?;
    // SAFETY: `make_head` stored the pointer, and only `finalize_transport` releases it.
    unsafe { borrow(head.state.cast::<TransportPlugin>(), "the transport has no state") }
}

/// Destroys a transport and everything that it owns.
///
/// # Safety
/// If not null, `transport` was returned by `Box::into_raw` here, and is not used any more.
pub(super) unsafe fn finalize_transport<T: TransportVersion>(transport: *mut T) -> Result<()> {
    if transport.is_null() {
        return Err(CallError::Argument("null transport"));
    }
    // SAFETY: not null, and from a `Box` by the contract of this function.
    let transport = unsafe { Box::from_raw(transport) };
    let Head { device_pci_paths, n_devices, state, .. } = *transport.into_head();
    let paths = core::ptr::slice_from_raw_parts_mut(device_pci_paths, n_devices.max(0) as usize);
    // SAFETY: `make_head` created the slice from a box with `n_devices` elements.
    for path in unsafe { Box::from_raw(paths) } {
        // SAFETY: `make_head` created each path by `CString::into_raw`.
        drop(unsafe { CString::from_raw(path) });
    }
    // SAFETY: `make_head` created the pointer by `into_raw`, and it is released only here.
    drop(unsafe { SharedPlugin::from_raw(state.cast_const().cast()) });
    Ok(())
}
