//! Admission of control streams: which processes may open one, for how long without a valid nonce, how much is read from it, and
//! how often refusals are logged. Called by the control plane's progress; passes frames on without parsing them.

use trunkline_fabric::{Host, LogLevel, OobError, OobListener, OobStream as _, OobTransport, Rail};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::limits::{INVITED_REMOTE_MAX, INVITED_STREAMS_MAX, STRANGER_OPEN_COST, UNPROVEN_TIME};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Instant;

use super::{BURST, ControlContext, ControlPlane, REDIALS_MAX};
use crate::in_full;

/// The proof that a stream has shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StreamStanding {
    /// Another process has opened it, and it has shown nothing.
    Unproven,
    /// It has shown the nonce of a listener.
    Invited,
    /// This process has opened it, or a connection was accepted on it.
    Carries,
}

impl<H: Host, R: Rail> ControlPlane<H, R> {
    /// Accepts pending streams, a bounded number per call and per second: further ones wait in the kernel's queue, which refuses
    /// the excess. Returns how many were accepted.
    pub(super) fn accept_streams(&mut self, around: &ControlContext<'_, H>, now: Instant) -> usize {
        let mut accepted = 0;
        for _ in 0..BURST {
            let Some(listener) = self.listener.as_mut() else { return accepted };
            // Checked before each accept, because the budget bounds the work that unknown peers can cause.
            if !self.strangers.check_room(now) {
                return accepted;
            }
            match listener.accept() {
                Ok(Some(io)) => {
                    // The listener works again, so its next failure is logged again.
                    self.listener_told = None;
                    self.strangers.spend_units(1);
                    self.accept_stream(around, io, now);
                    accepted += 1;
                }
                Ok(None) => return accepted,
                Err(error @ OobError::OtherUser { .. }) => {
                    // A refused connection costs work too.
                    self.strangers.spend_units(1);
                    around.status.add_tally(ProcessTally::StreamsRefused, 1);
                    self.warn_refusal(around, &format!("control stream refused: {}", in_full(&error)));
                }
                Err(error) => {
                    let text = format!("control listener: {}", in_full(&error));
                    // The same failure recurs at each call, and is logged once.
                    if self.listener_told.as_ref() != Some(&text) {
                        around.host.log(LogLevel::Warn, &text);
                        self.listener_told = Some(text);
                    }
                    return accepted;
                }
            }
        }
        accepted
    }

    /// Adds a stream that another process has opened. Streams without a valid nonce are bounded in number; the oldest one is
    /// refused.
    fn accept_stream(
        &mut self,
        around: &ControlContext<'_, H>,
        io: <H::Oob as OobTransport>::Stream,
        now: Instant,
    ) {
        match self.add_stream(io, None) {
            Ok(id) => {
                if let Some(oldest) = self.unproven.add_stream(id, now) {
                    self.refuse_stream(
                        around,
                        oldest,
                        "too many streams without a proof are open, and this is the oldest",
                    );
                }
            }
            Err(error) => {
                self.warn_refusal(around, &format!("cannot accept a control stream: {}", in_full(&error)));
            }
        }
    }

    /// Lists the streams to read now: all that have shown a proof, a bounded number of the unproven ones in rotation, and those
    /// accepted last, because an invited peer has often sent its proof already.
    pub(super) fn list_streams_to_read(&mut self, names: &mut Vec<SlotId>, accepted: usize, now: Instant) {
        names.clear();
        let proven = |standing| standing != StreamStanding::Unproven;
        names.extend(self.streams.iter().filter(|(_, stream)| proven(stream.standing)).map(|(id, _)| id));
        names.extend(self.unproven.expired_streams(now));
        // The newest ones first, because an invited peer has often sent its proof with the
        // connection.
        names.extend(self.unproven.newest_streams(accepted));
        names.extend(self.unproven.next_reads());
    }

    /// Reads frames from a stream, a bounded number. Streams without a connection share a work budget, so a flood of them reads
    /// less.
    pub(super) fn take_frames(&mut self, around: &ControlContext<'_, H>, id: SlotId, now: Instant) {
        for _ in 0..BURST {
            let Some(stream) = self.streams.get_mut(id) else { return };
            let is_charged = stream.standing != StreamStanding::Carries;
            // The rest stays in the kernel's buffers until the budget allows it.
            if is_charged && !self.strangers.check_room(now) {
                return;
            }
            match stream.io.recv() {
                Ok(Some(frame)) => {
                    if is_charged {
                        stream.cost = stream.cost.saturating_add(1);
                        self.strangers.spend_units(1);
                    }
                    if let Err(why) = self.dispatch_frame(around, id, frame) {
                        return self.refuse_stream(around, id, &why);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    match error {
                        // The connection has joined a stream whose name only its peer knows, so it is not charged as an unproven one.
                        OobError::Merged => self.strangers.refund_units(1),
                        OobError::Closed => {}
                        _ => {
                            let text = format!("control stream lost: {}", in_full(&error));
                            self.warn_refusal(around, &text);
                        }
                    }
                    return self.drop_stream(id);
                }
            }
        }
    }

    /// Handles a stream that has shown a nonce of this process. A process with too many such streams loses its oldest.
    pub(super) fn mark_invited(&mut self, around: &ControlContext<'_, H>, id: SlotId) {
        self.unproven.remove(id);
        let Some(stream) = self.streams.get_mut(id).filter(|one| one.standing == StreamStanding::Unproven)
        else {
            return;
        };
        stream.standing = StreamStanding::Invited;
        // The kernel's process id cannot be forged, unlike the name in HELLO.
        let process = stream.io.peer_pid();
        self.invited.push_back((id, process));
        // Without a process id, all remote streams count together, so their limit is higher.
        let most = if process.is_some() { INVITED_STREAMS_MAX } else { INVITED_REMOTE_MAX };
        let mut others = self.invited.iter().filter(|(_, of)| *of == process);
        if others.clone().count() > most
            && let Some(&(oldest, _)) = others.next()
        {
            self.refuse_stream(
                around,
                oldest,
                "its process has too many streams without a connection, and this is the oldest",
            );
        }
    }

    /// Returns whether an OPEN on a stream may be processed now. Links are made for it, so streams without a connection pay from
    /// the work budget.
    pub(crate) fn may_answer(&mut self, id: SlotId, now: Instant) -> bool {
        let Some(stream) = self.streams.get_mut(id) else { return true };
        if stream.standing == StreamStanding::Carries {
            return true;
        }
        let has_room = self.strangers.check_room(now);
        // Charged before the links are made, also if that fails.
        if has_room {
            stream.cost = stream.cost.saturating_add(STRANGER_OPEN_COST);
            self.strangers.spend_units(STRANGER_OPEN_COST);
        }
        has_room
    }

    /// Marks that a connection was accepted on a stream, and refunds the stream's cost.
    pub(crate) fn mark_carrying(&mut self, id: SlotId) {
        self.invited.retain(|(invited, _)| *invited != id);
        if let Some(stream) = self.streams.get_mut(id)
            && stream.standing != StreamStanding::Carries
        {
            stream.standing = StreamStanding::Carries;
            // Refunded, because this work was for a proven peer.
            self.strangers.refund_units(stream.cost);
        }
    }

    /// Ends the streams that have shown no valid nonce in time.
    pub(super) fn expire_streams(&mut self, around: &ControlContext<'_, H>, now: Instant) {
        while let Some(id) = self.unproven.take_expired(now) {
            let has_greeted = self.streams.get(id).is_some_and(|stream| stream.peer.is_some());
            let missing = if has_greeted { "no connection was opened on it" } else { "no HELLO arrived" };
            // Refused, not only dropped, so that the log contains the reason.
            let why = format!("{missing} within {} s", UNPROVEN_TIME.0 / 1_000_000_000);
            self.refuse_stream(around, id, &why);
        }
    }

    /// Ends a stream that violates the protocol.
    pub(super) fn refuse_stream(&mut self, around: &ControlContext<'_, H>, id: SlotId, why: &str) {
        around.status.add_tally(ProcessTally::StreamsRefused, 1);
        self.warn_refusal(around, &format!("control stream refused: {why}"));
        // The listening process does not implement the protocol, so it is not dialled again.
        for (_, attempt) in self.attempts.iter_mut().filter(|(_, attempt)| attempt.stream == id) {
            attempt.redials = REDIALS_MAX;
        }
        self.drop_stream(id);
    }

    /// Logs a line that any process can cause, unless there were too many of late.
    pub(crate) fn warn_refusal(&mut self, around: &ControlContext<'_, H>, text: &str) {
        match self.refusals.admit_line(around.host.now()) {
            None => {}
            Some(0) => around.host.log(LogLevel::Warn, text),
            Some(left_out) => {
                around
                    .host
                    .log(LogLevel::Warn, &format!("{text} ({left_out} earlier refusals were not logged)"));
            }
        }
    }
}
