//! AMD's runtime, played by a fake.

use trunkline_mem::gpu::{
    DeviceAllocation, DmaBufError, DmaBufExport, DmaBufMapping, ExportRefusal, GpuUnavailable, GpuVendor,
    LookError, PointerKind, VendorDriver,
};
use trunkline_sys::hip::Calls;

use crate::fake::{self, Fake, Known, asked, with};
use crate::open_files;

const BASE: usize = 0x7e00_0001_0000;
const LEN: usize = 1 << 20;

fn open_with(fake: Fake, alter: impl FnOnce(&mut Calls)) -> Result<VendorDriver, GpuUnavailable> {
    fake::set(fake);
    let mut calls = fake::hip_calls();
    alter(&mut calls);
    // SAFETY: the fake implements HIP's contract in this thread, and the tests call it in this thread only.
    unsafe { VendorDriver::of_hip(calls) }
}

fn open(memory: &[Known]) -> VendorDriver {
    let fake = Fake { memory: memory.to_vec(), ..Fake::new(60_241_133) };
    let gpu = open_with(fake, |_| ()).expect("a runtime");
    assert_eq!(asked(), ["hipInit(0)", "hipRuntimeGetVersion", "hipGetDeviceCount"]);
    gpu
}

fn open_device() -> VendorDriver {
    open(&[Known::device(1, BASE, LEN)])
}

#[test]
fn runtime_reports_vendor_devices_and_version() {
    let gpu = open(&[]);
    assert_eq!((gpu.vendor(), gpu.device_count(), &*gpu.driver_version()), (GpuVendor::Amd, 2, "HIP 6.2"));
}

#[test]
fn old_runtime_is_refused() {
    let error = open_with(Fake::new(50_700_000), |_| ()).unwrap_err().to_string();
    assert!(error.contains("AMD GPUs is HIP 5.7, and HIP 6.0 is the oldest"), "{error}");
    assert!(open_with(Fake::new(60_000_000), |_| ()).is_ok());
}

#[test]
fn driver_without_devices_is_refused() {
    let new = || Fake::new(60_200_000);
    for fake in [Fake { init: 100, devices: 0, ..new() }, Fake { devices: 0, ..new() }] {
        assert_eq!(open_with(fake, |_| ()).unwrap_err(), GpuUnavailable::Devices { vendor: GpuVendor::Amd });
    }
    let error = open_with(Fake { init: 3, ..new() }, |_| ()).unwrap_err().to_string();
    assert!(error.contains("hipInit failed with NOT_INITIALIZED (3)"), "{error}");
}

#[test]
fn each_memory_kind_is_recognised() {
    let managed = Known { kind: 3, managed: true, ..Known::device(0, 0x9000, 16) };
    let flagged = Known { kind: 2, managed: true, ..Known::device(0, 0xa000, 16) };
    let pinned = Known { kind: 1, ..Known::device(0, 0x5000, 16) };
    let gpu = open(&[Known::device(1, BASE, LEN), managed, flagged, pinned]);
    let pointer = gpu.query_pointer(BASE + LEN - 1).unwrap();
    assert_eq!(pointer.kind, PointerKind::Device { vendor: GpuVendor::Amd, device: 1 });
    assert_eq!(pointer.allocation, Some(DeviceAllocation { base: BASE, len: LEN }));
    for addr in [0x9000, 0xa000] {
        assert_eq!(gpu.query_pointer(addr).unwrap().kind, PointerKind::Managed { vendor: GpuVendor::Amd });
    }
    for addr in [0x5000, 0xdead_0000] {
        assert_eq!(gpu.query_pointer(addr).unwrap().kind, PointerKind::Host);
    }
}

#[test]
fn failed_queries_are_errors() {
    let gpu = open_device();
    with(|fake| fake.look = 1);
    let error = gpu.query_pointer(BASE).unwrap_err().to_string();
    assert!(error.contains("hipPointerGetAttributes failed with INVALID_VALUE (1)"), "{error}");
    with(|fake| (fake.look, fake.range) = (0, 500));
    let error = gpu.query_pointer(BASE).unwrap_err().to_string();
    assert!(error.contains("hipMemGetAddressRange failed with an error without a name (500)"), "{error}");
    with(|fake| (fake.range, fake.memory[0].kind) = (0, 10));
    assert!(matches!(gpu.query_pointer(BASE), Err(LookError::Unfamiliar { value: 10, .. })));
}

#[test]
fn export_stays_inside_its_allocation() {
    let page = rustix::param::page_size();
    // The allocation ends inside a page.
    let gpu = open(&[Known::device(1, BASE, 2 * page + 100)]);
    with(|fake| (fake.offset, fake.size) = (3 * page as u64, Some(1 << 24)));
    let Ok(DmaBufExport::Given(dma_buf)) = gpu.export_dmabuf(BASE + page + 60, page, DmaBufMapping::Any)
    else {
        panic!("the memory must be exported")
    };
    assert_eq!((dma_buf.offset, dma_buf.len), (3 * page as u64 + 60, page));
    let start = BASE + page;
    assert_eq!(
        asked().last().unwrap(),
        &format!("hsa_amd_portable_export_dmabuf({start:#x}, {})", page + 100)
    );
}

#[test]
fn offset_behind_the_end_is_refused() {
    let (gpu, name) = (open_device(), "trunkline.fake.behind");
    with(|fake| (fake.name, fake.offset) = (name.to_owned(), u64::MAX));
    let error = gpu.export_dmabuf(BASE + 60, 8, DmaBufMapping::Any).unwrap_err();
    assert!(matches!(error, DmaBufError::Short { .. }), "{error}");
    assert_eq!(open_files(name), 0);
}

#[test]
fn range_beyond_its_allocation_is_refused() {
    let gpu = open_device();
    let error = gpu.export_dmabuf(BASE + 1, LEN, DmaBufMapping::Any).unwrap_err();
    assert!(matches!(error, DmaBufError::Beyond { base: BASE, size: LEN, .. }), "{error}");
}

#[test]
fn refused_exports_report_the_reason() {
    let gpu = open_device();
    for (code, name) in
        [(0x1000, "HSA_STATUS_ERROR ("), (0x1003, "INVALID_ALLOCATION"), (0x1004, "INVALID_AGENT")]
    {
        with(|fake| fake.export = code);
        let Ok(DmaBufExport::Refused(refusal)) = gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any) else {
            panic!("{code:#x}")
        };
        let text = refusal.to_string();
        assert!(text.contains("hsa_amd_portable_export_dmabuf failed") && text.contains(name), "{text}");
        assert!(text.contains("peer memory"), "{text}");
    }
    with(|fake| fake.export = 0x1008);
    let error = gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any).unwrap_err();
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    let fake = Fake { memory: vec![Known::device(0, BASE, LEN)], ..Fake::new(60_000_000) };
    let gpu = open_with(fake, |calls| calls.export_dmabuf = None).unwrap();
    let refused = gpu.export_dmabuf(BASE, 1, DmaBufMapping::Any).unwrap();
    assert!(matches!(refused, DmaBufExport::Refused(ExportRefusal::Function { .. })), "{refused:?}");
}

#[test]
fn hip_copies_are_synchronous_without_setup() {
    let gpu = open_device();
    assert!(gpu.query_pointer(BASE).unwrap().sync_copies);
    assert!(gpu.sync_copies(BASE).unwrap());
}

#[test]
fn probe_memory_is_freed_with_its_last_clone() {
    let gpu = open_device();
    let memory = gpu.allocate_probe(4096).unwrap();
    assert_eq!((memory.addr(), memory.kind()), (BASE, trunkline_mem::MemoryKind::Device(1)));
    asked();
    drop(memory);
    assert_eq!(asked(), [format!("hipFree({BASE:#x})")]);
    with(|fake| fake.alloc = 2);
    assert!(gpu.allocate_probe(4096).unwrap_err().to_string().contains("hipMalloc failed"));
}
