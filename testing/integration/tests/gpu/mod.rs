//! GPU memory through the whole plugin, over a fake NIC and driver. The processor must access no byte of it, which
//! would crash; no byte may be missing; and delayed writes of the NIC must be flushed.

pub(crate) mod fakes;

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use trunkline_sys::nccl_net::{PTR_CUDA, PTR_DMABUF, PTR_HOST};

use crate::net::{Buf, Called, Comm, Mr, Net, Piece, STALE, fresh_seed, logged, opaque, until};
use crate::run::Scene;
use fakes::{Device, Fakes, over_fakes, over_strict};

scenarios! {
    memory_of_a_gpu_is_never_touched,
    unflushed_gpu_writes_stay_invisible,
    the_caller_keeps_its_dmabuf,
    memory_of_a_gpu_is_refused,
    nics_that_reach_no_gpu_report_no_support,
    memory_of_the_wrong_type_is_refused,
    small_messages_wait_for_their_receive,
    communicators_share_over_memory_of_gpus,
    bytes_held_by_a_lost_nic_arrive,
}

/// All pointers that a NIC may reach.
const ALL: i32 = PTR_HOST | PTR_CUDA | PTR_DMABUF;
const PAGE: usize = 4096;

#[test]
fn gpu_memory_is_sent_by_the_nic() {
    let Some(setting) = over_fakes("memory_of_a_gpu_is_never_touched") else { return };
    for version in [6, 8, 12] {
        setting.clone().version(version).alone();
    }
    setting.clone().env("FAKE_VERBS_DEVICES", 2).env("TEST_FUSED", 2).alone();
    setting.env("TRUNKLINE_LINKS_PER_RAIL", 2).alone();
}

#[test]
fn gpu_flushes_make_writes_visible() {
    let Some(setting) = over_fakes("unflushed_gpu_writes_stay_invisible") else { return };
    setting.clone().alone();
    setting.clone().env("FAKE_VERBS_DEVICES", 2).env("TEST_FUSED", 2).alone();
    setting.clone().env("NCCL_GDR_FLUSH_DISABLE", 1).alone();
    setting.env("TRUNKLINE_GDR_FLUSH_DISABLE", 1).alone();
}

#[test]
fn dmabufs_of_callers_are_registered() {
    let Some(setting) = over_fakes("the_caller_keeps_its_dmabuf") else { return };
    setting.alone();
}

#[test]
fn ptr_support_omits_gpus_without_a_path() {
    let Some(setting) = over_fakes("memory_of_a_gpu_is_refused") else { return };
    setting.clone().env("FAKE_VERBS_DMABUF", 0).alone();
    setting.env("FAKE_CUDA_EXPORTS", 0).alone();
}

#[test]
fn nics_in_software_reach_no_gpu() {
    crate::run::scenario("nics_that_reach_no_gpu_report_no_support").alone_in_every_version();
}

#[test]
fn the_driver_determines_the_memory_type() {
    let Some(setting) = over_fakes("memory_of_the_wrong_type_is_refused") else { return };
    setting.alone();
}

#[test]
fn nics_that_reach_gpus_send_nothing_eagerly() {
    let Some(setting) = over_fakes("small_messages_wait_for_their_receive") else { return };
    setting.alone();
}

#[test]
fn gpus_are_reached_over_shared_queue_pairs() {
    let Some(setting) = over_fakes("communicators_share_over_memory_of_gpus") else { return };
    setting.env("TRUNKLINE_QP_SHARING", "on").env("TRUNKLINE_QP_GROUPS", 1).alone();
}

#[test]
fn a_lost_nic_is_flushed() {
    let Some(setting) = over_fakes("bytes_held_by_a_lost_nic_arrive") else { return };
    let setting =
        setting.env("FAKE_VERBS_DEVICES", 2).env("TEST_FUSED", 2).env("TRUNKLINE_RAIL_TIME_MS", 1000);
    setting.alone();
}

#[test]
fn gpu_memory_is_sent_over_libfabric() {
    let Some(setting) = over_strict("memory_of_a_gpu_is_never_touched") else { return };
    for demands in ["endpoint,prov_key,allocated", "none", "virt_addr,local,prov_key"] {
        setting.clone().env("FI_STRICT_MR", demands).alone();
    }
    setting.clone().env("FI_STRICT_NICS", 2).env("TEST_FUSED", 2).alone();
    setting.env("TRUNKLINE_LINKS_PER_RAIL", 2).alone();
}

#[test]
fn libfabric_flushes_make_gpu_writes_visible() {
    let Some(setting) = over_strict("unflushed_gpu_writes_stay_invisible") else { return };
    for demands in ["endpoint,prov_key,allocated", "none"] {
        setting.clone().env("FI_STRICT_MR", demands).alone();
    }
    setting.clone().env("FI_STRICT_NICS", 2).env("TEST_FUSED", 2).alone();
    setting.clone().env("FI_STRICT_REORDER", 1).alone();
    setting.env("NCCL_GDR_FLUSH_DISABLE", 1).alone();
}

#[test]
fn gpu_scenarios_hold_over_libfabric() {
    for name in [
        "the_caller_keeps_its_dmabuf",
        "memory_of_the_wrong_type_is_refused",
        "small_messages_wait_for_their_receive",
    ] {
        let Some(setting) = over_strict(name) else { return };
        setting.alone();
    }
    let Some(setting) = over_strict("communicators_share_over_memory_of_gpus") else { return };
    setting.env("TRUNKLINE_QP_SHARING", "on").env("TRUNKLINE_QP_GROUPS", 1).alone();
}

#[test]
fn ptr_support_omits_gpus_that_a_provider_rejects() {
    let Some(setting) = over_strict("memory_of_a_gpu_is_refused") else { return };
    setting.env("FI_STRICT_HMEM", 0).alone();
}

/// Registers memory as GPU memory.
fn reg(net: &Net, comm: Comm, addr: usize, len: usize) -> Called<Mr> {
    net.reg_as(comm, addr, len, PTR_CUDA)
}

fn reg_dmabuf(net: &Net, comm: Comm, (addr, len): (usize, usize), dmabuf: (u64, i32)) -> Called<Mr> {
    let mut mr = opaque(STALE);
    // SAFETY: memory of the fake, and a place for the result.
    let code =
        unsafe { net.raw.reg_dma_buf(opaque(comm.0), opaque(addr), (len, PTR_CUDA), dmabuf, &raw mut mr) };
    if code == trunkline_sys::nccl_net::ResultCode::SUCCESS {
        Ok(Mr(mr.expose_provenance()))
    } else {
        Err(code)
    }
}

#[track_caller]
fn refused(registered: Called<Mr>, what: &str) {
    assert!(registered.is_err(), "registering {what} must fail");
}

/// A pattern of `len` bytes, different for each message.
fn pattern(len: usize) -> Vec<u8> {
    let seed = fresh_seed();
    (0..len).map(|at| (seed * 37 + at % 251) as u8).collect()
}

/// Sends one message to an offset of GPU memory, and checks it after a flush.
#[track_caller]
fn round(net: &Net, (send, recv): (Comm, Comm), from: Piece, to: Piece) {
    let early = net.try_send(send, from, STALE).unwrap();
    let received = net.recv(recv, &[to]);
    let sent = early.unwrap_or_else(|| net.send(send, from));
    let sizes = net.finish_all(&[sent, received]);
    assert_eq!(sizes[1][0], from.len as i32);
}

#[track_caller]
fn flush(net: &Net, recv: Comm, to: Piece) {
    if let Some(request) = net.try_flush(recv, &[to]).expect("iflush") {
        net.finish(request);
    }
}

fn memory_of_a_gpu_is_never_touched(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let all = if Fakes::has_dmabufs() { ALL } else { PTR_HOST | PTR_CUDA };
    assert_eq!(net.props(0).unwrap().ptr_support, all);
    let (send, recv) = net.to_self();
    let room = 3 << 20;
    let (source, target) = (fakes.allocate(room, false), fakes.allocate(room, false));
    // Neither begins at a page boundary.
    let (at_source, at_target) = (200, PAGE - 3);
    let (from, to) =
        (reg(&net, send, source.addr + 200, room - 200), reg(&net, recv, target.addr + 100, room - 100));
    let (from, to) = (from.expect("regMr"), to.expect("regMr"));
    let count = if scene.version >= 9 && std::env::var_os("TEST_FUSED").is_some() { 2 } else { 1 };
    if fakes.counts() {
        assert_eq!((fakes.dmabufs(), fakes.exported()), (2 * count, 2));
    }
    assert!(source.is_synced() && target.is_synced());
    let host = Buf::new(room);
    let (host_from, host_to) = (net.reg_buf(send, &host), net.reg_buf(recv, &host));
    for len in [0, 1, 7, 64, 200, 1000, 4096, 4097, 65_536 + 13, (2 << 20) + 1] {
        // GPU to GPU.
        let bytes = pattern(len);
        source.write(at_source, &bytes);
        let mut piece = Piece { addr: source.addr + at_source, len, tag: 4, mr: from };
        let mut into = Piece { addr: target.addr + at_target, len, tag: 4, mr: to };
        round(&net, (send, recv), piece, into);
        flush(&net, recv, into);
        assert!(target.read(at_target, len) == bytes, "{len} bytes from GPU to GPU");
        // Host to GPU.
        host.fill(0..len, len);
        let bytes: Vec<u8> = host.bytes(0..len);
        (piece.addr, piece.mr) = (host.addr(), host_from);
        round(&net, (send, recv), piece, into);
        flush(&net, recv, into);
        assert!(target.read(at_target, len) == bytes, "{len} bytes from the host to a GPU");
        // GPU to host, which needs no flush.
        let bytes = pattern(len);
        source.write(at_source, &bytes);
        (piece.addr, piece.mr) = (source.addr + at_source, from);
        (into.addr, into.mr) = (host.addr(), host_to);
        round(&net, (send, recv), piece, into);
        assert_eq!(net.try_flush(recv, &[into]).expect("iflush"), None, "memory of the host");
        assert!(host.bytes(0..len) == bytes, "{len} bytes from a GPU to the host");
    }
    net.dereg(send, from).expect("deregMr");
    net.dereg(recv, to).expect("deregMr");
    assert_eq!(fakes.dmabufs(), 0);
    assert_eq!(fakes.reads_of_host(), 0);
    net.close_send(send).expect("closeSend");
    net.close_recv(recv).expect("closeRecv");
}

fn unflushed_gpu_writes_stay_invisible(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let target = fakes.allocate(PAGE, false);
    let host = Buf::new(PAGE);
    let (from, to) =
        (net.reg_buf(send, &host), reg(&net, recv, target.addr, PAGE).expect("memory of the fake"));
    let off = ["NCCL_GDR_FLUSH_DISABLE", "TRUNKLINE_GDR_FLUSH_DISABLE"];
    let off = off.iter().any(|name| std::env::var_os(name).is_some());
    for round_number in 0..3 {
        host.fill(0..PAGE, round_number);
        let into = Piece { addr: target.addr, len: PAGE, tag: 1, mr: to };
        let piece = Piece { addr: host.addr(), len: PAGE, tag: 1, mr: from };
        round(&net, (send, recv), piece, into);
        let before = (fakes.reads_of_device(), target.read(0, PAGE));
        assert!(before.1 != host.bytes(0..PAGE), "bytes were visible before the flush");
        let asked = net.try_flush(recv, &[into]).expect("iflush");
        assert_eq!(asked.is_none(), off, "{asked:?}");
        if let Some(request) = asked {
            net.finish(request);
            assert!(
                !fakes.counts() || fakes.reads_of_device() > before.0,
                "a byte of the GPU's memory is read"
            );
            assert!(target.read(0, PAGE) == host.bytes(0..PAGE), "round {round_number}");
        }
    }
    if off {
        assert_eq!(fakes.reads_of_device(), 0);
    }
    // A deregistration takes effect once no operation reads the region, and the connection continues.
    let into = Piece { addr: target.addr, len: PAGE, tag: 1, mr: to };
    let asked = net.try_flush(recv, &[into]).expect("iflush");
    net.dereg(recv, to).expect("deregMr");
    assert_eq!(fakes.dmabufs(), 0);
    if let Some(request) = asked {
        net.finish(request);
    }
    let to = reg(&net, recv, target.addr, PAGE).expect("regMr");
    let piece = Piece { addr: host.addr(), len: PAGE, tag: 1, mr: from };
    round(&net, (send, recv), piece, Piece { mr: to, ..into });
    net.dereg(recv, to).expect("deregMr");
    net.close_send(send).expect("closeSend");
    net.close_recv(recv).expect("closeRecv");
}

fn the_caller_keeps_its_dmabuf(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let len = 4 * PAGE;
    if !Fakes::has_dmabufs() {
        let device = fakes.allocate(len, false);
        // SAFETY: just made.
        let dmabuf = unsafe { OwnedFd::from_raw_fd(fakes.export(device.addr, len)) };
        refused(
            reg_dmabuf(&net, send, (device.addr, len), (0, dmabuf.as_raw_fd())),
            "an interface without them",
        );
        assert_eq!(logged("the provider accepted none when it was probed"), 1);
        return;
    }
    let (source, target) = (fakes.allocate(len, false), fakes.allocate(len, false));
    let take = |device: Device<'_>| {
        // SAFETY: just made.
        unsafe { OwnedFd::from_raw_fd(fakes.export(device.addr, len)) }
    };
    let (first, second) = (take(source), take(target));
    let made = fakes.exported();
    // The offset is that of the page, as NCCL passes it, or of the byte.
    let from = reg_dmabuf(&net, send, (source.addr + PAGE + 77, 5000), (PAGE as u64, first.as_raw_fd()));
    let to = reg_dmabuf(&net, recv, (target.addr + 33, 5000), (33, second.as_raw_fd()));
    let (from, to) = (from.expect("regMrDmaBuf"), to.expect("regMrDmaBuf"));
    assert_eq!(fakes.exported(), made, "the plugin exported another dma-buf instead of using the caller's");
    assert!(!fakes.counts() || fakes.dmabufs() == 2);
    assert!(rustix::io::fcntl_getfd(&first).is_ok(), "the plugin closed the caller's descriptor");
    // We still own these descriptors: closing them shows that the plugin did not.
    drop((first, second));
    for round_number in 0..4 {
        let bytes = pattern(5000);
        source.write(PAGE + 77, &bytes);
        let piece = Piece { addr: source.addr + PAGE + 77, len: 5000, tag: round_number, mr: from };
        let into = Piece { addr: target.addr + 33, len: 5000, tag: round_number, mr: to };
        round(&net, (send, recv), piece, into);
        flush(&net, recv, into);
        assert!(target.read(33, 5000) == bytes);
    }
    // SAFETY: just made.
    let third = unsafe { OwnedFd::from_raw_fd(fakes.export(source.addr, len)) };
    for (addr, offset) in [(source.addr + 77, 76), (source.addr + 77, len as u64)] {
        refused(reg_dmabuf(&net, send, (addr, 100), (offset, third.as_raw_fd())), "the wrong offset");
    }
    refused(reg_dmabuf(&net, send, (source.addr, 100), (0, -1)), "no descriptor");
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    refused(reg_dmabuf(&net, send, (source.addr, 100), (0, file.as_raw_fd())), "no dma-buf");
    assert_eq!(logged("memory of a GPU cannot be registered as a dma-buf"), 2);
    net.dereg(send, from).expect("deregMr");
    net.dereg(recv, to).expect("deregMr");
    assert_eq!(fakes.dmabufs(), 0);
}

fn memory_of_a_gpu_is_refused(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    assert_eq!(net.props(0).unwrap().ptr_support, PTR_HOST);
    let (send, recv) = net.to_self();
    let memory = fakes.allocate(PAGE, false);
    refused(reg(&net, send, memory.addr, PAGE), "not promised");
    refused(reg(&net, recv, memory.addr, PAGE), "not promised");
    let lines = logged("regMr: ");
    assert_eq!(lines, 2, "one line a call");
    assert!(logged("trunkline info") == 2, "each line must name the command with details");
    // Host memory takes the usual paths, the eager one included.
    let host = Buf::filled(64, 1);
    let mr = net.reg_buf(send, &host);
    let piece = Piece { addr: host.addr(), len: 64, tag: 1, mr };
    let sent = net.try_send(send, piece, STALE).unwrap().expect("sent before there is a receive");
    let into = Buf::new(64);
    let to = net.reg_buf(recv, &into);
    let received = net.recv(recv, &[Piece { addr: into.addr(), len: 64, tag: 1, mr: to }]);
    net.finish_all(&[sent, received]);
    into.check(0..64, 1);
    assert_eq!(fakes.dmabufs(), 0);
}

/// Needs no fakes: also runs over software NICs and soft-RoCE (`scripts/rxe-vm`).
fn nics_that_reach_no_gpu_report_no_support(scene: Scene) {
    let net = Net::start(scene.version);
    for dev in 0..net.devices() {
        assert_eq!(net.props(dev).unwrap().ptr_support, PTR_HOST);
    }
    let (send, recv) = net.to_self();
    let memory = Buf::new(PAGE);
    refused(reg(&net, send, memory.addr(), PAGE), "memory of a GPU");
    assert_eq!(
        (logged("regMr: "), logged("trunkline info")),
        (1, 1),
        "one line must name the command with details"
    );
    refused(reg_dmabuf(&net, recv, (memory.addr(), PAGE), (0, 0)), "a dma-buf");
    crate::contract::messages::round(&net, (send, recv), 64);
}

fn memory_of_the_wrong_type_is_refused(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let (send, _recv) = net.to_self();
    let tried = fakes.exported();
    let device = fakes.allocate(PAGE, false);
    refused(net.reg(send, device.addr, PAGE), "memory of a GPU as memory of the host");
    assert_eq!(logged("registered as memory of the host"), 1);
    let managed = fakes.allocate(PAGE, true);
    refused(reg(&net, send, managed.addr, PAGE), "managed memory");
    assert_eq!(logged("managed memory"), 1);
    refused(reg(&net, send, device.addr, 2 * PAGE), "more than was allocated");
    // Pinned memory is host memory, even if it is registered as GPU memory.
    let host = Buf::new(PAGE);
    let mr = reg(&net, send, host.addr(), PAGE).expect("memory of the host");
    assert_eq!((fakes.dmabufs(), fakes.exported()), (0, tried));
    net.dereg(send, mr).expect("deregMr");
}

fn small_messages_wait_for_their_receive(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let host = Buf::filled(64, 1);
    let mr = net.reg_buf(send, &host);
    let piece = Piece { addr: host.addr(), len: 64, tag: 1, mr };
    for _ in 0..100 {
        assert_eq!(
            net.try_send(send, piece, STALE).unwrap(),
            None,
            "a small message was sent eagerly, although its receive may be in GPU memory"
        );
    }
    let target = fakes.allocate(PAGE, false);
    let to = reg(&net, recv, target.addr, PAGE).expect("regMr");
    let into = Piece { addr: target.addr, len: 64, tag: 1, mr: to };
    round(&net, (send, recv), piece, into);
    flush(&net, recv, into);
    assert!(target.read(0, 64) == host.bytes(0..64));
}

fn communicators_share_over_memory_of_gpus(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..4).map(|_| net.to_self()).collect();
    let memory: Vec<_> =
        pairs.iter().map(|_| (fakes.allocate(1 << 16, false), fakes.allocate(1 << 16, false))).collect();
    for len in [3, 600, 1 << 16] {
        for (&(send, recv), (source, target)) in pairs.iter().zip(&memory) {
            let (from, to) = (reg(&net, send, source.addr, 1 << 16), reg(&net, recv, target.addr, 1 << 16));
            let (from, to) = (from.expect("regMr"), to.expect("regMr"));
            let bytes = pattern(len);
            source.write(0, &bytes);
            let into = Piece { addr: target.addr, len, tag: 0, mr: to };
            round(&net, (send, recv), Piece { addr: source.addr, len, tag: 0, mr: from }, into);
            flush(&net, recv, into);
            assert!(target.read(0, len) == bytes, "{len} bytes");
            net.dereg(send, from).expect("deregMr");
            net.dereg(recv, to).expect("deregMr");
        }
    }
    assert_eq!(fakes.dmabufs(), 0);
    for (send, recv) in pairs {
        net.close_send(send).expect("closeSend");
        net.close_recv(recv).expect("closeRecv");
    }
}

fn bytes_held_by_a_lost_nic_arrive(scene: Scene) {
    let fakes = Fakes::open();
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let len = 4 << 20;
    let (source, target) = (fakes.allocate(len, false), fakes.allocate(len, false));
    let (from, to) = (reg(&net, send, source.addr, len), reg(&net, recv, target.addr, len));
    let (from, to) = (from.expect("regMr"), to.expect("regMr"));
    let piece = |len| Piece { addr: source.addr, len, tag: 0, mr: from };
    let into = |len| Piece { addr: target.addr, len, tag: 0, mr: to };
    // Until both links are up, and the second one has carried bytes.
    let mut bytes = Vec::new();
    until("bytes over the second NIC", || {
        bytes = pattern(len);
        source.write(0, &bytes);
        round(&net, (send, recv), piece(len), into(len));
        let brought = fakes.holds(1);
        if !brought {
            flush(&net, recv, into(len));
        }
        brought.then_some(())
    });
    fakes.cut(1);
    // Messages continue over the other link; no flush is posted to the link that is being left.
    let host = Buf::new(64);
    let (small_from, small_to) = (net.reg_buf(send, &host), net.reg_buf(recv, &host));
    let small = |mr| Piece { addr: host.addr(), len: 64, tag: 0, mr };
    until("the NIC that is left to be flushed", || {
        round(&net, (send, recv), small(small_from), small(small_to));
        (!fakes.holds(1)).then_some(())
    });
    flush(&net, recv, into(len));
    assert!(target.read(0, len) == bytes, "wrong bytes over the NIC that was lost");
    bytes = pattern(len);
    source.write(0, &bytes);
    round(&net, (send, recv), piece(len), into(len));
    flush(&net, recv, into(len));
    assert!(target.read(0, len) == bytes, "wrong bytes over the other NIC");
}
