//! One thing that a rail saw, as words of a recorder's buffer. Made by `rail`, read by `story`.

use crate::{Completion, Done, LinkId, Op, Status};

/// Words of an event in the buffer.
pub(super) const WORDS: usize = 5;

/// Set in the last word of every event, so that none is all zeros.
const THERE: u64 = 1 << 63;

/// What was posted. Receives are not recorded: their time says when the peer sent, not what the NIC did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    Atomic,
    MatchedSend,
    Flush,
    Nop,
    Wait,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Send,
        Self::Write,
        Self::Read,
        Self::Atomic,
        Self::MatchedSend,
        Self::Flush,
        Self::Nop,
        Self::Wait,
    ];

    /// As the trace names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::MatchedSend => "matched send",
            Self::Flush => "flush",
            Self::Nop => "nop",
            Self::Wait => "wait",
        }
    }

    /// The kind and the bytes of an operation; `None` for receives.
    pub(super) fn of(op: &Op<'_>) -> Option<(Self, u64)> {
        Some(match op {
            Op::Send { head, body, .. } => (Self::Send, head.len() as u64 + body.len()),
            Op::Write { from, .. } | Op::PlacedWrite { from, .. } => (Self::Write, from.len()),
            Op::Read { into, .. } => (Self::Read, into.len),
            Op::FetchAdd { .. } | Op::CompareSwap { .. } => (Self::Atomic, 8),
            Op::MatchedSend { from, .. } => (Self::MatchedSend, from.len()),
            Op::Flush | Op::FlushAt { .. } => (Self::Flush, 0),
            Op::Nop => (Self::Nop, 0),
            Op::Wait { .. } => (Self::Wait, 0),
            Op::Recv { .. } | Op::MatchedRecv { .. } => return None,
        })
    }
}

/// What happened to a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Sign {
    /// It was made; its number may have been another's before.
    Made,
    /// What is posted on it can leave.
    Up,
    /// The network carries it no more.
    Lost,
    /// This side put it into error.
    Fenced,
    /// This side ended it.
    Closed,
}

impl Sign {
    const ALL: [Self; 5] = [Self::Made, Self::Up, Self::Lost, Self::Fenced, Self::Closed];
}

/// How an operation ended, by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    Ok,
    Flushed,
    LocalProtection,
    RemoteAccess,
    TooLong,
    ReceiverNotReady,
    PeerDead,
    Other,
}

impl Fate {
    const ALL: [Self; 8] = [
        Self::Ok,
        Self::Flushed,
        Self::LocalProtection,
        Self::RemoteAccess,
        Self::TooLong,
        Self::ReceiverNotReady,
        Self::PeerDead,
        Self::Other,
    ];

    fn of(status: Status) -> Self {
        match status {
            Status::Ok => Self::Ok,
            Status::Flushed => Self::Flushed,
            Status::LocalProtection => Self::LocalProtection,
            Status::RemoteAccess => Self::RemoteAccess,
            Status::TooLong => Self::TooLong,
            Status::ReceiverNotReady => Self::ReceiverNotReady,
            Status::PeerDead => Self::PeerDead,
            Status::Unflushed(_) | Status::Other(_) => Self::Other,
        }
    }

    /// As the trace names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Flushed => "flushed",
            Self::LocalProtection => "local protection",
            Self::RemoteAccess => "remote access",
            Self::TooLong => "too long",
            Self::ReceiverNotReady => "receiver not ready",
            Self::PeerDead => "peer dead",
            Self::Other => "other error",
        }
    }
}

const DONES: [Done; 3] = [Done::Posted, Done::Received, Done::Written];

/// What an event is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum What {
    /// An operation was posted.
    Posted {
        kind: Kind,
        signalled: bool,
    },
    Ended {
        done: Done,
        fate: Fate,
    },
    Link(Sign),
}

/// One event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Event {
    /// Nanoseconds, by the recorder's clock.
    pub(super) at: u64,
    /// Number of the NIC.
    pub(super) nic: u16,
    /// Number of the open rail, of all that the recorder knows.
    pub(super) rail: u32,
    /// On that rail.
    pub(super) link: LinkId,
    pub(super) wr_id: u64,
    pub(super) bytes: u64,
    pub(super) what: What,
}

impl Event {
    /// What a completion tells.
    pub(super) fn ended(completion: &Completion) -> (u64, u64, What) {
        let Completion { wr_id, done, status, len, .. } = *completion;
        (wr_id, len, What::Ended { done, fate: Fate::of(status) })
    }

    /// For the buffer. The last word is never 0.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let (class, what, more) = match self.what {
            What::Posted { kind, signalled } => (0, kind as u64, u64::from(signalled)),
            What::Ended { done, fate } => (1, done as u64, fate as u64),
            What::Link(sign) => (2, sign as u64, 0),
        };
        let rail = u64::from(self.rail) << 32 | u64::from(self.link.0);
        let last = THERE | u64::from(self.nic) << 32 | more << 16 | what << 8 | class;
        [self.at, self.wr_id, self.bytes, rail, last]
    }

    /// From the buffer; `None` for what is no event.
    pub(super) fn from_words([at, wr_id, bytes, rail, last]: [u64; WORDS]) -> Option<Self> {
        if last & THERE == 0 {
            return None;
        }
        let part = |shift: u32| usize::from((last >> shift) as u8);
        let what = match part(0) {
            0 => What::Posted { kind: *Kind::ALL.get(part(8))?, signalled: part(16) != 0 },
            1 => What::Ended { done: *DONES.get(part(8))?, fate: *Fate::ALL.get(part(16))? },
            2 => What::Link(*Sign::ALL.get(part(8))?),
            _ => return None,
        };
        let nic = (last >> 32) as u16;
        let link = LinkId(rail as u32);
        Some(Self { at, nic, rail: (rail >> 32) as u32, link, wr_id, bytes, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_comes_back_from_its_words() {
        let posts = Kind::ALL
            .iter()
            .flat_map(|&kind| [false, true].map(|signalled| What::Posted { kind, signalled }));
        let ends =
            DONES.iter().flat_map(|&done| Fate::ALL.iter().map(move |&fate| What::Ended { done, fate }));
        let links = Sign::ALL.iter().map(|&sign| What::Link(sign));
        let mut known = Vec::new();
        for (at, what) in posts.chain(ends).chain(links).enumerate() {
            let event = Event {
                at: at as u64,
                nic: u16::MAX - at as u16,
                rail: u32::MAX - at as u32,
                link: LinkId(at as u32),
                wr_id: u64::MAX - at as u64,
                bytes: 1 << at,
                what,
            };
            let words = event.to_words();
            assert_eq!(Event::from_words(words), Some(event));
            assert!(!known.contains(&words[4]), "{event:?}");
            known.push(words[4]);
        }
        assert_eq!(known.len(), 16 + 24 + 5);
        for strange in [0, 1, THERE | 3, THERE | 8 << 8, THERE | 8 << 16 | 1, THERE | 5 << 8 | 2] {
            assert_eq!(Event::from_words([1, 2, 3, 4, strange]), None, "{strange:x}");
        }
    }
}
