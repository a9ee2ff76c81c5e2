//! News of messages, peers and the driver, and what is to be done next.

use super::counts::Why;
use super::entry::{Pin, State};
use super::memory::Allocation;
use super::peer::{Held, PeerId, Toward};
use super::{Exporter, NONE};
use crate::intervals::Span;
use crate::slots::SlotId;
use crate::time::Instant;
use crate::wire::ipc::{NAMES_MAX, Name, Names, Outcome};

/// What is to be done, without the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Command {
    /// Give this back to the driver, then say [`Exporter::unexported`]. A failure is the caller's to repeat or to bear.
    Unexport(Name),
    /// Ask the driver what is there, then say [`Exporter::queried`].
    Query(Query),
}

/// A question to the driver: whether an export's memory is still there.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Query {
    pub(super) name: Name,
    pub(super) span: Span,
    pub(super) epoch: u32,
}

impl Query {
    /// The address to ask about: the first byte of an allocation.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.span.start()
    }
}

/// News that cannot be; nothing was changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NewsError {
    /// There is no such export, or it stands elsewhere.
    #[error("no export has that name, or it stands elsewhere")]
    NoExport,
    /// There is no such peer any more.
    #[error("the peer is gone")]
    NoPeer,
    /// The peer was not told to let that go.
    #[error("a peer lets go what it was not told to")]
    NotTold,
}

impl Exporter {
    /// A message is done, as its peer says, or will never be. If the peer could not map the memory the message goes again another
    /// way, and some that follow it do, too. Of a dead peer, or one that has left, nothing is left to be given back.
    pub fn finish(&mut self, pin: Pin, outcome: Outcome, now: Instant) {
        let id = pin.name.id();
        if outcome == Outcome::NotMapped {
            self.counts.fall_back(Why::NotMapped);
        }
        let Some(peer) = self.peers.get_mut(pin.peer.0) else { return };
        let Some(toward) = peer.toward.get_mut(id.slot as usize) else { return };
        match outcome {
            Outcome::NotMapped => toward.failed(),
            Outcome::Copied => toward.succeeded(),
            Outcome::Ended => {}
        }
        if outcome == Outcome::NotMapped && self.mutant.is("ipc-pins-what-failed") {
            return;
        }
        toward.pins = toward.pins.saturating_sub(1);
        let over = self.entries.get(id).is_none_or(|entry| entry.state != State::Live);
        let goes = toward.held == Held::Draining || toward.held == Held::Announced && over;
        if toward.pins == 0 && goes {
            peer.dismiss(id.slot);
        }
        self.unpin(id, now);
    }

    /// One uses it no more.
    pub(super) fn unpin(&mut self, id: SlotId, now: Instant) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let was = entry.pins;
        entry.pins = was.saturating_sub(1);
        if was == 0 {
            return;
        }
        let first = entry.passing && self.mutant.is("ipc-unexports-at-first-end");
        if first {
            (entry.pins, entry.held) = (0, 0);
        }
        if entry.pins == 0 {
            self.rest(id, now);
            self.settle(id);
        }
    }

    /// What that peer is to let go, for one message; `None`: nothing. To be asked when there is room for the message.
    pub fn retire(&mut self, peer: PeerId) -> Option<Names> {
        let peer = self.peers.get_mut(peer.0)?;
        let first = Name::new(self.entries.at(*peer.due.front()?)?.0)?;
        let mut names = [first; NAMES_MAX];
        let mut len = 0;
        while let Some(&slot) = peer.due.front()
            && let Some(place) = names.get_mut(len)
        {
            peer.due.pop_front();
            *place = self.entries.at(slot).and_then(|(id, _)| Name::new(id)).unwrap_or(first);
            len += 1;
            if let Some(toward) = peer.toward.get_mut(slot as usize) {
                toward.held = Held::Told;
            }
        }
        Names::new(names.get(..len)?)
    }

    /// A peer says that it has let these go.
    ///
    /// # Errors
    /// [`NewsError`] if it was not told to let go one of them, or says one twice: then none of it counts, and the peer is broken.
    pub fn retired(&mut self, peer: PeerId, names: &Names) -> Result<(), NewsError> {
        let Some(known) = self.peers.get(peer.0) else { return Err(NewsError::NoPeer) };
        let told = |name: &Name| {
            let toward = known.toward.get(name.id().slot as usize);
            self.entries.get(name.id()).is_some() && toward.is_some_and(|toward| toward.held == Held::Told)
        };
        let twice = |(at, name): (usize, &Name)| names.get()[..at].contains(name);
        let believes = self.mutant.is("ipc-believes-retired");
        if !believes && !names.get().iter().all(told) || names.get().iter().enumerate().any(twice) {
            return Err(NewsError::NotTold);
        }
        for name in names.get() {
            let id = name.id();
            let Some(toward) =
                self.peers.get_mut(peer.0).and_then(|peer| peer.toward.get_mut(id.slot as usize))
            else {
                continue;
            };
            *toward = Toward::default();
            if let Some(entry) = self.entries.get_mut(id) {
                entry.held = entry.held.saturating_sub(1);
            }
            self.settle(id);
        }
        Ok(())
    }

    /// What is to be done next. To be asked after any other call, and at [`Exporter::deadline`], until there is nothing.
    pub fn poll(&mut self, now: Instant) -> Option<Command> {
        self.expire(now);
        if let Some(id) = self.leaving.front() {
            self.leaving.take(&mut self.entries, id);
            self.entries.get_mut(id)?.state = State::Ending;
            return Some(Command::Unexport(Name::new(id)?));
        }
        let epoch = self.epoch;
        let Some(id) = self.find_listed(self.sweep, |entry| entry.checked != epoch) else {
            self.sweep = NONE;
            return None;
        };
        self.sweep = id.slot + 1;
        let span = self.entries.get(id)?.memory.span;
        Some(Command::Query(Query { name: Name::new(id)?, span, epoch }))
    }

    /// The driver has it back: its bytes count no more.
    ///
    /// # Errors
    /// [`NewsError`] if nobody was told to give it back.
    pub fn unexported(&mut self, name: Name) -> Result<(), NewsError> {
        let entry = self.entries.get(name.id()).filter(|entry| entry.state == State::Ending);
        let Some(entry) = entry else { return Err(NewsError::NoExport) };
        self.zombies -= self.config.one(entry.memory);
        self.remove(name.id());
        Ok(())
    }

    /// What the driver says is at the address of a [`Query`]; `None`: nothing. If it is not what was exported, that is over.
    pub fn queried(&mut self, query: Query, now_there: Option<Allocation>) {
        let Some(entry) = self.entries.get_mut(query.name.id()).filter(|entry| entry.listed) else { return };
        if now_there == Some(entry.memory) {
            entry.checked = query.epoch;
            return;
        }
        self.end_stale(query.name.id().slot);
    }
}
