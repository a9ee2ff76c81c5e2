//! Cases: memory of devices that is registered by a dma-buf. Here a memory file replaces the dma-buf, so these cases are for software NICs.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use trunkline_mem::{MemoryRange, SharedMemory};

use super::pair::{ConformanceSetup, default_config};
use super::{TestRegion, ops::flush_writes};
use crate::{
    AccessRights, ExportedDmaBuf, MemoryRegistrar, Op, OpSource, OpStatus, Rail, RegionExtent, RegionKeys,
    RegionPurpose, RemoteLocation,
};

const LEN: usize = 150_000;
/// Offset of the bytes in the file; deliberately not at the start of a page.
const FIRST: u64 = 4096 + 256;

/// Bytes of a file, registered by its descriptor under the address of other bytes, which no operation may touch.
struct ExportedRegion {
    file: SharedMemory,
    decoy: MemoryRange,
    keys: RegionKeys,
    registrar: Arc<dyn MemoryRegistrar>,
}

impl ExportedRegion {
    fn new<R: Rail>(rail: &R, access: AccessRights) -> Self {
        let file = SharedMemory::new("trunkline.exported", 2 * FIRST as usize + LEN)
            .unwrap_or_else(|e| panic!("{e}"));
        let decoy = MemoryRange::heap(LEN);
        let registrar = rail.registrar();
        let lent = file.descriptor().unwrap_or_else(|e| panic!("{e}"));
        let exported = ExportedDmaBuf { fd: lent.as_fd(), offset: FIRST };
        let keys = registrar.register_exported(&decoy, exported, access, RegionPurpose::Bounce);
        // The descriptor is closed here.
        Self { file, decoy, keys: keys.unwrap_or_else(|e| panic!("register: {e}")), registrar }
    }

    fn read_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.file.memory().read(FIRST + offset, &mut out).unwrap_or_else(|e| panic!("read: {e}"));
        out
    }

    const fn extent_at(&self, offset: u64, len: u64) -> RegionExtent {
        RegionExtent { key: self.keys.local, offset, len }
    }

    const fn remote_at(&self, offset: u64) -> RemoteLocation {
        let addr = self.keys.remote_base.wrapping_add(offset);
        RemoteLocation { key: self.keys.remote, addr, purpose: RegionPurpose::Bounce }
    }
}

/// Peers write, read and change the bytes of the descriptor; the bytes of the address stay unchanged. This side
/// writes from the descriptor's bytes and reads into them.
pub fn exported_bytes_are_reached_by_their_descriptor<S: ConformanceSetup>(setup: &S) {
    let mut ends = setup.open_pair(&default_config());
    if !ends.b.caps().devices.dmabuf {
        return;
    }
    let plain = TestRegion::new(&ends.a, 2 * LEN, AccessRights::ALL);
    let device = ExportedRegion::new(&ends.b, AccessRights::ALL);
    plain.fill_pattern(1);
    for len in [1, 8, 100, 4096, LEN - 8] {
        let source = OpSource::Region(plain.extent_at(3, len as u64));
        ends.on_a(1, Op::Write { from: source, to: device.remote_at(8), imm: None });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        flush_writes(&mut ends);
        assert!(device.read_bytes(8, len) == plain.read_bytes(3, len), "a write of {len} bytes");
        ends.on_a(2, Op::Read { into: plain.extent_at(LEN as u64, len as u64), from: device.remote_at(8) });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        assert!(plain.read_bytes(LEN as u64, len) == device.read_bytes(8, len), "a read of {len} bytes");
        let source = OpSource::Region(device.extent_at(8, len as u64));
        ends.on_b(3, Op::Write { from: source, to: plain.remote_at(LEN as u64 + 5), imm: None });
        assert_eq!(ends.expect_completions(0, 1).b[0].status, OpStatus::Ok);
        assert!(
            plain.read_bytes(LEN as u64 + 5, len) == device.read_bytes(8, len),
            "its own write of {len} bytes"
        );
        ends.on_b(4, Op::Read { into: device.extent_at(1, len as u64), from: plain.remote_at(0) });
        assert_eq!(ends.expect_completions(0, 1).b[0].status, OpStatus::Ok);
        assert!(device.read_bytes(1, len) == plain.read_bytes(0, len), "its own read of {len} bytes");
    }
    if ends.a.caps().atomics {
        device.file.memory().store(FIRST + 16, 5).unwrap_or_else(|e| panic!("{e}"));
        let old = plain.extent_at(8, 8);
        ends.on_a(5, Op::FetchAdd { old, at: device.remote_at(16), add: 3 });
        assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        assert_eq!((plain.memory.load(8), device.file.memory().load(FIRST + 16)), (Ok(5), Ok(8)));
    }
    let mut decoy = vec![1; LEN];
    device.decoy.read(0, &mut decoy).unwrap_or_else(|e| panic!("{e}"));
    assert!(decoy.iter().all(|byte| *byte == 0), "bytes of the address were touched");
    device.registrar.deregister(device.keys.local).unwrap_or_else(|e| panic!("deregister: {e}"));
}

/// Bytes of the file before and behind the memory are not reached.
pub fn exported_bytes_end_where_the_memory_does<S: ConformanceSetup>(setup: &S) {
    let probe = setup.open_pair(&default_config());
    if !probe.b.caps().devices.dmabuf {
        return;
    }
    for at in [LEN as u64 - 7, u64::MAX - 7] {
        let mut ends = setup.open_pair(&default_config());
        let device = ExportedRegion::new(&ends.b, AccessRights::ALL);
        ends.on_a(1, Op::Write { from: OpSource::Inline(&[7; 8]), to: device.remote_at(at), imm: None });
        assert_ne!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok, "a write at {at:#x}");
        let mut all = vec![1; device.file.memory().len()];
        device.file.memory().read(0, &mut all).unwrap_or_else(|e| panic!("{e}"));
        assert!(all.iter().all(|byte| *byte == 0), "bytes were written");
    }
}
