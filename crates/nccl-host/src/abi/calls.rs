//! The common parts of the versions, as macros that each `vN.rs` combines.
//!
//! Used only inside `abi`. They are macros and not functions, because the tables are different types with the same
//! fields.

use trunkline_sys::nccl_net::ResultCode;

use super::PluginCallError;

/// Converts a result code to a `Result` that names the call.
pub(crate) fn check_result(call: &'static str, code: ResultCode) -> Result<(), PluginCallError> {
    if code == ResultCode::SUCCESS { Ok(()) } else { Err(PluginCallError::Failed { call, code }) }
}

/// Narrows a size to the `int` of the older versions.
pub(crate) fn narrow_size(call: &'static str, bytes: usize) -> Result<std::ffi::c_int, PluginCallError> {
    if bytes > trunkline_sys::nccl_net::NET_SIZE_BYTES_V8 {
        return Err(PluginCallError::TooLarge { call, bytes });
    }
    std::ffi::c_int::try_from(bytes).map_err(|_| PluginCallError::TooLarge { call, bytes })
}

/// Calls one slot of a table, or returns an error if it is NULL.
macro_rules! call {
    ($table:expr, $slot:ident, $name:literal, ($($arg:expr),* $(,)?)) => {
        match $table.$slot {
            Some(function) => {
                // SAFETY: the slot belongs to a loaded plugin's table of exactly this version; the arguments are
                // valid by the contract of the enclosing unsafe method.
                let code = unsafe { function($($arg),*) };
                $crate::abi::calls::check_result($name, code)
            }
            None => Err($crate::abi::PluginCallError::NotProvided { call: $name }),
        }
    };
}

/// Calls one slot and returns the pointer that it stored.
macro_rules! call_out {
    ($table:expr, $slot:ident, $name:literal, |$out:ident| ($($arg:expr),* $(,)?)) => {{
        let mut stored: *mut std::ffi::c_void = std::ptr::null_mut();
        let $out: *mut *mut std::ffi::c_void = &mut stored;
        call!($table, $slot, $name, ($($arg),*)).map(|()| stored)
    }};
}

/// `find` of one version: copies the exported table out of the library.
macro_rules! find_table {
    ($table:ty, $symbol:path) => {
        pub(super) fn find(library: &libloading::os::unix::Library) -> Option<Box<dyn super::NetAbi>> {
            // SAFETY: the symbol's name fixes its type: a table of this version.
            let symbol = unsafe { library.get::<*const $table>($symbol.to_bytes_with_nul()) }.ok()?;
            let address: *const $table = *symbol;
            // SAFETY: a data symbol of a loaded library, valid while the library is loaded. The plugin object keeps
            // the library loaded while the copy exists.
            let table = unsafe { address.as_ref() }?;
            Some(Box::new(Table(*table)))
        }
    };
}

/// The calls that are the same in every version.
macro_rules! shared_calls {
    ($version:literal, $props:ty) => {
        fn version(&self) -> u8 {
            $version
        }
        fn name(&self) -> *const std::ffi::c_char {
            self.0.name
        }
        unsafe fn devices(&self) -> Result<c_int, PluginCallError> {
            let mut count: c_int = 0;
            call!(self.0, devices, "devices", (&mut count)).map(|()| count)
        }
        unsafe fn properties(&self, dev: c_int) -> Result<NetProperties, PluginCallError> {
            let mut props = std::mem::MaybeUninit::<$props>::zeroed();
            call!(self.0, get_properties, "getProperties", (dev, props.as_mut_ptr()))?;
            // SAFETY: all bytes are zero or written by the plugin, and any bytes are valid for every field.
            let props = unsafe { props.assume_init() };
            Ok(NetProperties::from(&props))
        }
        unsafe fn dereg_mr(&self, comm: *mut c_void, mhandle: *mut c_void) -> Result<(), PluginCallError> {
            call!(self.0, dereg_mr, "deregMr", (comm, mhandle))
        }
        unsafe fn iflush(
            &self,
            comm: *mut c_void,
            n: c_int,
            data: *mut *mut c_void,
            sizes: *mut c_int,
            mhandles: *mut *mut c_void,
            request: *mut *mut c_void,
        ) -> Result<(), PluginCallError> {
            call!(self.0, iflush, "iflush", (comm, n, data, sizes, mhandles, request))
        }
        unsafe fn test(
            &self,
            request: *mut c_void,
            done: *mut c_int,
            sizes: *mut c_int,
        ) -> Result<(), PluginCallError> {
            call!(self.0, test, "test", (request, done, sizes))
        }
        unsafe fn close_send(&self, comm: *mut c_void) -> Result<(), PluginCallError> {
            call!(self.0, close_send, "closeSend", (comm))
        }
        unsafe fn close_recv(&self, comm: *mut c_void) -> Result<(), PluginCallError> {
            call!(self.0, close_recv, "closeRecv", (comm))
        }
        unsafe fn close_listen(&self, comm: *mut c_void) -> Result<(), PluginCallError> {
            call!(self.0, close_listen, "closeListen", (comm))
        }
    };
}

/// `init` and `listen` of the versions without a context; `finalize` and `setNetAttr` do nothing there.
macro_rules! no_context_calls {
    () => {
        unsafe fn listen(
            &self,
            _ctx: *mut c_void,
            dev: c_int,
            handle: *mut c_void,
        ) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, listen, "listen", |out| (dev, handle, out))
        }
        unsafe fn finalize(&self, _ctx: *mut c_void) -> Result<(), PluginCallError> {
            Ok(())
        }
        unsafe fn set_net_attr(&self, _ctx: *mut c_void, _attr: &NetAttr) -> Result<(), PluginCallError> {
            Ok(())
        }
    };
}

/// `init` of versions 6 to 9.
macro_rules! init_plain {
    () => {
        unsafe fn init(
            &self,
            _comm_id: u64,
            _config: *mut CommConfig,
        ) -> Result<*mut c_void, PluginCallError> {
            call!(self.0, init, "init", (Some(crate::log::plugin_logger()))).map(|()| std::ptr::null_mut())
        }
    };
}

/// `accept` with a device handle, which this host never requests.
macro_rules! accept_v7 {
    () => {
        unsafe fn accept(&self, listen_comm: *mut c_void) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, accept, "accept", |out| (listen_comm, out, std::ptr::null_mut()))
        }
    };
}

/// `connect` of versions 7 to 9.
macro_rules! connect_v7 {
    () => {
        unsafe fn connect(
            &self,
            _ctx: *mut c_void,
            dev: c_int,
            _config: *mut CommConfig,
            handle: *mut c_void,
        ) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, connect, "connect", |out| (dev, handle, out, std::ptr::null_mut()))
        }
    };
}

/// `regMr` with an `int` size.
macro_rules! reg_mr_v6 {
    () => {
        unsafe fn reg_mr(
            &self,
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
        ) -> Result<*mut c_void, PluginCallError> {
            let size = c_int::try_from(size)
                .map_err(|_| PluginCallError::TooLarge { call: "regMr", bytes: size })?;
            call_out!(self.0, reg_mr, "regMr", |out| (comm, data, size, kind, out))
        }
    };
}

/// `regMr` with a `size_t` size.
macro_rules! reg_mr_v8 {
    () => {
        unsafe fn reg_mr(
            &self,
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            kind: c_int,
        ) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, reg_mr, "regMr", |out| (comm, data, size, kind, out))
        }
    };
}

/// `isend` and `irecv` with `int` sizes.
macro_rules! messages_v6 {
    () => {
        unsafe fn isend(
            &self,
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            tag: c_int,
            mhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> Result<(), PluginCallError> {
            let size = crate::abi::calls::narrow_size("isend", size)?;
            call!(self.0, isend, "isend", (comm, data, size, tag, mhandle, request))
        }
        unsafe fn irecv(
            &self,
            comm: *mut c_void,
            args: RecvArgs,
            request: *mut *mut c_void,
        ) -> Result<(), PluginCallError> {
            let mut sizes: [c_int; trunkline_sys::nccl_net::NET_RECVS_MAX] = [0; _];
            let count = usize::try_from(args.n).unwrap_or(0).min(sizes.len());
            for (index, size) in sizes.iter_mut().enumerate().take(count) {
                let entry = args.sizes.wrapping_add(index);
                // SAFETY: by the contract of this function, the arrays have `n` entries, and `index` is below that.
                *size = crate::abi::calls::narrow_size("irecv", unsafe { *entry })?;
            }
            call!(
                self.0,
                irecv,
                "irecv",
                (comm, args.n, args.data, sizes.as_mut_ptr(), args.tags, args.mhandles, request)
            )
        }
    };
}

/// `isend` and `irecv` with profiler handles.
macro_rules! messages_v10 {
    () => {
        unsafe fn isend(
            &self,
            comm: *mut c_void,
            data: *mut c_void,
            size: usize,
            tag: c_int,
            mhandle: *mut c_void,
            request: *mut *mut c_void,
        ) -> Result<(), PluginCallError> {
            call!(self.0, isend, "isend", (comm, data, size, tag, mhandle, std::ptr::null_mut(), request))
        }
        unsafe fn irecv(
            &self,
            comm: *mut c_void,
            args: RecvArgs,
            request: *mut *mut c_void,
        ) -> Result<(), PluginCallError> {
            let RecvArgs { n, data, sizes, tags, mhandles, phandles } = args;
            call!(self.0, irecv, "irecv", (comm, n, data, sizes, tags, mhandles, phandles, request))
        }
    };
}

/// Converts the members of a fused NIC to the array of a version.
pub(crate) fn member_places<const N: usize>(
    members: &[std::ffi::c_int],
) -> Result<[std::ffi::c_int; N], PluginCallError> {
    let mut devs = [0; N];
    let Some(places) = devs.get_mut(..members.len()) else {
        return Err(PluginCallError::TooMany { call: "makeVDevice", asked: members.len(), most: N });
    };
    places.copy_from_slice(members);
    Ok(devs)
}

/// `makeVDevice` of the versions without it.
macro_rules! no_v_device {
    () => {
        unsafe fn make_v_device(&self, _members: &[c_int]) -> Result<c_int, PluginCallError> {
            Err(PluginCallError::NotProvided { call: "makeVDevice" })
        }
    };
}

/// `makeVDevice`, with the members in a version's structure.
macro_rules! v_device {
    ($props:ident) => {
        unsafe fn make_v_device(&self, members: &[c_int]) -> Result<c_int, PluginCallError> {
            let devs = crate::abi::calls::member_places(members)?;
            let mut props = $props { ndevs: members.len() as c_int, devs };
            let mut dev: c_int = -1;
            call!(self.0, make_v_device, "makeVDevice", (&mut dev, &mut props)).map(|()| dev)
        }
    };
}

/// `init`, `listen`, `connect`, `finalize` and `setNetAttr` of the versions with a context.
macro_rules! context_calls {
    () => {
        unsafe fn init(&self, comm_id: u64, config: *mut CommConfig) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, init, "init", |out| (
                out,
                comm_id,
                config,
                Some(crate::log::plugin_logger()),
                Some(crate::log::plugin_profiler())
            ))
        }
        unsafe fn listen(
            &self,
            ctx: *mut c_void,
            dev: c_int,
            handle: *mut c_void,
        ) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, listen, "listen", |out| (ctx, dev, handle, out))
        }
        unsafe fn connect(
            &self,
            ctx: *mut c_void,
            dev: c_int,
            _config: *mut CommConfig,
            handle: *mut c_void,
        ) -> Result<*mut c_void, PluginCallError> {
            call_out!(self.0, connect, "connect", |out| (ctx, dev, handle, out, std::ptr::null_mut()))
        }
        unsafe fn finalize(&self, ctx: *mut c_void) -> Result<(), PluginCallError> {
            call!(self.0, finalize, "finalize", (ctx))
        }
        unsafe fn set_net_attr(&self, ctx: *mut c_void, attr: &NetAttr) -> Result<(), PluginCallError> {
            let mut attr = *attr;
            match self.0.set_net_attr {
                Some(_) => call!(self.0, set_net_attr, "setNetAttr", (ctx, &mut attr)),
                None => Ok(()),
            }
        }
    };
}
