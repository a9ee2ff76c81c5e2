//! Two connected endpoints, and functions for tests of them.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::MemfdDevice;
use trunkline_node::ipc::{MessageBuffer, NodeConfig as Sharing};
use trunkline_node::tagged::{
    MessageStatus, TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedFailure, TaggedPeerId, TaggedRequestId,
    TaggedSendStart,
};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::MethodChoice;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::InboxSizes;

use crate::kind::{Call, Kind};

pub(crate) const ALL: u64 = u64::MAX;

/// One of the two endpoints.
pub(crate) struct One {
    pub(crate) endpoint: TaggedEndpoint<Kind, UnixStream>,
    pub(crate) other: TaggedPeerId,
    pub(crate) events: Vec<TaggedEvent>,
}

/// Both endpoints, and their clock.
pub(crate) struct Two {
    pub(crate) a: One,
    pub(crate) b: One,
    pub(crate) now: Instant,
    /// Whether the clock stands still.
    pub(crate) stands_still: bool,
}

impl Two {
    pub(crate) fn new() -> Self {
        Self::with(InboxSizes::new(1024, 512, 1 << 18).unwrap(), ExportAmount { entries: 16, bytes: 1 << 40 })
    }

    pub(crate) fn with(inbox: InboxSizes, budget: ExportAmount) -> Self {
        Self::with_kinds(inbox, budget, |_, _| ())
    }

    /// As [`Two::with`]; `prepare` is called for the kinds of both endpoints, 1 and 2, before they meet.
    pub(crate) fn with_kinds(inbox: InboxSizes, budget: ExportAmount, prepare: impl Fn(u8, &Kind)) -> Self {
        let host = UnixHost::new(|_, _| {});
        let device = MemfdDevice::create(3, 64 << 20).unwrap();
        let now = Instant(0);
        let endpoint = |number: u8| {
            let memory = Kind::new(MemfdDevice::join(3, &device.descriptor().unwrap()).unwrap());
            prepare(number, &memory);
            let sharing = Sharing::new([number; 16], budget);
            TaggedEndpoint::new(memory, TaggedConfig { sharing, inbox, copy: MethodChoice::Learned }, now)
        };
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let mut listener = host.oob().listen().unwrap();
        let to_a = b.join_peer(host.oob().connect(&listener.listen_address()).unwrap()).unwrap();
        let to_b = loop {
            if let Some(stream) = listener.accept().unwrap() {
                break a.join_peer(stream).unwrap();
            }
        };
        let one = |endpoint, other| One { endpoint, other, events: Vec::new() };
        let mut two = Self { a: one(a, to_b), b: one(b, to_a), now, stands_still: false };
        two.until("both endpoints report their peer", |two| {
            let met = |one: &One| matches!(one.events[..], [TaggedEvent::Met { .. }]);
            met(&two.a) && met(&two.b)
        });
        two
    }

    /// Makes progress at both endpoints.
    pub(crate) fn step(&mut self) {
        if !self.stands_still {
            self.now = self.now + Duration::from_micros(100);
        }
        for one in [&mut self.a, &mut self.b] {
            one.endpoint.progress(self.now);
            while let Some(event) = one.endpoint.next_event() {
                one.events.push(event);
            }
        }
    }

    pub(crate) fn until(&mut self, what: &str, is: impl Fn(&Self) -> bool) {
        for _ in 0..1_000_000 {
            if is(self) {
                return;
            }
            self.step();
        }
        panic!("not reached: {what}");
    }

    pub(crate) fn rest(&mut self) {
        (0..200).for_each(|_| self.step());
    }

    /// Waits until a send and a receive have ended, and returns both results.
    pub(crate) fn both(
        &mut self,
        sent: TaggedSendStart,
        received: TaggedRequestId,
    ) -> [Result<MessageStatus, TaggedFailure>; 2] {
        [self.sent(sent), self.received(received)]
    }

    pub(crate) fn sent(&mut self, begun: TaggedSendStart) -> Result<MessageStatus, TaggedFailure> {
        match begun {
            TaggedSendStart::Done => Ok(MessageStatus { peer: self.a.other, tag: 0, len: 0 }),
            TaggedSendStart::Busy => panic!("the message was not sent"),
            TaggedSendStart::Request(request) => loop_until(self, |two| two.a.endpoint.test(request)),
        }
    }

    pub(crate) fn received(&mut self, request: TaggedRequestId) -> Result<MessageStatus, TaggedFailure> {
        loop_until(self, |two| two.b.endpoint.test(request))
    }

    /// Sends a message, and calls again while the endpoint is busy.
    pub(crate) fn send(&mut self, tag: u64, buffer: &MessageBuffer) -> TaggedSendStart {
        let to = self.a.other;
        loop_until(self, |two| match two.a.endpoint.send(to, tag, buffer).unwrap() {
            TaggedSendStart::Busy => None,
            begun => Some(begun),
        })
    }

    pub(crate) fn post(&mut self, tag: u64, into: &MessageBuffer) -> TaggedRequestId {
        let from = self.b.other;
        self.b.endpoint.receive(Some(from), tag, ALL, into.clone()).unwrap()
    }
}

fn loop_until<T>(two: &mut Two, mut ask: impl FnMut(&mut Two) -> Option<T>) -> T {
    for _ in 0..1_000_000 {
        if let Some(answer) = ask(two) {
            return answer;
        }
        two.step();
    }
    panic!("the request did not end: {:?} {:?}", two.a.endpoint.counts(), two.b.endpoint.counts());
}

/// The memory of a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Where {
    Own,
    Other,
}

pub(crate) const WHERE: [Where; 2] = [Where::Own, Where::Other];

impl One {
    pub(crate) fn kind(&self) -> &Kind {
        self.endpoint.node().memory()
    }

    pub(crate) fn fail(&self, call: Call, times: u64) {
        self.kind().fail(call as u64, times);
    }

    /// Returns a buffer of that length, which never begins where its allocation begins.
    pub(crate) fn buffer(&self, place: Where, len: usize) -> MessageBuffer {
        match place {
            Where::Own => {
                let addr = self.kind().device.alloc(len + 128).unwrap();
                MessageBuffer::from_own(addr + 64, len as u64)
            }
            Where::Other => MessageBuffer::from_memory(MemoryRange::heap(len + 64), 32, len as u64),
        }
    }

    pub(crate) fn free(&self, buffer: &MessageBuffer) {
        if let Some(addr) = buffer.own_address() {
            self.kind().device.free(addr - 64).unwrap();
        }
    }

    pub(crate) fn fill(&self, buffer: &MessageBuffer, seed: u64) {
        let bytes = pattern(buffer.len() as usize, seed);
        buffer.write_bytes(&self.kind().device, 0, &bytes).unwrap();
    }

    pub(crate) fn bytes(&self, buffer: &MessageBuffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        buffer.read_bytes(&self.kind().device, 0, &mut bytes).unwrap();
        bytes
    }
}

/// Returns bytes that differ at every position between seeds.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |at: u64| {
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
    };
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}
