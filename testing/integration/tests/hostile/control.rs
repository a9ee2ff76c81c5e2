//! Attacks on the control streams of a two-sided pair: floods of OPENs, OPENs and other frames for foreign connections,
//! and streams that send no proof.

use std::collections::VecDeque;

use trunkline_fabric::{OobError, OobFrame, OobStream as _};
use trunkline_proto::wire::frame::{
    ControlFrame as Control, LinkDown, LinkOpen, OpenAnswer, RemoteRegion, ResultFrame,
};
use trunkline_proto::wire::share::{self, ShareOutcome};

use crate::attacker::{Attack, AttackReport, until};
use crate::channel::TestChannel;
use crate::guest::{ControlIo, HandleGuest};
use crate::stay::raise_limit;

/// Streams to each victim on which a guest requests connections.
const STREAMS: usize = 16;
/// OPENs in flight on one stream.
const OPENS: usize = 8;

/// Requests connections without end, with the handle that it was given, over invalid links. Each OPEN carries a descriptor.
pub(crate) struct OpenFrames {
    guest: HandleGuest,
    streams: [VecDeque<ControlIo>; 2],
}

impl OpenFrames {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        raise_limit();
        Self { guest: HandleGuest::new(channel), streams: [VecDeque::new(), VecDeque::new()] }
    }

    /// Sends requests on one stream; returns whether the stream still works.
    fn ask(&mut self, victim: usize, stream: &mut ControlIo, report: &mut AttackReport) -> bool {
        // Discard the RESULTs, which refuse the unknown link.
        while let Ok(Some(_)) = stream.recv() {}
        let handle = self.guest.handles[victim][1].clone();
        for _ in 0..OPENS {
            let open = Control::Open(self.guest.open(&handle));
            match self.guest.send_with_file(stream, &open) {
                Ok(()) => report.acts += 1,
                // The victim reads it later.
                Err(OobError::Overflow) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl Attack for OpenFrames {
    fn go_on(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            let held = &mut self.streams[victim];
            if held.len() < STREAMS {
                held.extend(self.guest.connect(victim));
            }
            let Some(mut stream) = held.pop_front() else { continue };
            if self.ask(victim, &mut stream, report) {
                self.streams[victim].push_back(stream);
            }
        }
    }

    fn pause(&mut self) {
        self.streams.iter_mut().for_each(VecDeque::clear);
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 2000
    }
}

/// Frames for foreign connections: an OPEN without the nonce, and all frames that end, acknowledge or change a connection of
/// the pair, whose ids are small numbers; then an OPEN that cannot be parsed.
pub(crate) struct ForgedFrames(HandleGuest);

/// Slots and generations that are tried as ids.
const SLOTS: u64 = 3;
const GENERATIONS: u64 = 2;

impl ForgedFrames {
    pub(crate) fn new(channel: &mut TestChannel) -> Self {
        Self(HandleGuest::new(channel))
    }

    /// All frames about the connection with this id.
    fn frames(id: u64) -> Vec<Control> {
        let region = RemoteRegion { key: u64::MAX, addr: u64::MAX };
        let link = LinkDown { id, link: 0, epoch: 0, answer: false, next: u32::MAX, standing: None };
        let open = LinkOpen { id, link: 0, epoch: 1, mailbox: region, address: vec![0x5a; 120] };
        let share = share::ShareAnswer { given: ShareOutcome::Alone, turn: 0 };
        let reply = ResultFrame {
            conn: id,
            answer: OpenAnswer::Accepted,
            matched: false,
            remote_len: false,
            comm: id,
            fins: region,
            eager_max: u32::MAX,
            eager_credits: u32::MAX,
            link: vec![0x5a; 120],
            share,
        };
        vec![
            Control::Result(reply),
            Control::Ready { comm: id, conn: id },
            Control::LinkDown(link),
            Control::LinkOpen(open),
            Control::LinkReady { id, link: 0, epoch: 1 },
            Control::Stop { id },
            Control::Gone { id },
            Control::Close { id, messages: 0 },
        ]
    }

    /// The RESULT of an OPEN without the nonce of the pair's listener; `None` if the stream has ended.
    fn ask_uninvited(&mut self, victim: usize, stream: &mut ControlIo) -> Option<OpenAnswer> {
        let handle = self.0.handles[victim][0].clone();
        let open = self.0.open(&handle);
        self.0.send_with_file(stream, &Control::Open(open)).ok()?;
        until("a RESULT of an OPEN", || match stream.recv() {
            Ok(Some(frame)) => match Control::from_bytes(&frame.bytes) {
                Ok(Control::Result(reply)) => Some(Some(reply.answer)),
                _ => None,
            },
            Ok(None) => None,
            Err(_) => Some(None),
        })
    }

    /// OPENs that cannot be parsed: without a link, with one that is longer than the frame, and with more links than a connection has.
    fn unreadable(&mut self, victim: usize) -> [Vec<u8>; 3] {
        let handle = self.0.handles[victim][1].clone();
        let mut open = self.0.open(&handle);
        let whole = Control::Open(open.clone()).to_bytes();
        open.link.clear();
        let without = Control::Open(open.clone()).to_bytes();
        let mut long = whole.clone();
        // After the head (4), the ids (16), the nonce (16), the flags (4) and the mailbox (16).
        long[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
        open.links = u8::MAX;
        [without, long, Control::Open(open).to_bytes()]
    }
}

impl Attack for ForgedFrames {
    fn go_on(&mut self, report: &mut AttackReport) {
        for victim in [0, 1] {
            let Some(mut stream) = self.0.connect(victim) else { continue };
            match self.ask_uninvited(victim, &mut stream) {
                Some(OpenAnswer::Refused) | None => {}
                Some(_) => report.claim("an OPEN without the nonce was not refused"),
            }
            let ids = (0..SLOTS).flat_map(|slot| (0..=GENERATIONS).map(move |generation| (slot, generation)));
            for (slot, generation) in ids {
                for id in [slot | generation << 16, slot | generation << 32] {
                    for frame in Self::frames(id) {
                        let _ = stream.send(OobFrame { bytes: frame.to_bytes(), fd: None });
                    }
                }
            }
            let bytes = self.unreadable(victim)[report.acts as usize % 3].clone();
            let _ = stream.send(OobFrame { bytes, fd: None });
            until("the end of a stream that cannot be read", || match stream.recv() {
                Ok(_) => None,
                Err(_) => Some(()),
            });
            report.acts += 1;
        }
    }

    fn is_over(&self, report: &AttackReport) -> bool {
        report.acts >= 100
    }
}
