//! Names another process to a victim as the link's owner, and sends that process's proof: the process is the victim
//! itself, or the other victim. If the victim accepts it, it copies from that process's memory for the attacker.

use crate::attacker::{Attack, AttackReport};
use crate::channel::TestChannel;
use crate::intruder::{IntrudingMember, VictimRing, pulled};

/// Offset of the queue pair's number in a link address, which the attack replaces by a process id.
const NUMBER: std::ops::Range<usize> = 12..16;
/// Offset of the proof in a link address: an address and a word.
const PROOF: std::ops::Range<usize> = 64..80;

/// Names one of the two victims to the first one.
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
