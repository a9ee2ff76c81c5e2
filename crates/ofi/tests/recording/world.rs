//! A libfabric that is a table of functions, with one provider that has configurable demands, records its calls, and can fail any step.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trunkline_ofi::OfiLibrary;
use trunkline_sys::ofi::{self, class, errno, mr_mode};

use crate::objects;

/// A step that can be refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Point {
    Fabric,
    Domain,
    Queue,
    Vector,
    Endpoint,
    BindQueue,
    BindVector,
    Option,
    EnableEndpoint,
    Regattr,
    /// Registering memory of a device.
    Device,
    BindMr,
    EnableMr,
    /// Enabling succeeds, but there is still no key.
    Key,
    CloseMr,
}

/// The properties of the provider.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub mr_mode: i32,
    pub threading: u32,
    pub key_bytes: usize,
    pub data_bytes: usize,
    pub caps: u64,
    pub version: u32,
    pub op_flags: u64,
    /// Inject size if memory of devices was requested, in bytes.
    pub device_inject: usize,
}

pub const ALL: u64 = ofi::caps::MSG | ofi::caps::RMA | ofi::caps::TAGGED;

impl Default for Kind {
    fn default() -> Self {
        Self {
            mr_mode: mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::ALLOCATED,
            threading: ofi::threading::COMPLETION,
            key_bytes: 8,
            data_bytes: 8,
            caps: ALL | ofi::caps::HMEM,
            version: ofi::version(1, 17),
            op_flags: ofi::caps::DELIVERY_COMPLETE,
            device_inject: 64,
        }
    }
}

/// A requested registration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asked {
    pub access: u64,
    pub key: u64,
    pub iface: u32,
    pub device: u64,
    pub flags: u64,
    pub addr: usize,
    pub len: usize,
    pub dmabuf: Option<(i32, u64, usize, usize)>,
}

/// An operation as it was posted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Post {
    pub call: &'static str,
    pub ranges: Vec<(usize, usize, usize)>,
    pub peer: u64,
    pub remote: Option<(u64, usize, u64)>,
    pub context: usize,
    pub data: u64,
    pub tag: u64,
    pub ignore: u64,
    pub flags: u64,
}

/// An entry of a queue.
#[derive(Clone, Copy)]
pub enum Ended {
    Well(ofi::CqTaggedEntry, u64),
    Badly(ofi::CqErrEntry),
}

// SAFETY: its pointers are used as numbers only.
unsafe impl Send for Ended {}

/// How one-sided operations complete by themselves.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Echo {
    /// They do not complete.
    #[default]
    Silent,
    /// They succeed, and a write's target receives an entry.
    Whole,
    /// They succeed, but targets receive no entries.
    Untold,
    /// They end with this error.
    Badly(c_int),
}

type Hook = Box<dyn Fn(u64) + Send>;

/// The provider.
#[derive(Default)]
pub struct World {
    pub kind: Kind,
    pub fail: Mutex<HashMap<Point, c_int>>,
    /// Open objects of each class.
    pub open: Mutex<HashMap<usize, usize>>,
    /// The recorded calls, in order.
    pub log: Mutex<Vec<&'static str>>,
    pub asked: Mutex<Vec<Asked>>,
    pub keys: Mutex<HashSet<u64>>,
    pub next_key: AtomicUsize,
    pub closing: Mutex<Option<Hook>>,
    pub posts: Mutex<Vec<Post>>,
    pub answer: Mutex<isize>,
    pub ended: Mutex<VecDeque<Ended>>,
    pub inside: AtomicUsize,
    pub overlapped: AtomicBool,
    /// Whether calls take long, so that they overlap.
    pub slow: AtomicBool,
    /// How many times enabling returns "again".
    pub again: AtomicUsize,
    /// Number of infos that were allocated and not freed.
    pub infos: AtomicUsize,
    /// The queue that receives the completion of a one-sided operation, by its context.
    pub queues: Mutex<HashMap<usize, usize>>,
    /// How one-sided operations complete, and reads if they differ.
    pub echo: Mutex<Echo>,
    pub echo_reads: Mutex<Option<Echo>>,
    /// The result of posting writes with data.
    pub writes_data: Mutex<isize>,
    /// Capabilities requested in queries, in order.
    pub wishes: Mutex<Vec<u64>>,
    /// The result of setting the CUDA option, and how often it was accepted.
    pub cuda_option: Mutex<c_int>,
    pub quiet_endpoints: AtomicUsize,
    /// The same for the option about memory of the host.
    pub shared_option: Mutex<c_int>,
    pub apart_endpoints: AtomicUsize,
    /// Whether posts are not recorded.
    pub quiet: AtomicBool,
    /// Whether offers after the first are of another domain.
    pub strangers: AtomicBool,
    /// Number of offers after the first.
    pub offers: AtomicUsize,
}

thread_local! {
    static HERE: RefCell<Option<Arc<World>>> = const { RefCell::new(None) };
}

/// Returns the world of this thread.
pub fn here() -> Arc<World> {
    HERE.with_borrow(|here| here.clone().unwrap())
}

impl World {
    /// Creates a world, makes it this thread's, and returns it with a library.
    pub fn begin(kind: Kind) -> (Arc<Self>, Arc<OfiLibrary>) {
        let world = Arc::new(Self { kind, offers: 1.into(), ..Self::default() });
        HERE.set(Some(Arc::clone(&world)));
        // SAFETY: the functions below implement libfabric's contract.
        let library = unsafe { OfiLibrary::from_calls(calls()) };
        (world, Arc::new(library))
    }

    /// Refuses a step from now on.
    pub fn refuse(&self, point: Point, errno: c_int) {
        self.fail.lock().unwrap().insert(point, errno);
    }

    /// Refuses no step any more.
    pub fn relent(&self) {
        self.fail.lock().unwrap().clear();
    }

    /// Returns the configured result of a step.
    pub fn step(&self, point: Point) -> Result<(), c_int> {
        match self.fail.lock().unwrap().get(&point) {
            Some(errno) => Err(-errno),
            None => Ok(()),
        }
    }

    /// Returns whether the NIC has no room this time.
    pub fn is_full(&self) -> bool {
        self.again.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    /// Returns the number of open objects of a class.
    pub fn open_of(&self, class: usize) -> usize {
        self.open.lock().unwrap().get(&class).copied().unwrap_or(0)
    }

    /// Returns the number of open objects.
    pub fn open(&self) -> usize {
        self.open.lock().unwrap().values().sum()
    }

    /// Returns the position of the next entry for a queue: of its own operations, or without an owner.
    pub fn next(&self, queue: usize, ended: &VecDeque<Ended>) -> Option<usize> {
        let queues = self.queues.lock().unwrap();
        ended.iter().position(|ended| {
            let context = match ended {
                Ended::Well(entry, _) => entry.op_context.addr(),
                Ended::Badly(entry) => entry.op_context.addr(),
            };
            queues.get(&context).is_none_or(|&of| of == queue)
        })
    }

    pub fn note(&self, what: &'static str) {
        self.log.lock().unwrap().push(what);
    }

    pub fn take_log(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    /// Executes one call of the provider, and detects whether it overlaps another one.
    pub fn call<T>(&self, what: impl FnOnce() -> T) -> T {
        if self.inside.fetch_add(1, SeqCst) != 0 {
            self.overlapped.store(true, SeqCst);
        }
        if self.slow.load(SeqCst) {
            std::thread::sleep(Duration::from_micros(50));
        }
        let done = what();
        self.inside.fetch_sub(1, SeqCst);
        done
    }
}

fn calls() -> ofi::Calls {
    ofi::Calls {
        getinfo,
        freeinfo,
        dupinfo,
        fabric: objects::open_fabric,
        open: no_open,
        version,
        strerror: no_text,
        tostr: no_tostr,
        tostr_r: no_tostr_r,
    }
}

unsafe extern "C" fn version() -> u32 {
    here().kind.version
}

unsafe extern "C" fn no_open(
    _: u32,
    _: *const c_char,
    _: *mut c_void,
    _: usize,
    _: u64,
    _: *mut *mut ofi::Fid,
    _: *mut c_void,
) -> c_int {
    -errno::ENOSYS
}

unsafe extern "C" fn no_text(_: c_int) -> *const c_char {
    c"an error".as_ptr()
}

unsafe extern "C" fn no_tostr(_: *const c_void, _: c_uint) -> *mut c_char {
    std::ptr::null_mut()
}

unsafe extern "C" fn no_tostr_r(buf: *mut c_char, _: usize, _: *const c_void, _: c_uint) -> *mut c_char {
    buf
}

fn boxed<T>() -> *mut T {
    // SAFETY: all zeros are a valid value of the structure: numbers and null pointers.
    Box::into_raw(Box::new(unsafe { std::mem::zeroed::<T>() }))
}

unsafe extern "C" fn dupinfo(from: *const ofi::Info) -> *mut ofi::Info {
    let info: *mut ofi::Info = boxed();
    // SAFETY: the caller's info is valid or null, and the new one was just allocated.
    unsafe {
        (*info).tx_attr = boxed();
        (*info).rx_attr = boxed();
        (*info).ep_attr = boxed();
        (*info).domain_attr = boxed();
        (*info).fabric_attr = boxed();
        if let Some(from) = from.as_ref() {
            ((*info).caps, (*info).mode) = (from.caps, from.mode);
            *(*info).tx_attr = *from.tx_attr;
            *(*info).rx_attr = *from.rx_attr;
            *(*info).ep_attr = *from.ep_attr;
            *(*info).domain_attr = *from.domain_attr;
            *(*info).fabric_attr = *from.fabric_attr;
            for text in [
                &mut (*(*info).fabric_attr).prov_name,
                &mut (*(*info).fabric_attr).name,
                &mut (*(*info).domain_attr).name,
            ] {
                if !text.is_null() {
                    *text = libc::strdup(*text);
                }
            }
        }
    }
    here().infos.fetch_add(1, SeqCst);
    info
}

unsafe extern "C" fn freeinfo(info: *mut ofi::Info) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: allocated by `dupinfo`, with all its attributes.
        unsafe {
            let info = Box::from_raw(next);
            next = info.next;
            libc::free((*info.fabric_attr).prov_name.cast());
            libc::free((*info.fabric_attr).name.cast());
            libc::free((*info.domain_attr).name.cast());
            drop(Box::from_raw(info.tx_attr));
            drop(Box::from_raw(info.rx_attr));
            drop(Box::from_raw(info.ep_attr));
            drop(Box::from_raw(info.domain_attr));
            drop(Box::from_raw(info.fabric_attr));
        }
        here().infos.fetch_sub(1, SeqCst);
    }
}

unsafe extern "C" fn getinfo(
    api: u32,
    _: *const c_char,
    _: *const c_char,
    _: u64,
    hints: *const ofi::Info,
    list: *mut *mut ofi::Info,
) -> c_int {
    let kind = here().kind;
    // SAFETY: the hints are valid.
    here().wishes.lock().unwrap().push(unsafe { (*hints).caps });
    // SAFETY: the hints are valid, and so is the result of `dupinfo`.
    unsafe {
        if (*hints).caps & !kind.caps != 0 {
            return -errno::ENODATA;
        }
        let info = dupinfo(hints);
        // Capabilities that must be requested explicitly.
        (*info).caps = kind.caps & !(ofi::caps::HMEM & !(*hints).caps);
        (*(*info).domain_attr).mr_mode = kind.mr_mode;
        (*(*info).domain_attr).threading = kind.threading;
        (*(*info).domain_attr).mr_key_size = kind.key_bytes;
        (*(*info).domain_attr).cq_data_size = kind.data_bytes;
        let for_devices = (*hints).caps & ofi::caps::HMEM != 0;
        (*(*info).tx_attr).inject_size = if for_devices { kind.device_inject } else { 64 };
        ((*(*info).tx_attr).size, (*(*info).rx_attr).size) = (256, 256);
        (*(*info).tx_attr).op_flags = kind.op_flags;
        (*(*info).tx_attr).iov_limit = 2;
        (*(*info).ep_attr).mem_tag_format = 0x00aa_aaaa_aaaa_aaaa;
        (*(*info).fabric_attr).api_version = api;
        for _ in 0..here().offers.load(SeqCst) {
            let another = dupinfo(info);
            if here().strangers.load(SeqCst) {
                libc::free((*(*another).domain_attr).name.cast());
                (*(*another).domain_attr).name = libc::strdup(c"elsewhere".as_ptr());
            }
            (*another).next = (*info).next;
            (*info).next = another;
        }
        *list = info;
    }
    0
}

/// Names of classes, for messages.
pub fn name(of: usize) -> &'static str {
    match of {
        class::FABRIC => "fabric",
        class::DOMAIN => "domain",
        class::EP => "endpoint",
        class::AV => "vector",
        class::CQ => "queue",
        _ => "mr",
    }
}
