//! The OPENs that a listener has received, so that a repeated OPEN makes no second connection and gets the same reply. Kept by
//! the control plane for each listener; knows nothing of comms.

use trunkline_proto::limits::OPENS_SEEN_MAX;
use trunkline_proto::slots::SlotId;
use trunkline_proto::wire::share::ShareOutcome;

/// Requested connections, until they are ready or their stream has ended. Later entries are not needed, because no OPEN
/// follows READY.
#[derive(Debug, Default)]
pub(crate) struct SeenOpens(Vec<SeenOpen>);

#[derive(Debug)]
struct SeenOpen {
    stream: SlotId,
    conn: u64,
    turn: u32,
    /// The reply by which its request was refused, if any.
    refused: Option<ShareOutcome>,
}

/// The verdict of a listener on an OPEN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum OpenVerdict {
    /// It is a new request.
    New,
    /// It is a repetition, or older than a changed request that has arrived.
    Again,
    /// Its request got this reply before, and the OPEN may have been sent before the reply arrived.
    Refused(ShareOutcome),
}

impl SeenOpens {
    /// Returns the verdict on the OPEN of this connection and turn.
    pub(crate) fn classify_open(&self, stream: SlotId, conn: u64, turn: u32) -> OpenVerdict {
        match self.0.iter().find(|had| (had.stream, had.conn) == (stream, conn)) {
            Some(had) if turn > had.turn => OpenVerdict::New,
            Some(had) if turn < had.turn => OpenVerdict::Again,
            Some(had) => had.refused.map_or(OpenVerdict::Again, OpenVerdict::Refused),
            None => OpenVerdict::New,
        }
    }

    /// Records an OPEN that will get a reply. Beyond the limit the oldest one is forgotten, so peers cannot exhaust memory.
    pub(crate) fn record_open(&mut self, stream: SlotId, conn: u64, turn: u32) {
        self.forget_connection(stream, conn);
        if self.0.len() >= OPENS_SEEN_MAX {
            self.0.remove(0);
        }
        self.0.push(SeenOpen { stream, conn, turn, refused: None });
    }

    /// Records the reply by which its request was refused.
    pub(crate) fn record_refusal(&mut self, stream: SlotId, conn: u64, given: ShareOutcome) {
        let had = self.0.iter_mut().find(|had| (had.stream, had.conn) == (stream, conn));
        if let Some(had) = had {
            had.refused = Some(given);
        }
    }

    /// Forgets a connection that is ready, or whose request may be repeated as it is.
    pub(crate) fn forget_connection(&mut self, stream: SlotId, conn: u64) {
        self.0.retain(|had| (had.stream, had.conn) != (stream, conn));
    }

    /// Forgets a stream that has ended.
    pub(crate) fn forget_stream(&mut self, stream: SlotId) {
        self.0.retain(|had| had.stream != stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_open_is_refused_until_its_next_turn() {
        let stream = |slot| SlotId { slot, generation: 1 };
        let mut seen = SeenOpens::default();
        assert_eq!(seen.classify_open(stream(1), 7, 0), OpenVerdict::New);
        seen.record_open(stream(1), 7, 1);
        assert_eq!(seen.classify_open(stream(2), 7, 1), OpenVerdict::New, "the OPEN is of another process");
        let turns = |seen: &SeenOpens| [0, 1, 2].map(|turn| seen.classify_open(stream(1), 7, turn));
        assert_eq!(turns(&seen), [OpenVerdict::Again, OpenVerdict::Again, OpenVerdict::New]);
        seen.record_refusal(stream(1), 7, ShareOutcome::Full);
        assert_eq!(
            turns(&seen),
            [OpenVerdict::Again, OpenVerdict::Refused(ShareOutcome::Full), OpenVerdict::New]
        );
        seen.record_open(stream(1), 7, 2);
        assert_eq!(turns(&seen), [OpenVerdict::Again, OpenVerdict::Again, OpenVerdict::Again]);
        seen.forget_connection(stream(1), 7);
        seen.record_open(stream(1), 8, 0);
        seen.forget_stream(stream(1));
        assert_eq!(
            (turns(&seen), seen.classify_open(stream(1), 8, 0)),
            ([OpenVerdict::New; 3], OpenVerdict::New)
        );
    }

    #[test]
    fn oldest_opens_are_forgotten_beyond_the_limit() {
        let stream = SlotId { slot: 1, generation: 1 };
        let mut seen = SeenOpens::default();
        (0..=OPENS_SEEN_MAX as u64).for_each(|conn| seen.record_open(stream, conn, 0));
        assert_eq!(seen.0.len(), OPENS_SEEN_MAX);
        assert_eq!(
            (seen.classify_open(stream, 0, 0), seen.classify_open(stream, 1, 0)),
            (OpenVerdict::New, OpenVerdict::Again)
        );
    }
}
