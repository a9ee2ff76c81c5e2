//! Names a process to a victim as the one that the link is of, and shows the proof that this process has given: the victim itself, or the
//! other one of the pair. Where it is believed, the victim copies from there for the attacker.

use crate::attacker::{Attack, AttackReport};
use crate::channel::TestChannel;
use crate::intruder::{IntrudingMember, VictimRing, pulled};

/// Where a link address holds the number of its queue pair, in whose place the number of a process is put here.
const NUMBER: std::ops::Range<usize> = 12..16;
/// Where it holds the proof: an address and a word.
const PROOF: std::ops::Range<usize> = 64..80;

/// Names one of the pair to the first.
pub(crate) struct ProofEcho {
    intruder: IntrudingMember,
    named: usize,
}

impl ProofEcho {
    pub(crate) fn new(channel: &mut TestChannel, named: usize) -> Self {
        let mut intruder = IntrudingMember::new(channel, false);
        intruder.reach(0);
        intruder.reach(named);
        Self { intruder, named }
    }
}

impl Attack for ProofEcho {
    fn go_on(&mut self, report: &mut AttackReport) {
        let one = &mut self.intruder;
        let stream = 1 + (report.acts % 32) as u8;
        let (mut link, ring) = one.own_link();
        let facts = one.facts[self.named];
        link[NUMBER].copy_from_slice(&(facts.pid as u32).to_le_bytes());
        link[PROOF].copy_from_slice(&one.told(self.named).link[PROOF]);
        if let Ok(taken) = one.dial(0, stream, (link, ring)) {
            let mut ring = VictimRing::new(taken);
            ring.write(pulled(one.scratch_place(0), facts.canary, 64));
            if one.await_executed(&ring) {
                report.claim("bytes of another process were copied");
            }
            let read = one.scratch(0);
            report.keep(&read);
        }
        one.leave(0, stream);
        report.acts += 1;
    }
}
