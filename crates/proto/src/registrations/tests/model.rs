//! The map compared with a list of the expected registrations: random sequences of calls, and all sequences of a few
//! calls.

use std::vec;

use proptest::prelude::*;

use super::*;

/// A call. Its numbers select, modulo their count, among the existing registrations and scopes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open,
    End(usize),
    Ask {
        scope: usize,
        memory: usize,
        rights: usize,
        start: u64,
        len: u64,
    },
    Made(usize),
    Failed(usize),
    Release(usize),
    Closed(usize),
    Forget {
        memory: usize,
        start: u64,
        len: u64,
    },
    Revoke(usize),
    /// Repeats the last report about a registration that was removed.
    Late(usize),
}

const RIGHTS: [RegistrationRights; 3] =
    [RegistrationRights::LOCAL, RegistrationRights::WRITE, RegistrationRights::ALL];
const MEMORIES: [MemorySpace; 3] =
    [MemorySpace::Host, MemorySpace::Device { device: 0 }, MemorySpace::DmaBuf { dev: 1, inode: 2 }];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..64_usize;
    let place = (0..3_usize, 0..12_u64, 1..12_u64);
    let ask = (0..3_usize, 0..3_usize, place.clone()).prop_map(|(scope, rights, (memory, start, len))| {
        Step::Ask { scope, memory: memory % 2 * memory, rights, start, len }
    });
    prop::collection::vec(
        prop_oneof![
            1 => Just(Step::Open),
            1 => at.clone().prop_map(Step::End),
            16 => ask,
            10 => at.clone().prop_map(Step::Made),
            2 => at.clone().prop_map(Step::Failed),
            8 => at.clone().prop_map(Step::Release),
            4 => at.clone().prop_map(Step::Closed),
            1 => place.prop_map(|(memory, start, len)| Step::Forget { memory, start, len }),
            1 => at.clone().prop_map(Step::Revoke),
            1 => at.prop_map(Step::Late),
        ],
        1..300,
    )
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Making,
    Open,
    Revoked,
    Closing,
}

/// A registration in the list.
#[derive(Clone, Debug)]
struct Known {
    id: EntryId,
    key: RegistrationKey,
    span: ByteSpan,
    phase: Phase,
    listed: bool,
    users: u32,
    whole: u32,
}

/// The map, the list, and the grants of all users.
#[derive(Clone)]
struct World {
    map: Map,
    scopes: Vec<RegistrationScope>,
    ended: Vec<RegistrationScope>,
    known: Vec<Known>,
    gone: Vec<EntryId>,
    grants: Vec<(EntryId, ByteSpan)>,
    limit: usize,
    made: u32,
}

impl World {
    fn new(limit: usize) -> Self {
        Self {
            map: Map::new(limit),
            scopes: Vec::new(),
            ended: Vec::new(),
            known: Vec::new(),
            gone: Vec::new(),
            grants: Vec::new(),
            limit,
            made: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open => self.scopes.push(self.map.open_scope().unwrap()),
            Step::End(at) => {
                let Some(scope) = take(&mut self.scopes, at) else { return };
                self.map.end_scope(scope);
                self.ended.push(scope);
                self.hide(|known| known.key.scope == scope);
            }
            Step::Ask { scope, memory, rights, start, len } => {
                let (memory, rights) = (MEMORIES[memory % 3], RIGHTS[rights % 3]);
                let all: Vec<_> = self.scopes.iter().chain(&self.ended).copied().collect();
                if let Some(scope) = pick(&all, scope) {
                    self.ask(&RegistrationKey { scope, memory, rights }, span(start, len));
                }
            }
            Step::Made(at) => self.on_made(at),
            Step::Failed(at) => {
                if let Some(id) = pick(&self.in_phase(Phase::Making), at) {
                    self.map.on_failed(id);
                    self.remove(id);
                }
            }
            Step::Release(at) => self.release(at),
            Step::Closed(at) => {
                if let Some(id) = pick(&self.in_phase(Phase::Closing), at) {
                    self.map.on_closed(id);
                    self.remove(id);
                }
            }
            Step::Forget { memory, start, len } => {
                let (memory, part) = (MEMORIES[memory % 3], span(start, len));
                self.map.forget_memory(memory, part);
                self.hide(|known| known.key.memory == memory && known.span.overlaps(part));
            }
            Step::Revoke(at) => self.revoke(at),
            Step::Late(at) => {
                if let Some(id) = pick(&self.gone, at) {
                    let grant = RegistrationGrant { id, span: span(0, 1), start_offset: 0 };
                    assert_eq!((self.map.on_made(id, 0), self.map.release_grant(grant)), (Err(0), None));
                    assert_eq!((self.map.revoke_registration(id), self.map.get(id)), (None, None));
                    self.map.on_failed(id);
                    self.map.on_closed(id);
                }
            }
        }
        self.check();
    }

    fn ask(&mut self, key: &RegistrationKey, part: ByteSpan) {
        let serves = |known: &Known| {
            let same = RegistrationKey { rights: key.rights, ..known.key } == *key;
            same && known.listed && known.key.rights.contains_all(key.rights) && known.span.contains(part)
        };
        let of = |phase| self.known.iter().any(|known| serves(known) && known.phase == phase);
        let (open, making) = (of(Phase::Open), of(Phase::Making));
        let is_full = self.known.len() >= self.limit;
        let is_closing = !self.in_phase(Phase::Closing).is_empty();
        match self.map.request_registration(key, part) {
            Err(RegistrationError::Ended(scope)) => {
                assert!(scope == key.scope && self.ended.contains(&scope))
            }
            _ if self.ended.contains(&key.scope) => panic!("{key:?} is of a scope that has ended"),
            Ok(RegistrationLookup::Hit(grant)) => {
                let known = self.known(grant.id);
                assert!(open && known.phase == Phase::Open && serves(known));
                assert_eq!((grant.span, grant.start_offset), (part, part.start() - known.span.start()));
                known.users += 1;
                known.whole += u32::from(known.span == part);
                self.grants.push((grant.id, part));
            }
            _ if open => panic!("{key:?} {part:?} is not found"),
            Ok(RegistrationLookup::Making) => assert!(making),
            _ if making => panic!("{key:?} {part:?} is being made"),
            Ok(RegistrationLookup::Make(id)) => {
                assert!(!is_full && !self.gone.contains(&id));
                let (key, phase) = (*key, Phase::Making);
                self.known.push(Known { id, key, span: part, phase, listed: true, users: 0, whole: 0 });
            }
            Ok(RegistrationLookup::Later) => assert!(is_full && is_closing),
            Err(RegistrationError::Full(limit)) => assert!(is_full && !is_closing && limit == self.limit),
            Err(error) => panic!("{error}"),
        }
    }

    fn on_made(&mut self, at: usize) {
        let Some(id) = pick(&self.in_phase(Phase::Making), at) else { return };
        let part = self.known(id).span;
        self.made += 1;
        let grant = RegistrationGrant { id, span: part, start_offset: 0 };
        assert_eq!(self.map.on_made(id, self.made), Ok(grant));
        assert_eq!(self.map.get(id), Some(&self.made));
        let known = self.known(id);
        (known.phase, known.users, known.whole) = (Phase::Open, 1, 1);
        self.grants.push((id, part));
    }

    fn release(&mut self, at: usize) {
        let Some((id, part)) = take(&mut self.grants, at) else { return };
        let registration = self.map.get(id).copied();
        let start_offset = part.start() - self.known(id).span.start();
        let close = self.map.release_grant(RegistrationGrant { id, span: part, start_offset });
        let known = self.known(id);
        known.users -= 1;
        known.whole -= u32::from(known.span == part);
        known.listed &= known.whole > 0;
        if known.users == 0 {
            assert_eq!(
                (close, registration.is_some()),
                (Some((id, registration)), known.phase == Phase::Open)
            );
            known.phase = Phase::Closing;
        } else {
            assert_eq!(close, None);
        }
    }

    fn revoke(&mut self, at: usize) {
        let all: Vec<_> = self.known.iter().map(|known| known.id).collect();
        let Some(id) = pick(&all, at) else { return };
        let is_open = self.known(id).phase == Phase::Open;
        assert_eq!(self.map.revoke_registration(id).is_some(), is_open);
        if is_open {
            self.known(id).phase = Phase::Revoked;
            self.hide(|known| known.id == id);
        }
    }

    fn hide(&mut self, which: impl Fn(&Known) -> bool) {
        self.known.iter_mut().filter(|known| which(known)).for_each(|known| known.listed = false);
    }

    fn remove(&mut self, id: EntryId) {
        self.known.retain(|known| known.id != id);
        self.gone.push(id);
    }

    fn known(&mut self, id: EntryId) -> &mut Known {
        self.known.iter_mut().find(|known| known.id == id).unwrap()
    }

    fn in_phase(&self, phase: Phase) -> Vec<EntryId> {
        self.known.iter().filter(|known| known.phase == phase).map(|known| known.id).collect()
    }

    fn check(&self) {
        for known in &self.known {
            let entry = self.map.entries.get(known.id.0).unwrap();
            assert_eq!((entry.users, entry.whole, entry.listed), (known.users, known.whole, known.listed));
            assert_eq!(self.map.get(known.id).is_some(), known.phase == Phase::Open);
            assert!(known.users > 0 || matches!(known.phase, Phase::Making | Phase::Closing));
        }
        assert_eq!(self.map.registration_count(), self.known.len());
        assert_eq!(self.map.closing, self.in_phase(Phase::Closing).len());
        assert_eq!(self.map.spans.len(), self.known.iter().filter(|known| known.listed).count());
    }

    /// Releases every grant; then nothing must be left.
    fn finish(mut self) {
        while !self.in_phase(Phase::Making).is_empty() {
            self.step(if self.grants.len().is_multiple_of(2) { Step::Made(0) } else { Step::Failed(0) });
        }
        while !self.grants.is_empty() {
            self.step(Step::Release(0));
        }
        while !self.in_phase(Phase::Closing).is_empty() {
            self.step(Step::Closed(0));
        }
        assert!(is_empty(&self.map) && self.known.is_empty());
    }
}

fn pick<T: Copy>(all: &[T], at: usize) -> Option<T> {
    all.get(at % all.len().max(1)).copied()
}

fn take<T>(all: &mut Vec<T>, at: usize) -> Option<T> {
    if all.is_empty() { None } else { Some(all.swap_remove(at % all.len())) }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn map_behaves_like_a_list(steps in steps(), limit in 1..8_usize) {
        let mut world = World::new(limit);
        world.step(Step::Open);
        world.step(Step::Open);
        steps.into_iter().for_each(|step| world.step(step));
        world.finish();
    }
}

/// All sequences of a few calls, with two scopes, two nested spans and one that overlaps both.
#[test]
fn all_short_call_sequences_hold() {
    const DEPTH: u32 = 6;
    let ask = |scope, start, len| Step::Ask { scope, memory: 0, rights: 1, start, len };
    let choices = [
        ask(0, 0, 8),
        ask(0, 2, 2),
        ask(1, 2, 8),
        Step::Made(0),
        Step::Failed(0),
        Step::Release(0),
        Step::Closed(0),
        Step::Revoke(0),
        Step::Forget { memory: 0, start: 1, len: 2 },
        Step::End(0),
    ];
    let mut worlds = 0_u32;
    let mut begun = World::new(2);
    begun.step(Step::Open);
    begun.step(Step::Open);
    let mut open = vec![(begun, 0)];
    while let Some((world, depth)) = open.pop() {
        if depth == DEPTH {
            worlds += 1;
            world.finish();
            continue;
        }
        for step in choices {
            let mut next = world.clone();
            next.step(step);
            open.push((next, depth + 1));
        }
    }
    assert_eq!(worlds, 10_u32.pow(DEPTH));
}
