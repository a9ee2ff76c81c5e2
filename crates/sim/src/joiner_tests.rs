//! A comm that joins a group and fails, at either end and at any step, fails alone: the members lose no link and no
//! byte, and are not notified.

use std::rc::Rc;

use trunkline_engine::{CommId, CommNics, EngineParams, ListenId, SharingParams};
use trunkline_proto::pool::config::SharingMode;
use trunkline_proto::time::Duration;

use crate::rails_tests::{Pair, rails, weather};
use crate::rules_tests::{Duo, SECOND};
use crate::{DeniedResource, NetworkModel, SimPid};

/// One group for all comms over both NICs.
fn sharing() -> EngineParams {
    let sharing = SharingParams { sharing: SharingMode::On, groups: 1, ..SharingParams::default() };
    EngineParams { sharing, ..rails() }
}

/// Two comms of one group, over both NICs of each process.
struct Neighbours {
    duo: Rc<Duo>,
    pairs: [Pair; 2],
}

impl Neighbours {
    fn new(seed: u64, weather: NetworkModel) -> Self {
        let duo = Rc::new(Duo::new(seed, weather, sharing()));
        let pairs = [Pair::of(&duo), Pair::of(&duo)];
        let here = Self { duo, pairs };
        assert!(Pair::all_until(&here.pairs.iter().collect::<Vec<_>>(), 2, SECOND));
        here.are_unharmed("at first");
        here
    }

    /// Sends a message on each comm; all its links must exist before and after.
    fn are_unharmed(&self, when: &str) {
        self.duo.a.progress_all();
        self.duo.b.progress_all();
        for pair in &self.pairs {
            assert_eq!(pair.links(), [[true; 2]; 2], "{when}");
            pair.message(7);
            assert_eq!(pair.links(), [[true; 2]; 2], "{when}");
        }
        let failed = [&self.duo.a, &self.duo.b].map(|engine| engine.counters().requests_failed);
        let links = [0, 1].map(|pid| self.duo.world.held_resources(SimPid(pid)).links);
        assert_eq!((links, failed), ([2; 2], [0; 2]), "{when}");
    }

    /// Repeats that for a while.
    fn stay_unharmed(&self, nanos: u64, when: &str) {
        let until = self.duo.world.now() + nanos;
        while self.duo.world.now() < until {
            self.are_unharmed(when);
        }
    }
}

/// The state of a joining comm.
struct Joiner {
    listen: Option<ListenId>,
    handle: [u8; 128],
    send: Option<CommId>,
    recv: Option<CommId>,
    /// The sending end received a refusal.
    failed: bool,
}

impl Joiner {
    fn new(duo: &Duo) -> Self {
        let (listen, handle) = duo.b.listen(both()).unwrap();
        Self { listen: Some(listen), handle, send: None, recv: None, failed: false }
    }

    /// Makes one call at each end; returns whether neither has failed.
    fn step(&mut self, duo: &Duo) -> bool {
        let mut well = true;
        if self.send.is_none() && !self.failed {
            let got = duo.a.connect(both(), &mut self.handle);
            self.failed = got.is_err();
            self.send = got.ok().flatten();
        }
        if let Some(listen) = self.listen
            && self.recv.is_none()
        {
            let got = duo.b.accept(listen);
            well &= got.is_ok();
            self.recv = got.ok().flatten();
        }
        well && !self.failed
    }

    fn close_listen(&mut self, duo: &Duo) {
        if let Some(listen) = self.listen.take() {
            duo.b.close_listen(listen).unwrap();
        }
    }

    fn close(&mut self, duo: &Duo) {
        self.close_listen(duo);
        self.send.take().into_iter().for_each(|comm| duo.a.close(comm).unwrap());
        self.recv.take().into_iter().for_each(|comm| duo.b.close(comm).unwrap());
    }
}

fn both() -> CommNics {
    CommNics::new(&[0, 1]).unwrap()
}

#[test]
fn denied_link_of_a_member_harms_no_other() {
    for (pid, denied) in [DeniedResource::Links, DeniedResource::Addresses, DeniedResource::Connections]
        .into_iter()
        .flat_map(|denied| [(SimPid(0), denied), (SimPid(1), denied)])
    {
        let here = Neighbours::new(1, weather());
        let when = format!("{pid} is denied {denied:?}");
        let mut joiner = Joiner::new(&here.duo);
        here.duo.world.deny_resource(Some((pid, denied)));
        while joiner.send.is_none() || joiner.recv.is_none() {
            assert!(
                joiner.step(&here.duo),
                "{when}: the joiner failed, although its first link is the group's"
            );
            here.are_unharmed(&when);
        }
        let joined = Pair::open(&here.duo, joiner.send.take().unwrap(), joiner.recv.take().unwrap());
        joiner.close(&here.duo);
        let until = here.duo.world.now() + 3 * SECOND;
        while here.duo.world.now() < until {
            here.are_unharmed(&when);
            joined.message(3);
        }
        here.duo.world.deny_resource(None);
        let all = [&here.pairs[0], &joined, &here.pairs[1]];
        assert!(Pair::all_until(&all, 2, 10 * SECOND), "{when}: {:?}", joined.links());
        here.are_unharmed(&when);
    }
}

#[test]
fn member_without_mailbox_fails_alone() {
    for pid in [SimPid(0), SimPid(1)] {
        let here = Neighbours::new(1, weather());
        let when = format!("{pid} is denied regions");
        // A message of the other members needs a region too, so these continue with their present ones.
        here.duo.world.deny_resource(Some((pid, DeniedResource::Regions)));
        let mut joiners: Vec<_> = (0..4).map(|_| Joiner::new(&here.duo)).collect();
        for joiner in &mut joiners {
            while !joiner.failed && (joiner.send.is_none() || joiner.recv.is_none()) {
                joiner.step(&here.duo);
                here.are_unharmed(&when);
            }
        }
        assert!(joiners.iter().any(|joiner| joiner.failed), "{when}");
        here.duo.world.deny_resource(None);
        joiners.iter_mut().for_each(|joiner| joiner.close(&here.duo));
        here.stay_unharmed(SECOND, &when);
        let seats = [here.duo.a.sharing_usage(), here.duo.b.sharing_usage()]
            .map(|riding| (riding.pool.members, riding.wrong));
        assert_eq!(seats, [(2, None), (2, None)], "{when}");
    }
}

/// The end that abandons a connection while it is being made: its caller makes no further calls, or closes it.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Sender,
    Receiver,
    Both,
}

impl Ends {
    /// Abandons at each end, after each number of steps.
    fn all(steps: u64) -> impl Iterator<Item = (u64, Self)> {
        (0..steps).flat_map(|steps| [Self::Sender, Self::Receiver, Self::Both].map(|ends| (steps, ends)))
    }

    fn give_up(self, duo: &Duo, joiner: &mut Joiner) {
        if matches!(self, Self::Sender | Self::Both) {
            joiner.failed = true;
            joiner.send.take().into_iter().for_each(|comm| duo.a.close(comm).unwrap());
        }
        if matches!(self, Self::Receiver | Self::Both) {
            joiner.close_listen(duo);
            joiner.recv.take().into_iter().for_each(|comm| duo.b.close(comm).unwrap());
        }
    }
}

#[test]
fn abandoned_member_harms_no_other_at_any_step() {
    // Late completions arrive long after the member was reported as ended.
    let late = NetworkModel { latency: 400_000, ..weather() };
    for (steps, ends) in Ends::all(30) {
        let here = Neighbours::new(steps, late.clone());
        let when = format!("after {steps} steps, {ends:?}");
        let mut joiner = Joiner::new(&here.duo);
        for _ in 0..steps {
            assert!(joiner.step(&here.duo), "{when}");
            here.duo.a.drive_unpolled();
            here.duo.b.drive_unpolled();
            here.duo.world.advance_by(20_000);
        }
        ends.give_up(&here.duo, &mut joiner);
        here.stay_unharmed(SECOND / 2, &when);
        joiner.close(&here.duo);
        here.stay_unharmed(SECOND / 2, &when);
    }
}

#[test]
fn joiner_survives_the_end_of_the_creator() {
    for (steps, ends) in Ends::all(40) {
        let params = EngineParams { connect_time: Duration::from_secs(3), ..sharing() };
        let duo = Rc::new(Duo::new(steps, NetworkModel { latency: 100_000, ..weather() }, params));
        let when = format!("after {steps} steps, {ends:?}");
        let mut maker = Joiner::new(&duo);
        while duo.a.sharing_usage().pool.groups == 0 {
            maker.step(&duo);
        }
        let mut joiner = Joiner::new(&duo);
        let until = duo.world.now() + 20 * SECOND;
        for step in 0.. {
            if step == steps {
                ends.give_up(&duo, &mut maker);
            }
            maker.step(&duo);
            assert!(joiner.step(&duo), "{when}: the joiner fails with another comm");
            if step >= steps && joiner.send.is_some() && joiner.recv.is_some() {
                break;
            }
            assert!(duo.world.now() < until, "{when}: the joiner hangs");
            duo.world.advance_by(10_000);
        }
        let pair = Pair::open(&duo, joiner.send.take().unwrap(), joiner.recv.take().unwrap());
        maker.close(&duo);
        joiner.close(&duo);
        assert!(Pair::all_until(&[&pair], 2, 10 * SECOND), "{when}: {:?}", pair.links());
        for _ in 0..100 {
            pair.message(5);
            duo.a.progress_all();
            duo.b.progress_all();
        }
        assert_eq!(pair.links(), [[true; 2]; 2], "{when}");
        assert_eq!([&duo.a, &duo.b].map(|engine| engine.counters().requests_failed), [0; 2], "{when}");
    }
}
