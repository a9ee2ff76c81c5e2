//! A rank of a job that has the cards of all ranks. It introduces itself as another rank, repeats introductions that
//! it has recorded and its own, and floods the listeners with streams that introduce no rank, while the other ranks
//! wait for it.

use trunkline::World;
use trunkline::messages::{HostMemory, MethodChoice};
use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_engine::{MemberKey, ProofPurpose};
use trunkline_fabric::{
    Host as _, OobAddress, OobFrame, OobListener as _, OobStream as _, OobTransport as _,
};
use trunkline_node::ipc::NodeConfig as Sharing;
use trunkline_node::tagged::{TaggedConfig, TaggedEndpoint, TaggedEvent};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::wire::dial::PublicKey;
use trunkline_proto::wire::introduction::RankIntroduction;
use trunkline_proto::wire::tagged::InboxSizes;

use crate::attacker::{Attack, AttackReport, receive_facts, until};
use crate::channel::TestChannel;
use crate::meeting::RANKS;
use crate::stay::raise_limit;
use crate::user::meet_as_stranger;

/// Bytes of a card (docs/wire.md, "Tagged messages inside a node").
const CARD: usize = 16 + 4 + 32 + 1 + OobAddress::MAX;
const ME: u32 = RANKS - 1;
/// Streams that send nothing, or bytes that are not an introduction, at a time: more than a victim lets wait.
const SILENT: usize = 160;

/// The contents of a victim's card.
struct VictimCard {
    key: PublicKey,
    address: OobAddress,
}

pub(crate) struct ForeignIntroduction {
    host: UnixHost,
    key: MemberKey,
    process: [u8; 16],
    victims: [VictimCard; 2],
    world: World,
    /// The streams on which it has introduced itself with its own rank, and the replies.
    own: [Option<(UnixStream, RankIntroduction)>; 2],
}

fn gather(world: &World, mine: &[u8]) -> Vec<u8> {
    let all = world.alloc::<u8>(mine.len() * world.size()).unwrap();
    world.all_gather(mine, &all).unwrap();
    let bytes = all.to_vec();
    world.free(all).unwrap();
    bytes
}

impl ForeignIntroduction {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        meet_as_stranger(channel);
        receive_facts(channel);
        raise_limit();
        let world = World::builder().heap(1 << 20).start().unwrap();
        let host = UnixHost::new(|_, _| {});
        let (key, process) =
            (MemberKey::new([host.random_bytes(), host.random_bytes()]), host.random_bytes());
        let address = host.oob().listen().unwrap().listen_address().0;
        let mut card = [process.as_slice(), &std::process::id().to_le_bytes(), &key.public_key()].concat();
        card.push(address.len() as u8);
        card.extend(&address);
        card.resize(CARD, 0);
        let cards = gather(&world, &card);
        let victims = [0, 1].map(|rank: usize| {
            let card = &cards[rank * CARD..][..CARD];
            let len = usize::from(card[52]);
            VictimCard {
                key: card[20..52].try_into().unwrap(),
                address: OobAddress(card[53..53 + len].to_vec()),
            }
        });
        // This rank has connected to both victims, so they wait until it introduces itself.
        gather(&world, &[1, 1, 0]);
        Self { host, key, process, victims, world, own: [None, None] }
    }

    fn connect(&self, victim: usize) -> Option<UnixStream> {
        self.host.oob().connect(&self.victims[victim].address).ok()
    }

    /// The introduction that proves this rank to a victim.
    fn introduction(&self, victim: usize) -> RankIntroduction {
        let proof = self.key.make_proof(ProofPurpose::Tagged, &self.victims[victim].key, ME, victim as u32);
        RankIntroduction { rank: ME, proof: proof.unwrap() }
    }

    /// Sends an introduction on a new stream; returns the stream and the reply if the victim accepts it.
    fn introduce(
        &self,
        victim: usize,
        introduction: &RankIntroduction,
    ) -> Option<(UnixStream, RankIntroduction)> {
        let mut stream = until("a stream", || self.connect(victim));
        stream.send(OobFrame { bytes: introduction.to_bytes(), fd: None }).ok()?;
        let answer = answer_on(&mut stream)?;
        Some((stream, answer))
    }

    /// Introduces itself with its own rank, before a flood of streams that introduce no rank.
    fn introduce_before_a_flood(&mut self, victim: usize, report: &mut AttackReport) {
        let mut stream = until("a stream", || self.connect(victim));
        let bytes = self.introduction(victim).to_bytes();
        stream.send(OobFrame { bytes, fd: None }).unwrap();
        let flood = self.flood(victim);
        match answer_on(&mut stream) {
            Some(answer) => self.own[victim] = Some((stream, answer)),
            None => report.claim("a flood prevented a rank's introduction"),
        }
        drop(flood);
    }

    fn flood(&self, victim: usize) -> Vec<UnixStream> {
        let mut flood: Vec<_> = (0..SILENT).filter_map(|_| self.connect(victim)).collect();
        for stream in flood.iter_mut().step_by(3) {
            let _ = stream.send(OobFrame { bytes: vec![0xff; 32], fd: None });
        }
        flood
    }
}

/// The reply to an introduction; `None` if the stream ends instead.
fn answer_on(stream: &mut UnixStream) -> Option<RankIntroduction> {
    until("a reply to an introduction", || match stream.recv() {
        Ok(Some(frame)) => Some(RankIntroduction::from_bytes(&frame.bytes).ok()),
        Ok(None) => None,
        Err(_) => Some(None),
    })
}

impl Attack for ForeignIntroduction {
    fn go_on(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            if self.own[victim].is_none() && report.claims.is_empty() {
                self.introduce_before_a_flood(victim, report);
            }
            // As the other victim, with a proof of its own, with the proof that this rank received, and without a proof.
            let other = 1 - victim;
            let own = self.introduction(victim);
            let recorded = self.own[other].as_ref().map_or([0; 16], |(_, answer)| answer.proof);
            for proof in [own.proof, recorded, [0; 16]] {
                if self.introduce(victim, &RankIntroduction { rank: other as u32, proof }).is_some() {
                    report.claim("another rank was introduced");
                }
            }
            if self.own[victim].is_some() && self.introduce(victim, &own).is_some() {
                report.claim("a rank was introduced twice");
            }
            drop(self.flood(victim));
            report.acts += 1;
        }
    }

    /// Continues with its own rank, so that the other ranks' set-up ends.
    fn finish(&mut self, report: &mut AttackReport) {
        if !report.claims.is_empty() {
            return;
        }
        let sharing = Sharing::new(self.process, ExportAmount { entries: 16, bytes: 1 << 30 });
        let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
        let config = TaggedConfig { sharing, inbox, copy: MethodChoice::default() };
        let now = self.host.now();
        let mut endpoint = TaggedEndpoint::new(HostMemory::new().unwrap(), config, now);
        for own in &mut self.own {
            endpoint.join_peer(own.take().unwrap().0).unwrap();
        }
        let mut met = 0;
        until("the victims' meeting", || {
            endpoint.progress(self.host.now());
            while let Some(event) = endpoint.next_event() {
                met += usize::from(matches!(event, TaggedEvent::Met { .. }));
            }
            (met == 2).then_some(())
        });
        self.world.barrier().unwrap();
        // It remains a rank until its process ends.
        std::mem::forget(endpoint);
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 10
    }
}
