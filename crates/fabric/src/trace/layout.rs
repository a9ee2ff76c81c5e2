//! Puts the slices of one NIC on one track. A track shows slices that nest or follow one another, and Perfetto drops a slice that extends past
//! the end of another one. But a NIC works for several links at once. Such a slice is therefore moved to begin when the other has ended; its time
//! of posting is kept. Pure; called when a file is written.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::timeline::TraceSlice;

/// Nanoseconds by which an inner slice ends before its outer one: a reader may round both times down.
const INSIDE: u64 = 2;

/// The key of a slice that waits to be placed: earlier ones first; of those that begin together, the longer ones first.
type LayoutKey = Reverse<(u64, Reverse<u64>, usize)>;

/// Moves the beginnings of slices, and orders them as they are to be written: by beginning, outer ones first.
pub(super) fn lay_out(slices: &mut Vec<TraceSlice>) {
    let turn = |(at, slice): (usize, &TraceSlice)| Reverse((slice.begin, Reverse(slice.end), at));
    let mut turns: BinaryHeap<LayoutKey> = slices.iter().enumerate().map(turn).collect();
    let mut placed = Vec::with_capacity(slices.len());
    // The slices that the next one lies in, the innermost last: their ends as shown and as they were.
    let mut open: Vec<(u64, u64)> = Vec::new();
    while let Some(Reverse((begin, Reverse(end), at))) = turns.pop() {
        while open.last().is_some_and(|&(shown, _)| shown < begin) {
            open.pop();
        }
        match open.last() {
            // A slice that begins just when another ends follows it and is not nested in it.
            Some(&(shown, outer)) if end > outer || begin + INSIDE > shown => {
                let begin = shown + 1;
                turns.push(Reverse((begin, Reverse(end.max(begin)), at)));
            }
            outer => {
                let shown = outer.map_or(end, |&(shown, _)| end.min(shown - INSIDE));
                open.push((shown, end));
                placed.push(TraceSlice { begin, end: shown, ..slices[at].clone() });
            }
        }
    }
    *slices = placed;
}

#[cfg(test)]
mod tests {
    use super::super::event::TracedOpKind;
    use super::*;

    fn laid(times: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let slice = |&(begin, end): &(u64, u64)| TraceSlice {
            nic: 0,
            link: 1,
            kind: TracedOpKind::Write,
            bytes: 8,
            posted: begin,
            begin,
            end,
            fate: "ok",
        };
        let mut slices: Vec<TraceSlice> = times.iter().map(slice).collect();
        lay_out(&mut slices);
        slices.iter().map(|slice| (slice.begin, slice.end)).collect()
    }

    /// Whether a reader that rounds each time down by up to a nanosecond sees no slice reach over another's end.
    fn assert_nested(laid: &[(u64, u64)]) {
        for (at, &(begin, end)) in laid.iter().enumerate() {
            assert!(begin <= end);
            for &(later, its_end) in &laid[at + 1..] {
                assert!(later >= begin, "in order");
                assert!(its_end + INSIDE <= end || later > end, "{begin} to {end}, {later} to {its_end}");
            }
        }
    }

    #[test]
    fn slices_nest_or_follow() {
        for (times, told) in [
            (&[(0, 100), (200, 300)][..], &[(0, 100), (200, 300)][..]),
            (&[(0, 100), (20, 50)], &[(0, 100), (20, 50)]),
            // Extends past the end: begins after it.
            (&[(0, 100), (50, 150)], &[(0, 100), (101, 150)]),
            (&[(0, 100), (100, 150)], &[(0, 100), (101, 150)]),
            // Ends with it: nested.
            (&[(0, 100), (50, 100)], &[(0, 100), (50, 98)]),
            (&[(50, 100), (50, 100)], &[(50, 100), (50, 98)]),
            (&[(0, 100), (10, 100), (20, 100), (30, 101)], &[(0, 100), (10, 98), (20, 96), (101, 101)]),
            // No time of its own remains.
            (&[(0, 100), (99, 100)], &[(0, 100), (101, 101)]),
            (&[(0, 100), (20, 50), (40, 120)], &[(0, 100), (20, 50), (101, 120)]),
        ] {
            assert_eq!(laid(times), told, "{times:?}");
            assert_nested(told);
        }
    }

    #[test]
    fn any_slices_are_laid_out_nested() {
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..300 {
            let times: Vec<(u64, u64)> = (0..40)
                .map(|_| {
                    let begin = next(200);
                    (begin, begin + next(60))
                })
                .collect();
            let laid = laid(&times);
            assert_eq!(laid.len(), times.len());
            assert_nested(&laid);
        }
    }
}
