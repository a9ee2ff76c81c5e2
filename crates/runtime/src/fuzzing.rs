//! A fuzz target for two members of a job with one-sided operations. A list of actions drives them, beside control
//! streams of other processes that send arbitrary greetings and messages. Puts, additions and gets of the members
//! must agree with a model of their heaps; the other processes must change no byte and end nothing.
//!
//! It is in this crate because it needs both the engine and a fabric. The product does not contain it.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_engine::rma::{ContextId, HeapRange, PutSource, RmaError, RmaJob};
use trunkline_engine::{CommNics, EngineParams};
use trunkline_fabric::{Host as _, OobAddress, OobFrame, OobStream as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_proto::fuzzing::{
    FuzzAction as ScriptAction, FuzzTarget, make_variants, read_actions, write_script,
};
use trunkline_proto::id::ProcessId;
use trunkline_proto::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use trunkline_proto::wire::dial::{DialMessage as Say, DialRefusal, ProcessCard};
use trunkline_proto::wire::frame::{ControlFrame as Control, VERSION};
use trunkline_proto::wire::rma::RmaStream;
use trunkline_proto::wire::rma::word::{SymmetricWord, WordWidth};
use trunkline_proto::wire::share::ShareOffer;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

/// The targets of this crate.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "one_sided", check: run_actions, seeds: action_seeds }];

/// Runs the target with that name.
///
/// # Panics
/// If there is no such target, or the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    trunkline_proto::fuzzing::run_of(TARGETS, name, bytes);
}

/// The largest number of actions of one input.
const ACTIONS_MAX: usize = 64;
/// Bytes of a heap: words for additions, room for puts, and room for gets.
const HEAP: usize = 32 << 10;
const PUT_AT: u64 = 4096;
const GOT_AT: u64 = 16 << 10;
/// Bytes of a put at most: those that the software NIC copies into the request.
const PUT_MAX: usize = 96;
/// Streams of other processes, at most.
const OTHERS_MAX: usize = 6;
/// The largest number of rounds until a call between members must have ended.
const ROUNDS_MAX: usize = 400_000;

struct ScriptedMember {
    job: RmaJob<SoftFabric, UnixHost>,
    heap: MemoryRange,
    context: ContextId,
    /// The expected bytes of its heap once the other member's operations are complete.
    model: Vec<u8>,
    /// The offset for the next bytes from the other member; each put has a place of its own.
    next: u64,
}

struct ScriptedJob {
    members: [ScriptedMember; 2],
    cards: [ProcessCard; 2],
    outside: UnixHost,
    others: Vec<UnixStream>,
}

/// Four bytes per action: its kind, at which member, and two numbers. The first byte of the input chooses the wire.
fn run_actions(bytes: &[u8]) {
    let Some((how, actions)) = read_actions(bytes, ACTIONS_MAX) else { return };
    let Some(mut world) = ScriptedJob::new(how) else { return };
    actions.for_each(|action| world.run_action(action));
    world.finish_and_check();
}

fn action_seeds() -> Vec<Vec<u8>> {
    let put = 0;
    let get = 1;
    let add = 2;
    let quiet = 3;
    let greet = 4;
    let say = 5;
    let scripts: [Vec<[u8; 4]>; 4] = [
        vec![
            [put, 0, 8, 1],
            [put, 1, 200, 2],
            [quiet, 0, 0, 0],
            [get, 0, 0, 9],
            [add, 0, 0, 1],
            [add, 0, 0, 2],
            [get, 1, 0, 3],
        ],
        vec![
            [greet, 0, 0, 0],
            [say, 0, 0, 0],
            [put, 1, 9, 1],
            [say, 0, 1, 2],
            [say, 0, 2, 3],
            [put, 0, 9, 1],
            [say, 0, 3, 1],
        ],
        vec![
            [put, 0, 8, 1],
            [greet, 1, 1, 0],
            [say, 1, 4, 0],
            [say, 1, 5, 255],
            [add, 0, 3, 1],
            [say, 1, 6, 0],
            [say, 1, 7, 9],
            [6, 0, 0, 0],
        ],
        vec![
            [greet, 0, 2, 0],
            [greet, 0, 3, 0],
            [7, 0, 40, 3],
            [7, 1, 3, 0],
            [put, 0, 255, 255],
            [put, 1, 255, 255],
            [get, 0, 0, 255],
        ],
    ];
    let all: Vec<Vec<u8>> = (0..).zip(scripts).map(|(how, script)| write_script(how, &script)).collect();
    make_variants(&all)
}

impl ScriptedJob {
    fn new(how: u8) -> Option<Self> {
        let wire = [WireMode::Auto, WireMode::Shm, WireMode::Tcp][usize::from(how % 3)];
        let job = || {
            let fabric = SoftFabric::new(SoftConfig { wire, ..SoftConfig::default() }).ok()?;
            RmaJob::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default(), CommNics::new(&[0])?).ok()
        };
        let jobs = [job()?, job()?];
        let bytes = [jobs[0].process_card(), jobs[1].process_card()];
        let cards = [ProcessCard::from_bytes(&bytes[0]).ok()?, ProcessCard::from_bytes(&bytes[1]).ok()?];
        let [first, second] = jobs;
        first.set_members(0, &bytes).ok()?;
        second.set_members(1, &bytes).ok()?;
        let members = [ScriptedMember::new(first)?, ScriptedMember::new(second)?];
        Some(Self { members, cards, outside: UnixHost::new(|_, _| {}), others: Vec::new() })
    }

    fn run_action(&mut self, ScriptAction { what, at, one, two }: ScriptAction) {
        match what % 9 {
            0 | 8 => self.put_bytes(at, usize::from(one) % (PUT_MAX + 1), two),
            1 => self.get(at, u64::from(one) * 8, u64::from(two)),
            2 => self.fetch_add(at, u64::from(one % 16) * 8, two.into()),
            3 => self.quiet(at),
            4 if self.others.len() < OTHERS_MAX => self.greet_member(at, one),
            5 => self.say_message(one, two),
            6 => drop(self.others.pop()),
            7 => self.say_bytes(vec![two; usize::from(one)]),
            _ => self.make_progress(),
        }
    }

    fn make_progress(&mut self) {
        for member in &self.members {
            let done = member.job.progress(member.context);
            assert!(done.is_ok(), "{done:?}");
        }
        for other in &mut self.others {
            // A rejected stream returns an error here.
            let _ = other.recv();
        }
    }

    /// Repeats a call until it succeeds, while both members make progress.
    fn retry_until_done<T>(
        &mut self,
        at: usize,
        mut call: impl FnMut(&ScriptedMember) -> Result<Option<T>, RmaError>,
    ) -> T {
        for _ in 0..ROUNDS_MAX {
            match call(&self.members[at]) {
                Ok(Some(done)) => return done,
                Ok(None) => self.make_progress(),
                Err(error) => panic!("messages of other processes ended a member's operation: {error}"),
            }
        }
        panic!("a call between members does not end");
    }

    fn put_bytes(&mut self, at: usize, len: usize, fill: u8) {
        let to = &mut self.members[1 - at];
        let offset = to.next;
        if len == 0 || offset + len as u64 > GOT_AT {
            return;
        }
        to.next += len.next_multiple_of(8) as u64;
        let bytes: Vec<u8> = (0..len).map(|at| fill.wrapping_add(at as u8)).collect();
        to.model[offset as usize..][..len].copy_from_slice(&bytes);
        let whom = 1 - at as u32;
        let taken = self.retry_until_done(at, |from| {
            from.job.put(from.context, whom, 0, offset, PutSource::Bytes(&bytes))
        });
        assert_eq!(taken, len as u64);
    }

    fn get(&mut self, at: usize, from: u64, len: u64) {
        if len == 0 || from + len > GOT_AT {
            return;
        }
        // A get may or may not return bytes of puts in flight.
        self.quiet(at);
        let (mut offset, mut into) = (from, HeapRange { heap: 0, offset: GOT_AT, len });
        while into.len > 0 {
            let part = into;
            let whom = 1 - at as u32;
            let taken = self.retry_until_done(at, |of| of.job.get(of.context, whom, 0, offset, part));
            (offset, into.offset, into.len) = (offset + taken, into.offset + taken, into.len - taken);
        }
        self.quiet(at);
        let expected = self.members[1 - at].model[from as usize..][..len as usize].to_vec();
        let own = &mut self.members[at];
        own.model[GOT_AT as usize..][..len as usize].copy_from_slice(&expected);
        assert!(own.heap_bytes(GOT_AT, len as usize) == expected, "a get returned wrong bytes");
    }

    fn fetch_add(&mut self, at: usize, offset: u64, value: u64) {
        let (Ok(word), Some(atomic)) = (
            SymmetricWord::new(0, offset, WordWidth::Eight),
            TypedAtomic::new(AtomicType::U64, AtomicAction::Add(value), true),
        ) else {
            return;
        };
        let whom = 1 - at as u32;
        let fetch = self.retry_until_done(at, |from| from.job.post_atomic(from.context, whom, word, atomic));
        let was = self.retry_until_done(at, |from| from.job.collect_fetch(from.context, fetch));
        let place = &mut self.members[1 - at].model[offset as usize..][..8];
        let mut known = [0; 8];
        known.copy_from_slice(place);
        assert_eq!(was, u64::from_le_bytes(known), "an atomic was executed twice, or lost");
        place.copy_from_slice(&was.wrapping_add(value).to_le_bytes());
    }

    fn quiet(&mut self, at: usize) {
        self.retry_until_done(at, |of| Ok(of.job.quiet(of.context)?.then_some(())));
    }

    /// Opens a control stream of another process, which claims to be some process, possibly a member.
    fn greet_member(&mut self, at: usize, whom: u8) {
        let address = OobAddress(self.cards[at].address.clone());
        let Ok(mut stream) = self.outside.oob().connect(&address) else { return };
        let process = match whom % 4 {
            0 => self.cards[1 - at].process,
            1 => self.cards[at].process,
            2 => ProcessId([whom; 16]),
            // Sends nothing.
            _ => return self.others.push(stream),
        };
        let hello =
            Control::Hello { min: VERSION, max: VERSION, offer: ShareOffer::NONE, process }.to_bytes();
        let said = stream.send(OobFrame { bytes: hello, fd: None });
        self.others.extend(said.is_ok().then_some(stream));
    }

    /// Sends a message of another process.
    fn say_message(&mut self, kind: u8, number: u8) {
        let Some(stream) = RmaStream::new(number % 8) else { return };
        let id = u64::from(number);
        let proof = [number; 16];
        let word = match kind % 9 {
            0 => Say::Dial {
                id,
                proof,
                member: u32::from(number % 3),
                stream,
                path: number % 5,
                link: vec![number; 20],
            },
            1 => Say::Spoil { proof, heap: 0, offset: id * 8, value: 9 },
            2 => Say::Taken { id, served: id, receives: 2, heaps: Vec::new(), link: vec![1; 20] },
            3 => Say::Refused { id, why: DialRefusal::Stranger },
            4 => Say::Leave { stream },
            5 => Say::Down { served: id | 1 << 32 },
            6 => Say::Dial { id, proof, member: 0, stream, path: 0, link: Vec::new() },
            7 => Say::Dial { id, proof, member: u32::MAX, stream, path: u8::MAX, link: vec![0; 80] },
            _ => return self.say_bytes(Say::Down { served: id }.to_bytes().split_off(1)),
        };
        self.say_bytes(word.to_bytes());
    }

    fn say_bytes(&mut self, bytes: Vec<u8>) {
        if let Some(other) = self.others.last_mut() {
            // The stream may have been rejected.
            let _ = other.send(OobFrame { bytes, fd: None });
        }
        self.make_progress();
    }

    fn finish_and_check(mut self) {
        for at in [0, 1] {
            self.quiet(at);
        }
        for member in &self.members {
            assert!(member.heap_bytes(0, HEAP) == member.model, "a heap differs from the model");
        }
    }
}

impl ScriptedMember {
    fn new(job: RmaJob<SoftFabric, UnixHost>) -> Option<Self> {
        let heap = MemoryRange::heap(HEAP);
        job.add_heap(heap.clone()).ok()?;
        let context = job.create_context().ok()?;
        Some(Self { job, heap, context, model: vec![0; HEAP], next: PUT_AT })
    }

    fn heap_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let read = self.heap.read(offset, &mut bytes);
        assert!(read.is_ok());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::fuzzing::{RandomNumbers, random_script};

    use super::*;

    #[test]
    fn random_actions_hold() {
        action_seeds().iter().for_each(|seed| run_actions(seed));
        let mut numbers = RandomNumbers::new(29);
        for _ in 0..100 {
            run_actions(&random_script(&mut numbers, 40));
        }
    }
}
