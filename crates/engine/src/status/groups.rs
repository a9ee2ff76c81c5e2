//! What others see of groups of shared queue pairs: a record on the status page for each of the first of them. Who is on a
//! group is written when a member comes or goes, its numbers also now and then while it is used. Called with the group's lane;
//! waits for nobody, and allocates nothing.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use trunkline_fabric::Rail;
use trunkline_mem::Words;
use trunkline_proto::id::ProcessId;
use trunkline_proto::pool::credits::Credits;
use trunkline_proto::wire::status::group::{self, Group, Numbers, RECORDS, Ride, Taken, WORDS, word};
use trunkline_proto::wire::status::{Direction, head};

use super::{Status, load, store};
use crate::Mutant;
use crate::link::rails::Rails;
use crate::pool::groups::{Common, Seat};

/// Which groups have the records.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// The group's lane and 1, for each record; 0 where no group has it.
    lanes: [AtomicU32; RECORDS],
}

impl Records {
    /// The first free record, for the group in that lane.
    fn take(&self, lane: u32) -> Option<usize> {
        let taken =
            |of: &AtomicU32| of.compare_exchange(0, lane + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        self.lanes.iter().position(taken)
    }

    fn find(&self, lane: u32) -> Option<usize> {
        self.lanes.iter().position(|of| of.load(Ordering::Relaxed) == lane + 1)
    }

    fn give(&self, record: usize) {
        self.lanes[record].store(0, Ordering::Release);
    }
}

/// What a group knows of its record.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Since its numbers were written, wrapping: they are when it is 0.
    turns: u8,
    members: u16,
    /// It counts among the groups of the process.
    begun: bool,
    record: Option<Record>,
}

impl Shown {
    /// Counts a turn; whether the numbers are to be written.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns == 0
    }
}

/// The record of a group. Only the lane's holder writes.
#[derive(Debug)]
pub(super) struct Record {
    words: Words<WORDS>,
    mutant: Mutant,
}

impl Record {
    pub(super) fn new(words: Words<WORDS>, mutant: Mutant) -> Self {
        Self { words, mutant }
    }

    /// The record is that group's from now on.
    pub(super) fn begin(&self, group: &Group) {
        let sequence = group::sequence(load(&self.words[word::WHO])).wrapping_add(1);
        if !self.mutant.is("status-group-changes-unannounced") {
            store(&self.words[word::WHO], group::free(sequence));
        }
        fence(Ordering::Release);
        let words = group.to_words(sequence.wrapping_add(1));
        self.words.iter().zip(words).skip(1).for_each(|(place, value)| store(place, value));
        self.words[word::WHO].store(words[word::WHO].to_le(), Ordering::Release);
    }

    /// It is nobody's.
    fn end(&self) {
        let sequence = group::sequence(load(&self.words[word::WHO])).wrapping_add(2);
        store(&self.words[word::WHO], group::free(sequence));
    }

    fn members(&self, members: u16) {
        let who = load(&self.words[word::WHO]);
        store(&self.words[word::WHO], group::with_members(who, members));
    }

    fn numbers(&self, numbers: &Numbers) {
        let places = self.words.iter().skip(word::NUMBERS);
        places.zip(numbers.to_words()).for_each(|(place, value)| store(place, value));
    }
}

impl Status {
    /// Somebody has come to the group in that lane; the first one brings it its record, if one is free.
    pub(crate) fn show_group(
        &self,
        lane: u32,
        peer: ProcessId,
        common: &mut Common,
        rails: &Rails<impl Rail>,
    ) {
        if common.shown.begun {
            return;
        }
        common.shown.begun = true;
        self.count_groups(1);
        let Some(at) = self.page.as_ref().and_then(|_| self.records.take(lane)) else { return };
        let Some(words) = self.record(at) else { return };
        let record = Record::new(words, self.mutant);
        record.begin(&Group {
            direction: if common.receiving.is_some() { Direction::Recv } else { Direction::Send },
            // At most four, over NICs of which there are few.
            links: common.slots.len() as u8,
            nic: common.slots.first().map_or(0, |&(_, nic)| nic as u16),
            members: common.shown.members,
            peer,
            numbers: numbers(common, rails),
        });
        common.shown.record = Some(record);
    }

    /// The group in that lane is gone.
    pub(crate) fn hide_group(&self, lane: u32, common: &mut Common) {
        if !std::mem::take(&mut common.shown.begun) {
            return;
        }
        self.count_groups(u64::MAX);
        if let Some(record) = common.shown.record.take()
            && let Some(at) = self.records.find(lane)
            && !self.mutant.is("status-keeps-groups")
        {
            record.end();
            self.records.give(at);
        }
    }

    /// Where the comm of a seat rides.
    pub(crate) fn ride(&self, seat: Seat) -> Option<Ride> {
        let member = seat.member()?;
        // At most 32.
        Some(Ride { record: self.records.find(seat.lane).map(|at| at as u8), member })
    }

    fn record(&self, at: usize) -> Option<Words<WORDS>> {
        Words::of_page(self.page.as_ref()?, group::AT + at * WORDS * 8)
    }

    /// So many more groups; wraps.
    fn count_groups(&self, more: u64) {
        let sum = |word: u64| Some(u64::from_le(word).wrapping_add(more).to_le());
        // It never fails: `sum` always gives a value.
        let _ = self.head[head::GROUPS].fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}

impl Common {
    /// There are so many members now.
    pub(crate) fn show_members(&mut self, members: usize, rails: &Rails<impl Rail>) {
        // At most 128.
        self.shown.members = members as u16;
        if let Some(record) = &self.shown.record {
            record.members(self.shown.members);
        }
        self.show_numbers(rails);
    }

    /// Counts a turn of a member, and shows the numbers if it is one of 256.
    #[inline(always)]
    pub(crate) fn show_now_and_then(&mut self, rails: &Rails<impl Rail>) {
        if self.shown.is_due() {
            self.show_numbers(rails);
        }
    }

    /// Writes what changes with use.
    #[cold]
    fn show_numbers(&self, rails: &Rails<impl Rail>) {
        if let Some(record) = &self.shown.record
            && !record.mutant.is("status-group-numbers-stay")
        {
            record.numbers(&numbers(self, rails));
        }
    }
}

fn numbers(common: &Common, rails: &Rails<impl Rail>) -> Numbers {
    let taken = |of: &Credits| Taken { used: of.used(), total: of.total() };
    Numbers {
        routed: common.routed,
        dropped: common.dropped,
        eager: rails.eager.as_ref().map_or_else(Taken::default, taken),
        slices: taken(&rails.slices),
        queue: rails.queue(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::planted;

    fn record() -> Record {
        Record::new(Words::heap(), planted())
    }

    fn group_of(peer: u8) -> Group {
        let peer = ProcessId([peer; 16]);
        let numbers = Numbers { routed: 9, ..Numbers::default() };
        Group { direction: Direction::Recv, links: 1, nic: 2, members: 3, peer, numbers }
    }

    fn read(record: &Record) -> Option<Group> {
        Group::from_words(&std::array::from_fn(|at| load(&record.words[at]))).unwrap()
    }

    #[test]
    fn a_record_is_one_groups_and_then_anothers() {
        let record = record();
        assert_eq!(read(&record), None);
        record.begin(&group_of(1));
        assert_eq!(read(&record), Some(group_of(1)));
        let first = group::sequence(load(&record.words[word::WHO]));
        record.members(128);
        let numbers = Numbers { dropped: 7, slices: Taken { used: 2, total: 8 }, ..Numbers::default() };
        record.numbers(&numbers);
        assert_eq!(read(&record), Some(Group { members: 128, numbers, ..group_of(1) }));
        assert_eq!(group::sequence(load(&record.words[word::WHO])), first, "it is the same group");
        record.end();
        assert_eq!(read(&record), None);
        record.begin(&group_of(2));
        assert_eq!(read(&record), Some(group_of(2)), "nothing of the first one is left");
        assert_ne!(group::sequence(load(&record.words[word::WHO])), first);
    }

    #[test]
    fn the_first_groups_have_records_and_the_next_take_their_places() {
        let records = Records::default();
        let taken: Vec<_> = (0..RECORDS as u32).map(|lane| records.take(100 + lane)).collect();
        assert_eq!(taken, (0..RECORDS).map(Some).collect::<Vec<_>>());
        assert_eq!((records.take(7), records.find(7)), (None, None));
        assert_eq!(records.find(131), Some(31));
        records.give(5);
        assert_eq!(records.find(105), None);
        assert_eq!((records.take(7), records.find(7)), (Some(5), Some(5)));
        assert_eq!(records.take(8), None);
    }

    #[test]
    fn numbers_are_written_once_in_256_turns() {
        let mut shown = Shown::default();
        let due: Vec<_> = (1..=600).filter(|_| shown.is_due()).collect();
        assert_eq!(due, [256, 512]);
    }
}
