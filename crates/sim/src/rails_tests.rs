//! A comm over several rails: its links join by themselves, a dead rail is left and its lost operations are sent
//! again, nothing lands after that, and the rail is used again.

use std::rc::Rc;

use trunkline_engine::{
    CommFault, CommId, CommNics, EngineError, EngineParams, RecvBuf, RequestId, SharingParams,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::time::Duration;

use crate::rules_tests::{Duo, SECOND, buffer, params};
use crate::{NetworkModel, SimPid};

const LEN: u64 = 4096;

pub(crate) fn weather() -> NetworkModel {
    // Slow enough that a cut hits an operation in flight.
    NetworkModel {
        nics: 2,
        latency: 50_000,
        retry_time: 20_000_000,
        poll_time: 20_000,
        ..NetworkModel::fault_free()
    }
}

pub(crate) fn rails() -> EngineParams {
    EngineParams { stripe_min: 256, eager_max: 0, rail_time: Duration::from_millis(50), ..params() }
}

/// Two processes and a comm over both NICs of each.
pub(crate) struct Pair {
    duo: Rc<Duo>,
    pub(crate) send: CommId,
    pub(crate) recv: CommId,
    from: (MemoryRange, RecvBuf),
    into: (MemoryRange, RecvBuf),
}

impl Pair {
    fn new(seed: u64) -> Self {
        let weather = NetworkModel { numbered: seed % 2 == 1, ..weather() };
        Self::of(&Rc::new(Duo::new(seed, weather, rails())))
    }

    pub(crate) fn of(duo: &Rc<Duo>) -> Self {
        let both = CommNics::new(&[0, 1]).unwrap();
        let (listen, mut handle) = duo.b.listen(both).unwrap();
        let (mut send, mut recv) = (None, None);
        while send.is_none() || recv.is_none() {
            send = send.or_else(|| duo.a.connect(both, &mut handle).unwrap());
            recv = recv.or_else(|| duo.b.accept(listen).unwrap());
        }
        duo.b.close_listen(listen).unwrap();
        Self::open(duo, send.unwrap(), recv.unwrap())
    }

    /// Calls the function with both ends of that comm.
    pub(crate) fn open(duo: &Rc<Duo>, send: CommId, recv: CommId) -> Self {
        let (from, into) = (buffer(&duo.a, send, LEN), buffer(&duo.b, recv, LEN));
        Self { duo: Rc::clone(duo), send, recv, from, into }
    }

    /// Starts a message; returns the requests of its sending and receiving end.
    fn begin(&self, fill: u8) -> (RequestId, RequestId) {
        self.from.0.write(0, &[fill; LEN as usize]).unwrap();
        let RecvBuf { mr, offset, len, tag } = self.from.1;
        let (mut sent, mut received) = (None, None);
        while sent.is_none() || received.is_none() {
            received = received.or_else(|| self.duo.b.irecv(self.recv, &[self.into.1]).unwrap());
            sent = sent.or_else(|| self.duo.a.isend(self.send, mr, offset, len, tag).unwrap());
        }
        (sent.unwrap(), received.unwrap())
    }

    /// Tests both requests until both have ended.
    fn end(&self, (sent, received): (RequestId, RequestId)) -> [Result<(), EngineError>; 2] {
        let (mut ended, mut sizes) = ([None, None], [0; 8]);
        for _ in 0..1_000_000 {
            for (end, (engine, request)) in
                [(&self.duo.a, sent), (&self.duo.b, received)].into_iter().enumerate()
            {
                if ended[end].is_none() {
                    ended[end] = match engine.test(request, &mut sizes) {
                        Ok(false) => None,
                        Ok(true) => Some(Ok(())),
                        Err(error) => Some(Err(error)),
                    };
                }
            }
            match ended {
                [Some(one), Some(other)] => return [one, other],
                open => ended = open,
            }
        }
        let now = self.duo.world.now();
        panic!("a request does not end: {ended:?} at {now}, links {:?}", self.links());
    }

    pub(crate) fn message(&self, fill: u8) {
        let both = self.begin(fill);
        let _ended: [(); 2] = self.end(both).map(Result::unwrap);
        let mut bytes = [0; LEN as usize];
        self.into.0.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == fill), "{bytes:?}");
    }

    pub(crate) fn links(&self) -> [Vec<bool>; 2] {
        [self.duo.a.carrying_links(self.send).unwrap(), self.duo.b.carrying_links(self.recv).unwrap()]
    }

    /// Sends messages until both ends have that many links that carry; returns `false` if that takes too long.
    fn until(&self, links: usize, time: u64) -> bool {
        Self::all_until(&[self], links, time)
    }

    /// As above for several comms, in turn.
    pub(crate) fn all_until(pairs: &[&Self], links: usize, time: u64) -> bool {
        let Some(first) = pairs.first() else { return true };
        let until = first.duo.world.now() + time;
        while first.duo.world.now() < until {
            pairs.iter().for_each(|pair| pair.message(1));
            let has = |end: &Vec<bool>| end.iter().filter(|carries| **carries).count() == links;
            if pairs.iter().all(|pair| pair.links().iter().all(has)) {
                return true;
            }
        }
        false
    }
}

#[test]
fn every_link_joins_soon() {
    for seed in 0..5 {
        assert!(Pair::new(seed).until(2, SECOND / 10), "seed {seed}");
    }
}

#[test]
fn recovered_rail_is_used_again() {
    for seed in 0..5 {
        let pair = Pair::new(seed);
        assert!(pair.until(2, SECOND));
        pair.duo.world.cut_nic(SimPid(0), 1, SECOND);
        assert!(pair.until(1, 2 * SECOND), "seed {seed}: {:?}", pair.links());
        assert!(pair.until(2, 10 * SECOND), "seed {seed}: {:?}", pair.links());
    }
}

/// Four comms on one group, one of which makes no calls after the cut.
#[test]
fn recovered_rail_is_used_again_by_all_members() {
    for (seed, sleeps) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
        let duo = Rc::new(Duo::new(seed, weather(), EngineParams { sharing, ..rails() }));
        let pairs: Vec<_> = (0..4).map(|_| Pair::of(&duo)).collect();
        let mut pairs: Vec<_> = pairs.iter().collect();
        assert!(Pair::all_until(&pairs, 2, SECOND));
        assert_eq!(
            [0, 1].map(|pid| duo.world.held_resources(SimPid(pid)).links),
            [2, 2],
            "the comms share their links"
        );
        let asleep = if sleeps { pairs.pop() } else { None };
        for _ in 0..3 {
            duo.world.cut_nic(SimPid(0), 1, SECOND);
            assert!(Pair::all_until(&pairs, 1, SECOND), "seed {seed}");
            while duo.world.is_cut(SimPid(0), 1) {
                pairs.iter().for_each(|pair| pair.message(2));
            }
            let links = || pairs.iter().map(|pair| pair.links()).collect::<Vec<_>>();
            assert!(Pair::all_until(&pairs, 2, 3 * SECOND), "seed {seed}, sleeps {sleeps}: {:?}", links());
        }
        assert!(
            asleep.is_none_or(|pair| pair.until(2, 3 * SECOND)),
            "seed {seed}: the idle comm does not use the rail again"
        );
    }
}

/// The rail dies with pieces of a message on it. The message arrives, its buffer is reused, and then all delayed
/// writes land.
#[test]
fn no_late_write_lands_in_a_returned_buffer() {
    for seed in 0..40 {
        let pair = Pair::new(seed);
        assert!(pair.until(2, SECOND));
        let message = pair.begin(7);
        pair.duo.world.cut_nic(SimPid((seed % 2) as usize), 1, 1 << 60);
        let _ended: [(); 2] = pair.end(message).map(Result::unwrap);
        pair.into.0.write(0, &[9; LEN as usize]).unwrap();
        pair.duo.world.force_delayed_writes(&pair.into.0, 0, LEN);
        let mut bytes = [0; LEN as usize];
        pair.into.0.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 9), "seed {seed}: a write landed late");
    }
}

/// The rail dies after pieces of a message have arrived over it, which are never acknowledged, and before other pieces
/// have arrived.
#[test]
fn arrived_pieces_of_a_lost_link_are_not_resent() {
    for seed in 0..60 {
        let duo = Rc::new(Duo::new(seed, NetworkModel { jitter: 200_000, ..weather() }, rails()));
        let pair = Pair::of(&duo);
        assert!(pair.until(2, SECOND));
        let message = pair.begin(7);
        duo.world.advance_by(50_000 + seed * 5_000);
        duo.world.cut_nic(SimPid((seed % 2) as usize), (seed / 2 % 2) as usize, 1 << 60);
        let (mut open, until) = ([Some(message.0), Some(message.1)], duo.world.now() + 10 * SECOND);
        while open != [None; 2] {
            for (engine, request) in [&duo.a, &duo.b].into_iter().zip(&mut open) {
                // The end that has everything still has to report it.
                engine.drive_unpolled();
                *request = request.filter(|&request| !engine.test(request, &mut [0; 8]).unwrap());
            }
            assert!(duo.world.now() < until, "seed {seed}: {open:?}");
        }
    }
}

#[test]
fn with_no_rail_left_every_request_fails_once() {
    for seed in 0..4 {
        let pair = Pair::new(seed);
        assert!(pair.until(2, SECOND));
        let messages: Vec<_> = (0..3).map(|fill| pair.begin(fill)).collect();
        pair.duo.world.cut_nic(SimPid(1), 0, 1 << 60);
        pair.duo.world.cut_nic(SimPid(1), 1, 1 << 60);
        let mut failed = 0;
        for message in messages {
            for (end, ended) in pair.end(message).into_iter().enumerate() {
                failed += usize::from(ended.is_err());
                assert!(matches!(ended, Ok(()) | Err(EngineError::Comm(CommFault::Link(_)))), "{ended:?}");
                let (engine, request) = [(&pair.duo.a, message.0), (&pair.duo.b, message.1)][end];
                let again = engine.test(request, &mut [0; 8]);
                assert!(
                    matches!(again, Err(EngineError::Unknown(_))),
                    "seed {seed}: the failure is reported twice: {again:?}"
                );
            }
        }
        assert!(failed > 0, "seed {seed}");
    }
}
