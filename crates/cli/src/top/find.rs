//! Finds status pages: memory files of a known name among the descriptors of every process that may be looked into.
//! A page belongs to the process that says so on it and holds it; a child that inherited the descriptor does not count.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use trunkline_engine::{PageError, read_head, read_status};
use trunkline_mem::PageView;
use trunkline_proto::wire::status::{Head, NAME, Status};

/// Looks between two searches through all processes; the others only look at the pages that are known.
const SEARCH_EVERY: u32 = 5;

/// Pages of one process that are looked at.
const PAGES_MAX: usize = 16;

/// Nothing can be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FindError {
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
        "process {0} has no status page: it does not use Trunkline (yet), or was started with TRUNKLINE_STATUS=0"
    )]
    NoPage(u32),
    /// What it shows cannot be read.
    #[error("the status page of process {pid} is not used: {why}")]
    Refused {
        /// The process.
        pid: u32,
        /// What is wrong with the page.
        why: Rc<PageError>,
    },
}

/// A page that cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// The process that holds it.
    pub(crate) pid: u32,
    /// What is wrong with it.
    pub(crate) why: Rc<PageError>,
}

/// What one process shows right now.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The process, as this process sees it.
    pub(crate) pid: u32,
    /// The name of its program, cut by the system; printable.
    pub(crate) command: String,
    /// What is on its page.
    pub(crate) status: Status,
}

/// Everything that is shown right now.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Processes with a page, by number.
    pub(crate) shown: Vec<Shown>,
    /// Pages that cannot be used.
    pub(crate) refused: Vec<Refused>,
    /// Processes that may not be looked into.
    pub(crate) hidden: usize,
}

/// A page that was found earlier.
struct Known {
    pid: u32,
    link: PathBuf,
    file: (u64, u64),
    view: PageView,
}

/// Looks again and again.
pub(crate) struct Finder {
    only: Option<u32>,
    known: HashMap<(u64, u64), Known>,
    /// Looks until the next search.
    wait: u32,
    hidden: usize,
    refused: Vec<Refused>,
}

impl Finder {
    /// Looks at all processes, or at one.
    pub(crate) fn new(only: Option<u32>) -> Self {
        Self { only, known: HashMap::new(), wait: 0, hidden: 0, refused: Vec::new() }
    }

    /// What is shown now.
    ///
    /// # Errors
    /// [`FindError`]; if one process is asked for, also when it shows nothing.
    pub(crate) fn look(&mut self) -> Result<Found, FindError> {
        // A descriptor's number may mean another file by now, in the same process or a new one.
        self.known.retain(|_, known| is_page(&known.link) && file_of(&known.link) == Some(known.file));
        if self.wait == 0 || self.only.is_some() {
            self.search()?;
        }
        self.wait = (self.wait + 1) % SEARCH_EVERY;
        let mut found = Found { hidden: self.hidden, refused: self.refused.clone(), ..Found::default() };
        for known in self.known.values() {
            match read_status(&known.view) {
                Ok(status) => found.shown.push(Shown { pid: known.pid, command: command(known.pid), status }),
                Err(why) => found.refused.push(Refused { pid: known.pid, why: Rc::new(why) }),
            }
        }
        found.shown.sort_by_key(|shown| (shown.pid, shown.status.head.process));
        found.refused.sort_by_key(|refused| refused.pid);
        match self.only {
            Some(pid) if found.shown.is_empty() => Err(match found.refused.pop() {
                Some(Refused { pid, why }) => FindError::Refused { pid, why },
                None => FindError::NoPage(pid),
            }),
            _ => Ok(found),
        }
    }

    fn search(&mut self) -> Result<(), FindError> {
        self.hidden = 0;
        self.refused.clear();
        if let Some(pid) = self.only {
            return match self.search_process(pid) {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(FindError::NotAllowed(pid)),
                Err(_) => Err(FindError::NoProcess(pid)),
            };
        }
        for entry in fs::read_dir("/proc").map_err(FindError::NoProc)? {
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
            if pages == PAGES_MAX || !is_page(&link) {
                continue;
            }
            pages += 1;
            let Some(file) = file_of(&link) else { continue };
            if self.known.contains_key(&file) {
                continue;
            }
            match open(&link) {
                Ok((view, head)) if owns(pid, &head) => {
                    self.known.insert(file, Known { pid, link, file, view });
                }
                Ok(_) => {}
                Err(why) => self.refused.push(Refused { pid, why: Rc::new(why) }),
            }
        }
        Ok(())
    }
}

/// Whether a descriptor is a status page, by name.
fn is_page(link: &Path) -> bool {
    let name = fs::read_link(link).ok();
    let name = name.as_deref().and_then(Path::to_str).and_then(|name| name.strip_prefix("/memfd:"));
    name.and_then(|name| name.strip_suffix(" (deleted)")) == Some(NAME)
}

/// What tells one file from another.
fn file_of(link: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(link).ok()?;
    Some((file.dev(), file.ino()))
}

fn open(link: &Path) -> Result<(PageView, Head), PageError> {
    // Should it be something else by now, opening it neither waits nor changes anything.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = rustix::fs::open(link, flags, Mode::empty());
    let file = file.map_err(|errno| trunkline_mem::ViewError::System(errno.into()))?;
    let view = PageView::open(&file)?;
    let head = read_head(&view)?;
    Ok((view, head))
}

/// Whether the page is that process's own: it knows its number, in the innermost namespace it is in.
fn owns(pid: u32, head: &Head) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    own.unwrap_or(pid) == head.pid
}

/// The name of a process, fit to be printed.
fn command(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    name.trim_end().chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}
