//! The send and receive window of one end of a control stream, by which the stream outlives the connections that carry it.
//! Frames are numbered, kept until the other end has acknowledged them, and accepted once each, in order. The host's streams
//! call it; it never uses a socket.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Most bytes of unacknowledged frames; with more, the other end counts as not reading.
pub const KEPT_MAX: usize = 1 << 20;

/// Accepted frames without an acknowledgement, from which on a record is due for the acknowledgement alone.
pub const TAKEN_DUE: u64 = 16;

/// The window of one end.
#[derive(Debug)]
pub struct ResumeWindow {
    /// Frames that the other end has not acknowledged.
    kept: VecDeque<Vec<u8>>,
    kept_bytes: usize,
    /// Number of the first kept frame.
    first: u64,
    /// Frames accepted from the other end.
    received: u64,
}

/// The kept frames would exceed [`KEPT_MAX`] bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the peer does not read its control stream")]
pub struct ResumeFull;

/// Whether an arrived frame is to be processed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrameArrival {
    /// The next frame: process it.
    New,
    /// A frame that arrived before, on this or another connection: drop it.
    Known,
}

/// An acknowledgement or frame number that is invalid for this stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResumeError {
    /// Frames before this one are missing.
    #[error("frame {came} arrived, but frame {expected} was expected")]
    Gap {
        /// Number of the frame.
        came: u64,
        /// Number of the expected frame.
        expected: u64,
    },
    /// The other end acknowledges frames that were not sent.
    #[error("the peer acknowledged {received} frames, but {sent} were sent")]
    Unsent {
        /// Frames that it acknowledges.
        received: u64,
        /// Frames sent.
        sent: u64,
    },
    /// The other end requests frames that it has acknowledged before.
    #[error("the peer continues from frame {from}, but it has acknowledged those before {first}")]
    Forgotten {
        /// Frames that it acknowledges now.
        from: u64,
        /// Number of the first kept frame.
        first: u64,
    },
}

impl Default for ResumeWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ResumeWindow {
    /// Returns the window of a new stream.
    #[must_use]
    pub fn new() -> Self {
        Self { kept: VecDeque::new(), kept_bytes: 0, first: 0, received: 0 }
    }

    /// Number of the first kept frame.
    #[must_use]
    pub fn first_kept(&self) -> u64 {
        self.first
    }

    /// Frames sent so far, which is the number of the next one.
    #[must_use]
    pub fn frames_sent(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Frames accepted so far.
    #[must_use]
    pub fn frames_received(&self) -> u64 {
        self.received
    }

    /// Keeps a frame for sending, until it is acknowledged.
    ///
    /// # Errors
    /// [`ResumeFull`] if more than [`KEPT_MAX`] bytes would be kept; the frame is not kept then.
    pub fn keep_frame(&mut self, frame: Vec<u8>) -> Result<(), ResumeFull> {
        if self.kept_bytes + frame.len() > KEPT_MAX {
            return Err(ResumeFull);
        }
        self.kept_bytes += frame.len();
        self.kept.push_back(frame);
        Ok(())
    }

    /// Returns the next frame for a connection that has carried all frames before `from`, and the frame's number. Acknowledged
    /// frames are skipped. `None` if no frame is left to send.
    #[must_use]
    pub fn next_from(&self, from: u64) -> Option<(u64, &[u8])> {
        let number = from.max(self.first);
        let at = usize::try_from(number - self.first).ok()?;
        self.kept.get(at).map(|frame| (number, frame.as_slice()))
    }

    /// Handles the acknowledgement by which a new connection joins. Later frames are sent over that connection.
    ///
    /// # Errors
    /// [`ResumeError::Forgotten`] or [`ResumeError::Unsent`] if the two ends cannot continue this stream.
    pub fn on_join(&mut self, received: u64) -> Result<(), ResumeError> {
        if received < self.first {
            return Err(ResumeError::Forgotten { from: received, first: self.first });
        }
        self.on_received(received)
    }

    /// Handles an acknowledgement of `received` frames. One that a slower connection delivers late changes nothing.
    ///
    /// # Errors
    /// [`ResumeError::Unsent`] if fewer frames were sent.
    pub fn on_received(&mut self, received: u64) -> Result<(), ResumeError> {
        let sent = self.frames_sent();
        if received > sent {
            return Err(ResumeError::Unsent { received, sent });
        }
        while self.first < received
            && let Some(frame) = self.kept.pop_front()
        {
            self.kept_bytes -= frame.len();
            self.first += 1;
        }
        Ok(())
    }

    /// Handles an arrived frame with that number.
    ///
    /// # Errors
    /// [`ResumeError::Gap`] if frames before it are missing.
    pub fn on_frame(&mut self, number: u64) -> Result<FrameArrival, ResumeError> {
        let expected = self.received;
        if number > expected {
            return Err(ResumeError::Gap { came: number, expected });
        }
        if number < expected {
            return Ok(FrameArrival::Known);
        }
        self.received += 1;
        Ok(FrameArrival::New)
    }

    /// Whether a record is due on a connection whose last acknowledgement was `told` frames.
    #[must_use]
    pub fn taken_due(&self, told: u64) -> bool {
        self.received - told >= TAKEN_DUE
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    /// An event of the two ends.
    #[derive(Clone, Debug)]
    enum Step {
        /// An end sends a frame.
        Send(usize),
        /// A connection accepts the next frame of an end, if there is one.
        Carry(usize, usize),
        /// The oldest frame of an end inside a connection arrives.
        Arrive(usize, usize),
        /// A connection ends, with all frames inside it, and another one begins.
        Cut(usize),
    }

    /// One connection. By end: the number of its next frame, and the frames inside it with number, acknowledgement and content.
    #[derive(Clone, Default)]
    struct Connection {
        next: [u64; 2],
        inside: [VecDeque<(u64, u64, u8)>; 2],
    }

    const CONNECTIONS: usize = 3;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let end = 0..2_usize;
        let connection = 0..CONNECTIONS;
        prop::collection::vec(
            prop_oneof![
                3 => end.clone().prop_map(Step::Send),
                6 => (end.clone(), connection.clone()).prop_map(|(end, at)| Step::Carry(end, at)),
                6 => (end, connection.clone()).prop_map(|(end, at)| Step::Arrive(end, at)),
                1 => connection.prop_map(Step::Cut),
            ],
            1..400,
        )
    }

    struct Pair {
        ends: [ResumeWindow; 2],
        sent: [u8; 2],
        came: [Vec<u8>; 2],
        connections: Vec<Connection>,
    }

    impl Pair {
        fn step(&mut self, step: &Step) {
            match *step {
                Step::Send(end) => {
                    self.ends[end].keep_frame(Vec::from([self.sent[end]])).unwrap();
                    self.sent[end] = self.sent[end].wrapping_add(1);
                }
                Step::Carry(end, at) => {
                    let connection = &mut self.connections[at];
                    let received = self.ends[end].frames_received();
                    if let Some((number, frame)) = self.ends[end].next_from(connection.next[end]) {
                        connection.inside[end].push_back((number, received, frame[0]));
                        connection.next[end] = number + 1;
                    }
                }
                Step::Arrive(end, at) => {
                    let Some((number, received, frame)) = self.connections[at].inside[end].pop_front() else {
                        return;
                    };
                    let other = &mut self.ends[1 - end];
                    other.on_received(received).unwrap();
                    if other.on_frame(number).unwrap() == FrameArrival::New {
                        self.came[1 - end].push(frame);
                    }
                }
                Step::Cut(at) => {
                    let received = [self.ends[0].frames_received(), self.ends[1].frames_received()];
                    for end in 0..2 {
                        self.ends[end].on_join(received[1 - end]).unwrap();
                    }
                    self.connections[at] =
                        Connection { next: [received[1], received[0]], ..Connection::default() };
                }
            }
        }
    }

    proptest! {
        /// Every frame is accepted once and in order, for any order of lost connections.
        #[test]
        fn every_frame_is_accepted_once_in_order(steps in steps()) {
            let end = || ResumeWindow::new();
            let connections = vec![Connection::default(); CONNECTIONS];
            let mut pair = Pair { ends: [end(), end()], sent: [0; 2], came: Default::default(), connections };
            steps.iter().for_each(|step| pair.step(step));
            pair.step(&Step::Cut(0));
            for end in 0..2 {
                (0..400).for_each(|_| pair.step(&Step::Carry(end, 0)));
                (0..400).for_each(|_| pair.step(&Step::Arrive(end, 0)));
                let expected: Vec<u8> = (0..pair.sent[end]).collect();
                prop_assert_eq!(&pair.came[1 - end], &expected);
            }
        }
    }

    #[test]
    fn invalid_acknowledgements_and_gaps_are_rejected() {
        let mut end = ResumeWindow::new();
        for byte in 0..3 {
            end.keep_frame(Vec::from([byte])).unwrap();
        }
        assert_eq!(end.on_received(4), Err(ResumeError::Unsent { received: 4, sent: 3 }));
        end.on_received(2).unwrap();
        assert_eq!(end.on_join(1), Err(ResumeError::Forgotten { from: 1, first: 2 }));
        assert_eq!((end.first_kept(), end.frames_sent(), end.next_from(0)), (2, 3, Some((2, &[2][..]))));
        assert_eq!(end.on_frame(1), Err(ResumeError::Gap { came: 1, expected: 0 }));
        assert_eq!(end.on_frame(0), Ok(FrameArrival::New));
        assert_eq!(end.on_frame(0), Ok(FrameArrival::Known));
        // An older acknowledgement changes nothing.
        end.on_received(0).unwrap();
        assert_eq!(end.first_kept(), 2);
    }

    #[test]
    fn kept_bytes_are_limited_and_freed_by_acknowledgement() {
        let mut end = ResumeWindow::new();
        while end.keep_frame(vec![0; 4096]) == Ok(()) {}
        assert_eq!(end.frames_sent() as usize, KEPT_MAX / 4096);
        end.on_received(1).unwrap();
        assert_eq!((end.keep_frame(vec![0; 4096]), end.keep_frame(vec![0])), (Ok(()), Err(ResumeFull)));
    }

    #[test]
    fn acknowledgement_is_due_after_taken_due_frames() {
        let mut end = ResumeWindow::new();
        (0..TAKEN_DUE - 1).for_each(|number| _ = end.on_frame(number));
        assert!(!end.taken_due(0));
        end.on_frame(TAKEN_DUE - 1).unwrap();
        assert!(end.taken_due(0) && !end.taken_due(1));
    }
}
