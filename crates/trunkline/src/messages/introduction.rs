//! Who is at the other end of a stream between two ranks of a host, shown before the stream carries anything else. Used while ranks
//! meet. A claim of a process about itself is not believed without a proof, since every member of the job, and any process that asks it, can know
//! all that a card says.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use trunkline_engine::{MemberKey, ProofPurpose};
use trunkline_fabric::{OobFrame, OobStream};
use trunkline_proto::wire::dial::PublicKey;
use trunkline_proto::wire::introduction::RankIntroduction;

/// How long a stream may take to show who it is.
const UNPROVEN: Duration = Duration::from_secs(10);
/// Accepted streams that have not shown it, at most; of more, the oldest is closed.
const UNPROVEN_MAX: usize = 64;
/// Streams that are accepted between two polls: fewer than may wait, so that each is read before newer ones end it.
pub(super) const ACCEPTS_PER_POLL: usize = 16;

/// This rank, and the public keys of all ranks.
#[derive(Debug)]
pub(super) struct RankKeys {
    pub(super) rank: usize,
    pub(super) key: MemberKey,
    /// By rank; `None` for a card that could not be read.
    pub(super) public: Vec<Option<PublicKey>>,
}

impl RankKeys {
    /// The introduction of this rank to another one; `None` if that one has no key.
    fn make_introduction(&self, to: usize) -> Option<RankIntroduction> {
        let proof = self.make_proof(self.rank, to)?;
        Some(RankIntroduction { rank: u32::try_from(self.rank).ok()?, proof })
    }

    /// Whether an introduction is of that rank.
    fn is_shown(&self, of: usize, introduction: &RankIntroduction) -> bool {
        self.make_proof(of, self.rank) == Some(introduction.proof)
    }

    /// The proof that `from` shows `to`, one of which is this rank.
    fn make_proof(&self, from: usize, to: usize) -> Option<[u8; 16]> {
        let other = if from == self.rank { to } else { from };
        let theirs = self.public.get(other)?.as_ref()?;
        self.key.make_proof(ProofPurpose::Tagged, theirs, u32::try_from(from).ok()?, u32::try_from(to).ok()?)
    }
}

/// A stream whose other end has not shown who it is.
struct UnprovenStream<S> {
    stream: S,
    /// The rank that was dialled; `None` for an accepted stream.
    dialled: Option<usize>,
    since: Instant,
}

/// The outcome of a poll of such a stream.
enum IntroductionPoll {
    /// Nothing was received.
    Waits,
    /// It is of that rank.
    Rank(usize),
    /// It has ended, or its introduction is wrong.
    Nobody,
}

/// Streams between this rank and others that have not shown who they are, and the ranks that have.
pub(super) struct IntroductionQueue<S> {
    unproven: Vec<UnprovenStream<S>>,
    shown: BTreeSet<usize>,
}

impl<S: OobStream> IntroductionQueue<S> {
    pub(super) const fn new() -> Self {
        Self { unproven: Vec::new(), shown: BTreeSet::new() }
    }

    /// Takes a stream to the listener of another rank, and introduces this one. Whether it could.
    pub(super) fn add_dialled(&mut self, keys: &RankKeys, mut stream: S, rank: usize) -> bool {
        let is_sent = keys
            .make_introduction(rank)
            .is_some_and(|introduction| send_introduction(&mut stream, &introduction));
        if is_sent {
            self.unproven.push(UnprovenStream { stream, dialled: Some(rank), since: Instant::now() });
        }
        is_sent
    }

    /// Takes a stream that another process has opened.
    pub(super) fn add_accepted(&mut self, stream: S) {
        let accepted = self.unproven.iter().filter(|one| one.dialled.is_none()).count();
        if accepted >= UNPROVEN_MAX
            && let Some(oldest) = self.unproven.iter().position(|one| one.dialled.is_none())
        {
            self.unproven.remove(oldest);
        }
        self.unproven.push(UnprovenStream { stream, dialled: None, since: Instant::now() });
    }

    /// The streams that have shown whose they are since the last call, with their ranks, of each rank the first one. Others that cannot any more are
    /// closed.
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
        // A rank introduces itself once; each stream of one costs an inbox.
        if shown.contains(&rank) {
            return IntroductionPoll::Nobody;
        }
        // Who was dialled answers, once it knows to whom.
        let answers = self.dialled.is_none();
        let is_answered = !answers
            || keys
                .make_introduction(rank)
                .is_some_and(|answer| send_introduction(&mut self.stream, &answer));
        if is_answered { IntroductionPoll::Rank(rank) } else { IntroductionPoll::Nobody }
    }
}

/// Sends an introduction; false once the stream is gone.
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

    /// The keys of three ranks, as each has them.
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
        assert!(dials.poll(&one).is_empty(), "the other one has not answered");
        accepts.add_accepted(there);
        let accepted = accepts.poll(&zero);
        assert_eq!(ranks_of(&accepted), [1]);
        assert_eq!(ranks_of(&dials.poll(&one)), [0]);
    }

    #[test]
    fn a_process_that_knows_all_cards_is_no_other_rank() {
        let [zero, one, two] = ranks();
        // Rank 2 says that it is rank 1, with a proof of its own, one that it was shown, and none.
        let own = two.make_introduction(0).unwrap();
        let seen = one.make_introduction(2).unwrap();
        for proof in [own.proof, seen.proof, [0; 16]] {
            let (mut here, there) = stream();
            let mut accepts = IntroductionQueue::new();
            accepts.add_accepted(there);
            assert!(send_introduction(&mut here, &RankIntroduction { rank: 1, proof }));
            assert!(accepts.poll(&zero).is_empty());
            assert!(matches!(here.recv(), Err(OobError::Closed)), "it is closed, and told nothing");
        }
    }

    #[test]
    fn a_listener_that_is_another_rank_is_left() {
        let [_, one, two] = ranks();
        let (here, mut there) = stream();
        let mut dials = IntroductionQueue::new();
        assert!(dials.add_dialled(&one, here, 0));
        // The listener is rank 2, which can prove that.
        assert!(send_introduction(&mut there, &two.make_introduction(1).unwrap()));
        assert!(dials.poll(&one).is_empty());
        _ = there.recv();
        assert!(matches!(there.recv(), Err(OobError::Closed)));
    }

    #[test]
    fn a_rank_introduces_itself_once() {
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
        assert!(matches!(answers.next(), Some((Ok(Some(_)), Ok(None)))), "the first is answered and stays");
        assert!(answers.all(|(first, _)| matches!(first, Err(OobError::Closed))), "the others are closed");
    }

    #[test]
    fn streams_that_show_nothing_are_bounded() {
        let [zero, one, _] = ranks();
        let mut accepts = IntroductionQueue::new();
        let mut silent: Vec<_> = (0..=UNPROVEN_MAX)
            .map(|_| {
                let (here, there) = stream();
                accepts.add_accepted(there);
                here
            })
            .collect();
        assert!(matches!(silent[0].recv(), Err(OobError::Closed)), "the oldest one is closed");
        assert!(matches!(silent[1].recv(), Ok(None)));
        let (here, there) = stream();
        let mut dials = IntroductionQueue::new();
        assert!(dials.add_dialled(&one, here, 0));
        accepts.add_accepted(there);
        assert_eq!(ranks_of(&accepts.poll(&zero)), [1], "a rank that comes later is not kept out");
    }
}
