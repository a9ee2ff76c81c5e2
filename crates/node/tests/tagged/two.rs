//! Two endpoints that know each other, and what a test does with them.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, Oob as _, OobListener as _};
use trunkline_mem::Memory;
use trunkline_mem::ipc::Device;
use trunkline_node::ipc::{Buffer, Config as Sharing};
use trunkline_node::tagged::{Begun, Config, Done, Endpoint, Event, Failed, PeerId, RequestId};
use trunkline_proto::ipc::exporter::Amount;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::tagged::Choice;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::Inbox;

use crate::kind::{Call, Kind};

pub(crate) const ALL: u64 = u64::MAX;

/// The bug that `cargo xtask mutants` asks for, if any.
pub(crate) fn planted() -> Mutant {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        return Mutant::named(String::leak(name));
    }
    Mutant::NONE
}

/// One of the two.
pub(crate) struct One {
    pub(crate) endpoint: Endpoint<Kind, UnixStream>,
    pub(crate) other: PeerId,
    pub(crate) events: Vec<Event>,
}

/// Both, and their clock.
pub(crate) struct Two {
    pub(crate) a: One,
    pub(crate) b: One,
    pub(crate) now: Instant,
    /// Whether its clock does not go on.
    pub(crate) stands_still: bool,
}

impl Two {
    pub(crate) fn new() -> Self {
        Self::with(Inbox::new(1024, 512, 1 << 18).unwrap(), Amount { entries: 16, bytes: 1 << 40 })
    }

    pub(crate) fn with(inbox: Inbox, budget: Amount) -> Self {
        Self::with_kinds(inbox, budget, |_, _| ())
    }

    /// The same, with what a test does to the kinds of both, 1 and 2, before they meet.
    pub(crate) fn with_kinds(inbox: Inbox, budget: Amount, prepare: impl Fn(u8, &Kind)) -> Self {
        let host = UnixHost::new(|_, _| {});
        let device = Device::create(3, 64 << 20).unwrap();
        let now = Instant(0);
        let endpoint = |number: u8| {
            let memory = Kind::new(Device::join(3, &device.descriptor().unwrap()).unwrap());
            prepare(number, &memory);
            let sharing = Sharing { mutant: planted(), ..Sharing::new([number; 16], budget) };
            Endpoint::new(memory, Config { sharing, inbox, copy: Choice::Learned }, now)
        };
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let mut listener = host.oob().listen().unwrap();
        let to_a = b.join(host.oob().connect(&listener.address()).unwrap()).unwrap();
        let to_b = loop {
            if let Some(stream) = listener.accept().unwrap() {
                break a.join(stream).unwrap();
            }
        };
        let one = |endpoint, other| One { endpoint, other, events: Vec::new() };
        let mut two = Self { a: one(a, to_b), b: one(b, to_a), now, stands_still: false };
        two.until("the two meet", |two| {
            let met = |one: &One| matches!(one.events[..], [Event::Met { .. }]);
            met(&two.a) && met(&two.b)
        });
        two
    }

    /// Both go on.
    pub(crate) fn step(&mut self) {
        if !self.stands_still {
            self.now = self.now + Duration::micros(100);
        }
        for one in [&mut self.a, &mut self.b] {
            one.endpoint.progress(self.now);
            while let Some(event) = one.endpoint.event() {
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
        panic!("{what}: that did not come");
    }

    pub(crate) fn rest(&mut self) {
        (0..200).for_each(|_| self.step());
    }

    /// How both ended.
    pub(crate) fn both(&mut self, sent: Begun, received: RequestId) -> [Result<Done, Failed>; 2] {
        [self.sent(sent), self.received(received)]
    }

    pub(crate) fn sent(&mut self, begun: Begun) -> Result<Done, Failed> {
        match begun {
            Begun::Done => Ok(Done { peer: self.a.other, tag: 0, len: 0 }),
            Begun::Busy => panic!("nothing was sent"),
            Begun::Request(request) => loop_until(self, |two| two.a.endpoint.test(request)),
        }
    }

    pub(crate) fn received(&mut self, request: RequestId) -> Result<Done, Failed> {
        loop_until(self, |two| two.b.endpoint.test(request))
    }

    /// Sends, however long that takes.
    pub(crate) fn send(&mut self, tag: u64, buffer: &Buffer) -> Begun {
        let to = self.a.other;
        loop_until(self, |two| match two.a.endpoint.send(to, tag, buffer).unwrap() {
            Begun::Busy => None,
            begun => Some(begun),
        })
    }

    pub(crate) fn post(&mut self, tag: u64, into: &Buffer) -> RequestId {
        let from = self.b.other;
        self.b.endpoint.receive(Some(from), (tag, ALL), into.clone()).unwrap()
    }
}

fn loop_until<T>(two: &mut Two, mut ask: impl FnMut(&mut Two) -> Option<T>) -> T {
    for _ in 0..1_000_000 {
        if let Some(answer) = ask(two) {
            return answer;
        }
        two.step();
    }
    panic!("no end: {:?} {:?}", two.a.endpoint.counts(), two.b.endpoint.counts());
}

/// Where a buffer is.
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

    /// A buffer of so many bytes, none of them where an allocation begins.
    pub(crate) fn buffer(&self, place: Where, len: usize) -> Buffer {
        match place {
            Where::Own => {
                let addr = self.kind().device.alloc(len + 128).unwrap();
                Buffer::own(addr + 64, len as u64)
            }
            Where::Other => Buffer::of(Memory::heap(len + 64), 32, len as u64),
        }
    }

    pub(crate) fn free(&self, buffer: &Buffer) {
        if let Some(addr) = buffer.address() {
            self.kind().device.free(addr - 64).unwrap();
        }
    }

    pub(crate) fn fill(&self, buffer: &Buffer, seed: u64) {
        let bytes = pattern(buffer.len() as usize, seed);
        buffer.write(&self.kind().device, 0, &bytes).unwrap();
    }

    pub(crate) fn bytes(&self, buffer: &Buffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.len() as usize];
        buffer.read(&self.kind().device, 0, &mut bytes).unwrap();
        bytes
    }
}

/// Bytes that are others for another seed, everywhere.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |at: u64| {
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
    };
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}
