//! The cache against a list that says what must be: whatever is done in whatever order, and everything that can be done in
//! a few steps.

use std::vec;

use proptest::prelude::*;

use super::*;

/// What is done. Numbers choose among what there is, by turns.
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
    Registered(usize),
    Failed(usize),
    Unpin(usize),
    Settle(usize),
    GiveUp(usize),
    Poll,
    Closed(usize),
    Forget {
        memory: usize,
        start: u64,
        len: u64,
    },
    Hide(usize),
    Idle {
        bytes: u64,
        entries: usize,
    },
    Entries(usize),
    /// Says again what was said of a registration that is gone.
    Late(usize),
}

const RIGHTS: [RegistrationRights; 3] =
    [RegistrationRights::LOCAL, RegistrationRights::WRITE, RegistrationRights::ALL];
const MEMORIES: [MemorySpace; 3] = [
    MemorySpace::Host,
    MemorySpace::Device { device: 0, allocation: Some(3) },
    MemorySpace::DmaBuf { dev: 1, inode: 2 },
];

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
            8 => at.clone().prop_map(Step::Registered),
            2 => at.clone().prop_map(Step::Failed),
            10 => at.clone().prop_map(Step::Unpin),
            6 => at.clone().prop_map(Step::Settle),
            1 => at.clone().prop_map(Step::GiveUp),
            6 => Just(Step::Poll),
            6 => at.clone().prop_map(Step::Closed),
            1 => place.prop_map(|(memory, start, len)| Step::Forget { memory, start, len }),
            1 => at.clone().prop_map(Step::Hide),
            1 => (0..40_u64, 0..5_usize).prop_map(|(bytes, entries)| Step::Idle { bytes, entries }),
            1 => (0..8_usize).prop_map(Step::Entries),
            1 => at.prop_map(Step::Late),
        ],
        1..300,
    )
}

/// What the list knows of a registration.
#[derive(Clone, Debug)]
struct Known {
    id: EntryId,
    key: RegistrationKey,
    span: ByteSpan,
    state: RegistrationPhase,
    listed: bool,
    pins: u32,
    /// When it was last used, for those that are idle.
    used: u64,
}

/// The cache, the list, and what those who use it have in hand.
#[derive(Clone)]
struct World {
    cache: PinDownCache,
    scopes: Vec<RegistrationScope>,
    ended: Vec<RegistrationScope>,
    known: Vec<Known>,
    gone: Vec<EntryId>,
    pins: Vec<EntryId>,
    waits: Vec<EntryId>,
    idle: IdleLimit,
    entries: usize,
    clock: u64,
}

impl World {
    fn new(entries: usize, idle: IdleLimit) -> Self {
        Self {
            cache: cache_of(entries, idle),
            scopes: Vec::new(),
            ended: Vec::new(),
            known: Vec::new(),
            gone: Vec::new(),
            pins: Vec::new(),
            waits: Vec::new(),
            idle,
            entries,
            clock: 0,
        }
    }

    fn step(&mut self, step: Step) {
        self.clock += 1;
        match step {
            Step::Open => self.scopes.push(self.cache.open_scope().unwrap()),
            Step::End(at) => self.end(at),
            Step::Ask { scope, memory, rights, start, len } => {
                let (memory, rights) = (MEMORIES[memory % 3], RIGHTS[rights % 3]);
                let all: Vec<_> = self.scopes.iter().chain(&self.ended).copied().collect();
                if let Some(scope) = pick(&all, scope) {
                    self.ask(
                        &RegistrationKey { scope, memory, purpose: purpose(start), rights },
                        span(start, len),
                    );
                }
            }
            Step::Registered(at) => self.registered(at),
            Step::Failed(at) => self.failed(at),
            Step::Unpin(at) => {
                if let Some(id) = take(&mut self.pins, at) {
                    self.cache.release_pin(RegistrationPin(id)).unwrap();
                    self.let_go(id);
                }
            }
            Step::Settle(at) => self.settle(at),
            Step::GiveUp(at) => {
                if let Some(id) = take(&mut self.waits, at) {
                    self.cache.give_up(RegistrationWait(id)).unwrap();
                    self.let_go(id);
                }
            }
            Step::Poll => self.poll(),
            Step::Closed(at) => {
                if let Some(id) = pick(&self.in_state(RegistrationPhase::Closing), at) {
                    self.cache.on_closed(id).unwrap();
                    self.remove(id);
                }
            }
            Step::Forget { memory, start, len } => self.forget(MEMORIES[memory % 3], span(start, len)),
            Step::Hide(at) => {
                let all: Vec<_> =
                    self.known.iter().map(|known| known.id).chain(self.gone.iter().copied()).collect();
                if let Some(id) = pick(&all, at) {
                    self.cache.hide_entry(id);
                    self.disown(|known| known.id == id);
                }
            }
            Step::Idle { bytes, entries } => {
                self.idle = IdleLimit { bytes, entries };
                self.cache.set_idle(self.idle);
                self.trim();
            }
            Step::Entries(entries) => {
                self.entries = entries;
                self.cache.set_entries(entries);
                self.trim();
            }
            Step::Late(at) => self.late(at),
        }
        self.check();
    }

    fn ask(&mut self, key: &RegistrationKey, part: ByteSpan) {
        let serves = |known: &&Known| {
            let same = RegistrationKey { rights: key.rights, ..known.key } == *key;
            same && known.listed && known.key.rights.contains_all(key.rights) && known.span.contains(part)
        };
        let of = |state| self.known.iter().filter(serves).any(|known| known.state == state);
        let (ready, coming) = (of(RegistrationPhase::Ready), of(RegistrationPhase::Registering));
        let full = self.known.len() >= self.entries;
        let closing = self
            .known
            .iter()
            .any(|known| matches!(known.state, RegistrationPhase::Leaving | RegistrationPhase::Closing));
        let idle = self.idle().next().map(|known| known.id);
        match self.cache.request_registration(key, part) {
            Err(RegistrationError::Ended(scope)) => {
                assert!(scope == key.scope && self.ended.contains(&scope))
            }
            _ if self.ended.contains(&key.scope) => panic!("{key:?} is of a scope that has ended"),
            Ok(RegistrationLookup::Hit(pin)) => {
                assert!(
                    ready
                        && self.known(pin.0).state == RegistrationPhase::Ready
                        && serves(&&*self.known(pin.0))
                );
                self.known(pin.0).pins += 1;
                self.pins.push(pin.0);
            }
            Ok(RegistrationLookup::Pending(wait)) => {
                assert!(
                    !ready
                        && self.known(wait.0).state == RegistrationPhase::Registering
                        && serves(&&*self.known(wait.0))
                );
                self.known(wait.0).pins += 1;
                self.waits.push(wait.0);
            }
            _ if ready || coming => panic!("{key:?} {part:?} is not found"),
            Ok(RegistrationLookup::Register(register)) => {
                assert!(!full && register.span == part && register.key == *key);
                assert!(!self.gone.contains(&register.id), "a name is used again");
                let (id, state) = (register.id, RegistrationPhase::Registering);
                self.known.push(Known { id, key: *key, span: part, state, listed: true, pins: 1, used: 0 });
            }
            Ok(RegistrationLookup::Later) => {
                assert!(full && (closing || idle.is_some()));
                if let (false, Some(id)) = (closing, idle) {
                    self.leave(id);
                }
            }
            Err(RegistrationError::Full(limit)) => {
                assert!(full && !closing && idle.is_none() && limit == self.entries)
            }
            Err(RegistrationError::Pins(_)) => unreachable!(),
        }
    }

    fn registered(&mut self, at: usize) {
        let Some(id) = pick(&self.in_state(RegistrationPhase::Registering), at) else { return };
        let waiting = self.waits.iter().filter(|wait| **wait == id).count() as u32;
        assert_eq!(self.cache.on_registered(id), Ok(ReadyRegistration { pin: RegistrationPin(id), waiting }));
        self.known(id).state = RegistrationPhase::Ready;
        self.pins.push(id);
    }

    fn failed(&mut self, at: usize) {
        let Some(id) = pick(&self.in_state(RegistrationPhase::Registering), at) else { return };
        let waiting = self.waits.iter().filter(|wait| **wait == id).count() as u32;
        assert_eq!(self.cache.on_failed(id), Ok(waiting));
        let known = self.known(id);
        (known.state, known.listed) = (RegistrationPhase::Failed, false);
        self.let_go(id);
    }

    fn settle(&mut self, at: usize) {
        let Some(id) = take(&mut self.waits, at) else { return };
        match (self.cache.settle_wait(RegistrationWait(id)).unwrap(), self.known(id).state) {
            (RegistrationOutcome::NotYet(wait), RegistrationPhase::Registering) => self.waits.push(wait.0),
            (RegistrationOutcome::Ready(pin), RegistrationPhase::Ready) => self.pins.push(pin.0),
            (RegistrationOutcome::Failed, RegistrationPhase::Failed) => self.let_go(id),
            other => panic!("{other:?}"),
        }
    }

    fn poll(&mut self) {
        let leaving = self.in_state(RegistrationPhase::Leaving);
        match self.cache.poll() {
            None => assert_eq!(leaving, []),
            Some(close) => {
                assert!(leaving.contains(&close.id) && !self.pins.contains(&close.id));
                let known = self.known(close.id);
                assert_eq!((close.key, close.span), (known.key, known.span));
                known.state = RegistrationPhase::Closing;
            }
        }
    }

    fn end(&mut self, at: usize) {
        let Some(scope) = take(&mut self.scopes, at) else { return };
        self.cache.close_scope(scope).unwrap();
        self.ended.push(scope);
        self.disown(|known| known.key.scope == scope);
    }

    fn forget(&mut self, memory: MemorySpace, part: ByteSpan) {
        self.cache.forget_memory(memory, part);
        self.disown(|known| known.key.memory == memory && known.span.overlaps(part));
    }

    fn disown(&mut self, whom: impl Fn(&Known) -> bool) {
        for at in 0..self.known.len() {
            if whom(&self.known[at]) {
                self.known[at].listed = false;
                if self.known[at].state == RegistrationPhase::Ready && self.known[at].pins == 0 {
                    self.leave(self.known[at].id);
                }
            }
        }
    }

    fn late(&mut self, at: usize) {
        let Some(id) = pick(&self.gone, at) else { return };
        let gone = RegistrationEventError::NoEntry;
        assert_eq!((self.cache.on_registered(id), self.cache.on_failed(id)), (Err(gone), Err(gone)));
        assert_eq!(
            (self.cache.on_closed(id), self.cache.release_pin(RegistrationPin(id))),
            (Err(gone), Err(gone))
        );
        assert_eq!(
            (self.cache.settle_wait(RegistrationWait(id)), self.cache.give_up(RegistrationWait(id))),
            (Err(gone), Err(gone))
        );
    }

    fn let_go(&mut self, id: EntryId) {
        let clock = self.clock;
        let known = self.known(id);
        known.pins -= 1;
        known.used = clock;
        match (known.pins, known.state, known.listed) {
            (0, RegistrationPhase::Failed, _) => self.remove(id),
            (0, RegistrationPhase::Ready, true) if known.span.len() <= self.idle.bytes => self.trim(),
            (0, RegistrationPhase::Ready, _) => self.leave(id),
            _ => {}
        }
    }

    /// Those nobody uses, the least recently used first.
    fn idle(&self) -> impl Iterator<Item = &Known> {
        let mut idle: Vec<_> = self
            .known
            .iter()
            .filter(|known| known.state == RegistrationPhase::Ready && known.pins == 0)
            .collect();
        idle.sort_by_key(|known| known.used);
        idle.into_iter()
    }

    fn trim(&mut self) {
        loop {
            let (count, bytes) =
                (self.idle().count(), self.idle().map(|known| known.span.len()).sum::<u64>());
            let closing = |known: &&Known| {
                !matches!(known.state, RegistrationPhase::Leaving | RegistrationPhase::Closing)
            };
            let live = self.known.iter().filter(closing).count();
            if count <= self.idle.entries && bytes <= self.idle.bytes && (live <= self.entries || count == 0)
            {
                return;
            }
            let first = self.idle().next().unwrap().id;
            self.leave(first);
        }
    }

    fn leave(&mut self, id: EntryId) {
        let known = self.known(id);
        (known.state, known.listed) = (RegistrationPhase::Leaving, false);
    }

    fn remove(&mut self, id: EntryId) {
        self.known.retain(|known| known.id != id);
        self.gone.push(id);
    }

    fn known(&mut self, id: EntryId) -> &mut Known {
        self.known.iter_mut().find(|known| known.id == id).unwrap()
    }

    fn in_state(&self, state: RegistrationPhase) -> Vec<EntryId> {
        self.known.iter().filter(|known| known.state == state).map(|known| known.id).collect()
    }

    fn check(&self) {
        for known in &self.known {
            assert_eq!(self.cache.get(known.id), Some((known.span, known.state)));
            assert_eq!(self.cache.pin_count(known.id), Some(known.pins));
        }
        let held = |scope: &&RegistrationScope| self.known.iter().any(|known| known.key.scope == **scope);
        let closing = self
            .known
            .iter()
            .filter(|known| matches!(known.state, RegistrationPhase::Leaving | RegistrationPhase::Closing));
        let usage = RegistrationUsage {
            entries: self.known.len(),
            listed: self.known.iter().filter(|known| known.listed).count(),
            idle: self.idle().count(),
            idle_bytes: self.idle().map(|known| known.span.len()).sum(),
            closing: closing.count(),
            scopes: self.scopes.len() + self.ended.iter().filter(held).count(),
        };
        assert_eq!(self.cache.current_usage(), usage);
        assert!(usage.idle <= self.idle.entries && usage.idle_bytes <= self.idle.bytes);
        assert!(self.ended.iter().all(|scope| self.cache.is_gone(*scope) != held(&scope)));
    }

    /// Everybody lets go; then nothing is left.
    fn finish(mut self) {
        while !self.scopes.is_empty() {
            self.step(Step::End(0));
        }
        while !self.in_state(RegistrationPhase::Registering).is_empty() {
            self.step(if self.clock.is_multiple_of(2) { Step::Registered(0) } else { Step::Failed(0) });
        }
        while !self.waits.is_empty() {
            self.step(Step::Settle(0));
        }
        while !self.pins.is_empty() {
            self.step(Step::Unpin(0));
        }
        while self.cache.current_usage().closing > 0 {
            self.step(Step::Poll);
            self.step(Step::Closed(0));
        }
        assert_eq!(self.cache.current_usage(), RegistrationUsage::default());
    }
}

/// A few requests are for records: those from one place on.
fn purpose(start: u64) -> RegistrationPurpose {
    if start == 3 { RegistrationPurpose::Records } else { RegistrationPurpose::Payload }
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
    fn does_what_a_list_would(steps in steps(), entries in 1..8_usize, bytes in 0..40_u64, kept in 0..5_usize) {
        let mut world = World::new(entries, IdleLimit { bytes, entries: kept });
        world.step(Step::Open);
        world.step(Step::Open);
        steps.into_iter().for_each(|step| world.step(step));
        world.finish();
    }
}

/// All that can be done in some steps, with two places, two spans that nest and one that lies across.
#[test]
fn everything_in_a_few_steps() {
    const DEPTH: u32 = 6;
    let ask = |scope, start, len| Step::Ask { scope, memory: 0, rights: 1, start, len };
    let choices = [
        ask(0, 0, 8),
        ask(0, 2, 2),
        ask(1, 2, 8),
        Step::Registered(0),
        Step::Failed(0),
        Step::Settle(0),
        Step::Unpin(0),
        Step::Poll,
        Step::Closed(0),
        Step::End(0),
    ];
    let mut worlds = 0_u32;
    let mut begun = World::new(2, IdleLimit { bytes: 8, entries: 1 });
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
