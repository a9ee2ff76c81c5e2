//! libibverbs, opened at run time by the versions of its symbols. Opened once per fabric; never unloaded, because its
//! providers may have threads and handlers in this process.

use std::error::Error as _;
use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::NonNull;

use trunkline_sys::verbs::{self as calls, Calls, LIBRARY, VERSIONS, ionic};

use crate::{VerbsUnavailable, pipelines};

/// The functions of libibverbs, and of a provider that has pipelines.
pub struct VerbsLibrary {
    calls: Calls,
    ionic: Option<ionic::Calls>,
}

/// Fills [`Calls`]: each function under its name, those behind `optional` only where the library has them.
macro_rules! load {
    ($find:expr; required: $($field:ident $kind:ident)*; optional: $($may:ident $may_kind:ident)*) => { Calls {
        // SAFETY: the symbol of this name and version is a function of the field's type, which `cargo xtask bindings`
        // compares with the library's header.
        $($field: unsafe { transmute::<NonNull<c_void>, calls::$kind>($find(concat!("ibv_", stringify!($field)))?) },)*
        // SAFETY: as above.
        $($may: $find(may_be(stringify!($may))).ok().map(|at| unsafe { transmute::<NonNull<c_void>, calls::$may_kind>(at) }),)*
    } };
}

/// Returns the symbol of an optional function.
fn may_be(field: &str) -> &'static str {
    match field {
        "query_gid_ex" => "_ibv_query_gid_ex",
        "reg_mr_iova2" => "ibv_reg_mr_iova2",
        "reg_dmabuf_mr" => "ibv_reg_dmabuf_mr",
        "set_ece" => "ibv_set_ece",
        "query_ece" => "ibv_query_ece",
        _ => "ibv_qp_to_qp_ex",
    }
}

impl VerbsLibrary {
    /// Opens rdma-core's library.
    ///
    /// # Errors
    /// [`VerbsUnavailable::Library`] or [`VerbsUnavailable::Symbol`].
    pub fn open() -> Result<Self, VerbsUnavailable> {
        let name = LIBRARY.to_string_lossy().into_owned();
        // SAFETY: rdma-core's own library; its constructors run here as in any program that is linked with it.
        let library = unsafe { libloading::os::unix::Library::new(name) };
        // The linker's message is the source of the error.
        let said = |error: libloading::Error| error.source().map_or(error.to_string(), ToString::to_string);
        let handle = library.map_err(|error| VerbsUnavailable::Library(said(error)))?.into_raw();
        let find = |symbol: &str| find_symbol(handle, symbol);
        Ok(Self {
            ionic: pipelines::open_ionic(),
            calls: load!(find;
                required: get_device_list GetDeviceList free_device_list FreeDeviceList
                    get_device_name GetDeviceName open_device OpenDevice close_device CloseDevice
                    query_device QueryDevice query_port QueryPort query_gid QueryGid
                    alloc_pd AllocPd dealloc_pd DeallocPd reg_mr RegMr dereg_mr DeregMr
                    create_comp_channel CreateCompChannel destroy_comp_channel DestroyCompChannel
                    create_cq CreateCq destroy_cq DestroyCq get_cq_event GetCqEvent ack_cq_events AckCqEvents
                    create_qp CreateQp modify_qp ModifyQp destroy_qp DestroyQp
                    get_async_event GetAsyncEvent ack_async_event AckAsyncEvent;
                optional: query_gid_ex QueryGidEx reg_mr_iova2 RegMrIova2 reg_dmabuf_mr RegDmabufMr
                    qp_to_qp_ex QpToQpEx set_ece SetEce query_ece QueryEce
            ),
        })
    }

    /// Uses a table of functions as the library.
    ///
    /// # Safety
    /// The functions, and those in the tables that they return, behave as libibverbs documents.
    #[must_use]
    pub unsafe fn from_calls(calls: Calls) -> Self {
        Self { calls, ionic: None }
    }

    /// Adds a table of functions that replaces the provider's library.
    ///
    /// # Safety
    /// The functions behave as libionic documents.
    #[must_use]
    pub unsafe fn with_pipelines(self, ionic: ionic::Calls) -> Self {
        Self { ionic: Some(ionic), ..self }
    }

    /// Returns the functions of the provider's library, if it is open.
    pub(crate) fn ionic_calls(&self) -> Option<ionic::Calls> {
        self.ionic
    }

    #[inline]
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }
}

/// Returns the symbol in the version that the types of this crate are for.
fn find_symbol(handle: *mut c_void, symbol: &str) -> Result<NonNull<c_void>, VerbsUnavailable> {
    let missing = |version: &CStr| VerbsUnavailable::Symbol {
        symbol: symbol.to_owned(),
        version: version.to_string_lossy().into_owned(),
    };
    let known = VERSIONS.iter().find(|(name, _)| name.to_bytes() == symbol.as_bytes());
    let Some((name, version)) = known else { return Err(missing(c"of no known kind")) };
    // SAFETY: the handle is of a library that is never closed, and both texts end with zero.
    let at = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    NonNull::new(at).ok_or_else(|| missing(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_version() {
        for name in ["query_gid_ex", "reg_mr_iova2", "reg_dmabuf_mr", "qp_to_qp_ex", "set_ece", "query_ece"] {
            assert!(VERSIONS.iter().any(|(known, _)| known.to_str() == Ok(may_be(name))), "{name}");
        }
        // The division counts the fields, because each one is a pointer.
        assert_eq!(size_of::<Calls>() / size_of::<usize>(), VERSIONS.len());
    }

    #[test]
    fn missing_symbols_are_named() {
        // SAFETY: the C library is loaded in any process.
        let handle = unsafe { libloading::os::unix::Library::new("libc.so.6") }.unwrap().into_raw();
        let error = find_symbol(handle, "ibv_create_qp").unwrap_err().to_string();
        assert!(error.contains("ibv_create_qp") && error.contains("IBVERBS_1.1"), "{error}");
    }
}
