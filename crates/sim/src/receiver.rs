//! The receiving end: posts grouped receives, flushes, looks at every byte, and uses the memory for something else.

use trunkline_engine::{MrId, RecvBuf};

use crate::checkers::bytes::{GUARD, Room};
use crate::checkers::order::Order;
use crate::checkers::{Check, Violation};
use crate::scenario::CommPlan;
use crate::side::{Around, Flight, Phase, Place, Role, Side, Step};

/// The grouped receives of a comm.
pub(crate) struct Receiving {
    /// Groups posted so far.
    next: usize,
    /// The buffers of the next group, made but not posted.
    prepared: Vec<Buffer>,
    posted: Vec<Vec<Buffer>>,
}

/// One buffer of a posted receive.
#[derive(Clone)]
struct Buffer {
    place: Place,
    room: Room,
    tag: u32,
    /// Which receive of its tag it is.
    number: usize,
}

impl Receiving {
    pub(crate) fn new() -> Self {
        Self { next: 0, prepared: Vec::new(), posted: Vec::new() }
    }

    pub(crate) fn is_done(&self, plan: &CommPlan) -> bool {
        self.next == plan.groups.len()
    }

    /// Whether every message of a posted receive was sent.
    pub(crate) fn is_sent(&self, item: usize, order: &Order) -> bool {
        self.posted[item].iter().all(|buffer| order.is_sent(buffer.tag, buffer.number))
    }

    /// Whether every message of the receive that is to be posted next was sent.
    fn next_is_sent(&self, order: &Order) -> bool {
        let ahead = |i: usize| self.prepared[..i].iter().filter(|b| b.tag == self.prepared[i].tag).count();
        let number = |i: usize| order.next(self.prepared[i].tag) + ahead(i);
        (0..self.prepared.len()).all(|i| order.is_sent(self.prepared[i].tag, number(i)))
    }

    /// The buffers of a posted receive.
    pub(crate) fn places_of(&self, item: usize) -> Vec<(Place, u64)> {
        let buffers = self.posted[item].iter();
        buffers.map(|buffer| (buffer.place.clone(), buffer.room.len + GUARD)).collect()
    }

    /// A receive has no buffers any more but those in these regions.
    pub(crate) fn forget(&mut self, item: usize, regions: &[MrId]) {
        self.posted[item].retain(|buffer| regions.contains(&buffer.place.mr));
    }

    /// No message that failed wrote past its room.
    pub(crate) fn check_guards(&self, name: &str) -> Check {
        let rooms = self.posted.iter().enumerate().flat_map(|(i, list)| list.iter().map(move |b| (i, b)));
        for (item, buffer) in rooms {
            buffer.room.check_guard(&format!("{name} receive {item}"))?;
        }
        Ok(())
    }

    /// Buffers in use, with their lengths.
    pub(crate) fn places(&self) -> Vec<(Place, u64)> {
        let used = self.posted.iter().flatten().chain(&self.prepared);
        used.map(|buffer| (buffer.place.clone(), buffer.room.len + GUARD)).collect()
    }
}

impl Side {
    fn receiving(&mut self) -> Option<&mut Receiving> {
        match &mut self.role {
            Role::Recv(receiving) => Some(receiving),
            Role::Send(_) => None,
        }
    }

    /// Makes the buffers of the next group; false if memory cannot be registered right now.
    fn prepare(&mut self, around: &mut Around<'_>) -> Step {
        loop {
            let Some(receiving) = self.receiving() else { return Ok(false) };
            let Some(group) = around.plan.groups.get(receiving.next) else { return Ok(false) };
            let Some(message) = group.get(receiving.prepared.len()) else { return Ok(true) };
            let Some(place) = self.place(around, message.room)? else { return Ok(false) };
            let memory = place.memory.clone();
            let offset = place.offset;
            let room = Room { memory, offset, len: message.room, background: around.dice.draw() };
            room.prepare();
            if let Some(receiving) = self.receiving() {
                receiving.prepared.push(Buffer { place, room, tag: message.tag, number: 0 });
            }
        }
    }

    /// Tries to post the next group.
    pub(crate) fn receive(&mut self, around: &mut Around<'_>) -> Step {
        if !self.prepare(around)? {
            return Ok(false);
        }
        let (Some(id), Some(receiving)) = (self.id, self.receiving()) else { return Ok(false) };
        let item = receiving.next;
        let buffers: Vec<RecvBuf> = receiving.prepared.iter().map(|b| b.request(b.room.len)).collect();
        match around.engine.irecv(id, &buffers) {
            Ok(None) => self.not_yet(around, around.world.now()),
            Err(error) => {
                // What had arrived can still be received, unless another receive could not be.
                let next = receiving.next_is_sent(around.order);
                let all = next && self.flights.iter().all(|flight| self.is_sent(around, flight));
                self.deserved(around, item, all, &error)?;
                self.failed(around, &error)
            }
            Ok(Some(request)) => {
                around.once.made(&self.name(), request.to_bits())?;
                let name = self.name();
                let Some(receiving) = self.receiving() else { return Ok(false) };
                let mut posted = std::mem::take(&mut receiving.prepared);
                for buffer in &mut posted {
                    buffer.number = around.order.posted(buffer.tag);
                    around.world.note(format_args!(
                        "{name} receives {item}: {} bytes, tag {:#x}",
                        buffer.room.len, buffer.tag
                    ));
                }
                receiving.posted.push(posted);
                receiving.next += 1;
                self.flights.push(Flight { request, item, flush: None });
                Ok(true)
            }
        }
    }

    /// A receive or its flush is done.
    pub(crate) fn received(
        &mut self,
        around: &mut Around<'_>,
        flight: &Flight,
        sizes: [u64; 8],
    ) -> Result<(), Violation> {
        if let Some(sizes) = flight.flush {
            return self.verify(around, flight.item, &sizes);
        }
        around.world.note(format_args!("{} has received {}", self.name(), flight.item));
        let flush = around.needs_flush || around.plan.flush_anyway;
        let (Some(id), Some(receiving)) = (self.id, self.receiving()) else { return Ok(()) };
        let buffers: Vec<RecvBuf> =
            receiving.posted[flight.item].iter().zip(sizes).map(|(b, size)| b.request(size)).collect();
        let something = buffers.iter().any(|buffer| buffer.len > 0);
        if !flush || !something {
            return self.verify(around, flight.item, &sizes);
        }
        if self.phase == Phase::Failing {
            // A failed comm flushes nothing, so nothing can be said about the bytes.
            return Ok(());
        }
        match around.engine.iflush(id, &buffers) {
            Ok(None) => self.verify(around, flight.item, &sizes),
            Ok(Some(request)) => {
                around.once.made(&self.name(), request.to_bits())?;
                self.flights.push(Flight { request, item: flight.item, flush: Some(sizes) });
                Ok(())
            }
            Err(error) => self.failed(around, &error).map(|_| ()),
        }
    }

    /// The bytes may be read: every one of them is right.
    fn verify(&mut self, around: &mut Around<'_>, item: usize, sizes: &[u64; 8]) -> Result<(), Violation> {
        self.completed += 1;
        let name = self.name();
        let Some(receiving) = self.receiving() else { return Ok(()) };
        let buffers = std::mem::take(&mut receiving.posted[item]);
        for (i, (buffer, &size)) in buffers.iter().zip(sizes).enumerate() {
            let what = format!("{name} receive {item} buffer {i}");
            let expected = around.order.expected(&what, buffer.tag, buffer.number)?;
            around.order.check(&what, &buffer.room, expected, size)?;
            buffer.room.check(&what, expected.pattern, size)?;
        }
        around.world.note(format_args!("{name} has seen {item}"));
        for buffer in buffers {
            let what = format!("{name} buffer of receive {item}");
            self.bury(around, buffer.place, buffer.room.len + GUARD, &what)?;
        }
        Ok(())
    }
}

impl Buffer {
    fn request(&self, len: u64) -> RecvBuf {
        RecvBuf { mr: self.place.mr, offset: self.place.offset, len, tag: self.tag }
    }
}
