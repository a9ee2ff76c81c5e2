//! NVIDIA's driver, played by a fake.

use std::os::fd::AsFd as _;

use trunkline_mem::MemoryKind;
use trunkline_mem::gpu::{
    DeviceAllocation, DmaBuf, DmaBufError, DmaBufExport, DmaBufMapping, ExportRefusal, GpuUnavailable,
    GpuVendor, LookError, PointerKind, VendorDriver, VendorDrivers,
};
use trunkline_sys::cuda::Calls;

use crate::fake::{self, Fake, Known, asked, with};
use crate::open_files;

/// An allocation of device 1 that begins and ends within pages of any size up to 64 KiB.
const BASE: usize = 0x7f00_0000_0200;
const LEN: usize = 1 << 20;

fn page() -> usize {
    rustix::param::page_size()
}

fn open_with(fake: Fake, alter: impl FnOnce(&mut Calls)) -> Result<VendorDriver, GpuUnavailable> {
    fake::set(fake);
    let mut calls = fake::cuda_calls();
    alter(&mut calls);
    // SAFETY: the fake implements CUDA's contract in this thread, and the tests call it in this thread only.
    unsafe { VendorDriver::of_cuda(calls) }
}

fn open(memory: &[Known]) -> VendorDriver {
    let fake = Fake { memory: memory.to_vec(), ..Fake::new(12_040) };
    let gpu = open_with(fake, |_| ()).expect("a driver");
    let begin = ["cuDriverGetVersion", "cuInit(0)", "cuDeviceGetCount"];
    assert_eq!(asked(), begin);
    gpu
}

fn open_device() -> VendorDriver {
    open(&[Known::device(1, BASE, LEN)])
}

fn given(export: Result<DmaBufExport, DmaBufError>) -> DmaBuf {
    match export {
        Ok(DmaBufExport::Given(dma_buf)) => dma_buf,
        other => panic!("{other:?}"),
    }
}

fn refused(export: Result<DmaBufExport, DmaBufError>) -> ExportRefusal {
    match export {
        Ok(DmaBufExport::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn driver_exports_if_all_its_devices_do() {
    let gpu = open(&[]);
    assert_eq!(gpu.exports_memory(), Ok(true));
    assert_eq!(asked().iter().filter(|call| call.starts_with("cuDeviceGetAttribute")).count(), 2, "both");
    with(|fake| fake.exports = 0);
    assert_eq!(gpu.exports_memory(), Ok(false));
    let without = open_with(Fake::new(12_040), |calls| calls.mem_get_handle_for_address_range = None);
    assert_eq!(without.expect("a driver").exports_memory(), Ok(false));
}

#[test]
fn driver_reports_vendor_devices_and_version() {
    let gpu = open(&[]);
    assert_eq!(
        (gpu.vendor(), gpu.device_count(), &*gpu.driver_version()),
        (GpuVendor::Nvidia, 2, "CUDA 12.4")
    );
    assert_eq!(format!("{gpu:?}"), "Gpu(NVIDIA, CUDA 12.4, 2 devices)");
}

#[test]
fn old_driver_is_refused_before_initialisation() {
    let error = open_with(Fake::new(10_020), |_| ()).unwrap_err();
    assert!(matches!(error, GpuUnavailable::TooOld { vendor: GpuVendor::Nvidia, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("CUDA 10.2") && text.contains("CUDA 11.0 is the oldest"), "{text}");
    assert_eq!(asked(), ["cuDriverGetVersion"]);
    assert!(open_with(Fake::new(11_000), |_| ()).is_ok());
}

#[test]
fn driver_without_devices_is_refused() {
    let without = [Fake { init: 100, ..Fake::new(12_040) }, Fake { devices: 0, ..Fake::new(12_040) }];
    for fake in without {
        let error = open_with(fake, |_| ()).unwrap_err();
        assert_eq!(error, GpuUnavailable::Devices { vendor: GpuVendor::Nvidia });
        assert_eq!(error.to_string(), "the driver for NVIDIA GPUs finds no device");
    }
}

#[test]
fn failed_initialisation_reports_call_code_and_remedy() {
    let error = open_with(Fake { init: 802, ..Fake::new(12_040) }, |_| ()).unwrap_err().to_string();
    assert!(error.contains("cuInit failed with SYSTEM_NOT_READY (802)"), "{error}");
    assert!(error.contains("start the fabric manager"), "{error}");
    let error = open_with(Fake { init: 777, ..Fake::new(12_040) }, |_| ()).unwrap_err().to_string();
    assert!(error.contains("cuInit failed with an error without a name (777)"), "{error}");
}

#[test]
fn memory_of_no_device_is_host_memory() {
    let pinned = Known { kind: 1, ..Known::device(0, 0x5000, 0x1000) };
    let gpu = open(&[pinned]);
    let local = 0_u8;
    for addr in [0, 0x5010, &raw const local as usize] {
        let pointer = gpu.query_pointer(addr).unwrap();
        assert_eq!((pointer.kind, pointer.allocation), (PointerKind::Host, None));
        let error = gpu.export_dmabuf(addr, 1, DmaBufMapping::Any).unwrap_err();
        assert!(matches!(error, DmaBufError::Kind { kind: PointerKind::Host, .. }), "{error}");
    }
    assert!(asked().iter().all(|call| call.starts_with("cuPointerGetAttributes")));
}

#[test]
fn device_memory_is_recognised_in_one_call() {
    let gpu = open_device();
    let pointer = gpu.query_pointer(BASE + 77).unwrap();
    assert_eq!(pointer.kind, PointerKind::Device { vendor: GpuVendor::Nvidia, device: 1 });
    assert_eq!(pointer.allocation, Some(DeviceAllocation { base: BASE, len: LEN }));
    assert!(!pointer.sync_copies);
    assert_eq!(asked(), [format!("cuPointerGetAttributes(6, {:#x})", BASE + 77)]);
    assert_eq!(gpu.query_pointer(BASE + LEN).unwrap().kind, PointerKind::Host);
}

#[test]
fn managed_memory_is_not_device_memory() {
    let gpu = open(&[Known { managed: true, ..Known::device(0, BASE, LEN) }]);
    assert_eq!(gpu.query_pointer(BASE).unwrap().kind, PointerKind::Managed { vendor: GpuVendor::Nvidia });
    let error = gpu.export_dmabuf(BASE, 64, DmaBufMapping::Any).unwrap_err();
    assert!(error.to_string().contains("Managed"), "{error}");
    assert_eq!(asked().len(), 2, "nothing may be exported");
}

#[test]
fn failed_queries_are_errors() {
    let gpu = open_device();
    with(|fake| fake.look = 3);
    let error = gpu.query_pointer(BASE).unwrap_err();
    assert!(matches!(error, LookError::Driver(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("cuPointerGetAttributes failed with NOT_INITIALIZED (3)"), "{text}");
    assert!(text.contains("initialise it in the child"), "{text}");
    assert!(matches!(gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any), Err(DmaBufError::Look(_))));
    assert!(gpu.sync_copies(BASE).is_err());
}

#[test]
fn unknown_memory_type_is_an_error() {
    let gpu = open(&[Known { kind: 9, ..Known::device(0, BASE, LEN) }]);
    let error = gpu.query_pointer(BASE).unwrap_err();
    assert!(matches!(error, LookError::Unfamiliar { value: 9, .. }), "{error}");
}

#[test]
fn whole_pages_are_exported_with_an_offset() {
    let (gpu, page) = (open_device(), page());
    // From 100 bytes before a page's end to 50 bytes into the page after the next one.
    let addr = (BASE + 4 * page).next_multiple_of(page) - 100;
    let dma_buf = given(gpu.export_dmabuf(addr, page + 150, DmaBufMapping::Any));
    assert_eq!((dma_buf.offset, dma_buf.len), (page as u64 - 100, page + 150));
    let start = addr - (page - 100);
    let asked = asked();
    assert_eq!(asked[1], "cuDeviceGet(1)");
    assert_eq!(asked[2], "cuDeviceGetAttribute(124, 101)");
    assert_eq!(asked[3], format!("cuMemGetHandleForAddressRange({start:#x}, {}, 1, 0)", 3 * page));
    assert_eq!(asked.len(), 4);
    let flags = rustix::io::fcntl_getfd(dma_buf.fd.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let aligned = given(gpu.export_dmabuf(start, page, DmaBufMapping::Any));
    assert_eq!((aligned.offset, aligned.len), (0, page));
}

#[test]
fn allocation_that_begins_within_a_page_is_exported() {
    let (gpu, page) = (open_device(), page());
    let dma_buf = given(gpu.export_dmabuf(BASE, LEN, DmaBufMapping::Any));
    assert_eq!((dma_buf.offset, dma_buf.len), ((BASE % page) as u64, LEN));
}

#[test]
fn pcie_mapping_is_requested_by_a_flag() {
    let gpu = open_device();
    given(gpu.export_dmabuf(BASE, 1, DmaBufMapping::Pcie));
    assert!(asked().last().unwrap().ends_with(", 1, 1)"));
}

#[test]
fn range_beyond_its_allocation_is_refused() {
    let gpu = open_device();
    for (addr, len) in [(BASE + LEN - 10, 11), (BASE, LEN + 1), (BASE + 1, usize::MAX)] {
        let error = gpu.export_dmabuf(addr, len, DmaBufMapping::Any).unwrap_err();
        assert!(matches!(error, DmaBufError::Beyond { base: BASE, size: LEN, .. }), "{error}");
    }
    assert!(matches!(gpu.export_dmabuf(BASE, 0, DmaBufMapping::Any), Err(DmaBufError::Empty { addr: BASE })));
    assert!(!asked().iter().any(|call| call.starts_with("cuMemGetHandle")));
    given(gpu.export_dmabuf(BASE + LEN - 10, 10, DmaBufMapping::Any));
}

#[test]
fn refused_exports_report_the_alternative() {
    let gpu = open_device();
    for code in [801, 1] {
        with(|fake| fake.export = code);
        let refusal = refused(gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any));
        assert!(matches!(&refusal, ExportRefusal::Memory(error) if error.code == code), "{refusal}");
        assert!(refusal.to_string().contains("nvidia-peermem"), "{refusal}");
    }
    with(|fake| fake.exports = 0);
    let refusal = refused(gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any));
    assert_eq!(refusal, ExportRefusal::Device { device: 1 });
    assert!(refusal.to_string().contains("by its address instead"), "{refusal}");
    let fake = Fake { memory: vec![Known::device(0, BASE, LEN)], ..Fake::new(11_060) };
    let gpu = open_with(fake, |calls| calls.mem_get_handle_for_address_range = None).unwrap();
    let refusal = refused(gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any));
    assert!(refusal.to_string().contains("no cuMemGetHandleForAddressRange"), "{refusal}");
}

#[test]
fn driver_failures_are_not_refusals() {
    let gpu = open_device();
    with(|fake| fake.export = 999);
    let error = gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any).unwrap_err();
    assert!(matches!(&error, DmaBufError::Driver(error) if error.code == 999), "{error}");
    with(|fake| (fake.export, fake.no_descriptor) = (0, true));
    let error = gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any).unwrap_err();
    assert!(matches!(error, DmaBufError::Descriptor { fd: -1, .. }), "{error}");
}

#[test]
fn invalid_and_dropped_descriptors_are_closed() {
    let (gpu, name) = (open_device(), "trunkline.fake.closed");
    with(|fake| (fake.name, fake.size) = (name.to_owned(), Some(10)));
    let error = gpu.export_dmabuf(BASE, page(), DmaBufMapping::Any).unwrap_err();
    assert_eq!(open_files(name), 0, "{error}");
    assert!(matches!(error, DmaBufError::Short { size: 10, .. }), "{error}");
    with(|fake| fake.size = None);
    let dma_buf = given(gpu.export_dmabuf(BASE, page(), DmaBufMapping::Any));
    assert_eq!(open_files(name), 1);
    drop(dma_buf);
    assert_eq!(open_files(name), 0);
}

#[test]
fn thread_without_a_context_borrows_one() {
    let gpu = open_device();
    with(|fake| fake.needs_context = true);
    given(gpu.export_dmabuf(BASE + 1, 1, DmaBufMapping::Any));
    let export = "cuMemGetHandleForAddressRange";
    let borrow = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent"];
    let give_back = ["cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"];
    let look = "cuPointerGetAttributes";
    let expected = [
        &[look, look],
        &borrow[..],
        &[look],
        &give_back,
        &["cuDeviceGet", "cuDeviceGetAttribute", export],
        &borrow,
        &[export],
        &give_back,
    ];
    let asked = asked();
    let names: Vec<_> = asked.iter().map(|call| call.split('(').next().unwrap()).collect();
    assert_eq!(names, expected.concat());
    assert!(gpu.sync_copies(BASE).unwrap());
    assert_eq!(with(|fake| (fake.pushed, fake.retained)), (0, 0));
}

#[test]
fn host_memory_is_recognised_without_a_context() {
    let gpu = open(&[Known { managed: true, ..Known::device(0, BASE, LEN) }]);
    with(|fake| fake.needs_context = true);
    assert_eq!(gpu.query_pointer(0x5000).unwrap().kind, PointerKind::Host);
    assert_eq!(gpu.query_pointer(BASE).unwrap().kind, PointerKind::Managed { vendor: GpuVendor::Nvidia });
    assert!(
        asked().iter().all(|call| call.starts_with("cuPointerGetAttributes")),
        "no context may be retained"
    );
}

#[test]
fn useless_context_is_released() {
    let gpu = open_device();
    with(|fake| fake.export = 201);
    let error = gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any).unwrap_err();
    assert!(error.to_string().contains("INVALID_CONTEXT (201)"), "{error}");
    assert_eq!(with(|fake| (fake.pushed, fake.retained)), (0, 0));
}

#[test]
fn sync_attribute_is_set_once() {
    let gpu = open(&[Known::device(1, BASE, LEN), Known { sync: true, ..Known::device(0, 0x5000, 16) }]);
    assert!(gpu.sync_copies(BASE).unwrap());
    assert_eq!(asked()[1..], [format!("cuPointerSetAttribute(1, 6, {BASE:#x})")]);
    assert!(gpu.sync_copies(0x5000).unwrap());
    assert!(gpu.sync_copies(0x9000).unwrap());
    assert!(asked().iter().all(|call| call.starts_with("cuPointerGetAttributes")));
    assert!(gpu.query_pointer(0x5000).unwrap().sync_copies);
}

#[test]
fn context_is_synchronous_if_its_memory_cannot_be() {
    for needs_context in [false, true] {
        let gpu = open_device();
        with(|fake| (fake.set, fake.needs_context) = (801, needs_context));
        assert!(gpu.sync_copies(BASE).unwrap());
        assert_eq!(with(|fake| fake.flags), 0x88, "the context's other flags must stay set");
        let sets = asked().iter().filter(|call| call.starts_with("cuCtxSetFlags")).count();
        assert!(gpu.sync_copies(BASE).unwrap());
        assert_eq!((sets, asked().iter().any(|call| call.starts_with("cuCtxSetFlags"))), (1, false));
        assert_eq!(with(|fake| (fake.pushed, fake.retained)), (0, 0));
    }
}

#[test]
fn asynchronous_copies_are_reported() {
    let gpu = open_device();
    with(|fake| (fake.set, fake.set_flags) = (801, 801));
    assert!(!gpu.sync_copies(BASE).unwrap());
    with(|fake| fake.set = 4);
    assert!(!gpu.sync_copies(BASE).unwrap());
    // Drivers before CUDA 12.1 have no cuCtxSetFlags.
    let fake = Fake { memory: vec![Known::device(1, BASE, LEN)], set: 801, ..Fake::new(12_000) };
    let gpu = open_with(fake, |calls| calls.ctx_set_flags = None).unwrap();
    assert!(!gpu.sync_copies(BASE).unwrap());
}

#[test]
fn drivers_find_the_one_that_knows_an_address() {
    let gpus = VendorDrivers::from_drivers(vec![open_device()]);
    assert!(gpus.has_vendor(GpuVendor::Nvidia) && !gpus.has_vendor(GpuVendor::Amd) && gpus.exports_memory());
    let (gpu, pointer) = gpus.query_pointer(BASE + 7).unwrap();
    assert_eq!(gpu.map(VendorDriver::vendor), Some(GpuVendor::Nvidia));
    assert_eq!(pointer.kind, PointerKind::Device { vendor: GpuVendor::Nvidia, device: 1 });
    let (gpu, pointer) = gpus.query_pointer(0x1000).unwrap();
    assert!(gpu.is_none() && pointer.kind == PointerKind::Host);
    with(|fake| fake.exports = 0);
    assert!(!gpus.exports_memory());
    with(|fake| fake.look = 999);
    assert!(gpus.query_pointer(BASE).is_err(), "a failed query must not be taken for host memory");
    let none = VendorDrivers::default();
    assert!(
        !none.exports_memory() && none.open_drivers().is_empty() && none.unavailable_drivers().is_empty()
    );
    assert_eq!(none.query_pointer(BASE).unwrap().1.kind, PointerKind::Host);
}

#[test]
fn probe_memory_is_freed_with_its_last_clone() {
    let gpu = open_device();
    let memory = gpu.allocate_probe(4096).unwrap();
    assert_eq!((memory.addr(), memory.len(), memory.kind()), (BASE, 4096, MemoryKind::Device(1)));
    assert!(memory.read(0, &mut [0]).is_err(), "the CPU must not access device memory");
    let other = memory.clone();
    drop(memory);
    assert_eq!(asked(), ["cuMemAlloc(4096)".to_owned(), format!("cuPointerGetAttributes(6, {BASE:#x})")]);
    drop(other);
    assert_eq!(asked(), [format!("cuMemFree({BASE:#x})")]);
    // In a thread without a context, allocation and free borrow one.
    with(|fake| fake.needs_context = true);
    let memory = gpu.allocate_probe(4096).unwrap();
    assert_eq!(
        with(|fake| (fake.pushed, fake.retained)),
        (0, 1),
        "the memory must keep its context retained"
    );
    drop(memory);
    assert_eq!(with(|fake| (fake.pushed, fake.retained)), (0, 0));
    with(|fake| fake.alloc = 2);
    assert!(gpu.allocate_probe(4096).is_err());
    assert_eq!(with(|fake| (fake.pushed, fake.retained)), (0, 0));
    let freed = asked().iter().filter(|call| call.starts_with("cuMemFree")).count();
    assert_eq!(freed, 2, "the memory must be freed in the context of device 1");
}

#[test]
fn failed_probe_allocation_reports_the_reason() {
    let gpu = open_device();
    with(|fake| fake.alloc = 2);
    let error = gpu.allocate_probe(4096).unwrap_err().to_string();
    assert!(error.contains("cuMemAlloc failed") && error.contains("free memory on the device"), "{error}");
    with(|fake| (fake.alloc, fake.memory) = (0, vec![Known { kind: 1, ..Known::device(0, BASE, LEN) }]));
    asked();
    assert!(gpu.allocate_probe(4096).is_err(), "host memory must be refused");
    assert!(asked().contains(&format!("cuMemFree({BASE:#x})")), "the refused memory must be freed");
}
