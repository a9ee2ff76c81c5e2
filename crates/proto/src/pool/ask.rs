//! The sending end: which group a comm goes to, and what the other end's answer makes of it.

use core::num::NonZeroU64;

use super::config::Wish;
use super::group::{Group, GroupId, State};
use super::key::{End, Key};
use super::seat::{Comer, How, SeatId, Stage};
use super::{Limit, Place, Pool};
use crate::limits::{GROUPS_OF_KEY_MAX, LINKS_MAX, MEMBERS_OF_GROUP_MAX, TURNS_MAX};
use crate::wire::proof::{Epoch, Proof};
use crate::wire::share::{Answer, Given, Mode, Request};

/// What to do for a comm that connects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ask {
    /// Make links for it alone, as this process or the peer does not share.
    Alone(Place),
    /// Make links for it alone, as it wished.
    Rather(Place),
    /// Make links for one more group, and ask the other end to.
    Create(Place, Epoch),
    /// The same for the first group of its key.
    First(Place, Epoch),
    /// Ask the other end to let it into this group, which is up.
    Join(Place, Epoch, Proof),
    /// Ask again later: the group that it fits best is still being made, or the queue pairs that it needs are still being
    /// destroyed with another. Nothing is kept for it meanwhile; if the making fails, whoever asks first makes the next one.
    Wait,
}

impl Ask {
    /// What OPEN says, of that turn; nothing while it waits.
    #[must_use]
    pub const fn request(&self, turn: u32) -> Option<Request> {
        let mode = match *self {
            Self::Alone(_) => Mode::Alone,
            Self::Rather(_) => Mode::Rather,
            Self::Create(_, epoch) => Mode::Create(epoch),
            Self::First(_, epoch) => Mode::First(epoch),
            Self::Join(_, epoch, proof) => Mode::Join(epoch, proof),
            Self::Wait => return None,
        };
        Some(Request { mode, turn })
    }
}

/// A comm cannot be placed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AskError {
    /// There is no room for it, nor in any group that exists.
    #[error("no room for another comm: {0}")]
    Exhausted(Limit),
    /// A comm has 1 to 4 links, over at least one NIC, and this end asks or answers, not both.
    #[error("not a comm of this end")]
    Misuse,
}

/// What the other end's answer means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Connect the links that were made, then say [`Pool::wired`].
    Wire,
    /// The comm is in the group, whose links are up.
    Go,
    /// The seat is of no use: [`Pool::leave`] it, then ask with this wish.
    Again(Wish),
    /// The attempt has failed.
    Failed(AnswerFault),
    /// It answers an ask of an earlier turn, or one that was answered: nothing.
    Known,
}

/// Why an answer ends an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AnswerFault {
    /// It was told to ask anew too often.
    #[error("the peer wants to be asked anew for ever")]
    Turns,
    /// It is no answer to what was asked.
    #[error("the peer's answer does not fit the request")]
    Nonsense,
}

impl Pool {
    /// A comm of that key wants links.
    ///
    /// Below the number of groups there may be (of this process, the wish, and the peer's offer within it) and with queue
    /// pairs to spare, it begins a group; otherwise it goes to the one with the least weight of members, then with the
    /// least load. Where queue pairs are short it shares also against its wish.
    ///
    /// # Errors
    /// [`AskError`] names what has run out.
    pub fn ask(&mut self, key: &Key, wish: Wish) -> Result<Ask, AskError> {
        if key.end != End::Sending || !fits_links(key, wish.links) {
            return Err(AskError::Misuse);
        }
        let comer = |how| Comer { how, wish, conn: None };
        let short = self.budgets.are_short(&key.local, wish.links);
        let groups = self.config.groups(short).min(wish.groups_at_most).min(GROUPS_OF_KEY_MAX);
        let existing = self.counting(key).count();
        let room = self.fits(key, wish.links, existing);
        if groups == 0 || wish.alone && !short {
            if let Err(limit) = self.fits(key, wish.links, 0) {
                return self.exhausted(limit);
            }
            let place = self.make(key, None, comer(How::Alone)).map_err(AskError::Exhausted)?;
            return Ok(if groups == 0 { Ask::Alone(place) } else { Ask::Rather(place) });
        }
        let full = self.best(key).is_none() && existing < GROUPS_OF_KEY_MAX.into();
        if existing == 0 || (existing < usize::from(groups) || full) && room.is_ok() {
            if let Err(limit) = room {
                return self.exhausted(limit);
            }
            let next = self.epochs.next_epoch();
            let epoch = if self.mutant.is("pool-repeats-epochs") { Epoch(NonZeroU64::MIN) } else { next };
            let place = self.make(key, Some(epoch), comer(How::Created)).map_err(AskError::Exhausted)?;
            let first = existing == 0 && !self.mutant.is("pool-hides-first-groups");
            return Ok(if first { Ask::First(place, epoch) } else { Ask::Create(place, epoch) });
        }
        let full = AskError::Exhausted(Limit::MembersOfGroup(MEMBERS_OF_GROUP_MAX));
        let (id, group) = self.best(key).ok_or(full)?;
        let proof = match (group.state, group.proof) {
            (State::Up, Some(proof)) => proof,
            _ if self.mutant.is("pool-joins-unready") => Proof(0),
            _ => return Ok(Ask::Wait),
        };
        let epoch = group.epoch.ok_or(AskError::Misuse)?;
        let place = self.enter(id, comer(How::Joined)).map_err(AskError::Exhausted)?;
        Ok(Ask::Join(place, epoch, proof))
    }

    fn exhausted(&self, limit: Limit) -> Result<Ask, AskError> {
        if self.comes_back(limit) { Ok(Ask::Wait) } else { Err(AskError::Exhausted(limit)) }
    }

    /// The group of a key that a comm fits best.
    fn best(&self, key: &Key) -> Option<(GroupId, &Group)> {
        let with_room = || self.counting(key).filter(|(_, group)| group.seats.len() < MEMBERS_OF_GROUP_MAX);
        if self.mutant.is("pool-counts-modulo") {
            let members = with_room().fold(0, |sum, (_, group)| sum + group.seats.len());
            return with_room().nth(members % with_room().count().max(1));
        }
        with_room()
            .min_by_key(|(_, group)| (group.weight, group.load, group.state == State::Creating, group.index))
    }

    /// The other end's RESULT came for that seat.
    pub fn answered(&mut self, id: SeatId, answer: &Answer) -> Next {
        let Some(seat) = self.seats.get_mut(id.0) else { return Next::Known };
        if seat.stage != Stage::Asking || answer.turn != seat.wish.turn {
            return Next::Known;
        }
        let Some(group) = self.groups.get_mut(seat.group.0) else { return Next::Known };
        let again = seat.wish.anew();
        let ours = |epoch| Some(epoch) == group.epoch;
        match (seat.how, answer.given) {
            (How::Alone, Given::Alone) => {}
            (How::Created, Given::Alone) => {
                group.epoch = None;
                (seat.how, seat.stage) = (How::Alone, Stage::Agreed);
                let key = group.key;
                let id = seat.group;
                self.unlist(&key, id);
                return Next::Wire;
            }
            (How::Created, Given::Created { epoch, proof, .. }) if ours(epoch) => group.told = Some(proof),
            (How::Joined, Given::Joined { epoch, .. }) if ours(epoch) => {
                seat.stage = Stage::Agreed;
                return Next::Go;
            }
            (How::Created | How::Joined, Given::Retry) => {
                if !self.mutant.is("pool-asks-the-lost") {
                    group.go(State::Draining);
                }
                return anew(again);
            }
            (How::Alone, Given::Full) if again.alone => {
                return anew(Wish { alone: false, ..again });
            }
            (How::Created, Given::Full) => {
                group.go(State::Draining);
                let key = group.key;
                // What that end has for comms of this kind may be for other NICs of this one: then it is to have its own.
                let begins = self.mutant.is("pool-believes-full");
                let joins = self.counting(&key).next().is_some() || begins;
                return anew(Wish { groups_at_most: u8::from(joins), ..again });
            }
            _ => return Next::Failed(AnswerFault::Nonsense),
        }
        seat.stage = Stage::Agreed;
        Next::Wire
    }
}

/// Asks anew with that wish, unless that was often enough.
const fn anew(wish: Wish) -> Next {
    if wish.turn < TURNS_MAX { Next::Again(wish) } else { Next::Failed(AnswerFault::Turns) }
}

/// Whether a comm of that key can have so many links.
pub(super) fn fits_links(key: &Key, links: u8) -> bool {
    (1..=LINKS_MAX).contains(&usize::from(links)) && !key.local.is_empty()
}
