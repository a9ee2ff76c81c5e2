//! Two ends whose messages are lost, repeated and late, while comms close at one end only and queue pairs break. No message
//! overtakes another, because a control stream preserves order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

/// An event.
#[derive(Clone, Debug)]
enum Event {
    /// A comm begins to connect.
    Begin(GroupPreference),
    /// The sending end serves a comm: it sends OPEN, repeats it, or finishes wiring.
    Turn(usize),
    /// The receiving end finishes wiring, or repeats its RESULT.
    Answer(usize),
    /// The first message in flight to an end arrives, and optionally stays to arrive again.
    Arrive(usize, bool),
    /// The first message in flight to an end is lost, if messages of its kind are repeated.
    Lose(usize),
    /// A comm closes at the sending end.
    Close(usize),
    /// A comm closes at the receiving end.
    CloseThere(usize),
    /// A group's queue pairs break at an end.
    Break(usize, usize),
    /// An end destroys its next object.
    Destroy(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let wish = (0..4_u8, 0..20_u8).prop_map(|(groups_at_most, alone)| {
        let groups_at_most = if groups_at_most == 3 { u8::MAX } else { groups_at_most + 1 };
        GroupPreference { groups_at_most, alone: alone == 0, ..GroupPreference::new(1) }
    });
    let (end, which) = (0..2_usize, 0..24_usize);
    prop::collection::vec(
        prop_oneof![
            4 => wish.prop_map(Event::Begin),
            12 => which.clone().prop_map(Event::Turn),
            12 => which.clone().prop_map(Event::Answer),
            16 => (end.clone(), 0..4_u8).prop_map(|(end, stays)| Event::Arrive(end, stays == 0)),
            3 => end.clone().prop_map(Event::Lose),
            1 => which.clone().prop_map(Event::Close),
            1 => which.clone().prop_map(Event::CloseThere),
            1 => (end.clone(), which).prop_map(|(end, which)| Event::Break(end, which)),
            2 => end.prop_map(Event::Destroy),
        ],
        1..600,
    )
}

#[derive(Clone, Copy, Debug)]
enum Word {
    /// Carries the requesting end's links, if it has made some.
    Open {
        conn: u64,
        request: ShareRequest,
        address: Option<GroupId>,
    },
    /// Carries the replying end's links, if it has made some.
    Result {
        conn: u64,
        answer: Option<ShareAnswer>,
        address: Option<GroupId>,
    },
    Ready {
        conn: u64,
    },
    /// Is sent to the receiving end, or to the sending one.
    Close {
        conn: u64,
    },
}

impl Word {
    const fn is_repeated(&self) -> bool {
        !matches!(self, Self::Close { .. })
    }
}

/// The progress of a comm at the sending end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Waiting,
    Asked(GroupPlace, ShareRequest),
    Wiring(GroupPlace, GroupId),
    Seated(GroupPlace),
    Ended,
}

impl Phase {
    fn place(self) -> Option<GroupPlace> {
        match self {
            Self::Asked(place, _) | Self::Wiring(place, _) | Self::Seated(place) => Some(place),
            Self::Waiting | Self::Ended => None,
        }
    }
}

struct Comm {
    wish: GroupPreference,
    phase: Phase,
}

/// A connection at the receiving end.
#[derive(Clone, Copy)]
struct Conn {
    place: GroupPlace,
    request: ShareRequest,
    asking: Option<GroupId>,
    wired: bool,
}

struct Pair {
    pools: [GroupPool; 2],
    comms: Vec<Comm>,
    conns: BTreeMap<u64, Conn>,
    /// Messages in flight to each end.
    words: [VecDeque<Word>; 2],
    /// The other end's links to which each group's links are connected.
    wired_to: [BTreeMap<u64, GroupId>; 2],
    told: [BTreeSet<PoolMemberId>; 2],
    to_destroy: [VecDeque<GroupTeardown>; 2],
}

impl Pair {
    fn new(groups: (u8, u8), budgets: (u32, u32)) -> Self {
        let pools = [(groups.0, budgets.0), (groups.1, budgets.1)].map(|(groups, budget)| {
            let sharing = if groups == 0 { SharingMode::Off } else { SharingMode::On };
            let mut pool = pool(sharing, groups.max(1));
            pool.set_budget(0, budget);
            pool
        });
        Self {
            pools,
            comms: Vec::new(),
            conns: BTreeMap::new(),
            words: Default::default(),
            wired_to: Default::default(),
            told: Default::default(),
            to_destroy: Default::default(),
        }
    }

    fn leave(&mut self, end: usize, seat: PoolMemberId) {
        if let RemainingMembers::Last(teardown) = self.pools[end].remove_member(seat).unwrap() {
            self.to_destroy[end].push_back(teardown);
        }
    }

    fn destroy(&mut self, end: usize) {
        if let Some(teardown) = self.to_destroy[end].pop_front() {
            let group = teardown.group;
            let used = self.pools[end].seats.iter().any(|(_, seat)| seat.group == group);
            assert!(!used, "queue pairs were destroyed while a member uses them");
            assert!(self.pools[end].on_destroyed(group));
            self.wired_to[end].remove(&group.0.to_bits());
        }
    }

    fn turn(&mut self, at: usize) {
        let conn = at as u64;
        let Some(comm) = self.comms.get_mut(at) else { return };
        match comm.phase {
            Phase::Waiting => match self.pools[0].plan_connect(&sending(2), comm.wish) {
                Ok(ConnectPlan::Wait) => {}
                Ok(ask) => {
                    let (ConnectPlan::Alone(place)
                    | ConnectPlan::Rather(place)
                    | ConnectPlan::Create(place, _)
                    | ConnectPlan::First(place, _)
                    | ConnectPlan::Join(place, ..)) = ask
                    else {
                        return;
                    };
                    if let ConnectPlan::Join(..) = ask {
                        self.check_joinable(place);
                    }
                    let request = ask.to_request(self.comms[at].wish.turn).unwrap();
                    self.comms[at].phase = Phase::Asked(place, request);
                    self.open(conn, place, request);
                }
                Err(_) => comm.phase = Phase::Ended,
            },
            Phase::Asked(place, request) => self.open(conn, place, request),
            Phase::Wiring(place, theirs) => {
                self.wired_to[0].insert(place.group.0.to_bits(), theirs);
                match self.pools[0].on_wired(place.group, proof(place.group, theirs)) {
                    Ok(_) => {
                        self.comms[at].phase = Phase::Seated(place);
                        self.words[1].push_back(Word::Ready { conn });
                    }
                    Err(_) => self.close(at),
                }
            }
            Phase::Seated(_) => self.words[1].push_back(Word::Ready { conn }),
            Phase::Ended => {}
        }
    }

    fn open(&mut self, conn: u64, place: GroupPlace, request: ShareRequest) {
        let address = (!matches!(request.mode, ShareMode::Join(..))).then_some(place.group);
        self.words[1].push_back(Word::Open { conn, request, address });
    }

    /// Checks that both ends of a joinable group were wired to each other.
    fn check_joinable(&self, ours: GroupPlace) {
        assert_eq!(self.pools[0].group_phase(ours.group), Some(GroupPhase::Up));
        assert!(self.wired_to[0].contains_key(&ours.group.0.to_bits()));
    }

    fn on_open(&mut self, conn: u64, request: ShareRequest, asking: Option<GroupId>) {
        let verdict = self.pools[1].on_request(&receiving(1), conn, 1, &request).unwrap();
        let given = match verdict {
            AcceptPlan::Created(place) | AcceptPlan::Alone(place) => {
                let known = self.conns.contains_key(&conn);
                let fresh = Conn { place, request, asking, wired: false };
                assert_eq!(
                    self.conns.entry(conn).or_insert(fresh).place,
                    place,
                    "the connection got a second member"
                );
                assert!(known || asking.is_some());
                return self.result(conn);
            }
            AcceptPlan::Joined(place) => {
                let ShareMode::Join(epoch, _) = request.mode else { unreachable!() };
                self.check_joined(place, epoch);
                let fresh = Conn { place, request, asking: None, wired: true };
                assert_eq!(
                    self.conns.entry(conn).or_insert(fresh).place,
                    place,
                    "the connection got a second member"
                );
                return self.result(conn);
            }
            AcceptPlan::Stale(seat) => {
                self.conns.remove(&conn);
                self.leave(1, seat);
                return self.on_open(conn, request, asking);
            }
            AcceptPlan::Retry => Some(ShareOutcome::Retry),
            AcceptPlan::Full => Some(ShareOutcome::Full),
            AcceptPlan::NoResources(_) => None,
            AcceptPlan::Late | AcceptPlan::Later => return,
        };
        let answer = given.map(|given| ShareAnswer { given, turn: request.turn });
        self.words[0].push_back(Word::Result { conn, answer, address: None });
    }

    /// Checks a comm that joins at the receiving end: both ends of its group are wired, and to each other.
    fn check_joined(&self, theirs: GroupPlace, epoch: GroupEpoch) {
        let state = self.pools[1].group_phase(theirs.group);
        assert!(matches!(state, Some(GroupPhase::Up | GroupPhase::Draining)), "{state:?}");
        assert_eq!(
            self.pools[1].groups.get(theirs.group.0).unwrap().epoch,
            Some(epoch),
            "the comm joined a group of another epoch"
        );
        let ours = self.wired_to[1][&theirs.group.0.to_bits()];
        if let Some(&far) = self.wired_to[0].get(&ours.0.to_bits()) {
            assert_eq!(far, theirs.group, "the group is connected to another group");
        }
    }

    /// Sends the RESULT of a connection, if its links are wired.
    fn result(&mut self, conn: u64) {
        let Some(&Conn { place, request, asking, wired }) = self.conns.get(&conn) else { return };
        if !wired {
            return;
        }
        let Some(group) = self.pools[1].groups.get(place.group.0) else { return };
        let given = match (group.epoch, request.mode, asking) {
            (None, ..) => ShareOutcome::Alone,
            (Some(epoch), ShareMode::Join(..), _) => ShareOutcome::Joined { epoch, member: member(0) },
            (Some(epoch), _, Some(ours)) => {
                ShareOutcome::Created { epoch, proof: proof(ours, place.group), member: member(0) }
            }
            (Some(_), _, None) => return,
        };
        let answer = Some(ShareAnswer { given, turn: request.turn });
        self.words[0].push_back(Word::Result { conn, answer, address: Some(place.group) });
    }

    fn answer(&mut self, which: usize) {
        let Some((&conn, known)) = self.conns.iter_mut().nth(which) else { return };
        if !known.wired {
            let (place, ours) = (known.place, known.asking.unwrap());
            if self.pools[1].on_wired(place.group, proof(ours, place.group)).is_err() {
                return;
            }
            known.wired = true;
            self.wired_to[1].insert(place.group.0.to_bits(), ours);
        }
        self.result(conn);
    }

    fn on_result(&mut self, conn: u64, answer: Option<ShareAnswer>, address: Option<GroupId>) {
        let at = conn as usize;
        let Phase::Asked(place, _) = self.comms[at].phase else {
            if self.comms[at].phase == Phase::Ended {
                self.words[1].push_back(Word::Close { conn });
            }
            return;
        };
        let Some(answer) = answer else { return self.close(at) };
        match self.pools[0].on_answer(place.seat, &answer) {
            AnswerStep::Wire => self.comms[at].phase = Phase::Wiring(place, address.unwrap()),
            AnswerStep::Go => {
                self.check_same_group(place, address.unwrap());
                self.comms[at].phase = Phase::Seated(place);
                self.words[1].push_back(Word::Ready { conn });
            }
            AnswerStep::Again(wish) => {
                self.leave(0, place.seat);
                (self.comms[at].phase, self.comms[at].wish) = (Phase::Waiting, wish);
            }
            AnswerStep::Failed(_) => self.close(at),
            AnswerStep::Known => {}
        }
    }

    fn check_same_group(&self, ours: GroupPlace, theirs: GroupId) {
        assert_eq!(
            self.wired_to[0].get(&ours.group.0.to_bits()),
            Some(&theirs),
            "the comm joined a group with other links"
        );
    }

    fn close(&mut self, at: usize) {
        let Some(comm) = self.comms.get_mut(at) else { return };
        let place = comm.phase.place();
        if comm.phase != Phase::Ended {
            self.words[1].push_back(Word::Close { conn: at as u64 });
        }
        self.comms[at].phase = Phase::Ended;
        if let Some(place) = place {
            self.leave(0, place.seat);
        }
    }

    fn close_there(&mut self, conn: u64) {
        if let Some(known) = self.conns.remove(&conn) {
            self.leave(1, known.place.seat);
            self.words[0].push_back(Word::Close { conn });
        }
    }

    fn arrive(&mut self, end: usize, word: Word) {
        match word {
            Word::Open { conn, request, address } => self.on_open(conn, request, address),
            Word::Result { conn, answer, address } => self.on_result(conn, answer, address),
            Word::Ready { conn } => {
                if let Some(known) = self.conns.get(&conn) {
                    self.pools[1].on_ready(known.place.seat).unwrap();
                }
            }
            Word::Close { conn } if end == 0 => {
                if let Some(place) = self.comms[conn as usize].phase.place() {
                    self.leave(0, place.seat);
                }
                self.comms[conn as usize].phase = Phase::Ended;
            }
            Word::Close { conn } => {
                if let Some(known) = self.conns.remove(&conn) {
                    self.leave(1, known.place.seat);
                }
            }
        }
    }

    fn on_broken(&mut self, end: usize, which: usize) {
        let groups = self.pools[end].group_usages().count();
        let group = self.pools[end].group_usages().nth(which % groups.max(1)).map(|group| group.id);
        let Some(group) = group else { return };
        let state = self.pools[end].group_phase(group);
        let inside: BTreeSet<_> = {
            let seats = self.pools[end].seats.iter().filter(|(_, seat)| seat.group == group);
            seats.map(|(id, _)| PoolMemberId(id)).collect()
        };
        let told = self.pools[end].on_broken(group);
        for &seat in &told {
            assert!(inside.contains(&seat), "an unknown member was reported");
            assert!(self.told[end].insert(seat), "a member was reported twice");
        }
        let news = !matches!(state, Some(GroupPhase::Broken | GroupPhase::Leaving));
        assert_eq!(told.len(), if news { inside.len() } else { 0 });
        // Comms that had not connected yet try again. At the sending end, the other comms stay until they are closed.
        if end == 1 {
            let conns: Vec<_> =
                self.conns.iter().filter(|(_, known)| told.contains(&known.place.seat)).collect();
            let conns: Vec<u64> = conns.into_iter().map(|(&conn, _)| conn).collect();
            conns.into_iter().for_each(|conn| self.close_there(conn));
            return;
        }
        for at in 0..self.comms.len() {
            let phase = self.comms[at].phase;
            let Some(place) = phase.place().filter(|place| told.contains(&place.seat)) else { continue };
            if let Phase::Asked(..) = phase {
                self.leave(0, place.seat);
                self.comms[at].wish.turn += 1;
                self.comms[at].phase = Phase::Waiting;
            } else if let Phase::Wiring(..) = phase {
                self.close(at);
            }
        }
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Begin(wish) => self.comms.push(Comm { wish, phase: Phase::Waiting }),
            Event::Turn(which) => self.turn(which % self.comms.len().max(1)),
            Event::Answer(which) => self.answer(which % self.conns.len().max(1)),
            Event::Arrive(end, stays) => {
                let Some(word) = self.words[end].pop_front() else { return };
                if stays && word.is_repeated() {
                    self.words[end].push_front(word);
                }
                self.arrive(end, word);
            }
            Event::Lose(end) => {
                if self.words[end].front().is_some_and(Word::is_repeated) {
                    self.words[end].pop_front();
                }
            }
            Event::Close(which) => self.close(which % self.comms.len().max(1)),
            Event::CloseThere(which) => {
                let conn = self.conns.keys().nth(which % self.conns.len().max(1)).copied();
                conn.into_iter().for_each(|conn| self.close_there(conn));
            }
            Event::Break(end, which) => self.on_broken(end, which),
            Event::Destroy(end) => self.destroy(end),
        }
    }

    /// Continues without losses until the state is stable.
    fn settle(&mut self) {
        // Each round may give one comm links of its own, while the other end has not reported that it does not share.
        for _ in 0..40 + 4 * self.comms.len() {
            (0..self.comms.len())
                .filter(|&at| !matches!(self.comms[at].phase, Phase::Seated(_)))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|at| self.turn(at));
            (0..self.conns.len()).for_each(|which| self.answer(which));
            for end in [1, 0] {
                for _ in 0..10_000 {
                    let Some(word) = self.words[end].pop_front() else { break };
                    self.arrive(end, word);
                }
                while !self.to_destroy[end].is_empty() {
                    self.destroy(end);
                }
            }
        }
    }

    /// Checks that every attempt has ended, and that a comm with a member at both ends has both in one group.
    fn check_settled(&self) {
        for (at, comm) in self.comms.iter().enumerate() {
            let ended = matches!(comm.phase, Phase::Seated(_) | Phase::Ended);
            assert!(ended, "comm {at}: {:?}", comm.phase);
            let (Phase::Seated(ours), Some(theirs)) = (comm.phase, self.conns.get(&(at as u64))) else {
                continue;
            };
            let epoch = |pool: &GroupPool, group: GroupId| pool.groups.get(group.0).unwrap().epoch;
            let [here, there] =
                [(0, ours.group), (1, theirs.place.group)].map(|(end, group)| epoch(&self.pools[end], group));
            assert_eq!(here, there, "comm {at} is in two epochs");
            assert_eq!(self.wired_to[0][&ours.group.0.to_bits()], theirs.place.group);
            assert_eq!(self.wired_to[1][&theirs.place.group.0.to_bits()], ours.group);
        }
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn ends_always_agree_and_every_attempt_ends(
        groups in (0..4_u8, 0..4_u8),
        budgets in (0..10_u32, 0..10_u32),
        heard: bool,
        events in events(),
    ) {
        let most = |limit| if limit == 0 { 1000 } else { limit };
        let mut pair = Pair::new(groups, (most(budgets.0), most(budgets.1)));
        let empty = pair.pools.each_ref().map(GroupPool::pool_usage);
        let offer = pair.pools[1].config().sharing_offer();
        for event in &events {
            match event {
                Event::Begin(wish) if heard => pair.event(&Event::Begin(wish.with_offer(offer))),
                event => pair.event(event),
            }
        }
        pair.settle();
        pair.check_settled();
        (0..pair.comms.len()).for_each(|at| pair.close(at));
        pair.settle();
        let left: Vec<_> = pair.conns.keys().copied().collect();
        left.into_iter().for_each(|conn| pair.close_there(conn));
        pair.settle();
        prop_assert_eq!(pair.pools.each_ref().map(GroupPool::pool_usage), empty);
    }
}
