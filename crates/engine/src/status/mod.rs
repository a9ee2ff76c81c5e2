//! The counters of the engine, and the page on which other processes can read them. Counting is a plain store into a word with
//! one writer at a time. Whether the words are on a page or in private memory is decided once, at creation.

pub(crate) mod groups;
mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use trunkline_fabric::{Fabric, Host, LogLevel};
use trunkline_mem::{CounterWords, PublishedPage};
use trunkline_proto::counters::{Counters, MessageCounts, ProcessTally};
use trunkline_proto::id::ProcessId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::status::{
    self as wire, CommRecord, CommState, ControlStreams, FaultCode, HEAD_BYTES, NICS_MAX, ROW_BYTES,
    ROW_WORDS, ROWS_MAX, StatusHead, group, head, page_bytes, row, usage,
};

use self::groups::RecordSlots;
pub use self::read::{StatusPageError, read_head, read_status};
use crate::{CommFault, EngineParams};

/// Words of the whole head.
const HEAD_WORDS: usize = HEAD_BYTES / 8;

/// Words of the usage of all NICs.
const USAGE_WORDS: usize = NICS_MAX * usage::WORDS;

/// The process's own words, and the location of its rows.
pub(crate) struct EngineStatus {
    head: CounterWords<{ head::WORDS }>,
    usage: CounterWords<USAGE_WORDS>,
    page: Option<Arc<PublishedPage>>,
    records: RecordSlots,
}

/// Returns the number of rows of an engine: one per comm that can be open.
pub(crate) fn row_count(params: &EngineParams) -> usize {
    (params.comms_max as usize).clamp(1, ROWS_MAX)
}

impl EngineStatus {
    /// Creates the page, if it is requested and the host supports it. Without a page, the engine counts in private memory.
    pub(crate) fn new<F: Fabric, H: Host>(
        fabric: &F,
        host: &H,
        params: &EngineParams,
        process: ProcessId,
    ) -> Self {
        let made = if params.status { host.publish_page(page_bytes(row_count(params))) } else { Ok(None) };
        let made = made.unwrap_or_else(|error| {
            let text = format!(
                "cannot create the status page, so `trunkline top` does not show this process: {error}"
            );
            host.log(LogLevel::Warn, &text);
            None
        });
        let head = CounterWords::heap();
        let usage = CounterWords::heap();
        let records = RecordSlots::default();
        let unseen = Self { head, usage, page: None, records };
        let Some(made) = made else { return unseen };
        let whole = CounterWords::<HEAD_WORDS>::of_page(&made.page, 0);
        let own = CounterWords::of_page(&made.page, 0).zip(CounterWords::of_page(&made.page, usage::AT));
        let (Some(whole), Some((own, shown))) = (whole, own) else { return unseen };
        let begin = StatusHead {
            rows: row_count(params) as u32,
            used: 0,
            process,
            pid: made.pid,
            made_unix: made.unix_ns,
            made: host.now().0,
            fault: None,
            fault_at: 0,
            fabric: fabric.fabric_name().to_owned(),
            nics: fabric.nics().iter().map(|nic| nic.name.clone()).collect(),
            usage: (0..fabric.nics().len()).map(|nic| fabric.nic_usage(nic)).collect(),
            groups: 0,
            records: [None; group::RECORDS],
            tallies: [0; ProcessTally::LEN],
            control: ControlStreams::default(),
        };
        // In reverse order, because the first word marks the others as valid, so it is stored last.
        for (word, bytes) in whole.iter().zip(begin.to_bytes().as_chunks::<8>().0).rev() {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
        Self { head: own, usage: shown, page: Some(made.page), ..unseen }
    }

    /// Returns the row of the comms with an index.
    pub(crate) fn row_at(&self, index: usize) -> CommStatusRow {
        let shown =
            self.page.as_ref().and_then(|page| CounterWords::of_page(page, HEAD_BYTES + index * ROW_BYTES));
        CommStatusRow { words: shown.unwrap_or_else(CounterWords::heap) }
    }

    /// Publishes the number of rows used so far; called by one thread at a time.
    pub(crate) fn rows_used(&self, rows: usize) {
        store_word(&self.head[head::USED], rows as u64);
    }

    /// Publishes the current usage of the NICs.
    pub(crate) fn show_usage<F: Fabric>(&self, fabric: &F) {
        for nic in 0..fabric.nics().len().min(NICS_MAX) {
            let words = fabric.nic_usage(nic).to_words();
            let places = self.usage.iter().skip(nic * usage::WORDS);
            places.zip(words).for_each(|(place, word)| store_word(place, word));
        }
    }

    /// Adds to a tally, off the path of messages.
    pub(crate) fn add_tally(&self, tally: ProcessTally, n: u64) {
        let sum = |word: u64| Some(u64::from_le(word).wrapping_add(n).to_le());
        // Never fails, because `sum` always returns a value.
        let _ =
            self.head[head::TALLIES + tally as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Publishes the carriers of the control streams to other hosts. Called under the control plane's lock.
    pub(crate) fn show_control(&self, control: ControlStreams) {
        store_word(&self.head[head::CONTROL], control.to_word());
    }

    /// Records the last fault.
    fn record_fault(&self, fault: FaultCode, now: Instant) {
        store_word(&self.head[head::FAULT_AT], now.0);
        store_word(&self.head[head::FAULT], u64::from(fault.to_code()));
    }

    /// Records that a comm failed, or that its peer has ended.
    #[cold]
    pub(crate) fn comm_fault(&self, row: &CommStatusRow, failed: bool, fault: CommFault, now: Instant) {
        let state = if failed { CommState::Failed } else { CommState::Open };
        let fault = to_status_fault(fault);
        if row.set_comm_state(state, Some(fault)) {
            self.record_fault(fault, now);
        }
    }

    pub(crate) fn sum_counters(&self, rows: impl Iterator<Item = MessageCounts>) -> Counters {
        Counters::from_rows(&std::array::from_fn(|at| load_word(&self.head[head::TALLIES + at])), rows)
    }

    /// Hides the page from other processes.
    pub(crate) fn retire_page(&self) {
        if let Some(page) = &self.page {
            page.retire();
        }
    }
}

fn to_status_fault(fault: CommFault) -> FaultCode {
    match fault {
        CommFault::PeerDead(_) => FaultCode::PeerDied,
        CommFault::PeerClosed(_) => FaultCode::PeerClosed,
        CommFault::Protocol(_) => FaultCode::Protocol,
        CommFault::Link(_) => FaultCode::Link,
        CommFault::Revoked => FaultCode::Revoked,
    }
}

#[inline]
fn load_word(word: &AtomicU64) -> u64 {
    u64::from_le(word.load(Ordering::Relaxed))
}

#[inline]
fn store_word(word: &AtomicU64, value: u64) {
    word.store(value.to_le(), Ordering::Relaxed);
}

/// The counters of a comm, and of earlier comms of its index. Only the lock holder writes.
#[derive(Debug)]
pub(crate) struct CommStatusRow {
    words: CounterWords<ROW_WORDS>,
}

/// The counted words, in the order of [`MessageCounts`].
const BEGUN: usize = row::COUNTS;
const SENT: usize = row::COUNTS + 1;
const SENT_BYTES: usize = row::COUNTS + 2;
const RECEIVED: usize = row::COUNTS + 3;
const RECEIVED_BYTES: usize = row::COUNTS + 4;
const AGAIN: usize = row::COUNTS + 5;
const FAILED: usize = row::COUNTS + 6;

impl CommStatusRow {
    /// Creates a row that is not on the page, for requests without an open comm.
    pub(crate) fn without_page() -> Self {
        Self { words: CounterWords::heap() }
    }

    #[inline]
    fn add_count(&self, at: usize, n: u64) {
        let word = &self.words[at];
        store_word(word, load_word(word).wrapping_add(n));
    }

    /// Counts messages that have begun.
    #[inline]
    pub(crate) fn count_begun(&self, messages: usize) {
        self.add_count(BEGUN, messages as u64);
    }

    /// Counts a sent message.
    #[inline]
    pub(crate) fn count_sent(&self, bytes: u64) {
        self.add_count(SENT, 1);
        self.add_count(SENT_BYTES, bytes);
    }

    /// Counts received messages.
    #[inline]
    pub(crate) fn count_received(&self, sizes: &[u64]) {
        self.add_count(RECEIVED, sizes.len() as u64);
        self.add_count(RECEIVED_BYTES, sizes.iter().fold(0, |sum, &size| sum.wrapping_add(size)));
    }

    /// Counts a call that returned "not yet".
    #[inline]
    pub(crate) fn count_retry(&self) {
        self.add_count(AGAIN, 1);
    }

    /// Counts all pending messages as failed.
    pub(crate) fn give_up(&self) {
        self.add_count(FAILED, self.counts().pending_messages());
    }

    /// Returns all counts of the row.
    pub(crate) fn counts(&self) -> MessageCounts {
        MessageCounts::from_array(std::array::from_fn(|at| load_word(&self.words[row::COUNTS + at])))
    }

    /// Assigns the row to a comm; existing counts belong to earlier comms.
    pub(crate) fn open_comm(&self, comm: CommRecord) {
        let before = self.counts();
        self.write_comm(&CommRecord { before, ..comm });
    }

    /// Sets the state of the comm; returns whether it changed. A fault stays until another one is set.
    pub(crate) fn set_comm_state(&self, state: CommState, fault: Option<FaultCode>) -> bool {
        let words = std::array::from_fn(|at| load_word(&self.words[at]));
        let Ok(wire::StatusRow { comm: Some(comm), .. }) = wire::StatusRow::from_words(&words) else {
            return false;
        };
        let now = CommRecord { state, fault: fault.or(comm.fault), ..comm };
        if now != comm {
            self.write_comm(&now);
        }
        now != comm
    }

    /// Sets which links of the comm are up. Returns how many failed and how many recovered, if that changed.
    pub(crate) fn update_links(&self, carrying: u8) -> Option<(u32, u32)> {
        let words = std::array::from_fn(|at| load_word(&self.words[at]));
        let Ok(wire::StatusRow { comm: Some(comm), .. }) = wire::StatusRow::from_words(&words) else {
            return None;
        };
        let links = comm.links.with_carrying(carrying);
        if links == comm.links {
            return None;
        }
        self.write_comm(&CommRecord { links, ..comm });
        let before = comm.links.carrying();
        let now = links.carrying();
        Some(((before & !now).count_ones(), (now & !before).count_ones()))
    }

    /// Changes the words that identify the comm, with a sequence number, so that readers detect a torn copy.
    fn write_comm(&self, to: &CommRecord) {
        let sequence = load_word(&self.words[row::SEQUENCE]);
        store_word(&self.words[row::SEQUENCE], sequence.wrapping_add(1));
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(to.to_words(0)).skip(1) {
            store_word(word, value);
        }
        self.words[row::SEQUENCE].store(sequence.wrapping_add(2).to_le(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::wire::status::{CommDirection, RowLinks};

    use super::*;

    pub(super) fn row_of(words: CounterWords<ROW_WORDS>) -> CommStatusRow {
        CommStatusRow { words }
    }

    fn row() -> CommStatusRow {
        row_of(CounterWords::heap())
    }

    fn comm(direction: CommDirection, generation: u16) -> CommRecord {
        CommRecord {
            state: CommState::Open,
            direction,
            links: RowLinks::new(&[0], 1),
            generation,
            fault: None,
            peer: ProcessId([1; 16]),
            opened: 9,
            ride: None,
            before: MessageCounts::default(),
        }
    }

    fn read(row: &CommStatusRow) -> wire::StatusRow {
        wire::StatusRow::from_words(&std::array::from_fn(|at| load_word(&row.words[at]))).unwrap()
    }

    #[test]
    fn every_message_and_byte_counts_once() {
        let row = row();
        row.open_comm(comm(CommDirection::Send, 1));
        row.count_begun(3);
        row.count_sent(100);
        row.count_sent(0);
        row.count_retry();
        row.count_begun(2);
        row.count_received(&[7, 8]);
        let wanted = MessageCounts {
            begun: 5,
            sent: 2,
            sent_bytes: 100,
            received: 2,
            received_bytes: 15,
            again: 1,
            failed: 0,
        };
        assert_eq!(read(&row).comm_counts(), wanted);
        row.give_up();
        row.give_up();
        assert_eq!((read(&row).comm_counts().failed, read(&row).comm_counts().pending_messages()), (1, 0));
    }

    #[test]
    fn row_totals_continue_when_the_next_comm_opens() {
        let row = row();
        row.open_comm(comm(CommDirection::Send, 1));
        row.count_begun(1);
        row.count_sent(64);
        assert!(row.set_comm_state(CommState::Closed, None));
        row.open_comm(comm(CommDirection::Recv, 2));
        row.count_begun(1);
        row.count_received(&[36]);
        let seen = read(&row);
        let own = MessageCounts { begun: 1, received: 1, received_bytes: 36, ..MessageCounts::default() };
        assert_eq!(seen.comm_counts(), own);
        assert_eq!((seen.counts.sent_bytes, seen.counts.received_bytes), (64, 36));
        assert_eq!(seen.comm.map(|comm| (comm.generation, comm.direction)), Some((2, CommDirection::Recv)));
    }

    #[test]
    fn update_links_shows_links_and_returns_changes() {
        let row = row();
        assert_eq!(row.update_links(1), None, "no comm uses the row");
        let links = RowLinks::new(&[2, 0, 5], 0b001);
        row.open_comm(CommRecord { links, ..comm(CommDirection::Send, 1) });
        for (carrying, news) in
            [(0b001, None), (0b111, Some((0, 2))), (0b010, Some((2, 0))), (0b101, Some((1, 2)))]
        {
            assert_eq!(row.update_links(carrying), news);
            let shown = read(&row).comm.map(|comm| comm.links.iter().collect::<Vec<_>>());
            let wanted = [2, 0, 5].into_iter().enumerate().map(|(at, nic)| (nic, carrying >> at & 1 == 1));
            assert_eq!(shown, Some(wanted.collect()));
        }
        assert_eq!(row.update_links(0b1_101), None, "the comm has no link 3");
    }

    #[test]
    fn a_fault_stays_on_the_row_until_it_is_used_again() {
        let row = row();
        assert!(!row.set_comm_state(CommState::Failed, Some(FaultCode::Link)), "no comm uses the row");
        row.open_comm(comm(CommDirection::Send, 1));
        assert!(row.set_comm_state(CommState::Failed, Some(FaultCode::Link)));
        assert!(!row.set_comm_state(CommState::Failed, Some(FaultCode::Link)), "the state is unchanged");
        assert!(row.set_comm_state(CommState::Failed, Some(FaultCode::PeerDied)));
        assert!(row.set_comm_state(CommState::Closed, None));
        let seen = read(&row).comm.map(|comm| (comm.state, comm.fault));
        assert_eq!(seen, Some((CommState::Closed, Some(FaultCode::PeerDied))));
        row.open_comm(comm(CommDirection::Send, 2));
        assert_eq!(read(&row).comm.map(|comm| comm.fault), Some(None));
    }
}
