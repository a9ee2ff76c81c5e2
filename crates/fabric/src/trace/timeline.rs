//! Builds a timeline from the events of a process: operations with a beginning and an end, and the marks in between. Pure; called
//! when a file is written.
//!
//! A completion belongs to the oldest signalled operation of its link with that `wr_id`. Callers reuse `wr_id`s, and
//! operations of one link end in the order in which they were posted wherever that matters. An operation that was posted
//! unsignalled completes only if it fails, and stays a mark.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::event::{EventDetail, LinkEvent, RailEvent, TracedOpKind, TracedOutcome};
use crate::{CompletionKind, LinkId};

/// An operation that was signalled. Times are nanoseconds by the recorder's clock.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TraceSlice {
    pub(super) nic: u16,
    /// Number of the link, of all of this process.
    pub(super) link: u32,
    pub(super) kind: TracedOpKind,
    pub(super) bytes: u64,
    /// When it was posted.
    pub(super) posted: u64,
    /// When it had its link for itself: operations that a link executes one after another are shown one after another.
    pub(super) begin: u64,
    /// When its completion was polled.
    pub(super) end: u64,
    pub(super) fate: &'static str,
}

/// An event without a duration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TraceMark {
    pub(super) nic: u16,
    pub(super) link: u32,
    pub(super) at: u64,
    pub(super) name: &'static str,
    pub(super) bytes: Option<u64>,
    pub(super) fate: Option<&'static str>,
}

/// The slices and marks of a process.
#[derive(Debug, Default)]
pub(super) struct TraceTimeline {
    pub(super) slices: Vec<TraceSlice>,
    pub(super) marks: Vec<TraceMark>,
    /// NICs that had a link.
    pub(super) nics: BTreeSet<u16>,
    /// The latest event.
    pub(super) last: u64,
}

/// An operation whose completion is awaited.
struct AwaitedOp {
    wr_id: u64,
    kind: TracedOpKind,
    bytes: u64,
    posted: u64,
}

/// A link from its creation to its end.
struct LinkTimeline {
    nic: u16,
    number: u32,
    /// Its rail has had a link before.
    again: bool,
    pending: VecDeque<AwaitedOp>,
    /// When the last operation before the latest one ended.
    before: u64,
    /// When the latest operation ended.
    latest: u64,
    /// The link carries nothing more.
    over: bool,
}

/// The timeline so far.
#[derive(Default)]
struct TimelineBuilder {
    story: TraceTimeline,
    /// By rail and number.
    lines: HashMap<(u32, LinkId), LinkTimeline>,
    /// Links so far.
    made: u32,
    /// Rails that had a link.
    rails: BTreeSet<u32>,
}

impl TraceTimeline {
    /// Builds the timeline, including the operations that are still outstanding; `cut` means that events are missing.
    pub(super) fn from_events(events: &[RailEvent], cut: bool) -> Self {
        let mut teller = TimelineBuilder::default();
        for event in events {
            teller.story.last = teller.story.last.max(event.at);
            teller.add_event(event);
        }
        let TimelineBuilder { mut story, lines, .. } = teller;
        let mut left: Vec<LinkTimeline> = lines.into_values().collect();
        left.sort_unstable_by_key(|line| line.number);
        let last = story.last;
        for mut line in left {
            line.end_all(&mut story, last, if cut { "end not recorded" } else { "under way" });
        }
        story
    }
}

impl TimelineBuilder {
    fn add_event(&mut self, event: &RailEvent) {
        match event.what {
            EventDetail::Posted { kind, signalled } => self.add_posted(event, kind, signalled),
            EventDetail::Ended { done: CompletionKind::Posted, fate } => self.add_ended(event, fate),
            EventDetail::Ended { done, fate } => self.add_arrival(event, done, fate),
            EventDetail::Link(LinkEvent::Made) => self.add_link(event),
            EventDetail::Link(sign) => self.add_link_event(event, sign),
        }
    }

    fn link_timeline(&mut self, event: &RailEvent) -> Option<(&mut LinkTimeline, &mut TraceTimeline)> {
        Some((self.lines.get_mut(&(event.rail, event.link))?, &mut self.story))
    }

    fn add_link(&mut self, event: &RailEvent) {
        self.story.nics.insert(event.nic);
        self.made += 1;
        let number = self.made;
        let again = !self.rails.insert(event.rail);
        let before = event.at;
        let latest = event.at;
        let line = LinkTimeline {
            nic: event.nic,
            number,
            again,
            pending: VecDeque::new(),
            before,
            latest,
            over: false,
        };
        self.lines.insert((event.rail, event.link), line);
    }

    fn add_posted(&mut self, event: &RailEvent, kind: TracedOpKind, signalled: bool) {
        let Some((line, story)) = self.link_timeline(event) else { return };
        if signalled {
            let RailEvent { at, wr_id, bytes, .. } = *event;
            line.pending.push_back(AwaitedOp { wr_id, kind, bytes, posted: at });
        } else {
            story.marks.push(line.new_mark(event.at, kind.trace_name(), Some(event.bytes), None));
        }
    }

    fn add_ended(&mut self, event: &RailEvent, fate: TracedOutcome) {
        let Some((line, story)) = self.link_timeline(event) else { return };
        let at = line.pending.iter().position(|pending| pending.wr_id == event.wr_id);
        match at.and_then(|at| line.pending.remove(at)) {
            Some(pending) => line.end_op(story, &pending, event.at, fate.trace_name()),
            None => story.marks.push(line.new_mark(event.at, "failed", None, Some(fate.trace_name()))),
        }
        line.fail_if(story, event.at, fate);
    }

    fn add_arrival(&mut self, event: &RailEvent, done: CompletionKind, fate: TracedOutcome) {
        let Some((line, story)) = self.link_timeline(event) else { return };
        let name = if done == CompletionKind::Received { "received" } else { "written by peer" };
        let bytes = (fate == TracedOutcome::Ok).then_some(event.bytes);
        story.marks.push(line.new_mark(event.at, name, bytes, Some(fate.trace_name())));
        line.fail_if(story, event.at, fate);
    }

    fn add_link_event(&mut self, event: &RailEvent, sign: LinkEvent) {
        let Some((line, story)) = self.link_timeline(event) else { return };
        let name = match sign {
            LinkEvent::Made => return,
            LinkEvent::Up if line.again => "link up again",
            LinkEvent::Up => "link up",
            LinkEvent::Lost | LinkEvent::Fenced if line.over => return,
            LinkEvent::Lost => "link lost",
            LinkEvent::Fenced => "link fenced",
            LinkEvent::Closed => "link closed",
        };
        line.over |= matches!(sign, LinkEvent::Lost | LinkEvent::Fenced);
        story.marks.push(line.new_mark(event.at, name, None, None));
        if sign == LinkEvent::Closed {
            line.end_all(story, event.at, "never completed");
            self.lines.remove(&(event.rail, event.link));
        }
    }
}

impl LinkTimeline {
    fn new_mark(
        &self,
        at: u64,
        name: &'static str,
        bytes: Option<u64>,
        fate: Option<&'static str>,
    ) -> TraceMark {
        TraceMark { nic: self.nic, link: self.number, at, name, bytes, fate }
    }

    /// Records the first failure as that of the link.
    fn fail_if(&mut self, story: &mut TraceTimeline, at: u64, fate: TracedOutcome) {
        if fate != TracedOutcome::Ok && !self.over {
            self.over = true;
            story.marks.push(self.new_mark(at, "link lost", None, Some(fate.trace_name())));
        }
    }

    fn end_op(&mut self, story: &mut TraceTimeline, pending: &AwaitedOp, at: u64, fate: &'static str) {
        if at > self.latest {
            self.before = self.latest;
            self.latest = at;
        }
        let &AwaitedOp { kind, bytes, posted, .. } = pending;
        let nic = self.nic;
        let link = self.number;
        let begin = posted.max(self.before).min(at);
        story.slices.push(TraceSlice { nic, link, kind, bytes, posted, begin, end: at, fate });
    }

    fn end_all(&mut self, story: &mut TraceTimeline, at: u64, fate: &'static str) {
        while let Some(pending) = self.pending.pop_front() {
            self.end_op(story, &pending, at, fate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of one rail of NIC 3.
    fn event(at: u64, link: u32, wr_id: u64, bytes: u64, what: EventDetail) -> RailEvent {
        RailEvent { at, nic: 3, rail: 7, link: LinkId(link), wr_id, bytes, what }
    }

    fn made(at: u64, link: u32) -> RailEvent {
        event(at, link, 0, 0, EventDetail::Link(LinkEvent::Made))
    }

    fn write(at: u64, link: u32, wr_id: u64, bytes: u64) -> RailEvent {
        event(at, link, wr_id, bytes, EventDetail::Posted { kind: TracedOpKind::Write, signalled: true })
    }

    fn ended(at: u64, link: u32, wr_id: u64, fate: TracedOutcome) -> RailEvent {
        event(at, link, wr_id, 0, EventDetail::Ended { done: CompletionKind::Posted, fate })
    }

    /// Bytes, time of the post, begin, end, fate.
    fn slices(events: &[RailEvent], cut: bool) -> Vec<(u64, u64, u64, u64, &'static str)> {
        let story = TraceTimeline::from_events(events, cut);
        story.slices.iter().map(|s| (s.bytes, s.posted, s.begin, s.end, s.fate)).collect()
    }

    fn marks(events: &[RailEvent]) -> Vec<(u64, &'static str)> {
        TraceTimeline::from_events(events, false).marks.iter().map(|mark| (mark.at, mark.name)).collect()
    }

    #[test]
    fn reused_wr_id_completes_the_oldest_operation() {
        let events = [
            made(0, 0),
            made(0, 1),
            write(10, 0, 5, 100),
            write(11, 0, 5, 200),
            write(12, 1, 5, 300),
            ended(20, 0, 5, TracedOutcome::Ok),
            ended(30, 1, 5, TracedOutcome::Ok),
            write(31, 0, 5, 400),
            ended(40, 0, 5, TracedOutcome::Ok),
            ended(50, 0, 5, TracedOutcome::Ok),
        ];
        // An operation that waited for the one before it on its link begins when that one has ended. Operations of
        // other links do not delay it.
        let told = [
            (100, 10, 10, 20, "ok"),
            (300, 12, 12, 30, "ok"),
            (200, 11, 20, 40, "ok"),
            (400, 31, 40, 50, "ok"),
        ];
        assert_eq!(slices(&events, false), told);
    }

    #[test]
    fn completions_of_one_poll_begin_apart() {
        let events = [
            made(0, 0),
            write(1, 0, 1, 8),
            write(2, 0, 2, 8),
            write(3, 0, 3, 8),
            ended(5, 0, 1, TracedOutcome::Ok),
            ended(9, 0, 2, TracedOutcome::Ok),
            ended(9, 0, 3, TracedOutcome::Ok),
        ];
        assert_eq!(slices(&events, false), [(8, 1, 1, 5, "ok"), (8, 2, 5, 9, "ok"), (8, 3, 5, 9, "ok")]);
    }

    #[test]
    fn unsignalled_operations_are_marks() {
        let quiet = EventDetail::Posted { kind: TracedOpKind::Write, signalled: false };
        let events = [
            made(0, 0),
            event(4, 0, 0, 64, quiet),
            event(5, 0, 0, 8, EventDetail::Ended { done: CompletionKind::Written, fate: TracedOutcome::Ok }),
            event(6, 0, 9, 8, EventDetail::Ended { done: CompletionKind::Received, fate: TracedOutcome::Ok }),
            ended(7, 0, 0, TracedOutcome::RemoteAccess),
        ];
        assert_eq!(slices(&events, false), []);
        let told = [(4, "write"), (5, "written by peer"), (6, "received"), (7, "failed"), (7, "link lost")];
        assert_eq!(marks(&events), told);
        assert_eq!(TraceTimeline::from_events(&events, false).marks[0].bytes, Some(64));
    }

    #[test]
    fn link_is_lost_once_and_can_reconnect() {
        let sign = |at, link, sign| event(at, link, 0, 0, EventDetail::Link(sign));
        let events = [
            made(0, 0),
            sign(1, 0, LinkEvent::Up),
            write(2, 0, 1, 8),
            write(3, 0, 2, 8),
            write(4, 0, 3, 8),
            sign(5, 0, LinkEvent::Lost),
            sign(6, 0, LinkEvent::Fenced),
            ended(7, 0, 1, TracedOutcome::Flushed),
            ended(7, 0, 2, TracedOutcome::Flushed),
            sign(8, 0, LinkEvent::Closed),
            sign(8, 0, LinkEvent::Fenced),
            made(9, 0),
            sign(10, 0, LinkEvent::Up),
            write(11, 0, 3, 16),
            sign(12, u32::MAX, LinkEvent::Fenced),
        ];
        let told = [(1, "link up"), (5, "link lost"), (8, "link closed"), (10, "link up again")];
        assert_eq!(marks(&events), told);
        let told = [
            (8, 2, 2, 7, "flushed"),
            (8, 3, 3, 7, "flushed"),
            (8, 4, 7, 8, "never completed"),
            (16, 11, 11, 12, "under way"),
        ];
        assert_eq!(slices(&events, false), told);
        assert_eq!(slices(&events, true)[3].4, "end not recorded");
        let links: Vec<u32> =
            TraceTimeline::from_events(&events, false).slices.iter().map(|slice| slice.link).collect();
        assert_eq!(links, [1, 1, 1, 2], "another link, although it has the same number");
    }
}
