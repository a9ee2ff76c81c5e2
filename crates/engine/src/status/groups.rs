//! The records of shared groups on the status page, one for each of the first groups. The members of a group are written when
//! they change, its counters also periodically while it is used. Called under the group's lock; never waits, and allocates
//! nothing.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use trunkline_fabric::Rail;
use trunkline_mem::CounterWords;
use trunkline_proto::id::ProcessId;
use trunkline_proto::pool::credits::GroupCredits;
use trunkline_proto::wire::status::group::{
    self, CreditUsage, GroupCounters, GroupMembership, QueueGroupRecord, RECORDS, WORDS, word,
};
use trunkline_proto::wire::status::{CommDirection, head};

use super::{EngineStatus, load_word, store_word};
use crate::link::rails::GroupRails;
use crate::pool::groups::{GroupResources, MemberLocation};

/// The assignment of the records to groups.
#[derive(Debug, Default)]
pub(super) struct RecordSlots {
    /// The group's lane plus 1, for each record; 0 for a free record.
    lanes: [AtomicU32; RECORDS],
}

impl RecordSlots {
    /// Allocates the first free record for the group in a lane.
    fn allocate_record(&self, lane: u32) -> Option<usize> {
        let taken =
            |of: &AtomicU32| of.compare_exchange(0, lane + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        self.lanes.iter().position(taken)
    }

    fn find_record(&self, lane: u32) -> Option<usize> {
        self.lanes.iter().position(|of| of.load(Ordering::Relaxed) == lane + 1)
    }

    fn release_record(&self, record: usize) {
        self.lanes[record].store(0, Ordering::Release);
    }
}

/// The display state of a group.
#[derive(Debug, Default)]
pub(crate) struct GroupDisplay {
    /// Polls since its counters were written, wrapping: they are written when it is 0.
    turns: u8,
    members: u16,
    /// It is included in the group count of the process.
    begun: bool,
    record: Option<GroupRecordWriter>,
}

impl GroupDisplay {
    /// Counts a poll. Returns whether the counters are to be written.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns == 0
    }
}

/// The record of a group. Only the lock holder writes.
#[derive(Debug)]
pub(super) struct GroupRecordWriter {
    words: CounterWords<WORDS>,
}

impl GroupRecordWriter {
    pub(super) fn new(words: CounterWords<WORDS>) -> Self {
        Self { words }
    }

    /// Publishes a group in the record.
    pub(super) fn publish_group(&self, group: &QueueGroupRecord) {
        let sequence = group::record_sequence(load_word(&self.words[word::WHO])).wrapping_add(1);
        store_word(&self.words[word::WHO], group::free_word(sequence));
        fence(Ordering::Release);
        let words = group.to_words(sequence.wrapping_add(1));
        self.words.iter().zip(words).skip(1).for_each(|(place, value)| store_word(place, value));
        self.words[word::WHO].store(words[word::WHO].to_le(), Ordering::Release);
    }

    /// Marks the record as free.
    fn clear_group(&self) {
        let sequence = group::record_sequence(load_word(&self.words[word::WHO])).wrapping_add(2);
        store_word(&self.words[word::WHO], group::free_word(sequence));
    }

    fn write_members(&self, members: u16) {
        let who = load_word(&self.words[word::WHO]);
        store_word(&self.words[word::WHO], group::with_members(who, members));
    }

    fn write_numbers(&self, numbers: &GroupCounters) {
        let places = self.words.iter().skip(word::NUMBERS);
        places.zip(numbers.to_words()).for_each(|(place, value)| store_word(place, value));
    }
}

impl EngineStatus {
    /// Shows a new member of the group in a lane; the first member allocates the group's record, if one is free.
    pub(crate) fn show_group(
        &self,
        lane: u32,
        peer: ProcessId,
        common: &mut GroupResources,
        rails: &GroupRails<impl Rail>,
    ) {
        if common.shown.begun {
            return;
        }
        common.shown.begun = true;
        self.count_groups(1);
        let Some(at) = self.page.as_ref().and_then(|_| self.records.allocate_record(lane)) else { return };
        let Some(words) = self.record_words(at) else { return };
        let record = GroupRecordWriter::new(words);
        record.publish_group(&QueueGroupRecord {
            direction: if common.receiving.is_some() { CommDirection::Recv } else { CommDirection::Send },
            // At most four, over NICs of which there are few.
            links: common.slots.len() as u8,
            nic: common.slots.first().map_or(0, |&(_, nic)| nic as u16),
            members: common.shown.members,
            peer,
            numbers: group_numbers(common, rails),
        });
        common.shown.record = Some(record);
    }

    /// Hides the group of a lane, which has ended.
    pub(crate) fn hide_group(&self, lane: u32, common: &mut GroupResources) {
        if !std::mem::take(&mut common.shown.begun) {
            return;
        }
        self.count_groups(u64::MAX);
        if let Some(record) = common.shown.record.take()
            && let Some(at) = self.records.find_record(lane)
        {
            record.clear_group();
            self.records.release_record(at);
        }
    }

    /// Returns the group membership of a comm.
    pub(crate) fn group_membership(&self, seat: MemberLocation) -> Option<GroupMembership> {
        let member = seat.member_id()?;
        // At most 32.
        Some(GroupMembership { record: self.records.find_record(seat.lane).map(|at| at as u8), member })
    }

    fn record_words(&self, at: usize) -> Option<CounterWords<WORDS>> {
        CounterWords::of_page(self.page.as_ref()?, group::AT + at * WORDS * 8)
    }

    /// Adds `more` groups to the count; wraps.
    fn count_groups(&self, more: u64) {
        let sum = |word: u64| Some(u64::from_le(word).wrapping_add(more).to_le());
        // Never fails, because `sum` always returns a value.
        let _ = self.head[head::GROUPS].fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}

impl GroupResources {
    /// Shows the current number of members.
    pub(crate) fn show_members(&mut self, members: usize, rails: &GroupRails<impl Rail>) {
        // At most 128.
        self.shown.members = members as u16;
        if let Some(record) = &self.shown.record {
            record.write_members(self.shown.members);
        }
        self.show_numbers(rails);
    }

    /// Counts a poll of a member; every 256th one writes the counters, so that a poll stays cheap.
    #[inline(always)]
    pub(crate) fn show_now_and_then(&mut self, rails: &GroupRails<impl Rail>) {
        if self.shown.is_due() {
            self.show_numbers(rails);
        }
    }

    /// Writes the counters that change with use.
    #[cold]
    fn show_numbers(&self, rails: &GroupRails<impl Rail>) {
        if let Some(record) = &self.shown.record {
            record.write_numbers(&group_numbers(self, rails));
        }
    }
}

fn group_numbers(common: &GroupResources, rails: &GroupRails<impl Rail>) -> GroupCounters {
    let taken = |of: &GroupCredits| CreditUsage { used: of.used_credits(), total: of.total_credits() };
    GroupCounters {
        routed: common.routed,
        dropped: common.dropped,
        eager: rails.eager.as_ref().map_or_else(CreditUsage::default, taken),
        slices: taken(&rails.slices),
        queue: rails.queue_usage(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> GroupRecordWriter {
        GroupRecordWriter::new(CounterWords::heap())
    }

    fn group_of(peer: u8) -> QueueGroupRecord {
        let peer = ProcessId([peer; 16]);
        let numbers = GroupCounters { routed: 9, ..GroupCounters::default() };
        QueueGroupRecord { direction: CommDirection::Recv, links: 1, nic: 2, members: 3, peer, numbers }
    }

    fn read(record: &GroupRecordWriter) -> Option<QueueGroupRecord> {
        QueueGroupRecord::from_words(&std::array::from_fn(|at| load_word(&record.words[at]))).unwrap()
    }

    #[test]
    fn cleared_record_is_reused_by_another_group() {
        let record = record();
        assert_eq!(read(&record), None);
        record.publish_group(&group_of(1));
        assert_eq!(read(&record), Some(group_of(1)));
        let first = group::record_sequence(load_word(&record.words[word::WHO]));
        record.write_members(128);
        let numbers = GroupCounters {
            dropped: 7,
            slices: CreditUsage { used: 2, total: 8 },
            ..GroupCounters::default()
        };
        record.write_numbers(&numbers);
        assert_eq!(read(&record), Some(QueueGroupRecord { members: 128, numbers, ..group_of(1) }));
        assert_eq!(
            group::record_sequence(load_word(&record.words[word::WHO])),
            first,
            "the sequence changed within one group"
        );
        record.clear_group();
        assert_eq!(read(&record), None);
        record.publish_group(&group_of(2));
        assert_eq!(read(&record), Some(group_of(2)), "the record contains values of the first group");
        assert_ne!(group::record_sequence(load_word(&record.words[word::WHO])), first);
    }

    #[test]
    fn released_record_is_allocated_to_a_later_group() {
        let records = RecordSlots::default();
        let taken: Vec<_> = (0..RECORDS as u32).map(|lane| records.allocate_record(100 + lane)).collect();
        assert_eq!(taken, (0..RECORDS).map(Some).collect::<Vec<_>>());
        assert_eq!((records.allocate_record(7), records.find_record(7)), (None, None));
        assert_eq!(records.find_record(131), Some(31));
        records.release_record(5);
        assert_eq!(records.find_record(105), None);
        assert_eq!((records.allocate_record(7), records.find_record(7)), (Some(5), Some(5)));
        assert_eq!(records.allocate_record(8), None);
    }

    #[test]
    fn numbers_are_written_once_in_256_turns() {
        let mut shown = GroupDisplay::default();
        let due: Vec<_> = (1..=600).filter(|_| shown.is_due()).collect();
        assert_eq!(due, [256, 512]);
    }
}
