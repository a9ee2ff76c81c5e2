//! Sends HELLO on very many connections, and keeps them open.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use trunkline_engine::host::UnixHost;
use trunkline_fabric::{Host as _, OobAddress, OobFrame, OobStream as _, OobTransport};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::frame::{ControlFrame as Control, VERSION};
use trunkline_proto::wire::share::ShareOffer;

use crate::attacker::{Attack, AttackReport, receive_facts, until};
use crate::channel::TestChannel;
use crate::guest::HandleGuest;
use crate::user::meet_as_stranger;

/// Connections to each victim that are held: more than a victim keeps.
const HELD: usize = 480;
/// Connections to each victim that send HELLO once and stay open: fewer than a victim keeps.
const SILENT: usize = 240;
const SETTLES: Duration = Duration::from_secs(1);

/// The first frame of a process on a control stream.
pub(crate) fn hello(process: ProcessId) -> Vec<u8> {
    Control::Hello { min: VERSION, max: VERSION, offer: ShareOffer::NONE, process }.to_bytes()
}

type Io = <<UnixHost as trunkline_fabric::Host>::Oob as OobTransport>::Stream;

/// Raises this process's limit of descriptors to the maximum.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Holds connections to both victims.
pub(crate) struct HelloStay {
    host: UnixHost,
    victims: [OobAddress; 2],
    held: [VecDeque<Io>; 2],
    most: usize,
    /// Whether it repeatedly opens connections, closing the oldest one for each.
    floods: bool,
}

impl HelloStay {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let [first, second, _] = meet_as_stranger(channel).map(|card| OobAddress(card.address));
        receive_facts(channel);
        Self::at([first, second])
    }

    /// For the control streams of a two-sided pair.
    pub(crate) fn of_two_sided(channel: &mut TestChannel) -> Self {
        let guest = HandleGuest::new(channel);
        Self::at([0, 1].map(|victim: usize| OobAddress(guest.handles[victim][1].address.clone())))
    }

    /// Only keeps connections open: opens no new ones.
    pub(crate) fn silent(self) -> Self {
        Self { most: SILENT, floods: false, ..self }
    }

    /// Holds more connections than a victim keeps. A flood closes most of its connections before they are accepted; here none is closed.
    pub(crate) fn holding(self) -> Self {
        Self { floods: false, ..self }
    }

    fn at(victims: [OobAddress; 2]) -> Self {
        raise_limit();
        let (host, held) = (UnixHost::new(|_, _| {}), [VecDeque::new(), VecDeque::new()]);
        Self { host, victims, held, most: HELD, floods: true }
    }

    /// Connects once, and sends HELLO. If a victim is too busy to accept, it connects again.
    fn call(&mut self, victim: usize, report: &mut AttackReport) {
        let address = &self.victims[victim];
        let mut stream = until("a connection", || self.host.oob().connect(address).ok());
        let bytes = hello(ProcessId(self.host.random_bytes()));
        // A connection that the victim has closed meanwhile is kept as well.
        let _ = stream.send(OobFrame { bytes, fd: None });
        self.held[victim].push_back(stream);
        report.acts += 1;
    }
}

impl Attack for HelloStay {
    fn begin(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            while self.held[victim].len() < self.most {
                self.call(victim, report);
            }
        }
        if !self.floods {
            // Wait until the victims have spent their work budget on them and have earned it again.
            std::thread::sleep(SETTLES);
        }
    }

    fn go_on(&mut self, report: &mut AttackReport) {
        if !self.floods {
            return std::thread::yield_now();
        }
        for victim in [0, 1] {
            // The victim closes the oldest connection first.
            self.held[victim].pop_front();
            self.call(victim, report);
        }
    }

    fn pause(&mut self) {
        self.held.iter_mut().for_each(VecDeque::clear);
    }
}
