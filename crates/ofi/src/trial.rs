//! A NIC tried out: an endpoint of its own that talks to itself, and what came of it. Opened by whoever wants to know what a
//! provider does and not only what it says, when NICs are looked for; gone before the first rail is opened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_fabric::{Access, Exported};
use trunkline_mem::Memory;

use crate::contexts::Slot;
use crate::domain::Domain;
use crate::endpoint::{Endpoint, OpenError, OpenStep, Opt, Peer};
use crate::errno::Errno;
use crate::info::Info;
use crate::mutant::Planted;
use crate::post::{How, Posted, Source};
use crate::queue::{Entry, Format, Queue, QueueWants, Read};
use crate::region::{Iface, Local, Mr, RegisterError, Remote, Wanted, register};
use crate::rights::Duty;
use crate::role::Data;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that are written.
const BYTES: usize = 8;
/// Operations at once.
const SLOTS: u32 = 4;

/// The NIC, open.
pub(crate) struct Trial {
    // In the order in which they may go.
    endpoint: Endpoint<Data>,
    queue: Queue,
    itself: Peer<Data>,
    domain: Arc<Domain>,
}

impl Trial {
    /// Opens it, with these options of the endpoint.
    ///
    /// # Errors
    /// As of a rail: [`OpenError`] names the step.
    pub(crate) fn open(info: &Info, options: &[Opt]) -> Result<Self, OpenError> {
        let domain = Domain::open(info)?;
        let wants = QueueWants {
            // Writes that tell of themselves take two.
            entries: 4 * SLOTS as usize,
            format: Format::Data,
            sources: false,
            wait: false,
            slots: SLOTS,
        };
        let queue = Queue::open(&domain, &wants)?;
        let mut endpoint = Endpoint::open(info, &queue, options)?;
        let name = endpoint.name().map_err(OpenStep::Vector.failed())?;
        let itself = endpoint.insert(&name).map_err(OpenStep::Vector.failed())?;
        Ok(Self { endpoint, queue, itself, domain })
    }

    /// Registers memory as a rail would.
    ///
    /// # Errors
    /// As [`register`].
    pub(crate) fn register(
        &self,
        memory: &Memory,
        iface: Iface,
        dmabuf: Option<Exported<'_>>,
        duty: Duty,
    ) -> Result<Mr<Data>, RegisterError> {
        register(&self.domain, &self.endpoint.model(), &Wanted { memory, iface, dmabuf, duty })
    }

    /// Writes one region of this NIC into another, which says so by `data`, and waits until both ends have been told.
    ///
    /// # Errors
    /// Why that does not work; [`Errno::TIMED_OUT`] if nobody says.
    pub(crate) fn write(&mut self, from: &Mr<Data>, into: &Mr<Data>, data: u64) -> Result<(), Errno> {
        let to = Remote::new(into.key().ok_or(Errno::NO_KEY)?, into.remote_base());
        let bytes = whole(from)?;
        let mut sent = false;
        let mut told = false;
        let one_end = Planted::named("ofi-asks-one-end-of-a-write").is_on();
        let done = self.attempt(
            |this, slot| {
                this.endpoint.write(this.itself, Source::One(bytes), to, Some(data), slot, How::TOLD)
            },
            |entry| {
                sent |= entry.slot.is_some();
                told |= entry.slot.is_none() && entry.data == Some(data);
                sent && (told || one_end)
            },
        );
        done.map_err(|errno| given_up(errno, [from, into]))
    }

    /// Reads so many bytes of one region of this NIC as another has, as a flush does.
    ///
    /// # Errors
    /// As [`Trial::write`].
    pub(crate) fn read(&mut self, from: &Mr<Data>, into: &Mr<Data>) -> Result<(), Errno> {
        let place = Remote::new(from.key().ok_or(Errno::NO_KEY)?, from.remote_base());
        let bytes = whole(into)?;
        let done = self.attempt(
            |this, slot| this.endpoint.read(this.itself, bytes, place, slot, How::TOLD),
            |entry| entry.slot.is_some(),
        );
        done.map_err(|errno| given_up(errno, [from, into]))
    }

    /// Posts until there is room, and looks until what came is enough.
    fn attempt(
        &mut self,
        mut post: impl FnMut(&mut Self, Slot) -> Posted,
        mut is_enough: impl FnMut(&Entry) -> bool,
    ) -> Result<(), Errno> {
        let until = Instant::now() + PATIENCE;
        let mut is_posted = false;
        loop {
            if !is_posted {
                match post(self, Slot(0)) {
                    Posted::Taken => is_posted = true,
                    Posted::Again => {}
                    Posted::Refused(errno) => return Err(errno),
                }
            }
            // What makes progress, too.
            match self.queue.read() {
                Read::Entries(count) => {
                    let mut entries = (0..count).filter_map(|at| self.queue.entry(at));
                    if entries.any(|entry| is_enough(&entry)) {
                        return Ok(());
                    }
                }
                Read::Nothing => std::thread::yield_now(),
                Read::ErrorWaits => match self.queue.error() {
                    Some(failure) => return Err(failure.errno),
                    None => std::thread::yield_now(),
                },
                Read::Broken(errno) => return Err(errno),
            }
            if Instant::now() > until {
                return Err(Errno::TIMED_OUT);
            }
        }
    }
}

/// All bytes of a region.
fn whole(mr: &Mr<Data>) -> Result<Local<'_, Data>, Errno> {
    mr.local(0, mr.memory().len() as u64).map_err(|_| Errno::INVALID)
}

/// What nobody says the end of may go on: its memory stays for good.
fn given_up(errno: Errno, used: [&Mr<Data>; 2]) -> Errno {
    if errno == Errno::TIMED_OUT {
        used.into_iter().for_each(|mr| std::mem::forget(mr.memory().clone()));
    }
    errno
}

/// Whether a NIC writes and tells its target by the write's own data, and if not why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Writes {
    /// It does, as far as is known.
    pub(crate) data: bool,
    /// Why it does not.
    pub(crate) why: Option<Errno>,
}

impl Writes {
    /// What the provider's name promises, which nobody has tried.
    pub(crate) const PROMISED: Self = Self { data: true, why: None };

    /// Tries it. A NIC that cannot be opened, or registers nothing, is left to its first rail, which says more.
    pub(crate) fn tried(info: &Info) -> Self {
        if Planted::named("ofi-believes-in-writes").is_on() {
            return Self::PROMISED;
        }
        let Ok(trial) = Trial::open(info, &[]) else { return Self::PROMISED };
        Self::of(trial)
    }

    fn of(mut trial: Trial) -> Self {
        let made = |memory: &Memory, duty| trial.register(memory, Iface::Host, None, duty).ok();
        let (Ok(source), Ok(target)) = (Memory::try_heap(BYTES), Memory::try_heap(BYTES)) else {
            return Self::PROMISED;
        };
        let source = made(&source, Duty::User(Access::LOCAL));
        let Some((from, into)) = source.zip(made(&target, Duty::User(Access::WRITE))) else {
            return Self::PROMISED;
        };
        // As many bits as there are at least.
        let written = trial.write(&from, &into, 0x5a5a_1234);
        Self { data: written.is_ok(), why: written.err() }
    }
}
