//! Flushes of memory of devices: a byte of it is read by the NIC, which pushes what the NIC wrote there before. Reads go out from
//! an endpoint that is there for nothing else, with a queue of its own: so they need no peer, work when a link is in error,
//! and meet none of its operations. Made with a rail's first flush.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use trunkline_fabric::{CompletionKind, LinkId, OpStatus, PostError, RemoteLocation};
use trunkline_mem::MemoryRange;

use crate::connect::LAST_READS;
use crate::contexts::OpSlot;
use crate::domain::OfiDomain;
use crate::endpoint::{EndpointOption, EndpointPeer, OfiEndpoint};
use crate::errno::OfiErrno;
use crate::info::OfiInfo;
use crate::post::{PostOptions, SubmitOutcome};
use crate::queue::{CompletionFormat, OfiQueue, QueueRead, QueueWants};
use crate::rail::OfiRail;
use crate::region::{MrEnabled, MrRequest, RKey, RemotePlace as Place, register_memory};
use crate::rights::MemoryDuty;
use crate::role::PayloadTraffic;

/// Flushes that the provider has at once; others wait here.
const ROOM: u32 = 64;
/// Batches that one look takes at most.
const BATCHES: u32 = 4;

/// One flush that was asked for.
#[derive(Clone, Copy, Debug)]
struct PendingFlush {
    link: LinkId,
    /// In which of its lives the link was.
    life: u64,
    wr_id: u64,
    told: bool,
    at: RemoteLocation,
}

/// The endpoint that reads.
pub(crate) struct RailFlusher {
    // In the order in which they may go: who posts, what it reads into, and where it hears of it.
    endpoint: OfiEndpoint<PayloadTraffic>,
    landing: MrEnabled<PayloadTraffic>,
    queue: OfiQueue,
    /// The endpoint that memory is registered for.
    target: EndpointPeer<PayloadTraffic>,
    /// What the provider has, by slot.
    out: [Option<PendingFlush>; ROOM as usize],
    /// Slots that are free.
    free: Vec<u32>,
    waiting: VecDeque<PendingFlush>,
    /// What has ended, and how.
    ended: VecDeque<(PendingFlush, Option<OfiErrno>)>,
}

impl RailFlusher {
    /// One on a domain. `of`: the name of the endpoint that memory is registered for, where it is registered for one.
    ///
    /// # Errors
    /// The step that failed.
    fn new(
        domain: &Arc<OfiDomain>,
        info: &OfiInfo,
        options: &[EndpointOption],
        of: Option<&[u8]>,
    ) -> io::Result<Self> {
        let wants = QueueWants {
            entries: 2 * ROOM as usize,
            format: CompletionFormat::Data,
            sources: false,
            wait: false,
            slots: ROOM,
        };
        let queue = OfiQueue::open(domain, &wants).map_err(io::Error::other)?;
        let mut endpoint = OfiEndpoint::open(info, &queue, options).map_err(io::Error::other)?;
        let own = endpoint.local_name().map_err(io::Error::other)?;
        let target = endpoint.insert(of.unwrap_or(&own)).map_err(io::Error::other)?;
        // A byte for each, as answers may come at once.
        let memory = MemoryRange::try_heap(ROOM as usize).map_err(io::Error::other)?;
        let landing =
            register_memory(domain, &endpoint.mr_scope(), &MrRequest::for_host(&memory, MemoryDuty::Landing));
        Ok(Self {
            endpoint,
            landing: landing.map_err(io::Error::other)?,
            queue,
            target,
            out: [None; ROOM as usize],
            free: (0..ROOM).rev().collect(),
            waiting: VecDeque::new(),
            ended: VecDeque::new(),
        })
    }

    /// Whether something that was asked for has not been told.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_out() || !self.waiting.is_empty() || !self.ended.is_empty()
    }

    /// Whether the provider has something.
    pub(crate) fn is_out(&self) -> bool {
        self.free.len() < ROOM as usize
    }

    /// Gives the provider what waits, as far as it has room.
    fn submit_waiting(&mut self) {
        while let (Some(&flush), Some(&slot)) = (self.waiting.front(), self.free.last()) {
            let posted = match self.landing.local_slice(slot.into(), 1) {
                Ok(into) => {
                    let from = Place::new(RKey::new(flush.at.key.0), flush.at.addr);
                    self.endpoint.read(self.target, into, from, OpSlot(slot), PostOptions::TOLD)
                }
                Err(_) => SubmitOutcome::Refused(OfiErrno::INVALID),
            };
            match posted {
                SubmitOutcome::Again => return,
                SubmitOutcome::Taken => {
                    self.free.pop();
                    self.out[slot as usize] = Some(flush);
                }
                SubmitOutcome::Refused(errno) => {
                    self.ended.push_back((flush, Some(errno).filter(|errno| errno.number() != 0)));
                }
            }
            self.waiting.pop_front();
        }
    }

    /// Takes what has ended.
    fn drain_queue(&mut self) {
        for _ in 0..BATCHES {
            match self.queue.read_batch() {
                QueueRead::Entries(count) => {
                    for at in 0..count {
                        let slot = self.queue.batch_entry(at).and_then(|entry| entry.slot);
                        self.finish_flush(slot, None);
                    }
                }
                QueueRead::ErrorWaits => match self.queue.read_error() {
                    Some(failure) => self.finish_flush(failure.slot, Some(failure.errno)),
                    None => break,
                },
                QueueRead::Nothing => break,
                QueueRead::Broken(errno) => {
                    for slot in 0..ROOM {
                        self.finish_flush(Some(OpSlot(slot)), Some(errno));
                    }
                    break;
                }
            }
        }
        self.submit_waiting();
    }

    fn finish_flush(&mut self, slot: Option<OpSlot>, errno: Option<OfiErrno>) {
        let Some(OpSlot(slot)) = slot else { return };
        let Some(flush) = self.out.get_mut(slot as usize).and_then(Option::take) else { return };
        self.free.push(slot);
        self.ended.push_back((flush, errno));
    }
}

impl OfiRail {
    /// Has a byte of a device's memory read.
    pub(crate) fn post_flush(
        &mut self,
        id: LinkId,
        wr_id: u64,
        at: RemoteLocation,
        told: bool,
    ) -> Result<(), PostError> {
        let Some(link) = self.find_link(id) else { return Err(PostError::Refused(OpStatus::Flushed)) };
        let life = link.cookie;
        if link.ops.free_credits() <= link.flushes {
            return Err(PostError::Busy);
        }
        if self.flusher.is_none() {
            // Only if somebody flushes.
            let made = self.make_flusher().map_err(|error| {
                PostError::Refused(OpStatus::Unflushed(
                    error.raw_os_error().unwrap_or(libc::EIO).unsigned_abs(),
                ))
            });
            self.flusher = Some(Box::new(made?));
        }
        let (Some(flusher), Some(Some(link))) = (&mut self.flusher, self.links.get_mut(id.0 as usize)) else {
            return Err(PostError::Refused(OpStatus::Flushed));
        };
        link.flushes += 1;
        flusher.waiting.push_back(PendingFlush { link: id, life, wr_id, told, at });
        flusher.submit_waiting();
        Ok(())
    }

    /// Waits, a bounded time, until no read uses memory that goes now.
    pub(crate) fn end_flushes(&mut self) {
        for _ in 0..LAST_READS {
            if !self.flusher.as_ref().is_some_and(|flusher| flusher.is_out()) {
                return;
            }
            // The endpoint that is read from may make progress with the rail's own queue.
            self.take_all();
            if let Some(flusher) = &mut self.flusher {
                flusher.waiting.clear();
                flusher.drain_queue();
            }
            std::thread::yield_now();
        }
    }

    fn make_flusher(&self) -> io::Result<RailFlusher> {
        // Where registrations are the domain's, any endpoint reaches them.
        let shared = self.shared.as_ref().filter(|_| self.nic.domain.provider_grant().endpoint_scoped);
        let of = shared.map(|pair| pair.data.local_name()).transpose().map_err(io::Error::other)?;
        RailFlusher::new(&self.nic.domain, &self.info, &self.nic.devices.options, of.as_deref())
    }

    /// Keeps for the next poll which flushes have ended. One that failed ends its link: nobody knows what its GPU sees.
    #[cold]
    pub(crate) fn take_flushes(&mut self) {
        let Some(flusher) = &mut self.flusher else { return };
        flusher.drain_queue();
        while let Some((flush, errno)) = self.flusher.as_mut().and_then(|flusher| flusher.ended.pop_front()) {
            let at = flush.link.0 as usize;
            let Some(Some(link)) = self.links.get_mut(at).filter(|link| is_life(link.as_deref(), flush.life))
            else {
                continue;
            };
            link.flushes = link.flushes.saturating_sub(1);
            match errno {
                None if flush.told => {
                    self.stash_completion(flush.link, flush.wr_id, CompletionKind::Posted, OpStatus::Ok)
                }
                None => {}
                Some(errno) => {
                    let status = OpStatus::Unflushed(errno.number().unsigned_abs());
                    self.stash_completion(flush.link, flush.wr_id, CompletionKind::Posted, status);
                    self.break_link(at, None);
                }
            }
        }
    }
}

fn is_life(link: Option<&crate::link::OfiLink>, life: u64) -> bool {
    link.is_some_and(|link| link.cookie == life)
}
