//! A member that impersonates another member: requests links in its name, gives up its links and streams, and sets an error word.

use trunkline_fabric::{OobFrame, OobStream as _};
use trunkline_proto::wire::dial::DialMessage;
use trunkline_proto::wire::rma::RmaStream;

use crate::attacker::{Attack, AttackReport, until};
use crate::channel::TestChannel;
use crate::intruder::IntrudingMember;
use crate::one_sided::UNTOUCHED;
use crate::stay::hello;

pub(crate) struct NeighbourSpeech(IntrudingMember);

impl NeighbourSpeech {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let mut intruder = IntrudingMember::new(channel, false);
        intruder.reach(0);
        Self(intruder)
    }
}

impl Attack for NeighbourSpeech {
    fn go_on(&mut self, report: &mut AttackReport) {
        let one = &mut self.0;
        let Ok(mut stream) = one.connect(0) else { return };
        let (neighbour, own) = (one.cards[1].process, one.proof(0));
        let proof = if report.acts.is_multiple_of(2) { own } else { [0x55; 16] };
        let name = RmaStream::new(0).unwrap();
        let mut words = vec![
            DialMessage::Spoil { proof, heap: 0, offset: UNTOUCHED, value: 9 },
            DialMessage::Leave { stream: name },
        ];
        // The links that the impersonated member may have at the victim.
        words.extend((0..8).map(|slot| DialMessage::Down { served: 1 << 32 | slot }));
        let (link, ring) = one.own_link();
        let dial = DialMessage::Dial { id: 7, proof, member: 1, stream: name, path: 0, link };
        stream.send(OobFrame { bytes: hello(neighbour), fd: None }).unwrap();
        for word in words {
            stream.send(OobFrame { bytes: word.to_bytes(), fd: None }).unwrap();
        }
        let fd = Some(trunkline_fabric::PassedFd::from_own_process(ring));
        stream.send(OobFrame { bytes: dial.to_bytes(), fd }).unwrap();
        let is_taken = until("a reply", || match stream.recv() {
            Ok(Some(frame)) => match DialMessage::from_bytes(&frame.bytes) {
                Ok(DialMessage::Taken { .. }) => Some(true),
                Ok(DialMessage::Refused { .. }) => Some(false),
                _ => None,
            },
            Ok(None) => None,
            Err(_) => Some(false),
        });
        if is_taken {
            report.claim("a link was made in the name of another member");
        }
        report.acts += 1;
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 10
    }
}
