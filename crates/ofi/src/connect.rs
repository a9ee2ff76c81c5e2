//! Creates, connects and ends links, and exchanges their addresses. Not on a message's path.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::rand::{GetRandomFlags, getrandom};
use trunkline_fabric::{
    AccessRights, Caps, LinkAddress, LinkControl, LinkError, LinkId, RailConfig, RailOpenError,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::{try_deque, try_grow};

use crate::address::{OfiLinkAddress, ProofTarget};
use crate::domain::OfiDomain;
use crate::heads::HeadBuffers;
use crate::lingering_ops::{self, LingeringOps};
use crate::link::{EndpointPair, HelloProgress, OfiLink, OfiLinkStage};
use crate::nic::FoundNic;
use crate::ops::{LinkOpKind, LinkOps};
use crate::poll::{LIVES, PLACE_BITS};
use crate::queue::{CompletionFormat, OfiQueue, QueueWants};
use crate::rail::{self, OfiRail};
use crate::region::{MrEnabled, MrRequest, MrScope, OfiRegisterError, register_memory};
use crate::register::OfiRegistrar;
use crate::rights::MemoryDuty;
use crate::role::{ControlTraffic, EndpointRole, PayloadTraffic};

/// The maximum number of links of a rail.
pub(crate) const LINKS_MAX: u32 = 1 << PLACE_BITS;
/// Polls of the queue of a rail that is dropped, until canceled operations have completed.
pub(crate) const LAST_READS: u32 = 10_000;
/// Polls of the queue when a link ends that shares its endpoints.
const END_READS: u32 = 64;
/// Length of a proof target, in bytes.
const LANDING: usize = 8;

/// The memory to which peers write to prove that their earlier operations have arrived.
pub(crate) struct ProofBuffers {
    data: MrEnabled<PayloadTraffic>,
    records: MrEnabled<ControlTraffic>,
}

impl ProofBuffers {
    fn new(
        domain: &Arc<OfiDomain>,
        data: &MrScope<PayloadTraffic>,
        records: &MrScope<ControlTraffic>,
    ) -> Result<Self, OfiRegisterError> {
        let memory = || MemoryRange::try_heap(LANDING);
        let data = register_memory(
            domain,
            data,
            &MrRequest::for_host(&memory()?, MemoryDuty::User(AccessRights::WRITE)),
        )?;
        let records =
            register_memory(domain, records, &MrRequest::for_host(&memory()?, MemoryDuty::Mailbox))?;
        Ok(Self { data, records })
    }
}

fn system_error(what: &'static str) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> LinkError {
    move |error| LinkError::System { what, source: io::Error::other(error) }
}

fn open_failed(what: &'static str) -> impl Fn(crate::endpoint::OfiOpenError) -> RailOpenError {
    move |error| RailOpenError::System { what, source: io::Error::other(error) }
}

/// Returns an unpredictable random number.
fn random_cookie() -> Result<u64, LinkError> {
    let mut bytes = [0; 8];
    let mut have = 0;
    // getrandom(2) may return fewer bytes if a signal interrupts it.
    while have < bytes.len() {
        let more = getrandom(&mut bytes[have..], GetRandomFlags::empty());
        have += more.map_err(|errno| LinkError::System { what: "getrandom", source: errno.into() })?;
    }
    Ok(u64::from_ne_bytes(bytes))
}

fn proof_target<R: EndpointRole>(mr: &MrEnabled<R>) -> ProofTarget {
    ProofTarget { key: mr.key().map_or(0, |key| key.number()), addr: mr.remote_base() }
}

/// Adapts the configuration and the capabilities of a rail to each other. If CQ data has no room to name the link, the rail either has one
/// link, or writes carry no data.
fn negotiate_config(marks: bool, config: &RailConfig, caps: Caps) -> (RailConfig, Caps) {
    let depth = config.depth.clamp(1, caps.depth_max);
    let links = config.links.clamp(1, if marks || config.many { LINKS_MAX } else { 1 });
    let names = marks || !config.many;
    (RailConfig { depth, links, ..*config }, Caps { write_data: caps.write_data && names, ..caps })
}

impl OfiRail {
    /// Opens a NIC.
    pub(crate) fn new(port: &FoundNic, config: &RailConfig, caps: Caps) -> Result<Self, RailOpenError> {
        let nic = port.open().map_err(open_failed("opening a NIC of libfabric"))?;
        let profile = port.profile.with_grant(nic.domain.provider_grant());
        let (config, caps) = negotiate_config(profile.marks, config, caps);
        let span = LinkOps::slot_span(config.depth, config.recv_depth);
        let wants = QueueWants {
            // Twice the operations of all links, because remote writes with data also produce entries.
            entries: (4 * span * config.links) as usize,
            format: CompletionFormat::Data,
            sources: false,
            wait: false,
            // Slots of ended links are reused only after `LIVES` successors, so that a late completion is not mistaken for one of a newer link.
            slots: LIVES * span * config.links,
        };
        let queue =
            OfiQueue::open(&nic.domain, &wants).map_err(open_failed("creating a completion queue"))?;
        let open = || EndpointPair::open(&port.info, &queue, profile.one_stream, &nic.devices.options);
        // Opened with the rail where links share it, because registrations may be bound to it before the first link
        // exists.
        let pair = (!profile.endpoint_each).then(open);
        let shared = pair.transpose().map_err(open_failed("opening an endpoint"))?.map(Box::new);
        // Memory must be registered for the endpoint that uses it where the provider demands `FI_MR_ENDPOINT` (fi_mr(3)).
        let (data, records) = shared.as_ref().map_or((MrScope::Domain, MrScope::Domain), |pair| {
            (pair.data.mr_scope(), pair.records.mr_scope())
        });
        // Providers whose completions already prove arrival need no proof targets.
        let landing = (!profile.arrives).then(|| ProofBuffers::new(&nic.domain, &data, &records));
        let unregistered = |error| RailOpenError::System {
            what: "registering memory with libfabric",
            source: io::Error::other(error),
        };
        let landing = landing.transpose().map_err(unregistered)?;
        let heads = HeadBuffers::new(&nic.domain, &data, &records, wants.slots).map_err(unregistered)?;
        let registrar = Arc::new(OfiRegistrar::new(&nic, data, records, profile.closes_early));
        nic.endpoints.fetch_add(shared.as_ref().map_or(0, |pair| pair.endpoint_count()), Ordering::Relaxed);
        nic.queues.fetch_add(1, Ordering::Relaxed);
        let tag_bits = nic.domain.provider_grant().tag_bits;
        Ok(Self {
            links: Vec::new(),
            gone: Vec::new(),
            has_gone: false,
            shared,
            half_made: Vec::new(),
            flusher: None,
            landing: landing.map(Box::new),
            heads,
            dying: LingeringOps::default(),
            inject: nic.domain.provider_grant().sizes.inject,
            registrar,
            queue,
            stash: try_deque(wants.entries)?,
            waits: 0,
            strays: 0,
            nic,
            info: port.info.duplicate_info().map_err(|errno| RailOpenError::System {
                what: "copying an fi_info",
                source: io::Error::other(errno),
            })?,
            profile,
            config,
            caps,
            span,
            lives: 0,
            tag_bits,
        })
    }

    /// Returns a place for a link from which no completions are outstanding.
    fn reserve_place(&mut self) -> Result<usize, LinkError> {
        // Unread completions may free the place of a destroyed link.
        if self.has_gone {
            self.take_all();
        }
        // Half-connected links leave endpoints that only the end of the rail closes, so their number is bounded here.
        if self.half_made.len() >= LINKS_MAX as usize {
            return Err(LinkError::Exhausted(LINKS_MAX));
        }
        // A place is free only after the last completion of its former link, because its slots are reused.
        let free = (0..self.links.len()).find(|&at| self.links[at].is_none() && self.gone[at].is_none());
        match free {
            Some(at) => Ok(at),
            None if self.links.len() < self.config.links as usize => {
                try_grow(&mut self.links, 1)?;
                try_grow(&mut self.gone, 1)?;
                self.links.push(None);
                self.gone.push(None);
                Ok(self.links.len() - 1)
            }
            None => Err(LinkError::Exhausted(self.config.links)),
        }
    }

    fn make_link(&mut self, at: usize) -> Result<OfiLink, LinkError> {
        let own = self.profile.endpoint_each.then(|| self.open_pair()).transpose()?;
        // The shared endpoints were closed when the rail became idle.
        if own.is_none() && self.shared.is_none() {
            let pair = self.open_pair()?;
            self.nic.endpoints.fetch_add(pair.endpoint_count(), Ordering::Relaxed);
            self.shared = Some(pair);
        }
        // Each link of a place uses other slots than its predecessors.
        self.lives = self.lives.wrapping_add(1);
        let life = self.lives % LIVES;
        let mark = random_cookie()?;
        // Random, so that a peer cannot address another link by guessing its tag or mark.
        let cookie = random_cookie()?;
        // Without room for a mark in CQ data the rail has one link, so its writes need none.
        let mark = if self.profile.marks { (mark as u32) << PLACE_BITS | at as u32 } else { 0 };
        // The highest usable bit distinguishes matched messages from others.
        let cookie = cookie & ((1 << (self.tag_bits - rail::PAIRED)) - 1);
        Ok(OfiLink {
            id: LinkId(at as u32),
            state: OfiLinkStage::New,
            hello: if self.profile.arrives { HelloProgress::Heard } else { HelloProgress::Unsaid },
            pair: own,
            peers: None,
            theirs: None,
            out: 0,
            flushes: 0,
            mark,
            cookie,
            ops: LinkOps::new(self.config.depth, self.config.recv_depth)?,
            base: (at as u32 * LIVES + life) * self.span,
            waiting: try_deque(self.span as usize)?,
            nops: try_deque(self.config.depth as usize)?,
        })
    }

    fn open_pair(&self) -> Result<Box<EndpointPair>, LinkError> {
        let open = |error| system_error("opening an endpoint")(Box::new(error));
        let options = &self.nic.devices.options;
        EndpointPair::open(&self.info, &self.queue, self.profile.one_stream, options)
            .map(Box::new)
            .map_err(open)
    }

    /// Closes the shared endpoints once no link uses them, unless registrations are bound to them. Afterwards no peer can write to this rail by
    /// them, whichever keys it has. The next link opens new endpoints.
    pub(crate) fn close_if_idle(&mut self) {
        if !self.registrar.sharing.is_idle() {
            return;
        }
        let Some(pair) = self.shared.take() else { return };
        self.nic.closed_endpoints(pair.endpoint_count());
        drop(pair);
        // The endpoints' operations ended with them, so no operation uses these slots any more.
        (0..LIVES * self.span * self.config.links).for_each(|slot| self.heads.release_slot(slot));
        self.dying.end_all(&self.nic);
        for at in 0..self.links.len() {
            if self.links[at].as_ref().is_some_and(|link| link.out > 0) {
                self.end_rest(at);
            }
        }
        self.gone.iter_mut().flatten().for_each(|left| left.out = 0);
    }

    /// Polls a bounded number of times until canceled operations have completed.
    fn await_end(&mut self, at: usize) {
        for _ in 0..END_READS {
            if self.links[at].as_ref().is_none_or(|link| link.out == 0) {
                return;
            }
            self.take_all();
        }
    }

    fn require_link(&mut self, id: LinkId) -> Result<&mut OfiLink, LinkError> {
        self.links.get_mut(id.0 as usize).and_then(Option::as_deref_mut).ok_or(LinkError::State)
    }
}

impl LinkControl for OfiRail {
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        // libfabric exposes no pipelines of a NIC, so only number 0 is valid.
        if let Some(asked) = pipeline.filter(|&asked| asked > 0) {
            return Err(LinkError::NoSuchPipeline { asked, pipelines: 1 });
        }
        let at = self.reserve_place()?;
        let link = self.make_link(at)?;
        let endpoints = link.pair.as_ref().map_or(0, |pair| pair.endpoint_count());
        self.nic.endpoints.fetch_add(endpoints, Ordering::Relaxed);
        let id = link.id;
        self.registrar.sharing.link_begins();
        self.links[at] = Some(Box::new(link));
        Ok(id)
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        self.find_link(link).map(|_| 0)
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        let link = self.find_link(link).ok_or(LinkError::State)?;
        let pair = link.pair.as_ref().or(self.shared.as_ref()).ok_or(LinkError::State)?;
        let failed = |errno| system_error("querying the name of an endpoint")(Box::new(errno));
        let names = [pair.data.local_name().map_err(failed)?, pair.records.local_name().map_err(failed)?];
        let landings = self.landing.as_ref();
        let landings =
            landings.map(|at| [proof_target(&at.data), proof_target(&at.records)]).unwrap_or_default();
        let address = OfiLinkAddress { mark: link.mark, cookie: link.cookie, landings, names };
        Ok(LinkAddress { bytes: address.to_bytes(), fd: None })
    }

    fn connect(&mut self, id: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        let theirs = OfiLinkAddress::parse(&peer.bytes).map_err(LinkError::Address)?;
        let arrives = self.profile.arrives;
        let at = id.0 as usize;
        let Some(Some(link)) = self.links.get_mut(at) else { return Err(LinkError::State) };
        // A second call would leave the first peer in the address vector.
        if link.state != OfiLinkStage::New {
            return Err(LinkError::State);
        }
        let pair = link.pair.as_mut().or(self.shared.as_mut()).ok_or(LinkError::State)?;
        let failed = |_| LinkError::Unreachable("the provider rejects the address");
        let data = pair.data.insert(&theirs.names[0]).map_err(failed)?;
        let records = pair.records.insert(&theirs.names[1]).map_err(failed)?;
        (link.peers, link.theirs, link.state) = (Some((data, records)), Some(theirs), OfiLinkStage::Up);
        // Connectionless endpoints report an unreachable peer only by a failed operation, so the link is up once a first proof has completed.
        if !arrives {
            link.hello = HelloProgress::Said;
            self.begin_own(at, LinkOpKind::Hello, false).map_err(|_| LinkError::State)?;
        }
        Ok(())
    }

    fn poll_link_up(&mut self, id: LinkId) -> Result<bool, LinkError> {
        self.take_all();
        // With manual progress the hello completes only inside such calls (fi_domain(3), FI_PROGRESS_MANUAL).
        self.give_waiting();
        let link = self.require_link(id)?;
        match (link.state, link.hello) {
            (OfiLinkStage::Error, _) => Err(LinkError::Unreachable("the provider cannot reach the peer")),
            (OfiLinkStage::New, _) => Ok(false),
            (OfiLinkStage::Up, hello) => Ok(hello == HelloProgress::Heard),
        }
    }

    fn poll_is_call(&self, _: LinkId) -> bool {
        !self.profile.arrives
    }

    fn fail_link(&mut self, id: LinkId) {
        // Stashes the completions that arrived before the failure, because they must still be reported as successes.
        self.take_all();
        self.break_link(id.0 as usize, None);
    }

    fn poll_link_quiet(&mut self, id: LinkId) -> bool {
        self.take_all();
        let fails = self.find_link(id).is_none_or(|link| link.state == OfiLinkStage::Error && link.out == 0);
        fails && self.stash.iter().all(|one| one.link != id)
    }

    fn destroy_link(&mut self, id: LinkId) {
        let at = id.0 as usize;
        self.take_all();
        self.break_link(at, None);
        if at < self.links.len() {
            self.await_end(at);
        }
        if let Some(link) = self.links.get_mut(at).and_then(Option::take) {
            (self.gone[at], self.has_gone) = (Some(rail::LingeringLink { out: link.out }), true);
        }
        // The id is reused, so no completion may name the link after this.
        self.stash.retain(|one| one.link != id);
    }
}

impl Drop for OfiRail {
    fn drop(&mut self) {
        for at in 0..self.links.len() {
            self.break_link(at, None);
        }
        // Reads of the flusher write to memory that is freed with the rail.
        self.end_flushes();
        // Operations of the shared endpoints still use memory that is about to be freed.
        for _ in 0..LAST_READS {
            if self.dying.is_empty() {
                break;
            }
            self.take_all();
            std::thread::yield_now();
        }
        self.registrar.sharing.end_scope();
        // If operations remain, closing the endpoints would free memory in use; they are kept until their completions arrive.
        if let (false, Some(pair)) = (self.dying.is_empty(), self.shared.take()) {
            let _heads = self.heads.clone_registrations();
            let queue = self.queue.handed_on();
            let dying = std::mem::take(&mut self.dying);
            self.nic.keep_rail(lingering_ops::LingeringRail { _heads, pair, queue, dying });
        }
        let pairs = self.half_made.iter().chain(&self.shared);
        self.nic.closed_endpoints(pairs.map(|pair| pair.endpoint_count()).sum());
        self.nic.queues.fetch_sub(1, Ordering::Relaxed);
    }
}
