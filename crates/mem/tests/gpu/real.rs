//! The drivers of this machine, where there are any. Only what needs no memory of a device: nothing here allocates any.

use std::io::Write as _;

use trunkline_mem::gpu::{ExportError, Gpu, Mapping, Missing, PointerKind, Vendor};

/// Says that a test could not run and why, where `./test` counts it. Where the driver must be there (`TRUNKLINE_REQUIRE` names
/// `cuda` or `hip`) it fails instead.
fn skip(name: &str, driver: &str, reason: &str) {
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|word| word.trim() == driver), "{name} must run: {reason}");
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot note a skip: {noted:?}");
    }
}

fn host_memory_is_told_by(vendor: Vendor, driver: &str) {
    let gpu = match Gpu::open(vendor) {
        Ok(gpu) => gpu,
        Err(reason) => {
            let named = matches!(reason, Missing::Library { .. });
            assert!(!named || reason.to_string().contains("install "), "{reason}");
            return skip(&format!("memory of {vendor} GPUs"), driver, &reason.to_string());
        }
    };
    assert_eq!(gpu.vendor(), vendor);
    assert!(gpu.devices() > 0);
    let heap = vec![0_u8; 1 << 20];
    assert_eq!(gpu.look(heap.as_ptr() as usize).unwrap().kind, PointerKind::Host, "{gpu:?}");
    let exported = gpu.export(heap.as_ptr() as usize, 4096, Mapping::Any);
    assert!(matches!(exported, Err(ExportError::Kind { .. })), "{exported:?}");
}

#[test]
fn host_memory_is_told_by_cuda() {
    host_memory_is_told_by(Vendor::Nvidia, "cuda");
}

#[test]
fn host_memory_is_told_by_hip() {
    host_memory_is_told_by(Vendor::Amd, "hip");
}
