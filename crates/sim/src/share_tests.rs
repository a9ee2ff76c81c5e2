//! The sharing messages of an engine that shares nothing, and its reaction to those of a peer: the test plays the
//! other end.

use trunkline_engine::{CommFault, CommNics, EngineError};
use trunkline_fabric::{
    AccessRights, Fabric, LinkAddress, LinkControl, LinkId, OobFrame, OobListener, OobStream, OobTransport,
    Rail, RailConfig, RecvOrder, RegionPurpose,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::pool::AnswerFault;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::frame::{self, OpenAnswer, OpenFrame, RemoteRegion, ResultFrame, VERSION};
use trunkline_proto::wire::handle::ConnectionHandle;
use trunkline_proto::wire::member::MemberId;
use trunkline_proto::wire::proof::{GroupEpoch, GroupProof};
use trunkline_proto::wire::share::{self, ShareMode, ShareOffer, ShareOutcome, ShareRequest};

use crate::rules_tests::{Duo, SECOND, buffer, handle_at, hello, params};
use crate::{NetworkModel, SimFabric, SimListener, SimOob, SimRail, SimStream};

const CONFIG: RailConfig = RailConfig {
    depth: 64,
    recv_depth: 64,
    recv_order: RecvOrder::Posted,
    links: 1,
    peer_time: Duration::from_secs(10),
    rail_time: Duration::from_secs(3),
    receives: false,
    traffic_class: None,
    many: false,
};

const EPOCH: GroupEpoch = GroupEpoch(std::num::NonZeroU64::MIN);

fn member() -> MemberId {
    MemberId::from_slot(SlotId { slot: 1, generation: 1 })
}

/// The frames that arrived on a stream meanwhile.
fn heard(stream: &mut SimStream) -> Vec<frame::ControlFrame> {
    let frames = std::iter::from_fn(|| stream.recv().unwrap());
    frames.map(|frame| frame::ControlFrame::from_bytes(&frame.bytes).unwrap()).collect()
}

fn say(stream: &mut SimStream, frame: &frame::ControlFrame) {
    stream.send(OobFrame { bytes: frame.to_bytes(), fd: None }).unwrap();
}

/// A link that the test owns, and the target of its records.
struct Raw {
    rail: SimRail,
    link: LinkId,
    mailbox: RemoteRegion,
}

impl Raw {
    fn new(duo: &Duo) -> Self {
        let process = duo.world.add_process();
        let mut rail = SimFabric::new(&duo.world, process).open_rail(0, &CONFIG).unwrap();
        let memory = MemoryRange::heap(1 << 17);
        let keys = rail.registrar().register(&memory, AccessRights::ALL, RegionPurpose::Records).unwrap();
        let link = rail.create_link().unwrap();
        Self { rail, link, mailbox: RemoteRegion { key: keys.remote.0, addr: keys.remote_base } }
    }

    /// Returns an OPEN for the listener of that handle.
    fn open(&self, handle: &[u8; 128], request: ShareRequest) -> frame::ControlFrame {
        let ConnectionHandle { nonce, listen, .. } = ConnectionHandle::from_bytes(handle).unwrap();
        let joins = matches!(request.mode, ShareMode::Join(..));
        let link = if joins { Vec::new() } else { self.rail.link_address(self.link).unwrap().bytes };
        let (matched, mailbox) = (false, self.mailbox);
        frame::ControlFrame::Open(OpenFrame {
            conn: 9,
            listen,
            nonce,
            matched,
            near: false,
            links: 1,
            mailbox,
            link,
            share: request,
        })
    }
}

/// Returns the replies of `b` to that request, without its HELLO; `b` accepts nothing meanwhile.
fn answered(duo: &Duo, raw: &Raw, request: ShareRequest) -> (SimStream, ResultFrame) {
    let (listen, handle) = duo.b.listen(0).unwrap();
    let mut stream = duo.stranger(&handle, &[hello(VERSION, VERSION, 7), raw.open(&handle, request)]);
    for _ in 0..100 {
        assert_eq!(duo.b.accept(listen).unwrap(), None);
    }
    let mut said = heard(&mut stream);
    let Some(frame::ControlFrame::Result(reply)) = said.pop() else { panic!("{said:?}") };
    let says_hello = |frame: &frame::ControlFrame| {
        matches!(
            frame,
            frame::ControlFrame::Hello { min: VERSION, max: VERSION, offer: ShareOffer::NONE, .. }
        )
    };
    assert!(matches!(&said[..], [frame] if says_hello(frame)), "{said:?}");
    (stream, reply)
}

#[test]
fn request_for_links_gets_its_own() {
    for mode in [ShareMode::Alone, ShareMode::Rather, ShareMode::Create(EPOCH), ShareMode::First(EPOCH)] {
        for turn in [0, 7] {
            let duo = Duo::calm();
            let (_stream, reply) = answered(&duo, &Raw::new(&duo), ShareRequest { mode, turn });
            assert_eq!((reply.conn, reply.answer), (9, OpenAnswer::Accepted));
            assert_eq!(reply.share, share::ShareAnswer { given: ShareOutcome::Alone, turn }, "{mode:?}");
        }
    }
}

#[test]
fn join_request_without_a_group_gets_retry() {
    let duo = Duo::calm();
    let request = ShareRequest { mode: ShareMode::Join(EPOCH, GroupProof(3)), turn: 2 };
    let (mut stream, reply) = answered(&duo, &Raw::new(&duo), request);
    assert_eq!(reply.share, share::ShareAnswer { given: ShareOutcome::Retry, turn: 2 });
    duo.run(SECOND);
    assert_eq!(
        (duo.b.in_use().0, heard(&mut stream)),
        (0, vec![]),
        "the reply is sent once, and no comm is created"
    );
}

#[test]
fn refusal_names_the_turn() {
    let duo = Duo::calm();
    let (listen, handle) = duo.b.listen(0).unwrap();
    let request = ShareRequest { mode: ShareMode::Create(EPOCH), turn: 5 };
    let open = Raw::new(&duo).open(&handle, request);
    duo.b.close_listen(listen).unwrap();
    let mut stream = duo.stranger(&handle, &[hello(VERSION, VERSION, 7), open]);
    duo.run(SECOND);
    let said = heard(&mut stream).pop();
    let Some(frame::ControlFrame::Result(reply)) = said else { panic!("{said:?}") };
    let share = share::ShareAnswer { given: ShareOutcome::Alone, turn: 5 };
    assert_eq!((reply.answer, reply.share), (OpenAnswer::Refused, share));
}

/// The frame is meaningless, because nothing is shared, and must be harmless: the stream and the comm survive.
#[test]
fn stop_frames_do_not_affect_an_unshared_comm() {
    let duo = Duo::calm();
    let mut raw = Raw::new(&duo);
    let (listen, handle) = duo.b.listen(0).unwrap();
    let open = raw.open(&handle, ShareRequest { mode: ShareMode::Alone, turn: 0 });
    let mut stream = duo.stranger(&handle, &[hello(VERSION, VERSION, 7), open]);
    let comm = (0..1000).find_map(|_| {
        for said in heard(&mut stream) {
            if let frame::ControlFrame::Result(reply) = said {
                let address = LinkAddress { bytes: reply.link, fd: None };
                raw.rail.connect(raw.link, address).unwrap();
                say(&mut stream, &frame::ControlFrame::Ready { comm: reply.comm, conn: 9 });
            }
        }
        duo.b.accept(listen).unwrap()
    });
    let comm = comm.unwrap();
    let (_, into) = buffer(&duo.b, comm, 8);
    let request = duo.b.irecv(comm, &[into]).unwrap().unwrap();
    let warnings = duo.world.warning_count(crate::SimPid(1));
    for id in [comm.to_bits(), 9, 1 << 32, 0, u64::MAX] {
        say(&mut stream, &frame::ControlFrame::Stop { id });
        say(&mut stream, &frame::ControlFrame::Gone { id });
    }
    duo.run(20 * SECOND);
    for _ in 0..10_000 {
        assert!(!duo.b.test(request, &mut [0; 8]).unwrap());
    }
    let counted =
        (duo.b.in_use().2, duo.b.counters().streams_refused, duo.world.warning_count(crate::SimPid(1)));
    assert_eq!(counted, (1, 0, warnings), "the stream survives, and nothing is logged");
    say(&mut stream, &frame::ControlFrame::Close { id: comm.to_bits(), messages: 0 });
    duo.run(SECOND);
    let ended = (0..1_000_000).find_map(|_| duo.b.test(request, &mut [0; 8]).err());
    assert!(matches!(ended, Some(EngineError::Comm(CommFault::PeerClosed(_)))), "{ended:?}");
}

/// A listener of the test, to which `a` has sent a request, with the frames of `a`.
struct Listening {
    _listener: SimListener,
    stream: SimStream,
    handle: [u8; 128],
    open: OpenFrame,
}

impl Listening {
    fn asked(duo: &Duo) -> Self {
        let outside = duo.world.add_process();
        let mut listener = SimOob::for_rogue_peer(&duo.world, outside).listen().unwrap();
        let mut handle = handle_at(listener.listen_address().0);
        let stream = (0..1000).find_map(|_| {
            assert_eq!(duo.a.connect(0, &mut handle).unwrap(), None);
            listener.accept().unwrap()
        });
        let mut stream = stream.unwrap();
        let said = std::iter::repeat_with(|| {
            duo.world.advance_by(1_000_000);
            heard(&mut stream)
        });
        let said: Vec<_> = said.take(50).flatten().collect();
        let [frame::ControlFrame::Hello { offer: ShareOffer::NONE, .. }, frame::ControlFrame::Open(open)] =
            &said[..]
        else {
            panic!("{said:?}");
        };
        let open = open.clone();
        say(&mut stream, &hello(VERSION, VERSION, 7));
        Self { _listener: listener, stream, handle, open }
    }

    fn answer(&mut self, answer: OpenAnswer, given: ShareOutcome, turn: u32) {
        let own = answer == OpenAnswer::Accepted
            && matches!(given, ShareOutcome::Alone | ShareOutcome::Created { .. });
        let reply = ResultFrame {
            conn: self.open.conn,
            answer,
            matched: false,
            remote_len: false,
            comm: 3 << 16,
            fins: RemoteRegion { key: 0, addr: 0 },
            eager_max: 0,
            eager_credits: 0,
            link: if own { vec![7; 20] } else { Vec::new() },
            share: share::ShareAnswer { given, turn },
        };
        say(&mut self.stream, &frame::ControlFrame::Result(reply));
    }
}

#[test]
fn engine_requests_its_own_links() {
    let duo = Duo::calm();
    let listening = Listening::asked(&duo);
    assert_eq!(listening.open.share, ShareRequest { mode: ShareMode::Alone, turn: 0 });
    assert!(!listening.open.link.is_empty());
}

#[test]
fn reply_of_another_turn_is_ignored() {
    let duo = Duo::calm();
    let mut listening = Listening::asked(&duo);
    for turn in [1, u32::MAX] {
        listening.answer(OpenAnswer::Refused, ShareOutcome::Alone, turn);
    }
    for _ in 0..200 {
        assert_eq!(duo.a.connect(0, &mut listening.handle).unwrap(), None);
    }
    listening.answer(OpenAnswer::Refused, ShareOutcome::Alone, 0);
    let ended = (0..200).find_map(|_| duo.a.connect(0, &mut listening.handle).err());
    assert!(matches!(ended, Some(EngineError::Refused)), "{ended:?}");
}

#[test]
fn unrequested_reply_ends_only_the_attempt() {
    let created = ShareOutcome::Created { epoch: EPOCH, proof: GroupProof(1), member: member() };
    let joined = ShareOutcome::Joined { epoch: EPOCH, member: member() };
    for given in [created, joined, ShareOutcome::Retry, ShareOutcome::Full] {
        let duo = Duo::calm();
        let mut listening = Listening::asked(&duo);
        listening.answer(OpenAnswer::Accepted, given, 0);
        let ended = (0..1000).find_map(|_| duo.a.connect(0, &mut listening.handle).err());
        assert!(matches!(ended, Some(EngineError::Answer(AnswerFault::Nonsense))), "{given:?}: {ended:?}");
        duo.run(SECOND);
        let close = frame::ControlFrame::Close { id: 3 << 16, messages: 0 };
        assert!(heard(&mut listening.stream).contains(&close), "{given:?}: the accepting end gets CLOSE");
        assert_eq!((duo.a.in_use().0, duo.a.in_use().2), (0, 1));
    }
}

#[test]
fn a_handle_names_the_nics_of_its_listener() {
    let duo = Duo::new(1, NetworkModel { nics: 4, ..NetworkModel::fault_free() }, params());
    for nics in [&[2][..], &[3, 0], &[1, 3, 2, 0]] {
        let (_, handle) = duo.b.listen(CommNics::new(nics).unwrap()).unwrap();
        let told = ConnectionHandle::from_bytes(&handle).unwrap().nics;
        assert!(told.nic_numbers().iter().map(|&nic| usize::from(nic)).eq(nics.iter().copied()), "{told:?}");
    }
}
