//! Error words in device memory, where kernels of the own rank wait. They are copied there even if the copy of a
//! counter's value has failed.

use std::sync::{Arc, Mutex, PoisonError};

use trunkline_device::{
    BeginOutcome, DeviceCopier, EntryRegion, MemberNetwork, NetworkCompletion, QueueExecutor,
};
use trunkline_device_queue::{PollLimit, SlotLayout};
use trunkline_engine::rma::HeapAddress;
use trunkline_engine::rma::{HeapRange as Heap, PutSource};
use trunkline_mem::MemoryRange;
use trunkline_mem::gpu::MemoryLocation;
use trunkline_proto::rma::atomic::AtomicAction;
use trunkline_proto::wire::device_queue::{
    CounterUpdate, EntryStatus, EntryWork, LocalAddress, PeerAddress, PoisonWord, QueueEntry,
};

use crate::ranks::{BYTES, SLOTS, SLOTS_COUNT, TABLE};

/// A network that must not be used.
struct Unused;

impl MemberNetwork for Unused {
    fn own_rank(&self) -> u32 {
        0
    }

    fn can_execute_locally(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: HeapAddress, _: PutSource<'_>) -> BeginOutcome {
        panic!("the test has one rank only")
    }

    fn get(&mut self, _: u64, _: HeapAddress, _: Heap) -> BeginOutcome {
        panic!("the test has one rank only")
    }

    fn post_atomic(&mut self, _: u64, _: HeapAddress, _: AtomicAction, _: bool) -> BeginOutcome {
        panic!("the test has one rank only")
    }

    fn make_progress(&mut self, _: &mut Vec<NetworkCompletion>) -> bool {
        false
    }

    fn send_error_word(&mut self, _: HeapAddress, _: u64) -> bool {
        panic!("the test has one rank only")
    }

    fn is_gone(&mut self, _: u32) -> bool {
        false
    }
}

/// Copies of a device, the first of which fails.
#[derive(Debug, Default)]
struct FirstFails {
    begun: u32,
    ended: Vec<(u64, Result<(), u32>)>,
}

#[derive(Debug, Default)]
struct CopyStream(Mutex<FirstFails>);

impl DeviceCopier for CopyStream {
    fn begin_copy(&self, cookie: u64, from: MemoryLocation<'_>, to: MemoryLocation<'_>, len: u64) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.begun += 1;
        let how = if state.begun == 1 { Err(719) } else { Ok(()) };
        if how.is_ok() {
            to.memory.copy_from(to.offset, from.memory, from.offset, len).unwrap();
        }
        state.ended.push((cookie, how));
        true
    }

    fn take_ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        into.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).ended);
    }
}

/// A kernel of the own rank that waits for a counter in device memory gets an error, because the value will not arrive.
#[test]
fn counter_with_failed_copy_is_poisoned_on_device() {
    let mut executor = QueueExecutor::new(Unused, 4).unwrap();
    let (device, beside, host) =
        (MemoryRange::heap(BYTES), MemoryRange::heap(BYTES), MemoryRange::heap(BYTES));
    let copies = Some(Arc::new(CopyStream::default()) as Arc<dyn DeviceCopier>);
    let region = EntryRegion { memory: device.clone(), heap: 0, table: TABLE, copies, words: Some(beside) };
    let counters = executor.add_region(region).unwrap();
    let key = executor.add_region(EntryRegion::of_host(host, 1, TABLE)).unwrap().to_bits();
    let slot = SlotLayout::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot_at(0).unwrap();
    let at = LocalAddress { addr: slot.value, key: counters.to_bits() };
    let to = PeerAddress { peer: 0, addr: 64, key };
    let write = EntryWork::Write { from: LocalAddress { addr: 0, key }, to, len: 64, imm: None };
    let counted = write.with_counter(CounterUpdate { at, value: 1, poisoned: true }).unwrap();
    let queue = executor.make_queue(8, 0).unwrap();
    queue.post(&[QueueEntry::new(counted)], &mut PollLimit(1)).unwrap();
    for _ in 0..20 {
        executor.run_pass();
    }
    assert_eq!(device.load(slot.value), Ok(0), "the value must not have arrived");
    let poison = PoisonWord { status: EntryStatus::Network, queue: queue.queue_shape().number() };
    assert_eq!(device.load(slot.error), Ok(poison.to_word()), "the waiters on the device must get the error");
}
