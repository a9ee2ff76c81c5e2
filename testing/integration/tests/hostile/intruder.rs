//! A malicious member of the pair's job. Its own engine is honest; its control streams pass through here, where their
//! frames are read and others are inserted. Invalid link addresses and records are made here by hand, from
//! docs/wire.md.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use trunkline_engine::CommNics;
use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{ContextId, HeapRange, RmaJob};
use trunkline_fabric::{
    Fabric as _, Host as _, LinkControl as _, LinkId, OobAddress, OobError, OobFrame, OobListener as _,
    OobStream as _, OobTransport, PassedFd,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::dial::{DialMessage, DialRefusal, MemberProof, ProcessCard, RemoteHeap};
use trunkline_proto::wire::rma::RmaStream;
use trunkline_softnic::{SoftFabric, SoftRail};

use crate::attacker::{receive_facts, until};
use crate::canaries::rail_config;
use crate::channel::TestChannel;
use crate::one_sided::{HEAP, SCRATCH};
use crate::pair::PairKind;
use crate::victim::VictimFacts;

type Io = <<UnixHost as trunkline_fabric::Host>::Oob as OobTransport>::Stream;
type Listener = <<UnixHost as trunkline_fabric::Host>::Oob as OobTransport>::Listener;

/// Bit in the ids of links that are requested by hand.
const BY_HAND: u64 = 1 << 63;

/// The remote end of a link.
pub(crate) struct TakenLink {
    pub(crate) heaps: Vec<RemoteHeap>,
    pub(crate) link: Vec<u8>,
    fd: Option<OwnedFd>,
}

/// The relay between the intruder's engine and one victim.
struct ControlRelay {
    listener: Listener,
    victim: OobAddress,
    own: Option<Io>,
    far: Option<Io>,
    /// The proof with which the engine has proved to the victim that it is this member.
    proof: Option<MemberProof>,
    /// The victim's reply to the engine's link.
    told: Option<TakenLink>,
    /// Replies to links that were requested by hand.
    answers: Vec<(u64, Result<TakenLink, DialRefusal>)>,
}

impl ControlRelay {
    fn new(host: &UnixHost, victim: Vec<u8>) -> Self {
        let listener = host.oob().listen().unwrap();
        let victim = OobAddress(victim);
        Self { listener, victim, own: None, far: None, proof: None, told: None, answers: Vec::new() }
    }

    /// Forwards the frames that have arrived.
    fn pump(&mut self, host: &UnixHost) {
        if let Some(own) = self.listener.accept().unwrap() {
            self.far = Some(until("a victim accepts", || host.oob().connect(&self.victim).ok()));
            self.own = Some(own);
        }
        let (Some(own), Some(far)) = (&mut self.own, &mut self.far) else { return };
        while let Ok(Some(frame)) = own.recv() {
            if let Ok(DialMessage::Dial { proof, .. }) = DialMessage::from_bytes(&frame.bytes) {
                self.proof = Some(proof);
            }
            let _ = far.send(frame);
        }
        while let Ok(Some(mut frame)) = far.recv() {
            let fd = |frame: &mut OobFrame| frame.fd.take().map(|passed| passed.fd);
            match DialMessage::from_bytes(&frame.bytes) {
                Ok(DialMessage::Taken { id, heaps, link, .. }) if id & BY_HAND != 0 => {
                    self.answers.push((id, Ok(TakenLink { heaps, link, fd: fd(&mut frame) })));
                    continue;
                }
                Ok(DialMessage::Refused { id, why }) if id & BY_HAND != 0 => {
                    self.answers.push((id, Err(why)));
                    continue;
                }
                Ok(DialMessage::Standing { id, .. }) if id & BY_HAND != 0 => continue,
                Ok(DialMessage::Taken { heaps, link, .. }) => {
                    self.told = Some(TakenLink { heaps, link, fd: None })
                }
                _ => {}
            }
            let _ = own.send(frame);
        }
    }
}

/// A malicious member.
pub(crate) struct IntrudingMember {
    host: UnixHost,
    job: RmaJob<SoftFabric, UnixHost>,
    heap: MemoryRange,
    context: ContextId,
    relays: [ControlRelay; 2],
    rail: SoftRail,
    link: Option<LinkId>,
    asked: u64,
    pub(crate) facts: [VictimFacts; 2],
    pub(crate) cards: [ProcessCard; 3],
    /// The listener for the other members, if they do not connect to its engine.
    pub(crate) front: Option<Listener>,
}

impl IntrudingMember {
    /// Joins the pair's job. With a `front`, members connect to this process there, and their frames do not reach its engine.
    pub(crate) fn new(channel: &mut TestChannel, has_front: bool) -> Self {
        let host = UnixHost::new(|_, _| {});
        let fabric = || SoftFabric::new(PairKind::of_this_process().nics()).unwrap();
        let engine = UnixHost::new(|_, line: &str| println!("attacker: {line}"));
        let job = RmaJob::new(fabric(), engine, trunkline_engine::EngineParams::default(), CommNics::from(0))
            .unwrap();
        let mut card = ProcessCard::from_bytes(&job.process_card()).unwrap();
        let front = has_front.then(|| host.oob().listen().unwrap());
        if let Some(front) = &front {
            card.address = front.listen_address().0;
        }
        channel.send(&card.to_bytes());
        let cards = channel.receive_cards();
        let true_cards = cards.map(|card| ProcessCard::from_bytes(&card).unwrap());
        let relays = [0, 1].map(|at: usize| ControlRelay::new(&host, true_cards[at].address.clone()));
        let mut relayed = cards;
        for (at, relay) in relays.iter().enumerate() {
            let card = ProcessCard { address: relay.listener.listen_address().0, ..true_cards[at].clone() };
            relayed[at] = card.to_bytes();
        }
        job.set_members(2, &relayed).unwrap();
        let heap = MemoryRange::heap(HEAP);
        job.add_heap(heap.clone()).unwrap();
        let context = job.create_context().unwrap();
        let rail = fabric().open_rail(0, &rail_config()).unwrap();
        let facts = receive_facts(channel);
        Self { host, job, heap, context, relays, rail, link: None, asked: 0, facts, cards: true_cards, front }
    }

    fn pump(&mut self) {
        self.relays.iter_mut().for_each(|relay| relay.pump(&self.host));
        self.job.progress(self.context).unwrap();
    }

    /// Repeats an attempt until it succeeds, and forwards frames meanwhile.
    #[track_caller]
    fn until<T>(&mut self, what: &str, mut step: impl FnMut(&mut Self) -> Option<T>) -> T {
        until(what, || {
            self.pump();
            step(self)
        })
    }

    /// Makes an honest link to a victim.
    pub(crate) fn reach(&mut self, victim: usize) {
        self.until("an honest link", |one| {
            one.job.connect_member(one.context, victim as u32).unwrap().then_some(())
        });
    }

    /// A victim's description of its end of the honest link.
    pub(crate) fn told(&self, victim: usize) -> &TakenLink {
        self.relays[victim].told.as_ref().expect("the victim has replied")
    }

    /// The proof of this member for a victim.
    pub(crate) fn proof(&self, victim: usize) -> MemberProof {
        self.relays[victim].proof.expect("the victim has replied")
    }

    /// Reads bytes of a victim's heap with an honest get.
    pub(crate) fn get(&mut self, victim: usize, offset: u64, len: u64) -> Vec<u8> {
        let mut done = 0;
        while done < len {
            let into = HeapRange { heap: 0, offset: done, len: len - done };
            done += self.until("an honest get", |one| {
                one.job.get(one.context, victim as u32, 0, offset + done, into).unwrap()
            });
        }
        self.until("a quiet", |one| one.job.quiet(one.context).unwrap().then_some(()));
        let mut bytes = vec![0; len as usize];
        self.heap.read(0, &mut bytes).unwrap();
        bytes
    }

    /// Creates a link of this process: returns its address and its ring.
    pub(crate) fn own_link(&mut self) -> (Vec<u8>, OwnedFd) {
        // The link lives until the next one is created, because a destroyed link marks its ring as ended.
        if let Some(last) = self.link.take() {
            self.rail.destroy_link(last);
        }
        let link = self.rail.create_link().unwrap();
        self.link = Some(link);
        let address = self.rail.link_address(link).unwrap();
        (address.bytes, address.fd.unwrap().fd)
    }

    /// The address of a link of this process that is reachable only over TCP.
    pub(crate) fn own_link_over_tcp(&mut self) -> Vec<u8> {
        if let Some(last) = self.link.take() {
            self.rail.destroy_link(last);
        }
        let link = self.rail.create_link().unwrap();
        self.link = Some(link);
        self.rail.link_address(link).unwrap().bytes
    }

    /// Requests a victim's end of a link with that address.
    pub(crate) fn dial(
        &mut self,
        victim: usize,
        stream: u8,
        (link, ring): (Vec<u8>, OwnedFd),
    ) -> Result<TakenLink, DialRefusal> {
        let id = self.ask(victim, stream, link, Some(ring));
        self.await_answer(victim, id)
    }

    /// Sends the same request without waiting; returns its id.
    pub(crate) fn ask(&mut self, victim: usize, stream: u8, link: Vec<u8>, ring: Option<OwnedFd>) -> u64 {
        self.asked += 1;
        let id = BY_HAND | self.asked;
        let (proof, stream) = (self.proof(victim), RmaStream::new(stream).unwrap());
        let word = DialMessage::Dial { id, proof, member: 2, stream, path: 0, link };
        self.say(victim, &word, ring);
        id
    }

    pub(crate) fn await_answer(&mut self, victim: usize, id: u64) -> Result<TakenLink, DialRefusal> {
        self.until("a reply to a dial", |one| {
            let answers = &mut one.relays[victim].answers;
            let at = answers.iter().position(|(of, _)| *of == id)?;
            Some(answers.swap_remove(at).1)
        })
    }

    /// Sends a message to a victim on the engine's stream.
    pub(crate) fn say(&mut self, victim: usize, word: &DialMessage, fd: Option<OwnedFd>) {
        let bytes = word.to_bytes();
        let fd = fd.map(PassedFd::from_own_process);
        self.relays[victim].far.as_mut().unwrap().send(OobFrame { bytes, fd }).unwrap();
    }

    /// Releases the stream on which a link was requested.
    pub(crate) fn leave(&mut self, victim: usize, stream: u8) {
        self.say(victim, &DialMessage::Leave { stream: RmaStream::new(stream).unwrap() }, None);
    }

    /// Waits until a victim has executed a record, or has refused it.
    pub(crate) fn await_executed(&mut self, ring: &VictimRing) -> bool {
        self.until("the end of a record", |_| ring.outcome())
    }

    /// The scratch bytes: attacks make victims write the bytes that they read there.
    pub(crate) fn scratch(&mut self, victim: usize) -> Vec<u8> {
        self.get(victim, SCRATCH, 64)
    }

    /// The key and the address of the scratch bytes.
    pub(crate) fn scratch_place(&self, victim: usize) -> (u64, u64) {
        let heap = self.told(victim).heaps[0];
        (heap.region.key, heap.region.addr + SCRATCH)
    }

    /// Opens another stream to a victim, beside those of the member.
    pub(crate) fn connect(&self, victim: usize) -> Result<Io, OobError> {
        self.host.oob().connect(&OobAddress(self.cards[victim].address.clone()))
    }
}

/// The ring of a victim, which its peer writes.
pub(crate) struct VictimRing {
    file: File,
    start: u64,
    written: u64,
}

/// Bytes of a slot, and the offsets of slots and of the reader's words (docs/wire.md, "Software NIC").
const SLOT: u64 = 128;
const SLOTS_AT: u64 = 4096;
const CONSUMED: u64 = 128;
const NAK: u64 = 144;
const STATE: u64 = 160;

impl VictimRing {
    pub(crate) fn new(taken: TakenLink) -> Self {
        let start = u64::from_le_bytes(taken.link[32..40].try_into().unwrap());
        Self { file: File::from(taken.fd.expect("a ring in shared memory")), start, written: 0 }
    }

    /// Writes a record: the words after its stamp.
    pub(crate) fn write(&mut self, words: [u64; 7]) {
        let position = self.start + self.written;
        let at = SLOTS_AT + self.written * SLOT;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.file.write_all_at(&bytes, at + 8).unwrap();
        // The stamp is written last, because it publishes the record.
        self.file.write_all_at(&(position + 1).to_le_bytes(), at).unwrap();
        self.written += 1;
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    }

    /// Number of executed records.
    pub(crate) fn executed(&self) -> u64 {
        self.word(CONSUMED) - self.start
    }

    /// Whether all records were executed; `None` while some are neither executed nor refused.
    fn outcome(&self) -> Option<bool> {
        if self.word(NAK) != 0 || self.word(STATE) != 0 {
            return Some(false);
        }
        (self.executed() == self.written).then_some(true)
    }
}

/// A write whose bytes are claimed to be at an address of the writer's memory.
pub(crate) fn pulled((key, at): (u64, u64), addr: u64, len: u64) -> [u64; 7] {
    write((key, at), 3, [addr, len, 0, 0])
}

/// A write whose bytes are claimed to be in a region of the same fabric.
pub(crate) fn placed((key, at): (u64, u64), local: u64, len: u64) -> [u64; 7] {
    write((key, at), 2, [local, 0, len, 0])
}

/// A write whose bytes are elsewhere; the last record of its operation.
pub(crate) fn write((key, at): (u64, u64), form: u64, [a, b, c, d]: [u64; 4]) -> [u64; 7] {
    const WRITE: u64 = 1;
    const LAST: u64 = 1;
    [WRITE | LAST << 8 | form << 16, key, at, a, b, c, d]
}
