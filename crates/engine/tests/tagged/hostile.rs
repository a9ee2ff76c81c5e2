//! A peer that writes what cannot be into an inbox: it is taken for dead, and nothing else happens.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_engine::ipc::{Buffer, Config as Sharing};
use trunkline_engine::tagged::{Config, Endpoint, Event};
use trunkline_fabric::{Frame, Host as _, Oob as _, OobListener as _, OobStream as _};
use trunkline_mem::ipc::Device;
use trunkline_mem::{Memory, Shared};
use trunkline_proto::ipc::exporter::Amount;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::Choice;
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::{Hello, Message};
use trunkline_proto::wire::tagged::{Answer, Inbox, Message as Tagged, RINGS_AT};

use crate::two::{ALL, planted};

/// An endpoint, and a peer of it that a test plays.
struct Played {
    endpoint: Endpoint<Device, UnixStream>,
    stream: UnixStream,
    /// What it writes into.
    inbox: Memory,
    /// What it reads.
    shared: Shared,
    now: Instant,
}

const SIZES: [u32; 3] = [64, 64, 1 << 16];

fn sizes() -> Inbox {
    Inbox::new(SIZES[0], SIZES[1], SIZES[2]).unwrap()
}

impl Played {
    fn new() -> Self {
        let host = UnixHost::new(|_, _| {});
        let of = Sharing::new([1; 16], Amount { entries: 4, bytes: 1 << 30 });
        let sharing = Sharing { mutant: planted(), ..of };
        let device = Device::create(0, 1 << 20).unwrap();
        let mut endpoint =
            Endpoint::new(device, Config { sharing, inbox: sizes(), copy: Choice::Learned }, Instant(0));
        let mut listener = host.oob().listen().unwrap();
        let mut stream = host.oob().connect(&listener.address()).unwrap();
        let accepted = loop {
            if let Some(stream) = listener.accept().unwrap() {
                break stream;
            }
        };
        endpoint.join(accepted).unwrap();
        let say = |stream: &mut UnixStream, message: Message, fd| {
            stream.send(Frame { bytes: message.to_bytes(), fd }).unwrap();
        };
        say(&mut stream, Message::Hello(Hello { process: [2; 16], operations: 8 }), None);
        let shared = Shared::new("trunkline.test", sizes().bytes() as usize).unwrap();
        say(&mut stream, Message::Inbox(sizes()), Some(shared.descriptor().unwrap()));
        let inbox = loop {
            let Some(frame) = stream.recv().unwrap() else { continue };
            if let Ok(Message::Inbox(inbox)) = Message::from_bytes(&frame.bytes) {
                break Shared::map(&frame.fd.unwrap(), inbox.bytes()).unwrap();
            }
        };
        let mut played = Self { endpoint, stream, inbox, shared, now: Instant(0) };
        played.until(|event| matches!(event, Event::Met { .. }));
        played
    }

    fn go_on(&mut self) -> Option<Event> {
        for _ in 0..100 {
            self.now = self.now + Duration::micros(100);
            self.endpoint.progress(self.now);
            // Somebody wants to know.
            let _ = self.endpoint.probe(None, (u64::MAX, ALL));
        }
        self.endpoint.event()
    }

    fn until(&mut self, is: impl Fn(&Event) -> bool) {
        assert!((0..100).any(|_| self.go_on().is_some_and(|event| is(&event))), "that did not come");
    }

    fn write(&self, at: u64, words: &[u64]) {
        for (word, at) in (0..words.len()).map(|n| (words[n], at + 8 * n as u64)).rev() {
            self.inbox.store(at, word).unwrap();
        }
    }

    fn ends_broken(mut self) {
        self.until(
            |event| matches!(event, Event::Left { why, .. } if why.to_string().contains("inbox cannot be")),
        );
        drop((self.stream, self.shared));
    }
}

const STAGE: u64 = 1 << 16;

#[test]
fn frames_that_cannot_be_end_a_peer() {
    let named = 1 << 32;
    for words in [
        [2 | 2 << 8, 7, named, 9000, 0, 0, 0, 0],
        [3 | 2 << 8, 7, named, named, 0, 9000, 0, 0],
        [1 | 1 << 8, 7, 0, 0, 0, 0, 0, 0],
        [99, 0, 0, 0, 0, 0, 0, 0],
        [1 | 1 << 8, 0, 0, 0, 0, 0, 0, 0],
        [1 | 8192 << 32, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let played = Played::new();
        played.write(RINGS_AT, &words);
        played.ends_broken();
    }
    let played = Played::new();
    played.write(sizes().answers_at(), &[77, 0, 0, 0, 0, 0, 0, 0]);
    played.ends_broken();
}

#[test]
fn pieces_outside_of_the_stage_end_a_peer() {
    let receive = SlotId { slot: 0, generation: 1 };
    for (position, len) in [(STAGE - 64, 65), (0, u32::MAX), (u64::MAX, 2)] {
        let played = Played::new();
        let piece = Answer::Piece { receive, position, len };
        played.write(sizes().answers_at(), &piece.to_words());
        played.ends_broken();
    }
}

#[test]
fn answers_to_what_nobody_asked_are_nothing() {
    let mut played = Played::new();
    let (request, receive) = (SlotId { slot: 3, generation: 7 }, SlotId { slot: 0, generation: 1 });
    let answers = [
        Answer::Clear { request, receive, len: 10, unmapped: false },
        Answer::Clear { request, receive, len: u64::MAX, unmapped: true },
        Answer::Piece { receive, position: 0, len: 100 },
        Answer::Done { request, outcome: trunkline_proto::wire::ipc::Outcome::Copied },
    ];
    for (at, answer) in (sizes().answers_at()..).step_by(64).zip(answers) {
        played.write(at, &answer.to_words());
    }
    assert!((0..20).all(|_| played.go_on().is_none()));
    played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
    played.go_on();
    assert_eq!(played.endpoint.probe(None, (5, ALL)).unwrap().len, 0, "it goes on");
}

#[test]
fn who_offers_memory_that_nobody_wished_for_is_broken() {
    let mut played = Played::new();
    played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
    played.go_on();
    let peer = played.endpoint.probe(None, (0, 0)).unwrap().peer;
    let addr = played.endpoint.node().memory().alloc(20_000).unwrap();
    let begun = played.endpoint.send(peer, 1, &Buffer::own(addr, 20_000)).unwrap();
    assert!(matches!(begun, trunkline_engine::tagged::Begun::Request(_)));
    let told = Tagged::from_words(&played.shared.memory().load_row(RINGS_AT).unwrap()).unwrap();
    let Tagged::Refer { request, reference, rows, offer: false, .. } = told else { panic!("{told:?}") };
    let receive = SlotId { slot: 0, generation: 1 };
    let offer = Answer::Offer { request, receive, reference, rows };
    played.write(sizes().answers_at(), &offer.to_words());
    played.ends_broken();
}

#[test]
fn who_asks_for_more_than_there_is_or_consumed_too_much_is_broken() {
    let mut played = Played::new();
    let peer = played.endpoint.probe(None, (0, 0)).map_or_else(
        || {
            played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
            played.go_on();
            played.endpoint.probe(None, (0, 0)).unwrap().peer
        },
        |done| done.peer,
    );
    let begun = played.endpoint.send(peer, 1, &Memory::heap(20_000).into()).unwrap();
    assert!(matches!(begun, trunkline_engine::tagged::Begun::Request(_)));
    let told = Tagged::from_words(&played.shared.memory().load_row(RINGS_AT).unwrap()).unwrap();
    let Tagged::Ready { request, len: 20_000, .. } = told else { panic!("{told:?}") };
    let receive = SlotId { slot: 0, generation: 1 };
    let clear = Answer::Clear { request, receive, len: 20_001, unmapped: false };
    played.write(sizes().answers_at(), &clear.to_words());
    played.ends_broken();
    let mut played = Played::new();
    played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
    played.go_on();
    let peer = played.endpoint.probe(None, (0, 0)).unwrap().peer;
    played.shared.memory().store(0, 1000).unwrap();
    while matches!(played.endpoint.send_bytes(peer, 0, &[]), Ok(trunkline_engine::tagged::Begun::Done)) {}
    played.ends_broken();
}
