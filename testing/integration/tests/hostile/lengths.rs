//! Sends records whose lengths overflow any counter, for retired memory: no region bounds those.

use crate::attacker::{Attack, AttackReport};
use crate::channel::TestChannel;
use crate::intruder::{IntrudingMember, VictimRing, write};

/// Lengths that no correct writer sends.
const LENGTHS: [u64; 4] = [u64::MAX, 1 << 63, u64::MAX - 4095, 1 << 40];

pub(crate) struct LengthOverflow(IntrudingMember);

impl LengthOverflow {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let mut intruder = IntrudingMember::new(channel, false);
        intruder.reach(0);
        Self(intruder)
    }
}

impl Attack for LengthOverflow {
    fn go_on(&mut self, report: &mut AttackReport) {
        let one = &mut self.0;
        let stream = 1 + (report.acts % 32) as u8;
        let link = one.own_link();
        let taken = one.dial(0, stream, link).expect("an honest link");
        let mut ring = VictimRing::new(taken);
        let len = LENGTHS[report.acts as usize % LENGTHS.len()];
        // In a region, in the writer's memory, and in memory of both processes.
        let (form, at) =
            [(2, [0, 0, len, 0]), (3, [0, len, 0, 0]), (4, [0, len, 0, 0])][report.acts as usize % 3];
        ring.write(write((one.facts[0].retired, 0), form, at));
        ring.write(write((one.facts[0].retired, 0), form, at));
        one.await_executed(&ring);
        if ring.executed() > 0 {
            report.claim("a record longer than any was executed");
        }
        one.leave(0, stream);
        report.acts += 1;
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 12
    }
}
