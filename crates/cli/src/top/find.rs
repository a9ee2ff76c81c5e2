//! Finds status pages, and pages of shared memory: memory files of known names among the descriptors of every process that may be looked into.
//! A page belongs to the process that says so on it and holds it; a child that inherited the descriptor does not count.

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

/// Looks between two searches through all processes; the others only look at the pages that are known.
const SEARCH_EVERY: u32 = 5;

/// Pages of one process that are looked at.
const PAGES_MAX: usize = 16;

/// Nothing can be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PageFindError {
    /// There is no list of processes.
    #[error("cannot list the processes in /proc: {0}; is it mounted?")]
    NoProc(io::Error),
    /// There is no such process.
    #[error("there is no process {0} (any more)")]
    NoProcess(u32),
    /// It belongs to somebody else.
    #[error(
        "process {0} may not be looked into: it is protected or another user's; run this as that user or as root"
    )]
    NotAllowed(u32),
    /// It shows nothing.
    #[error(
        "process {0} has no status page and shares no memory: it does not use Trunkline (yet), or was started with TRUNKLINE_STATUS=0"
    )]
    NoPage(u32),
    /// What it shows cannot be read.
    #[error("the status page of process {pid} is not used: {why}")]
    Refused {
        /// The process.
        pid: u32,
        /// What is wrong with the page.
        why: Rc<PageReadError>,
    },
}

/// Why a page is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageReadError {
    /// It cannot be mapped.
    #[error(transparent)]
    View(#[from] ViewError),
    /// It is no status page of an engine.
    #[error(transparent)]
    Engine(#[from] StatusPageError),
    /// It is no page of memory that is shared inside a node.
    #[error(transparent)]
    Node(#[from] NodePageError),
}

/// A page that cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct RefusedPage {
    /// The process that holds it.
    pub(crate) pid: u32,
    /// What is wrong with it.
    pub(crate) why: Rc<PageReadError>,
}

/// What one process shows right now.
#[derive(Debug)]
pub(crate) struct ShownProcess {
    /// The process, as this process sees it.
    pub(crate) pid: u32,
    /// The name of its program, cut by the system; printable.
    pub(crate) command: String,
    /// What is on its page.
    pub(crate) status: StatusSnapshot,
}

/// What one endpoint of a process shows of the memory that it shares inside its node.
#[derive(Debug)]
pub(crate) struct ShownNode {
    /// The process, as this process sees it.
    pub(crate) pid: u32,
    /// The name of its program, as above.
    pub(crate) command: String,
    /// What is on its page.
    pub(crate) page: node::SharedMemoryPage,
}

/// Everything that is shown right now.
#[derive(Debug, Default)]
pub(crate) struct FoundPages {
    /// Processes with a page, by number.
    pub(crate) shown: Vec<ShownProcess>,
    /// Endpoints that share memory inside their node, by the numbers of their processes.
    pub(crate) nodes: Vec<ShownNode>,
    /// Pages that cannot be used.
    pub(crate) refused: Vec<RefusedPage>,
    /// Processes that may not be looked into.
    pub(crate) hidden: usize,
}

/// A page that was found earlier.
struct KnownPage {
    pid: u32,
    link: PathBuf,
    kind: PageKind,
    file: (u64, u64),
    view: PageView,
}

/// What a page is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PageKind {
    /// An engine.
    Engine,
    /// An endpoint that shares memory.
    Node,
}

/// Looks again and again.
pub(crate) struct PageFinder {
    only: Option<u32>,
    known: HashMap<(u64, u64), KnownPage>,
    /// Looks until the next search.
    wait: u32,
    hidden: usize,
    refused: Vec<RefusedPage>,
}

impl PageFinder {
    /// Looks at all processes, or at one.
    pub(crate) fn new(only: Option<u32>) -> Self {
        Self { only, known: HashMap::new(), wait: 0, hidden: 0, refused: Vec::new() }
    }

    /// What is shown now.
    ///
    /// # Errors
    /// [`PageFindError`]; if one process is asked for, also when it shows nothing.
    pub(crate) fn find_pages(&mut self) -> Result<FoundPages, PageFindError> {
        // A descriptor's number may mean another file by now, in the same process or a new one.
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
                // It is gone, which is no news.
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

/// Which page a descriptor is, by name.
fn kind_of(link: &Path) -> Option<PageKind> {
    let name = fs::read_link(link).ok();
    let name = name.as_deref().and_then(Path::to_str).and_then(|name| name.strip_prefix("/memfd:"));
    match name?.strip_suffix(" (deleted)")? {
        NAME => Some(PageKind::Engine),
        node::NAME => Some(PageKind::Node),
        _ => None,
    }
}

/// What tells one file from another.
fn file_of(link: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(link).ok()?;
    Some((file.dev(), file.ino()))
}

/// Maps a page; and the number of the process that says that it is its own.
fn open_page(link: &Path, kind: PageKind) -> Result<(PageView, u32), PageReadError> {
    // Should it be something else by now, opening it neither waits nor changes anything.
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

/// Whether the page is that process's own: it knows its number, in the innermost namespace it is in.
fn is_owner(pid: u32, owner: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    own.unwrap_or(pid) == owner
}

/// The name of a process, fit to be printed.
fn command_name(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    name.trim_end().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
