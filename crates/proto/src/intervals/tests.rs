//! The index compared with a list, and the number of steps of a search.

use std::collections::BTreeSet;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn span(start: u64, len: u64) -> ByteSpan {
    ByteSpan::new(start, len).unwrap()
}

/// The span that the index must find: it begins last, then ends first.
fn last<'a>(spans: impl Iterator<Item = &'a (u8, u64, u64)>) -> Option<&'a (u8, u64, u64)> {
    spans.max_by_key(|(_, start, end)| (*start, Reverse(*end)))
}

/// Checks heights, reaches and order.
fn check<V: Copy>(all: &IntervalTree<u8, V>, at: u32) -> (u8, u64, usize) {
    let Some(node) = all.nodes.get(at as usize) else { return (0, 0, 0) };
    let (left, right) = (check(all, node.left), check(all, node.right));
    let before = |a: &IntervalNode<u8, V>, b: &IntervalNode<u8, V>| {
        compare_span(&a.group, a.span, b) == Ordering::Less
    };
    assert!(node.left == NONE || before(&all.nodes[node.left as usize], node));
    assert!(node.right == NONE || before(node, &all.nodes[node.right as usize]));
    assert!(left.0.abs_diff(right.0) <= 1, "the tree is not balanced");
    let sums = (left.0.max(right.0) + 1, left.1.max(right.1).max(node.span.end()));
    assert_eq!((node.height, node.reach), sums);
    (sums.0, sums.1, left.2 + right.2 + 1)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// After any insertions and removals, each search has the same result as in a list.
    #[test]
    fn index_finds_the_same_spans_as_a_list(
        steps in prop::collection::vec((0..3_u8, 0..40_u64, 1..24_u64, 0..3_u8), 1..200),
    ) {
        let mut all = IntervalTree::new();
        let mut list: BTreeSet<(u8, u64, u64)> = BTreeSet::new();
        for (group, start, len, what) in steps {
            let asked = span(start, len);
            let entry = (group, start, asked.end());
            if what == 0 {
                prop_assert_eq!(all.remove(&group, asked), list.remove(&entry));
            } else {
                prop_assert_eq!(all.insert(group, asked, entry), list.insert(entry));
            }
            prop_assert_eq!(check(&all, all.root).2, list.len());
            prop_assert_eq!((all.len(), all.is_empty()), (list.len(), list.is_empty()));
            for group in 0..3 {
                let of = || list.iter().filter(|entry| entry.0 == group);
                for (start, len) in [(start, len), (start + len / 2, 1), (start, 1), (start.saturating_sub(2), len + 3)] {
                    let asked = span(start, len);
                    let around = last(of().filter(|(_, start, end)| *start <= asked.start() && asked.end() <= *end));
                    prop_assert_eq!(all.find_containing(&group, asked).map(|found| found.1), around.copied());
                    let before = last(of().filter(|(_, start, _)| *start <= asked.start()));
                    prop_assert_eq!(all.last_from(&group, asked.start()).map(|found| found.1), before.copied());
                    let touching = last(of().filter(|(_, start, end)| *start < asked.end() && asked.start() < *end));
                    prop_assert_eq!(all.find_overlapping(&group, asked).map(|found| found.1), touching.copied());
                }
                let first = list.iter().filter(|entry| entry.0 >= group).min_by_key(|(g, s, e)| (*g, *s, Reverse(*e)));
                prop_assert_eq!(all.first_from(&group).map(|found| found.2), first.copied());
            }
        }
    }
}

/// Ten thousand disjoint, nested and overlapping spans, most of them in one of three groups.
#[test]
fn ten_thousand_spans_take_a_few_dozen_steps() {
    const N: u64 = 10_000;
    type Shape = fn(u64) -> ByteSpan;
    let apart: Shape = |n| span(n * 10, 8);
    let nested: Shape = |n| span(n, 2 * (N - n));
    let overlapping: Shape = |n| span(n * 7, 1000);
    let mixed: Shape = |n| if n % 10 == 0 { span(n * 10, 4000) } else { span(n * 10, 10 + n % 7) };
    for (name, shape) in
        [("apart", apart), ("nested", nested), ("overlapping", overlapping), ("mixed", mixed)]
    {
        let mut all = IntervalTree::new();
        // A shuffled order, because 7919 and N have no common divisor.
        for n in (0..N).map(|n| n * 7919 % N) {
            let group = match n % 100 {
                0 => 0,
                1 => 2,
                _ => 1,
            };
            assert!(all.insert(group, shape(n), n));
        }
        let (mut most, mut found) = (0, 0);
        for n in 0..3 * N {
            let (start, len) = (n * 7 % (11 * N), 1 + n % 13);
            let mut steps = 0;
            let wanted = SpanQuery { group: &1, start, end: start + len };
            found += u32::from(all.find_last(&wanted, &mut steps).is_some());
            most = most.max(steps);
        }
        std::println!(
            "{name}: {most} steps at most, height {}, {found} of {} found",
            all.node_height(all.root),
            3 * N
        );
        assert!(found > 0 && found < 3 * N as u32);
        // One descent, and at most two more where the group begins. Each has at most 1.44 times log2 of the number of nodes.
        assert!(most <= 3 * 20, "{name}: {most} steps");
    }
}

/// Removed nodes are reused.
#[test]
fn removed_nodes_are_reused() {
    let mut all = IntervalTree::new();
    for round in 0..1000_u64 {
        for n in 0..8 {
            assert!(all.insert(0, span(n + round % 3, 3 + round % 5), ()));
        }
        while let Some((group, span, ())) = all.first_from(&0) {
            assert!(all.remove(&group, span) && !all.remove(&group, span));
        }
    }
    let places: Vec<_> = all.nodes.iter().map(|node| node.group).collect();
    assert_eq!((places.len(), all.root), (8, NONE));
}
