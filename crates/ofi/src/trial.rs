//! A NIC tried out: an endpoint of its own that talks to itself, and what came of it. Opened by whoever wants to know what a
//! provider does and not only what it says, when NICs are looked for; gone before the first rail is opened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trunkline_fabric::{AccessRights, ExportedDmaBuf};
use trunkline_mem::MemoryRange;

use crate::contexts::OpSlot;
use crate::domain::OfiDomain;
use crate::endpoint::{EndpointOption, EndpointPeer, OfiEndpoint, OfiOpenError, OfiOpenStep};
use crate::errno::OfiErrno;
use crate::info::OfiInfo;
use crate::post::{PayloadSource, PostOptions, SubmitOutcome};
use crate::queue::{CompletionEntry, CompletionFormat, OfiQueue, QueueRead, QueueWants};
use crate::region::{
    LocalSlice, MemoryIface, MrEnabled, MrRequest, OfiRegisterError, RemotePlace, register_memory,
};
use crate::rights::MemoryDuty;
use crate::role::PayloadTraffic;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that are written.
const BYTES: usize = 8;
/// Operations at once.
const SLOTS: u32 = 4;

/// The NIC, open.
pub(crate) struct NicTrial {
    // In the order in which they may go.
    endpoint: OfiEndpoint<PayloadTraffic>,
    queue: OfiQueue,
    itself: EndpointPeer<PayloadTraffic>,
    domain: Arc<OfiDomain>,
}

impl NicTrial {
    /// Opens it, with these options of the endpoint.
    ///
    /// # Errors
    /// As of a rail: [`OfiOpenError`] names the step.
    pub(crate) fn open(info: &OfiInfo, options: &[EndpointOption]) -> Result<Self, OfiOpenError> {
        let domain = OfiDomain::open(info)?;
        let wants = QueueWants {
            // Writes that tell of themselves take two.
            entries: 4 * SLOTS as usize,
            format: CompletionFormat::Data,
            sources: false,
            wait: false,
            slots: SLOTS,
        };
        let queue = OfiQueue::open(&domain, &wants)?;
        let mut endpoint = OfiEndpoint::open(info, &queue, options)?;
        let name = endpoint.local_name().map_err(OfiOpenStep::Vector.to_error())?;
        let itself = endpoint.insert(&name).map_err(OfiOpenStep::Vector.to_error())?;
        Ok(Self { endpoint, queue, itself, domain })
    }

    /// Registers memory as a rail would.
    ///
    /// # Errors
    /// As [`register_memory`].
    pub(crate) fn register_memory(
        &self,
        memory: &MemoryRange,
        iface: MemoryIface,
        dmabuf: Option<ExportedDmaBuf<'_>>,
        duty: MemoryDuty,
    ) -> Result<MrEnabled<PayloadTraffic>, OfiRegisterError> {
        register_memory(&self.domain, &self.endpoint.mr_scope(), &MrRequest { memory, iface, dmabuf, duty })
    }

    /// Writes one region of this NIC into another, which says so by `data`, and waits until both ends have been told.
    ///
    /// # Errors
    /// Why that does not work; [`OfiErrno::TIMED_OUT`] if nobody says.
    pub(crate) fn write_region(
        &mut self,
        from: &MrEnabled<PayloadTraffic>,
        into: &MrEnabled<PayloadTraffic>,
        data: u64,
    ) -> Result<(), OfiErrno> {
        let to = RemotePlace::new(into.key().ok_or(OfiErrno::NO_KEY)?, into.remote_base());
        let bytes = whole_region(from)?;
        let mut sent = false;
        let mut told = false;
        let done = self.post_and_wait(
            |this, slot| {
                this.endpoint.write(
                    this.itself,
                    PayloadSource::One(bytes),
                    to,
                    Some(data),
                    slot,
                    PostOptions::TOLD,
                )
            },
            |entry| {
                sent |= entry.slot.is_some();
                told |= entry.slot.is_none() && entry.data == Some(data);
                sent && told
            },
        );
        done.map_err(|errno| given_up(errno, [from, into]))
    }

    /// Reads so many bytes of one region of this NIC as another has, as a flush does.
    ///
    /// # Errors
    /// As [`NicTrial::write_region`].
    pub(crate) fn read_region(
        &mut self,
        from: &MrEnabled<PayloadTraffic>,
        into: &MrEnabled<PayloadTraffic>,
    ) -> Result<(), OfiErrno> {
        let place = RemotePlace::new(from.key().ok_or(OfiErrno::NO_KEY)?, from.remote_base());
        let bytes = whole_region(into)?;
        let done = self.post_and_wait(
            |this, slot| this.endpoint.read(this.itself, bytes, place, slot, PostOptions::TOLD),
            |entry| entry.slot.is_some(),
        );
        done.map_err(|errno| given_up(errno, [from, into]))
    }

    /// Posts until there is room, and looks until what came is enough.
    fn post_and_wait(
        &mut self,
        mut post: impl FnMut(&mut Self, OpSlot) -> SubmitOutcome,
        mut is_enough: impl FnMut(&CompletionEntry) -> bool,
    ) -> Result<(), OfiErrno> {
        let until = Instant::now() + PATIENCE;
        let mut is_posted = false;
        loop {
            if !is_posted {
                match post(self, OpSlot(0)) {
                    SubmitOutcome::Taken => is_posted = true,
                    SubmitOutcome::Again => {}
                    SubmitOutcome::Refused(errno) => return Err(errno),
                }
            }
            // What makes progress, too.
            match self.queue.read_batch() {
                QueueRead::Entries(count) => {
                    let mut entries = (0..count).filter_map(|at| self.queue.batch_entry(at));
                    if entries.any(|entry| is_enough(&entry)) {
                        return Ok(());
                    }
                }
                QueueRead::Nothing => std::thread::yield_now(),
                QueueRead::ErrorWaits => match self.queue.read_error() {
                    Some(failure) => return Err(failure.errno),
                    None => std::thread::yield_now(),
                },
                QueueRead::Broken(errno) => return Err(errno),
            }
            if Instant::now() > until {
                return Err(OfiErrno::TIMED_OUT);
            }
        }
    }
}

/// All bytes of a region.
fn whole_region(mr: &MrEnabled<PayloadTraffic>) -> Result<LocalSlice<'_, PayloadTraffic>, OfiErrno> {
    mr.local_slice(0, mr.memory().len() as u64).map_err(|_| OfiErrno::INVALID)
}

/// What nobody says the end of may go on: its memory stays for good.
fn given_up(errno: OfiErrno, used: [&MrEnabled<PayloadTraffic>; 2]) -> OfiErrno {
    if errno == OfiErrno::TIMED_OUT {
        used.into_iter().for_each(|mr| std::mem::forget(mr.memory().clone()));
    }
    errno
}

/// Whether a NIC writes and tells its target by the write's own data, and if not why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct WriteDataSupport {
    /// It does, as far as is known.
    pub(crate) data: bool,
    /// Why it does not.
    pub(crate) why: Option<OfiErrno>,
}

impl WriteDataSupport {
    /// What the provider's name promises, which nobody has tried.
    pub(crate) const PROMISED: Self = Self { data: true, why: None };

    /// Tries it. A NIC that cannot be opened, or registers nothing, is left to its first rail, which says more.
    pub(crate) fn probe_nic(info: &OfiInfo) -> Self {
        let Ok(trial) = NicTrial::open(info, &[]) else { return Self::PROMISED };
        Self::probe_writes(trial)
    }

    fn probe_writes(mut trial: NicTrial) -> Self {
        let made =
            |memory: &MemoryRange, duty| trial.register_memory(memory, MemoryIface::Host, None, duty).ok();
        let (Ok(source), Ok(target)) = (MemoryRange::try_heap(BYTES), MemoryRange::try_heap(BYTES)) else {
            return Self::PROMISED;
        };
        let source = made(&source, MemoryDuty::User(AccessRights::LOCAL));
        let Some((from, into)) = source.zip(made(&target, MemoryDuty::User(AccessRights::WRITE))) else {
            return Self::PROMISED;
        };
        // As many bits as there are at least.
        let written = trial.write_region(&from, &into, 0x5a5a_1234);
        Self { data: written.is_ok(), why: written.err() }
    }
}
