//! Programs that keep the rules: they work with all requirements of the provider, and under all its disturbances.

use std::ffi::{c_int, c_void};
use std::ptr;

use trunkline_sys::ofi::*;

use super::Case;
use super::fi::{Fi, Net, Side, again, bind, close, control, domain, enable, of, op};

const ALL: u64 = caps::SEND | caps::RECV | caps::READ | caps::WRITE | caps::REMOTE_READ | caps::REMOTE_WRITE;

const fn case(name: &'static str, env: &'static [(&'static str, &'static str)], run: fn()) -> Case {
    Case { name, env, violations: &[], run }
}

pub(crate) const CASES: &[Case] = &[
    case("traffic", &[], traffic),
    case("traffic without demands", &[("FI_STRICT_MR", "none")], traffic),
    case(
        "traffic with all demands",
        &[("FI_STRICT_MR", "endpoint,prov_key,allocated,local,virt_addr")],
        traffic,
    ),
    case("traffic with keys of the program's", &[("FI_STRICT_MR", "endpoint,local")], traffic),
    case("traffic with EAGAIN", &[("FI_STRICT_EAGAIN", "0.5")], traffic),
    case(
        "traffic with EAGAIN and reordering",
        &[("FI_STRICT_EAGAIN", "0.5"), ("FI_STRICT_REORDER", "0.5")],
        traffic,
    ),
    case("traffic with delays", &[("FI_STRICT_DELAY", "300")], traffic),
    case("traffic with automatic progress", &[("FI_STRICT_PROGRESS", "auto")], traffic),
    case("traffic with small limits", &[("FI_STRICT_DEPTH", "2"), ("FI_STRICT_CQ_DATA", "4")], traffic),
    case("granted order", &[("FI_STRICT_REORDER", "0.9"), ("FI_STRICT_SEED", "7")], ordered),
    case("order that was not granted", &[("FI_STRICT_REORDER", "0.9"), ("FI_STRICT_SEED", "7")], unordered),
    case("sources and directed receives", &[], sources),
    case("cancel", &[], cancel),
    case("a message that is too long", &[], truncation),
    case("completions only on request", &[], selective),
    case("formats of completions", &[], formats),
    case("a descriptor to wait for", &[], waiting),
    case("delivery and transmission", &[], delivery),
    case("list entries", &[("FI_STRICT_ENTRIES", "4")], entries),
    case(
        "no list entries, without binding",
        &[("FI_STRICT_MR", "none"), ("FI_STRICT_ENTRIES", "1")],
        entries_at_once,
    ),
    case("unsupported writes with data", &[("FI_STRICT_WRITEDATA", "0")], no_writedata),
    case(
        "failures",
        &[("FI_STRICT_FAIL", "endpoint:1,cq_open:1,mr_regattr:2,mr_bind:1,mr_enable:1,enable:1")],
        failures,
    ),
    case("keys of closed registrations", &[], revoked),
    case("program's keys of closed registrations", &[("FI_STRICT_MR", "endpoint")], revoked),
    case("NICs", &[("FI_STRICT_NICS", "3")], nics),
    case("requirements of hints", &[], hints),
    case("an unknown variable", &[("FI_STRICT_TYPO", "1")], refused),
    case("a malformed variable", &[("FI_STRICT_EAGAIN", "often")], refused),
    case("no tagged messages", &[("FI_STRICT_TAGGED", "0")], refused),
    case("a missing peer", &[], nobody),
    case("address vectors", &[], vectors),
    case("memory of devices", &[], devices),
    case("sends cannot be cancelled", &[("FI_STRICT_DELAY", "100000")], sent),
    case("an incomplete message", &[], broken_off),
    case("a registration closed during an access", &[], withdrawn),
    case("an endpoint closed at work", &[("FI_STRICT_MR", "none")], closed_at_work),
    case("no sources unless requested", &[], anonymous),
    case("an event queue", &[], events),
    case("a depth of two", &[("FI_STRICT_DEPTH", "2")], depth),
    case("a full queue holds peers back", &[], full),
    case("many messages", &[], soak),
];

/// A program that exits with open objects.
pub(crate) const LEAVES: Case = case("objects left open", &[], leave);

fn leave() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let (buf, mut into) = (vec![1_u8; 8], [0_u8; 8]);
    net.ready(&a, &buf, caps::REMOTE_READ, 0);
    assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    assert_eq!(a.inject(&buf, to_b), 0);
    b.ok(&[&a]);
}

/// Returns bytes that depend on their position.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(77)) as u8).collect()
}

/// Opens two endpoints that have each other's address.
fn two(net: &Net) -> (Side, Side, Addr, Addr) {
    let (a, b) = (net.side(), net.side());
    let (to_b, to_a) = (a.knows(&b.name), b.knows(&a.name));
    (a, b, to_b, to_a)
}

/// Executes all kinds of operations, in many sizes, between two endpoints and from one to itself.
fn traffic() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let itself = a.knows(&a.name);
    let sizes = [0, 1, 8, 64, 191, 4096, 65537, 16 << 20];
    let mut from = pattern(16 << 20, 1);
    let mut into = vec![1_u8; 16 << 20];
    let source = net.ready(&a, &from, ALL, 1);
    let target = net.ready(&b, &into, ALL, 2);
    let own = net.register(&into, ALL, 3).unwrap();
    if net.mode & mr_mode::ENDPOINT != 0 {
        assert_eq!((bind(own, a.ep, 0), enable(own)), (0, 0));
    }
    for (at, len) in sizes.into_iter().enumerate() {
        messages(&a, &b, to_b, (&from[..len], of(source).0), (&mut into[..len], of(target).0), at as u64);
        one_sided(&net, &a, &b, to_b, (&mut from[..len], of(source).0), (&mut into[..], of(target).1));
        to_itself(&net, &a, itself, (&from[..len], of(source).0), (&mut into[..], of(own).1));
    }
    for mr in [source, target, own] {
        assert_eq!(close(mr), 0);
    }
    a.close();
    b.close();
    net.close();
}

type Lent<'a> = (&'a [u8], *mut c_void);

fn messages(
    a: &Side,
    b: &Side,
    to_b: Addr,
    (from, desc): Lent<'_>,
    (into, into_desc): (&mut [u8], *mut c_void),
    tag: u64,
) {
    // Covers a receive before its message, a message before its receive, and a tagged message that passes a plain
    // one.
    assert_eq!(b.post(&[a], || b.recv(into, into_desc, ADDR_UNSPEC, 1)), 0);
    assert_eq!(a.post(&[b], || a.send(from, desc, to_b, 2)), 0);
    let (sent, came) = (a.ok(&[b]), b.ok(&[a]));
    assert_eq!((sent.op_context as usize, sent.flags), (2, caps::MSG | caps::SEND));
    assert_eq!((came.op_context as usize, came.flags, came.len), (1, caps::MSG | caps::RECV, from.len()));
    assert!(into == from);
    into.fill(0);
    assert_eq!(a.post(&[b], || a.tsend(from, desc, to_b, tag << 8 | 5, 3)), 0);
    let small = [7_u8; 100];
    if into.len() >= small.len() {
        assert_eq!(a.post(&[b], || a.inject(&small, to_b)), 0);
    }
    for _ in 0..50 {
        a.poll();
        b.poll();
    }
    assert_eq!(b.post(&[a], || b.trecv(into, into_desc, (tag << 8, 0xFF), 4)), 0);
    assert_eq!(a.ok(&[b]).flags, caps::TAGGED | caps::SEND);
    let came = b.ok(&[a]);
    assert_eq!((came.flags, came.tag, came.len), (caps::TAGGED | caps::RECV, tag << 8 | 5, from.len()));
    assert!(into == from);
    if into.len() >= small.len() {
        assert_eq!(b.post(&[a], || b.recv(into, into_desc, ADDR_UNSPEC, 5)), 0);
        assert_eq!((b.ok(&[a]).len, &into[..100]), (100, &small[..]));
    }
}

fn one_sided(
    net: &Net,
    a: &Side,
    b: &Side,
    to_b: Addr,
    (from, desc): (&mut [u8], *mut c_void),
    (into, key): (&mut [u8], u64),
) {
    let (len, base) = (from.len(), net.base(into));
    let offset = into.len() - len;
    into[offset..].fill(0);
    let place = (base + offset as u64, key);
    assert_eq!(a.post(&[b], || a.writedata(from, desc, 0xABCD_1234, to_b, place, 9)), 0);
    let (wrote, told) = (a.ok(&[b]), b.ok(&[a]));
    assert_eq!((wrote.op_context as usize, wrote.flags), (9, caps::RMA | caps::WRITE));
    assert_eq!(told.flags, caps::RMA | caps::REMOTE_WRITE | caps::REMOTE_CQ_DATA);
    assert_eq!((told.data, told.len), (0xABCD_1234, len));
    assert!(into[offset..] == *from);
    let kept = from.to_vec();
    assert_eq!(a.post(&[b], || a.write(from, desc, to_b, (base, key), 10)), 0);
    assert_eq!(a.ok(&[b]).op_context as usize, 10);
    from.fill(0);
    assert_eq!(a.post(&[b], || a.read(from, desc, to_b, (base, key), 11)), 0);
    assert_eq!(a.ok(&[b]).flags, caps::RMA | caps::READ);
    assert!(*from == kept);
}

fn to_itself(net: &Net, a: &Side, itself: Addr, (from, desc): Lent<'_>, (into, key): (&mut [u8], u64)) {
    into[..from.len()].fill(0);
    let place = (net.base(into), key);
    assert_eq!(a.post(&[], || a.writedata(from, desc, 5, itself, place, 12)), 0);
    // Two completions, in either order.
    let mut told = [a.ok(&[]), a.ok(&[])];
    told.sort_by_key(|entry| entry.op_context as usize);
    assert_eq!((told[0].data, told[1].op_context as usize), (5, 12));
    assert!(into[..from.len()] == *from);
}

/// Returns the numbers of messages in the order of arrival.
fn numbers(net: &Net) -> Vec<u8> {
    let (a, b, to_b, _) = two(net);
    let bytes: Vec<_> = (0..100_u8).collect();
    let mut into = vec![0_u8; 100];
    for at in 0..100 {
        assert_eq!(b.recv(&mut into[at..=at], ptr::null_mut(), ADDR_UNSPEC, at), 0);
    }
    for at in 0..100 {
        assert_eq!(a.send(&bytes[at..=at], ptr::null_mut(), to_b, at), 0);
    }
    for _ in 0..100 {
        a.ok(&[&b]);
        b.ok(&[&a]);
    }
    a.close();
    b.close();
    into
}

fn ordered() {
    let net = Fi::open().net(|hints| {
        hints.tx.msg_order = order::SAS;
        hints.rx.msg_order = order::SAS;
    });
    assert_eq!(numbers(&net), (0..100).collect::<Vec<_>>());
    net.close();
}

fn unordered() {
    let net = Fi::open().net(|_| ());
    let mut came = numbers(&net);
    assert_ne!(came, (0..100).collect::<Vec<_>>());
    came.sort_unstable();
    assert_eq!(came, (0..100).collect::<Vec<_>>());
    net.close();
}

fn sources() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, to_a) = two(&net);
    let c = net.side();
    let (c_to_b, b_to_c) = (c.knows(&b.name), b.knows(&c.name));
    let mut into = [[0_u8; 1]; 2];
    assert_eq!(b.recv(&mut into[0], ptr::null_mut(), b_to_c, 1), 0);
    assert_eq!(b.recv(&mut into[1], ptr::null_mut(), ADDR_UNSPEC, 2), 0);
    assert_eq!(a.send(&[10], ptr::null_mut(), to_b, 3), 0);
    let (entry, src) = b.next(&[&a, &c]).unwrap();
    assert_eq!((entry.op_context as usize, src), (2, to_a));
    assert_eq!(c.send(&[20], ptr::null_mut(), c_to_b, 4), 0);
    let (entry, src) = b.next(&[&a, &c]).unwrap();
    assert_eq!((entry.op_context as usize, src, into), (1, b_to_c, [[20], [10]]));
    let d = net.side();
    let d_to_b = d.knows(&b.name);
    assert_eq!(d.inject(&[1], d_to_b), 0);
    assert_eq!(b.recv(&mut into[0], ptr::null_mut(), ADDR_UNSPEC, 5), 0);
    assert_eq!(b.next(&[&d]).unwrap().1, ADDR_NOTAVAIL);
    a.close();
    b.close();
    c.close();
    d.close();
    net.close();
}

fn cancel() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut into = [0_u8; 4];
    assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    assert_eq!(b.trecv(&mut into, ptr::null_mut(), (1, 0), 2), 0);
    assert_eq!(b.trecv(&mut into, ptr::null_mut(), (1, 0), 3), 0);
    assert_eq!((b.cancel(2), b.cancel(1), b.cancel(9)), (0, 0, -(errno::ENOENT as isize)));
    for context in [2, 1] {
        let error = b.error(&[]);
        assert_eq!((error.op_context as usize, error.err), (context, errno::ECANCELED));
    }
    assert_eq!(a.tsend(&[5], ptr::null_mut(), to_b, 1, 4), 0);
    assert_eq!((b.ok(&[&a]).op_context as usize, b.cancel(3)), (3, -(errno::ENOENT as isize)));
    a.close();
    b.close();
    net.close();
}

fn truncation() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut into = [0_u8; 8];
    for early in [true, false] {
        if early {
            assert_eq!(b.recv(&mut into[..4], ptr::null_mut(), ADDR_UNSPEC, 1), 0);
        }
        assert_eq!(a.send(&[9; 10], ptr::null_mut(), to_b, 2), 0);
        if !early {
            assert!(b.is_quiet(&[]));
            assert_eq!(b.recv(&mut into[..4], ptr::null_mut(), ADDR_UNSPEC, 1), 0);
        }
        let error = b.error(&[&a]);
        assert_eq!((error.err, error.len, error.olen), (errno::ETRUNC, 4, 6));
        assert_eq!((into, a.ok(&[&b]).op_context as usize), ([9, 9, 9, 9, 0, 0, 0, 0], 2));
        into.fill(0);
    }
    a.close();
    b.close();
    net.close();
}

fn selective() {
    let net = Fi::open().net(|_| ());
    let attr = CqAttr { format: cq_format::TAGGED, ..CqAttr::ZERO };
    let (a, b) = (net.side_of(caps::SELECTIVE_COMPLETION, attr), net.side());
    let to_b = a.knows(&b.name);
    let mut into = [0_u8; 8];
    let byte = [1_u8];
    let iov = Iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let msg = Msg {
        msg_iov: &raw const iov,
        desc: ptr::null_mut(),
        iov_count: 1,
        addr: to_b,
        context: 2 as *mut c_void,
        data: 77,
    };
    for at in 0..3 {
        assert_eq!(b.recv(&mut into[at..=at], ptr::null_mut(), ADDR_UNSPEC, at), 0);
    }
    assert_eq!(a.send(&byte, ptr::null_mut(), to_b, 1), 0);
    assert_eq!(a.inject(&byte, to_b), 0);
    // SAFETY: the endpoint is open; the message lives during the call, and the byte longer.
    let rc = unsafe {
        op!((*a.ep).msg, sendmsg)(
            a.ep,
            &raw const msg,
            caps::COMPLETION | caps::REMOTE_CQ_DATA | caps::INJECT,
        )
    };
    assert_eq!((rc, a.ok(&[&b]).op_context as usize), (0, 2));
    b.ok(&[&a]);
    b.ok(&[&a]);
    let told = b.ok(&[&a]);
    assert_eq!((told.flags, told.data), (caps::MSG | caps::RECV | caps::REMOTE_CQ_DATA, 77));
    assert!(a.is_quiet(&[&b]));
    // Failures generate a completion in any case.
    let nobody = a.knows(&[7; 16]);
    assert_eq!(a.send(&byte, ptr::null_mut(), nobody, 5), 0);
    assert_eq!(a.error(&[]).op_context as usize, 5);
    a.close();
    b.close();
    net.close();
}

fn formats() {
    let net = Fi::open().net(|_| ());
    let a = net.side();
    let mut words = [0_u64; 6];
    for (format, size) in
        [(cq_format::CONTEXT, 1), (cq_format::MSG, 3), (cq_format::DATA, 5), (cq_format::TAGGED, 6)]
    {
        let b = net.side_of(0, CqAttr { format, ..CqAttr::ZERO });
        let to_b = a.knows(&b.name);
        let mut into = [0_u8; 4];
        assert_eq!(b.trecv(&mut into, ptr::null_mut(), (6, 0), 99), 0);
        assert_eq!(a.tsend(&[1, 2], ptr::null_mut(), to_b, 6, 1), 0);
        words.fill(55);
        let rc = again(|| {
            a.poll();
            // SAFETY: the queue is open, and `words` has space for the longest entry.
            (unsafe { op!((*b.cq).ops, read)(b.cq, words.as_mut_ptr().cast(), 1) }) as c_int
        });
        let all = [99, caps::TAGGED | caps::RECV, 2, 0, 0, 6];
        assert_eq!((rc, &words[..size]), (1, &all[..size]));
        assert!(words[size..].iter().all(|word| *word == 55));
        assert_eq!(a.ok(&[]).op_context as usize, 1);
        b.close();
    }
    a.close();
    net.close();
}

fn waiting() {
    let net = Fi::open().net(|_| ());
    let attr = CqAttr { format: cq_format::TAGGED, wait_obj: wait::FD, ..CqAttr::ZERO };
    let (a, b) = (net.side(), net.side_of(0, attr));
    let to_b = a.knows(&b.name);
    let mut descriptor: c_int = -1;
    assert_eq!(control(b.cq, control::GETWAIT, (&raw mut descriptor).cast()), 0);
    let is_readable = |timeout| {
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor is passed.
        unsafe { libc::poll(&raw mut poll, 1, timeout) == 1 }
    };
    let trywait = || {
        let mut fids = [b.cq.cast::<Fid>()];
        // SAFETY: the fabric is open, and the queue belongs to it.
        unsafe { op!((*net.fabric).ops, trywait)(net.fabric, fids.as_mut_ptr(), 1) }
    };
    let mut into = [0_u8; 4];
    assert!(b.is_quiet(&[]));
    assert_eq!((trywait(), is_readable(20)), (0, false));
    assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    assert_eq!(a.send(&[1], ptr::null_mut(), to_b, 2), 0);
    assert!(is_readable(5000));
    assert_eq!(b.ok(&[&a]).op_context as usize, 1);
    a.ok(&[&b]);
    assert!(b.is_quiet(&[]));
    assert_eq!((trywait(), is_readable(20)), (0, false));
    // A completion in the queue forbids waiting.
    assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 3), 0);
    assert_eq!(b.cancel(3), 0);
    assert_eq!((trywait(), is_readable(0)), (-errno::EAGAIN, true));
    let mut entry = CqTaggedEntry::ZERO;
    let sread = |timeout, entry: &mut CqTaggedEntry| {
        // SAFETY: the queue is open, and `entry` has its format.
        unsafe { op!((*b.cq).ops, sread)(b.cq, (&raw mut *entry).cast(), 1, ptr::null(), timeout) }
    };
    assert_eq!(sread(20, &mut entry), -(errno::EAVAIL as isize));
    assert_eq!(b.error(&[]).op_context as usize, 3);
    assert_eq!(sread(20, &mut entry), -(errno::EAGAIN as isize));
    a.close();
    b.close();
    net.close();
}

fn delivery() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let byte = [1_u8];
    let iov = Iovec { iov_base: byte.as_ptr().cast_mut().cast(), iov_len: 1 };
    let send = |flags, context: usize| {
        let context = context as *mut c_void;
        let (msg_iov, desc) = (&raw const iov, ptr::null_mut());
        let msg = Msg { msg_iov, desc, iov_count: 1, addr: to_b, context, data: 0 };
        // SAFETY: the endpoint is open; the message lives during the call, and the byte longer.
        unsafe { op!((*a.ep).msg, sendmsg)(a.ep, &raw const msg, flags) }
    };
    // Without a receive, a message can be transmitted, but not delivered.
    assert_eq!(send(caps::TRANSMIT_COMPLETE, 1), 0);
    assert_eq!(a.ok(&[&b]).op_context as usize, 1);
    assert_eq!(send(caps::DELIVERY_COMPLETE, 2), 0);
    assert!(a.is_quiet(&[&b]));
    let mut into = [0_u8; 2];
    for at in 0..2 {
        assert_eq!(b.recv(&mut into[at..=at], ptr::null_mut(), ADDR_UNSPEC, 3), 0);
    }
    assert_eq!((a.ok(&[&b]).op_context as usize, into), (2, [1, 1]));
    b.ok(&[]);
    b.ok(&[]);
    a.close();
    b.close();
    net.close();
}

fn entries() {
    let net = Fi::open().net(|_| ());
    let a = net.side();
    let buf = vec![1_u8; 64];
    let held: Vec<_> = (0..2).map(|_| net.ready(&a, &buf, caps::REMOTE_WRITE, 0)).collect();
    let last = net.register(&buf, caps::REMOTE_READ, 0).unwrap();
    assert_eq!((bind(last, a.ep, 0), enable(last)), (0, -errno::ENOSPC));
    // Without remote rights no entries are needed, and a closed registration frees its entries.
    let local = net.ready(&a, &buf, caps::SEND | caps::WRITE, 0);
    assert_eq!(close(held[0]), 0);
    assert_eq!(enable(last), 0);
    for mr in [held[1], last, local] {
        assert_eq!(close(mr), 0);
    }
    a.close();
    net.close();
}

fn entries_at_once() {
    let net = Fi::open().net(|_| ());
    let buf = vec![1_u8; 64];
    assert_eq!(net.register(&buf, caps::REMOTE_READ, 1), Err(-errno::ENOSPC));
    let local = net.register(&buf, caps::READ, 1).unwrap();
    assert_eq!(of(local).1, 1);
    assert_eq!(close(local), 0);
    net.close();
}

fn no_writedata() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let into = vec![0_u8; 8];
    let target = net.ready(&b, &into, caps::REMOTE_WRITE, 0);
    let rc = a.writedata(&[1; 8], ptr::null_mut(), 1, to_b, (0, of(target).1), 1);
    assert_eq!(rc, -(errno::ENOSYS as isize));
    let bytes = [1_u8; 8];
    assert_eq!(a.write(&bytes, ptr::null_mut(), to_b, (0, of(target).1), 2), 0);
    assert_eq!((a.ok(&[&b]).op_context as usize, &into[..]), (2, &bytes[..]));
    assert_eq!(close(target), 0);
    a.close();
    b.close();
    net.close();
}

fn failures() {
    let net = Fi::open().net(|_| ());
    assert_eq!((net.ep(), net.cq(CqAttr::ZERO)), (Err(-errno::EIO), Err(-errno::EIO)));
    let mut a = net.asleep(0, CqAttr::ZERO);
    assert_eq!((enable(a.ep), enable(a.ep)), (-errno::EIO, 0));
    a.name = a.getname().unwrap();
    let buf = vec![1_u8; 64];
    let mr = net.register(&buf, caps::READ, 0).unwrap();
    assert_eq!(net.register(&buf, caps::READ, 0), Err(-errno::EIO));
    assert_eq!((bind(mr, a.ep, 0), bind(mr, a.ep, 0)), (-errno::EIO, 0));
    assert_eq!((enable(mr), enable(mr)), (-errno::EIO, 0));
    assert_eq!(close(mr), 0);
    a.close();
    net.close();
}

/// The key of a closed registration causes an error but no violation, because the peer cannot know of the close in
/// time.
fn revoked() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut bytes = [1_u8; 8];
    let into = vec![0_u8; 8];
    let target = net.ready(&b, &into, caps::REMOTE_WRITE | caps::REMOTE_READ, 17);
    let key = of(target).1;
    assert_eq!(close(target), 0);
    assert_eq!(a.write(&bytes, ptr::null_mut(), to_b, (0, key), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    assert_eq!(a.read(&mut bytes, ptr::null_mut(), to_b, (0, key), 2), 0);
    let error = a.error(&[&b]);
    assert_eq!((error.err, error.op_context as usize), (errno::EKEYREJECTED, 2));
    assert_eq!(a.inject(&bytes, to_b), 0);
    a.close();
    b.close();
    net.close();
}

fn nics() {
    let fi = Fi::open();
    let net = fi.net(|_| ());
    let mut names = Vec::new();
    let mut info = net.info;
    let mut sides = Vec::new();
    while !info.is_null() {
        // SAFETY: a list from `fi_getinfo`.
        let domain = unsafe { domain(net.fabric, info) }.unwrap();
        // SAFETY: as above.
        let name = unsafe { std::ffi::CStr::from_ptr((*(*info).domain_attr).name) };
        names.push(name.to_string_lossy().into_owned());
        let one = Net { fabric: net.fabric, domain, info, mode: net.mode };
        sides.push((one.side(), domain));
        // SAFETY: as above.
        info = unsafe { (*info).next };
    }
    assert_eq!(names, ["strict0", "strict1", "strict2"]);
    let to_last = sides[0].0.knows(&sides[2].0.name);
    let mut into = [0_u8; 1];
    assert_eq!(sides[2].0.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    assert_eq!(sides[0].0.send(&[4], ptr::null_mut(), to_last, 2), 0);
    sides[2].0.ok(&[&sides[0].0]);
    assert_eq!(into, [4]);
    for (side, domain) in sides {
        side.close();
        assert_eq!(close(domain), 0);
    }
    net.close();
}

fn hints() {
    let fi = Fi::open();
    assert!(fi.getinfo(|hints| hints.domain.mr_mode = mr_mode::PROV_KEY | mr_mode::ALLOCATED).is_err());
    assert!(fi.getinfo(|hints| hints.info.caps |= caps::ATOMIC).is_err());
    assert!(fi.getinfo(|hints| hints.domain.data_progress = progress::AUTO).is_err());
    assert!(fi.getinfo(|hints| hints.tx.inject_size = 4096).is_err());
    let info = fi.getinfo(|hints| hints.domain.threading = threading::COMPLETION).unwrap();
    // SAFETY: a result of `fi_getinfo`.
    let (domain, caps) = unsafe { (&*(*info).domain_attr, (*info).caps) };
    assert_eq!(domain.mr_mode, mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::ALLOCATED);
    assert_eq!(
        (domain.threading, domain.cq_data_size, domain.data_progress),
        (threading::COMPLETION, 8, progress::MANUAL)
    );
    assert_eq!(caps & caps::REMOTE_COMM, caps::REMOTE_COMM);
}

fn refused() {
    assert!(Fi::open().getinfo(|_| ()).is_err());
}

fn nobody() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let nobody = a.knows(&[3; 16]);
    assert_eq!(a.send(&[1], ptr::null_mut(), nobody, 1), 0);
    let error = a.error(&[]);
    assert_eq!((error.err, error.op_context as usize), (errno::ECONNREFUSED, 1));
    // A peer that closes during operations, and then an operation to the closed peer.
    assert_eq!(a.send(&[1], ptr::null_mut(), to_b, 2), 0);
    b.close();
    assert_eq!(a.error(&[]).err, errno::ECONNRESET);
    assert_eq!(a.send(&[1], ptr::null_mut(), to_b, 3), 0);
    assert_eq!(a.error(&[]).err, errno::ECONNREFUSED);
    a.close();
    net.close();
}

fn vectors() {
    let net = Fi::open().net(|_| ());
    let av = net.av(av_type::TABLE);
    let names = [[1_u8; 16], [2; 16], [3; 16]];
    let mut addrs = [9; 3];
    let (mut name, mut len) = ([0_u8; 16], 16);
    let mut text = [0_u8; 100];
    let mut text_len = text.len();
    // SAFETY: the vector is open, and the buffers have space for its results.
    unsafe {
        let ops = (*av).ops;
        assert_eq!(op!(ops, insert)(av, names.as_ptr().cast(), 3, addrs.as_mut_ptr(), 0, ptr::null_mut()), 3);
        assert_eq!(op!(ops, lookup)(av, 1, name.as_mut_ptr().cast(), &raw mut len), 0);
        assert_eq!((addrs, name, len), ([0, 1, 2], [2; 16], 16));
        assert_eq!(op!(ops, remove)(av, &raw mut addrs[1], 1, 0), 0);
        assert_eq!(op!(ops, lookup)(av, 1, name.as_mut_ptr().cast(), &raw mut len), -errno::EINVAL);
        op!(ops, straddr)(av, names[0].as_ptr().cast(), text.as_mut_ptr().cast(), &raw mut text_len);
    }
    assert_eq!(&text[..text_len], b"strict-fi/01010101010101010101010101010101\0");
    assert_eq!(close(av), 0);
    net.close();
}

fn full() {
    let net = Fi::open().net(|_| ());
    let (a, b) = (net.side(), net.side_of(0, CqAttr { size: 4, format: cq_format::TAGGED, ..CqAttr::ZERO }));
    let to_b = a.knows(&b.name);
    let into = vec![0_u8; 8];
    let target = net.ready(&b, &into, caps::REMOTE_WRITE, 0);
    let bytes = [1_u8; 8];
    for at in 0..100 {
        assert_eq!(a.writedata(&bytes, ptr::null_mut(), at, to_b, (0, of(target).1), 1), 0);
    }
    // The queue never contains more entries than its size, regardless of the number of operations.
    let (mut entries, mut count) = ([CqTaggedEntry::ZERO; 64], 0);
    while count < 100 {
        a.poll();
        // SAFETY: the queue is open and has this format, and the buffer has 64 entries.
        let rc = unsafe { op!((*b.cq).ops, read)(b.cq, (&raw mut entries).cast(), 64) };
        if rc != -(errno::EAGAIN as isize) {
            assert!((1..=4).contains(&rc), "{rc}");
            assert!(entries[..rc as usize].iter().zip(count..).all(|(entry, at)| entry.data == at));
            count += rc as u64;
        }
    }
    for _ in 0..100 {
        a.ok(&[&b]);
    }
    assert_eq!(close(target), 0);
    a.close();
    b.close();
    net.close();
}

/// Checks that a soak is practical: 20,000 messages and writes take a few seconds even in unoptimized tests.
fn soak() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let (bytes, mut into) = (pattern(256, 3), vec![1_u8; 256]);
    let target = net.ready(&b, &into, caps::REMOTE_WRITE, 0);
    let key = of(target).1;
    let mut place = [0_u8; 64];
    let begun = std::time::Instant::now();
    for at in 0..10_000_u64 {
        assert_eq!(b.post(&[&a], || b.recv(&mut place, ptr::null_mut(), ADDR_UNSPEC, 1)), 0);
        assert_eq!(a.post(&[&b], || a.inject(&bytes[..64], to_b)), 0);
        assert_eq!(a.post(&[&b], || a.writedata(&bytes, ptr::null_mut(), at, to_b, (0, key), 2)), 0);
        assert_eq!((b.ok(&[&a]).len, b.ok(&[&a]).data), (64, at));
        a.ok(&[&b]);
    }
    println!("20000 operations in {:?}", begun.elapsed());
    assert_eq!((&into[..], &place[..]), (&bytes[..], &bytes[..64]));
    into.clear();
    assert_eq!(close(target), 0);
    a.close();
    b.close();
    net.close();
}

fn devices() {
    let net = Fi::open().net(|hints| hints.info.caps |= caps::HMEM);
    let buf = [1_u8; 8];
    let iov = Iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: 8 };
    for (iface, flags, rc) in [
        (hmem::CUDA, 0, -errno::EOPNOTSUPP),
        (hmem::SYSTEM, MR_DMABUF, -errno::EOPNOTSUPP),
        (hmem::SYSTEM, 0, 0),
    ] {
        let attr = MrAttr { mr_iov: &raw const iov, iov_count: 1, access: caps::READ, iface, ..MrAttr::ZERO };
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open, and the attributes live during the call.
        let said =
            unsafe { op!((*net.domain).mr, regattr)(net.domain.cast(), &raw const attr, flags, &raw mut mr) };
        assert_eq!(said, rc);
        if rc == 0 {
            assert_eq!(close(mr), 0);
        }
    }
    net.close();
}

fn sent() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut into = [0_u8; 1];
    assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    assert_eq!(a.send(&[4], ptr::null_mut(), to_b, 2), 0);
    assert_eq!(a.cancel(2), -(errno::ENOENT as isize));
    b.ok(&[&a]);
    assert_eq!((a.ok(&[&b]).op_context as usize, into), (2, [4]));
    a.close();
    b.close();
    net.close();
}

/// Encodes a frame as in `wire.rs`: kind, operation, and the five words.
fn frame(kind: u8, op: u32, words: [u64; 5]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    [b"STR1".as_slice(), &[kind, 0, 0, 0], &op.to_le_bytes(), &[0; 4]]
        .concat()
        .into_iter()
        .chain(words)
        .collect()
}

/// Checks that a peer which dies within a message leaves posted receives and unexpected messages as they were.
fn broken_off() {
    use std::io::Write as _;
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut into = [0_u8; 100];
    for posted in [true, false] {
        if posted {
            assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
        }
        let mut stranger = super::pairs::stranger(&b.name);
        stranger.write_all(&frame(1, 0, [1, 2, 0, 0, 0])).unwrap();
        stranger.write_all(&frame(2, 1, [0, 0, 0, 0, 100])).unwrap();
        stranger.write_all(&[9; 50]).unwrap();
        assert!(b.is_quiet(&[]));
        if !posted {
            // The receive is matched with the incomplete message, and later with another one.
            assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
        }
        assert!(b.is_quiet(&[]));
        drop(stranger);
        assert!(b.is_quiet(&[]));
        assert_eq!(a.send(&[5; 3], ptr::null_mut(), to_b, 2), 0);
        assert_eq!((b.ok(&[&a]).len, &into[..3]), (3, &[5; 3][..]));
        a.ok(&[&b]);
    }
    a.close();
    b.close();
    net.close();
}

/// Checks that a registration may be closed during a peer's access: the peer's operation fails.
fn withdrawn() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let (mut mine, theirs) = (vec![1_u8; 16 << 20], vec![2_u8; 16 << 20]);
    for reads in [true, false] {
        let mr = net.ready(&b, &theirs, caps::REMOTE_READ | caps::REMOTE_WRITE, 0);
        let place = (0, of(mr).1);
        let rc = if reads {
            a.read(&mut mine, ptr::null_mut(), to_b, place, 1)
        } else {
            a.write(&mine, ptr::null_mut(), to_b, place, 1)
        };
        assert_eq!(rc, 0);
        // The operation has begun, and the socket cannot hold all of it.
        b.poll();
        assert_eq!(close(mr), 0);
        assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    }
    assert_eq!(theirs.last(), Some(&2));
    a.close();
    b.close();
    net.close();
}

fn closed_at_work() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut buf = vec![1_u8; 16];
    let mr = net.register(&buf, ALL, 1).unwrap();
    let desc = of(mr).0;
    assert_eq!(a.send(&buf, desc, to_b, 1), 0);
    assert_eq!(a.recv(&mut buf, desc, ADDR_UNSPEC, 2), 0);
    assert_eq!(a.trecv(&mut buf, desc, (1, 0), 3), 0);
    a.close();
    assert_eq!(close(mr), 0);
    b.close();
    net.close();
}

fn anonymous() {
    let net = Fi::open().net(|hints| hints.info.caps = caps::MSG);
    let (a, b, to_b, _) = two(&net);
    let mut into = [0_u8; 1];
    // Without FI_DIRECTED_RECV the source of a receive is ignored.
    assert_eq!(b.recv(&mut into, ptr::null_mut(), 0x1234, 1), 0);
    assert_eq!(a.inject(&[1], to_b), 0);
    assert_eq!(b.next(&[&a]).unwrap().1, ADDR_NOTAVAIL);
    a.close();
    b.close();
    net.close();
}

fn events() {
    let net = Fi::open().net(|_| ());
    let (mut eq, mut attr) = (ptr::null_mut(), EqAttr::ZERO);
    let (mut event, mut entry) = (0, 0_u64);
    // SAFETY: the fabric is open, and the arguments may be written.
    unsafe {
        let rc = op!((*net.fabric).ops, eq_open)(net.fabric, &raw mut attr, &raw mut eq, ptr::null_mut());
        assert_eq!(rc, 0);
        let rc = op!((*eq).ops, read)(eq, &raw mut event, (&raw mut entry).cast(), 8, 0);
        assert_eq!(rc, -(errno::EAGAIN as isize));
    }
    assert_eq!(close(eq), 0);
    net.close();
}

fn depth() {
    let net = Fi::open().net(|_| ());
    let (a, b, to_b, _) = two(&net);
    let mut into = [0_u8; 4];
    let again = -(errno::EAGAIN as isize);
    for expected in [0, 0, again] {
        assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), expected);
        assert_eq!(b.trecv(&mut into, ptr::null_mut(), (1, 0), 2), expected);
        assert_eq!(a.send(&[1], ptr::null_mut(), to_b, 3), expected);
    }
    // Completed operations free their places.
    a.ok(&[&b]);
    b.ok(&[&a]);
    assert_eq!(a.send(&[1], ptr::null_mut(), to_b, 3), 0);
    assert_eq!(b.recv(&mut into, ptr::null_mut(), ADDR_UNSPEC, 1), 0);
    a.close();
    b.close();
    net.close();
}
