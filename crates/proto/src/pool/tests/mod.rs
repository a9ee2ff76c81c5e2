//! The rules of the pool: one by one, and whatever happens in whatever order.

mod churn;
mod counts;
mod pair;
mod rules;

use proptest::prelude::ProptestConfig;

use super::config::{Sharing, Wish};
use super::*;
use crate::limits::{GROUPS_OF_KEY_MAX, TURNS_MAX};
use crate::nics::Nics;
use crate::slots::SlotId;
use crate::wire::member::MemberId;
use crate::wire::share::{Answer, Given, Mode, Offer, Request};

/// The bug that `cargo xtask mutants` asks for, if any.
pub(super) fn planted() -> Mutant {
    #[cfg(feature = "mutants")]
    if let Ok(name) = std::env::var("TRUNKLINE_MUTANT") {
        return Mutant::named(std::string::String::leak(name));
    }
    Mutant::NONE
}

/// So many cases, of which failed ones are printed and not kept: planted bugs would keep theirs.
pub(super) fn cases(number: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(number) }
}

/// The first member in that slot.
pub(super) fn member(slot: u32) -> MemberId {
    MemberId::from_bits(1 << MemberId::SLOT_BITS | slot).unwrap()
}

fn pool(sharing: Sharing, groups: u8) -> Pool {
    Pool::new(Config::new(sharing, groups, 1).unwrap(), 1 << 40, planted())
}

fn process(number: u8) -> ProcessId {
    ProcessId([number; 16])
}

fn nics(list: &[u16]) -> Nics {
    Nics::new(list).unwrap()
}

/// A sending end's key towards that process, from NIC 0 to its NIC 0.
fn sending(peer: u8) -> Key {
    Key { peer: process(peer), end: End::Sending, local: nics(&[0]), remote: nics(&[0]) }
}

/// A receiving end's key.
fn receiving(peer: u8) -> Key {
    Key { end: End::Receiving, ..sending(peer) }
}

/// The links' addresses of a group whose ends are called so.
fn proof(asking: GroupId, answering: GroupId) -> Proof {
    Proof::of([(&asking.0.to_bits().to_le_bytes()[..], &answering.0.to_bits().to_le_bytes()[..])])
}

/// What a lossless handshake came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Met {
    /// A seat at each end.
    Both(Place, Place),
    /// The asking end has no room.
    Exhausted(Limit),
    /// The answering end has none.
    NoResources(Limit),
    /// The answer ended it.
    Failed(AnswerFault),
}

impl Met {
    fn both(self) -> (Place, Place) {
        let Self::Both(asking, answering) = self else { unreachable!("{self:?}") };
        (asking, answering)
    }
}

/// Connects a comm, nothing being lost or delayed.
fn connect(ends: (&mut Pool, &mut Pool), keys: (&Key, &Key), conn: u64, mut wish: Wish) -> Met {
    let (asking, answering) = ends;
    for _ in 0..100 {
        let ask = match asking.ask(keys.0, wish) {
            Ok(ask) => ask,
            Err(AskError::Exhausted(limit)) => return Met::Exhausted(limit),
            Err(AskError::Misuse) => unreachable!("misuse"),
        };
        let (Ask::Alone(ours)
        | Ask::Rather(ours)
        | Ask::Create(ours, _)
        | Ask::First(ours, _)
        | Ask::Join(ours, ..)) = ask
        else {
            unreachable!("nothing is being made")
        };
        let request = ask.request(wish.turn).unwrap();
        let verdict = answering.asked(keys.1, conn, wish.links, &request).unwrap();
        assert_eq!(answering.asked(keys.1, conn, wish.links, &request), Ok(verdict), "asked again");
        let (given, theirs) = match answered(answering, verdict, &request, ours) {
            Ok(answered) => answered,
            Err(limit) => {
                leave(asking, ours.seat);
                return Met::NoResources(limit);
            }
        };
        let answer = Answer { given, turn: wish.turn };
        match asking.answered(ours.seat, &answer) {
            Next::Wire => {
                assert_eq!(asking.wired(ours.group, proof(ours.group, theirs.group)), Ok(State::Up));
                assert_eq!(answering.ready(theirs.seat), Ok(State::Up));
                return Met::Both(ours, theirs);
            }
            Next::Go => {
                assert_eq!(answering.ready(theirs.seat), Ok(State::Up));
                return Met::Both(ours, theirs);
            }
            Next::Again(next) => {
                leave(asking, ours.seat);
                wish = next;
            }
            Next::Failed(fault) => {
                leave(asking, ours.seat);
                return Met::Failed(fault);
            }
            Next::Known => unreachable!("answered once"),
        }
    }
    unreachable!("it never ends")
}

/// What the answering end answers, once its links are wired.
fn answered(
    pool: &mut Pool,
    verdict: Verdict,
    request: &Request,
    ours: Place,
) -> Result<(Given, Place), Limit> {
    let wire = |pool: &mut Pool, theirs: Place| {
        let proof = proof(ours.group, theirs.group);
        assert_eq!(pool.wired(theirs.group, proof), Ok(State::Creating));
        proof
    };
    let (Mode::Create(epoch) | Mode::First(epoch) | Mode::Join(epoch, _)) = request.mode else {
        return match verdict {
            Verdict::Alone(place) => {
                wire(pool, place);
                Ok((Given::Alone, place))
            }
            Verdict::Full => Ok((Given::Full, ours)),
            Verdict::NoResources(limit) => Err(limit),
            other => unreachable!("{other:?}"),
        };
    };
    match verdict {
        Verdict::Created(place) => {
            let proof = wire(pool, place);
            Ok((Given::Created { epoch, proof, member: member(0) }, place))
        }
        Verdict::Joined(place) => Ok((Given::Joined { epoch, member: member(0) }, place)),
        Verdict::Alone(place) => {
            wire(pool, place);
            Ok((Given::Alone, place))
        }
        Verdict::Retry => Ok((Given::Retry, ours)),
        Verdict::Full => Ok((Given::Full, ours)),
        Verdict::NoResources(limit) => Err(limit),
        Verdict::Stale(_) | Verdict::Late | Verdict::Later => unreachable!("{verdict:?}"),
    }
}

/// A member leaves, and what is to be destroyed is.
fn leave(pool: &mut Pool, seat: SeatId) {
    if let Left::Last(teardown) = pool.leave(seat).unwrap() {
        let group = teardown.group;
        assert_eq!(pool.state(group), Some(State::Leaving));
        assert!(teardown.count() > 1);
        assert!(pool.destroyed(group) && !pool.destroyed(group));
    }
}

/// Members of each group that can be joined, by index.
fn sizes(pool: &Pool) -> Vec<usize> {
    let mut sizes: Vec<_> = pool
        .groups()
        .filter(|group| group.shared && group.state == State::Up)
        .map(|group| (group.index, group.members))
        .collect();
    sizes.sort_unstable();
    sizes.into_iter().map(|(_, members)| members).collect()
}

fn spread(sizes: &[usize]) -> usize {
    sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0)
}
