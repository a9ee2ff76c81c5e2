//! A trial of a NIC: an endpoint that communicates with itself. Opened when NICs are found, to verify that a provider keeps its promises;
//! closed before the first rail is opened.

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

/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(1);
/// Length of the written data, in bytes.
const BYTES: usize = 8;
/// Maximum number of operations in flight.
const SLOTS: u32 = 4;

/// The open NIC.
pub(crate) struct NicTrial {
    // In the order of closing.
    endpoint: OfiEndpoint<PayloadTraffic>,
    queue: OfiQueue,
    itself: EndpointPeer<PayloadTraffic>,
    domain: Arc<OfiDomain>,
}

impl NicTrial {
    /// Opens the NIC, with these endpoint options.
    ///
    /// # Errors
    /// [`OfiOpenError`] names the step, as for a rail.
    pub(crate) fn open(info: &OfiInfo, options: &[EndpointOption]) -> Result<Self, OfiOpenError> {
        let domain = OfiDomain::open(info)?;
        let wants = QueueWants {
            // Each write with data produces two entries, one at each end.
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

    /// Writes one region of this NIC to another, with CQ data `data`, and waits for the entries of both ends.
    ///
    /// # Errors
    /// The provider's error; [`OfiErrno::TIMED_OUT`] if the entries do not arrive.
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
                // The entry of the target side has no context of ours.
                told |= entry.slot.is_none() && entry.data == Some(data);
                sent && told
            },
        );
        done.map_err(|errno| given_up(errno, [from, into]))
    }

    /// Reads from one region of this NIC into another, up to the length of the latter, as a flush does.
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

    /// Posts an operation, retrying while there is no room, and polls until `is_enough` accepts a completion.
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
                    // Retried after the poll below, which may free room.
                    SubmitOutcome::Again => {}
                    SubmitOutcome::Refused(errno) => return Err(errno),
                }
            }
            // Polled even before posting succeeds, because reading the queue makes progress.
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
            // Bounded, because a provider that drops CQ data reports neither success nor failure.
            if Instant::now() > until {
                return Err(OfiErrno::TIMED_OUT);
            }
        }
    }
}

/// Returns all bytes of a region.
fn whole_region(mr: &MrEnabled<PayloadTraffic>) -> Result<LocalSlice<'_, PayloadTraffic>, OfiErrno> {
    mr.local_slice(0, mr.memory().len() as u64).map_err(|_| OfiErrno::INVALID)
}

/// Leaks the memory of an operation whose end was not reported, because it may still be running.
fn given_up(errno: OfiErrno, used: [&MrEnabled<PayloadTraffic>; 2]) -> OfiErrno {
    if errno == OfiErrno::TIMED_OUT {
        used.into_iter().for_each(|mr| std::mem::forget(mr.memory().clone()));
    }
    errno
}

/// Whether a NIC supports writes with CQ data, and if not why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct WriteDataSupport {
    /// Supported, as far as known.
    pub(crate) data: bool,
    /// Why not.
    pub(crate) why: Option<OfiErrno>,
}

impl WriteDataSupport {
    /// Assumed from the provider's name, without a trial.
    pub(crate) const PROMISED: Self = Self { data: true, why: None };

    /// Runs the trial. If the NIC cannot be opened or registers no memory, the first rail reports the error.
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
        // A value of 32 bits, the minimum length of CQ data.
        let written = trial.write_region(&from, &into, 0x5a5a_1234);
        Self { data: written.is_ok(), why: written.err() }
    }
}
