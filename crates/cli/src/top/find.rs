//! Finds status pages, and pages of shared memory: memory files with known names among the descriptors of every process
//! that may be inspected. A page belongs to the process whose id it contains and that holds it; a child that inherited
//! the descriptor does not count.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use trunkline_engine::{StatusPageError, read_head, read_status};
use trunkline_mem::{PageView, ViewError};
use trunkline_node::{NodePageError, read_node};
use trunkline_proto::wire::status::{NAME, StatusSnapshot, node};

/// Polls between two searches through all processes; other polls read only the known pages.
const SEARCH_EVERY: u32 = 5;

/// Most pages of one process that are opened.
const PAGES_MAX: usize = 16;

/// Why no page can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PageFindError {
    /// `/proc` cannot be listed.
    #[error("cannot list the processes in /proc: {0}; mount it")]
    NoProc(io::Error),
    /// The process does not exist.
    #[error("there is no process {0}; it may have ended")]
    NoProcess(u32),
    /// The process belongs to another user.
    #[error(
        "cannot inspect process {0}: it is protected or belongs to another user; run this as that user or as root"
    )]
    NotAllowed(u32),
    /// The process has no page.
    #[error(
        "process {0} has no status page and shares no memory: it uses neither the NCCL plugin nor tagged messages now, or was started with TRUNKLINE_STATUS=0"
    )]
    NoPage(u32),
    /// The process's page cannot be read.
    #[error("cannot use the status page of process {pid}: {why}")]
    Refused {
        /// The process.
        pid: u32,
        /// The page's error.
        why: Rc<PageReadError>,
    },
}

/// Why a page is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageReadError {
    /// The page cannot be mapped.
    #[error(transparent)]
    View(#[from] ViewError),
    /// It is not a status page of an engine.
    #[error(transparent)]
    Engine(#[from] StatusPageError),
    /// It is not a page of memory that is shared inside a node.
    #[error(transparent)]
    Node(#[from] NodePageError),
}

/// A page that cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct RefusedPage {
    /// The process that holds it.
    pub(crate) pid: u32,
    /// The page's error.
    pub(crate) why: Rc<PageReadError>,
}

/// The current content of one process's status page.
#[derive(Debug)]
pub(crate) struct ShownProcess {
    /// The process, as this process sees it.
    pub(crate) pid: u32,
    /// The name of its program, cut by the system; printable.
    pub(crate) command: String,
    /// The page's content.
    pub(crate) status: StatusSnapshot,
}

/// The current page of one endpoint that shares memory inside its node.
#[derive(Debug)]
pub(crate) struct ShownNode {
    /// The process, as this process sees it.
    pub(crate) pid: u32,
    /// The name of its program, cut by the system; printable.
    pub(crate) command: String,
    /// The page's content.
    pub(crate) page: node::SharedMemoryPage,
}

/// The content of all pages at one moment.
#[derive(Debug, Default)]
pub(crate) struct FoundPages {
    /// Processes with a status page.
    pub(crate) shown: Vec<ShownProcess>,
    /// Endpoints that share memory inside their node.
    pub(crate) nodes: Vec<ShownNode>,
    /// Pages that cannot be used.
    pub(crate) refused: Vec<RefusedPage>,
    /// Processes that may not be inspected.
    pub(crate) hidden: usize,
}

/// A page that was found by an earlier poll.
struct KnownPage {
    pid: u32,
    link: PathBuf,
    kind: PageKind,
    file: (u64, u64),
    view: PageView,
}

/// The owner's kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PageKind {
    /// An engine.
    Engine,
    /// An endpoint that shares memory.
    Node,
}

/// Finds and reads the pages at each poll.
pub(crate) struct PageFinder {
    only: Option<u32>,
    known: HashMap<(u64, u64), KnownPage>,
    /// Polls since the last search, modulo [`SEARCH_EVERY`].
    wait: u32,
    hidden: usize,
    refused: Vec<RefusedPage>,
}

impl PageFinder {
    /// Creates a finder for all processes, or for one.
    pub(crate) fn new(only: Option<u32>) -> Self {
        Self { only, known: HashMap::new(), wait: 0, hidden: 0, refused: Vec::new() }
    }

    /// Reads the current content of all pages.
    ///
    /// # Errors
    /// [`PageFindError`]; for a single process, also if it has no page.
    pub(crate) fn find_pages(&mut self) -> Result<FoundPages, PageFindError> {
        // By now the descriptor may refer to another file, in the same process or a new one.
        self.known.retain(|_, known| {
            kind_of(&known.link) == Some(known.kind) && file_of(&known.link) == Some(known.file)
        });
        if self.wait == 0 || self.only.is_some() {
            self.search_processes()?;
        }
        self.wait = (self.wait + 1) % SEARCH_EVERY;
        let mut found =
            FoundPages { hidden: self.hidden, refused: self.refused.clone(), ..FoundPages::default() };
        for known in self.known.values() {
            let (pid, command) = (known.pid, command_name(known.pid));
            let read = match known.kind {
                PageKind::Engine => read_status(&known.view)
                    .map(|status| found.shown.push(ShownProcess { pid, command, status }))
                    .map_err(PageReadError::from),
                PageKind::Node => read_node(&known.view)
                    .map(|page| found.nodes.push(ShownNode { pid, command, page }))
                    .map_err(PageReadError::from),
            };
            if let Err(why) = read {
                found.refused.push(RefusedPage { pid, why: Rc::new(why) });
            }
        }
        found.shown.sort_by_key(|shown| (shown.pid, shown.status.head.process));
        found.nodes.sort_by_key(|shown| (shown.pid, shown.page.owner.rank, shown.page.owner.process));
        found.refused.sort_by_key(|refused| refused.pid);
        match self.only {
            Some(pid) if found.shown.is_empty() && found.nodes.is_empty() => Err(match found.refused.pop() {
                Some(RefusedPage { pid, why }) => PageFindError::Refused { pid, why },
                None => PageFindError::NoPage(pid),
            }),
            _ => Ok(found),
        }
    }

    fn search_processes(&mut self) -> Result<(), PageFindError> {
        self.hidden = 0;
        self.refused.clear();
        if let Some(pid) = self.only {
            return match self.search_process(pid) {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    Err(PageFindError::NotAllowed(pid))
                }
                Err(_) => Err(PageFindError::NoProcess(pid)),
            };
        }
        for entry in fs::read_dir("/proc").map_err(PageFindError::NoProc)? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match self.search_process(pid) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => self.hidden += 1,
                // The process has ended meanwhile, which is normal.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn search_process(&mut self, pid: u32) -> io::Result<()> {
        let mut pages = 0;
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let link = entry?.path();
            let Some(kind) = kind_of(&link).filter(|_| pages < PAGES_MAX) else { continue };
            pages += 1;
            let Some(file) = file_of(&link) else { continue };
            if self.known.contains_key(&file) {
                continue;
            }
            match open_page(&link, kind) {
                Ok((view, owner)) if is_owner(pid, owner) => {
                    self.known.insert(file, KnownPage { pid, link, kind, file, view });
                }
                Ok(_) => {}
                Err(why) => self.refused.push(RefusedPage { pid, why: Rc::new(why) }),
            }
        }
        Ok(())
    }
}

/// The kind of page that a descriptor's link names.
fn kind_of(link: &Path) -> Option<PageKind> {
    let name = fs::read_link(link).ok();
    let name = name.as_deref().and_then(Path::to_str).and_then(|name| name.strip_prefix("/memfd:"));
    match name?.strip_suffix(" (deleted)")? {
        NAME => Some(PageKind::Engine),
        node::NAME => Some(PageKind::Node),
        _ => None,
    }
}

/// Device and inode number, which identify a file.
fn file_of(link: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(link).ok()?;
    Some((file.dev(), file.ino()))
}

/// Maps a page; returns it with the process id that it contains.
fn open_page(link: &Path, kind: PageKind) -> Result<(PageView, u32), PageReadError> {
    // The link may refer to another file by now; these flags keep the open from blocking and from changing anything.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::open(link, flags, Mode::empty());
    let file = file.map_err(|errno| ViewError::System(errno.into()))?;
    let view = PageView::open(&file)?;
    let owner = match kind {
        PageKind::Engine => read_head(&view)?.pid,
        PageKind::Node => read_node(&view)?.owner.pid,
    };
    Ok((view, owner))
}

/// Whether the page belongs to that process: it contains the process's id in its innermost namespace.
fn is_owner(pid: u32, owner: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    own.unwrap_or(pid) == owner
}

/// The name of a process, printable.
fn command_name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    name.trim_end().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
