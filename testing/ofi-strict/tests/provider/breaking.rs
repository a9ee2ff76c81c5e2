//! Programs that break one rule each, with the expected violations. Each rule of the provider has a program here; the
//! programs of `keeping.rs` show that correct programs cause no violation.

use std::ffi::c_void;
use std::ptr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use trunkline_sys::ofi::*;

use super::Case;
use super::fi::{Fi, Net, Side, bind, close, enable, of, op};

const fn case(name: &'static str, violations: &'static [&'static str], run: fn()) -> Case {
    Case { name, env: &[], violations, run }
}

const fn with(
    name: &'static str,
    env: &'static [(&'static str, &'static str)],
    violations: &'static [&'static str],
    run: fn(),
) -> Case {
    Case { name, env, violations, run }
}

pub(crate) const CASES: &[Case] = &[
    case("bind before the endpoint is enabled", &["before the endpoint is enabled"], early_bind),
    case("bind of a second endpoint", &["to a second endpoint"], second_bind),
    case("bind to an endpoint of another domain", &["of another domain"], foreign_bind),
    case("bind of an enabled registration", &["bind of a registration that is enabled"], late_bind),
    case("enable of an unbound registration", &["that is not bound"], unbound_enable),
    case("enable twice", &["enable of a registration that is enabled"], second_enable),
    with(
        "bind without FI_MR_ENDPOINT",
        &[("FI_STRICT_MR", "none")],
        &["lacks FI_MR_ENDPOINT"],
        needless_bind,
    ),
    case("a descriptor before it is enabled", &["before its registration is enabled"], early_desc),
    case("a key before it is enabled", &["never valid"], early_key),
    case("a descriptor of another endpoint", &["endpoint 0 is used on endpoint 1"], foreign_desc),
    case("a descriptor that is closed", &["belongs to no open registration"], closed_desc),
    case("a key of another endpoint", &["of endpoint 0 at endpoint 1"], foreign_key),
    case("a key of another domain", &["never valid"], key_of_another_domain),
    case("an invalid key", &["never valid", "never valid"], wrong_key),
    case("access outside", &["leaves the registration", "leaves the registration"], outside),
    case("access without the right", &["a peer writes", "a peer reads"], rights),
    case("a buffer outside", &["a buffer of 9 bytes leaves"], outside_locally),
    case(
        "a buffer without the right",
        &["lacks FI_SEND", "lacks FI_RECV", "lacks FI_WRITE", "lacks FI_READ"],
        rights_locally,
    ),
    with(
        "no descriptor",
        &[("FI_STRICT_MR", "endpoint,prov_key,local")],
        &["has no descriptor", "has no descriptor"],
        no_desc,
    ),
    case("missing pages", &["not resident"], missing),
    case("memory unmapped in use", &["unmapped before it completed"], gone),
    case("registered memory unmapped in use", &["no longer mapped"], gone_remotely),
    case("an endpoint closed before its registrations", &["1 live registrations"], early_close),
    case("a registration closed in use", &["that 1 operations use", "that 1 operations use"], close_in_use),
    with("a key twice", &[("FI_STRICT_MR", "endpoint")], &["key 0x5 is in use"], key_twice),
    with("a key that is too long", &[("FI_STRICT_MR", "none")], &["more than 4 bytes"], long_key),
    case("an empty registration", &["registration of 0 bytes", "with rights 0x0"], nothing),
    case(
        "objects closed in use",
        &["completion queue that", "address vector that", "1 endpoints and 2", "fabric with open"],
        close_parents,
    ),
    case("two threads in a domain", &["two threads at once"], threads_of_domain),
    case("two threads at a queue", &["two threads at once"], threads_of_queue),
    case("an injection that is too long", &["193 injected bytes", "193 injected bytes"], long_inject),
    case(
        "an operation before the endpoint is enabled",
        &["is not enabled", "is not enabled", "that is not enabled"],
        early_post,
    ),
    case("an operation without its capability", &["tsend on", "a receive on", "write on"], incapable),
    case(
        "a peer that is not in the vector",
        &["is in no address vector", "not in the address vector"],
        stranger,
    ),
    with("data that does not fit", &[("FI_STRICT_CQ_DATA", "4")], &["4 bytes", "4 bytes"], wide_data),
    case(
        "unsupported flags",
        &["send with unsupported flags", "a receive with unsupported flags"],
        odd_flags,
    ),
    case(
        "an endpoint without its parts",
        &["without an address vector", "without completion queues"],
        incomplete,
    ),
    case(
        "an endpoint bound when it is enabled",
        &["queue to an endpoint", "vector to an endpoint", "that is enabled"],
        late_parts,
    ),
    case("a second queue", &["a second queue"], second_queue),
    case("parts of another domain", &["object of another domain"], foreign_parts),
    case("a remote range of another length", &["needs one remote range"], other_length),
    case("too many ranges", &["5 ranges"], many_ranges),
];

const NO_DESC: *mut c_void = ptr::null_mut();
const EINVAL: isize = -(errno::EINVAL as isize);

fn net() -> Net {
    Fi::open().net(|_| ())
}

fn two(net: &Net) -> (Side, Side, Addr) {
    let (a, b) = (net.side(), net.side());
    let to_b = a.knows(&b.name);
    (a, b, to_b)
}

fn early_bind() {
    let net = net();
    let (side, buf) = (net.asleep(0, CqAttr::ZERO), vec![1_u8; 8]);
    let mr = net.register(&buf, caps::READ, 0).unwrap();
    assert_eq!(bind(mr, side.ep, 0), -errno::EINVAL);
    // The failed bind has no effect.
    assert_eq!((enable(side.ep), bind(mr, side.ep, 0), enable(mr)), (0, 0, 0));
    assert_eq!(close(mr), 0);
    side.close();
    net.close();
}

fn second_bind() {
    let net = net();
    let (a, b, _) = two(&net);
    let buf = vec![1_u8; 8];
    let mr = net.register(&buf, caps::READ, 0).unwrap();
    assert_eq!((bind(mr, a.ep, 0), bind(mr, b.ep, 0)), (0, -errno::EINVAL));
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn foreign_bind() {
    let (net, other) = (net(), net());
    let (side, buf) = (other.side(), vec![1_u8; 8]);
    let mr = net.register(&buf, caps::READ, 0).unwrap();
    assert_eq!(bind(mr, side.ep, 0), -errno::EINVAL);
    assert_eq!(close(mr), 0);
    side.close();
    net.close();
    other.close();
}

fn late_bind() {
    let net = net();
    let (a, buf) = (net.side(), vec![1_u8; 8]);
    let mr = net.ready(&a, &buf, caps::READ, 0);
    assert_eq!(bind(mr, a.ep, 0), -errno::EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    net.close();
}

fn unbound_enable() {
    let net = net();
    let buf = vec![1_u8; 8];
    let mr = net.register(&buf, caps::READ, 0).unwrap();
    assert_eq!(enable(mr), -errno::EINVAL);
    assert_eq!(close(mr), 0);
    net.close();
}

fn second_enable() {
    let net = net();
    let (a, buf) = (net.side(), vec![1_u8; 8]);
    let mr = net.ready(&a, &buf, caps::READ, 0);
    assert_eq!(enable(mr), -errno::EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    net.close();
}

fn needless_bind() {
    let net = net();
    let (a, buf) = (net.side(), vec![1_u8; 8]);
    let mr = net.register(&buf, caps::READ, 0).unwrap();
    assert_eq!(bind(mr, a.ep, 0), -errno::EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    net.close();
}

fn early_desc() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let buf = vec![1_u8; 8];
    let mr = net.register(&buf, caps::SEND, 0).unwrap();
    assert_eq!(bind(mr, a.ep, 0), 0);
    assert_eq!(a.send(&buf, of(mr).0, to_b, 1), EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn early_key() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let buf = vec![1_u8; 8];
    let mr = net.register(&buf, caps::REMOTE_WRITE, 0).unwrap();
    assert_eq!(bind(mr, b.ep, 0), 0);
    assert_eq!(of(mr).1, KEY_NOTAVAIL);
    assert_eq!(a.write(&[1; 8], NO_DESC, to_b, (0, of(mr).1), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn foreign_desc() {
    let net = net();
    let (a, b, _) = two(&net);
    let buf = vec![1_u8; 8];
    let mr = net.ready(&a, &buf, caps::SEND, 0);
    let to_a = b.knows(&a.name);
    assert_eq!(b.send(&buf, of(mr).0, to_a, 1), EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn closed_desc() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let buf = vec![1_u8; 8];
    let mr = net.ready(&a, &buf, caps::SEND, 0);
    let desc = of(mr).0;
    assert_eq!(close(mr), 0);
    assert_eq!(a.send(&buf, desc, to_b, 1), EINVAL);
    a.close();
    b.close();
    net.close();
}

fn foreign_key() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let buf = vec![1_u8; 8];
    let mr = net.ready(&a, &buf, caps::REMOTE_WRITE, 0);
    assert_eq!(a.write(&[1; 8], NO_DESC, to_b, (0, of(mr).1), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn key_of_another_domain() {
    let (net, other) = (net(), net());
    let (a, b, to_b) = two(&net);
    let (c, buf) = (other.side(), vec![1_u8; 8]);
    let here = net.ready(&b, &buf, caps::REMOTE_WRITE, 0);
    let there = other.ready(&c, &buf, caps::REMOTE_WRITE, 0);
    assert_eq!(a.write(&[1; 8], NO_DESC, to_b, (0, of(there).1), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    assert_eq!((close(here), close(there)), (0, 0));
    a.close();
    b.close();
    c.close();
    net.close();
    other.close();
}

fn wrong_key() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let mut buf = [1_u8; 8];
    assert_eq!(a.write(&buf, NO_DESC, to_b, (0, 12345), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    assert_eq!(a.read(&mut buf, NO_DESC, to_b, (0, 12345), 2), 0);
    assert_eq!(a.error(&[&b]).err, errno::EKEYREJECTED);
    a.close();
    b.close();
    net.close();
}

fn outside() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let (mut bytes, target) = ([1_u8; 8], vec![0_u8; 64]);
    let mr = net.ready(&b, &target[..32], caps::REMOTE_WRITE | caps::REMOTE_READ, 0);
    assert_eq!(a.write(&bytes, NO_DESC, to_b, (25, of(mr).1), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EACCES);
    assert_eq!(a.read(&mut bytes, NO_DESC, to_b, (u64::MAX, of(mr).1), 2), 0);
    assert_eq!(a.error(&[&b]).err, errno::EACCES);
    assert!(target.iter().all(|byte| *byte == 0));
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn rights() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let (mut bytes, target) = ([1_u8; 8], vec![0_u8; 64]);
    let read = net.ready(&b, &target, caps::REMOTE_READ, 0);
    let write = net.ready(&b, &target, caps::REMOTE_WRITE, 0);
    assert_eq!(a.write(&bytes, NO_DESC, to_b, (0, of(read).1), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EACCES);
    assert_eq!(a.read(&mut bytes, NO_DESC, to_b, (0, of(write).1), 2), 0);
    assert_eq!(a.error(&[&b]).err, errno::EACCES);
    assert_eq!(close(read), 0);
    assert_eq!(close(write), 0);
    a.close();
    b.close();
    net.close();
}

fn outside_locally() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let buf = [1_u8; 16];
    let mr = net.ready(&a, &buf[..8], caps::SEND, 0);
    assert_eq!(a.send(&buf[..9], of(mr).0, to_b, 1), EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn rights_locally() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let mut buf = vec![1_u8; 8];
    let mr = net.ready(&a, &buf, caps::REMOTE_READ, 0);
    let desc = of(mr).0;
    assert_eq!(a.send(&buf, desc, to_b, 1), EINVAL);
    assert_eq!(a.recv(&mut buf, desc, ADDR_UNSPEC, 1), EINVAL);
    assert_eq!(a.write(&buf, desc, to_b, (0, 0), 1), EINVAL);
    assert_eq!(a.read(&mut buf, desc, to_b, (0, 0), 1), EINVAL);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn no_desc() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let mut buf = vec![1_u8; 8];
    assert_eq!(a.send(&buf, NO_DESC, to_b, 1), EINVAL);
    assert_eq!(a.recv(&mut buf, NO_DESC, ADDR_UNSPEC, 1), EINVAL);
    // An empty buffer needs no descriptor, and an injected buffer is copied.
    assert_eq!((a.send(&[], NO_DESC, to_b, 1), a.inject(&buf, to_b)), (0, 0));
    a.ok(&[&b]);
    a.close();
    b.close();
    net.close();
}

/// Maps new, untouched pages.
fn map(pages: usize) -> &'static mut [u8] {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; it replaces no memory.
    let at = unsafe { libc::mmap(ptr::null_mut(), pages * 4096, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: mapped above, and not accessed by this reference after it is unmapped.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), pages * 4096) }
}

fn unmap(memory: &mut [u8]) {
    // SAFETY: mapped by `map`; later accesses are made by the kernel, which returns errors.
    assert_eq!(unsafe { libc::munmap(memory.as_mut_ptr().cast(), memory.len()) }, 0);
}

fn missing() {
    let (net, memory) = (net(), map(4));
    memory[..3 * 4096].fill(1);
    assert_eq!(net.register(memory, caps::READ, 0), Err(-errno::EFAULT));
    let mr = net.register(&memory[..3 * 4096], caps::READ, 0).unwrap();
    assert_eq!(close(mr), 0);
    net.close();
}

fn gone() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let memory = map(1024);
    memory.fill(1);
    let mut into = vec![0_u8; memory.len()];
    // More than the socket's buffer, so a part is still unsent.
    assert_eq!(a.send(memory, NO_DESC, to_b, 1), 0);
    unmap(memory);
    assert_eq!(b.recv(&mut into, NO_DESC, ADDR_UNSPEC, 2), 0);
    assert_eq!(a.error(&[&b]).err, errno::EFAULT);
    a.close();
    b.close();
    net.close();
}

fn gone_remotely() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let memory = map(2);
    memory.fill(1);
    let mr = net.ready(&b, memory, caps::REMOTE_WRITE, 0);
    unmap(memory);
    assert_eq!(a.write(&[1; 8], NO_DESC, to_b, (0, of(mr).1), 1), 0);
    assert_eq!(a.error(&[&b]).err, errno::EFAULT);
    assert_eq!(close(mr), 0);
    a.close();
    b.close();
    net.close();
}

fn early_close() {
    let net = net();
    let (a, buf) = (net.side(), vec![1_u8; 8]);
    let mr = net.ready(&a, &buf, caps::READ, 0);
    assert_eq!(close(a.ep), -errno::EBUSY);
    assert_eq!(close(mr), 0);
    a.close();
    net.close();
}

fn close_in_use() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let mut buf = vec![1_u8; 8];
    let mr = net.ready(&a, &buf, caps::SEND | caps::RECV, 0);
    assert_eq!(a.send(&buf, of(mr).0, to_b, 1), 0);
    assert_eq!(close(mr), -errno::EBUSY);
    let mut into = [0_u8; 8];
    assert_eq!(b.recv(&mut into, NO_DESC, ADDR_UNSPEC, 2), 0);
    a.ok(&[&b]);
    b.ok(&[&a]);
    assert_eq!(a.recv(&mut buf, of(mr).0, ADDR_UNSPEC, 3), 0);
    assert_eq!(close(mr), -errno::EBUSY);
    assert_eq!((a.cancel(3), a.error(&[]).err, close(mr)), (0, errno::ECANCELED, 0));
    a.close();
    b.close();
    net.close();
}

fn key_twice() {
    let net = net();
    let buf = vec![1_u8; 8];
    let first = net.register(&buf, caps::REMOTE_READ, 5).unwrap();
    assert_eq!(net.register(&buf, caps::REMOTE_READ, 5), Err(-errno::ENOKEY));
    assert_eq!(close(first), 0);
    assert_eq!(close(net.register(&buf, caps::REMOTE_READ, 5).unwrap()), 0);
    net.close();
}

fn long_key() {
    let net = net();
    let buf = vec![1_u8; 8];
    assert_eq!(net.register(&buf, caps::READ, 1 << 32), Err(-errno::EKEYREJECTED));
    net.close();
}

fn nothing() {
    let net = net();
    let buf = vec![1_u8; 8];
    assert_eq!(net.register(&buf[..0], caps::READ, 0), Err(-errno::EINVAL));
    assert_eq!(net.register(&buf, 0, 0), Err(-errno::EINVAL));
    net.close();
}

fn close_parents() {
    let net = net();
    let a = net.side();
    assert_eq!((close(a.cq), close(a.av)), (-errno::EBUSY, -errno::EBUSY));
    assert_eq!((close(net.domain), close(net.fabric)), (-errno::EBUSY, -errno::EBUSY));
    a.close();
    net.close();
}

/// Calls the provider from two threads at once until it reports a violation; the second thread stops first.
fn crowd(threading: u32, second: fn(&Side, &Side)) {
    struct Both(Side, Side);
    // SAFETY: the test breaks the threading model on purpose; the provider itself is thread-safe and reports it.
    unsafe impl Sync for Both {}
    let net = Fi::open().net(|hints| hints.domain.threading = threading);
    let both = Both(net.side(), net.side());
    let report = std::env::var("FI_STRICT_REPORT").unwrap();
    let said = || std::fs::read_to_string(&report).is_ok_and(|text| text.contains("two threads"));
    let begin = Barrier::new(2);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let (both, begin, said) = (&both, &begin, &said);
        scope.spawn(move || {
            begin.wait();
            while !said() && begun.elapsed() < Duration::from_secs(10) {
                second(&both.0, &both.1);
            }
        });
        begin.wait();
        while !said() && begun.elapsed() < Duration::from_secs(10) {
            both.0.poll();
        }
    });
    std::process::exit(if said() { 0 } else { 1 });
}

fn threads_of_domain() {
    crowd(threading::DOMAIN, |_, b| (0..100).for_each(|_| b.poll()));
}

fn threads_of_queue() {
    crowd(threading::COMPLETION, |a, _| assert!((0..100).all(|at| a.cancel(at + 1) != 0)));
}

fn long_inject() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let bytes = [1_u8; 193];
    assert_eq!((a.inject(&bytes[..192], to_b), a.inject(&bytes, to_b)), (0, -(errno::EMSGSIZE as isize)));
    assert_eq!(sendmsg(&a, to_b, &bytes, 1, caps::INJECT), -(errno::EMSGSIZE as isize));
    a.close();
    b.close();
    net.close();
}

/// Sends a message of `count` equal ranges.
fn sendmsg(side: &Side, to: Addr, bytes: &[u8], count: usize, flags: u64) -> isize {
    let iov = vec![Iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }; count];
    let (msg_iov, context) = (iov.as_ptr(), ptr::null_mut());
    let msg = Msg { msg_iov, desc: ptr::null_mut(), iov_count: count, addr: to, context, data: 1 << 40 };
    // SAFETY: the endpoint is open, and the message lives during the call.
    unsafe { op!((*side.ep).msg, sendmsg)(side.ep, &raw const msg, flags) }
}

fn early_post() {
    let net = net();
    let (side, mut buf) = (net.asleep(0, CqAttr::ZERO), [1_u8; 8]);
    let state = -(errno::EOPBADSTATE as isize);
    assert_eq!(side.send(&buf, NO_DESC, 0, 1), state);
    assert_eq!(side.recv(&mut buf, NO_DESC, ADDR_UNSPEC, 1), state);
    assert_eq!(side.getname(), Err(-errno::EOPBADSTATE));
    side.close();
    net.close();
}

fn incapable() {
    let net = Fi::open().net(|hints| hints.info.caps = caps::MSG);
    let (a, b, to_b) = two(&net);
    let (mut buf, no) = ([1_u8; 8], -(errno::EOPNOTSUPP as isize));
    assert_eq!(a.tsend(&buf, NO_DESC, to_b, 1, 1), no);
    assert_eq!(a.trecv(&mut buf, NO_DESC, (1, 0), 1), no);
    assert_eq!(a.write(&buf, NO_DESC, to_b, (0, 0), 1), no);
    a.close();
    b.close();
    net.close();
}

fn stranger() {
    let net = net();
    let a = net.side();
    assert_eq!(a.send(&[1], NO_DESC, 0x1234, 1), EINVAL);
    let mut addr = 0x1234;
    // SAFETY: the vector is open, and one address is passed.
    assert_eq!(unsafe { op!((*a.av).ops, remove)(a.av, &raw mut addr, 1, 0) }, -errno::EINVAL);
    a.close();
    net.close();
}

fn wide_data() {
    let net = net();
    let (a, b, to_b) = two(&net);
    assert_eq!(a.writedata(&[1], NO_DESC, 1 << 32, to_b, (0, 0), 1), EINVAL);
    assert_eq!(sendmsg(&a, to_b, &[1], 1, caps::REMOTE_CQ_DATA), EINVAL);
    a.close();
    b.close();
    net.close();
}

fn odd_flags() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let flags = -(errno::EBADFLAGS as isize);
    assert_eq!(sendmsg(&a, to_b, &[1], 1, caps::PEEK), flags);
    let iov = Iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let (msg_iov, nothing) = (&raw const iov, ptr::null_mut());
    let msg =
        Msg { msg_iov, desc: ptr::null_mut(), iov_count: 1, addr: ADDR_UNSPEC, context: nothing, data: 0 };
    // SAFETY: the endpoint is open, and the message lives during the call.
    let rc = unsafe { op!((*a.ep).msg, recvmsg)(a.ep, &raw const msg, caps::MULTI_RECV) };
    assert_eq!(rc, flags);
    a.close();
    b.close();
    net.close();
}

fn incomplete() {
    let net = net();
    let (ep, av) = (net.ep().unwrap(), net.av(av_type::TABLE));
    assert_eq!(enable(ep), -errno::ENOAV);
    assert_eq!((bind(ep, av, 0), enable(ep)), (0, -errno::ENOCQ));
    assert_eq!(close(ep), 0);
    assert_eq!(close(av), 0);
    net.close();
}

fn late_parts() {
    let net = net();
    let (a, state) = (net.side(), -errno::EOPBADSTATE);
    assert_eq!((bind(a.ep, a.cq, caps::RECV), bind(a.ep, a.av, 0), enable(a.ep)), (state, state, state));
    a.close();
    net.close();
}

fn second_queue() {
    let net = net();
    let side = net.asleep(0, CqAttr::ZERO);
    let other = net.cq(CqAttr::ZERO).unwrap();
    assert_eq!(bind(side.ep, other, caps::RECV), -errno::EINVAL);
    side.close();
    assert_eq!(close(other), 0);
    net.close();
}

fn foreign_parts() {
    let (net, other) = (net(), net());
    let (ep, cq) = (net.ep().unwrap(), other.cq(CqAttr::ZERO).unwrap());
    assert_eq!(bind(ep, cq, caps::RECV), -errno::EINVAL);
    assert_eq!(close(ep), 0);
    assert_eq!(close(cq), 0);
    net.close();
    other.close();
}

fn other_length() {
    let net = net();
    let (a, b, to_b) = two(&net);
    let bytes = [1_u8; 8];
    let iov = Iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: 8 };
    let remote = RmaIov { addr: 0, len: 7, key: 1 };
    let msg = MsgRma {
        msg_iov: &raw const iov,
        desc: ptr::null_mut(),
        iov_count: 1,
        addr: to_b,
        rma_iov: &raw const remote,
        rma_iov_count: 1,
        context: ptr::null_mut(),
        data: 0,
    };
    // SAFETY: the endpoint is open, and the message lives during the call.
    let rc = unsafe { op!((*a.ep).rma, writemsg)(a.ep, &raw const msg, 0) };
    assert_eq!(rc, EINVAL);
    a.close();
    b.close();
    net.close();
}

fn many_ranges() {
    let net = net();
    let (a, b, to_b) = two(&net);
    assert_eq!(sendmsg(&a, to_b, &[1], 5, 0), EINVAL);
    a.close();
    b.close();
    net.close();
}
