//! libfabric as a program sees it: opened at run time, through the tables in its objects.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use trunkline_sys::ofi::*;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// A function of a table.
macro_rules! op {
    ($table:expr, $slot:ident) => {
        (*$table).$slot.unwrap()
    };
}
pub(crate) use op;

/// The library, or why it is not there.
pub(crate) fn library() -> Result<libloading::os::unix::Library, String> {
    // SAFETY: libfabric's constructors run as in any program.
    unsafe { libloading::os::unix::Library::new("libfabric.so.1") }.map_err(|error| error.to_string())
}

/// One exported function, at the version of its symbol.
fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let (name, version) = VERSIONS.iter().find(|(known, _)| known.to_str() == Ok(name)).unwrap();
    // SAFETY: an open library, and two texts.
    let at = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    assert!(!at.is_null(), "{name:?} {version:?}");
    at
}

/// Calls of the library.
pub(crate) struct Fi {
    getinfo: Getinfo,
    freeinfo: Freeinfo,
    dupinfo: Dupinfo,
    fabric: OpenFabric,
}

impl Fi {
    pub(crate) fn open() -> Self {
        let handle = library().unwrap().into_raw();
        // SAFETY: the symbols have these types; it stays loaded.
        unsafe {
            Self {
                getinfo: std::mem::transmute::<*mut c_void, Getinfo>(symbol(handle, "fi_getinfo")),
                freeinfo: std::mem::transmute::<*mut c_void, Freeinfo>(symbol(handle, "fi_freeinfo")),
                dupinfo: std::mem::transmute::<*mut c_void, Dupinfo>(symbol(handle, "fi_dupinfo")),
                fabric: std::mem::transmute::<*mut c_void, OpenFabric>(symbol(handle, "fi_fabric")),
            }
        }
    }

    /// What there is for some hints, which offer all modes of registration unless they are changed.
    pub(crate) fn getinfo(&self, change: impl FnOnce(&mut Hints<'_>)) -> Result<*mut Info, c_int> {
        // SAFETY: made and freed by the library, and filled with its own attributes.
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

    /// Opens the fabric and first domain for some hints.
    pub(crate) fn net(&self, change: impl FnOnce(&mut Hints<'_>)) -> Net {
        let info = self.getinfo(change).expect("fi_getinfo");
        let mut fabric = ptr::null_mut();
        // SAFETY: what `fi_getinfo` made.
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
    // SAFETY: of the caller.
    let rc = unsafe { op!((*fabric).ops, domain)(fabric, info, &raw mut domain, ptr::null_mut()) };
    if rc == 0 { Ok(domain) } else { Err(rc) }
}

/// Hints under way.
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

/// Calls again as long as that is what is said.
pub(crate) fn again(mut call: impl FnMut() -> c_int) -> c_int {
    let end = Instant::now() + PATIENCE;
    loop {
        let rc = call();
        if rc != -errno::EAGAIN {
            return rc;
        }
        assert!(Instant::now() < end, "called again and again");
    }
}

/// Closes an object.
pub(crate) fn close<T>(fid: *mut T) -> c_int {
    let fid = fid.cast::<Fid>();
    // SAFETY: an open object, which begins so.
    unsafe { op!((*fid).ops, close)(fid) }
}

/// Binds an object to another.
pub(crate) fn bind<T, O>(fid: *mut T, other: *mut O, flags: u64) -> c_int {
    let fid = fid.cast::<Fid>();
    // SAFETY: as above.
    unsafe { op!((*fid).ops, bind)(fid, other.cast(), flags) }
}

/// Does a command.
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
        // SAFETY: an open domain.
        let rc = unsafe {
            op!((*self.domain).ops, cq_open)(self.domain, &raw mut attr, &raw mut cq, ptr::null_mut())
        };
        if rc == 0 { Ok(cq) } else { Err(rc) }
    }

    pub(crate) fn av(&self, kind: u32) -> *mut FidAv {
        let (mut av, mut attr) = (ptr::null_mut(), AvAttr { r#type: kind, ..AvAttr::ZERO });
        // SAFETY: an open domain.
        let rc = unsafe {
            op!((*self.domain).ops, av_open)(self.domain, &raw mut attr, &raw mut av, ptr::null_mut())
        };
        assert_eq!(rc, 0, "fi_av_open");
        av
    }

    pub(crate) fn ep(&self) -> Result<*mut FidEp, c_int> {
        let mut ep = ptr::null_mut();
        // SAFETY: an open domain, and what `fi_getinfo` made.
        let rc = unsafe {
            op!((*self.domain).ops, endpoint)(self.domain, self.info, &raw mut ep, ptr::null_mut())
        };
        if rc == 0 { Ok(ep) } else { Err(rc) }
    }

    /// An endpoint with all that it needs, not enabled.
    pub(crate) fn asleep(&self, flags: u64, attr: CqAttr) -> Side {
        let (ep, cq, av) = (self.ep().unwrap(), self.cq(attr).unwrap(), self.av(av_type::MAP));
        assert_eq!(bind(ep, cq, caps::TRANSMIT | caps::RECV | flags), 0);
        assert_eq!(bind(ep, av, 0), 0);
        Side { ep, cq, av, name: [0; 16], came: RefCell::default() }
    }

    /// The same, enabled.
    pub(crate) fn side(&self) -> Side {
        self.side_of(0, CqAttr { format: cq_format::TAGGED, ..CqAttr::ZERO })
    }

    pub(crate) fn side_of(&self, flags: u64, attr: CqAttr) -> Side {
        let mut side = self.asleep(flags, attr);
        assert_eq!(enable(side.ep), 0);
        side.name = side.getname().unwrap();
        side
    }

    /// A registration as it comes.
    pub(crate) fn register(&self, buf: &[u8], access: u64, key: u64) -> Result<*mut FidMr, c_int> {
        let iov = Iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
        let attr =
            MrAttr { mr_iov: &raw const iov, iov_count: 1, access, requested_key: key, ..MrAttr::ZERO };
        let mut mr = ptr::null_mut();
        // SAFETY: an open domain.
        let rc =
            unsafe { op!((*self.domain).mr, regattr)(self.domain.cast(), &raw const attr, 0, &raw mut mr) };
        if rc == 0 { Ok(mr) } else { Err(rc) }
    }

    /// A registration that can be used with an endpoint.
    pub(crate) fn ready(&self, side: &Side, buf: &[u8], access: u64, key: u64) -> *mut FidMr {
        let mr = self.register(buf, access, key).expect("fi_mr_regattr");
        if self.mode & mr_mode::ENDPOINT != 0 {
            assert_eq!(bind(mr, side.ep, 0), 0);
            assert_eq!(enable(mr), 0);
        }
        mr
    }

    /// Where a remote address begins.
    pub(crate) fn base(&self, buf: &[u8]) -> u64 {
        if self.mode & mr_mode::VIRT_ADDR != 0 { buf.as_ptr() as u64 } else { 0 }
    }

    /// Closes the domain and its fabric.
    pub(crate) fn close(self) {
        assert_eq!((close(self.domain), close(self.fabric)), (0, 0));
    }
}

/// Descriptor and key of a registration.
pub(crate) fn of(mr: *mut FidMr) -> (*mut c_void, u64) {
    // SAFETY: an open registration.
    unsafe { ((*mr).mem_desc, (*mr).key) }
}

/// What a queue told: a completion with its source, or an error.
pub(crate) type Told = Result<(CqTaggedEntry, Addr), CqErrEntry>;

/// An endpoint with its queue and peers.
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
        // SAFETY: an open endpoint, and room.
        let rc = unsafe { op!((*self.ep).cm, getname)(self.ep.cast(), (&raw mut name).cast(), &raw mut len) };
        if rc == 0 { Ok(name) } else { Err(rc) }
    }

    /// Makes a peer known.
    pub(crate) fn knows(&self, name: &[u8; 16]) -> Addr {
        let mut addr = 0;
        // SAFETY: an open vector, one address.
        let count = unsafe {
            op!((*self.av).ops, insert)(self.av, name.as_ptr().cast(), 1, &raw mut addr, 0, ptr::null_mut())
        };
        assert_eq!(count, 1);
        addr
    }

    /// Reads once.
    pub(crate) fn poll(&self) {
        let mut entries = [CqTaggedEntry::ZERO; 16];
        let mut sources = [0; 16];
        // SAFETY: an open queue of this format, and room.
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

    /// Waits for the next completion, while all others go on as well.
    pub(crate) fn next(&self, others: &[&Self]) -> Told {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(told) = self.came.borrow_mut().pop_front() {
                return told;
            }
            self.poll();
            others.iter().for_each(|side| side.poll());
            assert!(Instant::now() < end, "nothing comes");
        }
    }

    pub(crate) fn ok(&self, others: &[&Self]) -> CqTaggedEntry {
        self.next(others).map_err(|error| (error.err, error.op_context)).unwrap().0
    }

    pub(crate) fn error(&self, others: &[&Self]) -> CqErrEntry {
        self.next(others).map(|(entry, _)| entry.op_context).unwrap_err()
    }

    /// Whether nothing comes for a while.
    pub(crate) fn is_quiet(&self, others: &[&Self]) -> bool {
        for _ in 0..200 {
            self.poll();
            others.iter().for_each(|side| side.poll());
        }
        self.came.borrow().is_empty()
    }

    /// Posts, again and again if need be, while all go on.
    pub(crate) fn post(&self, others: &[&Self], mut call: impl FnMut() -> isize) -> isize {
        let end = Instant::now() + PATIENCE;
        loop {
            let rc = call();
            if rc != -(errno::EAGAIN as isize) {
                return rc;
            }
            self.poll();
            others.iter().for_each(|side| side.poll());
            assert!(Instant::now() < end, "posted again and again");
        }
    }

    pub(crate) fn send(&self, buf: &[u8], desc: *mut c_void, dest: Addr, context: usize) -> isize {
        // SAFETY: an open endpoint; the buffer outlives the operation in these tests.
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

    /// Closes all three.
    pub(crate) fn close(self) {
        assert_eq!((close(self.ep), close(self.cq), close(self.av)), (0, 0, 0));
    }
}
