//! Planted bugs of this wire, each asked for where it sits. Without the feature `mutants` none is ever on.

use crate::error::Planted;
use crate::register::{Place, right};

/// Of who comes in.
pub(super) struct AtTheDoor {
    /// Whoever says any token gets to a link that waits.
    pub(super) any: Planted,
    /// A second socket for a link takes the place of the first.
    pub(super) second: Planted,
    /// That there is no descriptor for who waits is not told.
    pub(super) mute: Planted,
    /// As many as may wait keep all others out until their time is over.
    pub(super) keeps: Planted,
}

impl Default for AtTheDoor {
    fn default() -> Self {
        Self {
            any: Planted::named("soft-tcp-any-token"),
            second: Planted::named("soft-tcp-second-socket"),
            mute: Planted::named("soft-tcp-mute-door"),
            keeps: Planted::named("soft-tcp-silence-keeps-out"),
        }
    }
}

/// Of the wait for sockets.
pub(super) struct AtTheEvents {
    /// No socket is ever watched.
    pub(super) forgets: Planted,
    /// The socket of a failed link stays watched.
    pub(super) clings: Planted,
}

impl Default for AtTheEvents {
    fn default() -> Self {
        Self {
            forgets: Planted::named("soft-tcp-watches-no-socket"),
            clings: Planted::named("soft-tcp-watches-failed-links"),
        }
    }
}

/// Of the look at a connection.
#[derive(Debug)]
pub(super) struct AtTheLook {
    /// No cable is ever cut.
    pub(super) blind: Planted,
    /// A peer without room for data counts as dead although its kernel answers.
    pub(super) impatient: Planted,
}

impl Default for AtTheLook {
    fn default() -> Self {
        Self { blind: Planted::named("soft-tcp-blind"), impatient: Planted::named("soft-tcp-impatient") }
    }
}

/// Of a stream.
pub(super) struct InTheStream {
    /// How far this side is, is told only with other frames.
    pub(super) silent: Planted,
    /// That there are receives again is not told at once.
    pub(super) starves: Planted,
    /// The peer may say that it has executed anything.
    pub(super) believes: Planted,
    /// Half a word is executed when it has come.
    pub(super) tears: Planted,
    /// A part of a word of a long write is kept back, and all that follows comes through the buffer.
    pub(super) hoards: Planted,
    anywhere: Planted,
    lands_late: Planted,
    sends_late: Planted,
    landing: Option<(usize, u64)>,
    body: Option<(usize, u64)>,
}

impl Default for InTheStream {
    fn default() -> Self {
        Self {
            silent: Planted::named("soft-tcp-silent"),
            starves: Planted::named("soft-tcp-starves"),
            believes: Planted::named("soft-tcp-believes"),
            tears: Planted::named("soft-tcp-tears-words"),
            hoards: Planted::named("soft-tcp-hoards"),
            anywhere: Planted::named("soft-tcp-lands-anywhere"),
            lands_late: Planted::named("soft-tcp-lands-late"),
            sends_late: Planted::named("soft-tcp-sends-late"),
            landing: None,
            body: None,
        }
    }
}

impl InTheStream {
    /// The right that large payload of a write needs; with the bug, none.
    #[inline]
    pub(super) fn write_right(&self) -> u32 {
        if self.anywhere.is_on() { 0 } else { right::WRITE }
    }

    /// Where the `left` bytes of a payload go; with the bug, where they would if its memory were still registered.
    #[inline]
    pub(super) fn landing(&mut self, left: u64, found: Option<Place>) -> Option<Place> {
        if self.lands_late.is_on() { keep(&mut self.landing, left, found) } else { found }
    }

    /// Where the `left` bytes of a frame come from; with the bug, as above.
    #[inline]
    pub(super) fn body(&mut self, left: u64, found: Option<Place>) -> Option<Place> {
        if self.sends_late.is_on() { keep(&mut self.body, left, found) } else { found }
    }
}

/// What was found, or what is `left` of what was found before.
fn keep(kept: &mut Option<(usize, u64)>, left: u64, found: Option<Place>) -> Option<Place> {
    if let Some(place) = &found {
        *kept = Some((place.at.expose_provenance(), left));
        return found;
    }
    let (at, had) = (*kept)?;
    let at = at.wrapping_add(had.checked_sub(left)? as usize);
    Some(Place { at: std::ptr::with_exposed_provenance_mut(at), rights: 0 })
}
