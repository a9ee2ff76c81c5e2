//! What one end of a control stream keeps so that the stream outlives the connections that carry it: frames are
//! numbered, kept until the other end has taken them, and taken once each, in order. Driven by the host's streams; knows
//! no socket.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes of frames that the other end has not taken; beyond, it counts as not reading.
pub const KEPT_MAX: usize = 1 << 20;

/// Frames taken that no record has told, from which on one is due for that alone.
pub const TAKEN_DUE: u64 = 16;

/// One end.
#[derive(Debug)]
pub struct ResumeWindow {
    /// Frames that the other end has not taken, as far as it told.
    kept: VecDeque<Vec<u8>>,
    kept_bytes: usize,
    /// Number of the first of them.
    first: u64,
    /// Frames taken from the other end.
    received: u64,
}

/// More is kept than may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the peer does not read its control stream")]
pub struct ResumeFull;

/// Whether a frame that came is to be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrameArrival {
    /// It is the next one.
    New,
    /// It came before, on this or another connection.
    Known,
}

/// What the other end cannot mean.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResumeError {
    /// Frames between are missing.
    #[error("frame {came} came where {expected} was expected")]
    Gap {
        /// Its number.
        came: u64,
        /// The next one's.
        expected: u64,
    },
    /// It has taken what was not sent.
    #[error("{received} frames taken of {sent} sent")]
    Unsent {
        /// Frames it says it has taken.
        received: u64,
        /// Frames there were.
        sent: u64,
    },
    /// It needs what it had said it has.
    #[error("goes on from frame {from}, those before {first} were taken")]
    Forgotten {
        /// Frames it says it has taken.
        from: u64,
        /// The first that is kept.
        first: u64,
    },
}

impl Default for ResumeWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl ResumeWindow {
    /// A new stream.
    #[must_use]
    pub fn new() -> Self {
        Self { kept: VecDeque::new(), kept_bytes: 0, first: 0, received: 0 }
    }

    /// Number of the first frame that is kept.
    #[must_use]
    pub fn first_kept(&self) -> u64 {
        self.first
    }

    /// Frames sent so far: the number of the next one.
    #[must_use]
    pub fn frames_sent(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Frames taken so far.
    #[must_use]
    pub fn frames_received(&self) -> u64 {
        self.received
    }

    /// Keeps a frame to be sent.
    ///
    /// # Errors
    /// [`ResumeFull`] if that would be more than [`KEPT_MAX`] bytes; it is not kept then.
    pub fn keep_frame(&mut self, frame: Vec<u8>) -> Result<(), ResumeFull> {
        if self.kept_bytes + frame.len() > KEPT_MAX {
            return Err(ResumeFull);
        }
        self.kept_bytes += frame.len();
        self.kept.push_back(frame);
        Ok(())
    }

    /// A frame, and its number, for a connection that has brought all before `from`: the first from there on that the
    /// other end may lack. `None` if there is none.
    #[must_use]
    pub fn next_from(&self, from: u64) -> Option<(u64, &[u8])> {
        let number = from.max(self.first);
        let at = usize::try_from(number - self.first).ok()?;
        self.kept.get(at).map(|frame| (number, frame.as_slice()))
    }

    /// A new connection says how much of the stream has been taken; what comes after is sent over it.
    ///
    /// # Errors
    /// When the two ends cannot go on with this stream.
    pub fn on_join(&mut self, received: u64) -> Result<(), ResumeError> {
        if received < self.first {
            return Err(ResumeError::Forgotten { from: received, first: self.first });
        }
        self.on_received(received)
    }

    /// The other end has taken so many frames. An older record, of a slower connection, tells less.
    ///
    /// # Errors
    /// [`ResumeError::Unsent`] if there were fewer.
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

    /// A frame of that number came.
    ///
    /// # Errors
    /// [`ResumeError::Gap`] if it is none of those sent so far, nor the next.
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

    /// Whether a record is due on a connection that last told so many frames taken.
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

    /// What happens to two ends.
    #[derive(Clone, Debug)]
    enum Step {
        /// An end sends a frame.
        Send(usize),
        /// A connection takes the next frame of an end, if it has one.
        Carry(usize, usize),
        /// What an end put into a connection first comes out.
        Arrive(usize, usize),
        /// A connection ends, with all that is in it, and another one begins.
        Cut(usize),
    }

    /// One connection: by end, the frame it carries next, and what is in it: number, received, content.
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
        /// Whatever connections end when, every frame is taken once, in order.
        #[test]
        fn every_frame_is_taken_once_in_order(steps in steps()) {
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
    fn what_the_other_end_cannot_mean_is_refused() {
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
        // An older record changes nothing.
        end.on_received(0).unwrap();
        assert_eq!(end.first_kept(), 2);
    }

    #[test]
    fn what_is_kept_has_a_limit_and_comes_back_when_taken() {
        let mut end = ResumeWindow::new();
        while end.keep_frame(vec![0; 4096]) == Ok(()) {}
        assert_eq!(end.frames_sent() as usize, KEPT_MAX / 4096);
        end.on_received(1).unwrap();
        assert_eq!((end.keep_frame(vec![0; 4096]), end.keep_frame(vec![0])), (Ok(()), Err(ResumeFull)));
    }

    #[test]
    fn what_was_taken_is_told_in_time() {
        let mut end = ResumeWindow::new();
        (0..TAKEN_DUE - 1).for_each(|number| _ = end.on_frame(number));
        assert!(!end.taken_due(0));
        end.on_frame(TAKEN_DUE - 1).unwrap();
        assert!(end.taken_due(0) && !end.taken_due(1));
    }
}
