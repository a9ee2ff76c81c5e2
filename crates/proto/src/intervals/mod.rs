//! An index of byte spans in groups: finds the spans of a group that contain a given span, or overlap it. Spans of one group may
//! nest and overlap in any way. The registration cache, the memory exporter and the importer use it; it counts nothing and evicts nothing.
//!
//! It is one balanced tree (AVL), ordered by group, then by the beginning of spans, then by their end, the farthest first. Each
//! node has the greatest end of all spans below it. So one descent finds the last span of a group that begins early enough and
//! reaches far enough; where the group begins, two more descents may be necessary. No search allocates, and removed nodes are
//! reused.

mod span;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

pub use span::{ByteSpan, END_MAX};

use crate::reserve::{OutOfMemory, try_grow};

/// No node.
const NONE: u32 = u32::MAX;

/// Spans in groups `G`, each with a value.
#[derive(Clone, Debug)]
pub struct IntervalTree<G, V> {
    nodes: Vec<IntervalNode<G, V>>,
    root: u32,
    /// The first node of the list of unused nodes; each one's `left` is the next.
    free: u32,
    len: usize,
}

#[derive(Clone, Debug)]
struct IntervalNode<G, V> {
    group: G,
    span: ByteSpan,
    value: V,
    left: u32,
    right: u32,
    /// Nodes on the longest path down from this node, including it: at most 1.44 times log2 of the number of nodes.
    height: u8,
    /// The greatest end of any span from this node down, of any group.
    reach: u64,
}

/// The object of a search: the last span of a group that begins at `start` or before and ends at `end` or after.
struct SpanQuery<'a, G> {
    group: &'a G,
    start: u64,
    end: u64,
}

impl<G: Copy + Ord, V: Copy> Default for IntervalTree<G, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<G: Copy + Ord, V: Copy> IntervalTree<G, V> {
    /// Returns an empty index.
    #[must_use]
    pub const fn new() -> Self {
        Self { nodes: Vec::new(), root: NONE, free: NONE, len: 0 }
    }

    /// Allocates the memory for `spans` spans, so that no insertion allocates until there are more.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn reserve_nodes(&mut self, spans: usize) -> Result<(), OutOfMemory> {
        let more = spans.saturating_sub(self.nodes.len());
        try_grow(&mut self.nodes, more)
    }

    /// Number of spans for which no further allocation is necessary.
    #[cfg(test)]
    pub(crate) const fn room(&self) -> usize {
        self.nodes.capacity()
    }

    /// Number of spans.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the index is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the span of a group that contains all of `span` and begins last; of several with that beginning, the shortest. Where
    /// spans nest, that is the smallest of all.
    #[must_use]
    pub fn find_containing(&self, group: &G, span: ByteSpan) -> Option<(ByteSpan, V)> {
        self.find_last(&SpanQuery { group, start: span.start(), end: span.end() }, &mut 0)
    }

    /// Returns the span of a group that overlaps `span` and begins last; of several with that beginning, the
    /// shortest.
    #[must_use]
    pub fn find_overlapping(&self, group: &G, span: ByteSpan) -> Option<(ByteSpan, V)> {
        self.find_last(&SpanQuery { group, start: span.end() - 1, end: span.start() + 1 }, &mut 0)
    }

    /// Returns the span of a group that begins last at `start` or before; of several with that beginning, the shortest. Where no spans
    /// of the group overlap, no other span can contain the byte at `start`. It is found in fewer steps than by
    /// [`IntervalTree::find_containing`].
    #[inline]
    #[must_use]
    pub fn last_from(&self, group: &G, start: u64) -> Option<(ByteSpan, V)> {
        let mut at = self.root;
        let mut last = NONE;
        while let Some(node) = self.nodes.get(at as usize) {
            if (node.group, node.span.start()) > (*group, start) {
                at = node.left;
            } else {
                last = at;
                at = node.right;
            }
        }
        let node = self.nodes.get(last as usize)?;
        (node.group == *group).then_some((node.span, node.value))
    }

    /// The first span of that group, or of the next group that has any.
    #[must_use]
    pub fn first_from(&self, group: &G) -> Option<(G, ByteSpan, V)> {
        let mut at = self.root;
        let mut first = None;
        while let Some(node) = self.nodes.get(at as usize) {
            if node.group < *group {
                at = node.right;
            } else {
                first = Some((node.group, node.span, node.value));
                at = node.left;
            }
        }
        first
    }

    /// Inserts a span. Returns `false`, without a change, if the group contains exactly that span.
    #[must_use]
    pub fn insert(&mut self, group: G, span: ByteSpan, value: V) -> bool {
        if self.has_span(&group, span) {
            return false;
        }
        let node = IntervalNode { group, span, value, left: NONE, right: NONE, height: 1, reach: span.end() };
        let new = self.place_node(node);
        self.root = self.insert_below(self.root, new);
        self.len += 1;
        true
    }

    /// Removes a span. Returns `false` if the index does not contain it.
    pub fn remove(&mut self, group: &G, span: ByteSpan) -> bool {
        if !self.has_span(group, span) {
            return false;
        }
        self.root = self.remove_below(self.root, group, span);
        self.len -= 1;
        true
    }

    /// Descends to the last span that begins early enough, and keeps the last node on the path that reaches far enough. `steps` counts
    /// the visited nodes.
    fn find_last(&self, wanted: &SpanQuery<'_, G>, steps: &mut u32) -> Option<(ByteSpan, V)> {
        let mut at = self.root;
        let mut best = NONE;
        // The first node of the group on the path: all later nodes of the path up to the wanted beginning belong to the group too.
        let mut top = NONE;
        while let Some(node) = self.nodes.get(at as usize) {
            *steps += 1;
            if node.reach < wanted.end {
                break;
            }
            if (node.group, node.span.start()) > (*wanted.group, wanted.start) {
                at = node.left;
                continue;
            }
            if node.group == *wanted.group {
                let below = top != NONE && self.node_reach(node.left) >= wanted.end;
                if below || node.span.end() >= wanted.end {
                    best = at;
                }
                top = if top == NONE { at } else { top };
            }
            at = node.right;
        }
        match (best, top) {
            (NONE, NONE) => None,
            (NONE, top) => self.last_before(self.nodes[top as usize].left, wanted, steps),
            (best, _) => self.last_at(best, wanted, steps),
        }
    }

    /// The last long enough span of this node and its left side. All are of the group, and one is long enough.
    fn last_at(&self, at: u32, wanted: &SpanQuery<'_, G>, steps: &mut u32) -> Option<(ByteSpan, V)> {
        let node = self.nodes.get(at as usize)?;
        if node.span.end() >= wanted.end {
            return Some((node.span, node.value));
        }
        self.last_below(node.left, wanted, steps)
    }

    /// The last long enough span from this node down, where all spans are of the group and one is long enough.
    fn last_below(&self, mut at: u32, wanted: &SpanQuery<'_, G>, steps: &mut u32) -> Option<(ByteSpan, V)> {
        loop {
            *steps += 1;
            let node = self.nodes.get(at as usize)?;
            if self.node_reach(node.right) >= wanted.end {
                at = node.right;
            } else if node.span.end() >= wanted.end {
                return Some((node.span, node.value));
            } else {
                at = node.left;
            }
        }
    }

    /// The last long enough span from this node down, where all spans begin early enough and the first may be of other groups.
    fn last_before(&self, mut at: u32, wanted: &SpanQuery<'_, G>, steps: &mut u32) -> Option<(ByteSpan, V)> {
        loop {
            *steps += 1;
            let node = self.nodes.get(at as usize)?;
            if node.reach < wanted.end {
                return None;
            }
            if node.group < *wanted.group {
                at = node.right;
            } else if self.node_reach(node.right) >= wanted.end {
                return self.last_below(node.right, wanted, steps);
            } else if node.span.end() >= wanted.end {
                return Some((node.span, node.value));
            } else {
                at = node.left;
            }
        }
    }

    fn has_span(&self, group: &G, span: ByteSpan) -> bool {
        let mut at = self.root;
        while let Some(node) = self.nodes.get(at as usize) {
            at = match compare_span(group, span, node) {
                Ordering::Less => node.left,
                Ordering::Equal => return true,
                Ordering::Greater => node.right,
            };
        }
        false
    }

    fn place_node(&mut self, node: IntervalNode<G, V>) -> u32 {
        let at = self.free;
        if let Some(place) = self.nodes.get_mut(at as usize) {
            self.free = place.left;
            *place = node;
            return at;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let group = self.nodes[new as usize].group;
        let span = self.nodes[new as usize].span;
        let IntervalNode { left, right, .. } = self.nodes[at as usize];
        if compare_span(&group, span, &self.nodes[at as usize]) == Ordering::Less {
            self.nodes[at as usize].left = self.insert_below(left, new);
        } else {
            self.nodes[at as usize].right = self.insert_below(right, new);
        }
        self.balance_node(at)
    }

    fn remove_below(&mut self, at: u32, group: &G, span: ByteSpan) -> u32 {
        if at == NONE {
            return NONE;
        }
        let IntervalNode { left, right, .. } = self.nodes[at as usize];
        match compare_span(group, span, &self.nodes[at as usize]) {
            Ordering::Less => self.nodes[at as usize].left = self.remove_below(left, group, span),
            Ordering::Greater => self.nodes[at as usize].right = self.remove_below(right, group, span),
            Ordering::Equal => {
                self.nodes[at as usize].left = self.free;
                self.free = at;
                return self.join_subtrees(left, right);
            }
        }
        self.balance_node(at)
    }

    /// Joins the two sides of a removed node into one tree.
    fn join_subtrees(&mut self, left: u32, right: u32) -> u32 {
        if right == NONE {
            return left;
        }
        let (first, rest) = self.take_first(right);
        let node = &mut self.nodes[first as usize];
        (node.left, node.right) = (left, rest);
        self.balance_node(first)
    }

    /// Removes the first node from this node down, which exists. Returns it, and the remaining tree.
    fn take_first(&mut self, at: u32) -> (u32, u32) {
        let IntervalNode { left, right, .. } = self.nodes[at as usize];
        if left == NONE {
            return (at, right);
        }
        let (first, rest) = self.take_first(left);
        self.nodes[at as usize].left = rest;
        (first, self.balance_node(at))
    }

    /// Balances a node whose sides differ in height by two at most, so that they differ by one at most. Returns the top node.
    fn balance_node(&mut self, at: u32) -> u32 {
        let IntervalNode { left, right, .. } = self.nodes[at as usize];
        let to_left = self.node_height(left);
        let to_right = self.node_height(right);
        if to_left > to_right + 1 {
            if self.node_height(self.nodes[left as usize].left)
                < self.node_height(self.nodes[left as usize].right)
            {
                self.nodes[at as usize].left = self.rotate_left(left);
            }
            return self.rotate_right(at);
        }
        if to_right > to_left + 1 {
            if self.node_height(self.nodes[right as usize].right)
                < self.node_height(self.nodes[right as usize].left)
            {
                self.nodes[at as usize].right = self.rotate_right(right);
            }
            return self.rotate_left(at);
        }
        self.sum_up(at);
        at
    }

    fn rotate_left(&mut self, at: u32) -> u32 {
        let up = self.nodes[at as usize].right;
        self.nodes[at as usize].right = self.nodes[up as usize].left;
        self.nodes[up as usize].left = at;
        self.sum_up(at);
        self.sum_up(up);
        up
    }

    fn rotate_right(&mut self, at: u32) -> u32 {
        let up = self.nodes[at as usize].left;
        self.nodes[at as usize].left = self.nodes[up as usize].right;
        self.nodes[up as usize].right = at;
        self.sum_up(at);
        self.sum_up(up);
        up
    }

    /// Updates height and reach from those of the two sides.
    fn sum_up(&mut self, at: u32) {
        let IntervalNode { left, right, span, .. } = self.nodes[at as usize];
        let height = self.node_height(left).max(self.node_height(right)) + 1;
        let reach = self.node_reach(left).max(self.node_reach(right)).max(span.end());
        let node = &mut self.nodes[at as usize];
        (node.height, node.reach) = (height, reach);
    }

    fn node_height(&self, at: u32) -> u8 {
        self.nodes.get(at as usize).map_or(0, |node| node.height)
    }

    fn node_reach(&self, at: u32) -> u64 {
        self.nodes.get(at as usize).map_or(0, |node| node.reach)
    }
}

/// Compares the position of a group's span with that of a node.
fn compare_span<G: Ord, V>(group: &G, span: ByteSpan, node: &IntervalNode<G, V>) -> Ordering {
    let places = (span.start(), Reverse(span.end())).cmp(&(node.span.start(), Reverse(node.span.end())));
    group.cmp(&node.group).then(places)
}
