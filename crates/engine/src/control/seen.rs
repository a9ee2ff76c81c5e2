//! The OPENs that a listener has had, so that one that comes again asks for nothing new, and hears again what it heard.
//! Kept by the control plane for each listener; knows nothing of comms.

use trunkline_proto::limits::OPENS_SEEN_MAX;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::share::Given;

/// Connections that were asked for, until they are ready, as no OPEN comes after READY, or their stream is gone.
#[derive(Debug, Default)]
pub(crate) struct Seen(Vec<Had>);

#[derive(Debug)]
struct Had {
    stream: SlotId,
    conn: u64,
    turn: u32,
    /// It was told to ask anew.
    refused: Option<Given>,
}

/// What an OPEN is to a listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Known {
    /// It asks for something new.
    New,
    /// It has come before, or after one that asked anew.
    Again,
    /// It was told this, and may have asked before it heard.
    Refused(Given),
}

impl Seen {
    /// What the OPEN of that connection and turn is.
    pub(crate) fn look(&self, stream: SlotId, conn: u64, turn: u32) -> Known {
        match self.0.iter().find(|had| (had.stream, had.conn) == (stream, conn)) {
            Some(had) if turn > had.turn => Known::New,
            Some(had) if turn < had.turn => Known::Again,
            Some(had) => had.refused.map_or(Known::Again, Known::Refused),
            None => Known::New,
        }
    }

    /// It is to be answered.
    pub(crate) fn enter(&mut self, stream: SlotId, conn: u64, turn: u32) {
        self.forget(stream, conn);
        if self.0.len() >= OPENS_SEEN_MAX {
            self.0.remove(0);
        }
        self.0.push(Had { stream, conn, turn, refused: None });
    }

    /// It was told to ask anew.
    pub(crate) fn refuse(&mut self, stream: SlotId, conn: u64, given: Given) {
        let had = self.0.iter_mut().find(|had| (had.stream, had.conn) == (stream, conn));
        if let Some(had) = had {
            had.refused = Some(given);
        }
    }

    /// A connection is ready, or what it asked is to be asked again.
    pub(crate) fn forget(&mut self, stream: SlotId, conn: u64) {
        self.0.retain(|had| (had.stream, had.conn) != (stream, conn));
    }

    /// A stream is gone.
    pub(crate) fn lose(&mut self, stream: SlotId) {
        self.0.retain(|had| had.stream != stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_refused_again_until_it_is_asked_anew() {
        let stream = |slot| SlotId { slot, generation: 1 };
        let mut seen = Seen::default();
        assert_eq!(seen.look(stream(1), 7, 0), Known::New);
        seen.enter(stream(1), 7, 1);
        assert_eq!(seen.look(stream(2), 7, 1), Known::New, "of another process");
        let turns = |seen: &Seen| [0, 1, 2].map(|turn| seen.look(stream(1), 7, turn));
        assert_eq!(turns(&seen), [Known::Again, Known::Again, Known::New]);
        seen.refuse(stream(1), 7, Given::Full);
        assert_eq!(turns(&seen), [Known::Again, Known::Refused(Given::Full), Known::New]);
        seen.enter(stream(1), 7, 2);
        assert_eq!(turns(&seen), [Known::Again, Known::Again, Known::Again]);
        seen.forget(stream(1), 7);
        seen.enter(stream(1), 8, 0);
        seen.lose(stream(1));
        assert_eq!((turns(&seen), seen.look(stream(1), 8, 0)), ([Known::New; 3], Known::New));
    }

    #[test]
    fn a_flood_of_opens_is_forgotten_from_its_beginning() {
        let stream = SlotId { slot: 1, generation: 1 };
        let mut seen = Seen::default();
        (0..=OPENS_SEEN_MAX as u64).for_each(|conn| seen.enter(stream, conn, 0));
        assert_eq!(seen.0.len(), OPENS_SEEN_MAX);
        assert_eq!((seen.look(stream, 0, 0), seen.look(stream, 1, 0)), (Known::New, Known::Again));
    }
}
