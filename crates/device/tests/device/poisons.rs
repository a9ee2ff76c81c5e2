//! Error words in memory of a device, where kernels of the own rank wait: they are brought there also when the copy of a counter's value has failed.

use std::sync::{Arc, Mutex, PoisonError};

use trunkline_device::{Carried, Copies, Ended, Executor, Network, Place, Region};
use trunkline_device_queue::{Looks, Slots};
use trunkline_engine::rma::{Local as Heap, Source};
use trunkline_mem::Memory;
use trunkline_proto::rma::atomic::Action;
use trunkline_proto::wire::device_queue::{Count, Entry, Local, Poison, Remote, Status, Work};

use crate::ranks::{BYTES, SLOTS, SLOTS_COUNT, TABLE, planted};

/// A network that is not used.
struct Unused;

impl Network for Unused {
    fn me(&self) -> u32 {
        0
    }

    fn executes(&self) -> bool {
        true
    }

    fn put(&mut self, _: u64, _: Place, _: Source<'_>) -> Carried {
        panic!("all is within one rank")
    }

    fn get(&mut self, _: u64, _: Place, _: Heap) -> Carried {
        panic!("all is within one rank")
    }

    fn atomic(&mut self, _: u64, _: Place, _: Action, _: bool) -> Carried {
        panic!("all is within one rank")
    }

    fn go_on(&mut self, _: &mut Vec<Ended>) -> bool {
        false
    }

    fn spoil(&mut self, _: Place, _: u64) -> bool {
        panic!("all is within one rank")
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

impl Copies for CopyStream {
    fn begin(&self, cookie: u64, from: (&Memory, u64), to: (&Memory, u64), len: u64) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.begun += 1;
        let how = if state.begun == 1 { Err(719) } else { Ok(()) };
        if how.is_ok() {
            to.0.copy_from(to.1, from.0, from.1, len).unwrap();
        }
        state.ended.push((cookie, how));
        true
    }

    fn ended(&self, into: &mut Vec<(u64, Result<(), u32>)>) {
        into.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).ended);
    }
}

/// A kernel of the own rank that waits for a counter in the device's memory hears that its value does not come.
#[test]
fn a_counter_whose_copy_fails_is_poisoned_on_the_device() {
    let mut executor = Executor::new(Unused, 4, planted()).unwrap();
    let (device, beside, host) = (Memory::heap(BYTES), Memory::heap(BYTES), Memory::heap(BYTES));
    let copies = Some(Arc::new(CopyStream::default()) as Arc<dyn Copies>);
    let region = Region { memory: device.clone(), heap: 0, table: TABLE, copies, words: Some(beside) };
    let counters = executor.add_region(region).unwrap();
    let key = executor.add_region(Region::of_host(host, 1, TABLE)).unwrap().bits();
    let slot = Slots::Poisoned { slots: SLOTS, count: SLOTS_COUNT }.slot(0).unwrap();
    let at = Local { addr: slot.value, key: counters.bits() };
    let to = Remote { peer: 0, addr: 64, key };
    let write = Work::Write { from: Local { addr: 0, key }, to, len: 64, imm: None };
    let counted = write.counted(Count { at, value: 1, poisoned: true }).unwrap();
    let queue = executor.make_queue(8, 0).unwrap();
    queue.post(&[Entry::new(counted)], &mut Looks(1)).unwrap();
    for _ in 0..20 {
        executor.pass();
    }
    assert_eq!(device.load(slot.value), Ok(0), "the value has not come");
    let poison = Poison { status: Status::Network, queue: queue.shape().number() };
    assert_eq!(
        device.load(slot.error),
        Ok(poison.to_word()),
        "and whoever waits for it on the device hears so"
    );
}
