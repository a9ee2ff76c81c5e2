//! An attacker's process: selects an attack, and runs it when the test commands. Each attack is in a file of its own.

use std::time::{Duration, Instant};

use crate::channel::TestChannel;
use crate::victim::VictimFacts;
use crate::{control, echo, exhaust, fabric_number, flood, introduce, lengths, speak, stay, stream, user};

/// A victim that does not reply to an attack for this long is considered dead.
const LIMIT: Duration = Duration::from_secs(10);
/// Most bytes in a report of those that an attack has read.
const LOOT: usize = 1 << 20;

/// The result of an attack.
#[derive(Debug, Default)]
pub(crate) struct AttackReport {
    /// Number of attempts.
    pub(crate) acts: u64,
    /// Acts of victims that a correct process refuses.
    pub(crate) claims: String,
    /// Bytes received from victims that may contain secrets.
    pub(crate) loot: Vec<u8>,
}

impl AttackReport {
    pub(crate) fn claim(&mut self, text: &str) {
        if !self.claims.contains(text) {
            self.claims.push_str(text);
        }
    }

    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if self.loot.len() + bytes.len() <= LOOT && bytes.iter().any(|byte| *byte != 0) {
            self.loot.extend_from_slice(bytes);
        }
    }

    pub(crate) fn receive(channel: &mut TestChannel) -> Self {
        let acts = channel.receive_numbers()[0];
        let claims = String::from_utf8(channel.receive()).unwrap();
        Self { acts, claims, loot: channel.receive() }
    }

    fn send(&self, channel: &mut TestChannel) {
        channel.send_numbers(&[self.acts]);
        channel.send(self.claims.as_bytes());
        channel.send(&self.loot);
    }
}

/// One kind of attack.
pub(crate) trait Attack {
    /// Acquires the resources that the attack needs, before the window is measured.
    fn begin(&mut self, _: &mut AttackReport) {}

    /// Attacks once more, for a short time.
    fn go_on(&mut self, report: &mut AttackReport);

    /// Frees those resources: the next window is one without the attack.
    fn pause(&mut self) {}

    /// Does the acts for which the victims wait, after the last window.
    fn finish(&mut self, _: &mut AttackReport) {}

    /// Whether every variant was tried often enough.
    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 3
    }
}

/// Runs the attack on the test's commands.
pub(crate) fn play(name: &str, mut channel: TestChannel) {
    let (mut attack, cannot): (Box<dyn Attack>, _) = match name {
        "echo" => (Box::new(echo::ProofEcho::new(&mut channel, 0)), None),
        "third" => (Box::new(echo::ProofEcho::new(&mut channel, 1)), None),
        "fabric number" => (Box::new(fabric_number::FabricNumber::new(&mut channel)), None),
        "other user" => {
            let user = user::OtherUser::new(&mut channel);
            let cannot = (!user.is_other()).then_some("only root can be another user");
            (Box::new(user), cannot)
        }
        "stay" => (Box::new(stay::HelloStay::new(&mut channel)), None),
        "refusals" => (Box::new(flood::RefusalFlood::new(&mut channel)), None),
        "opens" => (Box::new(flood::OpenFlood::new(&mut channel)), None),
        "events" => (Box::new(flood::EventFlood::new(&mut channel)), None),
        "speak" => (Box::new(speak::NeighbourSpeech::new(&mut channel)), None),
        "control stay" => (Box::new(stay::HelloStay::of_two_sided(&mut channel)), None),
        "silence" => (Box::new(stay::HelloStay::new(&mut channel).silent()), None),
        "hold" => (Box::new(stay::HelloStay::new(&mut channel).holding()), None),
        "control silence" => (Box::new(stay::HelloStay::of_two_sided(&mut channel).silent()), None),
        "control opens" => (Box::new(control::OpenFrames::new(&mut channel)), None),
        "control forgery" => (Box::new(control::ForgedFrames::new(&mut channel)), None),
        "introductions" => (Box::new(introduce::ForeignIntroduction::new(&mut channel)), None),
        "stream strangers" => (Box::new(stream::StreamStrangers::new(&mut channel)), None),
        "stream frames" => (Box::new(stream::StreamFrames::new(&mut channel)), None),
        "lengths" => (Box::new(lengths::LengthOverflow::new(&mut channel)), None),
        "exhaust" => (Box::new(exhaust::StoreExhaustion::new(&mut channel, false)), None),
        "store speech" => (Box::new(exhaust::StoreExhaustion::new(&mut channel, true)), None),
        other => panic!("unknown attack {other}"),
    };
    channel.send(cannot.map_or_else(|| "ready".to_owned(), |why| format!("cannot: {why}")).as_bytes());
    let mut report = AttackReport::default();
    channel.wait_for_ever();
    loop {
        match channel.receive().as_slice() {
            b"attack" => {
                attack.begin(&mut report);
                channel.send(b"on");
                until_told(&mut channel, || attack.go_on(&mut report));
                attack.pause();
                channel.send_numbers(&[attack.is_over(&report).into()]);
            }
            b"finish" => {
                attack.finish(&mut report);
                break;
            }
            other => panic!("unknown command of the test: {other:?}"),
        }
    }
    // Close the connections of the attack first.
    drop(attack);
    report.send(&mut channel);
    while channel.receive() != b"end" {}
}

/// Repeats a step until the test sends the next command.
fn until_told(channel: &mut TestChannel, mut step: impl FnMut()) -> Vec<u8> {
    loop {
        step();
        if let Some(command) = channel.try_receive() {
            return command;
        }
    }
}

/// The facts of both victims.
pub(crate) fn receive_facts(channel: &mut TestChannel) -> [VictimFacts; 2] {
    std::array::from_fn(|_| VictimFacts::from_numbers(&channel.receive_numbers()))
}

/// Repeats an attempt until it succeeds.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(done) = step() {
            return done;
        }
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
    }
}
