//! Fin records that come as messages by themselves, into bounce buffers: where writes bring no immediates. Part of the receiving
//! lane, off the path of networks whose writes do.

use trunkline_fabric::Rail;
use trunkline_proto::comm::Fault;
use trunkline_proto::comm::receiver::Arrival;
use trunkline_proto::pool::ranges;
use trunkline_proto::wire::fin::{self, Fin};

use crate::CommFault;
use crate::comm::recv::RecvLane;
use crate::comm::request::Requests;
use crate::link::rails::Rails;

impl RecvLane {
    /// Takes a fin record that came as a message by itself, and lies in that bounce buffer.
    #[cold]
    pub(crate) fn on_fin_message(
        &mut self,
        rails: &mut Rails<impl Rail>,
        requests: &Requests,
        bounce: u32,
    ) -> Result<(), CommFault> {
        let mut bytes = [0; fin::MESSAGE_BYTES];
        let read = self.bounces.memory(bounce).map(|(memory, at)| memory.read(at, &mut bytes));
        if !self.plan.mutant.is("engine-keeps-bounces-of-fins") {
            self.post_bounce(rails, bounce)?;
        }
        if !matches!(read, Some(Ok(()))) {
            self.dropped += 1;
            return Ok(());
        }
        let mut record = Fin::from_message(&bytes).map_err(Fault::Fin)?;
        if self.part.range.is_some() {
            record.token = ranges::to_member(record.token);
        }
        let arrival = self.receiver.on_fin(record.token, record)?;
        self.arrived += u64::from(matches!(arrival, Arrival::Done(_) | Arrival::Filled));
        self.on_arrival(requests, arrival);
        Ok(())
    }
}
