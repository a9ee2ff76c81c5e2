//! The status page on which other processes see the shared memory of an endpoint. The endpoint rewrites all of it
//! periodically; a reader repeats its copy until no write happened meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use trunkline_fabric::HostPage;
use trunkline_mem::{CounterWords, OutOfBounds, PageView};
use trunkline_proto::id::ProcessId;
use trunkline_proto::time::Instant;
use trunkline_proto::wire::status::Number;
use trunkline_proto::wire::status::node::{
    self, BYTES, CHANGING, EXPORTS_AT, MAGIC, NEIGHBOURS, NEIGHBOURS_AT, NUMBERS_AT, NeighbourRecord,
    NodeError, PageExport, PageOwner, RECORD, SEQUENCE, SharedMemoryPage, WORDS,
};

/// How often a reader reads a page again that is being written. After `SPINS` tries it pauses between the tries, so
/// that the writer can run.
const TRIES: usize = 64;
const SPINS: usize = 4;
/// Length of such a pause.
const PAUSE: std::time::Duration = std::time::Duration::from_micros(200);

/// An error in reading a page of shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodePageError {
    /// The bytes are not a page of shared memory, or change during every read.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The page is shorter than its records.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
}

/// The page of an endpoint.
#[derive(Debug)]
pub struct NodePage {
    words: CounterWords<WORDS>,
}

impl NodePage {
    /// Makes a page in shared memory, which must have [`BYTES`] zero bytes; `None` if it has fewer. Readers accept it
    /// after the first write.
    #[must_use]
    pub fn new(page: &Arc<trunkline_mem::PublishedPage>, owner: &PageOwner) -> Option<Self> {
        let words = CounterWords::of_page(page, 0)?;
        let made = Self { words };
        made.put_words(1, &[node::version_word()]);
        made.put_words(3, &owner.to_words());
        Some(made)
    }

    /// Makes a page in memory that the host has just made; `process` and `rank` identify the owner.
    #[must_use]
    pub fn of_host(made: &HostPage, process: ProcessId, rank: Option<u32>, now: Instant) -> Option<Self> {
        let owner = PageOwner { process, pid: made.pid, rank, made_unix: made.unix_ns, made: now.0 };
        Self::new(&made.page, &owner)
    }

    fn put_words(&self, at: usize, what: &[u64]) {
        self.words.iter().skip(at).zip(what).for_each(|(to, word)| store_word(to, *word));
    }

    /// Begins a write: a reader whose copy overlaps it copies again.
    pub(crate) fn begin_write(&self) {
        store_word(&self.words[SEQUENCE], load_word(&self.words[SEQUENCE]).wrapping_add(1));
        fence(Ordering::Release);
    }

    /// Writes the record of one export.
    pub(crate) fn write_export(&self, nth: usize, export: &PageExport) {
        self.put_words(EXPORTS_AT + nth * RECORD, &export.to_words());
    }

    /// Writes everything else, and ends the write; `exports` is the number of records that were written.
    pub(crate) fn finish_write(
        &self,
        now: Instant,
        numbers: &[u64; Number::LEN],
        neighbours: &[NeighbourRecord],
        exports: usize,
    ) {
        let shown = neighbours.len().min(NEIGHBOURS);
        self.put_words(CHANGING, &[now.0, node::record_counts(shown as u32, exports as u32)]);
        self.put_words(NUMBERS_AT, numbers);
        for (nth, neighbour) in neighbours.iter().enumerate().take(shown) {
            self.put_words(NEIGHBOURS_AT + nth * RECORD, &neighbour.to_words());
        }
        let sequence = load_word(&self.words[SEQUENCE]);
        let even = sequence.wrapping_add(sequence % 2);
        self.words[SEQUENCE].store(even.to_le(), Ordering::Release);
        self.words[0].store(MAGIC.to_le(), Ordering::Release);
    }
}

fn load_word(word: &AtomicU64) -> u64 {
    u64::from_le(word.load(Ordering::Relaxed))
}

fn store_word(word: &AtomicU64, value: u64) {
    word.store(value.to_le(), Ordering::Relaxed);
}

/// Returns a consistent copy of a page of shared memory.
///
/// # Errors
/// [`NodePageError`]: why the page is not usable.
pub fn read_node(view: &PageView) -> Result<SharedMemoryPage, NodePageError> {
    if view.len() != BYTES {
        return Err(NodeError::Length(view.len()).into());
    }
    let mut words = vec![0; WORDS];
    let mut again = [0; 1];
    for tried in 0..TRIES {
        view.read(0, &mut words)?;
        view.read(SEQUENCE * 8, &mut again)?;
        if words[SEQUENCE] == again[0] && again[0].is_multiple_of(2) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            return Ok(SharedMemoryPage::from_bytes(&bytes)?);
        }
        if tried < SPINS { std::hint::spin_loop() } else { std::thread::sleep(PAUSE) }
    }
    Err(NodeError::Unsettled.into())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A page with a name of its own, and a reader's view of it.
    fn page(name: &str) -> (NodePage, PageView) {
        let page = Arc::new(trunkline_mem::PublishedPage::create_page(name, BYTES).unwrap());
        let wanted = format!("/memfd:{name} (deleted)");
        let links = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let mut named =
            links.filter(|link| std::fs::read_link(link).is_ok_and(|name| name.to_str() == Some(&*wanted)));
        let view = PageView::open(&File::open(named.next().unwrap()).unwrap()).unwrap();
        let owner = PageOwner { process: ProcessId([1; 16]), pid: 7, rank: None, made_unix: 1, made: 2 };
        (NodePage::new(&page, &owner).unwrap(), view)
    }

    #[test]
    fn page_is_unreadable_before_its_first_write() {
        let (page, view) = page("trunkline.node.new");
        assert!(matches!(read_node(&view), Err(NodePageError::Node(NodeError::Magic))));
        page.begin_write();
        page.finish_write(Instant(9), &[4; Number::LEN], &[NeighbourRecord::default()], 0);
        let read = read_node(&view).unwrap();
        assert_eq!((read.written, read.number(Number::Hits), read.neighbours.len()), (9, 4, 1));
        assert_eq!((read.owner.pid, read.owner.made, read.exports.len()), (7, 2, 0));
    }

    #[test]
    fn page_reads_are_consistent_during_writes() {
        let (page, view) = page("trunkline.node.changing");
        let write = |value: u64| {
            page.begin_write();
            for nth in 0..64 {
                page.write_export(nth, &PageExport { base: value, used: value, ..PageExport::default() });
            }
            let neighbours = [NeighbourRecord { mapped_bytes: value, ..NeighbourRecord::default() }; 8];
            page.finish_write(Instant(value), &[value; Number::LEN], &neighbours, 64);
        };
        write(0);
        let stop = AtomicBool::new(false);
        let mut whole = 0;
        let mut torn = None;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in (1..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    write(value);
                    // Pauses between writes, but shorter than an endpoint does.
                    (0..2_000).for_each(|_| std::hint::spin_loop());
                }
            });
            let began = std::time::Instant::now();
            let millis = |n| std::time::Duration::from_millis(n);
            while began.elapsed() < millis(500) || (whole < 500 && began.elapsed() < millis(20_000)) {
                let Ok(read) = read_node(&view) else { continue };
                let value = read.written;
                let same = read.numbers == [value; Number::LEN]
                    && read.neighbours.iter().all(|one| one.mapped_bytes == value)
                    && read.exports.iter().all(|one| (one.base, one.used) == (value, value));
                if !same {
                    torn = Some(value);
                    break;
                }
                whole += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(torn, None);
        assert!(whole >= 500, "only {whole} reads got a consistent copy");
    }
}
