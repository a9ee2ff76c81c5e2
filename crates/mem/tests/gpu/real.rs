//! The drivers of this machine, as far as it has them.

use std::io::Write as _;

use trunkline_mem::gpu::{
    DmaBufError, DmaBufExport, DmaBufMapping, GpuUnavailable, GpuVendor, PointerKind, VendorDriver,
};

/// Reports that a test was skipped, with the reason, in the log that `./test` counts. Fails instead if the driver is
/// required (`TRUNKLINE_REQUIRE` names `cuda` or `hip`).
fn skip(name: &str, driver: &str, reason: &str) {
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == driver), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}

fn host_memory_is_told_by(vendor: GpuVendor, driver: &str) {
    let gpu = match VendorDriver::open(vendor) {
        Ok(gpu) => gpu,
        Err(reason) => {
            let named = matches!(reason, GpuUnavailable::Library { .. });
            assert!(!named || reason.to_string().contains("install "), "{reason}");
            return skip(&format!("memory of {vendor} GPUs"), driver, &reason.to_string());
        }
    };
    assert_eq!(gpu.vendor(), vendor);
    assert!(gpu.device_count() > 0);
    let heap = vec![0_u8; 1 << 20];
    assert_eq!(gpu.query_pointer(heap.as_ptr() as usize).unwrap().kind, PointerKind::Host, "{gpu:?}");
    let exported = gpu.export_dmabuf(heap.as_ptr() as usize, 4096, DmaBufMapping::Any);
    assert!(matches!(exported, Err(DmaBufError::Kind { .. })), "{exported:?}");
}

#[test]
fn cuda_recognises_host_memory() {
    host_memory_is_told_by(GpuVendor::Nvidia, "cuda");
}

#[test]
fn hip_recognises_host_memory() {
    host_memory_is_told_by(GpuVendor::Amd, "hip");
}

/// Memory of a GPU is found by any of its addresses, and exported to other kernel drivers as a valid dma-buf.
#[test]
fn memory_of_a_gpu_is_found_and_exported() {
    const LEN: usize = 4 << 20;
    let gpu = match VendorDriver::open(GpuVendor::Nvidia) {
        Ok(gpu) => gpu,
        Err(reason) => return skip("dma-bufs of a GPU", "cuda", &reason.to_string()),
    };
    let device = gpu.open_device(0).unwrap();
    let memory = device.allocate(LEN).unwrap();
    let base = memory.addr();
    for at in [0, 1, LEN / 3, LEN - 1] {
        let found = gpu.query_pointer(base + at).unwrap();
        assert_eq!(found.kind, PointerKind::Device { vendor: GpuVendor::Nvidia, device: 0 });
        let allocation = found.allocation.unwrap();
        assert_eq!((allocation.base, allocation.len), (base, LEN), "{at}");
    }
    // The CPU cannot access the address, so the driver copies the bytes.
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 31 + at / 251) as u8).collect();
    device.copy_to_device(&memory, 0, &bytes).unwrap();
    let mut back = vec![0; LEN];
    device.copy_from_device(&memory, 0, &mut back).unwrap();
    assert!(back == bytes);
    assert!(gpu.sync_copies(base).unwrap(), "synchronous copies must be accepted");
    if !gpu.exports_memory().unwrap() {
        return skip("dma-bufs of a GPU", "dma-buf", "the driver exports none");
    }
    for (at, len) in [(0, LEN), (0, 1 << 16), (LEN / 2, LEN / 2), (5000, 70_000)] {
        let DmaBufExport::Given(given) = gpu.export_dmabuf(base + at, len, DmaBufMapping::Any).unwrap()
        else {
            panic!("{len} bytes at {at} must be exported")
        };
        use std::os::fd::AsRawFd as _;
        let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", given.fd.as_raw_fd())).unwrap();
        assert!(told.contains("exp_name"), "the descriptor must be a dma-buf: {told}");
        assert_eq!(given.len, len);
        assert_eq!(given.offset % 4096, at as u64 % 4096, "{at}");
    }
}
