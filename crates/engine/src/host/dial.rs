//! Where the strands of a stream that this process began lead, and when one that has ended is begun again. Used by that
//! stream alone; holds no strand.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration as Time, Instant};

use trunkline_fabric::OobError;
use trunkline_proto::mutant::Mutant;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::strand::STRANDS_MAX;

use super::strand::Strand;

/// Pause before an ended strand is begun again; it doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Time = Time::from_secs(1);
/// The longest such pause.
const PAUSE_MAX: Time = Time::from_secs(5);

/// The attempts.
#[derive(Debug)]
pub(super) struct Dial {
    /// Addresses of the other process.
    places: Vec<SocketAddr>,
    /// Addresses of this one.
    from: Vec<IpAddr>,
    silence: Duration,
    slots: [Slot; STRANDS_MAX],
    mutant: Mutant,
}

/// One strand.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Not before; `None`: it is there.
    due: Option<Instant>,
    pause: Time,
}

impl Dial {
    pub(super) fn new(
        places: Vec<SocketAddr>,
        from: Vec<IpAddr>,
        silence: Duration,
        now: Instant,
        mutant: Mutant,
    ) -> Self {
        let slots = [Slot { due: Some(now), pause: PAUSE_FIRST }; STRANDS_MAX];
        Self { places, from, silence, slots, mutant }
    }

    /// How many strands there are to be.
    fn count(&self) -> usize {
        let most = if self.mutant.is("oob-begins-one-strand") { 1 } else { STRANDS_MAX };
        self.places.len().max(self.from.len()).min(most)
    }

    /// Begins the next strand that is due; `None` if none is.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Result<Strand, OobError>> {
        let count = self.count();
        let at = self.slots[..count].iter().position(|slot| slot.due.is_some_and(|due| due <= now))?;
        self.slots[at].due = None;
        let to = self.places[at % self.places.len()];
        // The kernel knows a way to the first; a host whose routes ignore the source may have no other.
        let from = (at > 0).then(|| self.from.get(at % self.from.len().max(1)).copied()).flatten();
        let from = from.filter(|from| from.is_ipv4() == to.is_ipv4());
        let begun = Strand::begin(to, from, self.silence, at);
        if begun.is_err() {
            self.ended(at, now);
        }
        Some(begun)
    }

    /// A strand leads to the other process, which says where else it can be reached.
    pub(super) fn joined(&mut self, slot: usize, places: Vec<SocketAddr>) {
        self.slots[slot].pause = PAUSE_FIRST;
        if !places.is_empty() {
            self.places = places;
        }
    }

    /// A strand has ended, or could not begin.
    pub(super) fn ended(&mut self, slot: usize, now: Instant) {
        let Slot { due, pause } = &mut self.slots[slot];
        *due = (!self.mutant.is("oob-begins-once")).then(|| now + *pause);
        *pause = (*pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::secs(10);

    fn nowhere(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn there_are_as_many_strands_as_the_end_with_more_addresses_has() {
        let from = |count: u8| (1..=count).map(|at| IpAddr::from([127, 0, 0, at])).collect::<Vec<_>>();
        for (places, ours, strands) in [(1, 0, 1), (1, 1, 1), (2, 1, 2), (1, 3, 3), (4, 2, 4), (9, 9, 4)] {
            let now = Instant::now();
            let mut dial =
                Dial::new((1..=places).map(nowhere).collect(), from(ours), SILENCE, now, Mutant::NONE);
            let begun = std::iter::from_fn(|| dial.begin(now)).count();
            assert_eq!(begun, strands, "{places} {ours}");
        }
    }

    #[test]
    fn what_ended_is_begun_again_after_a_growing_pause() {
        let now = Instant::now();
        let mut dial = Dial::new(vec![nowhere(1)], Vec::new(), SILENCE, now, Mutant::NONE);
        // Whether it fails at once or later is the kernel's affair.
        drop(dial.begin(now));
        let mut at = now;
        for pause in [1, 2, 4, 5, 5] {
            dial.slots[0].due = None;
            dial.ended(0, at);
            let before = at + Time::from_millis(pause * 1000 - 1);
            assert!(dial.begin(before).is_none(), "{pause}");
            at += Time::from_secs(pause);
            assert_eq!(dial.slots[0].due, Some(at));
        }
        dial.joined(0, vec![nowhere(2), nowhere(3)]);
        dial.ended(0, at);
        assert_eq!((dial.slots[0].due, dial.count()), (Some(at + PAUSE_FIRST), 2));
    }
}
