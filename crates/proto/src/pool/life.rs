//! The life of one end of a comm: its link, its message intake, the drain that its peer may request, and the report of its fault.
//!
//! The engine keeps one per open comm and calls it under the lock of the comm's group; the simulator drives the same engine. It sends no frame
//! and ends no link. The frames are those of docs/wire.md, "Members".
//!
//! An end that releases memory must know that no operation of its peer will land there later. It sends the frame `Stop` once
//! ([`request_stop`](MemberLife::request_stop)). The other end passes through these stages and replies with the frame `Gone`:
//!
//! ```text
//!           Stop received              first poll             all completions arrived
//!   Open -----------------> Stopping ------------> Proving ----------------------------> Drained
//!     |                         |                                                          ^
//!     |                         +----------------- all completions arrived ----------------+
//!     +--------------------------- closed, and all completions arrived --------------------+
//! ```
//!
//! `Drained` is final: `Gone` is sent once, and a later `Stop` has no effect.

/// The stage of the drain that one end makes for its peer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DrainStage {
    /// The peer has requested nothing.
    #[default]
    Open,
    /// The peer waits for the frame `Gone`.
    Stopping,
    /// The peer waits for the frame `Gone`; the operation that proves the completion of all others is posted.
    Proving,
    /// The frame `Gone` was sent: no operation of this end will land later.
    Drained,
}

/// Whether a comm accepts the messages that its links deliver.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum MessageIntake {
    #[default]
    Open,
    /// It has failed or is closed, while its group continues.
    Stopped,
}

/// Whether a comm has a link that carries, or may get one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum LinkPresence {
    #[default]
    Present,
    /// Its link carries nothing more; the control stream will report the cause.
    Lost,
}

/// Whether the owner of a comm knows of its fault.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum FaultReport {
    #[default]
    NotDue,
    /// The comm failed in another member's turn.
    Due,
}

/// Whether this end has sent the frame `Stop`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum StopRequest {
    #[default]
    NotSent,
    Sent,
}

/// The state of one end of a comm. All values are valid; the diagram above has the stages of the drain.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemberLife {
    link: LinkPresence,
    intake: MessageIntake,
    drain: DrainStage,
    request: StopRequest,
    report: FaultReport,
}

impl MemberLife {
    /// Whether the comm's link is lost.
    #[inline]
    #[must_use]
    pub fn is_link_lost(&self) -> bool {
        self.link == LinkPresence::Lost
    }

    /// Records that the comm's link carries nothing more. It never carries again.
    #[inline]
    pub fn lose_link(&mut self) {
        self.link = LinkPresence::Lost;
    }

    /// Whether the comm accepts no more messages.
    #[inline]
    #[must_use]
    pub fn is_intake_stopped(&self) -> bool {
        self.intake == MessageIntake::Stopped
    }

    /// Records that the comm accepts no more messages: it has failed or is closed, and its group continues.
    #[inline]
    pub fn stop_intake(&mut self) {
        self.intake = MessageIntake::Stopped;
    }

    /// The stage of the drain.
    #[inline]
    #[must_use]
    pub fn drain_stage(&self) -> DrainStage {
        self.drain
    }

    /// Whether the peer waits for the frame `Gone`.
    #[inline]
    #[must_use]
    pub fn is_stop_pending(&self) -> bool {
        matches!(self.drain, DrainStage::Stopping | DrainStage::Proving)
    }

    /// Handles the peer's frame `Stop`. Only the first one has an effect.
    pub fn on_stop(&mut self) {
        if self.drain == DrainStage::Open {
            self.drain = DrainStage::Stopping;
        }
    }

    /// Begins to prove that all posted operations have completed. Returns whether this was the first call since `Stop` arrived, so that
    /// the proof is posted once.
    pub fn begin_proof(&mut self) -> bool {
        let begins = self.drain == DrainStage::Stopping;
        if begins {
            self.drain = DrainStage::Proving;
        }
        begins
    }

    /// Records that all posted operations have completed. Returns whether the frame `Gone` is to be sent, which is the
    /// case once.
    pub fn finish_drain(&mut self) -> bool {
        core::mem::replace(&mut self.drain, DrainStage::Drained) != DrainStage::Drained
    }

    /// Whether this end has sent the frame `Stop`.
    #[must_use]
    pub fn has_requested_stop(&self) -> bool {
        self.request == StopRequest::Sent
    }

    /// Records that this end sends the frame `Stop`. Returns whether it is to be sent, which is the case once.
    pub fn request_stop(&mut self) -> bool {
        core::mem::replace(&mut self.request, StopRequest::Sent) == StopRequest::NotSent
    }

    /// Whether the owner is still to learn of the comm's fault.
    #[inline]
    #[must_use]
    pub fn is_report_due(&self) -> bool {
        self.report == FaultReport::Due
    }

    /// Records that the comm failed in another member's turn.
    pub fn fail_unreported(&mut self) {
        self.report = FaultReport::Due;
    }

    /// Returns whether the owner was still to learn of the fault, which it does now.
    pub fn take_report(&mut self) -> bool {
        core::mem::take(&mut self.report) == FaultReport::Due
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn drain_finishes_once_from_any_stage() {
        let mut life = MemberLife::default();
        assert_eq!((life.drain_stage(), life.is_stop_pending()), (DrainStage::Open, false));
        life.on_stop();
        assert!(life.is_stop_pending());
        assert!(life.begin_proof());
        assert!(!life.begin_proof(), "a second proof was posted");
        assert_eq!((life.drain_stage(), life.is_stop_pending()), (DrainStage::Proving, true));
        assert!(life.finish_drain());
        assert!(!life.finish_drain(), "the drain finished twice");
        life.on_stop();
        assert_eq!((life.drain_stage(), life.is_stop_pending()), (DrainStage::Drained, false));
        assert!(!life.begin_proof());
    }

    #[test]
    fn close_drains_without_a_stop() {
        let mut life = MemberLife::default();
        assert!(!life.begin_proof(), "no peer waits for a proof");
        assert!(life.finish_drain());
        assert_eq!(life.drain_stage(), DrainStage::Drained);
    }

    #[test]
    fn stop_and_fault_are_reported_once() {
        let mut life = MemberLife::default();
        assert!(life.request_stop());
        assert!(!life.request_stop() && life.has_requested_stop());
        assert!(!life.take_report());
        life.fail_unreported();
        assert!(life.is_report_due() && life.take_report());
        assert!(!life.take_report() && !life.is_report_due());
    }

    proptest! {
        /// Stages only move forward, in any order of events; lost links and stopped intakes stay so.
        #[test]
        fn stages_only_move_forward(steps in proptest::collection::vec(0_u8..7, 0..40)) {
            let mut life = MemberLife::default();
            let mut gone = 0;
            let mut proofs = 0;
            for step in steps {
                let before = life;
                match step {
                    0 => life.on_stop(),
                    1 => proofs += u32::from(life.begin_proof()),
                    2 => gone += u32::from(life.finish_drain()),
                    3 => life.lose_link(),
                    4 => life.stop_intake(),
                    5 => life.fail_unreported(),
                    _ => drop(life.request_stop()),
                }
                prop_assert!(before.drain as u8 <= life.drain as u8);
                prop_assert!(!before.is_link_lost() || life.is_link_lost());
                prop_assert!(!before.is_intake_stopped() || life.is_intake_stopped());
                prop_assert!(!before.has_requested_stop() || life.has_requested_stop());
            }
            prop_assert!(gone <= 1 && proofs <= 1);
            prop_assert_eq!(gone == 1, life.drain_stage() == DrainStage::Drained);
        }
    }
}
