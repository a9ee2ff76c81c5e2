//! What the events of a process tell: operations with a beginning and an end, and what happened in between. Pure; called
//! when a file is written.
//!
//! A completion belongs to the oldest signalled operation of its link with that `wr_id`: the same one is used again and
//! again, and operations of one link end in the order in which they were posted wherever that matters. What was posted
//! unsignalled completes only if it fails, and stays a mark.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::event::{Event, Fate, Kind, Sign, What};
use crate::{Done, LinkId};

/// An operation that was signalled. Times are nanoseconds by the recorder's clock.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Slice {
    pub(super) nic: u16,
    /// Number of the link, of all of this process.
    pub(super) link: u32,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    /// When it was posted.
    pub(super) posted: u64,
    /// When it had its link for itself: what its link does in turns is shown in turns.
    pub(super) begin: u64,
    /// When its completion was polled.
    pub(super) end: u64,
    pub(super) fate: &'static str,
}

/// Something that takes no time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Mark {
    pub(super) nic: u16,
    pub(super) link: u32,
    pub(super) at: u64,
    pub(super) name: &'static str,
    pub(super) bytes: Option<u64>,
    pub(super) fate: Option<&'static str>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) slices: Vec<Slice>,
    pub(super) marks: Vec<Mark>,
    /// NICs that had a link.
    pub(super) nics: BTreeSet<u16>,
    /// The latest event.
    pub(super) last: u64,
}

/// An operation whose completion is awaited.
struct Pending {
    wr_id: u64,
    kind: Kind,
    bytes: u64,
    posted: u64,
}

/// A link while it is there.
struct Line {
    nic: u16,
    number: u32,
    /// It was not the first of its rail.
    again: bool,
    pending: VecDeque<Pending>,
    /// When the last operation ended that ended before the latest.
    before: u64,
    /// When the latest ended.
    latest: u64,
    /// It carries nothing more.
    over: bool,
}

/// The story so far.
#[derive(Default)]
struct Teller {
    story: Story,
    /// By rail and number.
    lines: HashMap<(u32, LinkId), Line>,
    /// Links so far.
    made: u32,
    /// Rails that had a link.
    rails: BTreeSet<u32>,
}

impl Story {
    /// What happened, and what is still under way; with `cut`, not all events are there.
    pub(super) fn of(events: &[Event], cut: bool) -> Self {
        let mut teller = Teller::default();
        for event in events {
            teller.story.last = teller.story.last.max(event.at);
            teller.hear(event);
        }
        let Teller { mut story, lines, .. } = teller;
        let mut left: Vec<Line> = lines.into_values().collect();
        left.sort_unstable_by_key(|line| line.number);
        let last = story.last;
        for mut line in left {
            line.end_all(&mut story, last, if cut { "end not recorded" } else { "under way" });
        }
        story
    }
}

impl Teller {
    fn hear(&mut self, event: &Event) {
        match event.what {
            What::Posted { kind, signalled } => self.posted(event, kind, signalled),
            What::Ended { done: Done::Posted, fate } => self.ended(event, fate),
            What::Ended { done, fate } => self.arrived(event, done, fate),
            What::Link(Sign::Made) => self.make(event),
            What::Link(sign) => self.sign(event, sign),
        }
    }

    fn line(&mut self, event: &Event) -> Option<(&mut Line, &mut Story)> {
        Some((self.lines.get_mut(&(event.rail, event.link))?, &mut self.story))
    }

    fn make(&mut self, event: &Event) {
        self.story.nics.insert(event.nic);
        self.made += 1;
        let number = self.made;
        let again = !self.rails.insert(event.rail);
        let before = event.at;
        let latest = event.at;
        let line =
            Line { nic: event.nic, number, again, pending: VecDeque::new(), before, latest, over: false };
        self.lines.insert((event.rail, event.link), line);
    }

    fn posted(&mut self, event: &Event, kind: Kind, signalled: bool) {
        let Some((line, story)) = self.line(event) else { return };
        if signalled {
            let Event { at, wr_id, bytes, .. } = *event;
            line.pending.push_back(Pending { wr_id, kind, bytes, posted: at });
        } else {
            story.marks.push(line.mark(event.at, kind.name(), Some(event.bytes), None));
        }
    }

    fn ended(&mut self, event: &Event, fate: Fate) {
        let Some((line, story)) = self.line(event) else { return };
        let at = line.pending.iter().position(|pending| pending.wr_id == event.wr_id);
        match at.and_then(|at| line.pending.remove(at)) {
            Some(pending) => line.end(story, &pending, event.at, fate.name()),
            None => story.marks.push(line.mark(event.at, "failed", None, Some(fate.name()))),
        }
        line.fail_if(story, event.at, fate);
    }

    fn arrived(&mut self, event: &Event, done: Done, fate: Fate) {
        let Some((line, story)) = self.line(event) else { return };
        let name = if done == Done::Received { "received" } else { "written by peer" };
        let bytes = (fate == Fate::Ok).then_some(event.bytes);
        story.marks.push(line.mark(event.at, name, bytes, Some(fate.name())));
        line.fail_if(story, event.at, fate);
    }

    fn sign(&mut self, event: &Event, sign: Sign) {
        let Some((line, story)) = self.line(event) else { return };
        let name = match sign {
            Sign::Made => return,
            Sign::Up if line.again => "link up again",
            Sign::Up => "link up",
            Sign::Lost | Sign::Fenced if line.over => return,
            Sign::Lost => "link lost",
            Sign::Fenced => "link fenced",
            Sign::Closed => "link closed",
        };
        line.over |= matches!(sign, Sign::Lost | Sign::Fenced);
        story.marks.push(line.mark(event.at, name, None, None));
        if sign == Sign::Closed {
            line.end_all(story, event.at, "never completed");
            self.lines.remove(&(event.rail, event.link));
        }
    }
}

impl Line {
    fn mark(&self, at: u64, name: &'static str, bytes: Option<u64>, fate: Option<&'static str>) -> Mark {
        Mark { nic: self.nic, link: self.number, at, name, bytes, fate }
    }

    /// The first failure tells of the link.
    fn fail_if(&mut self, story: &mut Story, at: u64, fate: Fate) {
        if fate != Fate::Ok && !self.over {
            self.over = true;
            story.marks.push(self.mark(at, "link lost", None, Some(fate.name())));
        }
    }

    fn end(&mut self, story: &mut Story, pending: &Pending, at: u64, fate: &'static str) {
        if at > self.latest {
            self.before = self.latest;
            self.latest = at;
        }
        let &Pending { kind, bytes, posted, .. } = pending;
        let nic = self.nic;
        let link = self.number;
        let begin = posted.max(self.before).min(at);
        story.slices.push(Slice { nic, link, kind, bytes, posted, begin, end: at, fate });
    }

    fn end_all(&mut self, story: &mut Story, at: u64, fate: &'static str) {
        while let Some(pending) = self.pending.pop_front() {
            self.end(story, &pending, at, fate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of one rail of NIC 3.
    fn event(at: u64, link: u32, wr_id: u64, bytes: u64, what: What) -> Event {
        Event { at, nic: 3, rail: 7, link: LinkId(link), wr_id, bytes, what }
    }

    fn made(at: u64, link: u32) -> Event {
        event(at, link, 0, 0, What::Link(Sign::Made))
    }

    fn write(at: u64, link: u32, wr_id: u64, bytes: u64) -> Event {
        event(at, link, wr_id, bytes, What::Posted { kind: Kind::Write, signalled: true })
    }

    fn ended(at: u64, link: u32, wr_id: u64, fate: Fate) -> Event {
        event(at, link, wr_id, 0, What::Ended { done: Done::Posted, fate })
    }

    /// Bytes, time of the post, begin, end, fate.
    fn slices(events: &[Event], cut: bool) -> Vec<(u64, u64, u64, u64, &'static str)> {
        let story = Story::of(events, cut);
        story.slices.iter().map(|s| (s.bytes, s.posted, s.begin, s.end, s.fate)).collect()
    }

    fn marks(events: &[Event]) -> Vec<(u64, &'static str)> {
        Story::of(events, false).marks.iter().map(|mark| (mark.at, mark.name)).collect()
    }

    #[test]
    fn a_number_that_is_used_again_means_the_oldest() {
        let events = [
            made(0, 0),
            made(0, 1),
            write(10, 0, 5, 100),
            write(11, 0, 5, 200),
            write(12, 1, 5, 300),
            ended(20, 0, 5, Fate::Ok),
            ended(30, 1, 5, Fate::Ok),
            write(31, 0, 5, 400),
            ended(40, 0, 5, Fate::Ok),
            ended(50, 0, 5, Fate::Ok),
        ];
        // What waited for the one before on its link begins when that has ended; another link does not count.
        let told = [
            (100, 10, 10, 20, "ok"),
            (300, 12, 12, 30, "ok"),
            (200, 11, 20, 40, "ok"),
            (400, 31, 40, 50, "ok"),
        ];
        assert_eq!(slices(&events, false), told);
    }

    #[test]
    fn what_one_poll_returns_began_apart() {
        let events = [
            made(0, 0),
            write(1, 0, 1, 8),
            write(2, 0, 2, 8),
            write(3, 0, 3, 8),
            ended(5, 0, 1, Fate::Ok),
            ended(9, 0, 2, Fate::Ok),
            ended(9, 0, 3, Fate::Ok),
        ];
        assert_eq!(slices(&events, false), [(8, 1, 1, 5, "ok"), (8, 2, 5, 9, "ok"), (8, 3, 5, 9, "ok")]);
    }

    #[test]
    fn what_is_not_signalled_is_a_mark() {
        let quiet = What::Posted { kind: Kind::Write, signalled: false };
        let events = [
            made(0, 0),
            event(4, 0, 0, 64, quiet),
            event(5, 0, 0, 8, What::Ended { done: Done::Written, fate: Fate::Ok }),
            event(6, 0, 9, 8, What::Ended { done: Done::Received, fate: Fate::Ok }),
            ended(7, 0, 0, Fate::RemoteAccess),
        ];
        assert_eq!(slices(&events, false), []);
        let told = [(4, "write"), (5, "written by peer"), (6, "received"), (7, "failed"), (7, "link lost")];
        assert_eq!(marks(&events), told);
        assert_eq!(Story::of(&events, false).marks[0].bytes, Some(64));
    }

    #[test]
    fn a_link_is_lost_once_and_comes_up_again() {
        let sign = |at, link, sign| event(at, link, 0, 0, What::Link(sign));
        let events = [
            made(0, 0),
            sign(1, 0, Sign::Up),
            write(2, 0, 1, 8),
            write(3, 0, 2, 8),
            write(4, 0, 3, 8),
            sign(5, 0, Sign::Lost),
            sign(6, 0, Sign::Fenced),
            ended(7, 0, 1, Fate::Flushed),
            ended(7, 0, 2, Fate::Flushed),
            sign(8, 0, Sign::Closed),
            sign(8, 0, Sign::Fenced),
            made(9, 0),
            sign(10, 0, Sign::Up),
            write(11, 0, 3, 16),
            sign(12, u32::MAX, Sign::Fenced),
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
        let links: Vec<u32> = Story::of(&events, false).slices.iter().map(|slice| slice.link).collect();
        assert_eq!(links, [1, 1, 1, 2], "another link, although it has the same number");
    }
}
