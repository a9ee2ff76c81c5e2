//! The typed layer over a library that is a table of functions: the calls it receives, and that a failure leaves no
//! object open.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]
#![allow(unreachable_pub, missing_docs, reason = "a test is not a library")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::missing_safety_doc,
    reason = "functions that replace a C library rely on the caller's promises alone"
)]

mod auto;
#[path = "../../../mem/tests/gpu/fake.rs"]
#[allow(dead_code, reason = "these tests use a part of the module")]
mod drivers;
mod gpu;
mod life;
mod objects;
mod posting;
mod posts;
mod shared;
mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use trunkline_mem::MemoryRange;
use trunkline_ofi::typed::{
    CompletionFormat, ControlTraffic, EndpointRole, MemoryDuty, MrEnabled, MrRequest, OfiDomain, OfiEndpoint,
    OfiHints, OfiInfo, OfiQueue, OfiRegisterError, PayloadTraffic, QueueWants, query_infos, register_memory,
};

use crate::world::{ALL, Kind, World};
use trunkline_sys::ofi::caps;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: forwards to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise covers these arguments.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise covers these arguments.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how many open descriptors of this process are memory files of that name.
fn open_files(name: &str) -> usize {
    let link = format!("/memfd:{name} (deleted)");
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|to| to.as_os_str() == &*link)
        .count()
}

/// A NIC with the objects of a rail.
struct Nic {
    world: Arc<World>,
    info: OfiInfo,
    domain: Arc<OfiDomain>,
    queue: OfiQueue,
    data: OfiEndpoint<PayloadTraffic>,
    ctrl: OfiEndpoint<ControlTraffic>,
    memory: MemoryRange,
}

const WANTS: QueueWants =
    QueueWants { entries: 64, format: CompletionFormat::Tagged, sources: false, wait: false, slots: 8 };

impl Nic {
    fn new(kind: Kind) -> Self {
        Self::with(kind, &WANTS)
    }

    fn with(kind: Kind, wants: &QueueWants) -> Self {
        let (world, library) = World::begin(kind);
        let info = query_infos(&OfiHints::new(&library, ALL | kind.caps & caps::HMEM).unwrap(), None)
            .unwrap()
            .remove(0);
        let domain = OfiDomain::open(&info).unwrap();
        let queue = OfiQueue::open(&domain, wants).unwrap();
        let data = OfiEndpoint::open(&info, &queue, &[]).unwrap();
        let ctrl = OfiEndpoint::open(&info, &queue, &[]).unwrap();
        Self { world, info, domain, queue, data, ctrl, memory: MemoryRange::heap(4096) }
    }

    fn register<R: EndpointRole>(
        &self,
        endpoint: &OfiEndpoint<R>,
        duty: MemoryDuty,
    ) -> Result<MrEnabled<R>, OfiRegisterError> {
        register_memory(&self.domain, &endpoint.mr_scope(), &MrRequest::for_host(&self.memory, duty))
    }

    fn data(&self, duty: MemoryDuty) -> MrEnabled<PayloadTraffic> {
        self.register(&self.data, duty).unwrap()
    }

    fn ctrl(&self, duty: MemoryDuty) -> MrEnabled<ControlTraffic> {
        self.register(&self.ctrl, duty).unwrap()
    }
}
