//! What the engine counts, and the page on which others can see it. Counting is a plain store into a word that one
//! thread at a time writes; whether the words lie on a page or in memory of our own, nobody here asks afterwards.

pub(crate) mod groups;
mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use trunkline_fabric::{Fabric, Host, Level};
use trunkline_mem::{Page, Words};
use trunkline_proto::counters::{Counters, Counts, Tally};
use trunkline_proto::id::ProcessId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::status::{
    self as wire, Comm, ControlStreams, Fault, HEAD_BYTES, Head, NICS_MAX, ROW_BYTES, ROW_WORDS, ROWS_MAX,
    State, group, head, page_bytes, row, usage,
};

use self::groups::Records;
pub use self::read::{PageError, read_head, read_status};
use crate::{CommFault, Mutant, Params};

/// Words of the whole head.
const HEAD_WORDS: usize = HEAD_BYTES / 8;

/// Words of what all NICs have in use.
const USAGE_WORDS: usize = NICS_MAX * usage::WORDS;

/// The process's own words, and where its rows are.
pub(crate) struct Status {
    head: Words<{ head::WORDS }>,
    usage: Words<USAGE_WORDS>,
    page: Option<Arc<Page>>,
    records: Records,
    mutant: Mutant,
}

/// Rows of an engine: one for each comm that can be open.
pub(crate) fn rows(params: &Params) -> usize {
    (params.comms_max as usize).clamp(1, ROWS_MAX)
}

impl Status {
    /// Makes the page, if it is wanted and the host has such a thing. Without one everything is counted all the same.
    pub(crate) fn new<F: Fabric, H: Host>(fabric: &F, host: &H, params: &Params, process: ProcessId) -> Self {
        let made = if params.status { host.page(page_bytes(rows(params))) } else { Ok(None) };
        let made = made.unwrap_or_else(|error| {
            let text = format!("no status page, `trunkline top` will not see this process: {error}");
            host.log(Level::Warn, &text);
            None
        });
        let head = Words::heap();
        let usage = Words::heap();
        let records = Records::default();
        let mutant = params.mutant;
        let unseen = Self { head, usage, page: None, records, mutant };
        let Some(made) = made else { return unseen };
        let whole = Words::<HEAD_WORDS>::of_page(&made.page, 0);
        let own = Words::of_page(&made.page, 0).zip(Words::of_page(&made.page, usage::AT));
        let (Some(whole), Some((own, shown))) = (whole, own) else { return unseen };
        let begin = Head {
            rows: rows(params) as u32,
            used: 0,
            process,
            pid: made.pid,
            made_unix: made.unix_ns,
            made: host.now().0,
            fault: None,
            fault_at: 0,
            fabric: fabric.name().to_owned(),
            nics: fabric.nics().iter().map(|nic| nic.name.clone()).collect(),
            usage: (0..fabric.nics().len()).map(|nic| fabric.usage(nic)).collect(),
            groups: 0,
            records: [None; group::RECORDS],
            tallies: [0; Tally::LEN],
            control: ControlStreams::default(),
        };
        // The first word says that the others are there.
        for (word, bytes) in whole.iter().zip(begin.to_bytes().as_chunks::<8>().0).rev() {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Release);
        }
        Self { head: own, usage: shown, page: Some(made.page), ..unseen }
    }

    /// The row of comms with that index.
    pub(crate) fn row(&self, index: usize) -> Row {
        let shown = self.page.as_ref().and_then(|page| Words::of_page(page, HEAD_BYTES + index * ROW_BYTES));
        Row { words: shown.unwrap_or_else(Words::heap), mutant: self.mutant }
    }

    /// So many rows were used so far; called by one thread at a time.
    pub(crate) fn rows_used(&self, rows: usize) {
        store(&self.head[head::USED], rows as u64);
    }

    /// What the NICs have in use now.
    pub(crate) fn used<F: Fabric>(&self, fabric: &F) {
        for nic in 0..fabric.nics().len().min(NICS_MAX) {
            let words = fabric.usage(nic).to_words();
            let places = self.usage.iter().skip(nic * usage::WORDS);
            places.zip(words).for_each(|(place, word)| store(place, word));
        }
    }

    /// Counts something off the path of messages.
    pub(crate) fn add(&self, tally: Tally, n: u64) {
        let sum = |word: u64| Some(u64::from_le(word).wrapping_add(n).to_le());
        // It never fails: `sum` always gives a value.
        let _ =
            self.head[head::TALLIES + tally as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// The control streams to other hosts, as they are carried now. Called with the control plane.
    pub(crate) fn show_control(&self, control: ControlStreams) {
        store(&self.head[head::CONTROL], control.to_word());
    }

    /// Remembers the last fault.
    fn fault(&self, fault: Fault, now: Instant) {
        store(&self.head[head::FAULT_AT], now.0);
        store(&self.head[head::FAULT], u64::from(fault.code()));
    }

    /// A comm failed, or its peer is gone.
    #[cold]
    pub(crate) fn comm_fault(&self, row: &Row, failed: bool, fault: CommFault, now: Instant) {
        let state = if failed { State::Failed } else { State::Open };
        let fault = shown(fault);
        if row.stands(state, Some(fault)) {
            self.fault(fault, now);
        }
    }

    pub(crate) fn counters(&self, rows: impl Iterator<Item = Counts>) -> Counters {
        Counters::of(&std::array::from_fn(|at| load(&self.head[head::TALLIES + at])), rows)
    }

    /// Others cannot see the page any more.
    pub(crate) fn retire(&self) {
        if let Some(page) = &self.page {
            page.retire();
        }
    }
}

fn shown(fault: CommFault) -> Fault {
    match fault {
        CommFault::PeerDead(_) => Fault::PeerDied,
        CommFault::PeerClosed(_) => Fault::PeerClosed,
        CommFault::Protocol(_) => Fault::Protocol,
        CommFault::Link(_) => Fault::Link,
        CommFault::Revoked => Fault::Revoked,
    }
}

#[inline]
fn load(word: &AtomicU64) -> u64 {
    u64::from_le(word.load(Ordering::Relaxed))
}

#[inline]
fn store(word: &AtomicU64, value: u64) {
    word.store(value.to_le(), Ordering::Relaxed);
}

/// What is counted for a comm, and for those that had its index before. Only the lane's holder writes.
#[derive(Debug)]
pub(crate) struct Row {
    words: Words<ROW_WORDS>,
    mutant: Mutant,
}

/// The counted words, in the order of [`Counts`].
const BEGUN: usize = row::COUNTS;
const SENT: usize = row::COUNTS + 1;
const SENT_BYTES: usize = row::COUNTS + 2;
const RECEIVED: usize = row::COUNTS + 3;
const RECEIVED_BYTES: usize = row::COUNTS + 4;
const AGAIN: usize = row::COUNTS + 5;
const FAILED: usize = row::COUNTS + 6;

impl Row {
    /// A row that nobody sees, for what is no comm any more.
    pub(crate) fn unseen() -> Self {
        Self { words: Words::heap(), mutant: Mutant::NONE }
    }

    #[inline]
    fn add(&self, at: usize, n: u64) {
        let word = &self.words[at];
        store(word, load(word).wrapping_add(n));
    }

    /// So many messages have begun.
    #[inline]
    pub(crate) fn begun(&self, messages: usize) {
        self.add(BEGUN, messages as u64);
    }

    /// A message was sent.
    #[inline]
    pub(crate) fn sent(&self, bytes: u64) {
        self.add(SENT, 1);
        self.add(SENT_BYTES, if self.mutant.is("status-counts-bytes-twice") { 2 * bytes } else { bytes });
    }

    /// Messages were received.
    #[inline]
    pub(crate) fn received(&self, sizes: &[u64]) {
        self.add(RECEIVED, sizes.len() as u64);
        self.add(RECEIVED_BYTES, sizes.iter().fold(0, |sum, &size| sum.wrapping_add(size)));
    }

    /// A call was told to call again.
    #[inline]
    pub(crate) fn again(&self) {
        self.add(AGAIN, 1);
    }

    /// What has begun and not ended never will.
    pub(crate) fn give_up(&self) {
        self.add(FAILED, self.counts().pending());
    }

    /// All that was counted here.
    pub(crate) fn counts(&self) -> Counts {
        Counts::from_array(std::array::from_fn(|at| load(&self.words[row::COUNTS + at])))
    }

    /// A comm begins to use the row; what it finds counted is not its own.
    pub(crate) fn open(&self, comm: Comm) {
        let forgets = self.mutant.is("status-forgets-who-counted");
        let before = if forgets { Counts::default() } else { self.counts() };
        self.change(&Comm { before, ..comm });
    }

    /// How the comm stands now; true if that is news. A fault once named stays until another is named.
    pub(crate) fn stands(&self, state: State, fault: Option<Fault>) -> bool {
        let words = std::array::from_fn(|at| load(&self.words[at]));
        let Ok(wire::Row { comm: Some(comm), .. }) = wire::Row::from_words(&words) else { return false };
        let now = Comm { state, fault: fault.or(comm.fault), ..comm };
        if now != comm {
            self.change(&now);
        }
        now != comm
    }

    /// Which links of the comm carry now; how many do no more, and how many do again, if that is news.
    pub(crate) fn carries(&self, carrying: u8) -> Option<(u32, u32)> {
        let words = std::array::from_fn(|at| load(&self.words[at]));
        let Ok(wire::Row { comm: Some(comm), .. }) = wire::Row::from_words(&words) else { return None };
        let links = comm.links.carried(carrying);
        if links == comm.links {
            return None;
        }
        if !self.mutant.is("status-hides-links") {
            self.change(&Comm { links, ..comm });
        }
        let before = comm.links.carrying();
        let now = links.carrying();
        Some(((before & !now).count_ones(), (now & !before).count_ones()))
    }

    /// Changes the words that say which comm it is, so that readers notice what they copied meanwhile.
    fn change(&self, to: &Comm) {
        let sequence = load(&self.words[row::SEQUENCE]);
        if !self.mutant.is("status-row-changes-unannounced") {
            store(&self.words[row::SEQUENCE], sequence.wrapping_add(1));
        }
        fence(Ordering::Release);
        for (word, value) in self.words.iter().zip(to.to_words(0)).skip(1) {
            store(word, value);
        }
        if !self.mutant.is("status-row-changes-unannounced") {
            self.words[row::SEQUENCE].store(sequence.wrapping_add(2).to_le(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use trunkline_proto::wire::status::{Direction, Links};

    use super::*;
    use crate::planted::planted;

    pub(super) fn row_of(words: Words<ROW_WORDS>, mutant: Mutant) -> Row {
        Row { words, mutant }
    }

    fn row() -> Row {
        row_of(Words::heap(), planted())
    }

    fn comm(direction: Direction, generation: u16) -> Comm {
        Comm {
            state: State::Open,
            direction,
            links: Links::new(&[0], 1),
            generation,
            fault: None,
            peer: ProcessId([1; 16]),
            opened: 9,
            ride: None,
            before: Counts::default(),
        }
    }

    fn read(row: &Row) -> wire::Row {
        wire::Row::from_words(&std::array::from_fn(|at| load(&row.words[at]))).unwrap()
    }

    #[test]
    fn every_message_and_byte_counts_once() {
        let row = row();
        row.open(comm(Direction::Send, 1));
        row.begun(3);
        row.sent(100);
        row.sent(0);
        row.again();
        row.begun(2);
        row.received(&[7, 8]);
        let wanted = Counts {
            begun: 5,
            sent: 2,
            sent_bytes: 100,
            received: 2,
            received_bytes: 15,
            again: 1,
            failed: 0,
        };
        assert_eq!(read(&row).own(), wanted);
        row.give_up();
        row.give_up();
        assert_eq!((read(&row).own().failed, read(&row).own().pending()), (1, 0));
    }

    #[test]
    fn the_next_comm_of_a_row_begins_at_nothing_and_the_total_goes_on() {
        let row = row();
        row.open(comm(Direction::Send, 1));
        row.begun(1);
        row.sent(64);
        assert!(row.stands(State::Closed, None));
        row.open(comm(Direction::Recv, 2));
        row.begun(1);
        row.received(&[36]);
        let seen = read(&row);
        let own = Counts { begun: 1, received: 1, received_bytes: 36, ..Counts::default() };
        assert_eq!(seen.own(), own);
        assert_eq!((seen.counts.sent_bytes, seen.counts.received_bytes), (64, 36));
        assert_eq!(seen.comm.map(|comm| (comm.generation, comm.direction)), Some((2, Direction::Recv)));
    }

    #[test]
    fn which_links_carry_is_shown_and_what_is_news_is_told() {
        let row = row();
        assert_eq!(row.carries(1), None, "nobody has the row");
        let links = Links::new(&[2, 0, 5], 0b001);
        row.open(Comm { links, ..comm(Direction::Send, 1) });
        for (carrying, news) in
            [(0b001, None), (0b111, Some((0, 2))), (0b010, Some((2, 0))), (0b101, Some((1, 2)))]
        {
            assert_eq!(row.carries(carrying), news);
            let shown = read(&row).comm.map(|comm| comm.links.iter().collect::<Vec<_>>());
            let wanted = [2, 0, 5].into_iter().enumerate().map(|(at, nic)| (nic, carrying >> at & 1 == 1));
            assert_eq!(shown, Some(wanted.collect()));
        }
        assert_eq!(row.carries(0b1_101), None, "a link that is not there");
    }

    #[test]
    fn a_fault_stays_on_the_row_until_it_is_used_again() {
        let row = row();
        assert!(!row.stands(State::Failed, Some(Fault::Link)), "nobody has the row");
        row.open(comm(Direction::Send, 1));
        assert!(row.stands(State::Failed, Some(Fault::Link)));
        assert!(!row.stands(State::Failed, Some(Fault::Link)), "no news");
        assert!(row.stands(State::Failed, Some(Fault::PeerDied)));
        assert!(row.stands(State::Closed, None));
        let seen = read(&row).comm.map(|comm| (comm.state, comm.fault));
        assert_eq!(seen, Some((State::Closed, Some(Fault::PeerDied))));
        row.open(comm(Direction::Send, 2));
        assert_eq!(read(&row).comm.map(|comm| comm.fault), Some(None));
    }
}
