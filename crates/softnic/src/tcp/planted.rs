//! Planted bugs of this wire, each asked for where it sits. Without the feature `mutants` none is ever on.

use crate::error::PlantedBug;
use crate::register::{CheckedPlace, right};

/// Of who comes in.
pub(super) struct AtTheDoor {
    /// Whoever says any token gets to a link that waits.
    pub(super) any: PlantedBug,
    /// A second socket for a link takes the place of the first.
    pub(super) second: PlantedBug,
    /// That there is no descriptor for who waits is not told.
    pub(super) mute: PlantedBug,
    /// As many as may wait keep all others out until their time is over.
    pub(super) keeps: PlantedBug,
}

impl Default for AtTheDoor {
    fn default() -> Self {
        Self {
            any: PlantedBug::named("soft-tcp-any-token"),
            second: PlantedBug::named("soft-tcp-second-socket"),
            mute: PlantedBug::named("soft-tcp-mute-door"),
            keeps: PlantedBug::named("soft-tcp-silence-keeps-out"),
        }
    }
}

/// Of the wait for sockets.
pub(super) struct AtTheEvents {
    /// No socket is ever watched.
    pub(super) forgets: PlantedBug,
    /// The socket of a failed link stays watched.
    pub(super) clings: PlantedBug,
}

impl Default for AtTheEvents {
    fn default() -> Self {
        Self {
            forgets: PlantedBug::named("soft-tcp-watches-no-socket"),
            clings: PlantedBug::named("soft-tcp-watches-failed-links"),
        }
    }
}

/// Of the look at a connection.
#[derive(Debug)]
pub(super) struct AtTheLook {
    /// No cable is ever cut.
    pub(super) blind: PlantedBug,
    /// A peer without room for data counts as dead although its kernel answers.
    pub(super) impatient: PlantedBug,
}

impl Default for AtTheLook {
    fn default() -> Self {
        Self {
            blind: PlantedBug::named("soft-tcp-blind"),
            impatient: PlantedBug::named("soft-tcp-impatient"),
        }
    }
}

/// Of a stream.
pub(super) struct InTheStream {
    /// How far this side is, is told only with other frames.
    pub(super) silent: PlantedBug,
    /// That there are receives again is not told at once.
    pub(super) starves: PlantedBug,
    /// The peer may say that it has executed anything.
    pub(super) believes: PlantedBug,
    /// Half a word is executed when it has come.
    pub(super) tears: PlantedBug,
    /// A part of a word of a long write is kept back, and all that follows comes through the buffer.
    pub(super) hoards: PlantedBug,
    anywhere: PlantedBug,
    lands_late: PlantedBug,
    sends_late: PlantedBug,
    landing: Option<(usize, u64)>,
    body: Option<(usize, u64)>,
}

impl Default for InTheStream {
    fn default() -> Self {
        Self {
            silent: PlantedBug::named("soft-tcp-silent"),
            starves: PlantedBug::named("soft-tcp-starves"),
            believes: PlantedBug::named("soft-tcp-believes"),
            tears: PlantedBug::named("soft-tcp-tears-words"),
            hoards: PlantedBug::named("soft-tcp-hoards"),
            anywhere: PlantedBug::named("soft-tcp-lands-anywhere"),
            lands_late: PlantedBug::named("soft-tcp-lands-late"),
            sends_late: PlantedBug::named("soft-tcp-sends-late"),
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
    pub(super) fn landing_place(&mut self, left: u64, found: Option<CheckedPlace>) -> Option<CheckedPlace> {
        if self.lands_late.is_on() { keep_place(&mut self.landing, left, found) } else { found }
    }

    /// Where the `left` bytes of a frame come from; with the bug, as above.
    #[inline]
    pub(super) fn body_place(&mut self, left: u64, found: Option<CheckedPlace>) -> Option<CheckedPlace> {
        if self.sends_late.is_on() { keep_place(&mut self.body, left, found) } else { found }
    }
}

/// What was found, or what is `left` of what was found before.
fn keep_place(
    kept: &mut Option<(usize, u64)>,
    left: u64,
    found: Option<CheckedPlace>,
) -> Option<CheckedPlace> {
    if let Some(place) = &found {
        *kept = Some((place.at.expose_provenance(), left));
        return found;
    }
    let (at, had) = (*kept)?;
    let at = at.wrapping_add(had.checked_sub(left)? as usize);
    Some(CheckedPlace { at: std::ptr::with_exposed_provenance_mut(at), rights: 0 })
}
