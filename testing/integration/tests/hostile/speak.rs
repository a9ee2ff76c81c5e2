//! A member that says it is its neighbour: asks for links in its name, gives its links and streams up, and spoils a word.

use trunkline_fabric::{Frame, OobStream as _};
use trunkline_proto::wire::dial::Word;
use trunkline_proto::wire::rma::Stream;

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
        let name = Stream::new(0).unwrap();
        let mut words =
            vec![Word::Spoil { proof, heap: 0, offset: UNTOUCHED, value: 9 }, Word::Leave { stream: name }];
        // The links that the neighbour may have here.
        words.extend((0..8).map(|slot| Word::Down { served: 1 << 32 | slot }));
        let (link, ring) = one.own_link();
        let dial = Word::Dial { id: 7, proof, member: 1, stream: name, path: 0, link };
        stream.send(Frame { bytes: hello(neighbour), fd: None }).unwrap();
        for word in words {
            stream.send(Frame { bytes: word.to_bytes(), fd: None }).unwrap();
        }
        let fd = Some(trunkline_fabric::PassedFd::own(ring));
        stream.send(Frame { bytes: dial.to_bytes(), fd }).unwrap();
        let is_taken = until("an answer", || match stream.recv() {
            Ok(Some(frame)) => match Word::from_bytes(&frame.bytes) {
                Ok(Word::Taken { .. }) => Some(true),
                Ok(Word::Refused { .. }) => Some(false),
                _ => None,
            },
            Ok(None) => None,
            Err(_) => Some(false),
        });
        if is_taken {
            report.claim("a link was made in the name of the neighbour");
        }
        report.acts += 1;
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 10
    }
}
