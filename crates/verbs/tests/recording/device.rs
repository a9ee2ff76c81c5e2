//! A table of functions that replaces libibverbs: one device with one port, whose queue pairs are connected to
//! themselves. Requests complete at once, in order; each thread has a device of its own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Sub;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;

use trunkline_proto::reserve::{try_deque, try_vec};
use trunkline_sys::verbs::*;
use trunkline_verbs::VerbsLibrary;

/// Calls so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Of `post_send`.
    pub(crate) sends: u64,
    /// Of `wr_complete`.
    pub(crate) built: u64,
    /// Of `post_recv`.
    pub(crate) receives: u64,
    /// Of `poll_cq`.
    pub(crate) polls: u64,
    /// Requests posted.
    pub(crate) posted: u64,
    /// Of `wr_start`, which belongs to `wr_complete`.
    pub(crate) started: u64,
    /// Of any other function.
    pub(crate) rest: u64,
}

impl Counts {
    /// Calls that are neither posts nor polls.
    pub(crate) fn others(&self) -> u64 {
        self.rest + self.started - self.built
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            sends: self.sends - before.sends,
            built: self.built - before.built,
            receives: self.receives - before.receives,
            polls: self.polls - before.polls,
            posted: self.posted - before.posted,
            started: self.started - before.started,
            rest: self.rest - before.rest,
        }
    }
}

/// The limits of the device, and the addresses by which it is reached.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Requests of its smallest kind in a queue.
    pub(crate) max_qp_wr: i32,
    /// Inline bytes of a request.
    pub(crate) inline: u32,
    /// Blocks of 64 bytes in a queue of requests, as mlx5 counts them.
    pub(crate) blocks: u32,
    /// The error that refuses a queue pair beyond that.
    pub(crate) refusal: c_int,
    /// The table of the port's addresses.
    pub(crate) gids: [Option<IpAddr>; 2],
}

impl Limits {
    pub(crate) const USUAL: Self = Self {
        max_qp_wr: 1000,
        inline: u32::MAX,
        blocks: u32::MAX,
        refusal: libc::EINVAL,
        gids: [Some(gid(1)), Some(gid(2))],
    };
}

/// An address of the port, and of its peers.
pub(crate) const fn gid(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

/// Runs a closure over a device with these limits.
pub(crate) fn within<T>(limits: Limits, run: impl FnOnce() -> T) -> T {
    with(|device| device.limits = limits);
    let ran = run();
    with(|device| device.limits = Limits::USUAL);
    ran
}

/// The state of the device.
pub(crate) struct State {
    /// Its limits.
    pub(crate) limits: Limits,
    /// GID indices and peers' addresses by which queue pairs were connected, oldest first.
    pub(crate) routes: Vec<(u8, [u8; 16])>,
    /// Queue pairs, oldest first, by address.
    pub(crate) pairs: Vec<usize>,
    pub(crate) queues: u32,
    pub(crate) regions: u32,
    pub(crate) domains: u32,
    pub(crate) contexts: u32,
    /// Rights of the last registration.
    pub(crate) last_access: c_int,
    /// Requested address of the last registration.
    pub(crate) last_addr: usize,
    /// The last dma-buf: offset, length, address for peers, descriptor.
    pub(crate) last_dmabuf: Option<(u64, usize, u64, c_int)>,
    /// Requested address for peers of the last region, if there was one.
    pub(crate) last_iova: Option<u64>,
    /// The error of registering; 0 for none.
    pub(crate) refuses_regions: c_int,
    /// The errors of registering a dma-buf: after the descriptor was read, and before.
    pub(crate) refuses_dmabufs: (c_int, c_int),
    /// Key and length of the last read.
    pub(crate) last_read: (u32, u32),
    /// Pending events: kind and object.
    pub(crate) events: VecDeque<(u32, usize)>,
    pub(crate) events_owed: u32,
    pub(crate) refuses_rungs: bool,
    /// Status of the next request.
    pub(crate) next_status: u32,
    /// Extensions (ECE options) that the device supports; 0 if none.
    pub(crate) options: u32,
    /// Extensions that queue pairs were set to use, oldest first.
    pub(crate) agreed: Vec<u32>,
    /// Pipeline masks that were set for the domain, oldest first.
    pub(crate) masks: Vec<u8>,
    /// Traffic class and service level that queue pairs were connected with, oldest first.
    pub(crate) classes: Vec<(u8, u8)>,
    /// Operations and bytes of the executed requests, if the test records them.
    pub(crate) requests: Option<Vec<(u32, u32)>>,
    number: u32,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { sends: 0, built: 0, receives: 0, polls: 0, posted: 0, started: 0, rest: 0 }) };
    static REFUSE: Cell<u32> = const { Cell::new(u32::MAX) };
    static REFUSE_RECEIVES: Cell<u32> = const { Cell::new(u32::MAX) };
    static STATE: RefCell<State> = const { RefCell::new(State {
        limits: Limits::USUAL, routes: Vec::new(),
        pairs: Vec::new(), queues: 0, regions: 0, domains: 0, contexts: 0, last_access: 0, last_addr: 0,
        last_dmabuf: None, last_iova: None, refuses_regions: 0, refuses_dmabufs: (0, 0), last_read: (0, 0), events: VecDeque::new(),
        events_owed: 0, refuses_rungs: false, next_status: 0, options: 0, agreed: Vec::new(), classes: Vec::new(),
        masks: Vec::new(), requests: None, number: 0x100,
    }) };
}

pub(crate) fn counts() -> Counts {
    COUNTS.get()
}

/// Calls a closure with the device of this thread.
pub(crate) fn with<T>(look: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(look)
}

/// Refuses the request after the next `count`.
pub(crate) fn refuse_next(count: u32) {
    REFUSE.set(count);
}

/// Refuses the receive after the next `count`.
pub(crate) fn refuse_receives(count: u32) {
    REFUSE_RECEIVES.set(count);
}

/// Adds an event about an object, or a port.
pub(crate) fn tell(kind: u32, object: usize) {
    with(|device| {
        device.events.push_back((kind, object));
    });
}

fn count(change: impl FnOnce(&mut Counts)) {
    let mut now = COUNTS.get();
    change(&mut now);
    COUNTS.set(now);
}

fn other() {
    count(|counts| counts.rest += 1);
}

/// A completion queue with its completions. It has room from the start, because the counter of allocations must see
/// none.
#[repr(C)]
struct StubCq {
    cq: Cq,
    waiting: VecDeque<Wc>,
}

/// A queue pair with its posted receives, and the request that is being built.
#[repr(C)]
struct StubQp {
    ex: QpEx,
    /// Receives that are posted in the error state stay, as those of soft-RoCE do.
    receives: VecDeque<(u64, u32)>,
    building: Vec<SendWr>,
    bytes: u32,
    inline: u32,
}

fn zeroed<T>() -> T {
    // SAFETY: only called for C structs, all of whose bytes may be zero.
    unsafe { std::mem::zeroed() }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    other();
    let mut device: Box<Device> = Box::new(zeroed());
    for (to, from) in device.name.iter_mut().zip(b"stub0\0") {
        *to = *from as c_char;
    }
    let list = Box::new([Box::into_raw(device), ptr::null_mut()]);
    // SAFETY: the caller passes a place that is valid for writes.
    unsafe { *count = 1 };
    Box::into_raw(list).cast()
}

// The device stays allocated, because the context points to it.
unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    // SAFETY: the list is from `Box::into_raw` in `get_device_list`.
    drop(unsafe { Box::from_raw(list.cast::<[*mut Device; 2]>()) });
}

unsafe extern "C" fn get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: the device was allocated above and is never freed.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    with(|device| device.contexts += 1);
    let mut whole: Box<VerbsContext> = Box::new(zeroed());
    whole.sz = size_of::<VerbsContext>();
    whole.create_qp_ex = Some(create_qp_ex);
    whole.query_port = crate::speeds::slot();
    whole.context.device = device;
    whole.context.abi_compat = ptr::without_provenance_mut(ABI_IS_EXTENDED);
    // The descriptor is readable at once, so no test waits for it. SAFETY: a system call without pointers.
    whole.context.async_fd = unsafe { libc::eventfd(0, 0) };
    whole.context.ops.poll_cq = Some(poll_cq);
    whole.context.ops.req_notify_cq = Some(req_notify_cq);
    whole.context.ops.post_send = Some(post_send);
    whole.context.ops.post_recv = Some(post_recv);
    // SAFETY: a field of the box that was just leaked.
    unsafe { &raw mut (*Box::into_raw(whole)).context }
}

unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    with(|device| device.contexts -= 1);
    // SAFETY: the context is from `open_device`, and no other object uses it any more.
    let events = unsafe { (*context).async_fd };
    // SAFETY: the descriptor was created with the context, which is closed once.
    unsafe { libc::close(events) };
    let whole = context.wrapping_byte_sub(std::mem::offset_of!(VerbsContext, context));
    // SAFETY: as above; the context is the first field of the box.
    drop(unsafe { Box::from_raw(whole.cast::<VerbsContext>()) });
    0
}

unsafe extern "C" fn query_device(_: *mut Context, attr: *mut DeviceAttr) -> c_int {
    let mut told: DeviceAttr = zeroed();
    (told.phys_port_cnt, told.max_qp, told.max_qp_wr, told.max_cqe) =
        (1, 1000, with(|device| device.limits.max_qp_wr), 100_000);
    (told.max_mr, told.atomic_cap, told.max_qp_rd_atom, told.max_qp_init_rd_atom) = (1000, 1, 16, 16);
    // SAFETY: the caller passes attributes that are valid for writes.
    unsafe { *attr = told };
    0
}

pub(crate) unsafe extern "C" fn query_port(_: *mut Context, _: u8, attr: *mut CompatPortAttr) -> c_int {
    let mut told: PortAttr = zeroed();
    (told.state, told.active_mtu, told.gid_tbl_len, told.pkey_tbl_len) = (PORT_ACTIVE, 5, 2, 1);
    (told.link_layer, told.max_msg_sz) = (LINK_LAYER_ETHERNET, 1 << 30);
    // SAFETY: the caller passes attributes that are valid for writes and begin with the older ones.
    unsafe { *attr.cast::<PortAttr>() = told };
    0
}

unsafe extern "C" fn query_gid(_: *mut Context, _: u8, _: c_int, _: *mut Gid) -> c_int {
    -1
}

unsafe extern "C" fn query_gid_ex(
    _: *mut Context,
    port: u32,
    index: u32,
    entry: *mut GidEntry,
    _: u32,
    _: usize,
) -> c_int {
    let found = with(|device| device.limits.gids.get(index as usize).copied().flatten());
    let raw = match found {
        Some(IpAddr::V4(address)) => address.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(address)) => address.octets(),
        None => return libc::ENODATA,
    };
    let told = GidEntry {
        gid: Gid { raw },
        gid_index: index,
        port_num: port,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: 1,
    };
    // SAFETY: the caller passes an entry that is valid for writes.
    unsafe { *entry = told };
    0
}

unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    with(|device| device.domains += 1);
    Box::into_raw(Box::new(Pd { context, handle: 0 }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    with(|device| device.domains -= 1);
    // SAFETY: the domain is from `Box::into_raw` in `alloc_pd`, and is freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

unsafe extern "C" fn reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    other();
    let refused = with(|device| device.refuses_regions);
    if refused != 0 {
        return fail(refused);
    }
    let number = with(|device| {
        device.last_iova = None;
        (device.regions, device.last_access) = (device.regions + 1, access);
        device.last_addr = addr.addr();
        device.number += 1;
        device.number
    });
    let context = ptr::null_mut();
    Box::into_raw(Box::new(Mr { context, pd, addr, length, handle: 0, lkey: number, rkey: number }))
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    // SAFETY: the caller's promise covers these arguments.
    let made = unsafe { reg_mr(pd, addr, len, access as c_int) };
    with(|device| device.last_iova = Some(iova));
    made
}

fn fail<T>(code: c_int) -> *mut T {
    // SAFETY: the call returns the place of this thread's `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = code };
    ptr::null_mut()
}

unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    let (refused, refused_unseen) = with(|device| device.refuses_dmabufs);
    match (refused_unseen, refused, fd) {
        (0, _, -1) => return fail(libc::EBADF),
        (0, 0, _) => {}
        (0, code, _) | (code, ..) => return fail(code),
    }
    with(|device| device.last_dmabuf = Some((offset, len, iova, fd)));
    // SAFETY: the caller's promise covers these arguments; the address is only recorded.
    unsafe { reg_mr(pd, ptr::null_mut(), len, access) }
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    other();
    with(|device| device.regions -= 1);
    // SAFETY: the region is from `Box::into_raw` in `reg_mr`, and is freed once.
    drop(unsafe { Box::from_raw(mr) });
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    // A descriptor that never becomes readable.
    let fd = UnixDatagram::unbound().unwrap().into_raw_fd();
    Box::into_raw(Box::new(CompChannel { context, fd, refcnt: 0 }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: the channel is from `Box::into_raw`, and is freed once.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: the descriptor was created with the channel, and no other code closes it.
    drop(unsafe { OwnedFd::from_raw_fd(channel.fd) });
    0
}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    cqe: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    other();
    let mut cq: Cq = zeroed();
    (cq.context, cq.channel, cq.cqe) = (context, channel, cqe);
    let Ok(waiting) = try_deque(cqe as usize) else { return fail(libc::ENOMEM) };
    with(|device| device.queues += 1);
    Box::into_raw(Box::new(StubCq { cq, waiting })).cast()
}

unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    with(|device| device.queues -= 1);
    // SAFETY: the queue is from `Box::into_raw` in `create_cq`, and is freed once.
    drop(unsafe { Box::from_raw(cq.cast::<StubCq>()) });
    0
}

unsafe extern "C" fn get_cq_event(_: *mut CompChannel, _: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
    -1
}

unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: c_uint) {}

/// Whether a queue can have that number of requests of this size, by the rule of mlx5. Each request begins with 48
/// bytes, followed by its ranges or its inline bytes. The blocks of all are rounded up to a power of two.
fn takes(limits: &Limits, cap: &QpCap) -> bool {
    let ranges = 16 * cap.max_send_sge;
    let inlined = if cap.max_inline_data > 0 { (4 + cap.max_inline_data).next_multiple_of(16) } else { 0 };
    let each = (48 + ranges.max(inlined)).div_ceil(64);
    let most = limits.max_qp_wr.unsigned_abs();
    cap.max_inline_data <= limits.inline
        && cap.max_send_wr.max(cap.max_recv_wr) <= most
        && (cap.max_send_wr * each).next_power_of_two() <= limits.blocks
}

fn make_pair(context: *mut Context, cq: *mut Cq, cap: &QpCap) -> *mut Qp {
    other();
    let refusal = with(|device| (!takes(&device.limits, cap)).then_some(device.limits.refusal));
    if let Some(code) = refusal {
        return fail(code);
    }
    // If a test refuses memory, the library has none either.
    let (Ok(receives), Ok(building)) =
        (try_deque(cap.max_recv_wr as usize), try_vec(cap.max_send_wr as usize))
    else {
        return fail(libc::ENOMEM);
    };
    let mut ex: QpEx = zeroed();
    (ex.qp_base.context, ex.qp_base.send_cq, ex.qp_base.recv_cq) = (context, cq, cq);
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(wr_complete);
    ex.wr_rdma_write = Some(wr_rdma_write);
    ex.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    ex.wr_rdma_read = Some(wr_rdma_read);
    ex.wr_send = Some(wr_send);
    ex.wr_send_imm = Some(wr_send_imm);
    ex.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    ex.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.qp_base.qp_num = with(|device| {
        device.number += 1;
        device.number
    });
    let pair: *mut Qp =
        Box::into_raw(Box::new(StubQp { ex, receives, building, bytes: 0, inline: cap.max_inline_data }))
            .cast();
    with(|device| device.pairs.push(pair.addr()));
    pair
}

unsafe extern "C" fn create_qp(pd: *mut Pd, attr: *mut QpInitAttr) -> *mut Qp {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    // SAFETY: the caller passes an open domain.
    make_pair(unsafe { (*pd).context }, attr.send_cq, &attr.cap)
}

unsafe extern "C" fn create_qp_ex(context: *mut Context, attr: *mut QpInitAttrEx) -> *mut Qp {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    make_pair(context, attr.send_cq, &attr.cap)
}

unsafe extern "C" fn qp_to_qp_ex(qp: *mut Qp) -> *mut QpEx {
    qp.cast()
}

/// Returns the whole queue pair.
fn pair<'a>(qp: *mut Qp) -> &'a mut StubQp {
    // SAFETY: the pair is from `make_pair`, and only this thread uses it.
    unsafe { &mut *qp.cast::<StubQp>() }
}

/// Returns the completions of a queue.
fn waiting<'a>(cq: *mut Cq) -> &'a mut VecDeque<Wc> {
    // SAFETY: the queue is from `create_cq`, and only this thread uses it.
    unsafe { &mut (*cq.cast::<StubCq>()).waiting }
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attr: *mut QpAttr, _: c_int) -> c_int {
    other();
    // SAFETY: the caller passes valid attributes.
    let to = unsafe { (*attr).qp_state };
    if to == qp_state::RTR && with(|device| device.refuses_rungs) {
        return libc::EINVAL;
    }
    if to == qp_state::RTR {
        // SAFETY: as above.
        let ah = unsafe { (*attr).ah_attr };
        with(|device| {
            device.classes.push((ah.grh.traffic_class, ah.sl));
            device.routes.push((ah.grh.sgid_index, ah.grh.dgid.raw));
        });
    }
    let pair = pair(qp);
    pair.ex.qp_base.state = to;
    if to == qp_state::ERR {
        flush_receives(pair);
    }
    0
}

fn flush_receives(pair: &mut StubQp) {
    let qp = &pair.ex.qp_base;
    for (wr_id, _) in pair.receives.drain(..) {
        let wc = Wc { wr_id, status: wc_status::WR_FLUSH_ERR, qp_num: qp.qp_num, ..Wc::ZERO };
        waiting(qp.recv_cq).push_back(wc);
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    other();
    with(|device| device.pairs.retain(|one| *one != qp.addr()));
    // SAFETY: the pair is from `make_pair`, and is freed once.
    drop(unsafe { Box::from_raw(qp.cast::<StubQp>()) });
    0
}

/// A queue pair accepts the requested options that the device supports, and reports those from then on.
unsafe extern "C" fn set_ece(_: *mut Qp, ece: *mut Ece) -> c_int {
    // SAFETY: the caller passes a valid value.
    let asked = unsafe { *ece };
    with(|device| {
        device.agreed.push(asked.options);
        device.options &= asked.options;
    });
    0
}

unsafe extern "C" fn query_ece(_: *mut Qp, ece: *mut Ece) -> c_int {
    let options = with(|device| device.options);
    if options == 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the caller passes a place that is valid for writes.
    unsafe { *ece = Ece { vendor_id: 0x15b3, options, comp_mask: 0 } };
    0
}

unsafe extern "C" fn get_async_event(_: *mut Context, event: *mut AsyncEvent) -> c_int {
    other();
    let next = with(|device| {
        let next = device.events.pop_front();
        device.events_owed += u32::from(next.is_some());
        next
    });
    let Some((event_type, object)) = next else { return -1 };
    // SAFETY: the caller passes an event that is valid for writes.
    unsafe { *event = AsyncEvent { element: ptr::without_provenance_mut(object), event_type } };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut AsyncEvent) {
    with(|device| device.events_owed -= 1);
}

/// Executes a request; returns false if it is refused.
fn execute(pair: &mut StubQp, wr: &SendWr, bytes: u32) -> bool {
    match REFUSE.get() {
        0 => {
            REFUSE.set(u32::MAX);
            return false;
        }
        u32::MAX => {}
        left => REFUSE.set(left - 1),
    }
    count(|counts| counts.posted += 1);
    with(|device| device.requests.iter_mut().for_each(|all| all.push((wr.opcode, bytes))));
    let qp_num = pair.ex.qp_base.qp_num;
    let cq = pair.ex.qp_base.send_cq;
    let mut status = with(|device| std::mem::take(&mut device.next_status));
    if pair.ex.qp_base.state == qp_state::ERR {
        status = wc_status::WR_FLUSH_ERR;
    }
    let to_peer = matches!(wr.opcode, wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM);
    // SAFETY: requests with these opcodes have this field of the union.
    if to_peer && bytes > 0 && unsafe { wr.wr.rdma.rkey } > 0x1_0000 {
        status = wc_status::REM_ACCESS_ERR;
    }
    if wr.opcode == wr_opcode::RDMA_READ {
        // SAFETY: requests with this opcode have this field of the union.
        with(|device| device.last_read = (unsafe { wr.wr.rdma.rkey }, bytes));
    }
    let takes =
        matches!(wr.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND | wr_opcode::SEND_WITH_IMM);
    if takes && status == 0 {
        let (wr_id, _) = pair.receives.pop_front().expect("a receive");
        let opcode = if wr.opcode == wr_opcode::RDMA_WRITE_WITH_IMM {
            wc_opcode::RECV_RDMA_WITH_IMM
        } else {
            wc_opcode::RECV
        };
        let wc_flags = if wr.opcode == wr_opcode::SEND { 0 } else { WC_WITH_IMM };
        let imm_data = wr.imm_data;
        waiting(cq).push_back(Wc { wr_id, opcode, byte_len: bytes, imm_data, qp_num, wc_flags, ..Wc::ZERO });
    }
    if status != 0 || wr.send_flags & SEND_SIGNALED != 0 {
        waiting(cq).push_back(Wc { wr_id: wr.wr_id, status, qp_num, ..Wc::ZERO });
    }
    // Receives that are posted later stay until the pair is put into error by a call.
    if status != 0 && pair.ex.qp_base.state != qp_state::ERR {
        pair.ex.qp_base.state = qp_state::ERR;
        flush_receives(pair);
    }
    true
}

unsafe extern "C" fn post_send(qp: *mut Qp, mut wr: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    count(|counts| counts.sends += 1);
    let pair = pair(qp);
    while !wr.is_null() {
        // SAFETY: the caller passes a valid list.
        let one = unsafe { &*wr };
        let entries = (0..usize::try_from(one.num_sge).unwrap()).map(|at| {
            // SAFETY: `at` is less than the number of entries in the list.
            let entry = unsafe { one.sg_list.add(at) };
            // SAFETY: as above.
            unsafe { (*entry).length }
        });
        let bytes = entries.sum();
        let fits = one.send_flags & SEND_INLINE == 0 || bytes <= pair.inline;
        if !fits || !execute(pair, one, bytes) {
            // SAFETY: the caller passes a place that is valid for writes.
            unsafe { *bad = wr };
            return libc::ENOMEM;
        }
        wr = one.next;
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut Qp, mut wr: *mut RecvWr, bad: *mut *mut RecvWr) -> c_int {
    count(|counts| counts.receives += 1);
    let pair = pair(qp);
    while !wr.is_null() {
        // SAFETY: the caller passes a valid list.
        let one = unsafe { &*wr };
        if REFUSE_RECEIVES.get() == 0 {
            REFUSE_RECEIVES.set(u32::MAX);
            // SAFETY: the caller passes a place that is valid for writes.
            unsafe { *bad = wr };
            return libc::ENOMEM;
        }
        REFUSE_RECEIVES
            .set(REFUSE_RECEIVES.get().saturating_sub(u32::from(REFUSE_RECEIVES.get() != u32::MAX)));
        pair.receives.push_back((one.wr_id, 0));
        assert!(pair.receives.len() <= pair.receives.capacity(), "more receives than requested");
        wr = one.next;
    }
    0
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, entries: c_int, wc: *mut Wc) -> c_int {
    count(|counts| counts.polls += 1);
    let mut taken = 0;
    while taken < entries {
        let Some(one) = waiting(cq).pop_front() else { break };
        // SAFETY: the caller has room for that number of completions.
        let to = unsafe { wc.add(taken as usize) };
        // SAFETY: as above.
        unsafe { *to = one };
        taken += 1;
    }
    taken
}

unsafe extern "C" fn req_notify_cq(_: *mut Cq, _: c_int) -> c_int {
    other();
    0
}

unsafe extern "C" fn wr_start(qp: *mut QpEx) {
    count(|counts| counts.started += 1);
    pair(qp.cast()).building.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut QpEx) -> c_int {
    count(|counts| counts.built += 1);
    let pair = pair(qp.cast());
    let list = std::mem::take(&mut pair.building);
    let fits = |wr: &SendWr| wr.send_flags & SEND_INLINE == 0 || wr.qp_type <= pair.inline;
    if REFUSE.get() != u32::MAX || !list.iter().all(fits) {
        REFUSE.set(u32::MAX);
        pair.building = list;
        return libc::ENOMEM;
    }
    for wr in &list {
        // The number of its bytes is stored in a field that is not used otherwise.
        assert!(execute(pair, wr, wr.qp_type), "the request was refused");
    }
    pair.building = list;
    0
}

fn begin(qp: *mut QpEx, opcode: u32, wr: SendWrTarget, imm_data: u32) {
    let pair = pair(qp.cast());
    let (wr_id, send_flags) = (pair.ex.wr_id, pair.ex.wr_flags);
    assert!(pair.building.len() < pair.building.capacity(), "more requests than requested");
    pair.building.push(SendWr { wr_id, opcode, send_flags, imm_data, wr, ..SendWr::ZERO });
}

fn rdma(rkey: u32, remote_addr: u64) -> SendWrTarget {
    let mut target = SendWr::ZERO.wr;
    target.rdma = Rdma { remote_addr, rkey };
    target
}

unsafe extern "C" fn wr_rdma_write(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    begin(qp, wr_opcode::RDMA_WRITE, rdma(rkey, remote_addr), 0);
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut QpEx, rkey: u32, remote_addr: u64, imm: u32) {
    begin(qp, wr_opcode::RDMA_WRITE_WITH_IMM, rdma(rkey, remote_addr), imm);
}

unsafe extern "C" fn wr_rdma_read(qp: *mut QpEx, rkey: u32, remote_addr: u64) {
    begin(qp, wr_opcode::RDMA_READ, rdma(rkey, remote_addr), 0);
}

unsafe extern "C" fn wr_send(qp: *mut QpEx) {
    begin(qp, wr_opcode::SEND, SendWr::ZERO.wr, 0);
}

unsafe extern "C" fn wr_send_imm(qp: *mut QpEx, imm: u32) {
    begin(qp, wr_opcode::SEND_WITH_IMM, SendWr::ZERO.wr, imm);
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut QpEx, rkey: u32, remote_addr: u64, _: u64, _: u64) {
    begin(qp, wr_opcode::ATOMIC_CMP_AND_SWP, rdma(rkey, remote_addr), 0);
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut QpEx, rkey: u32, remote_addr: u64, _: u64) {
    begin(qp, wr_opcode::ATOMIC_FETCH_AND_ADD, rdma(rkey, remote_addr), 0);
}

fn end(qp: *mut QpEx, bytes: u32) {
    let last = pair(qp.cast()).building.last_mut().expect("no request was begun");
    last.qp_type = bytes;
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut QpEx, _: *mut c_void, len: usize) {
    end(qp, len as u32);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut QpEx, count: usize, list: *const Sge) {
    // SAFETY: the caller passes a list of `count` entries, from which no slice is made if it is empty.
    let list = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(list, count) } };
    end(qp, list.iter().map(|one| one.length).sum());
}

unsafe extern "C" fn ctx_get_udma_mask(_: *mut Context) -> u8 {
    0b1010
}

unsafe extern "C" fn pd_set_udma_mask(_: *mut Pd, mask: u8) -> c_int {
    with(|device| device.masks.push(mask));
    0
}

/// Queue pairs without a requested pipeline are on the second one.
unsafe extern "C" fn qp_get_udma_idx(_: *mut Qp) -> u8 {
    with(|device| {
        device
            .masks
            .iter()
            .rev()
            .find(|mask| mask.count_ones() == 1)
            .map_or(3, |mask| mask.trailing_zeros() as u8)
    })
}

/// The library of a device with the pipelines 1 and 3.
pub(crate) fn library_with_pipelines() -> VerbsLibrary {
    let calls = ionic::Calls { ctx_get_udma_mask, pd_set_udma_mask, qp_get_udma_idx };
    // SAFETY: the functions above behave as libionic documents, as far as these tests use it.
    unsafe { library().with_pipelines(calls) }
}

/// The library.
pub(crate) fn library() -> VerbsLibrary {
    // SAFETY: the functions behave as libibverbs documents, as far as these tests use it.
    unsafe { VerbsLibrary::from_calls(calls()) }
}

/// A library from before rdma-core 34.
pub(crate) fn library_without_dmabufs() -> VerbsLibrary {
    // SAFETY: as above.
    unsafe { VerbsLibrary::from_calls(Calls { reg_dmabuf_mr: None, ..calls() }) }
}

/// A library that does not support chosen addresses for peers.
pub(crate) fn library_without_iovas() -> VerbsLibrary {
    // SAFETY: as above.
    unsafe { VerbsLibrary::from_calls(Calls { reg_mr_iova2: None, ..calls() }) }
}

fn calls() -> Calls {
    Calls {
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid,
        query_gid_ex: Some(query_gid_ex),
        alloc_pd,
        dealloc_pd,
        reg_mr,
        reg_mr_iova2: Some(reg_mr_iova2),
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        qp_to_qp_ex: Some(qp_to_qp_ex),
        modify_qp,
        destroy_qp,
        set_ece: Some(set_ece),
        query_ece: Some(query_ece),
        get_async_event,
        ack_async_event,
    }
}
