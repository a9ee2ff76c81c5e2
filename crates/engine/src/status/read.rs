//! Reading another process's page: copied, then parsed. The contents are untrusted bytes until the parser has accepted them.
//! Called by `trunkline top`; an engine never reads its own.

use trunkline_mem::{OutOfBounds, PageView};
use trunkline_proto::wire::status::{
    HEAD_BYTES, ROW_BYTES, ROW_WORDS, StatusError, StatusHead, StatusRow, StatusSnapshot, group, page_bytes,
    row,
};

/// How often a row that changes is read again. Bounded, because a writer may have been stopped in the middle of a
/// change.
const TRIES: usize = 64;

/// A page that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusPageError {
    /// The page is not a status page.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// It is smaller than its head states.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
}

/// Reads the head of a page, and checks its sizes.
///
/// # Errors
/// [`StatusPageError`] states why the page is refused.
pub fn read_head(view: &PageView) -> Result<StatusHead, StatusPageError> {
    let mut words = [0; HEAD_BYTES / 8];
    let there = words.len().min(view.len() / 8);
    view.read(0, &mut words[..there])?;
    if there == words.len() {
        read_records(view, &mut words)?;
    }
    let bytes: Vec<u8> = words[..there].iter().flat_map(|word| word.to_le_bytes()).collect();
    let head = StatusHead::from_bytes(&bytes)?;
    head.check_length(view.len())?;
    Ok(head)
}

/// Copies the records of groups, each consistent for one group.
fn read_records(view: &PageView, words: &mut [u64; HEAD_BYTES / 8]) -> Result<(), OutOfBounds> {
    let (records, _) = words[group::AT / 8..].as_chunks_mut();
    for (nth, record) in records.iter_mut().take(group::RECORDS).enumerate() {
        *record = record_at(view, group::AT + nth * group::WORDS * 8)?;
    }
    Ok(())
}

/// Returns a copy of one record; a free one if it keeps changing.
fn record_at(view: &PageView, at: usize) -> Result<[u64; group::WORDS], OutOfBounds> {
    let mut words = [0; group::WORDS];
    let mut again = [0; 1];
    for _ in 0..TRIES {
        view.read(at, &mut words)?;
        view.read(at + group::word::WHO * 8, &mut again)?;
        if words[group::word::WHO] == again[0] && group::record_sequence(again[0]).is_multiple_of(2) {
            return Ok(words);
        }
        std::hint::spin_loop();
    }
    Ok([0; group::WORDS])
}

/// Returns a copy of the whole page. Comms that open or close meanwhile may be missing; counts are never lost or doubled.
///
/// # Errors
/// [`StatusPageError`] states why the page is refused.
pub fn read_status(view: &PageView) -> Result<StatusSnapshot, StatusPageError> {
    let head = read_head(view)?;
    let rows = (0..head.used as usize).map(|at| row_at(view, page_bytes(at))).collect::<Result<_, _>>()?;
    Ok(StatusSnapshot { head, rows })
}

/// Returns a copy of one row; without its comm if that keeps changing.
fn row_at(view: &PageView, at: usize) -> Result<StatusRow, StatusPageError> {
    debug_assert!(at.is_multiple_of(ROW_BYTES));
    let mut words = [0; ROW_WORDS];
    let mut again = [0; 1];
    for _ in 0..TRIES {
        view.read(at, &mut words)?;
        view.read(at + row::SEQUENCE * 8, &mut again)?;
        if words[row::SEQUENCE] == again[0] && again[0].is_multiple_of(2) {
            return Ok(StatusRow::from_words(&words)?);
        }
        std::hint::spin_loop();
    }
    words[row::SEQUENCE] |= 1;
    Ok(StatusRow::from_words(&words)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use trunkline_mem::{CounterWords, PublishedPage};
    use trunkline_proto::counters::MessageCounts;
    use trunkline_proto::id::ProcessId;
    use trunkline_proto::wire::status::group::GroupCounters;
    use trunkline_proto::wire::status::{CommDirection, CommRecord, CommState, QueueGroupRecord, RowLinks};

    use super::super::groups::GroupRecordWriter;
    use super::super::tests::row_of;
    use super::*;

    /// Creates a page under a unique name, and the view of other processes.
    fn page(name: &str, rows: usize) -> (Arc<PublishedPage>, PageView) {
        let page = Arc::new(PublishedPage::create_page(name, page_bytes(rows)).unwrap());
        let wanted = format!("/memfd:{name} (deleted)");
        let links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let mut named =
            links.filter(|link| std::fs::read_link(link).is_ok_and(|name| name.to_str() == Some(&*wanted)));
        let view = PageView::open(&File::open(named.next().unwrap()).unwrap()).unwrap();
        (page, view)
    }

    fn comm(generation: u16) -> CommRecord {
        CommRecord {
            state: CommState::Open,
            direction: CommDirection::Send,
            links: RowLinks::new(&[generation, generation], generation as u8),
            generation,
            fault: None,
            peer: ProcessId([generation as u8; 16]),
            opened: u64::from(generation),
            ride: None,
            before: MessageCounts::default(),
        }
    }

    #[test]
    fn changing_row_is_read_whole_or_rejected() {
        let (page, view) = page("trunkline.changing", 1);
        let row = row_of(CounterWords::of_page(&page, HEAD_BYTES).unwrap());
        let stop = AtomicBool::new(false);
        let mut whole = 0;
        let mut torn = None;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for generation in (1..=u16::MAX).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    row.count_begun(1);
                    row.count_sent(8);
                    row.open_comm(comm(generation));
                }
            });
            // Long enough for the two to overlap also on one processor.
            let began = std::time::Instant::now();
            let millis = |n| std::time::Duration::from_millis(n);
            while began.elapsed() < millis(500) || (whole < 1000 && began.elapsed() < millis(20_000)) {
                let Some(found) = row_at(&view, HEAD_BYTES).unwrap().comm else { continue };
                let wanted = CommRecord { before: found.before, ..comm(found.generation) };
                if found != wanted || found.before.sent != found.before.begun {
                    torn = Some(found);
                    break;
                }
                whole += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(torn, None);
        assert!(whole >= 1000, "only {whole} reads found a stable row");
    }

    #[test]
    fn changing_record_is_read_whole_or_rejected() {
        let (page, view) = page("trunkline.groups", 1);
        let record = GroupRecordWriter::new(CounterWords::of_page(&page, group::AT).unwrap());
        let of = |number: u16| QueueGroupRecord {
            direction: CommDirection::Send,
            links: 1,
            nic: number,
            members: number % 128,
            peer: ProcessId([number as u8; 16]),
            numbers: GroupCounters { routed: u64::from(number), ..GroupCounters::default() },
        };
        let stop = AtomicBool::new(false);
        let mut whole = 0;
        let mut torn = None;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (1..=u16::MAX).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    record.publish_group(&of(number));
                }
            });
            let began = std::time::Instant::now();
            let millis = |n| std::time::Duration::from_millis(n);
            while began.elapsed() < millis(500) || (whole < 1000 && began.elapsed() < millis(20_000)) {
                let words = record_at(&view, group::AT).unwrap();
                let Some(found) = QueueGroupRecord::from_words(&words).unwrap() else { continue };
                if found != of(found.nic) {
                    torn = Some(found);
                    break;
                }
                whole += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(torn, None);
        assert!(whole >= 1000, "only {whole} reads found a stable record");
    }

    #[test]
    fn unfinished_or_short_page_is_refused() {
        let (_page, view) = page("trunkline.empty", 1);
        assert!(matches!(read_status(&view), Err(StatusPageError::Status(StatusError::Magic))));
    }
}
