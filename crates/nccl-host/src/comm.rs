//! The plugin's objects as owned Rust values: a communicator's context, listening, sending and receiving
//! communicators, registrations and requests.
//!
//! Used by the service thread (`connect`, `accept`, registration, close), the progress thread (`isend`, `irecv`,
//! `test`, `iflush`) and tests. It never retries: the plugin's "call again" is returned as `None`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use trunkline_sys::nccl_net::{
    CommConfig, HANDLE_BYTES, NET_RECVS_MAX, NetAttr, OPTIONAL_RECV_COMPLETION, PTR_HOST, TRAFFIC_CLASS_UNDEF,
};

use crate::abi::{PluginCallError, RecvArgs};
use crate::plugin::NetPlugin;

/// The value in `*request` before an `isend`: NCCL leaves old values there.
const STALE_REQUEST: usize = 0x57a1_e0de_ad10_c0de;

/// A pointer of the plugin that other threads may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PluginPointer(*mut c_void);

// SAFETY: the plugin contract allows the use of every object on any thread: NCCL makes them on the service thread and
// posts on the progress thread.
unsafe impl Send for PluginPointer {}
// SAFETY: the same contract allows concurrent use: one thread registers while another posts and tests.
unsafe impl Sync for PluginPointer {}

/// The bytes that identify a listener to a sender.
pub type NetHandle = [u8; HANDLE_BYTES];

/// One initialization of the plugin; NCCL makes one for each communicator.
#[derive(Debug)]
pub struct PluginContext {
    plugin: Arc<NetPlugin>,
    ctx: PluginPointer,
}

impl PluginContext {
    /// Initializes the plugin for the communicator with this id.
    pub fn init(plugin: &Arc<NetPlugin>, comm_id: u64) -> Result<Arc<Self>, PluginCallError> {
        let mut config = CommConfig { traffic_class: TRAFFIC_CLASS_UNDEF };
        // SAFETY: the configuration lives for the call, and the plugin must copy it.
        let ctx = unsafe { plugin.abi_table().init(comm_id, &mut config) }?;
        Ok(Arc::new(Self { plugin: Arc::clone(plugin), ctx: PluginPointer(ctx) }))
    }

    /// Returns the plugin.
    pub fn plugin(&self) -> &Arc<NetPlugin> {
        &self.plugin
    }

    /// Passes traffic hints to the plugin; plugins without the call ignore them.
    pub fn set_net_attr(&self, attr: &NetAttr) -> Result<(), PluginCallError> {
        // SAFETY: init returned this context, and it is not finalized yet.
        unsafe { self.plugin.abi_table().set_net_attr(self.ctx.0, attr) }
    }

    /// Makes a fused NIC of several devices; returns its number.
    pub fn make_v_device(&self, members: &[c_int]) -> Result<c_int, PluginCallError> {
        // SAFETY: makeVDevice needs only a place for the number and the members, which the shim provides.
        unsafe { self.plugin.abi_table().make_v_device(members) }
    }

    /// Listens on a device.
    pub fn listen(self: &Arc<Self>, dev: c_int) -> Result<(ListenComm, NetHandle), PluginCallError> {
        let mut handle: NetHandle = [0; HANDLE_BYTES];
        // SAFETY: the handle has the length of the contract, and the context is alive.
        let raw = unsafe { self.plugin.abi_table().listen(self.ctx.0, dev, handle.as_mut_ptr().cast()) }?;
        if raw.is_null() {
            return Err(PluginCallError::Contract {
                call: "listen",
                what: "succeeded without a listening object",
            });
        }
        Ok((ListenComm { net: Arc::clone(self), raw: PluginPointer(raw) }, handle))
    }

    /// Tries to connect; `None` means call again with the same handle, which the plugin may have changed.
    pub fn connect(
        self: &Arc<Self>,
        dev: c_int,
        handle: &mut NetHandle,
    ) -> Result<Option<SendComm>, PluginCallError> {
        let mut config = CommConfig { traffic_class: TRAFFIC_CLASS_UNDEF };
        let bytes = handle.as_mut_ptr().cast();
        // SAFETY: the handle is private to this connection, and has the length of the contract.
        let raw = unsafe { self.plugin.abi_table().connect(self.ctx.0, dev, &mut config, bytes) }?;
        Ok((!raw.is_null()).then(|| SendComm { net: Arc::clone(self), raw: PluginPointer(raw) }))
    }
}

impl Drop for PluginContext {
    fn drop(&mut self) {
        // SAFETY: every object made from the context holds an `Arc` of it, so all are closed by now.
        let _ = unsafe { self.plugin.abi_table().finalize(self.ctx.0) };
    }
}

/// A listening object.
#[derive(Debug)]
pub struct ListenComm {
    net: Arc<PluginContext>,
    raw: PluginPointer,
}

impl ListenComm {
    /// Tries to accept one connection; `None` means call again.
    pub fn accept(&self) -> Result<Option<RecvComm>, PluginCallError> {
        // SAFETY: the listening object is open: only `close` and `drop` close it, and both consume it.
        let raw = unsafe { self.net.plugin.abi_table().accept(self.raw.0) }?;
        Ok((!raw.is_null()).then(|| RecvComm { net: Arc::clone(&self.net), raw: PluginPointer(raw) }))
    }

    /// Closes it; returns the plugin's result.
    pub fn close(mut self) -> Result<(), PluginCallError> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<(), PluginCallError> {
        let raw = std::mem::replace(&mut self.raw, PluginPointer(ptr::null_mut()));
        if raw.0.is_null() {
            return Ok(());
        }
        // SAFETY: the object was open, and the pointer is not used after this call.
        unsafe { self.net.plugin.abi_table().close_listen(raw.0) }
    }
}

impl Drop for ListenComm {
    fn drop(&mut self) {
        let _ = self.close_once();
    }
}

/// A registration of host memory with one communicator.
#[derive(Clone, Copy, Debug)]
pub struct NetMr(PluginPointer);

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetRequest(PluginPointer);

/// A sending communicator.
#[derive(Debug)]
pub struct SendComm {
    net: Arc<PluginContext>,
    raw: PluginPointer,
}

/// A receiving communicator.
#[derive(Debug)]
pub struct RecvComm {
    net: Arc<PluginContext>,
    raw: PluginPointer,
}

/// One buffer of a receive.
#[derive(Clone, Copy, Debug)]
pub struct NetRecvPart {
    /// The target of the bytes.
    pub data: *mut u8,
    /// Length of the buffer in bytes.
    pub bytes: usize,
    /// The tag of the matching send.
    pub tag: c_int,
    /// The registration of that memory.
    pub mr: NetMr,
}

macro_rules! registration {
    ($comm:ty, $close:ident) => {
        impl $comm {
            /// Registers host memory.
            ///
            /// # Safety
            /// The memory stays mapped until `dereg_mr`.
            pub unsafe fn reg_mr(&self, data: *mut u8, bytes: usize) -> Result<NetMr, PluginCallError> {
                let table = self.net.plugin.abi_table();
                // SAFETY: the communicator is open, and the caller vouches for the memory.
                let raw = unsafe { table.reg_mr(self.raw.0, data.cast(), bytes, PTR_HOST) }?;
                Ok(NetMr(PluginPointer(raw)))
            }

            /// Ends a registration.
            ///
            /// # Safety
            /// The registration is of this communicator, not yet ended, and no request uses it.
            pub unsafe fn dereg_mr(&self, mr: NetMr) -> Result<(), PluginCallError> {
                // SAFETY: by the contract of this function.
                unsafe { self.net.plugin.abi_table().dereg_mr(self.raw.0, mr.0.0) }
            }

            /// Tests whether a request of this communicator is complete, and how many bytes each part received.
            ///
            /// # Safety
            /// The request is of this communicator and was not reported complete before.
            #[inline]
            pub unsafe fn test(
                &self,
                request: NetRequest,
                sizes: Option<&mut [c_int; NET_RECVS_MAX]>,
            ) -> Result<bool, PluginCallError> {
                let mut done: c_int = 0;
                let sizes = sizes.map_or(ptr::null_mut(), |sizes| sizes.as_mut_ptr());
                // SAFETY: by the contract of this function; the sizes have room for the largest group.
                unsafe { self.net.plugin.abi_table().test(request.0.0, &mut done, sizes) }?;
                Ok(done != 0)
            }

            /// Closes it; returns the plugin's result.
            pub fn close(mut self) -> Result<(), PluginCallError> {
                self.close_once()
            }

            fn close_once(&mut self) -> Result<(), PluginCallError> {
                let raw = std::mem::replace(&mut self.raw, PluginPointer(ptr::null_mut()));
                if raw.0.is_null() {
                    return Ok(());
                }
                // SAFETY: the communicator was open, and the pointer is not used after this call.
                unsafe { self.net.plugin.abi_table().$close(raw.0) }
            }
        }

        impl Drop for $comm {
            fn drop(&mut self) {
                let _ = self.close_once();
            }
        }
    };
}

registration!(SendComm, close_send);
registration!(RecvComm, close_recv);

impl SendComm {
    /// Starts a send; `None` means call again with the same arguments.
    ///
    /// # Safety
    /// The memory is registered as `mr` with this communicator, and is not written until the request is complete.
    #[inline]
    pub unsafe fn isend(
        &self,
        data: *const u8,
        bytes: usize,
        tag: c_int,
        mr: NetMr,
    ) -> Result<Option<NetRequest>, PluginCallError> {
        let stale: *mut c_void = ptr::without_provenance_mut(STALE_REQUEST);
        let mut request = stale;
        let data = data.cast_mut().cast();
        // SAFETY: by the contract of this function; `request` can be written.
        unsafe { self.net.plugin.abi_table().isend(self.raw.0, data, bytes, tag, mr.0.0, &mut request) }?;
        if request == stale {
            return Err(PluginCallError::Contract {
                call: "isend",
                what: "succeeded without writing *request",
            });
        }
        Ok((!request.is_null()).then_some(NetRequest(PluginPointer(request))))
    }
}

impl RecvComm {
    /// Starts a receive of one message or a group; `None` means call again with the same arguments.
    ///
    /// `optional` requests optional completion, as NCCL does if the data itself shows its arrival.
    ///
    /// # Safety
    /// Each part's memory is registered as its `mr` with this communicator, and is not accessed until the request is
    /// complete.
    #[inline]
    pub unsafe fn irecv(
        &self,
        parts: &[NetRecvPart],
        optional: bool,
    ) -> Result<Option<NetRequest>, PluginCallError> {
        if let [part] = parts {
            // SAFETY: by the contract of this function.
            return unsafe { self.irecv_one(*part, optional) };
        }
        let n = parts.len();
        if n == 0 || n > NET_RECVS_MAX {
            return Err(PluginCallError::Contract {
                call: "irecv",
                what: "the host requested a group of 0 or more than 8 buffers",
            });
        }
        let mut data: [*mut c_void; NET_RECVS_MAX] = [ptr::null_mut(); NET_RECVS_MAX];
        let mut sizes = [0usize; NET_RECVS_MAX];
        let mut tags: [c_int; NET_RECVS_MAX] = [0; NET_RECVS_MAX];
        let mut mhandles: [*mut c_void; NET_RECVS_MAX] = [ptr::null_mut(); NET_RECVS_MAX];
        let mut phandles: [*mut c_void; NET_RECVS_MAX] = [ptr::null_mut(); NET_RECVS_MAX];
        for (index, part) in parts.iter().enumerate() {
            data[index] = part.data.cast();
            sizes[index] = part.bytes;
            tags[index] = part.tag;
            mhandles[index] = part.mr.0.0;
        }
        let args = RecvArgs {
            n: n as c_int,
            data: data.as_mut_ptr(),
            sizes: sizes.as_mut_ptr(),
            tags: tags.as_mut_ptr(),
            mhandles: mhandles.as_mut_ptr(),
            phandles: phandles.as_mut_ptr(),
        };
        // SAFETY: by the contract of this function; the arrays have `n` entries and live for the call.
        unsafe { self.irecv_args(args, optional) }
    }

    /// Starts a receive of one part, the common case, without arrays of eight parts.
    ///
    /// # Safety
    /// As for [`RecvComm::irecv`].
    #[inline]
    unsafe fn irecv_one(
        &self,
        part: NetRecvPart,
        optional: bool,
    ) -> Result<Option<NetRequest>, PluginCallError> {
        let mut data: *mut c_void = part.data.cast();
        let mut size = part.bytes;
        let mut tag = part.tag;
        let mut mhandle: *mut c_void = part.mr.0.0;
        let mut phandle: *mut c_void = ptr::null_mut();
        let args = RecvArgs {
            n: 1,
            data: &mut data,
            sizes: &mut size,
            tags: &mut tag,
            mhandles: &mut mhandle,
            phandles: &mut phandle,
        };
        // SAFETY: by the contract of this function; each array is one value that lives for the call.
        unsafe { self.irecv_args(args, optional) }
    }

    #[inline]
    unsafe fn irecv_args(
        &self,
        args: RecvArgs,
        optional: bool,
    ) -> Result<Option<NetRequest>, PluginCallError> {
        let flag: *mut c_void = ptr::without_provenance_mut(OPTIONAL_RECV_COMPLETION);
        let mut request = if optional { flag } else { ptr::null_mut() };
        // SAFETY: the caller passes arguments that fulfil the contract of `irecv`.
        unsafe { self.net.plugin.abi_table().irecv(self.raw.0, args, &mut request) }?;
        if request == flag {
            return Err(PluginCallError::Contract {
                call: "irecv",
                what: "succeeded without writing *request",
            });
        }
        Ok((!request.is_null()).then_some(NetRequest(PluginPointer(request))))
    }

    /// Starts a flush of received data; `None` means that there is nothing to wait for.
    ///
    /// # Safety
    /// As for [`RecvComm::irecv`], for memory whose receive is complete.
    pub unsafe fn iflush(&self, parts: &[NetRecvPart]) -> Result<Option<NetRequest>, PluginCallError> {
        let n = parts.len().min(NET_RECVS_MAX);
        let mut data: [*mut c_void; NET_RECVS_MAX] = [ptr::null_mut(); NET_RECVS_MAX];
        let mut sizes: [c_int; NET_RECVS_MAX] = [0; NET_RECVS_MAX];
        let mut mhandles: [*mut c_void; NET_RECVS_MAX] = [ptr::null_mut(); NET_RECVS_MAX];
        for (index, part) in parts.iter().take(n).enumerate() {
            data[index] = part.data.cast();
            sizes[index] = c_int::try_from(part.bytes).unwrap_or(c_int::MAX);
            mhandles[index] = part.mr.0.0;
        }
        let data = data.as_mut_ptr();
        let sizes = sizes.as_mut_ptr();
        let mhandles = mhandles.as_mut_ptr();
        let mut request: *mut c_void = ptr::null_mut();
        let table = self.net.plugin.abi_table();
        // SAFETY: by the contract of this function; the arrays have `n` entries and live for the call.
        unsafe { table.iflush(self.raw.0, n as c_int, data, sizes, mhandles, &mut request) }?;
        Ok((!request.is_null()).then_some(NetRequest(PluginPointer(request))))
    }
}
