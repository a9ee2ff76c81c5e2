//! The objects of the provider in `world`, which enforce libfabric's rules. An object in use is not closed. A
//! registration is bound once, to an endpoint that is enabled, and has its key only after it is enabled itself.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use trunkline_sys::ofi::{self, class, control, errno, mr_mode};

use crate::posts;
use crate::world::{Asked, Ended, Point, World, here, name};

/// An object of any class, with the fields of the fake behind the C structure.
#[repr(C)]
pub struct Fake<T> {
    pub raw: T,
    pub world: Arc<World>,
    /// Number of its users; it can be closed only when this is 0.
    pub users: AtomicUsize,
    /// The objects that it uses.
    pub uses: Mutex<Vec<*mut ofi::Fid>>,
    pub enabled: AtomicBool,
    pub bound: AtomicBool,
}

/// Returns the object at a pointer, whatever its class.
unsafe fn fake<'a, T>(fid: *mut T) -> &'a Fake<T> {
    // SAFETY: the caller passes an open object, and every object here is a `Fake`.
    unsafe { &*fid.cast::<Fake<T>>() }
}

/// Returns the `users` of an object of any class.
unsafe fn users<'a>(fid: *mut ofi::Fid) -> &'a AtomicUsize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        match (*fid).fclass {
            class::FABRIC => &fake::<ofi::FidFabric>(fid.cast()).users,
            class::DOMAIN => &fake::<ofi::FidDomain>(fid.cast()).users,
            class::EP => &fake::<ofi::FidEp>(fid.cast()).users,
            class::AV => &fake::<ofi::FidAv>(fid.cast()).users,
            class::CQ => &fake::<ofi::FidCq>(fid.cast()).users,
            _ => &fake::<ofi::FidMr>(fid.cast()).users,
        }
    }
}

fn fid(of: usize) -> ofi::Fid {
    ofi::Fid { fclass: of, context: null_mut(), ops: (&raw const OPS).cast_mut() }
}

fn made<T>(world: Arc<World>, raw: T, of: usize, uses: Vec<*mut ofi::Fid>, to: *mut *mut T) -> c_int {
    *world.open.lock().unwrap().entry(of).or_default() += 1;
    for one in &uses {
        // SAFETY: the used objects are open.
        unsafe { users(*one).fetch_add(1, SeqCst) };
    }
    let it = Box::new(Fake {
        raw,
        world,
        users: AtomicUsize::new(0),
        uses: Mutex::new(uses),
        enabled: AtomicBool::new(false),
        bound: AtomicBool::new(false),
    });
    // SAFETY: the caller passes a place that is valid for writes.
    unsafe { *to = Box::into_raw(it).cast() };
    0
}

unsafe fn end<T>(fid: *mut ofi::Fid) -> c_int {
    // SAFETY: the caller passes an object of this class that is closed once.
    unsafe {
        let of = (*fid).fclass;
        let it = fake::<T>(fid.cast());
        let world = Arc::clone(&it.world);
        world.call(|| {
            if it.users.load(SeqCst) > 0 {
                return -errno::EBUSY;
            }
            if of == class::MR {
                if let Err(code) = world.step(Point::CloseMr) {
                    return code;
                }
                let key = (*fid.cast::<ofi::FidMr>()).key;
                if let Some(hook) = &*world.closing.lock().unwrap() {
                    hook(key);
                }
                world.keys.lock().unwrap().remove(&key);
            }
            for one in it.uses.lock().unwrap().iter() {
                users(*one).fetch_sub(1, SeqCst);
            }
            *world.open.lock().unwrap().get_mut(&of).unwrap() -= 1;
            world.note(name(of));
            drop(Box::from_raw(fid.cast::<Fake<T>>()));
            0
        })
    }
}

unsafe extern "C" fn close(fid: *mut ofi::Fid) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        match (*fid).fclass {
            class::FABRIC => end::<ofi::FidFabric>(fid),
            class::DOMAIN => end::<ofi::FidDomain>(fid),
            class::EP => end::<ofi::FidEp>(fid),
            class::AV => end::<ofi::FidAv>(fid),
            class::CQ => end::<ofi::FidCq>(fid),
            _ => end::<ofi::FidMr>(fid),
        }
    }
}

unsafe extern "C" fn bind(fid: *mut ofi::Fid, to: *mut ofi::Fid, flags: u64) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        match ((*fid).fclass, (*to).fclass) {
            (class::EP, other) => {
                let it = fake::<ofi::FidEp>(fid.cast());
                let point = if other == class::CQ { Point::BindQueue } else { Point::BindVector };
                let wanted = ofi::caps::TRANSMIT | ofi::caps::RECV | ofi::caps::SELECTIVE_COMPLETION;
                assert!(other != class::CQ || flags == wanted, "bound with {flags:#x}");
                if let Err(code) = it.world.step(point) {
                    return code;
                }
                it.uses.lock().unwrap().push(to);
                users(to).fetch_add(1, SeqCst);
                0
            }
            (class::MR, class::EP) => {
                let it = fake::<ofi::FidMr>(fid.cast());
                let world = Arc::clone(&it.world);
                world.call(|| {
                    if let Err(code) = world.step(Point::BindMr) {
                        return code;
                    }
                    let ready = fake::<ofi::FidEp>(to.cast()).enabled.load(SeqCst);
                    if it.bound.load(SeqCst) || it.enabled.load(SeqCst) || !ready {
                        return -errno::EINVAL;
                    }
                    it.bound.store(true, SeqCst);
                    it.uses.lock().unwrap().push(to);
                    users(to).fetch_add(1, SeqCst);
                    0
                })
            }
            _ => -errno::EINVAL,
        }
    }
}

unsafe extern "C" fn command(fid: *mut ofi::Fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        match ((*fid).fclass, command) {
            (class::EP, control::ENABLE) => {
                let it = fake::<ofi::FidEp>(fid.cast());
                if it.world.is_full() {
                    return -errno::EAGAIN;
                }
                it.enabled.store(true, SeqCst);
                it.world.step(Point::EnableEndpoint).err().unwrap_or(0)
            }
            (class::MR, control::ENABLE) => enable_mr(fid),
            (class::CQ, control::GETWAIT) => {
                *arg.cast::<c_int>() = 77;
                0
            }
            _ => -errno::ENOSYS,
        }
    }
}

unsafe fn enable_mr(fid: *mut ofi::Fid) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let it = unsafe { fake::<ofi::FidMr>(fid.cast()) };
    let world = Arc::clone(&it.world);
    if world.is_full() {
        return -errno::EAGAIN;
    }
    if let Err(code) = world.step(Point::EnableMr) {
        return code;
    }
    if !it.bound.load(SeqCst) || it.enabled.swap(true, SeqCst) {
        return -errno::EINVAL;
    }
    let mut key = None;
    if world.kind.mr_mode & mr_mode::PROV_KEY != 0 && world.step(Point::Key).is_ok() {
        key = Some(own_key(&world));
    }
    if world.step(Point::Key).is_err() {
        key = Some(ofi::KEY_NOTAVAIL);
    }
    if let Some(key) = key {
        // SAFETY: the caller passes a registration, whose key is not read before it is enabled.
        unsafe { (*fid.cast::<ofi::FidMr>()).key = key };
    }
    0
}

fn own_key(world: &World) -> u64 {
    0x1000 + world.next_key.fetch_add(1, SeqCst) as u64
}

static OPS: ofi::Ops = ofi::Ops {
    size: size_of::<ofi::Ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(command),
    ops_open: None,
    tostr: None,
    ops_set: None,
};

pub unsafe extern "C" fn open_fabric(
    _: *mut ofi::FabricAttr,
    to: *mut *mut ofi::FidFabric,
    _: *mut c_void,
) -> c_int {
    let world = here();
    if let Err(code) = world.step(Point::Fabric) {
        return code;
    }
    let raw = ofi::FidFabric {
        fid: fid(class::FABRIC),
        ops: (&raw const FABRIC).cast_mut(),
        api_version: ofi::API,
    };
    made(world, raw, class::FABRIC, Vec::new(), to)
}

static FABRIC: ofi::OpsFabric = ofi::OpsFabric {
    size: size_of::<ofi::OpsFabric>(),
    domain: Some(open_domain),
    passive_ep: None,
    eq_open: None,
    wait_open: None,
    trywait: Some(trywait),
    domain2: None,
};

unsafe extern "C" fn trywait(fabric: *mut ofi::FidFabric, _: *mut *mut ofi::Fid, count: c_int) -> c_int {
    assert_eq!(count, 1);
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let it = unsafe { fake(fabric) };
    if it.world.ended.lock().unwrap().is_empty() { 0 } else { -errno::EAGAIN }
}

unsafe extern "C" fn open_domain(
    fabric: *mut ofi::FidFabric,
    _: *mut ofi::Info,
    to: *mut *mut ofi::FidDomain,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = Arc::clone(unsafe { &fake(fabric).world });
    if let Err(code) = world.step(Point::Domain) {
        return code;
    }
    let raw = ofi::FidDomain {
        fid: fid(class::DOMAIN),
        ops: (&raw const DOMAIN).cast_mut(),
        mr: (&raw const MR).cast_mut(),
    };
    made(world, raw, class::DOMAIN, vec![fabric.cast()], to)
}

static DOMAIN: ofi::OpsDomain = ofi::OpsDomain {
    size: size_of::<ofi::OpsDomain>(),
    av_open: Some(open_av),
    cq_open: Some(open_cq),
    endpoint: Some(open_ep),
    scalable_ep: None,
    cntr_open: None,
    poll_open: None,
    stx_ctx: None,
    srx_ctx: None,
    query_atomic: None,
    query_collective: None,
    endpoint2: None,
};

unsafe extern "C" fn open_av(
    domain: *mut ofi::FidDomain,
    _: *mut ofi::AvAttr,
    to: *mut *mut ofi::FidAv,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = Arc::clone(unsafe { &fake(domain).world });
    if let Err(code) = world.step(Point::Vector) {
        return code;
    }
    let raw = ofi::FidAv { fid: fid(class::AV), ops: (&raw const AV).cast_mut() };
    made(world, raw, class::AV, vec![domain.cast()], to)
}

static AV: ofi::OpsAv = ofi::OpsAv {
    size: size_of::<ofi::OpsAv>(),
    insert: Some(insert),
    insertsvc: None,
    insertsym: None,
    remove: Some(remove),
    lookup: None,
    straddr: None,
    av_set: None,
};

/// Accepts any address that does not begin with zero.
unsafe extern "C" fn insert(
    _: *mut ofi::FidAv,
    addr: *const c_void,
    count: usize,
    to: *mut ofi::Addr,
    _: u64,
    _: *mut c_void,
) -> c_int {
    assert_eq!(count, 1);
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        let first = *addr.cast::<u8>();
        *to = if first == 0 { ofi::ADDR_NOTAVAIL } else { first.into() };
        c_int::from(first != 0)
    }
}

unsafe extern "C" fn remove(_: *mut ofi::FidAv, at: *mut ofi::Addr, count: usize, _: u64) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let known = count == 1 && unsafe { *at } != 99;
    if known { 0 } else { -errno::EINVAL }
}

unsafe extern "C" fn open_cq(
    domain: *mut ofi::FidDomain,
    attr: *mut ofi::CqAttr,
    to: *mut *mut ofi::FidCq,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = Arc::clone(unsafe { &fake(domain).world });
    if let Err(code) = world.step(Point::Queue) {
        return code;
    }
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let tagged = unsafe { (*attr).format } == ofi::cq_format::TAGGED;
    let ops = if tagged { &raw const TAGGED } else { &raw const PLAIN };
    let raw = ofi::FidCq { fid: fid(class::CQ), ops: ops.cast_mut() };
    made(world, raw, class::CQ, vec![domain.cast()], to)
}

const fn cq(read: ofi::CqRead, readfrom: ofi::CqReadfrom) -> ofi::OpsCq {
    ofi::OpsCq {
        size: size_of::<ofi::OpsCq>(),
        read: Some(read),
        readfrom: Some(readfrom),
        readerr: Some(readerr),
        sread: None,
        sreadfrom: None,
        signal: None,
        strerror: Some(explain),
    }
}

static PLAIN: ofi::OpsCq = cq(read::<40>, readfrom::<40>);
static TAGGED: ofi::OpsCq = cq(read::<48>, readfrom::<48>);

unsafe extern "C" fn read<const SIZE: usize>(cq: *mut ofi::FidCq, to: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe { readfrom::<SIZE>(cq, to, count, null_mut()) }
}

unsafe extern "C" fn readfrom<const SIZE: usize>(
    cq: *mut ofi::FidCq,
    to: *mut c_void,
    count: usize,
    from: *mut ofi::Addr,
) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = Arc::clone(unsafe { &fake(cq).world });
    world.call(|| {
        let mut ended = world.ended.lock().unwrap();
        let mut told = 0;
        while told < count {
            let next = world.next(cq.addr(), &ended);
            let Some(Ended::Well(entry, source)) = next.and_then(|at| ended.get(at)) else { break };
            // SAFETY: there is room for that many entries, and an entry is a prefix of a longer one.
            unsafe {
                let place = to.cast::<u8>().add(told * SIZE);
                std::ptr::copy_nonoverlapping((&raw const *entry).cast(), place, SIZE);
                if !from.is_null() {
                    *from.add(told) = *source;
                }
            }
            ended.remove(next.unwrap());
            told += 1;
        }
        match (told, world.next(cq.addr(), &ended)) {
            (0, None) => -(errno::EAGAIN as isize),
            (0, Some(_)) => -(errno::EAVAIL as isize),
            (told, _) => told as isize,
        }
    })
}

unsafe extern "C" fn readerr(cq: *mut ofi::FidCq, to: *mut ofi::CqErrEntry, _: u64) -> isize {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = Arc::clone(unsafe { &fake(cq).world });
    let mut ended = world.ended.lock().unwrap();
    let next = world.next(cq.addr(), &ended);
    let Some(Ended::Badly(entry)) = next.and_then(|at| ended.get(at)) else {
        return -(errno::EAGAIN as isize);
    };
    // SAFETY: the caller passes an entry with room for the fields of a later version.
    unsafe {
        *to = *entry;
        *to.add(1).cast::<u64>() = 0x5eed;
    }
    ended.remove(next.unwrap());
    1
}

unsafe extern "C" fn explain(
    _: *mut ofi::FidCq,
    number: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    if number == 7 { c"the seventh".as_ptr() } else { std::ptr::null() }
}

unsafe extern "C" fn open_ep(
    domain: *mut ofi::FidDomain,
    _: *mut ofi::Info,
    to: *mut *mut ofi::FidEp,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let world = Arc::clone(unsafe { &fake(domain).world });
    if let Err(code) = world.step(Point::Endpoint) {
        return code;
    }
    let raw = ofi::FidEp {
        fid: fid(class::EP),
        ops: (&raw const EP).cast_mut(),
        cm: (&raw const CM).cast_mut(),
        msg: (&raw const posts::MSG).cast_mut(),
        rma: (&raw const posts::RMA).cast_mut(),
        tagged: (&raw const posts::TAGGED).cast_mut(),
        atomic: null_mut(),
        collective: null_mut(),
    };
    made(world, raw, class::EP, vec![domain.cast()], to)
}

static EP: ofi::OpsEp = ofi::OpsEp {
    size: size_of::<ofi::OpsEp>(),
    cancel: Some(posts::cancel),
    getopt: None,
    setopt: Some(setopt),
    tx_ctx: None,
    rx_ctx: None,
    rx_size_left: None,
    tx_size_left: None,
};

unsafe extern "C" fn setopt(
    fid: *mut ofi::Fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    let flags = [ofi::opt::CUDA_API_PERMITTED, ofi::opt::SHARED_MEMORY_PERMITTED];
    if level == ofi::OPT_ENDPOINT && flags.contains(&option) && len == 1 {
        // SAFETY: the caller passes valid arguments, as libfabric's callers must.
        let (world, permitted) = unsafe { (&fake::<ofi::FidEp>(fid.cast()).world, *value.cast::<u8>()) };
        assert_eq!(permitted, 0);
        let (place, count) = match option {
            ofi::opt::CUDA_API_PERMITTED => (&world.cuda_option, &world.quiet_endpoints),
            _ => (&world.shared_option, &world.apart_endpoints),
        };
        let said = *place.lock().unwrap();
        count.fetch_add(usize::from(said == 0), SeqCst);
        return said;
    }
    assert_eq!((level, option, len), (ofi::OPT_ENDPOINT, ofi::opt::FI_HMEM_P2P, 4));
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        assert_eq!(*value.cast::<c_int>(), ofi::hmem_p2p::DISABLED);
        let it = fake::<ofi::FidEp>(fid.cast());
        assert!(!it.enabled.load(SeqCst), "options must be set before the endpoint is enabled");
        it.world.step(Point::Option).err().unwrap_or(0)
    }
}

static CM: ofi::OpsCm = ofi::OpsCm {
    size: size_of::<ofi::OpsCm>(),
    setname: None,
    getname: Some(getname),
    getpeer: None,
    connect: None,
    listen: None,
    accept: None,
    reject: None,
    shutdown: None,
    join: None,
};

unsafe extern "C" fn getname(_: *mut ofi::Fid, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    unsafe {
        assert!(*len >= 4);
        std::ptr::copy_nonoverlapping(b"name".as_ptr(), to.cast(), 4);
        *len = 4;
    }
    0
}

static MR: ofi::OpsMr =
    ofi::OpsMr { size: size_of::<ofi::OpsMr>(), reg: None, regv: None, regattr: Some(regattr) };

unsafe extern "C" fn regattr(
    domain: *mut ofi::Fid,
    attr: *const ofi::MrAttr,
    flags: u64,
    to: *mut *mut ofi::FidMr,
) -> c_int {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    let (world, attr, behind) = unsafe {
        let world = Arc::clone(&fake::<ofi::FidDomain>(domain.cast()).world);
        (world, *attr, *attr.add(1).cast::<[u64; 8]>())
    };
    assert_eq!(behind, [0; 8], "the bytes behind the attributes, which a later version reads, are not zero");
    world.call(|| {
        if let Err(code) = world.step(Point::Regattr) {
            return code;
        }
        let host = attr.iface == ofi::hmem::SYSTEM;
        if let (false, Err(code)) = (host, world.step(Point::Device)) {
            return code;
        }
        if host && world.kind.mr_mode & mr_mode::ALLOCATED != 0 && !are_pages_there(&asked(&attr, flags)) {
            return -errno::EFAULT;
        }
        world.asked.lock().unwrap().push(asked(&attr, flags));
        let (prov, endpoint) = (mr_mode::PROV_KEY, mr_mode::ENDPOINT);
        let key = match world.kind.mr_mode {
            mode if mode & prov == 0 && !world.keys.lock().unwrap().insert(attr.requested_key) => {
                return -errno::ENOKEY;
            }
            mode if mode & prov == 0 => attr.requested_key,
            mode if mode & endpoint == 0 => own_key(&world),
            _ => ofi::KEY_NOTAVAIL,
        };
        let mem_desc = std::ptr::with_exposed_provenance_mut(0xd00d);
        let raw = ofi::FidMr { fid: fid(class::MR), mem_desc, key };
        made(Arc::clone(&world), raw, class::MR, vec![domain], to)
    })
}

fn are_pages_there(asked: &Asked) -> bool {
    let start = asked.addr / 4096 * 4096;
    let len = asked.addr + asked.len - start;
    let mut there = vec![0_u8; len.div_ceil(4096)];
    // SAFETY: the memory is mapped, and there is a byte for each page.
    let code =
        unsafe { libc::mincore(std::ptr::with_exposed_provenance_mut(start), len, there.as_mut_ptr()) };
    code == 0 && there.iter().all(|page| page & 1 == 1)
}

fn asked(attr: &ofi::MrAttr, flags: u64) -> Asked {
    assert_eq!(attr.iov_count, 1);
    let dmabuf = flags & ofi::MR_DMABUF != 0;
    // SAFETY: the caller passes ranges, or a dma-buf with the flag.
    unsafe {
        let part = dmabuf.then(|| &*attr.mr_iov.cast::<ofi::MrDmabuf>());
        let (addr, len) = match part {
            Some(part) => (part.base_addr.addr() + part.offset as usize, part.len),
            None => ((*attr.mr_iov).iov_base.addr(), (*attr.mr_iov).iov_len),
        };
        Asked {
            access: attr.access,
            key: attr.requested_key,
            iface: attr.iface,
            device: attr.device,
            flags,
            addr,
            len,
            dmabuf: part.map(|part| (part.fd, part.offset, part.len, part.base_addr.addr())),
        }
    }
}

/// Returns the address of an endpoint's queue.
pub unsafe fn queue_of(ep: *mut ofi::FidEp) -> usize {
    // SAFETY: the caller passes an open endpoint, and the objects that it uses are open.
    let uses = unsafe { fake(ep) }.uses.lock().unwrap();
    // SAFETY: as above.
    uses.iter().find(|fid| unsafe { (***fid).fclass } == class::CQ).unwrap().addr()
}

/// Returns the world of an endpoint.
pub unsafe fn world_of(ep: *mut ofi::FidEp) -> Arc<World> {
    // SAFETY: the caller passes valid arguments, as libfabric's callers must.
    Arc::clone(unsafe { &fake(ep).world })
}
