//! A peer that writes invalid frames into an inbox: the endpoint treats it as dead, and nothing else happens.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, OobFrame, OobListener as _, OobStream as _, OobTransport as _};
use trunkline_mem::ipc::{CopyPlace, HandlePassing, IpcMemory as _, MemfdDevice};
use trunkline_mem::{MemoryRange, SharedMemory};
use trunkline_node::ipc::{LeaveReason, MessageBuffer, NodeConfig as Sharing, ProtocolViolation};
use trunkline_node::tagged::{
    REQUESTS_MAX, TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedFailure, TaggedPeerId, TaggedRequestId,
    TaggedSendStart,
};
use trunkline_proto::intervals::ByteSpan;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::slots::SlotId;
use trunkline_proto::tagged::{CopyMethod, MethodChoice, StridedRows};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::ipc::{
    ExportAnnouncement, ExportHandle, ExportName, ExportReference, IpcHello, IpcMessage,
};
use trunkline_proto::wire::tagged::{InboxSizes, RINGS_AT, TaggedAnswer, TaggedMessage as Tagged};

use crate::two::ALL;

/// An endpoint, and a peer that is played by the test.
struct Played {
    endpoint: TaggedEndpoint<MemfdDevice, UnixStream>,
    stream: UnixStream,
    /// The endpoint's inbox, which the played peer writes.
    inbox: MemoryRange,
    /// The played peer's inbox, which it reads.
    shared: SharedMemory,
    /// The device, as the played peer has joined it.
    theirs: MemfdDevice,
    now: Instant,
}

const SIZES: [u32; 3] = [64, 64, 1 << 16];

fn sizes() -> InboxSizes {
    InboxSizes::new(SIZES[0], SIZES[1], SIZES[2]).unwrap()
}

impl Played {
    fn new() -> Self {
        let host = UnixHost::new(|_, _| {});
        let sharing = Sharing::new([1; 16], ExportAmount { entries: 4, bytes: 1 << 30 });
        let device = MemfdDevice::create(0, 1 << 20).unwrap();
        let theirs = MemfdDevice::join(0, &device.descriptor().unwrap()).unwrap();
        let mut endpoint = TaggedEndpoint::new(
            device,
            TaggedConfig { sharing, inbox: sizes(), copy: MethodChoice::Learned },
            Instant(0),
        );
        let mut listener = host.oob().listen().unwrap();
        let mut stream = host.oob().connect(&listener.listen_address()).unwrap();
        let accepted = loop {
            if let Some(stream) = listener.accept().unwrap() {
                break stream;
            }
        };
        endpoint.join_peer(accepted).unwrap();
        let say = |stream: &mut UnixStream, message: IpcMessage, fd| {
            stream.send(OobFrame { bytes: message.to_bytes(), fd }).unwrap();
        };
        say(&mut stream, IpcMessage::Hello(IpcHello { process: [2; 16], operations: 8 }), None);
        let shared = SharedMemory::new("trunkline.test", sizes().file_bytes() as usize).unwrap();
        say(&mut stream, IpcMessage::Inbox(sizes()), Some(shared.descriptor().unwrap().into()));
        let inbox = loop {
            let Some(frame) = stream.recv().unwrap() else { continue };
            if let Ok(IpcMessage::Inbox(inbox)) = IpcMessage::from_bytes(&frame.bytes) {
                break SharedMemory::map_peer(&frame.fd.unwrap().fd, inbox.file_bytes()).unwrap();
            }
        };
        let mut played = Self { endpoint, stream, inbox, shared, theirs, now: Instant(0) };
        played.until(|event| matches!(event, TaggedEvent::Met { .. }));
        played
    }

    fn go_on(&mut self) -> Option<TaggedEvent> {
        for _ in 0..100 {
            self.now = self.now + Duration::from_micros(100);
            self.endpoint.progress(self.now);
            // The endpoint reads messages only while something requests them, so probe for a tag that never arrives.
            let _ = self.endpoint.probe(None, u64::MAX, ALL);
        }
        self.endpoint.next_event()
    }

    fn until(&mut self, is: impl Fn(&TaggedEvent) -> bool) {
        assert!(
            (0..100).any(|_| self.go_on().is_some_and(|event| is(&event))),
            "the endpoint did not report the event"
        );
    }

    fn write(&self, at: u64, words: &[u64]) {
        for (word, at) in (0..words.len()).map(|n| (words[n], at + 8 * n as u64)).rev() {
            self.inbox.store(at, word).unwrap();
        }
    }

    fn ends_broken(mut self) {
        self.until(
            |event| matches!(event, TaggedEvent::Left { why, .. } if why.to_string().contains("invalid inbox")),
        );
        drop((self.stream, self.shared));
    }

    /// Returns the endpoint's id of the played peer.
    fn peer(&mut self) -> TaggedPeerId {
        self.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
        self.go_on();
        self.endpoint.probe(None, 0, 0).unwrap().peer
    }

    /// Sends a long message; returns its request and the frame that the peer received.
    fn sent(&mut self, buffer: &MessageBuffer) -> (TaggedRequestId, Tagged) {
        let peer = self.peer();
        let Ok(TaggedSendStart::Request(sent)) = self.endpoint.send(peer, 1, buffer) else {
            panic!("the send must begin a request")
        };
        let told = self.shared.memory().load_row(RINGS_AT).unwrap();
        (sent, Tagged::from_words(&told).unwrap())
    }

    /// Announces new memory of the played peer; returns its address and a reference to all of it.
    fn announced(&mut self, len: usize) -> (usize, ExportReference) {
        let addr = self.theirs.alloc(len).unwrap();
        let of = self.theirs.allocation_of(addr).unwrap();
        let given = self.theirs.export(&of, HandlePassing::Bytes).unwrap().handle;
        let (handle, span) =
            (ExportHandle::new(given.kind(), given.bytes()), ByteSpan::new(addr as u64, len as u64));
        let (name, span) = (NAMED, span.unwrap());
        let announce =
            ExportAnnouncement { name, span, device: 0, descriptor: false, handle: handle.unwrap() };
        self.stream.send(OobFrame { bytes: IpcMessage::Announce(announce).to_bytes(), fd: None }).unwrap();
        (addr, ExportReference { name, part: ByteSpan::new(0, len as u64).unwrap() })
    }

    fn answer(&self, number: u64, answer: &TaggedAnswer) {
        self.write(sizes().answers_at() + 64 * number, &answer.to_words());
    }
}

const NAMED: ExportName = match ExportName::new(SlotId { slot: 1, generation: 1 }) {
    Some(name) => name,
    None => panic!("a valid export name"),
};

const STAGE: u64 = 1 << 16;

#[test]
fn invalid_frames_end_a_peer() {
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
    for (position, len) in
        [(STAGE - 64, 65), (0, u32::MAX), (u64::MAX, 2), (u64::MAX, 1), (0, (STAGE / 2) as u32 + 1)]
    {
        let played = Played::new();
        let piece = TaggedAnswer::Piece { receive, position, len };
        played.write(sizes().answers_at(), &piece.to_words());
        played.ends_broken();
    }
}

#[test]
fn unrequested_replies_are_ignored() {
    let mut played = Played::new();
    let (request, receive) = (SlotId { slot: 3, generation: 7 }, SlotId { slot: 0, generation: 1 });
    let answers = [
        TaggedAnswer::Clear { request, receive, len: 10, unmapped: false },
        TaggedAnswer::Clear { request, receive, len: u64::MAX, unmapped: true },
        TaggedAnswer::Piece { receive, position: 0, len: 100 },
        TaggedAnswer::Done { request, outcome: trunkline_proto::wire::ipc::CopyOutcome::Copied },
    ];
    for (at, answer) in (sizes().answers_at()..).step_by(64).zip(answers) {
        played.write(at, &answer.to_words());
    }
    assert!((0..20).all(|_| played.go_on().is_none()));
    played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
    played.go_on();
    assert_eq!(
        played.endpoint.probe(None, 5, ALL).unwrap().len,
        0,
        "the endpoint must still receive messages"
    );
}

/// Bytes of a message for which the peer may offer memory.
const SENT: usize = 20_000;

#[test]
fn unrequested_offer_of_memory_ends_a_peer() {
    let receive = SlotId { slot: 0, generation: 1 };
    let mut played = Played::new();
    let own = |played: &Played| {
        MessageBuffer::from_own(played.endpoint.node().memory().alloc(SENT).unwrap(), SENT as u64)
    };
    let buffer = own(&played);
    let (_, told) = played.sent(&buffer);
    let Tagged::Refer { request, reference, rows, offer: false, .. } = told else { panic!("{told:?}") };
    played.answer(0, &TaggedAnswer::Offer { request, receive, reference, rows });
    played.ends_broken();
    // An offer for a message that was requested in pieces.
    let mut played = Played::new();
    played.endpoint.set_copy_choice(MethodChoice::Fixed(CopyMethod::Stage));
    let buffer = own(&played);
    let (_, told) = played.sent(&buffer);
    let Tagged::Ready { request, pieces: true, .. } = told else { panic!("{told:?}") };
    let (_, reference) = played.announced(SENT);
    played.answer(0, &TaggedAnswer::Offer { request, receive, reference, rows: StridedRows::WHOLE });
    played.ends_broken();
}

/// Sends a message for which the peer may offer memory, and announces `len` bytes of the peer for the offer.
fn offered(len: usize) -> (Played, SlotId, TaggedRequestId, usize, ExportReference) {
    let mut played = Played::new();
    let source = MemoryRange::heap(SENT);
    source.write(0, &[0x5a; SENT]).unwrap();
    let (sent, told) = played.sent(&source.into());
    let Tagged::Ready { request, pieces: false, .. } = told else { panic!("{told:?}") };
    let (addr, reference) = played.announced(len);
    (played, request, sent, addr, reference)
}

#[test]
fn invalid_offer_ends_a_peer() {
    let (receive, rows) = (SlotId { slot: 0, generation: 1 }, StridedRows::WHOLE);
    // An offer of more bytes than the message has.
    let (played, request, _, _, reference) = offered(SENT + 1);
    played.answer(0, &TaggedAnswer::Offer { request, receive, reference, rows });
    played.ends_broken();
    // An offer outside of the announced memory.
    let (mut played, request, _, _, reference) = offered(4096);
    let part = ByteSpan::new(4000, 97).unwrap();
    played.answer(
        0,
        &TaggedAnswer::Offer { request, receive, reference: ExportReference { part, ..reference }, rows },
    );
    played.until(|event| {
        matches!(event, TaggedEvent::Left { why: LeaveReason::Broken(ProtocolViolation::Arrive(_)), .. })
    });
}

#[test]
fn second_offer_is_ignored() {
    let (receive, rows) = (SlotId { slot: 0, generation: 1 }, StridedRows::WHOLE);
    let (mut played, request, sent, addr, reference) = offered(SENT);
    for number in 0..2 {
        played.answer(number, &TaggedAnswer::Offer { request, receive, reference, rows });
    }
    let end = (0..100).find_map(|_| {
        assert!(played.go_on().is_none(), "a second offer must not end the peer");
        played.endpoint.test(sent)
    });
    assert!(end.unwrap().is_ok());
    let mut found = [0; SENT];
    played.theirs.read(CopyPlace::Own(addr), &mut found).unwrap();
    assert!(found == [0x5a; SENT]);
    let counts = played.endpoint.counts();
    assert_eq!([counts.by_sender, counts.staged, counts.fallbacks], [1, 0, 0]);
    // A third offer, for a message that has ended.
    played.answer(2, &TaggedAnswer::Offer { request, receive, reference, rows });
    assert!((0..20).all(|_| played.go_on().is_none()));
}

/// The offer is ignored. Only the message waits for the announcement, and the end of the peer ends the message.
#[test]
fn offer_of_unannounced_memory_copies_nothing() {
    let (receive, rows) = (SlotId { slot: 0, generation: 1 }, StridedRows::WHOLE);
    let (mut played, request, sent, addr, reference) = offered(SENT);
    let name = ExportName::new(SlotId { slot: 9, generation: 1 }).unwrap();
    played.answer(
        0,
        &TaggedAnswer::Offer { request, receive, reference: ExportReference { name, ..reference }, rows },
    );
    assert!((0..20).all(|_| played.go_on().is_none()));
    assert!(played.endpoint.test(sent).is_none());
    let mut found = [0x11; SENT];
    played.theirs.read(CopyPlace::Own(addr), &mut found).unwrap();
    assert!(found == [0; SENT] && played.endpoint.counts().by_sender == 0);
    // The message ends with its peer.
    let Played { mut endpoint, stream, mut now, .. } = played;
    drop(stream);
    let end = (0..10_000).find_map(|_| {
        now = now + Duration::from_micros(100);
        endpoint.progress(now);
        endpoint.test(sent)
    });
    assert!(matches!(end, Some(Err(TaggedFailure::Gone))));
}

#[test]
fn excessive_requests_and_consumed_counts_end_a_peer() {
    let mut played = Played::new();
    let peer = played.endpoint.probe(None, 0, 0).map_or_else(
        || {
            played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
            played.go_on();
            played.endpoint.probe(None, 0, 0).unwrap().peer
        },
        |done| done.peer,
    );
    let begun = played.endpoint.send(peer, 1, &MemoryRange::heap(20_000).into()).unwrap();
    assert!(matches!(begun, TaggedSendStart::Request(_)));
    let told = Tagged::from_words(&played.shared.memory().load_row(RINGS_AT).unwrap()).unwrap();
    let Tagged::Ready { request, len: 20_000, .. } = told else { panic!("{told:?}") };
    let receive = SlotId { slot: 0, generation: 1 };
    let clear = TaggedAnswer::Clear { request, receive, len: 20_001, unmapped: false };
    played.write(sizes().answers_at(), &clear.to_words());
    played.ends_broken();
    let mut played = Played::new();
    played.write(RINGS_AT, &Tagged::Eager { tag: 5, len: 0 }.to_words());
    played.go_on();
    let peer = played.endpoint.probe(None, 0, 0).unwrap().peer;
    played.shared.memory().store(0, 1000).unwrap();
    while matches!(played.endpoint.send_bytes(peer, 0, &[]), Ok(TaggedSendStart::Done)) {}
    played.ends_broken();
}

/// The peer sends continually, and never reads the replies.
#[test]
fn peer_that_never_reads_replies_is_ended() {
    let mut played = Played::new();
    let peer = played.peer();
    // Receive the message that was probed.
    played.endpoint.receive(Some(peer), 5, ALL, MemoryRange::heap(8).into()).unwrap();
    let request = SlotId { slot: 3, generation: 7 };
    let cells = u64::from(SIZES[0]);
    let sent = (1..200_000_u64).find(|number| {
        let cell = |number: u64| RINGS_AT + 64 * (number % cells);
        played.write(cell(number + 1), &[0]);
        let ready = Tagged::Ready { tag: 1, request, len: 20_000, pieces: false };
        played.write(cell(*number), &ready.to_words());
        let Ok(received) = played.endpoint.receive(Some(peer), 1, ALL, MemoryRange::heap(0).into()) else {
            return true;
        };
        // The receive has no room for the message, and ends at once.
        let ended = (0..100).any(|_| {
            played.now = played.now + Duration::from_micros(1);
            played.endpoint.progress(played.now);
            played.endpoint.test(received).is_some()
        });
        assert!(ended || played.endpoint.is_gone(peer), "number {number}");
        played.endpoint.is_gone(peer)
    });
    assert!(sent.is_some_and(|sent| sent > 2 * REQUESTS_MAX as u64), "{sent:?}");
    played.ends_broken();
}
