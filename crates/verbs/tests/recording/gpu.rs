//! Memory of GPUs: the calls of libibverbs, and the handling of their errors.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use trunkline_fabric::{DeviceReach, ExportedDmaBuf, RegionKeys};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_sys::verbs::ACCESS_LOCAL_WRITE;

use super::*;
use crate::device::library_without_dmabufs;

/// An address in a GPU's memory.
const ADDR: usize = 0x7f00_1234_5678;

/// A folder in place of `/`, with these files.
fn root(files: &[&str]) -> PathBuf {
    let name = format!("trunkline-recording-{}-{:?}", std::process::id(), std::thread::current().id());
    let root = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&root);
    for file in files {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "550.54\n").unwrap();
    }
    root
}

fn over(root: &Path) -> VerbsFabric {
    fabric(VerbsConfig { root: root.to_owned(), ..VerbsConfig::default() })
}

fn reach(fabric: &VerbsFabric) -> DeviceReach {
    fabric.nics()[0].caps.devices
}

fn of_device(addr: usize, len: usize) -> MemoryRange {
    // SAFETY: memory of a device is never touched.
    unsafe { MemoryRange::from_raw(addr, len, MemoryKind::Device(0)) }
}

#[test]
fn device_reach_is_queried_once() {
    let nowhere = root(&[]);
    let found = reach(&over(&nowhere));
    assert_eq!((found.dmabuf, found.nvidia, found.amd, found.needs_flush), (true, false, false, true));
    assert_eq!(with(|device| device.regions), 0, "the query registers nothing");
    for code in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS, libc::EINVAL] {
        with(|device| device.refuses_dmabufs = (0, code));
        assert!(!over(&nowhere).reaches_devices(), "{code}");
    }
    with(|device| device.refuses_dmabufs = (0, 0));
    let old = VerbsFabric::with_library(
        Arc::new(library_without_dmabufs()),
        VerbsConfig { root: nowhere, ..VerbsConfig::default() },
    );
    assert!(!old.unwrap().reaches_devices());
    let nvidia = root(&["sys/module/nvidia_peermem/version"]);
    assert_eq!((reach(&over(&nvidia)).nvidia, reach(&over(&nvidia)).amd), (true, false));
    let amd = root(&["sys/kernel/mm/memory_peers/amdkfd/version"]);
    assert_eq!((reach(&over(&amd)).nvidia, reach(&over(&amd)).amd), (false, true));
    let quiet = VerbsConfig { device_flush: false, ..VerbsConfig::default() };
    assert!(!reach(&fabric(quiet)).needs_flush);
    let _ = std::fs::remove_dir_all(amd);
}

#[test]
fn without_drivers_nothing_is_reached() {
    let both = root(&["sys/module/nvidia_peermem/version", "sys/kernel/mm/memory_peers/amdkfd/version"]);
    let fabric = over(&both);
    assert!(fabric.reaches_devices());
    let fabric = fabric.with_gpus(&VendorDrivers::default());
    assert!(!fabric.reaches_devices() && !reach(&fabric).reaches_any());
    let _ = std::fs::remove_dir_all(both);
}

/// The address that peers count from. Its offset in a page is that of the bytes in their dma-buf, and its offset in a
/// large page is that of their address if both fit.
fn base_of(addr: usize, offset: u64) -> u64 {
    let page = rustix::param::page_size() as u64;
    if addr as u64 % page == offset % page { addr as u64 % (1 << 30) } else { offset % page }
}

fn exported(
    registrar: &Arc<dyn MemoryRegistrar>,
    at: (usize, usize),
    offset: u64,
) -> Result<RegionKeys, RegisterError> {
    let file = std::fs::File::open("/dev/null").unwrap();
    let exported = ExportedDmaBuf { fd: file.as_fd(), offset };
    let registered = registrar.register_exported(
        &of_device(at.0, at.1),
        exported,
        AccessRights::WRITE,
        RegionPurpose::Data,
    );
    if registered.is_ok() {
        let told = with(|device| device.last_dmabuf).expect("a dma-buf");
        assert_eq!(told, (offset, at.1, base_of(at.0, offset), file.as_raw_fd()));
    }
    assert!(rustix::io::fcntl_getfd(&file).is_ok(), "the caller's descriptor was closed");
    registered
}

#[test]
fn a_dmabuf_is_registered_where_its_bytes_are() {
    let fabric = over(&root(&[]));
    let rail = fabric.open_rail(0, &config()).unwrap();
    let registrar = rail.registrar();
    for offset in [0, 0x678, 8192, 8192 + 0x678] {
        let keys = exported(&registrar, (ADDR, 12_345), offset).unwrap();
        assert_eq!(keys.remote_base, base_of(ADDR, offset));
        assert_eq!(keys.remote_base > 4096, offset % 4096 == 0x678, "{offset:#x}");
        let access = with(|device| device.last_access);
        assert_ne!(access & ACCESS_RELAXED_ORDERING, 0, "data of GPUs is relaxed like other data");
        assert_ne!(access & ACCESS_LOCAL_WRITE, 0);
        assert_eq!(access & ACCESS_REMOTE_READ, 0);
        registrar.deregister(keys.local).unwrap();
    }
    let strict = VerbsConfig { ordering: BusOrdering::Strict, ..VerbsConfig::default() };
    let registrar = super::fabric(strict).open_rail(0, &config()).unwrap().registrar();
    let keys = exported(&registrar, (ADDR, 64), 0x678).unwrap();
    assert_eq!(with(|device| device.last_access) & ACCESS_RELAXED_ORDERING, 0);
    registrar.deregister(keys.local).unwrap();
}

#[test]
fn dmabuf_errors_name_a_remedy() {
    let fabric = over(&root(&[]));
    let rail = fabric.open_rail(0, &config()).unwrap();
    let registrar = rail.registrar();
    for (code, remedy) in [
        (libc::EOPNOTSUPP, "modprobe nvidia-peermem"),
        (libc::EPROTONOSUPPORT, "modprobe nvidia-peermem"),
        (libc::EINVAL, "not all be in the dma-buf"),
        (libc::ENOMEM, "ulimit -l"),
        (libc::EIO, "dmesg"),
    ] {
        with(|device| device.refuses_dmabufs = (code, 0));
        let error = exported(&registrar, (ADDR, 64), 0).unwrap_err();
        assert!(matches!(error, RegisterError::Device { how: "as a dma-buf", .. }), "{error:?}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
    with(|device| device.refuses_dmabufs = (0, libc::EOPNOTSUPP));
    let registrar = over(&root(&[])).open_rail(0, &config()).unwrap().registrar();
    let error = exported(&registrar, (ADDR, 64), 0).unwrap_err();
    assert!(error.to_string().contains("has no call for it"), "{error}");
    assert!(error.to_string().contains("modprobe nvidia-peermem"), "{error}");
    with(|device| device.refuses_dmabufs = (0, 0));
}

#[test]
fn device_memory_is_registered_by_address_with_module() {
    let plain = over(&root(&[])).open_rail(0, &config()).unwrap().registrar();
    let by_address = |registrar: &Arc<dyn MemoryRegistrar>| {
        registrar.register(&of_device(ADDR, 4096), AccessRights::READ_WRITE, RegionPurpose::Data)
    };
    let error = by_address(&plain).unwrap_err();
    assert!(
        error.to_string().contains("no kernel module") && error.to_string().contains("nvidia-peermem"),
        "{error}"
    );
    let with_module = root(&["sys/module/nvidia_peermem/version"]);
    let registrar = over(&with_module).open_rail(0, &config()).unwrap().registrar();
    let keys = by_address(&registrar).unwrap();
    assert_eq!((with(|device| device.last_addr), keys.remote_base), (ADDR, ADDR as u64 % (1 << 30)));
    let access = with(|device| device.last_access);
    assert_ne!(access & ACCESS_REMOTE_READ, 0, "a flush reads it");
    assert_ne!(access & ACCESS_RELAXED_ORDERING, 0);
    registrar.deregister(keys.local).unwrap();
    with(|device| device.refuses_regions = libc::EFAULT);
    let error = by_address(&registrar).unwrap_err();
    with(|device| device.refuses_regions = 0);
    assert!(error.to_string().contains("does not know the memory"), "{error}");
    let _ = std::fs::remove_dir_all(with_module);
}

#[test]
fn gpu_flush_reads_a_byte_of_its_memory() {
    let mut bench = Bench::new(true);
    bench.post(1, Op::Flush);
    assert_eq!(bench.poll().len(), 1);
    let (host, len) = with(|device| device.last_read);
    assert_eq!(len, 8);
    let at =
        RemoteLocation { key: trunkline_fabric::RemoteKey(0x1_0000), addr: 77, purpose: RegionPurpose::Data };
    bench.post(2, Op::FlushAt { at });
    assert_eq!(bench.poll().first().map(|one| (one.wr_id, one.status)), Some((2, OpStatus::Ok)));
    assert_eq!(with(|device| device.last_read), (0x1_0000, 1));
    assert_ne!(host, 0x1_0000);
    // One queue pair executes both kinds of flush, and needs no peer.
    let pairs = with(|device| device.pairs.len());
    bench.rail.fail_link(bench.link);
    bench.post(3, Op::FlushAt { at });
    assert_eq!(bench.poll().first().map(|one| (one.wr_id, one.status)), Some((3, OpStatus::Ok)));
    assert_eq!(with(|device| device.pairs.len()), pairs);
}

/// Opens a rail of an existing fabric, with a link to itself.
fn another(fabric: &VerbsFabric) -> (VerbsRail, LinkId) {
    let mut rail = fabric.open_rail(0, &config()).unwrap();
    let link = rail.create_link().unwrap();
    let own = rail.link_address(link).unwrap();
    rail.connect(link, own).unwrap();
    (rail, link)
}

/// Polls the operations that have ended on a rail, by number.
fn ended(rail: &mut VerbsRail) -> Vec<(u64, OpStatus)> {
    let mut out = [Completion::BLANK; 16];
    // The first poll returns the failed flush, and the others are submitted again.
    let count = rail.poll(&mut out);
    let count = count + rail.poll(&mut out[count..]);
    out[..count].iter().map(|one| (one.wr_id, one.status)).collect()
}

#[test]
fn rails_of_one_port_share_a_flusher() {
    let fabric = over(&root(&[]));
    let (mut one, first) = another(&fabric);
    let (mut two, second) = another(&fabric);
    let before = with(|device| (device.pairs.len(), device.queues));
    one.post(first, 1, Op::Flush, true).unwrap();
    two.post(second, 2, Op::Flush, true).unwrap();
    one.post(first, 3, Op::Flush, false).unwrap();
    assert_eq!(with(|device| (device.pairs.len(), device.queues)), (before.0 + 1, before.1 + 1));
    // The rail that polls first also takes the other rail's completions, which are kept for that rail.
    assert_eq!(ended(&mut two), [(2, OpStatus::Ok)]);
    assert_eq!(ended(&mut one), [(1, OpStatus::Ok)], "the unsignalled flush has no completion");
    one.post(first, 4, Op::Flush, true).unwrap();
    drop(one);
    two.post(second, 5, Op::Flush, true).unwrap();
    assert_eq!(ended(&mut two), [(5, OpStatus::Ok)], "completions of a closed rail are dropped");
    drop(two);
    assert_eq!(
        with(|device| (device.pairs.len(), device.regions)),
        (0, 0),
        "the flusher is freed with the last rail"
    );
}

/// For any number of rails of a port, and any number of them that flush: one more queue pair, with a completion queue
/// of its own, once one of them flushes.
#[test]
fn flushing_port_uses_one_more_queue_pair() {
    for (rails, flush) in (1..=4).flat_map(|rails| (0..=rails).map(move |flush| (rails, flush))) {
        let fabric = over(&root(&[]));
        let mut open: Vec<_> = (0..rails).map(|_| another(&fabric)).collect();
        let used = || (fabric.nic_usage(0).queue_pairs, fabric.nic_usage(0).completion_queues);
        assert_eq!(used(), (rails, rails), "before");
        for (rail, link) in open.iter_mut().take(flush as usize) {
            rail.post(*link, 7, Op::Flush, true).unwrap();
            assert_eq!(ended(rail), [(7, OpStatus::Ok)]);
        }
        let more = u32::from(flush > 0);
        assert_eq!(used(), (rails + more, rails + more), "{flush} of {rails} rails flush");
        open.clear();
        assert_eq!(used(), (0, 0));
    }
}

#[test]
fn failed_flush_leaves_other_flushes_working() {
    let fabric = over(&root(&[]));
    let (mut one, first) = another(&fabric);
    let (mut two, second) = another(&fabric);
    one.post(first, 1, Op::Flush, true).unwrap();
    assert_eq!(ended(&mut one).len(), 1);
    let pairs = with(|device| device.pairs.len());
    with(|device| device.next_status = wc_status::REM_ACCESS_ERR);
    let at = RemoteLocation { key: trunkline_fabric::RemoteKey(77), addr: 77, purpose: RegionPurpose::Data };
    one.post(first, 2, Op::FlushAt { at }, true).unwrap();
    two.post(second, 3, Op::Flush, true).unwrap();
    one.post(first, 4, Op::Flush, true).unwrap();
    assert_eq!(ended(&mut two), [(3, OpStatus::Ok)]);
    assert_eq!(ended(&mut one), [(2, OpStatus::RemoteAccess), (4, OpStatus::Ok)]);
    two.post(second, 5, Op::Flush, true).unwrap();
    assert_eq!(ended(&mut two), [(5, OpStatus::Ok)]);
    assert_eq!(with(|device| device.pairs.len()), pairs, "it replaces the failed one");
    // The rail's own link is not affected.
    one.post(first, 6, Op::Nop, true).unwrap();
    assert_eq!(ended(&mut one), [(6, OpStatus::Ok)]);
}
