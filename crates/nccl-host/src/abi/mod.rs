//! One current interface over all versions of the plugin interface.
//!
//! `NetAbi` has the shape of the newest version; each `vN.rs` implements it with a table of version N. Used by
//! `plugin` and `comm`; it has no state except a copy of the table, and decides nothing.

#[macro_use]
mod calls;
mod v10;
mod v11;
mod v12;
mod v6;
mod v7;
mod v8;
mod v9;

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;
use thiserror::Error;
use trunkline_sys::nccl_net::{CommConfig, NetAttr, ResultCode};

use crate::properties::NetProperties;

/// Versions of the interface that this host supports, newest first.
pub const VERSIONS: [u8; 7] = [12, 11, 10, 9, 8, 7, 6];

/// Why a call of the plugin failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PluginCallError {
    /// The plugin returned a failure.
    #[error("{call} returned {}", result_name(*.code))]
    Failed {
        /// The function of the table.
        call: &'static str,
        /// The result code.
        code: ResultCode,
    },
    /// The table has NULL for a required function.
    #[error("the plugin's table has no {call}")]
    NotProvided {
        /// The function of the table.
        call: &'static str,
    },
    /// A size that this version of the interface cannot express.
    #[error("{call}: {bytes} bytes are more than this version of the interface carries")]
    TooLarge {
        /// The function of the table.
        call: &'static str,
        /// The requested size.
        bytes: usize,
    },
    /// More members of a fused NIC than this version's structure has room for.
    #[error("{call}: {asked} devices are more than the {most} that this version of the interface fuses")]
    TooMany {
        /// The function of the table.
        call: &'static str,
        /// The requested number.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// The plugin broke the contract of the call.
    #[error("{call}: {what}")]
    Contract {
        /// The function of the table.
        call: &'static str,
        /// The violation.
        what: &'static str,
    },
}

/// Returns the name and number of a result code, as in NCCL's header.
pub fn result_name(code: ResultCode) -> String {
    let name = match code {
        ResultCode::SUCCESS => "ncclSuccess",
        ResultCode::UNHANDLED_CUDA_ERROR => "ncclUnhandledCudaError",
        ResultCode::SYSTEM_ERROR => "ncclSystemError",
        ResultCode::INTERNAL_ERROR => "ncclInternalError",
        ResultCode::INVALID_ARGUMENT => "ncclInvalidArgument",
        ResultCode::INVALID_USAGE => "ncclInvalidUsage",
        ResultCode::REMOTE_ERROR => "ncclRemoteError",
        ResultCode::IN_PROGRESS => "ncclInProgress",
        ResultCode(other) => return format!("the unknown result {other}"),
    };
    format!("{name} ({})", code.0)
}

/// The grouped arguments of one `irecv`: arrays of `n` entries each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvArgs {
    pub(crate) n: c_int,
    pub(crate) data: *mut *mut c_void,
    pub(crate) sizes: *mut usize,
    pub(crate) tags: *mut c_int,
    pub(crate) mhandles: *mut *mut c_void,
    pub(crate) phandles: *mut *mut c_void,
}

/// The table of a plugin, in the shape of the newest version.
///
/// # Safety
/// For every `unsafe` method: pointers of the plugin were returned by this plugin and are not freed, memory is valid
/// for the given sizes until the operation is complete, and out-pointers can be written.
pub(crate) trait NetAbi: Send + Sync {
    fn version(&self) -> u8;
    fn name(&self) -> *const c_char;
    unsafe fn init(&self, comm_id: u64, config: *mut CommConfig) -> Result<*mut c_void, PluginCallError>;
    unsafe fn devices(&self) -> Result<c_int, PluginCallError>;
    unsafe fn properties(&self, dev: c_int) -> Result<NetProperties, PluginCallError>;
    unsafe fn listen(
        &self,
        ctx: *mut c_void,
        dev: c_int,
        handle: *mut c_void,
    ) -> Result<*mut c_void, PluginCallError>;
    unsafe fn connect(
        &self,
        ctx: *mut c_void,
        dev: c_int,
        config: *mut CommConfig,
        handle: *mut c_void,
    ) -> Result<*mut c_void, PluginCallError>;
    unsafe fn accept(&self, listen_comm: *mut c_void) -> Result<*mut c_void, PluginCallError>;
    unsafe fn reg_mr(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        kind: c_int,
    ) -> Result<*mut c_void, PluginCallError>;
    unsafe fn dereg_mr(&self, comm: *mut c_void, mhandle: *mut c_void) -> Result<(), PluginCallError>;
    unsafe fn isend(
        &self,
        comm: *mut c_void,
        data: *mut c_void,
        size: usize,
        tag: c_int,
        mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) -> Result<(), PluginCallError>;
    unsafe fn irecv(
        &self,
        comm: *mut c_void,
        args: RecvArgs,
        request: *mut *mut c_void,
    ) -> Result<(), PluginCallError>;
    unsafe fn iflush(
        &self,
        comm: *mut c_void,
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) -> Result<(), PluginCallError>;
    unsafe fn test(
        &self,
        request: *mut c_void,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> Result<(), PluginCallError>;
    unsafe fn close_send(&self, comm: *mut c_void) -> Result<(), PluginCallError>;
    unsafe fn close_recv(&self, comm: *mut c_void) -> Result<(), PluginCallError>;
    unsafe fn close_listen(&self, comm: *mut c_void) -> Result<(), PluginCallError>;
    unsafe fn make_v_device(&self, members: &[c_int]) -> Result<c_int, PluginCallError>;
    unsafe fn finalize(&self, ctx: *mut c_void) -> Result<(), PluginCallError>;
    unsafe fn set_net_attr(&self, ctx: *mut c_void, attr: &NetAttr) -> Result<(), PluginCallError>;
}

/// Finds the table of one version in a library.
pub(crate) fn find_table(library: &Library, version: u8) -> Option<Box<dyn NetAbi>> {
    match version {
        6 => v6::find(library),
        7 => v7::find(library),
        8 => v8::find(library),
        9 => v9::find(library),
        10 => v10::find(library),
        11 => v11::find(library),
        12 => v12::find(library),
        _ => None,
    }
}
