//! One registration that a cache knows, and the tokens of those who hold it. Owned by the cache, which alone changes it.
//!
//! ```text
//! Registering --registered--> Ready --nobody pins it, and it is not kept--> Closing --closed--> gone
//!      |
//!      +--failed--> Failed --all who waited were told--> gone
//! ```

use super::key::RegistrationKey;
use crate::intervals::ByteSpan;
use crate::queue::{LinkedEntry, QueueLinks};
use crate::slots::SlotId;

/// The name of a registration in a cache. One that is gone has a name that names nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EntryId(pub SlotId);

/// The right to use a registration: it is not closed before this is given back. There is one for each that was given, so
/// none can be given back twice; one that is dropped keeps its registration for ever.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a pin that is not given back keeps its registration for ever"]
pub struct RegistrationPin(pub(super) EntryId);

/// A place among those who wait for a registration that another one carries out. It counts as a pin.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "who waits asks what has become of it, or gives up"]
pub struct RegistrationWait(pub(super) EntryId);

impl RegistrationPin {
    /// Which registration it is; the place of its name is where the caller may keep what belongs to it.
    #[must_use]
    pub const fn entry_id(&self) -> EntryId {
        self.0
    }
}

impl RegistrationWait {
    /// Which registration it is.
    #[must_use]
    pub const fn entry_id(&self) -> EntryId {
        self.0
    }
}

/// Where a registration stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegistrationPhase {
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
pub(super) struct RegistrationEntry {
    pub(super) key: RegistrationKey,
    /// What is registered, exactly.
    pub(super) span: ByteSpan,
    pub(super) state: RegistrationPhase,
    /// Whether who asks finds it; once not, never again.
    pub(super) listed: bool,
    /// Those who may use it, or will: who carries it out and who waits included.
    pub(super) pins: u32,
    /// Those of them who wait, or have not asked since.
    pub(super) waiting: u32,
    pub(super) links: QueueLinks,
}

impl RegistrationEntry {
    /// One that its first pin is carrying out.
    pub(super) const fn new(key: RegistrationKey, span: ByteSpan) -> Self {
        Self {
            key,
            span,
            state: RegistrationPhase::Registering,
            listed: true,
            pins: 1,
            waiting: 0,
            links: QueueLinks::NONE,
        }
    }
}

impl LinkedEntry for RegistrationEntry {
    fn queue_links(&mut self) -> &mut QueueLinks {
        &mut self.links
    }
}
