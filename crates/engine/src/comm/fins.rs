//! Fin records that arrive as messages of their own, in bounce buffers: where writes carry no immediates. Part of the receiving
//! lane; never used on networks whose writes do.

use trunkline_fabric::Rail;
use trunkline_proto::comm::MessageFault;
use trunkline_proto::comm::receiver::ArrivalOutcome;
use trunkline_proto::pool::ranges;
use trunkline_proto::wire::fin::{self, FinRecord};

use crate::CommFault;
use crate::comm::recv::RecvLane;
use crate::comm::request::RequestTable;
use crate::link::rails::GroupRails;

impl RecvLane {
    /// Processes a fin record that arrived as a message of its own, in this bounce buffer.
    #[cold]
    pub(crate) fn on_fin_message(
        &mut self,
        rails: &mut GroupRails<impl Rail>,
        requests: &RequestTable,
        bounce: u32,
    ) -> Result<(), CommFault> {
        let mut bytes = [0; fin::MESSAGE_BYTES];
        let read = self.bounces.buffer_memory(bounce).map(|(memory, at)| memory.read(at, &mut bytes));
        self.post_bounce(rails, bounce)?;
        if !matches!(read, Some(Ok(()))) {
            self.dropped += 1;
            return Ok(());
        }
        let mut record = FinRecord::from_message(&bytes).map_err(MessageFault::Fin)?;
        if self.part.range.is_some() {
            record.token = ranges::to_member(record.token);
        }
        let arrival = self.receiver.on_fin(record.token, record)?;
        self.arrived += u64::from(matches!(arrival, ArrivalOutcome::Done(_) | ArrivalOutcome::Filled));
        self.on_arrival(requests, arrival);
        Ok(())
    }
}
