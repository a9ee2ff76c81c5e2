//! Memory of devices that is registered by a dma-buf. A memory file stands for one here, so these cases are for NICs that are software.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use trunkline_mem::{Memory, Shared};

use super::pair::{Setup, default_config};
use super::{Region, ops::land};
use crate::{Access, Exported, Extent, Keys, Op, Purpose, Rail, Registrar, Remote, Source, Status};

const LEN: usize = 150_000;
/// Where the bytes begin in the file: not with a page.
const FIRST: u64 = 4096 + 256;

/// Bytes of a file that are registered by it, under the address of other bytes, which nothing is to touch.
struct ExportedRegion {
    file: Shared,
    decoy: Memory,
    keys: Keys,
    registrar: Arc<dyn Registrar>,
}

impl ExportedRegion {
    fn new<R: Rail>(rail: &R, access: Access) -> Self {
        let file =
            Shared::new("trunkline.exported", 2 * FIRST as usize + LEN).unwrap_or_else(|e| panic!("{e}"));
        let decoy = Memory::heap(LEN);
        let registrar = rail.registrar();
        let lent = file.descriptor().unwrap_or_else(|e| panic!("{e}"));
        let exported = Exported { fd: lent.as_fd(), offset: FIRST };
        let keys = registrar.register_exported(&decoy, exported, access, Purpose::Bounce);
        // The descriptor is closed here.
        Self { file, decoy, keys: keys.unwrap_or_else(|e| panic!("register: {e}")), registrar }
    }

    fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.file.memory().read(FIRST + offset, &mut out).unwrap_or_else(|e| panic!("read: {e}"));
        out
    }

    const fn extent(&self, offset: u64, len: u64) -> Extent {
        Extent { key: self.keys.local, offset, len }
    }

    const fn remote(&self, offset: u64) -> Remote {
        let addr = self.keys.remote_base.wrapping_add(offset);
        Remote { key: self.keys.remote, addr, purpose: Purpose::Bounce }
    }
}

/// Peers write, read and change the bytes of the descriptor, and those of the address stay as they are; this side writes from them and reads into them.
pub fn exported_bytes_are_reached_by_their_descriptor<S: Setup>(setup: &S) {
    let mut ends = setup.pair(&default_config());
    if !ends.b.caps().devices.dmabuf {
        return;
    }
    let plain = Region::new(&ends.a, 2 * LEN, Access::ALL);
    let device = ExportedRegion::new(&ends.b, Access::ALL);
    plain.fill(1);
    for len in [1, 8, 100, 4096, LEN - 8] {
        let source = Source::Region(plain.extent(3, len as u64));
        ends.on_a(1, Op::Write { from: source, to: device.remote(8), imm: None });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
        land(&mut ends);
        assert!(device.bytes(8, len) == plain.bytes(3, len), "a write of {len} bytes");
        ends.on_a(2, Op::Read { into: plain.extent(LEN as u64, len as u64), from: device.remote(8) });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
        assert!(plain.bytes(LEN as u64, len) == device.bytes(8, len), "a read of {len} bytes");
        let source = Source::Region(device.extent(8, len as u64));
        ends.on_b(3, Op::Write { from: source, to: plain.remote(LEN as u64 + 5), imm: None });
        assert_eq!(ends.expect(0, 1).b[0].status, Status::Ok);
        assert!(plain.bytes(LEN as u64 + 5, len) == device.bytes(8, len), "its own write of {len} bytes");
        ends.on_b(4, Op::Read { into: device.extent(1, len as u64), from: plain.remote(0) });
        assert_eq!(ends.expect(0, 1).b[0].status, Status::Ok);
        assert!(device.bytes(1, len) == plain.bytes(0, len), "its own read of {len} bytes");
    }
    if ends.a.caps().atomics {
        device.file.memory().store(FIRST + 16, 5).unwrap_or_else(|e| panic!("{e}"));
        let old = plain.extent(8, 8);
        ends.on_a(5, Op::FetchAdd { old, at: device.remote(16), add: 3 });
        assert_eq!(ends.expect(1, 0).a[0].status, Status::Ok);
        assert_eq!((plain.memory.load(8), device.file.memory().load(FIRST + 16)), (Ok(5), Ok(8)));
    }
    let mut decoy = vec![1; LEN];
    device.decoy.read(0, &mut decoy).unwrap_or_else(|e| panic!("{e}"));
    assert!(decoy.iter().all(|byte| *byte == 0), "bytes of the address");
    device.registrar.deregister(device.keys.local).unwrap_or_else(|e| panic!("deregister: {e}"));
}

/// Bytes of the file before and behind the memory are not reached.
pub fn exported_bytes_end_where_the_memory_does<S: Setup>(setup: &S) {
    let probe = setup.pair(&default_config());
    if !probe.b.caps().devices.dmabuf {
        return;
    }
    for at in [LEN as u64 - 7, u64::MAX - 7] {
        let mut ends = setup.pair(&default_config());
        let device = ExportedRegion::new(&ends.b, Access::ALL);
        ends.on_a(1, Op::Write { from: Source::Inline(&[7; 8]), to: device.remote(at), imm: None });
        assert_ne!(ends.expect(1, 0).a[0].status, Status::Ok, "a write at {at:#x}");
        let mut all = vec![1; device.file.memory().len()];
        device.file.memory().read(0, &mut all).unwrap_or_else(|e| panic!("{e}"));
        assert!(all.iter().all(|byte| *byte == 0), "nothing is written");
    }
}
