//! Flushes of memory of devices: the NIC reads a byte of it, which pushes its earlier writes ahead of the read (PCIe ordering). Reads are
//! posted on a dedicated endpoint with its own queue, so that they need no peer, work while a link is in error, and are independent of a link's
//! operations. Created with a rail's first flush.

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

/// The maximum number of flushes in flight; later ones wait in this module.
const ROOM: u32 = 64;
/// The maximum number of batches per poll.
const BATCHES: u32 = 4;

/// A requested flush.
#[derive(Clone, Copy, Debug)]
struct PendingFlush {
    link: LinkId,
    /// The link's cookie, by which a flush of an earlier link in the same place is recognised.
    life: u64,
    wr_id: u64,
    told: bool,
    at: RemoteLocation,
}

/// The endpoint that reads.
pub(crate) struct RailFlusher {
    // In the order of closing: the endpoint, the memory that it reads into, and its queue.
    endpoint: OfiEndpoint<PayloadTraffic>,
    landing: MrEnabled<PayloadTraffic>,
    queue: OfiQueue,
    /// The peer entry of the endpoint for which memory is registered.
    target: EndpointPeer<PayloadTraffic>,
    /// Flushes in flight, by slot.
    out: [Option<PendingFlush>; ROOM as usize],
    /// Free slots.
    free: Vec<u32>,
    waiting: VecDeque<PendingFlush>,
    /// Completed flushes, with their errors.
    ended: VecDeque<(PendingFlush, Option<OfiErrno>)>,
}

impl RailFlusher {
    /// Opens a flusher on a domain. `of` is the name of the endpoint for which memory is registered, where it is registered for an endpoint.
    ///
    /// # Errors
    /// The error of the failed step.
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
        // A queue of its own, so that completions of flushes are never mistaken for those of links.
        let queue = OfiQueue::open(domain, &wants).map_err(io::Error::other)?;
        let mut endpoint = OfiEndpoint::open(info, &queue, options).map_err(io::Error::other)?;
        let own = endpoint.local_name().map_err(io::Error::other)?;
        // Memory bound to an endpoint is only accessible through that endpoint, so reads address it (FI_MR_ENDPOINT).
        let target = endpoint.insert(of.unwrap_or(&own)).map_err(io::Error::other)?;
        // One byte per slot, because reads may complete concurrently.
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

    /// Returns whether a flush has not been reported yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_out() || !self.waiting.is_empty() || !self.ended.is_empty()
    }

    /// Returns whether a flush is in flight.
    pub(crate) fn is_out(&self) -> bool {
        self.free.len() < ROOM as usize
    }

    /// Submits waiting flushes, as far as the provider has room.
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

    /// Takes completions.
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
                    // No further completion will be reported, so every flush in flight fails.
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
    /// Posts a read of a byte of a device's memory.
    pub(crate) fn post_flush(
        &mut self,
        id: LinkId,
        wr_id: u64,
        at: RemoteLocation,
        told: bool,
    ) -> Result<(), PostError> {
        let Some(link) = self.find_link(id) else { return Err(PostError::Refused(OpStatus::Flushed)) };
        let life = link.cookie;
        // Flushes count against the depth of the link, so that the waiting queue stays bounded.
        if link.ops.free_credits() <= link.flushes {
            return Err(PostError::Busy);
        }
        if self.flusher.is_none() {
            // Created on first use, because most rails never flush.
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

    /// Waits, a bounded time, until no read in flight uses memory that is about to be freed.
    pub(crate) fn end_flushes(&mut self) {
        for _ in 0..LAST_READS {
            if !self.flusher.as_ref().is_some_and(|flusher| flusher.is_out()) {
                return;
            }
            // The rail's own queue is polled too, because the endpoint that is read from may make progress only with it (`FI_PROGRESS_MANUAL`).
            self.take_all();
            if let Some(flusher) = &mut self.flusher {
                // Not submitted any more, because the rail is being dropped.
                flusher.waiting.clear();
                flusher.drain_queue();
            }
            std::thread::yield_now();
        }
    }

    fn make_flusher(&self) -> io::Result<RailFlusher> {
        // Without `FI_MR_ENDPOINT`, registrations belong to the domain and any endpoint can access them.
        let shared = self.shared.as_ref().filter(|_| self.nic.domain.provider_grant().endpoint_scoped);
        let of = shared.map(|pair| pair.data.local_name()).transpose().map_err(io::Error::other)?;
        RailFlusher::new(&self.nic.domain, &self.info, &self.nic.devices.options, of.as_deref())
    }

    /// Stashes completed flushes for the next poll. A failed flush breaks its link, because the GPU may not see the data.
    #[cold]
    pub(crate) fn take_flushes(&mut self) {
        let Some(flusher) = &mut self.flusher else { return };
        flusher.drain_queue();
        while let Some((flush, errno)) = self.flusher.as_mut().and_then(|flusher| flusher.ended.pop_front()) {
            let at = flush.link.0 as usize;
            // Dropped if another link has the place by now, because the link of the flush was destroyed.
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
