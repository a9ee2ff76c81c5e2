//! One event of a rail, as words of a recorder's buffer. Made by `rail`, read by `timeline`.

use crate::{Completion, CompletionKind, LinkId, Op, OpStatus};

/// Words of an event in the buffer.
pub(super) const WORDS: usize = 5;

/// Set in the last word of every event, so that a stored event is never all zeros there.
const THERE: u64 = 1 << 63;

/// The kind of a posted operation. Receives are not recorded: their time shows when the peer sent, not the work of the NIC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TracedOpKind {
    Send,
    Write,
    Read,
    Atomic,
    MatchedSend,
    Flush,
    Nop,
    Wait,
}

impl TracedOpKind {
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

    /// Returns its name in the trace.
    pub(super) fn trace_name(self) -> &'static str {
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

    /// Returns the kind and the bytes of an operation; `None` for receives.
    pub(super) fn classify_op(op: &Op<'_>) -> Option<(Self, u64)> {
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

/// A change of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LinkEvent {
    /// It was created; its number may have belonged to an earlier link.
    Made,
    /// Operations posted on it can be sent.
    Up,
    /// The network no longer carries it.
    Lost,
    /// This side put it into error.
    Fenced,
    /// This side ended it.
    Closed,
}

impl LinkEvent {
    const ALL: [Self; 5] = [Self::Made, Self::Up, Self::Lost, Self::Fenced, Self::Closed];
}

/// How an operation ended, by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TracedOutcome {
    Ok,
    Flushed,
    LocalProtection,
    RemoteAccess,
    TooLong,
    ReceiverNotReady,
    PeerDead,
    Other,
}

impl TracedOutcome {
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

    fn from_status(status: OpStatus) -> Self {
        match status {
            OpStatus::Ok => Self::Ok,
            OpStatus::Flushed => Self::Flushed,
            OpStatus::LocalProtection => Self::LocalProtection,
            OpStatus::RemoteAccess => Self::RemoteAccess,
            OpStatus::TooLong => Self::TooLong,
            OpStatus::ReceiverNotReady => Self::ReceiverNotReady,
            OpStatus::PeerDead => Self::PeerDead,
            OpStatus::Unflushed(_) | OpStatus::Other(_) => Self::Other,
        }
    }

    /// Returns its name in the trace.
    pub(super) fn trace_name(self) -> &'static str {
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

const DONES: [CompletionKind; 3] =
    [CompletionKind::Posted, CompletionKind::Received, CompletionKind::Written];

/// The subject of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum EventDetail {
    /// An operation was posted.
    Posted {
        kind: TracedOpKind,
        signalled: bool,
    },
    Ended {
        done: CompletionKind,
        fate: TracedOutcome,
    },
    Link(LinkEvent),
}

/// One event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RailEvent {
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
    pub(super) what: EventDetail,
}

impl RailEvent {
    /// Returns `wr_id`, length and detail of a completion.
    pub(super) fn completion_detail(completion: &Completion) -> (u64, u64, EventDetail) {
        let Completion { wr_id, done, status, len, .. } = *completion;
        (wr_id, len, EventDetail::Ended { done, fate: TracedOutcome::from_status(status) })
    }

    /// Encodes it for the buffer. The last word is never 0.
    pub(super) fn to_words(self) -> [u64; WORDS] {
        let (class, what, more) = match self.what {
            EventDetail::Posted { kind, signalled } => (0, kind as u64, u64::from(signalled)),
            EventDetail::Ended { done, fate } => (1, done as u64, fate as u64),
            EventDetail::Link(sign) => (2, sign as u64, 0),
        };
        let rail = u64::from(self.rail) << 32 | u64::from(self.link.0);
        let last = THERE | u64::from(self.nic) << 32 | more << 16 | what << 8 | class;
        [self.at, self.wr_id, self.bytes, rail, last]
    }

    /// Decodes it from the buffer; `None` for an invalid event.
    pub(super) fn from_words([at, wr_id, bytes, rail, last]: [u64; WORDS]) -> Option<Self> {
        if last & THERE == 0 {
            return None;
        }
        let part = |shift: u32| usize::from((last >> shift) as u8);
        let what = match part(0) {
            0 => EventDetail::Posted { kind: *TracedOpKind::ALL.get(part(8))?, signalled: part(16) != 0 },
            1 => EventDetail::Ended { done: *DONES.get(part(8))?, fate: *TracedOutcome::ALL.get(part(16))? },
            2 => EventDetail::Link(*LinkEvent::ALL.get(part(8))?),
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
    fn events_round_trip_through_their_words() {
        let posts = TracedOpKind::ALL
            .iter()
            .flat_map(|&kind| [false, true].map(|signalled| EventDetail::Posted { kind, signalled }));
        let ends = DONES
            .iter()
            .flat_map(|&done| TracedOutcome::ALL.iter().map(move |&fate| EventDetail::Ended { done, fate }));
        let links = LinkEvent::ALL.iter().map(|&sign| EventDetail::Link(sign));
        let mut known = Vec::new();
        for (at, what) in posts.chain(ends).chain(links).enumerate() {
            let event = RailEvent {
                at: at as u64,
                nic: u16::MAX - at as u16,
                rail: u32::MAX - at as u32,
                link: LinkId(at as u32),
                wr_id: u64::MAX - at as u64,
                bytes: 1 << at,
                what,
            };
            let words = event.to_words();
            assert_eq!(RailEvent::from_words(words), Some(event));
            assert!(!known.contains(&words[4]), "{event:?}");
            known.push(words[4]);
        }
        assert_eq!(known.len(), 16 + 24 + 5);
        for strange in [0, 1, THERE | 3, THERE | 8 << 8, THERE | 8 << 16 | 1, THERE | 5 << 8 | 2] {
            assert_eq!(RailEvent::from_words([1, 2, 3, 4, strange]), None, "{strange:x}");
        }
    }
}
