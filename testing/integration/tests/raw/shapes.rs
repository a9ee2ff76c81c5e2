//! The shapes of the table's calls over all versions, as macros that `tables` combines for each version.

/// One call through a table.
macro_rules! through {
    ($table:expr, $slot:ident, $($arg:expr),* $(,)?) => {{
        let function = $table.$slot.expect(stringify!($slot));
        // SAFETY: the slot has this version's type; the arguments are the caller's promise.
        unsafe { function($($arg),*) }
    }};
}

macro_rules! init_shape {
    (plain) => {
        unsafe fn init(&self, _: *mut Opaque, log: Option<Logger>) -> ResultCode {
            through!(self, init, log)
        }
    };
    (profiled) => {
        unsafe fn init(&self, _: *mut Opaque, log: Option<Logger>) -> ResultCode {
            through!(self, init, log, None)
        }
    };
    (context) => {
        unsafe fn init(&self, ctx: *mut Opaque, log: Option<Logger>) -> ResultCode {
            let mut config = CommConfig { traffic_class: TRAFFIC_CLASS_UNDEF };
            through!(self, init, ctx, 7, &raw mut config, log, None)
        }
    };
}

macro_rules! listen_shape {
    (plain) => {
        unsafe fn listen(&self, _: Opaque, dev: c_int, handle: Opaque, comm: *mut Opaque) -> ResultCode {
            through!(self, listen, dev, handle, comm)
        }
    };
    (context) => {
        unsafe fn listen(&self, ctx: Opaque, dev: c_int, handle: Opaque, comm: *mut Opaque) -> ResultCode {
            through!(self, listen, ctx, dev, handle, comm)
        }
    };
}

macro_rules! connect_shape {
    (|$table:ident, $ctx:ident, $dev:ident, $handle:ident, $comm:ident, $device:ident| $call:expr) => {
        unsafe fn connect(
            &self,
            $ctx: Opaque,
            $dev: c_int,
            $handle: Opaque,
            $comm: *mut Opaque,
            $device: *mut *mut DeviceHandle,
        ) -> ResultCode {
            let $table = self;
            let _ = ($ctx, $device);
            $call
        }
    };
}

macro_rules! accept_shape {
    (plain) => {
        unsafe fn accept(&self, listen: Opaque, comm: *mut Opaque, _: *mut *mut DeviceHandle) -> ResultCode {
            through!(self, accept, listen, comm)
        }
    };
    (device) => {
        unsafe fn accept(
            &self,
            listen: Opaque,
            comm: *mut Opaque,
            device: *mut *mut DeviceHandle,
        ) -> ResultCode {
            through!(self, accept, listen, comm, device)
        }
    };
}

macro_rules! reg_shape {
    ($size:ty) => {
        unsafe fn reg_mr(
            &self,
            comm: Opaque,
            data: Opaque,
            size: usize,
            kind: c_int,
            out: *mut Opaque,
        ) -> ResultCode {
            through!(self, reg_mr, comm, data, <$size>::try_from(size).expect("a size"), kind, out)
        }
    };
}

macro_rules! message_shape {
    ($size:ty $(, $profile:expr)?) => {
        unsafe fn isend(
            &self,
            comm: Opaque,
            (data, size): (Opaque, usize),
            tag: c_int,
            mr: Opaque,
            request: *mut Opaque,
        ) -> ResultCode {
            let size = <$size>::try_from(size).expect("a size");
            through!(self, isend, comm, data, size, tag, mr, $($profile,)? request)
        }
        unsafe fn irecv(&self, comm: Opaque, group: Group, request: *mut Opaque) -> ResultCode {
            let mut sizes: [$size; 16] = [0; 16];
            let count = usize::try_from(group.n).unwrap_or(0).min(sizes.len());
            let place = if group.sizes.is_null() {
                std::ptr::null_mut()
            } else {
                for (at, to) in sizes.iter_mut().enumerate().take(count) {
                    // SAFETY: the array has `n` entries, by the caller's promise.
                    let size = unsafe { *group.sizes.wrapping_add(at) };
                    *to = <$size>::try_from(size).expect("a size");
                }
                sizes.as_mut_ptr()
            };
            let Group { n, data, tags, mhandles, .. } = group;
            through!(self, irecv, comm, n, data, place, tags, mhandles, $($profile,)? request)
        }
    };
}

macro_rules! members_shape {
    (none) => {
        unsafe fn make_v_device(&self, _: *mut c_int, _: Option<&[c_int]>) -> Option<ResultCode> {
            None
        }
    };
    ($props:ident) => {
        unsafe fn make_v_device(&self, dev: *mut c_int, members: Option<&[c_int]>) -> Option<ResultCode> {
            let mut props = $props { ndevs: 0, devs: [0; _] };
            for (to, &from) in props.devs.iter_mut().zip(members.unwrap_or_default()) {
                *to = from;
            }
            props.ndevs = members.unwrap_or_default().len() as c_int;
            let place = if members.is_some() { &raw mut props } else { std::ptr::null_mut() };
            Some(through!(self, make_v_device, dev, place))
        }
    };
}

macro_rules! end_shape {
    (none) => {
        unsafe fn finalize(&self, _: Opaque) -> Option<ResultCode> {
            None
        }
        unsafe fn set_net_attr(&self, _: Opaque, _: *mut NetAttr) -> Option<ResultCode> {
            None
        }
    };
    (context) => {
        unsafe fn finalize(&self, ctx: Opaque) -> Option<ResultCode> {
            Some(through!(self, finalize, ctx))
        }
        unsafe fn set_net_attr(&self, ctx: Opaque, attr: *mut NetAttr) -> Option<ResultCode> {
            Some(through!(self, set_net_attr, ctx, attr))
        }
    };
}

/// The functions that no version changed.
macro_rules! same_shape {
    ($version:literal, $props:ty, |$p:ident| { $($field:ident: $value:expr),* $(,)? }) => {
        fn version(&self) -> u8 {
            $version
        }
        fn name(&self) -> *const c_char {
            self.name
        }
        unsafe fn devices(&self, count: *mut c_int) -> ResultCode {
            through!(self, devices, count)
        }
        unsafe fn properties(&self, dev: c_int, null: bool) -> Result<Props, ResultCode> {
            let mut place = std::mem::MaybeUninit::<$props>::zeroed();
            let out = if null { std::ptr::null_mut() } else { place.as_mut_ptr() };
            let code = through!(self, get_properties, dev, out);
            if code != ResultCode::SUCCESS {
                return Err(code);
            }
            // SAFETY: zeroed or written by the plugin, and every bit pattern is valid for every field.
            let $p = unsafe { place.assume_init() };
            let mut props = Props {
                name: $p.name,
                pci_path: $p.pci_path,
                guid: $p.guid,
                ptr_support: $p.ptr_support,
                speed: $p.speed,
                port: $p.port,
                latency: $p.latency,
                max_comms: $p.max_comms,
                max_recvs: $p.max_recvs,
                device_type: None,
                reg_is_global: None,
                force_flush: None,
                members: None,
                max_bytes: None,
                max_multi: None,
            };
            $(props.$field = Some($value);)*
            // So that a version without more fields needs no other binding.
            props.guid = $p.guid;
            Ok(props)
        }
        unsafe fn reg_dma_buf(
            &self,
            comm: Opaque,
            data: Opaque,
            (size, kind): (usize, c_int),
            (offset, fd): (u64, c_int),
            out: *mut Opaque,
        ) -> ResultCode {
            through!(self, reg_mr_dma_buf, comm, data, size, kind, offset, fd, out)
        }
        unsafe fn dereg_mr(&self, comm: Opaque, mr: Opaque) -> ResultCode {
            through!(self, dereg_mr, comm, mr)
        }
        unsafe fn iflush(
            &self,
            comm: Opaque,
            n: c_int,
            data: *mut Opaque,
            sizes: *mut c_int,
            mhandles: *mut Opaque,
            request: *mut Opaque,
        ) -> ResultCode {
            through!(self, iflush, comm, n, data, sizes, mhandles, request)
        }
        unsafe fn test(&self, request: Opaque, done: *mut c_int, sizes: *mut c_int) -> ResultCode {
            through!(self, test, request, done, sizes)
        }
        unsafe fn close_send(&self, comm: Opaque) -> ResultCode {
            through!(self, close_send, comm)
        }
        unsafe fn close_recv(&self, comm: Opaque) -> ResultCode {
            through!(self, close_recv, comm)
        }
        unsafe fn close_listen(&self, comm: Opaque) -> ResultCode {
            through!(self, close_listen, comm)
        }
    };
}
