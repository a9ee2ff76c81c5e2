//! Who may open a control stream to this process, for how long without showing a nonce of ours, and how often refusals are logged. Called as the
//! control plane goes on; what streams say is not looked at here.

use trunkline_fabric::{Host, Level, Oob, OobError, OobListener, Rail};
use trunkline_proto::counters::Tally;
use trunkline_proto::limits::UNPROVEN_TIME;
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;

use super::{Around, BURST, Control, REDIALS_MAX};
use crate::in_full;

impl<H: Host, R: Rail> Control<H, R> {
    /// Accepts the streams that wait, a bounded number.
    pub(super) fn accept_streams(&mut self, around: &Around<'_, H>, now: Instant) {
        for _ in 0..BURST {
            let Some(listener) = self.listener.as_mut() else { return };
            match listener.accept() {
                Ok(Some(io)) => {
                    self.listener_told = None;
                    self.accept_stream(around, io, now);
                }
                Ok(None) => return,
                Err(error @ OobError::OtherUser { .. }) => {
                    around.status.add(Tally::StreamsRefused, 1);
                    self.warn_refusal(around, &format!("control stream refused: {}", in_full(&error)));
                }
                Err(error) => {
                    let text = format!("control listener: {}", in_full(&error));
                    if self.listener_told.as_ref() != Some(&text) {
                        around.host.log(Level::Warn, &text);
                        self.listener_told = Some(text);
                    }
                    return;
                }
            }
        }
    }

    /// Takes a stream in that another process has opened. As long as it has shown no nonce of ours, it is one of a bounded number.
    fn accept_stream(&mut self, around: &Around<'_, H>, io: <H::Oob as Oob>::Stream, now: Instant) {
        match self.add_stream(io, None) {
            Ok(id) => {
                let oldest = self.unproven.add(id, now);
                if let Some(oldest) =
                    oldest.filter(|_| !around.params.mutant.is("control-accepts-any-number"))
                {
                    self.refuse_stream(around, oldest, "more strangers have connected since than may wait");
                }
            }
            Err(error) => {
                self.warn_refusal(around, &format!("control stream not accepted: {}", in_full(&error)));
            }
        }
    }

    /// Ends the streams that have shown no nonce of ours in time.
    pub(super) fn expire_streams(&mut self, around: &Around<'_, H>, now: Instant) {
        let mutant = around.params.mutant;
        while let Some(id) = self.unproven.take_expired(now) {
            let has_greeted = self.streams.get(id).is_some_and(|stream| stream.peer.is_some());
            let planted =
                if has_greeted { "control-keeps-who-said-hello" } else { "control-waits-for-hello" };
            if mutant.is(planted) {
                continue;
            }
            let missing = if has_greeted { "no connection was opened on it" } else { "no hello came" };
            let why = format!("{missing} within {} s", UNPROVEN_TIME.0 / 1_000_000_000);
            self.refuse_stream(around, id, &why);
        }
    }

    /// Ends a stream that does not speak as a peer does.
    pub(super) fn refuse_stream(&mut self, around: &Around<'_, H>, id: SlotId, why: &str) {
        around.status.add(Tally::StreamsRefused, 1);
        self.warn_refusal(around, &format!("control stream refused: {why}"));
        // What answers there does not speak as our peer does, so it is not asked again.
        for (_, attempt) in self.attempts.iter_mut().filter(|(_, attempt)| attempt.stream == id) {
            attempt.redials = REDIALS_MAX;
        }
        self.drop_stream(around, id);
    }

    /// Logs a line that anybody can cause, unless there were too many of late.
    pub(super) fn warn_refusal(&mut self, around: &Around<'_, H>, text: &str) {
        let admitted = self.refusals.admit(around.host.now());
        match admitted.or(around.params.mutant.is("control-logs-every-refusal").then_some(0)) {
            None => {}
            Some(0) => around.host.log(Level::Warn, text),
            Some(left_out) => {
                around
                    .host
                    .log(Level::Warn, &format!("{text} ({left_out} earlier refusals were not logged)"));
            }
        }
    }
}
