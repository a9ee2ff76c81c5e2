//! The pair's messages as puts and signals between members of a one-sided job.

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, HeapRange, PutSource, RmaError, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::rma::signal::{SignalUpdate, UpdateOp};
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};

use crate::canaries::SharedNics;
use crate::channel::TestChannel;
use crate::pair::PairTraffic;

/// Bytes of the heap that each member has.
pub(crate) const HEAP: usize = 1 << 20;
/// Offset of the heap's bytes that attacks may overwrite; the pair does not use them.
pub(crate) const SCRATCH: u64 = 512 << 10;
/// A word of a heap that no process may change.
pub(crate) const UNTOUCHED: u64 = 8;
/// Offset of the number of the message that has arrived.
const FLAG: u64 = 0;
/// Offset where messages arrive, and offset from which they are sent.
const ARRIVES: u64 = 64 << 10;
const LEAVES: u64 = 256 << 10;

/// The state of the message in flight.
#[derive(Clone, Copy, Debug)]
enum SendStage {
    Idle,
    /// The number of bytes that have been put.
    Puts(u64),
    Signals,
    Settles,
}

pub(crate) struct OneSidedPair {
    job: RmaJob<SharedNics, UnixHost>,
    context: ContextId,
    heap: MemoryRange,
    other: u32,
    /// Whether it dials the attacker, as a member that puts data there.
    calls_attacker: bool,
    stage: SendStage,
}

fn fault(error: RmaError) -> String {
    error.to_string()
}

impl OneSidedPair {
    /// Connects to the other members.
    pub(crate) fn meet(
        me: u32,
        fabric: SharedNics,
        host: UnixHost,
        params: EngineParams,
        channel: &mut TestChannel,
    ) -> Self {
        let job = RmaJob::new(fabric, host, params, CommNics::from(0)).unwrap();
        channel.send(&job.process_card());
        let cards = channel.receive_cards();
        job.set_members(me, &cards).unwrap();
        let heap = MemoryRange::heap(HEAP);
        job.add_heap(heap.clone()).unwrap();
        let context = job.create_context().unwrap();
        // An idle context: events for it are queued and not read.
        job.create_context().unwrap();
        Self { job, context, heap, other: 1 - me, calls_attacker: false, stage: SendStage::Idle }
    }
}

impl PairTraffic for OneSidedPair {
    fn send_step(&mut self, number: u64, bytes: &[u8]) -> Result<bool, String> {
        let len = bytes.len() as u64;
        match self.stage {
            SendStage::Idle => {
                self.heap.write(LEAVES, bytes).unwrap();
                self.stage = SendStage::Puts(0);
            }
            SendStage::Puts(done) if done < len => {
                let from = PutSource::Heap(HeapRange { heap: 0, offset: LEAVES + done, len: len - done });
                let put = self.job.put(self.context, self.other, 0, ARRIVES + done, from).map_err(fault)?;
                self.stage = SendStage::Puts(done + put.unwrap_or(0));
                return Ok(false);
            }
            SendStage::Puts(_) => self.stage = SendStage::Signals,
            SendStage::Signals => {
                let word = SymmetricWord::new(0, FLAG, WordWidth::Eight).unwrap();
                let update = SignalUpdate::new(UpdateOp::Set, word, number).unwrap();
                if self.job.send_signal(self.context, self.other, update).map_err(fault)? {
                    self.stage = SendStage::Settles;
                }
            }
            SendStage::Settles => {
                if self.job.quiet(self.context).map_err(fault)? {
                    self.stage = SendStage::Idle;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn receive_step(&mut self, number: u64, len: usize) -> Result<Option<Vec<u8>>, String> {
        if self.heap.load(FLAG).unwrap() != number {
            return Ok(None);
        }
        let mut got = vec![0; len];
        self.heap.read(ARRIVES, &mut got).unwrap();
        Ok(Some(got))
    }

    fn progress(&mut self) -> Result<(), String> {
        self.job.progress(self.context).map(drop).map_err(fault)
    }

    fn serve_others(&mut self) -> Result<(), String> {
        if self.calls_attacker {
            // A refusal by the attacker is no error.
            let _ = self.job.connect_member(self.context, 2);
        }
        Ok(())
    }

    fn begin_calls(&mut self) {
        self.calls_attacker = true;
    }

    fn is_untouched(&self) -> bool {
        self.heap.load(UNTOUCHED).unwrap() == 0
    }
}
