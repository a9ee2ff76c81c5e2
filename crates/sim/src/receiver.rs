//! The receiving end: posts grouped receives, flushes, checks every byte, and reuses the memory.

use trunkline_engine::{MrId, RecvBuf};

use crate::checkers::bytes::{GUARD, GuardedBuffer};
use crate::checkers::order::OrderChecker;
use crate::checkers::{PropertyResult, PropertyViolation};
use crate::comm_end::{EndPhase, EndRole, ItemBuffer, PendingRequest, SimCommEnd, StepContext, StepResult};
use crate::scenario::CommPlan;

/// The grouped receives of a comm.
pub(crate) struct ReceiveSchedule {
    /// Groups posted so far.
    next: usize,
    /// The buffers of the next group, allocated but not posted.
    prepared: Vec<PostedBuffer>,
    posted: Vec<Vec<PostedBuffer>>,
}

/// One buffer of a posted receive.
#[derive(Clone)]
struct PostedBuffer {
    place: ItemBuffer,
    room: GuardedBuffer,
    tag: u32,
    /// The number of the receive among those of its tag.
    number: usize,
}

impl ReceiveSchedule {
    pub(crate) fn new() -> Self {
        Self { next: 0, prepared: Vec::new(), posted: Vec::new() }
    }

    pub(crate) fn is_done(&self, plan: &CommPlan) -> bool {
        self.next == plan.groups.len()
    }

    /// Whether every message of a posted receive was sent.
    pub(crate) fn is_sent(&self, item: usize, order: &OrderChecker) -> bool {
        self.posted[item].iter().all(|buffer| order.is_sent(buffer.tag, buffer.number))
    }

    /// Whether every message of the next receive to be posted was sent.
    fn next_is_sent(&self, order: &OrderChecker) -> bool {
        let ahead = |i: usize| self.prepared[..i].iter().filter(|b| b.tag == self.prepared[i].tag).count();
        let number = |i: usize| order.next(self.prepared[i].tag) + ahead(i);
        (0..self.prepared.len()).all(|i| order.is_sent(self.prepared[i].tag, number(i)))
    }

    /// Returns the buffers of a posted receive.
    pub(crate) fn buffers_of(&self, item: usize) -> Vec<(ItemBuffer, u64)> {
        let buffers = self.posted[item].iter();
        buffers.map(|buffer| (buffer.place.clone(), buffer.room.len + GUARD)).collect()
    }

    /// Drops the buffers of a receive, except those in these regions.
    pub(crate) fn drop_buffers(&mut self, item: usize, regions: &[MrId]) {
        self.posted[item].retain(|buffer| regions.contains(&buffer.place.mr));
    }

    /// Checks that no failed message wrote past its room.
    pub(crate) fn check_guards(&self, name: &str) -> PropertyResult {
        let rooms = self.posted.iter().enumerate().flat_map(|(i, list)| list.iter().map(move |b| (i, b)));
        for (item, buffer) in rooms {
            buffer.room.check_guard(&format!("{name} receive {item}"))?;
        }
        Ok(())
    }

    /// Returns the buffers in use, with their lengths.
    pub(crate) fn used_buffers(&self) -> Vec<(ItemBuffer, u64)> {
        let used = self.posted.iter().flatten().chain(&self.prepared);
        used.map(|buffer| (buffer.place.clone(), buffer.room.len + GUARD)).collect()
    }
}

impl SimCommEnd {
    fn receive_schedule(&mut self) -> Option<&mut ReceiveSchedule> {
        match &mut self.role {
            EndRole::Recv(receiving) => Some(receiving),
            EndRole::Send(_) => None,
        }
    }

    /// Allocates the buffers of the next group; returns `false` if memory cannot be registered at the moment.
    fn prepare_group(&mut self, around: &mut StepContext<'_>) -> StepResult {
        loop {
            let Some(receiving) = self.receive_schedule() else { return Ok(false) };
            let Some(group) = around.plan.groups.get(receiving.next) else { return Ok(false) };
            let Some(message) = group.get(receiving.prepared.len()) else { return Ok(true) };
            let Some(place) = self.allocate_buffer(around, message.room)? else { return Ok(false) };
            let memory = place.memory.clone();
            let offset = place.offset;
            let room =
                GuardedBuffer { memory, offset, len: message.room, background: around.dice.draw_u64() };
            room.fill_background();
            if let Some(receiving) = self.receive_schedule() {
                receiving.prepared.push(PostedBuffer { place, room, tag: message.tag, number: 0 });
            }
        }
    }

    /// Tries to post the next group.
    pub(crate) fn post_receive(&mut self, around: &mut StepContext<'_>) -> StepResult {
        if !self.prepare_group(around)? {
            return Ok(false);
        }
        let (Some(id), Some(receiving)) = (self.id, self.receive_schedule()) else { return Ok(false) };
        let item = receiving.next;
        let buffers: Vec<RecvBuf> = receiving.prepared.iter().map(|b| b.to_recv_buf(b.room.len)).collect();
        match around.engine.irecv(id, &buffers) {
            Ok(None) => self.not_yet(around, around.world.now()),
            Err(error) => {
                // Messages that have arrived can still be received, unless another receive failed.
                let next = receiving.next_is_sent(around.order);
                let all = next && self.flights.iter().all(|flight| self.is_sent(around, flight));
                self.check_deserved_failure(around, item, all, &error)?;
                self.fail_comm(around, &error)
            }
            Ok(Some(request)) => {
                around.once.record_created(&self.display_name(), request.to_bits())?;
                let name = self.display_name();
                let Some(receiving) = self.receive_schedule() else { return Ok(false) };
                let mut posted = std::mem::take(&mut receiving.prepared);
                for buffer in &mut posted {
                    buffer.number = around.order.record_receive(buffer.tag);
                    around.world.note_trace(format_args!(
                        "{name} receives {item}: {} bytes, tag {:#x}",
                        buffer.room.len, buffer.tag
                    ));
                }
                receiving.posted.push(posted);
                receiving.next += 1;
                self.flights.push(PendingRequest { request, item, flush: None });
                Ok(true)
            }
        }
    }

    /// Completes a receive or its flush.
    pub(crate) fn finish_receive(
        &mut self,
        around: &mut StepContext<'_>,
        flight: &PendingRequest,
        sizes: [u64; 8],
    ) -> Result<(), PropertyViolation> {
        if let Some(sizes) = flight.flush {
            return self.check_group(around, flight.item, &sizes);
        }
        around.world.note_trace(format_args!("{} has received {}", self.display_name(), flight.item));
        let flush = around.needs_flush || around.plan.flush_anyway;
        let (Some(id), Some(receiving)) = (self.id, self.receive_schedule()) else { return Ok(()) };
        let buffers: Vec<RecvBuf> =
            receiving.posted[flight.item].iter().zip(sizes).map(|(b, size)| b.to_recv_buf(size)).collect();
        let something = buffers.iter().any(|buffer| buffer.len > 0);
        if !flush || !something {
            return self.check_group(around, flight.item, &sizes);
        }
        if self.phase == EndPhase::Failing {
            // A failed comm flushes nothing, so the bytes may be stale.
            return Ok(());
        }
        match around.engine.iflush(id, &buffers) {
            Ok(None) => self.check_group(around, flight.item, &sizes),
            Ok(Some(request)) => {
                around.once.record_created(&self.display_name(), request.to_bits())?;
                self.flights.push(PendingRequest { request, item: flight.item, flush: Some(sizes) });
                Ok(())
            }
            Err(error) => self.fail_comm(around, &error).map(|_| ()),
        }
    }

    /// Checks every byte, once the bytes may be read.
    fn check_group(
        &mut self,
        around: &mut StepContext<'_>,
        item: usize,
        sizes: &[u64; 8],
    ) -> Result<(), PropertyViolation> {
        self.completed += 1;
        let name = self.display_name();
        let Some(receiving) = self.receive_schedule() else { return Ok(()) };
        let buffers = std::mem::take(&mut receiving.posted[item]);
        for (i, (buffer, &size)) in buffers.iter().zip(sizes).enumerate() {
            let what = format!("{name} receive {item} buffer {i}");
            let expected = around.order.expected_message(&what, buffer.tag, buffer.number)?;
            around.order.check_received(&what, &buffer.room, expected, size)?;
            buffer.room.check_message(&what, expected.pattern, size)?;
        }
        around.world.note_trace(format_args!("{name} has seen {item}"));
        for buffer in buffers {
            let what = format!("{name} buffer of receive {item}");
            self.reclaim_buffer(around, buffer.place, buffer.room.len + GUARD, &what)?;
        }
        Ok(())
    }
}

impl PostedBuffer {
    fn to_recv_buf(&self, len: u64) -> RecvBuf {
        RecvBuf { mr: self.place.mr, offset: self.place.offset, len, tag: self.tag }
    }
}
