//! Claims that its link belongs to the victim's own fabric, in an address of its own and in one that the victim has
//! sent. If the victim accepts it, both ends use one table of regions, and a record may name any region of the victim,
//! with or without rights.

use crate::attacker::{Attack, AttackReport};
use crate::channel::TestChannel;
use crate::intruder::{IntrudingMember, VictimRing, placed};

/// Offset of the fabric's number in a link address.
const FABRIC: std::ops::Range<usize> = 16..32;

pub(crate) struct FabricNumber(IntrudingMember);

impl FabricNumber {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let mut intruder = IntrudingMember::new(channel, false);
        intruder.reach(0);
        Self(intruder)
    }
}

impl Attack for FabricNumber {
    fn go_on(&mut self, report: &mut AttackReport) {
        let one = &mut self.0;
        let stream = 1 + (report.acts % 32) as u8;
        let (mut link, ring) = one.own_link();
        let told = one.told(0).link.clone();
        if report.acts.is_multiple_of(2) {
            link[FABRIC].copy_from_slice(&told[FABRIC]);
        } else {
            link = told;
        }
        if let Ok(taken) = one.dial(0, stream, (link, ring)) {
            report.claim("a link of another process was taken for one of the victim's own");
            let mut ring = VictimRing::new(taken);
            ring.write(placed(one.scratch_place(0), one.facts[0].private, 64));
            one.await_executed(&ring);
            let read = one.scratch(0);
            report.keep(&read);
        }
        one.leave(0, stream);
        report.acts += 1;
    }
}
