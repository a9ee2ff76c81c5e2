//! Floods a victim with streams that it refuses, with links that it cannot make, and with events for a context that does not read them.

use trunkline_fabric::{OobError, OobFrame, OobListener as _, OobStream as _};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::dial::{DialMessage, RemoteHeap};
use trunkline_proto::wire::frame::RemoteRegion;

use crate::attacker::{Attack, AttackReport, until};
use crate::channel::TestChannel;
use crate::intruder::IntrudingMember;
use crate::stay::hello;

/// Refused streams at a time.
const BURST: usize = 16;

/// Repeatedly sends HELLO and then garbage.
pub(crate) struct RefusalFlood(IntrudingMember);

impl RefusalFlood {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        Self(IntrudingMember::new(channel, false))
    }
}

impl Attack for RefusalFlood {
    fn go_on(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            let mut streams: Vec<_> = (0..BURST).filter_map(|_| self.0.connect(victim).ok()).collect();
            for stream in &mut streams {
                for bytes in [hello(ProcessId([7; 16])), vec![0xff; 9]] {
                    let _ = stream.send(OobFrame { bytes, fd: None });
                }
            }
            for stream in &mut streams {
                until("the end of a stream", || stream.recv().is_err().then_some(()));
                report.acts += 1;
            }
        }
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 400
    }
}

/// Links requested from each victim at a time. The victim makes its end of each before it reads the address.
const OPENS: usize = 8;

/// Requests links with invalid addresses, as a member of the job.
pub(crate) struct OpenFlood(IntrudingMember);

impl OpenFlood {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        let mut intruder = IntrudingMember::new(channel, false);
        [0, 1].into_iter().for_each(|victim| intruder.reach(victim));
        Self(intruder)
    }
}

impl Attack for OpenFlood {
    fn go_on(&mut self, report: &mut AttackReport) {
        let one = &mut self.0;
        for victim in [0, 1] {
            let ask = |at: usize| one.ask(victim, 1 + at as u8, vec![0x5a; 1 + at * 11], None);
            let asked: Vec<_> = (0..OPENS).map(ask).collect();
            for id in asked {
                if one.await_answer(victim, id).is_ok() {
                    report.claim("a link to an invalid address was made");
                }
                report.acts += 1;
            }
        }
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 200
    }
}

/// Sends replies without a request, for a context of the victim that its owner does not use.
pub(crate) struct EventFlood {
    intruder: IntrudingMember,
    ended: bool,
}

/// The second context of a victim, as it is encoded in ids of its links.
const CONTEXT: u64 = 1 << 40;
/// Events after which the victim has accepted too many.
const EVENTS: u64 = 40_000;

impl EventFlood {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        Self { intruder: IntrudingMember::new(channel, true), ended: false }
    }
}

impl Attack for EventFlood {
    fn go_on(&mut self, report: &mut AttackReport) {
        if self.ended {
            // The victim has closed the stream: do not connect again.
            return std::thread::yield_now();
        }
        let front = self.intruder.front.as_mut().unwrap();
        let mut stream = until("the victim calls", || front.accept().unwrap());
        let heap = RemoteHeap { len: 1, region: RemoteRegion { key: 1, addr: 1 } };
        let (heaps, link) = (vec![heap; 16], vec![1; 200]);
        let taken = DialMessage::Taken { id: CONTEXT, served: 1, receives: 2, heaps, link }.to_bytes();
        let process = self.intruder.cards[2].process;
        stream.send(OobFrame { bytes: hello(process), fd: None }).unwrap();
        while report.acts < EVENTS && !self.ended {
            match stream.send(OobFrame { bytes: taken.clone(), fd: None }) {
                Ok(()) => report.acts += 1,
                // The victim reads them later.
                Err(OobError::Overflow) => self.ended = stream.recv().is_err(),
                Err(_) => self.ended = true,
            }
        }
        self.ended = true;
    }

    fn is_over(&self, _: &AttackReport) -> bool {
        self.ended
    }
}
