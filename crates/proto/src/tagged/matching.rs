//! Matches messages with receives by source and tag. The node's tagged messages own one matcher each; it copies no byte and waits for nothing.

use alloc::vec::Vec;

use crate::queue::{LinkedEntry, LinkedQueue, QueueLinks};
use crate::reserve::{OutOfMemory, try_grow};
use crate::slots::{SlotId, SlotTable};

/// The messages that a receive fits: those of one source or of any, whose tags agree with `tag` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TagPattern {
    /// The source; `None`: any.
    pub source: Option<u32>,
    /// The tag.
    pub tag: u64,
    /// The bits of the tag that are compared.
    pub mask: u64,
}

/// The id of a posted receive.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ReceiveId(SlotId);

/// There is no room; contains the rejected value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MatcherFull<T>(pub T);

/// Posted receives `R`, and unexpected messages `M`, which no receive fitted on arrival. Both are bounded.
#[derive(Clone, Debug)]
pub struct TagMatcher<R, M> {
    posted: SlotTable<PostedEntry<R>>,
    kept: SlotTable<UnexpectedEntry<M>>,
    sources: Vec<SourceQueues>,
    /// Receives for any source.
    any: LinkedQueue,
    /// The number of the next receive or message.
    next: u64,
    /// Most messages that are kept per source.
    kept_max: usize,
}

#[derive(Clone, Debug)]
struct SourceQueues {
    posted: LinkedQueue,
    kept: LinkedQueue,
}

#[derive(Clone, Debug)]
struct PostedEntry<R> {
    pattern: TagPattern,
    number: u64,
    receive: R,
    links: QueueLinks,
}

#[derive(Clone, Debug)]
struct UnexpectedEntry<M> {
    tag: u64,
    number: u64,
    message: M,
    links: QueueLinks,
}

impl<R> LinkedEntry for PostedEntry<R> {
    fn queue_links(&mut self) -> &mut QueueLinks {
        &mut self.links
    }
}

impl<M> LinkedEntry for UnexpectedEntry<M> {
    fn queue_links(&mut self) -> &mut QueueLinks {
        &mut self.links
    }
}

impl TagPattern {
    /// Whether the pattern fits a tag.
    #[inline]
    #[must_use]
    pub const fn fits_tag(&self, tag: u64) -> bool {
        (self.tag ^ tag) & self.mask == 0
    }
}

impl<R, M> TagMatcher<R, M> {
    /// Returns an empty matcher with room for `posted_max` receives, and for `kept_max` messages of each source.
    #[must_use]
    pub fn new(posted_max: usize, kept_max: usize) -> Self {
        let posted = SlotTable::new(posted_max);
        let kept = SlotTable::new(0);
        Self { posted, kept, sources: Vec::new(), any: LinkedQueue::new(), next: 0, kept_max }
    }

    /// Makes room for sources below that number. Allocates all their memory.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the number of sources is unchanged.
    pub fn grow_sources(&mut self, sources: usize) -> Result<(), OutOfMemory> {
        if sources > self.sources.len() {
            let more = sources - self.sources.len();
            try_grow(&mut self.sources, more)?;
            self.kept.set_capacity(sources.saturating_mul(self.kept_max))?;
            self.sources
                .resize(sources, SourceQueues { posted: LinkedQueue::new(), kept: LinkedQueue::new() });
        }
        Ok(())
    }

    /// Removes and returns the receive that a message matches: the earliest that fits.
    #[inline]
    pub fn take_posted(&mut self, source: u32, tag: u64) -> Option<R> {
        let own = self.sources.get(source as usize)?.posted.front();
        let own = self.first_fitting(own, tag);
        let any = self.first_fitting(self.any.front(), tag);
        let id = match (own, any) {
            (Some((own, early)), Some((any, late))) => {
                if early < late {
                    own
                } else {
                    any
                }
            }
            (Some((id, _)), None) | (None, Some((id, _))) => id,
            (None, None) => return None,
        };
        self.remove_posted(id)
    }

    /// The first fitting receive from there on, and its number.
    #[inline]
    fn first_fitting(&self, first: Option<SlotId>, tag: u64) -> Option<(SlotId, u64)> {
        let mut at = first;
        while let Some(id) = at {
            let posted = self.posted.get(id)?;
            if posted.pattern.fits_tag(tag) {
                return Some((id, posted.number));
            }
            at = posted.links.next_entry();
        }
        None
    }

    fn remove_posted(&mut self, id: SlotId) -> Option<R> {
        let queue = match self.posted.get(id)?.pattern.source {
            Some(source) => &mut self.sources.get_mut(source as usize)?.posted,
            None => &mut self.any,
        };
        queue.unlink_entry(&mut self.posted, id);
        self.posted.remove(id).map(|posted| posted.receive)
    }

    /// Whether a receive is posted that a message of that source could match.
    #[inline]
    #[must_use]
    pub fn has_posted_for(&self, source: u32) -> bool {
        self.any.len() > 0 || self.sources.get(source as usize).is_some_and(|of| of.posted.len() > 0)
    }

    /// Whether another message of that source can be kept.
    #[inline]
    #[must_use]
    pub fn has_room(&self, source: u32) -> bool {
        self.sources.get(source as usize).is_some_and(|of| of.kept.len() < self.kept_max)
    }

    /// Keeps a message that no receive fitted.
    ///
    /// # Errors
    /// [`MatcherFull`] if the source is unknown or has too many messages.
    pub fn keep_unexpected(&mut self, source: u32, tag: u64, message: M) -> Result<(), MatcherFull<M>> {
        if !self.has_room(source) {
            return Err(MatcherFull(message));
        }
        let number = self.take_number();
        let kept = UnexpectedEntry { tag, number, message, links: QueueLinks::NONE };
        let id = self.kept.insert(kept).map_err(|kept| MatcherFull(kept.message))?;
        if let Some(of) = self.sources.get_mut(source as usize) {
            of.kept.push(&mut self.kept, id);
        }
        Ok(())
    }

    /// Removes and returns the message that a receive would match, with its source and tag. For one source, that is its earliest fitting message;
    /// for any source, the fitting message that arrived first.
    #[inline]
    pub fn take_unexpected(&mut self, pattern: &TagPattern) -> Option<(u32, u64, M)> {
        let (source, id) = self.find_unexpected(pattern)?;
        self.sources.get_mut(source as usize)?.kept.unlink_entry(&mut self.kept, id);
        self.kept.remove(id).map(|kept| (source, kept.tag, kept.message))
    }

    /// Returns the message that [`TagMatcher::take_unexpected`] would remove, with its source and tag.
    #[must_use]
    pub fn probe_unexpected(&self, pattern: &TagPattern) -> Option<(u32, u64, &M)> {
        let (source, id) = self.find_unexpected(pattern)?;
        self.kept.get(id).map(|kept| (source, kept.tag, &kept.message))
    }

    #[inline]
    fn find_unexpected(&self, pattern: &TagPattern) -> Option<(u32, SlotId)> {
        if let Some(source) = pattern.source {
            return self.first_unexpected(source, pattern).map(|(id, _)| (source, id));
        }
        let all = (0..self.sources.len() as u32).filter_map(|source| {
            let (id, number) = self.first_unexpected(source, pattern)?;
            Some((number, source, id))
        });
        all.min_by_key(|(number, ..)| *number).map(|(_, source, id)| (source, id))
    }

    #[inline]
    fn first_unexpected(&self, source: u32, pattern: &TagPattern) -> Option<(SlotId, u64)> {
        let of = self.sources.get(source as usize)?;
        let mut at = of.kept.front();
        while let Some(id) = at {
            let kept = self.kept.get(id)?;
            if pattern.fits_tag(kept.tag) {
                return Some((id, kept.number));
            }
            at = kept.links.next_entry();
        }
        None
    }

    /// Posts a receive for which [`TagMatcher::take_unexpected`] has found no message.
    ///
    /// # Errors
    /// [`MatcherFull`] if there are too many receives or the source is unknown.
    pub fn post_receive(&mut self, pattern: TagPattern, receive: R) -> Result<ReceiveId, MatcherFull<R>> {
        if pattern.source.is_some_and(|source| self.sources.len() <= source as usize) {
            return Err(MatcherFull(receive));
        }
        let number = self.take_number();
        let posted = PostedEntry { pattern, number, receive, links: QueueLinks::NONE };
        let id = self.posted.insert(posted).map_err(|posted| MatcherFull(posted.receive))?;
        let of = pattern.source.and_then(|source| self.sources.get_mut(source as usize));
        let queue = of.map_or(&mut self.any, |of| &mut of.posted);
        queue.push(&mut self.posted, id);
        Ok(ReceiveId(id))
    }

    /// Removes and returns a receive, unless a message has matched it.
    pub fn cancel_receive(&mut self, receive: ReceiveId) -> Option<R> {
        self.remove_posted(receive.0)
    }

    /// Removes and returns a receive for that source alone, after the source has ended: no message can match it. Call it until `None`.
    pub fn take_orphan(&mut self, source: u32) -> Option<R> {
        let id = self.sources.get(source as usize)?.posted.front()?;
        self.remove_posted(id)
    }

    /// Number of posted receives.
    #[must_use]
    pub fn posted_count(&self) -> usize {
        self.posted.len()
    }

    /// Number of kept messages.
    #[must_use]
    pub fn unexpected_count(&self) -> usize {
        self.kept.len()
    }

    fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const ALL: u64 = u64::MAX;

    fn matcher() -> TagMatcher<u32, u32> {
        let mut matcher = TagMatcher::new(8, 4);
        matcher.grow_sources(3).unwrap();
        matcher
    }

    fn of(source: impl Into<Option<u32>>, tag: u64, mask: u64) -> TagPattern {
        TagPattern { source: source.into(), tag, mask }
    }

    #[test]
    fn messages_of_a_source_are_not_overtaken() {
        let mut matcher = matcher();
        for (message, tag) in [(1, 5), (2, 6), (3, 5)] {
            matcher.keep_unexpected(1, tag, message).unwrap();
        }
        matcher.keep_unexpected(0, 6, 4).unwrap();
        assert_eq!(matcher.take_unexpected(&of(2, 5, ALL)), None);
        assert_eq!(
            matcher.probe_unexpected(&of(None, 6, ALL)),
            Some((1, 6, &2)),
            "the message that arrived first is matched"
        );
        assert_eq!(matcher.take_unexpected(&of(1, 0, 0)), Some((1, 5, 1)));
        assert_eq!(matcher.take_unexpected(&of(None, 5, ALL)), Some((1, 5, 3)));
        assert_eq!(matcher.take_unexpected(&of(None, 0, 0)), Some((1, 6, 2)));
        assert_eq!(
            (matcher.take_unexpected(&of(None, 0, 0)), matcher.unexpected_count()),
            (Some((0, 6, 4)), 0)
        );
    }

    #[test]
    fn receives_match_in_posting_order() {
        let mut matcher = matcher();
        matcher.post_receive(of(1, 5, ALL), 1).unwrap();
        matcher.post_receive(of(None, 5, 7), 2).unwrap();
        matcher.post_receive(of(1, 0, 0), 3).unwrap();
        assert_eq!(matcher.take_posted(0, 13), Some(2), "13 equals 5 in the bits of the mask");
        assert_eq!([matcher.take_posted(1, 13), matcher.take_posted(1, 13)], [Some(3), None]);
        let again = matcher.post_receive(of(None, 5, ALL), 4).unwrap();
        matcher.post_receive(of(1, 5, ALL), 5).unwrap();
        assert_eq!([matcher.take_posted(1, 5), matcher.take_posted(1, 5)], [Some(1), Some(4)]);
        assert_eq!((matcher.cancel_receive(again), matcher.posted_count()), (None, 1));
    }

    #[test]
    fn posted_receives_and_messages_are_bounded() {
        let mut matcher = matcher();
        for message in 0..4 {
            matcher.keep_unexpected(2, 0, message).unwrap();
        }
        assert_eq!((matcher.keep_unexpected(2, 0, 9), matcher.has_room(2)), (Err(MatcherFull(9)), false));
        assert!(matcher.has_room(0) && !matcher.has_room(3), "a full source blocked another one");
        assert_eq!(matcher.keep_unexpected(3, 0, 9), Err(MatcherFull(9)));
        for receive in 0..8 {
            matcher.post_receive(of(None, 0, 0), receive).unwrap();
        }
        assert_eq!(matcher.post_receive(of(1, 0, 0), 9), Err(MatcherFull(9)));
        assert_eq!(matcher.post_receive(of(3, 0, 0), 9), Err(MatcherFull(9)));
    }

    #[test]
    fn removed_source_keeps_its_messages_and_receives() {
        let mut matcher = matcher();
        matcher.post_receive(of(1, 0, 0), 1).unwrap();
        matcher.post_receive(of(None, 0, 0), 2).unwrap();
        let kept = matcher.post_receive(of(1, 0, 0), 3).unwrap();
        matcher.keep_unexpected(1, 9, 7).unwrap();
        assert_eq!((matcher.take_orphan(1), matcher.cancel_receive(kept)), (Some(1), Some(3)));
        assert_eq!((matcher.take_orphan(1), matcher.posted_count()), (None, 1));
        assert_eq!(
            matcher.take_unexpected(&of(1, 9, ALL)),
            Some((1, 9, 7)),
            "an arrived message of the ended source was lost"
        );
    }

    /// The rules of the matcher, without any queue.
    #[derive(Default)]
    struct Naive {
        posted: Vec<(TagPattern, u32)>,
        kept: Vec<(u32, u64, u32)>,
    }

    impl Naive {
        fn fits(pattern: &TagPattern, source: u32, tag: u64) -> bool {
            pattern.source.is_none_or(|of| of == source) && pattern.fits_tag(tag)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post(TagPattern),
        Come(u32, u64),
        Cancel(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Step> {
        let source = prop::option::of(0u32..3);
        prop_oneof![
            (source, 0u64..4, prop_oneof![Just(ALL), Just(1), Just(0)])
                .prop_map(|(source, tag, mask)| Step::Post(TagPattern { source, tag, mask })),
            (0u32..3, 0u64..4).prop_map(|(source, tag)| Step::Come(source, tag)),
            any::<prop::sample::Index>().prop_map(Step::Cancel),
        ]
    }

    proptest! {
        #[test]
        fn matcher_behaves_like_a_list(steps in prop::collection::vec(steps(), 1..200)) {
            let mut matcher = TagMatcher::new(1000, 1000);
            matcher.grow_sources(3).unwrap();
            let (mut naive, mut ids) = (Naive::default(), Vec::new());
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Post(pattern) => {
                        let at = naive.kept.iter().position(|(source, tag, _)| Naive::fits(&pattern, *source, *tag));
                        let expected = at.map(|at| naive.kept.remove(at));
                        prop_assert_eq!(matcher.take_unexpected(&pattern), expected);
                        if expected.is_none() {
                            ids.push((number, matcher.post_receive(pattern, number).unwrap()));
                            naive.posted.push((pattern, number));
                        }
                    }
                    Step::Come(source, tag) => {
                        let at = naive.posted.iter().position(|(pattern, _)| Naive::fits(pattern, source, tag));
                        let expected = at.map(|at| naive.posted.remove(at).1);
                        prop_assert_eq!(matcher.take_posted(source, tag), expected);
                        if expected.is_none() {
                            matcher.keep_unexpected(source, tag, number).unwrap();
                            naive.kept.push((source, tag, number));
                        }
                    }
                    Step::Cancel(index) if !ids.is_empty() => {
                        let (number, id) = ids.swap_remove(index.index(ids.len()));
                        let at = naive.posted.iter().position(|(_, posted)| *posted == number);
                        prop_assert_eq!(matcher.cancel_receive(id), at.map(|at| naive.posted.remove(at).1));
                    }
                    Step::Cancel(_) => {}
                }
                prop_assert_eq!((matcher.posted_count(), matcher.unexpected_count()), (naive.posted.len(), naive.kept.len()));
            }
        }
    }
}
