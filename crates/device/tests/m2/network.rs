//! M2 over a network: a software NIC sends a kernel's bytes from device memory or pinned memory to another rank, and
//! receives them from it.

use std::sync::Arc;

use trunkline_device::{
    DeviceCopier, DeviceQueues, EntryRegion, ErrorTable, KernelJob, KernelLanes, LanePlan, PeerRegion,
    RmaNetwork,
};
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma;
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::gpu::KernelArg;
use trunkline_proto::wire::device_queue::PostRooms;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::machine::{BYTES, Machine, Place, SLOTS};

type Over = rma::RmaJob<SoftFabric, UnixHost>;

const HALF: u64 = 64 << 10;
const THREADS: u32 = 3;
const ROUNDS: u64 = 150;

fn job(wire: WireMode) -> Over {
    let fabric = SoftFabric::new(SoftConfig { wire, nics: 4, ..SoftConfig::default() }).unwrap();
    let params = EngineParams::default();
    rma::RmaJob::new(fabric, UnixHost::new(|_, _| {}), params, CommNics::from(0)).unwrap()
}

/// Puts of the first rank's kernels arrive in the second rank's window, and gets return its bytes.
pub(crate) fn network(machine: &Machine) {
    for wire in [WireMode::Shm, WireMode::Tcp] {
        for place in [Place::Device, Place::Pinned] {
            over(machine, wire, place);
        }
    }
}

fn over(machine: &Machine, wire: WireMode, place: Place) {
    let jobs = [job(wire), job(wire)];
    let cards = [jobs[0].process_card(), jobs[1].process_card()];
    jobs.iter().zip(0..).for_each(|(job, me)| job.set_members(me, &cards).unwrap());
    let [first, second] = jobs.map(Arc::new);
    // Both ranks have a heap of pinned memory: the network uses the first rank's for its region.
    let device = &machine.device;
    let rooms = PostRooms::new(BYTES as u64, 1, BYTES as u64);
    let bytes = BYTES + rooms.total_bytes() as usize;
    let pinned = [device.allocate_pinned(bytes).unwrap(), device.allocate_pinned(bytes).unwrap()];
    let heaps = [&first, &second]
        .into_iter()
        .zip(&pinned)
        .map(|(job, of)| job.add_heap(of.memory().clone()).unwrap());
    assert_eq!(heaps.collect::<Vec<_>>(), [0, 0]);
    let queues =
        DeviceQueues::for_device(RmaNetwork::new(Arc::clone(&first)).unwrap(), 8, device.clone()).unwrap();
    let served =
        DeviceQueues::for_device(RmaNetwork::new(Arc::clone(&second)).unwrap(), 8, device.clone()).unwrap();
    let table = ErrorTable::default();
    let mover = device.copy_queue().unwrap();
    let (memory, data) = match place {
        Place::Device => {
            let memory = device.allocate(BYTES).unwrap();
            let at = memory.addr() as u64;
            (memory, at)
        }
        Place::Pinned => (pinned[0].memory().clone(), pinned[0].device_address()),
    };
    let is_device = place == Place::Device;
    let copies = is_device.then(|| Arc::new(mover.clone_for_user()) as Arc<dyn DeviceCopier>);
    let words = is_device.then(|| pinned[0].memory().clone());
    let key =
        queues.add_region(EntryRegion { memory: memory.clone(), heap: 0, table, copies, words }).unwrap();
    queues.with_executor(|executor| executor.add_rooms(key, rooms)).unwrap();
    let window = pinned[1].memory();
    let far = served.add_region(EntryRegion::of_host(window.clone(), 0, table)).unwrap();
    queues.add_remote_region(1, PeerRegion::of_host(far, BYTES as u64, table, None)).unwrap();
    let plan = LanePlan { lanes: 1, depth: 64, first: 0, blocks: 1 };
    let lanes = KernelLanes::new(device, &queues, plan).unwrap();
    let [results, bases] = [8 * 64, 8 * 64].map(|bytes| device.allocate(bytes).unwrap());
    let given = KernelJob {
        slots: data + SLOTS,
        bases: bases.addr() as u64,
        data,
        results: results.addr() as u64,
        keys: [key.to_bits(), far.to_bits()],
        peer: 1,
        slots_at: SLOTS,
        rounds: ROUNDS,
        batch: 4,
        bytes: HALF,
        ticks: machine.ticks,
        number: 3,
    };
    let run = |name: &str, job: KernelJob| {
        let mut args = vec![KernelArg::Words(job.to_words(&lanes))];
        args.extend(
            lanes.held_memory().into_iter().chain([memory.clone(), results.clone()]).map(KernelArg::Memory),
        );
        let running = machine.program.launch_kernel(name, 1, THREADS, args).unwrap();
        assert!(running.wait(std::time::Duration::from_secs(120)).unwrap());
        let mut bytes = [0; 8 * THREADS as usize];
        device.copy_from_device(&results, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8 * THREADS as usize], "{name}, {wire:?}, {place:?}");
    };
    run("flood", given);
    assert_eq!(window.load(SLOTS), Ok(u64::from(THREADS) * ROUNDS), "{wire:?}, {place:?}: signals");
    for thread in 0..u64::from(THREADS) {
        assert_eq!(
            window.load(HALF + thread * 8),
            Ok(ROUNDS),
            "{wire:?}, {place:?}: the last write must have arrived"
        );
    }
    for word in 0..HALF / 8 {
        window.store(HALF + word * 8, word * 3).unwrap();
    }
    run("fetch", given);
}
