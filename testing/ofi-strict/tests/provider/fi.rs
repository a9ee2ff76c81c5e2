//! libfabric as programs use it: opened at run time, and called through the tables of its objects.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use trunkline_sys::ofi::*;

/// Longest wait of the tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a function of a table.
macro_rules! op {
    ($table:expr, $slot:ident) => {
        (*$table).$slot.unwrap()
    };
}
pub(crate) use op;

/// Opens the library; returns the reason if that fails.
pub(crate) fn library() -> Result<libloading::os::unix::Library, String> {
    // SAFETY: the constructors of libfabric have no preconditions.
    unsafe { libloading::os::unix::Library::new("libfabric.so.1") }.map_err(|error| error.to_string())
}

/// Returns an exported function, at the version of its symbol.
fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let (name, version) = VERSIONS.iter().find(|(known, _)| known.to_str() == Ok(name)).unwrap();
    // SAFETY: the library is open, and both texts are zero-terminated.
    let at = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    assert!(!at.is_null(), "{name:?} {version:?}");
    at
}

/// The exported functions of the library.
pub(crate) struct Fi {
    getinfo: Getinfo,
    freeinfo: Freeinfo,
    dupinfo: Dupinfo,
    fabric: OpenFabric,
}

impl Fi {
    pub(crate) fn open() -> Self {
        let handle = library().unwrap().into_raw();
        // SAFETY: the symbols have these types, and the library stays loaded.
        unsafe {
            Self {
                getinfo: std::mem::transmute::<*mut c_void, Getinfo>(symbol(handle, "fi_getinfo")),
                freeinfo: std::mem::transmute::<*mut c_void, Freeinfo>(symbol(handle, "fi_freeinfo")),
                dupinfo: std::mem::transmute::<*mut c_void, Dupinfo>(symbol(handle, "fi_dupinfo")),
                fabric: std::mem::transmute::<*mut c_void, OpenFabric>(symbol(handle, "fi_fabric")),
            }
        }
    }

    /// Returns the offers for hints. Unless `change` replaces them, the hints accept all requirements for
    /// registrations.
    pub(crate) fn getinfo(&self, change: impl FnOnce(&mut Hints<'_>)) -> Result<*mut Info, c_int> {
        // SAFETY: the library allocates and frees the structure, with all its attributes.
        unsafe {
            let info = (self.dupinfo)(ptr::null());
            let mut hints = Hints {
                info: &mut *info,
                tx: &mut *(*info).tx_attr,
                rx: &mut *(*info).rx_attr,
                domain: &mut *(*info).domain_attr,
            };
            hints.info.caps = caps::MSG | caps::TAGGED | caps::RMA | caps::SOURCE | caps::DIRECTED_RECV;
            hints.domain.mr_mode = 0xFFC;
            (*(*info).ep_attr).r#type = ep_type::RDM;
            (*(*info).fabric_attr).prov_name = libc::strdup(c"strict".as_ptr());
            change(&mut hints);
            let mut out = ptr::null_mut();
            let rc = (self.getinfo)(API, ptr::null(), ptr::null(), 0, info, &raw mut out);
            (self.freeinfo)(info);
            if rc == 0 { Ok(out) } else { Err(rc) }
        }
    }

    /// Opens the fabric and domain of the first offer for hints.
    pub(crate) fn net(&self, change: impl FnOnce(&mut Hints<'_>)) -> Net {
        let info = self.getinfo(change).expect("fi_getinfo");
        let mut fabric = ptr::null_mut();
        // SAFETY: a result of `fi_getinfo`.
        let rc = unsafe { (self.fabric)((*info).fabric_attr, &raw mut fabric, ptr::null_mut()) };
        assert_eq!(rc, 0, "fi_fabric");
        // SAFETY: as above.
        let domain = unsafe { domain(fabric, info) }.expect("fi_domain");
        // SAFETY: as above.
        let mode = unsafe { (*(*info).domain_attr).mr_mode };
        Net { fabric, domain, info, mode }
    }
}

/// Opens a domain.
pub(crate) unsafe fn domain(fabric: *mut FidFabric, info: *mut Info) -> Result<*mut FidDomain, c_int> {
    let mut domain = ptr::null_mut();
    // SAFETY: the caller passes an open fabric and a result of `fi_getinfo`.
    let rc = unsafe { op!((*fabric).ops, domain)(fabric, info, &raw mut domain, ptr::null_mut()) };
    if rc == 0 { Ok(domain) } else { Err(rc) }
}

/// Hints that a test may change.
pub(crate) struct Hints<'a> {
    pub(crate) info: &'a mut Info,
    pub(crate) tx: &'a mut TxAttr,
    pub(crate) rx: &'a mut RxAttr,
    pub(crate) domain: &'a mut DomainAttr,
}

/// An open domain.
pub(crate) struct Net {
    pub(crate) fabric: *mut FidFabric,
    pub(crate) domain: *mut FidDomain,
    pub(crate) info: *mut Info,
    pub(crate) mode: i32,
}

/// Repeats a call while it returns `-FI_EAGAIN`.
pub(crate) fn again(mut call: impl FnMut() -> c_int) -> c_int {
    let end = Instant::now() + PATIENCE;
    loop {
        let rc = call();
        if rc != -errno::EAGAIN {
            return rc;
        }
        assert!(Instant::now() < end, "the call returned -FI_EAGAIN for 20 s");
    }
}

/// Closes an object.
pub(crate) fn close<T>(fid: *mut T) -> c_int {
    let fid = fid.cast::<Fid>();
    // SAFETY: the object is open, and every object begins with a `Fid`.
    unsafe { op!((*fid).ops, close)(fid) }
}

/// Binds an object to another object.
pub(crate) fn bind<T, O>(fid: *mut T, other: *mut O, flags: u64) -> c_int {
    let fid = fid.cast::<Fid>();
    // SAFETY: as above.
    unsafe { op!((*fid).ops, bind)(fid, other.cast(), flags) }
}

/// Executes a command on an object.
pub(crate) fn control<T>(fid: *mut T, command: c_int, arg: *mut c_void) -> c_int {
    let fid = fid.cast::<Fid>();
    // SAFETY: as above.
    unsafe { op!((*fid).ops, control)(fid, command, arg) }
}

pub(crate) fn enable<T>(fid: *mut T) -> c_int {
    again(|| control(fid, control::ENABLE, ptr::null_mut()))
}

impl Net {
    pub(crate) fn cq(&self, attr: CqAttr) -> Result<*mut FidCq, c_int> {
        let (mut cq, mut attr) = (ptr::null_mut(), attr);
        // SAFETY: the domain is open, and the arguments live during the call.
        let rc = unsafe {
            op!((*self.domain).ops, cq_open)(self.domain, &raw mut attr, &raw mut cq, ptr::null_mut())
        };
        if rc == 0 { Ok(cq) } else { Err(rc) }
    }

    pub(crate) fn av(&self, kind: u32) -> *mut FidAv {
        let (mut av, mut attr) = (ptr::null_mut(), AvAttr { r#type: kind, ..AvAttr::ZERO });
        // SAFETY: the domain is open, and the arguments live during the call.
        let rc = unsafe {
            op!((*self.domain).ops, av_open)(self.domain, &raw mut attr, &raw mut av, ptr::null_mut())
        };
        assert_eq!(rc, 0, "fi_av_open");
        av
    }

    pub(crate) fn ep(&self) -> Result<*mut FidEp, c_int> {
        let mut ep = ptr::null_mut();
        // SAFETY: the domain is open, and `info` is a result of `fi_getinfo`.
        let rc = unsafe {
            op!((*self.domain).ops, endpoint)(self.domain, self.info, &raw mut ep, ptr::null_mut())
        };
        if rc == 0 { Ok(ep) } else { Err(rc) }
    }

    /// Opens an endpoint with its queue and address vector, without enabling it.
    pub(crate) fn asleep(&self, flags: u64, attr: CqAttr) -> Side {
        let (ep, cq, av) = (self.ep().unwrap(), self.cq(attr).unwrap(), self.av(av_type::MAP));
        assert_eq!(bind(ep, cq, caps::TRANSMIT | caps::RECV | flags), 0);
        assert_eq!(bind(ep, av, 0), 0);
        Side { ep, cq, av, name: [0; 16], came: RefCell::default() }
    }

    /// Opens and enables an endpoint.
    pub(crate) fn side(&self) -> Side {
        self.side_of(0, CqAttr { format: cq_format::TAGGED, ..CqAttr::ZERO })
    }

    pub(crate) fn side_of(&self, flags: u64, attr: CqAttr) -> Side {
        let mut side = self.asleep(flags, attr);
        assert_eq!(enable(side.ep), 0);
        side.name = side.getname().unwrap();
        side
    }

    /// Registers memory, without bind or enable.
    pub(crate) fn register(&self, buf: &[u8], access: u64, key: u64) -> Result<*mut FidMr, c_int> {
        let iov = Iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
        let attr =
            MrAttr { mr_iov: &raw const iov, iov_count: 1, access, requested_key: key, ..MrAttr::ZERO };
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open, and the arguments live during the call.
        let rc =
            unsafe { op!((*self.domain).mr, regattr)(self.domain.cast(), &raw const attr, 0, &raw mut mr) };
        if rc == 0 { Ok(mr) } else { Err(rc) }
    }

    /// Registers memory, and binds and enables the registration for an endpoint if required.
    pub(crate) fn ready(&self, side: &Side, buf: &[u8], access: u64, key: u64) -> *mut FidMr {
        let mr = self.register(buf, access, key).expect("fi_mr_regattr");
        if self.mode & mr_mode::ENDPOINT != 0 {
            assert_eq!(bind(mr, side.ep, 0), 0);
            assert_eq!(enable(mr), 0);
        }
        mr
    }

    /// Returns the remote address of a buffer's first byte.
    pub(crate) fn base(&self, buf: &[u8]) -> u64 {
        if self.mode & mr_mode::VIRT_ADDR != 0 { buf.as_ptr() as u64 } else { 0 }
    }

    /// Closes the domain and its fabric.
    pub(crate) fn close(self) {
        assert_eq!((close(self.domain), close(self.fabric)), (0, 0));
    }
}

/// Returns the descriptor and key of a registration.
pub(crate) fn of(mr: *mut FidMr) -> (*mut c_void, u64) {
    // SAFETY: the registration is open.
    unsafe { ((*mr).mem_desc, (*mr).key) }
}

/// An entry of a queue: a completion with its source, or an error.
pub(crate) type Told = Result<(CqTaggedEntry, Addr), CqErrEntry>;

/// An endpoint with its queue and address vector.
pub(crate) struct Side {
    pub(crate) ep: *mut FidEp,
    pub(crate) cq: *mut FidCq,
    pub(crate) av: *mut FidAv,
    pub(crate) name: [u8; 16],
    came: RefCell<VecDeque<Told>>,
}

impl Side {
    pub(crate) fn getname(&self) -> Result<[u8; 16], c_int> {
        let (mut name, mut len) = ([0; 16], 16);
        // SAFETY: the endpoint is open, and `name` has `len` bytes.
        let rc = unsafe { op!((*self.ep).cm, getname)(self.ep.cast(), (&raw mut name).cast(), &raw mut len) };
        if rc == 0 { Ok(name) } else { Err(rc) }
    }

    /// Inserts the address of a peer; returns its number.
    pub(crate) fn knows(&self, name: &[u8; 16]) -> Addr {
        let mut addr = 0;
        // SAFETY: the vector is open, and one address is passed.
        let count = unsafe {
            op!((*self.av).ops, insert)(self.av, name.as_ptr().cast(), 1, &raw mut addr, 0, ptr::null_mut())
        };
        assert_eq!(count, 1);
        addr
    }

    /// Reads the queue once.
    pub(crate) fn poll(&self) {
        let mut entries = [CqTaggedEntry::ZERO; 16];
        let mut sources = [0; 16];
        // SAFETY: the queue is open and has this format, and the buffers have 16 entries.
        let rc = unsafe {
            op!((*self.cq).ops, readfrom)(self.cq, (&raw mut entries).cast(), 16, (&raw mut sources).cast())
        };
        let mut came = self.came.borrow_mut();
        if rc == -(errno::EAVAIL as isize) {
            let mut entry = CqErrEntry::ZERO;
            // SAFETY: as above.
            assert_eq!(unsafe { op!((*self.cq).ops, readerr)(self.cq, &raw mut entry, 0) }, 1);
            came.push_back(Err(entry));
        } else if rc != -(errno::EAGAIN as isize) {
            let count = usize::try_from(rc).expect("fi_cq_readfrom");
            came.extend(entries.into_iter().zip(sources).take(count).map(Ok));
        }
    }

    /// Waits for the next entry, while all endpoints make progress.
    pub(crate) fn next(&self, others: &[&Self]) -> Told {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(told) = self.came.borrow_mut().pop_front() {
                return told;
            }
            self.poll();
            others.iter().for_each(|side| side.poll());
            assert!(Instant::now() < end, "no completion arrived within 20 s");
        }
    }

    pub(crate) fn ok(&self, others: &[&Self]) -> CqTaggedEntry {
        self.next(others).map_err(|error| (error.err, error.op_context)).unwrap().0
    }

    pub(crate) fn error(&self, others: &[&Self]) -> CqErrEntry {
        self.next(others).map(|(entry, _)| entry.op_context).unwrap_err()
    }

    /// Whether 200 polls of all endpoints yield no entry here.
    pub(crate) fn is_quiet(&self, others: &[&Self]) -> bool {
        for _ in 0..200 {
            self.poll();
            others.iter().for_each(|side| side.poll());
        }
        self.came.borrow().is_empty()
    }

    /// Posts, and repeats the call while it returns `-FI_EAGAIN`; all endpoints make progress meanwhile.
    pub(crate) fn post(&self, others: &[&Self], mut call: impl FnMut() -> isize) -> isize {
        let end = Instant::now() + PATIENCE;
        loop {
            let rc = call();
            if rc != -(errno::EAGAIN as isize) {
                return rc;
            }
            self.poll();
            others.iter().for_each(|side| side.poll());
            assert!(Instant::now() < end, "posting returned -FI_EAGAIN for 20 s");
        }
    }

    pub(crate) fn send(&self, buf: &[u8], desc: *mut c_void, dest: Addr, context: usize) -> isize {
        // SAFETY: the endpoint is open, and the buffer outlives the operation in these tests.
        unsafe {
            op!((*self.ep).msg, send)(
                self.ep,
                buf.as_ptr().cast(),
                buf.len(),
                desc,
                dest,
                context as *mut c_void,
            )
        }
    }

    pub(crate) fn recv(&self, buf: &mut [u8], desc: *mut c_void, src: Addr, context: usize) -> isize {
        // SAFETY: as above.
        unsafe {
            op!((*self.ep).msg, recv)(
                self.ep,
                buf.as_mut_ptr().cast(),
                buf.len(),
                desc,
                src,
                context as *mut c_void,
            )
        }
    }

    pub(crate) fn tsend(&self, buf: &[u8], desc: *mut c_void, dest: Addr, tag: u64, context: usize) -> isize {
        let context = context as *mut c_void;
        // SAFETY: as above.
        unsafe {
            op!((*self.ep).tagged, send)(self.ep, buf.as_ptr().cast(), buf.len(), desc, dest, tag, context)
        }
    }

    pub(crate) fn trecv(
        &self,
        buf: &mut [u8],
        desc: *mut c_void,
        (tag, ignore): (u64, u64),
        context: usize,
    ) -> isize {
        let (at, context) = (buf.as_mut_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe {
            op!((*self.ep).tagged, recv)(self.ep, at, buf.len(), desc, ADDR_UNSPEC, tag, ignore, context)
        }
    }

    pub(crate) fn write(
        &self,
        buf: &[u8],
        desc: *mut c_void,
        dest: Addr,
        (addr, key): (u64, u64),
        context: usize,
    ) -> isize {
        let (at, context) = (buf.as_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe { op!((*self.ep).rma, write)(self.ep, at, buf.len(), desc, dest, addr, key, context) }
    }

    pub(crate) fn writedata(
        &self,
        buf: &[u8],
        desc: *mut c_void,
        data: u64,
        dest: Addr,
        (addr, key): (u64, u64),
        context: usize,
    ) -> isize {
        let (at, context) = (buf.as_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe {
            op!((*self.ep).rma, writedata)(self.ep, at, buf.len(), desc, data, dest, addr, key, context)
        }
    }

    pub(crate) fn read(
        &self,
        buf: &mut [u8],
        desc: *mut c_void,
        dest: Addr,
        (addr, key): (u64, u64),
        context: usize,
    ) -> isize {
        let (at, context) = (buf.as_mut_ptr().cast(), context as *mut c_void);
        // SAFETY: as above.
        unsafe { op!((*self.ep).rma, read)(self.ep, at, buf.len(), desc, dest, addr, key, context) }
    }

    pub(crate) fn inject(&self, buf: &[u8], dest: Addr) -> isize {
        // SAFETY: as above.
        unsafe { op!((*self.ep).msg, inject)(self.ep, buf.as_ptr().cast(), buf.len(), dest) }
    }

    pub(crate) fn cancel(&self, context: usize) -> isize {
        // SAFETY: as above.
        unsafe { op!((*self.ep).ops, cancel)(self.ep.cast(), context as *mut c_void) }
    }

    /// Closes the endpoint, its queue and its address vector.
    pub(crate) fn close(self) {
        assert_eq!((close(self.ep), close(self.cq), close(self.av)), (0, 0, 0));
    }
}
