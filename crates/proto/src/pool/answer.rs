//! The receiving end: whether what the other end asks can be, and when a group of its is up.

use super::ask::{AskError, fits_links};
use super::config::Wish;
use super::group::{GroupId, State};
use super::key::{End, Key};
use super::seat::{Comer, How, SeatId, Stage};
use super::{Limit, NoSeat, Place, Pool};
use crate::limits::{GROUPS_OF_KEY_MAX, MEMBERS_OF_GROUP_MAX};
use crate::wire::proof::{Epoch, Proof};
use crate::wire::share::{Mode, Request};

/// What to do for a comm that is to be accepted. What comes again gets the same verdict, and no second seat.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Make links for the new group, connect them, say [`Pool::wired`] and answer with the proof.
    Created(Place),
    /// It is in the group.
    Joined(Place),
    /// Make links for it alone: that was asked, or this end does not share.
    Alone(Place),
    /// There is no such group, or it is not wired to the other end's.
    Retry,
    /// There are no queue pairs to spare for another group, or for itself: it shall share.
    Full,
    /// There is no room for it.
    NoResources(Limit),
    /// Not now, and no answer is due: the queue pairs that it needs are still being destroyed with another group. What
    /// was asked is asked again.
    Later,
    /// The other end has given up what it asked for earlier: [`Pool::leave`] that seat, then ask the pool again.
    Stale(SeatId),
    /// It asks what it has since asked anew; no answer is due.
    Late,
}

impl Pool {
    /// An OPEN came, for connection `conn` of the other process, from a comm with `links` links.
    ///
    /// # Errors
    /// [`AskError::Misuse`] only.
    pub fn asked(&mut self, key: &Key, conn: u64, links: u8, request: &Request) -> Result<Verdict, AskError> {
        if key.end != End::Receiving || !fits_links(key, links) {
            return Err(AskError::Misuse);
        }
        if let Some(&seat) = self.conns.get(&(key.peer, conn))
            && !self.mutant.is("pool-seats-twice")
        {
            return Ok(self.again(seat, request.turn));
        }
        let wish = Wish { turn: request.turn, ..Wish::new(links) };
        let shares = self.config.offer().groups > 0;
        Ok(match request.mode {
            Mode::Join(epoch, proof) => self.join(key, conn, wish, (epoch, proof)),
            Mode::Create(epoch) if shares => self.create(key, conn, wish, epoch, self.counting(key).count()),
            // What is here is for other NICs of that process, which OPEN does not name.
            Mode::First(epoch) if shares => self.create(key, conn, wish, epoch, 0),
            Mode::Rather if shares && self.budgets.are_short(&key.local, links) => Verdict::Full,
            Mode::Create(_) | Mode::First(_) | Mode::Rather | Mode::Alone => self.alone(key, conn, wish),
        })
    }

    /// What was said to a connection that has a seat.
    fn again(&self, id: SeatId, turn: u32) -> Verdict {
        let Some(seat) = self.seats.get(id.0) else { return Verdict::Retry };
        if turn != seat.wish.turn {
            return if turn < seat.wish.turn { Verdict::Late } else { Verdict::Stale(id) };
        }
        let place = Place { group: seat.group, seat: id };
        match (seat.how, self.state(seat.group)) {
            (How::Alone, _) => Verdict::Alone(place),
            (_, None | Some(State::Broken | State::Leaving)) => Verdict::Retry,
            (How::Created, _) => Verdict::Created(place),
            (How::Joined, _) => Verdict::Joined(place),
        }
    }

    fn join(&mut self, key: &Key, conn: u64, wish: Wish, (epoch, proof): (Epoch, Proof)) -> Verdict {
        let Some(id) = self.of_epoch(key, epoch) else { return Verdict::Retry };
        let believes = self.mutant.is("pool-joins-unproven");
        let Some(group) = self.groups.get_mut(id.0) else { return Verdict::Retry };
        let proven = group.proof == Some(proof) || believes;
        let open = matches!(group.state, State::Creating | State::Up) || self.mutant.is("pool-joins-broken");
        if !proven || !open || group.seats.len() >= MEMBERS_OF_GROUP_MAX {
            return Verdict::Retry;
        }
        // Who can prove the wiring has heard the answer to its creator, and joins only what is up there: as good as READY.
        group.go(State::Up);
        match self.enter(id, Comer { how: How::Joined, wish, conn: Some(conn) }) {
            Ok(place) => Verdict::Joined(place),
            Err(limit) => Verdict::NoResources(limit),
        }
    }

    /// `existing`: groups that the asking end could have this comm share.
    fn create(&mut self, key: &Key, conn: u64, wish: Wish, epoch: Epoch, existing: usize) -> Verdict {
        if self.of_epoch(key, epoch).is_some() {
            // Two connections cannot both begin one group.
            return Verdict::Retry;
        }
        match self.fits(key, wish.links, existing) {
            Err(_) if existing > 0 => return Verdict::Full,
            Err(limit) => return self.none(limit),
            Ok(()) if self.counting(key).count() >= GROUPS_OF_KEY_MAX.into() => return Verdict::Full,
            Ok(()) => {}
        }
        match self.make(key, Some(epoch), Comer { how: How::Created, wish, conn: Some(conn) }) {
            Ok(place) => Verdict::Created(place),
            Err(limit) => Verdict::NoResources(limit),
        }
    }

    fn alone(&mut self, key: &Key, conn: u64, wish: Wish) -> Verdict {
        if let Err(limit) = self.fits(key, wish.links, 0) {
            return self.none(limit);
        }
        match self.make(key, None, Comer { how: How::Alone, wish, conn: Some(conn) }) {
            Ok(place) => Verdict::Alone(place),
            Err(limit) => Verdict::NoResources(limit),
        }
    }

    fn none(&self, limit: Limit) -> Verdict {
        if self.comes_back(limit) { Verdict::Later } else { Verdict::NoResources(limit) }
    }

    /// The group of that epoch, wherever it stands.
    fn of_epoch(&self, key: &Key, epoch: Epoch) -> Option<GroupId> {
        let any = self.mutant.is("pool-key-forgets-group");
        let of_epoch =
            |id: &GroupId| self.groups.get(id.0).is_some_and(|group| any || group.epoch == Some(epoch));
        self.of_key(key).find(of_epoch)
    }

    /// READY came for that seat: the other end is wired too. A group that waited for it is up. Where the group stands.
    ///
    /// # Errors
    /// [`NoSeat`] if the comm has left.
    pub fn ready(&mut self, id: SeatId) -> Result<State, NoSeat> {
        let seat = self.seats.get_mut(id.0).ok_or(NoSeat)?;
        let group = self.groups.get_mut(seat.group.0).ok_or(NoSeat)?;
        seat.stage = Stage::Agreed;
        if group.proof.is_some() || self.mutant.is("pool-believes-ready") {
            group.go(State::Up);
        }
        Ok(group.state)
    }
}
