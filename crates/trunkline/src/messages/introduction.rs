//! Introductions: the first frames of a stream between two ranks of a host, by which each end proves its rank. Used
//! while ranks meet. A proof is needed because a rank's card is no secret: every member of the job, and any process
//! that reads it from a member, knows its whole content.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use trunkline_engine::{MemberKey, ProofPurpose};
use trunkline_fabric::{OobFrame, OobStream};
use trunkline_proto::wire::dial::PublicKey;
use trunkline_proto::wire::introduction::RankIntroduction;

/// The time within which an accepted stream must prove its rank.
const UNPROVEN: Duration = Duration::from_secs(10);
/// Accepted streams without a proof, at most. One more closes the oldest.
const UNPROVEN_MAX: usize = 64;
/// Streams that are accepted between two polls. Fewer than [`UNPROVEN_MAX`], so that each stream is read before newer
/// ones close it.
pub(super) const ACCEPTS_PER_POLL: usize = 16;

/// The rank and key of this process, and the public keys of all ranks.
#[derive(Debug)]
pub(super) struct RankKeys {
    pub(super) rank: usize,
    pub(super) key: MemberKey,
    /// By rank; `None` if the rank's card is invalid.
    pub(super) public: Vec<Option<PublicKey>>,
}

impl RankKeys {
    /// Returns the introduction of this rank to another one; `None` if that one has no key.
    fn make_introduction(&self, to: usize) -> Option<RankIntroduction> {
        let proof = self.make_proof(self.rank, to)?;
        Some(RankIntroduction { rank: u32::try_from(self.rank).ok()?, proof })
    }

    /// Returns whether an introduction proves that its sender is rank `of`.
    fn is_shown(&self, of: usize, introduction: &RankIntroduction) -> bool {
        self.make_proof(of, self.rank) == Some(introduction.proof)
    }

    /// Returns the proof by which `from` shows its rank to `to`. One of the two is this rank.
    fn make_proof(&self, from: usize, to: usize) -> Option<[u8; 16]> {
        let other = if from == self.rank { to } else { from };
        let theirs = self.public.get(other)?.as_ref()?;
        self.key.make_proof(ProofPurpose::Tagged, theirs, u32::try_from(from).ok()?, u32::try_from(to).ok()?)
    }
}

/// A stream whose other end has not proved its rank.
struct UnprovenStream<S> {
    stream: S,
    /// The rank that was dialled; `None` for an accepted stream.
    dialled: Option<usize>,
    since: Instant,
}

/// The outcome of a poll of an unproven stream.
enum IntroductionPoll {
    /// Nothing was received.
    Waits,
    /// The other end has proved that it is this rank.
    Rank(usize),
    /// The stream has ended, or its introduction is invalid.
    Nobody,
}

/// The streams whose other ends have not proved their ranks, and the ranks that have.
pub(super) struct IntroductionQueue<S> {
    unproven: Vec<UnprovenStream<S>>,
    shown: BTreeSet<usize>,
}

impl<S: OobStream> IntroductionQueue<S> {
    pub(super) const fn new() -> Self {
        Self { unproven: Vec::new(), shown: BTreeSet::new() }
    }

    /// Adds a stream to another rank's listener, and sends the introduction of this rank. Returns whether that
    /// succeeded.
    pub(super) fn add_dialled(&mut self, keys: &RankKeys, mut stream: S, rank: usize) -> bool {
        let is_sent = keys
            .make_introduction(rank)
            .is_some_and(|introduction| send_introduction(&mut stream, &introduction));
        if is_sent {
            self.unproven.push(UnprovenStream { stream, dialled: Some(rank), since: Instant::now() });
        }
        is_sent
    }

    /// Adds a stream that another process has opened.
    pub(super) fn add_accepted(&mut self, stream: S) {
        let accepted = self.unproven.iter().filter(|one| one.dialled.is_none()).count();
        if accepted >= UNPROVEN_MAX
            && let Some(oldest) = self.unproven.iter().position(|one| one.dialled.is_none())
        {
            self.unproven.remove(oldest);
        }
        self.unproven.push(UnprovenStream { stream, dialled: None, since: Instant::now() });
    }

    /// Returns the streams that have proved their ranks since the last call, with those ranks; per rank only the
    /// first. Streams that failed to are closed.
    pub(super) fn poll(&mut self, keys: &RankKeys) -> Vec<(S, usize)> {
        let mut shown = Vec::new();
        for mut one in std::mem::take(&mut self.unproven) {
            match one.poll_introduction(keys, &self.shown) {
                IntroductionPoll::Rank(rank) => {
                    self.shown.insert(rank);
                    shown.push((one.stream, rank));
                }
                IntroductionPoll::Waits if one.dialled.is_some() || one.since.elapsed() < UNPROVEN => {
                    self.unproven.push(one)
                }
                IntroductionPoll::Waits | IntroductionPoll::Nobody => {}
            }
        }
        shown
    }
}

impl<S: OobStream> UnprovenStream<S> {
    fn poll_introduction(&mut self, keys: &RankKeys, shown: &BTreeSet<usize>) -> IntroductionPoll {
        let frame = match self.stream.recv() {
            Ok(Some(frame)) => frame,
            Ok(None) => return IntroductionPoll::Waits,
            Err(_) => return IntroductionPoll::Nobody,
        };
        let Ok(introduction) = RankIntroduction::from_bytes(&frame.bytes) else {
            return IntroductionPoll::Nobody;
        };
        let Ok(rank) = usize::try_from(introduction.rank) else { return IntroductionPoll::Nobody };
        let is_expected = self.dialled.is_none_or(|dialled| dialled == rank) && rank != keys.rank;
        if !is_expected || !keys.is_shown(rank, &introduction) {
            return IntroductionPoll::Nobody;
        }
        // A rank introduces itself once, because each of its streams costs an inbox.
        if shown.contains(&rank) {
            return IntroductionPoll::Nobody;
        }
        // The accepting end sends its proof only after it has verified the other one.
        let answers = self.dialled.is_none();
        let is_answered = !answers
            || keys
                .make_introduction(rank)
                .is_some_and(|answer| send_introduction(&mut self.stream, &answer));
        if is_answered { IntroductionPoll::Rank(rank) } else { IntroductionPoll::Nobody }
    }
}

/// Sends an introduction. Returns false if the stream has ended.
fn send_introduction(stream: &mut impl OobStream, introduction: &RankIntroduction) -> bool {
    stream.send(OobFrame { bytes: introduction.to_bytes(), fd: None }).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use trunkline_fabric::OobError;

    use super::*;

    type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;

    /// One end of a stream inside this test.
    struct End {
        sends: Queue,
        receives: Queue,
        is_ended: Arc<Mutex<bool>>,
    }

    impl OobStream for End {
        fn send(&mut self, frame: OobFrame) -> Result<(), OobError> {
            self.sends.lock().unwrap().push_back(frame.bytes);
            Ok(())
        }

        fn recv(&mut self) -> Result<Option<OobFrame>, OobError> {
            match self.receives.lock().unwrap().pop_front() {
                Some(bytes) => Ok(Some(OobFrame { bytes, fd: None })),
                None if *self.is_ended.lock().unwrap() => Err(OobError::Closed),
                None => Ok(None),
            }
        }
    }

    impl Drop for End {
        fn drop(&mut self) {
            *self.is_ended.lock().unwrap() = true;
        }
    }

    fn stream() -> (End, End) {
        let one = Queue::default();
        let two = Queue::default();
        let is_ended = Arc::new(Mutex::new(false));
        let end = |sends: &Queue, receives: &Queue| End {
            sends: Arc::clone(sends),
            receives: Arc::clone(receives),
            is_ended: Arc::clone(&is_ended),
        };
        (end(&one, &two), end(&two, &one))
    }

    /// Returns the keys of three ranks, as each of them has them.
    fn ranks() -> [RankKeys; 3] {
        let key = |rank: u8| MemberKey::new([[rank + 1; 16], [rank ^ 0xff; 16]]);
        let public: Vec<_> = (0..3).map(|rank| Some(key(rank).public_key())).collect();
        [0, 1, 2].map(|rank: u8| RankKeys { rank: rank.into(), key: key(rank), public: public.clone() })
    }

    fn ranks_of(shown: &[(End, usize)]) -> Vec<usize> {
        shown.iter().map(|(_, rank)| *rank).collect()
    }

    #[test]
    fn two_ranks_prove_their_numbers_to_each_other() {
        let [zero, one, _] = ranks();
        let (here, there) = stream();
        let mut dials = IntroductionQueue::new();
        let mut accepts = IntroductionQueue::new();
        assert!(dials.add_dialled(&one, here, 0));
        assert!(dials.poll(&one).is_empty(), "the other rank has not sent its proof");
        accepts.add_accepted(there);
        let accepted = accepts.poll(&zero);
        assert_eq!(ranks_of(&accepted), [1]);
        assert_eq!(ranks_of(&dials.poll(&one)), [0]);
    }

    #[test]
    fn forged_rank_introductions_are_rejected() {
        let [zero, one, two] = ranks();
        // Rank 2 claims to be rank 1, with a proof of its own, with one that rank 1 sent to it, and without one.
        let own = two.make_introduction(0).unwrap();
        let seen = one.make_introduction(2).unwrap();
        for proof in [own.proof, seen.proof, [0; 16]] {
            let (mut here, there) = stream();
            let mut accepts = IntroductionQueue::new();
            accepts.add_accepted(there);
            assert!(send_introduction(&mut here, &RankIntroduction { rank: 1, proof }));
            assert!(accepts.poll(&zero).is_empty());
            assert!(
                matches!(here.recv(), Err(OobError::Closed)),
                "the stream is closed, and no proof was sent"
            );
        }
    }

    #[test]
    fn dial_rejects_a_listener_of_another_rank() {
        let [_, one, two] = ranks();
        let (here, mut there) = stream();
        let mut dials = IntroductionQueue::new();
        assert!(dials.add_dialled(&one, here, 0));
        // The listener is rank 2, which proves that.
        assert!(send_introduction(&mut there, &two.make_introduction(1).unwrap()));
        assert!(dials.poll(&one).is_empty());
        _ = there.recv();
        assert!(matches!(there.recv(), Err(OobError::Closed)));
    }

    #[test]
    fn second_introduction_of_a_rank_is_closed() {
        let [zero, one, _] = ranks();
        let mut accepts = IntroductionQueue::new();
        let introductions: Vec<_> = (0..3)
            .map(|_| {
                let (mut here, there) = stream();
                accepts.add_accepted(there);
                assert!(send_introduction(&mut here, &one.make_introduction(0).unwrap()));
                here
            })
            .collect();
        let shown = accepts.poll(&zero);
        assert_eq!(ranks_of(&shown), [1]);
        let mut answers = introductions.into_iter().map(|mut here| (here.recv(), here.recv()));
        assert!(
            matches!(answers.next(), Some((Ok(Some(_)), Ok(None)))),
            "the first stream receives a proof and stays open"
        );
        assert!(
            answers.all(|(first, _)| matches!(first, Err(OobError::Closed))),
            "the other streams are closed"
        );
    }

    #[test]
    fn unproven_streams_are_bounded() {
        let [zero, one, _] = ranks();
        let mut accepts = IntroductionQueue::new();
        let mut silent: Vec<_> = (0..=UNPROVEN_MAX)
            .map(|_| {
                let (here, there) = stream();
                accepts.add_accepted(there);
                here
            })
            .collect();
        assert!(matches!(silent[0].recv(), Err(OobError::Closed)), "the oldest stream is closed");
        assert!(matches!(silent[1].recv(), Ok(None)));
        let (here, there) = stream();
        let mut dials = IntroductionQueue::new();
        assert!(dials.add_dialled(&one, here, 0));
        accepts.add_accepted(there);
        assert_eq!(ranks_of(&accepts.poll(&zero)), [1], "a later rank is accepted");
    }
}
