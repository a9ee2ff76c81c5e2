//! One registration that a cache knows, and the tokens of those who hold it. Owned by the cache, which alone changes it.
//!
//! ```text
//! Registering --registered--> Ready --nobody pins it, and it is not kept--> Closing --closed--> gone
//!      |
//!      +--failed--> Failed --all who waited were told--> gone
//! ```

use super::key::Key;
use crate::intervals::Span;
use crate::queue::{Linked, Links};
use crate::slots::SlotId;

/// The name of a registration in a cache. One that is gone has a name that names nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EntryId(pub SlotId);

/// The right to use a registration: it is not closed before this is given back. There is one for each that was given, so
/// none can be given back twice; one that is dropped keeps its registration for ever.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a pin that is not given back keeps its registration for ever"]
pub struct Pin(pub(super) EntryId);

/// A place among those who wait for a registration that another one carries out. It counts as a pin.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "who waits asks what has become of it, or gives up"]
pub struct Wait(pub(super) EntryId);

impl Pin {
    /// Which registration it is; the place of its name is where the caller may keep what belongs to it.
    #[must_use]
    pub const fn entry(&self) -> EntryId {
        self.0
    }
}

impl Wait {
    /// Which registration it is.
    #[must_use]
    pub const fn entry(&self) -> EntryId {
        self.0
    }
}

/// Where a registration stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Somebody is carrying it out.
    Registering,
    /// It can be used.
    Ready,
    /// It could not be made, and not all who waited know.
    Failed,
    /// It is to be closed; nobody has been told to yet.
    Leaving,
    /// Somebody is closing it.
    Closing,
}

/// A registration.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// What is registered, exactly.
    pub(super) span: Span,
    pub(super) state: State,
    /// Whether who asks finds it; once not, never again.
    pub(super) listed: bool,
    /// Those who may use it, or will: who carries it out and who waits included.
    pub(super) pins: u32,
    /// Those of them who wait, or have not asked since.
    pub(super) waiting: u32,
    pub(super) links: Links,
}

impl Entry {
    /// One that its first pin is carrying out.
    pub(super) const fn new(key: Key, span: Span) -> Self {
        Self { key, span, state: State::Registering, listed: true, pins: 1, waiting: 0, links: Links::NONE }
    }
}

impl Linked for Entry {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}
