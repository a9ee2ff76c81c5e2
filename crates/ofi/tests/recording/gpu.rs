//! Memory of GPUs, and the trial of a NIC: the calls of the provider, and the use of their results.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use trunkline_fabric::{
    AccessRights, Completion, CompletionKind, DeviceReach, ExportedDmaBuf, Fabric as _, LinkControl as _,
    LinkId, LogLevel, Op, OpStatus, PostError, Rail as _, RailConfig, RecvOrder, RegionKeys, RegionPurpose,
    RegisterError, RemoteKey, RemoteLocation,
};
use trunkline_mem::gpu::{VendorDriver, VendorDrivers};
use trunkline_mem::{MemoryKind as Where, MemoryRange};
use trunkline_ofi::{OfiConfig, OfiFabric, OfiRail};
use trunkline_proto::time::Duration;
use trunkline_sys::ofi::{self, caps, errno, mr_mode};

use crate::drivers::{self, Fake, Known};
use crate::world::{ALL, Asked, Echo, Kind, Point, World};

/// An allocation of device 1 that begins within a page.
const BASE: usize = 0x7f00_0000_0200;
const LEN: usize = 8 << 20;

/// A provider of the newest interface version whose one-sided operations complete by themselves.
fn world(kind: Kind) -> (Arc<World>, OfiConfig, Arc<trunkline_ofi::OfiLibrary>) {
    let (world, library) = World::begin(kind);
    *world.echo.lock().unwrap() = Echo::Whole;
    (world, OfiConfig { provider: Some("cxi".to_owned()), ..OfiConfig::default() }, library)
}

fn new() -> Kind {
    Kind { version: ofi::version(2, 1), ..Kind::default() }
}

/// Returns the name of this thread's memory files.
fn name() -> String {
    format!("trunkline.fake.{:?}", std::thread::current().id())
}

fn nvidia() -> VendorDrivers {
    drivers::set(Fake { memory: vec![Known::device(1, BASE, LEN)], name: name(), ..Fake::new(12_040) });
    // SAFETY: the fake implements CUDA's contract in this thread, and the tests call it in this thread only.
    VendorDrivers::from_drivers(vec![unsafe { VendorDriver::of_cuda(drivers::cuda_calls()) }.unwrap()])
}

fn amd() -> VendorDrivers {
    drivers::set(Fake { memory: vec![Known::device(1, BASE, LEN)], ..Fake::new(60_241_133) });
    // SAFETY: the fake implements HIP's contract in this thread, and the tests call it in this thread only.
    VendorDrivers::from_drivers(vec![unsafe { VendorDriver::of_hip(drivers::hip_calls()) }.unwrap()])
}

fn lines(fabric: &OfiFabric) -> Vec<&str> {
    fabric.nic_notes().iter().map(|(_, line)| line.as_str()).collect()
}

fn reach(fabric: &OfiFabric) -> DeviceReach {
    fabric.nics()[0].caps.devices
}

/// Returns the registrations of memory of devices that the provider received.
fn asked_of_devices(world: &World) -> Vec<Asked> {
    world.asked.lock().unwrap().iter().copied().filter(|asked| asked.iface != ofi::hmem::SYSTEM).collect()
}

/// A fabric that has probed memory of these drivers.
fn tried(kind: Kind, gpus: &VendorDrivers) -> (Arc<World>, OfiFabric) {
    let (world, config, library) = world(kind);
    let fabric = OfiFabric::with_library(&library, &config).unwrap();
    assert!(!reach(&fabric).reaches_any(), "memory of devices was not probed yet");
    (world, fabric.with_gpus(gpus))
}

#[test]
fn device_memory_is_requested_but_not_required() {
    let (world, config, library) = world(new());
    let fabric = OfiFabric::with_library(&library, &config).unwrap();
    assert!(fabric.reaches_devices());
    assert_eq!(*world.wishes.lock().unwrap(), [ALL, ALL | caps::HMEM]);
    assert!(!fabric.provider_grant(0).unwrap().hmem, "it is granted only if a GPU driver exists");
    assert!(fabric.with_gpus(&nvidia()).provider_grant(0).unwrap().hmem);
    let (_world, config, library) = self::world(Kind { caps: ALL, ..new() });
    let fabric = OfiFabric::with_library(&library, &config).unwrap();
    assert!(!fabric.reaches_devices() && fabric.nics().len() == 1);
    // The wider offer may have lower limits, so it is used only if memory of devices is reached.
    let (_world, config, library) = self::world(Kind { device_inject: 0, ..new() });
    let narrower = OfiFabric::with_library(&library, &config).unwrap();
    assert_eq!(narrower.provider_grant(0).unwrap().sizes.inject, 64);
    assert_eq!(narrower.with_gpus(&nvidia()).provider_grant(0).unwrap().sizes.inject, 0);
    let gpus = nvidia();
    drivers::asked();
    assert!(!reach(&fabric.with_gpus(&gpus)).reaches_any());
    assert_eq!(drivers::asked(), [""; 0], "nothing is probed without a grant");
}

#[test]
fn device_reach_is_probed_and_nothing_stays_open() {
    for mode in [0, mr_mode::VIRT_ADDR | mr_mode::HMEM, mr_mode::ENDPOINT | mr_mode::PROV_KEY] {
        let gpus = nvidia();
        let (world, fabric) = tried(Kind { mr_mode: mode, ..new() }, &gpus);
        let all = DeviceReach { dmabuf: true, nvidia: true, amd: false, needs_flush: true };
        assert_eq!((reach(&fabric), lines(&fabric)), (all, vec![]), "{mode:#x}");
        let [address, dmabuf] = asked_of_devices(&world)[..] else { panic!("not two registrations") };
        for asked in [address, dmabuf] {
            assert_eq!(
                (asked.iface, asked.device, asked.addr, asked.len),
                (ofi::hmem::CUDA, 1, BASE, 2 << 20)
            );
            let rights = caps::SEND | caps::RECV | caps::READ | caps::WRITE;
            assert_eq!(asked.access, rights | caps::REMOTE_READ | caps::REMOTE_WRITE);
        }
        assert_eq!((address.flags, dmabuf.flags), (0, ofi::MR_DMABUF));
        // The offset in its page is that of the address.
        assert_eq!(dmabuf.dmabuf.unwrap().1, 0x200);
        let reads = world.posts.lock().unwrap().iter().filter(|post| post.call == "read").count();
        assert_eq!(reads, 2, "each is read back");
        let options = (world.apart_endpoints.load(SeqCst), world.quiet_endpoints.load(SeqCst));
        assert_eq!(options, (2, 1), "through the NIC, and without calls of CUDA");
        assert_eq!(world.open(), 0);
        let freed = drivers::asked().iter().filter(|call| call.starts_with("cuMemFree")).count();
        assert_eq!((freed, crate::open_files(&name())), (1, 0));
    }
    let gpus = amd();
    let (world, fabric) = tried(new(), &gpus);
    let all = DeviceReach { dmabuf: true, nvidia: false, amd: true, needs_flush: true };
    assert_eq!(reach(&fabric), all);
    assert!(asked_of_devices(&world).iter().all(|asked| (asked.iface, asked.device) == (ofi::hmem::ROCR, 1)));
    assert_eq!(world.quiet_endpoints.load(SeqCst), 0, "CUDA's option is for CUDA's memory");
}

#[test]
fn failed_probes_report_no_reach() {
    let by_address = |fabric: &OfiFabric| (reach(fabric).nvidia, reach(fabric).dmabuf);
    // An interface of version 1.17 has no dma-bufs.
    let (_, fabric) = tried(Kind::default(), &nvidia());
    assert_eq!(by_address(&fabric), (true, false));
    assert!(
        lines(&fabric)[0].contains("as a dma-buf") && lines(&fabric)[0].contains("1.20"),
        "{:?}",
        fabric.nic_notes()
    );
    // A driver that cannot export memory.
    let gpus = nvidia();
    drivers::with(|fake| fake.exports = 0);
    assert_eq!(by_address(&tried(new(), &gpus).1), (true, false));
    // A provider that rejects the registration, or whose read fails.
    type Breaks = fn(&World);
    let cases: [(&str, Breaks); 4] = [
        ("function not implemented", |world| world.refuse(Point::Device, errno::ENOSYS)),
        ("reading it back: I/O error", |world| {
            *world.echo_reads.lock().unwrap() = Some(Echo::Badly(errno::EIO))
        }),
        ("reading it back: connection timed out", |world| {
            *world.echo_reads.lock().unwrap() = Some(Echo::Silent)
        }),
        ("opening the data endpoint: Enable", |world| world.refuse(Point::EnableEndpoint, errno::ENOSPC)),
    ];
    for (words, breaks) in cases {
        let gpus = nvidia();
        let (world, config, library) = world(new());
        let fabric = OfiFabric::with_library(&library, &config).unwrap();
        breaks(&world);
        let fabric = fabric.with_gpus(&gpus);
        assert!(!reach(&fabric).reaches_any() && !reach(&fabric).needs_flush, "{words}");
        assert!(lines(&fabric).iter().any(|note| note.contains(words)), "{words}: {:?}", fabric.nic_notes());
        assert_eq!(world.open(), 0);
    }
    // A driver that cannot allocate memory.
    let gpus = nvidia();
    drivers::with(|fake| fake.alloc = 2);
    let (_, fabric) = tried(new(), &gpus);
    assert!(
        !reach(&fabric).reaches_any() && lines(&fabric)[0].contains("cuMemAlloc"),
        "{:?}",
        fabric.nic_notes()
    );
}

#[test]
fn provider_needing_cuda_calls_reaches_no_cuda_memory() {
    for (said, reached) in [(errno::EOPNOTSUPP, false), (errno::ENOPROTOOPT, true), (errno::EINVAL, true)] {
        let gpus = nvidia();
        let (world, config, library) = world(new());
        *world.cuda_option.lock().unwrap() = -said;
        let fabric = OfiFabric::with_library(&library, &config).unwrap().with_gpus(&gpus);
        assert_eq!(reach(&fabric).reaches_any(), reached, "{said}");
        assert_eq!(lines(&fabric).iter().any(|note| note.contains("calls of CUDA")), !reached);
    }
    // A provider that does not copy through memory of the host.
    let gpus = nvidia();
    let (world, config, library) = world(new());
    *world.shared_option.lock().unwrap() = -errno::ENOPROTOOPT;
    let fabric = OfiFabric::with_library(&library, &config).unwrap().with_gpus(&gpus);
    assert!(reach(&fabric).nvidia && world.quiet_endpoints.load(SeqCst) == 1);
}

#[test]
fn flushes_can_be_switched_off() {
    let gpus = nvidia();
    let (_, config, library) = world(new());
    let config = OfiConfig { skips_flushes: true, ..config };
    let fabric = OfiFabric::with_library(&library, &config).unwrap().with_gpus(&gpus);
    assert!(reach(&fabric).nvidia && !reach(&fabric).needs_flush);
}

fn of_device(addr: usize, len: usize) -> MemoryRange {
    // SAFETY: memory of a device is never touched.
    unsafe { MemoryRange::from_raw(addr, len, Where::Device(1)) }
}

fn open(fabric: &OfiFabric) -> OfiRail {
    let config = RailConfig {
        depth: 8,
        recv_depth: 8,
        recv_order: RecvOrder::Any,
        links: 4,
        peer_time: Duration(1_000_000_000),
        rail_time: Duration(1_000_000_000),
        receives: true,
        traffic_class: None,
        many: false,
    };
    fabric.open_rail(0, &config).unwrap()
}

#[test]
fn device_memory_is_registered_as_passed() {
    let gpus = nvidia();
    let (world, fabric) = tried(new(), &gpus);
    let rail = open(&fabric);
    let options = (world.apart_endpoints.load(SeqCst), world.quiet_endpoints.load(SeqCst));
    assert_eq!(options, (2 + 2, 1 + 2), "rails use the options of the probe");
    let registrar = rail.registrar();
    let memory = of_device(BASE + 0x1000, 5000);
    let last = || *asked_of_devices(&world).last().unwrap();
    registrar.register(&memory, AccessRights::READ_WRITE, RegionPurpose::Data).unwrap();
    assert_eq!(
        (last().iface, last().device, last().addr, last().len),
        (ofi::hmem::CUDA, 1, BASE + 0x1000, 5000)
    );
    let file = std::fs::File::open("/dev/null").unwrap();
    let exported = ExportedDmaBuf { fd: file.as_fd(), offset: 0x4200 };
    let memory = of_device(BASE + 0x4000, 5000);
    registrar.register_exported(&memory, exported, AccessRights::WRITE, RegionPurpose::Data).unwrap();
    // The registration has exactly these bytes, and does not begin at the start of their page.
    assert_eq!(last().dmabuf, Some((file.as_raw_fd(), 0x4200, 5000, BASE + 0x4000 - 0x4200)));
    assert_eq!((last().addr, last().access & caps::REMOTE_READ), (BASE + 0x4000, 0));
    world.refuse(Point::Device, errno::ENOSPC);
    let other = of_device(BASE + 0x8000, 5000);
    let error = registrar.register(&other, AccessRights::WRITE, RegionPurpose::Data).unwrap_err();
    assert!(matches!(error, RegisterError::Device { .. }), "{error}");
    assert!(
        error.to_string().contains("by its address: ") && error.to_string().contains("nvidia-peermem"),
        "{error}"
    );
}

#[test]
fn repeated_device_memory_is_registered_once() {
    let gpus = nvidia();
    let (world, fabric) = tried(new(), &gpus);
    let tries = asked_of_devices(&world).len();
    let rail = open(&fabric);
    let registrar = rail.registrar();
    let (whole, part) = (of_device(BASE, 8192), of_device(BASE + 4096, 100));
    // A dma-buf of the same memory, as callers make one for each connection.
    let files = [(); 2].map(|()| std::fs::File::open("/dev/null").unwrap());
    let as_dmabuf = |of: usize, memory: &MemoryRange, offset: u64| {
        let exported = ExportedDmaBuf { fd: files[of].as_fd(), offset };
        registrar.register_exported(memory, exported, AccessRights::WRITE, RegionPurpose::Data).unwrap()
    };
    let first = as_dmabuf(0, &whole, 0x200);
    let again = as_dmabuf(1, &whole, 0x200);
    let inside = as_dmabuf(1, &part, 0x1200);
    assert_eq!(asked_of_devices(&world).len() - tries, 1);
    assert_eq!((again.remote, again.remote_base), (first.remote, first.remote_base));
    assert_eq!((inside.remote, inside.remote_base), (first.remote, first.remote_base + 4096));
    // A longer range, other rights, and memory other than a user's payload have registrations of their own.
    let more = registrar.register(&of_device(BASE, 8193), AccessRights::WRITE, RegionPurpose::Data).unwrap();
    let read = registrar
        .register(&part, AccessRights { write: false, ..AccessRights::READ_WRITE }, RegionPurpose::Data)
        .unwrap();
    let bounce = registrar.register(&part, AccessRights::WRITE, RegionPurpose::Bounce).unwrap();
    assert_eq!(asked_of_devices(&world).len() - tries, 4);
    assert_eq!(fabric.nic_usage(0).regions, 4);
    for keys in [first, again, inside, more, read, bounce] {
        registrar.deregister(keys.local).unwrap();
    }
    // Nothing is cached: other memory may be at the address later.
    assert_eq!(fabric.nic_usage(0).regions, 0);
    let anew = as_dmabuf(0, &part, 0x1200);
    assert_eq!(asked_of_devices(&world).len() - tries, 5);
    registrar.deregister(anew.local).unwrap();
}

#[test]
fn unprobed_device_memory_is_refused() {
    // A provider that grants it, without an installed GPU driver.
    let (_world, config, library) = world(new());
    let rail =
        open(&OfiFabric::with_library(&library, &config).unwrap().with_gpus(&VendorDrivers::default()));
    let memory = of_device(BASE, 64);
    let refused = rail.registrar().register(&memory, AccessRights::WRITE, RegionPurpose::Data);
    assert!(matches!(refused, Err(RegisterError::Kind(Where::Device(1)))));
    let file = std::fs::File::open("/dev/null").unwrap();
    let exported = ExportedDmaBuf { fd: file.as_fd(), offset: 0 };
    let refused =
        rail.registrar().register_exported(&memory, exported, AccessRights::WRITE, RegionPurpose::Data);
    assert!(matches!(refused, Err(RegisterError::Kind(_))));
    // Registered in the way that failed in the probe.
    let gpus = nvidia();
    let (_world, fabric) = tried(Kind::default(), &gpus);
    let refused = open(&fabric).registrar().register_exported(
        &memory,
        exported,
        AccessRights::WRITE,
        RegionPurpose::Data,
    );
    assert!(refused.unwrap_err().to_string().contains("as a dma-buf: the provider accepted none"));
}

/// A rail with a link, and a region of a device there.
fn flushing(kind: Kind) -> (Arc<World>, OfiRail, LinkId, RemoteLocation) {
    let gpus = nvidia();
    let (world, fabric) = tried(kind, &gpus);
    *world.echo.lock().unwrap() = Echo::Silent;
    let mut rail = open(&fabric);
    let link = rail.create_link_on(None).unwrap();
    let memory = of_device(BASE, 4096);
    let RegionKeys { remote, remote_base, .. } =
        rail.registrar().register(&memory, AccessRights::READ_WRITE, RegionPurpose::Data).unwrap();
    world.posts.lock().unwrap().clear();
    (world, rail, link, RemoteLocation { key: remote, addr: remote_base + 100, purpose: RegionPurpose::Data })
}

fn polled(rail: &mut OfiRail) -> Vec<Completion> {
    let mut out = [Completion::BLANK; 16];
    let count = rail.poll(&mut out);
    out[..count].to_vec()
}

#[test]
fn a_flush_reads_a_byte_of_the_device() {
    for mode in [0, mr_mode::VIRT_ADDR, mr_mode::ENDPOINT | mr_mode::PROV_KEY] {
        let (world, mut rail, link, at) = flushing(Kind { mr_mode: mode, ..new() });
        rail.post(link, 7, Op::FlushAt { at }, true).unwrap();
        assert_eq!(rail.post_credits(link), 7, "a flush uses a credit");
        let posts = world.posts.lock().unwrap().clone();
        let [read] = &posts[..] else { panic!("{posts:?}") };
        assert_eq!((read.call, read.remote), ("read", Some((at.addr, 1, at.key.0))));
        let (_, len, desc) = read.ranges[0];
        assert_eq!((len, desc), (1, 0xd00d), "the read is not into registered memory of the rail");
        assert_eq!(polled(&mut rail), [], "the flush has not completed");
        let entry = ofi::CqTaggedEntry { op_context: read.context as *mut _, ..ofi::CqTaggedEntry::ZERO };
        world.ended.lock().unwrap().push_back(crate::world::Ended::Well(entry, 0));
        let told = polled(&mut rail);
        assert_eq!(told.len(), 1);
        assert_eq!(
            (told[0].wr_id, told[0].link, told[0].done, told[0].status),
            (7, link, CompletionKind::Posted, OpStatus::Ok)
        );
        assert_eq!(rail.post_credits(link), 8);
        // An unsignalled flush, and a flush of a link that is destroyed.
        *world.echo.lock().unwrap() = Echo::Whole;
        rail.post(link, 8, Op::FlushAt { at }, false).unwrap();
        assert_eq!((polled(&mut rail), rail.post_credits(link)), (vec![], 8));
        rail.post(link, 9, Op::FlushAt { at }, true).unwrap();
        rail.destroy_link(link);
        let another = rail.create_link_on(None).unwrap();
        assert_eq!((another, polled(&mut rail), rail.post_credits(another)), (link, vec![], 8));
        drop(rail);
        assert_eq!(world.open(), 0);
    }
}

#[test]
fn flushes_are_bounded_and_wait_for_room() {
    let (world, mut rail, link, at) = flushing(new());
    *world.answer.lock().unwrap() = -(errno::EAGAIN as isize);
    for wr_id in 0..8 {
        rail.post(link, wr_id, Op::FlushAt { at }, true).unwrap();
    }
    assert_eq!(rail.post_credits(link), 0);
    assert_eq!(rail.post(link, 8, Op::FlushAt { at }, true), Err(PostError::Busy));
    assert_eq!(polled(&mut rail), []);
    *world.answer.lock().unwrap() = 0;
    *world.echo.lock().unwrap() = Echo::Whole;
    let mut told = polled(&mut rail);
    told.extend(polled(&mut rail));
    assert_eq!(told.iter().map(|one| one.wr_id).collect::<Vec<_>>(), (0..8).collect::<Vec<u64>>());
    assert_eq!(rail.post_credits(link), 8);
}

#[test]
fn failed_flush_ends_its_link() {
    for refused in [false, true] {
        let (world, mut rail, link, at) = flushing(new());
        *world.echo.lock().unwrap() = Echo::Badly(errno::EIO);
        if refused {
            *world.answer.lock().unwrap() = -(errno::EIO as isize);
        }
        rail.post(link, 7, Op::FlushAt { at }, true).unwrap();
        let told = polled(&mut rail);
        let status = told.first().map(|one| one.status);
        assert_eq!(status, Some(OpStatus::Unflushed(errno::EIO.unsigned_abs())));
        assert!(status.unwrap().to_string().contains("flushing memory of a GPU failed"));
        assert!(rail.poll_link_up(link).is_err(), "the link is in error");
    }
    // The flusher cannot be created for the first flush.
    let (world, mut rail, link, at) = flushing(new());
    world.refuse(Point::Endpoint, errno::ENOSPC);
    let refused = rail.post(link, 7, Op::FlushAt { at }, true).unwrap_err();
    assert!(matches!(refused, PostError::Refused(OpStatus::Unflushed(_))), "{refused}");
    assert_eq!(rail.post_credits(link), 8);
}

#[test]
fn a_flush_works_on_a_link_in_error() {
    let (world, mut rail, link, at) = flushing(new());
    rail.fail_link(link);
    *world.echo.lock().unwrap() = Echo::Whole;
    rail.post(link, 7, Op::FlushAt { at }, true).unwrap();
    let told = polled(&mut rail);
    assert_eq!((told.len(), told[0].wr_id, told[0].status), (1, 7, OpStatus::Ok));
}

#[test]
fn missing_write_data_is_noted_with_a_remedy() {
    type Breaks = fn(&World);
    let cases: [(&str, &str, Breaks); 4] = [
        (
            "cxi",
            "(function not implemented (FI_ENOSYS)): long messages end with a record; FI_CXI_ENABLE_WRITEDATA=1 changes",
            |world| {
                *world.writes_data.lock().unwrap() = -(errno::ENOSYS as isize);
            },
        ),
        ("efa", "(I/O error (FI_EIO)): long messages end with a record", |world| {
            *world.echo.lock().unwrap() = Echo::Badly(errno::EIO);
        }),
        // Cases in which the target receives no entry.
        ("efa", "connection timed out", |world| *world.echo.lock().unwrap() = Echo::Untold),
        ("efa", "connection timed out", |world| {
            *world.writes_data.lock().unwrap() = -(errno::EAGAIN as isize);
        }),
    ];
    for (provider, words, breaks) in cases {
        let (world, config, library) = world(new());
        breaks(&world);
        let config = OfiConfig { provider: Some(provider.to_owned()), ..config };
        let fabric = OfiFabric::with_library(&library, &config).unwrap();
        assert!(!fabric.provider_profile(0).unwrap().write_data, "{words}");
        let [(LogLevel::Warn, note)] = fabric.nic_notes() else { panic!("{:?}", fabric.nic_notes()) };
        assert!(note.contains("cannot write with data") && note.contains(words), "{note}");
        assert_eq!(world.open(), 0, "the probe left objects open");
    }
}

#[test]
fn only_unknown_nics_are_probed_and_only_once() {
    let posts = |provider: &str, copies| {
        let (world, config, library) = world(new());
        let config = OfiConfig { provider: Some(provider.to_owned()), copies, ..config };
        let fabric = OfiFabric::with_library(&library, &config).unwrap();
        assert!(fabric.provider_profile(0).unwrap().write_data && fabric.nic_notes().is_empty());
        let posts = world.posts.lock().unwrap().clone();
        (posts.len(), fabric.nics().len())
    };
    assert_eq!([posts("cxi", 1), posts("efa", 4), posts("net", 1)], [(1, 1), (1, 4), (0, 1)]);
    // A NIC that cannot be opened is left to its first rail, which reports the error.
    let (world, config, library) = world(new());
    world.refuse(Point::Domain, errno::ENODEV);
    let fabric = OfiFabric::with_library(&library, &config).unwrap();
    assert!(fabric.provider_profile(0).unwrap().write_data && fabric.nic_notes().is_empty());
}

/// Registrations of memory of the host are unchanged.
#[test]
fn registrations_of_host_memory_are_unchanged() {
    let gpus = nvidia();
    let (world, fabric) = tried(new(), &gpus);
    let rail = open(&fabric);
    let keys =
        rail.registrar().register(&MemoryRange::heap(64), AccessRights::WRITE, RegionPurpose::Data).unwrap();
    assert_ne!(keys.remote, RemoteKey(0));
    assert_eq!(world.asked.lock().unwrap().last().unwrap().iface, ofi::hmem::SYSTEM);
}
