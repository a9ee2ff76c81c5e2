//! Creates, connects and ends links, and encodes the address by which two ends find each other. A slow path; all bytes from a
//! peer are parsed into types that admit only valid values.

use std::io;
use std::sync::Arc;

use trunkline_fabric::{
    AccessRights, LinkAddress, LinkControl, LinkError, LinkId, Rail, RailConfig, RailOpenError,
    RegisteredRegion,
};
use trunkline_mem::MemoryRange;
use trunkline_proto::reserve::{try_grow, try_vec};
use trunkline_sys::verbs::{Ece, LINK_LAYER_ETHERNET, LINK_LAYER_INFINIBAND};

use crate::cq::CompletionQueue;
use crate::device::{PortAddress, VerbsPort};
use crate::grant;
use crate::link::{InlineStaging, LINKS_MAX, VerbsLink, VerbsLinkStage};
use crate::qp::VerbsQp;
use crate::qp_state::{self, LocalQpAttrs, PeerQpAttrs, QpAttrLimits, QpTransition};
use crate::queue::WorkQueue;
use crate::receives::PostedReceives;
use crate::register::VerbsRegistrar;
use crate::stage::{ROOM, RequestChain, RequestStage};
use crate::{VerbsConfig, VerbsRail};

const NO_ECE: Ece = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
const MAGIC: [u8; 8] = *b"TLVERBSQ";
const VERSION: u16 = 3;
/// Bytes of an address.
const BYTES: usize = 56;
/// Most reads and atomics of one queue pair at once, in each direction.
const READS_MAX: u8 = 16;

/// The description of a link for its peer; the layout is in docs/wire.md.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct VerbsLinkAddress {
    /// Whether the port is on InfiniBand; else it is on Ethernet.
    pub(crate) infiniband: bool,
    /// Largest packet, 1 for 256 bytes to 5 for 4096.
    pub(crate) mtu: u8,
    /// Number of the queue pair.
    pub(crate) number: u32,
    /// Number of the first packet it sends.
    pub(crate) psn: u32,
    /// Local address (LID) on InfiniBand.
    pub(crate) lid: u16,
    /// Reads and atomics it executes at once.
    pub(crate) serves: u8,
    /// Global address (GID).
    pub(crate) gid: [u8; 16],
    /// Traffic class and service level of its packets.
    pub(crate) class: (u8, u8),
    /// The extensions (ECE) that its device offers, or has agreed to.
    pub(crate) ece: Option<Ece>,
}

impl VerbsLinkAddress {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[if self.infiniband { 1 } else { 2 }, self.mtu]);
        for word in [self.number, self.psn] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.lid.to_le_bytes());
        out.extend_from_slice(&[self.serves, 0]);
        out.extend_from_slice(&self.gid);
        out.extend_from_slice(&[self.class.0, self.class.1, u8::from(self.ece.is_some()), 0]);
        let Ece { vendor_id, options, comp_mask } = self.ece.unwrap_or(NO_ECE);
        for word in [vendor_id, options, comp_mask] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Parses the bytes that a peer sent.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: [u8; BYTES] = bytes.try_into().map_err(|_| "the address has the wrong length")?;
        if bytes[..8] != MAGIC {
            return Err("the address is not of an RDMA device");
        }
        if bytes[8..10] != VERSION.to_le_bytes() {
            return Err("the address has another version");
        }
        let infiniband = match bytes[10] {
            1 => true,
            2 => false,
            _ => return Err("the link layer is of no known kind"),
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let number = word(12);
        let psn = word(16);
        // Queue pair and packet numbers have 24 bits (base transport header; InfiniBand Architecture Specification, volume 1, section 9.2).
        if !(1..1 << 24).contains(&number) {
            return Err("the number of the queue pair is out of range");
        }
        if psn >= 1 << 24 {
            return Err("the packet number is out of range");
        }
        let mtu = bytes[11];
        let serves = bytes[22];
        if !(1..=5).contains(&mtu) || bytes[23] != 0 {
            return Err("the packet size is out of range, or a reserved byte is not 0");
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[24..40]);
        let lid = u16::from_le_bytes([bytes[20], bytes[21]]);
        // On Ethernet a port is addressed by its GID alone; on InfiniBand the LID suffices within a subnet.
        if gid == [0; 16] && (!infiniband || lid == 0) {
            return Err("the address names no port");
        }
        let class = (bytes[40], bytes[41]);
        // A service level has 4 bits.
        if class.1 > 15 {
            return Err("the service level is out of range (0 to 15)");
        }
        let ece = Ece { vendor_id: word(44), options: word(48), comp_mask: word(52) };
        // The absent value is all zeros, so that each address has exactly one encoding.
        let ece = match (bytes[42], bytes[43], ece) {
            (0, 0, NO_ECE) => None,
            (1, 0, ece) => Some(ece),
            _ => return Err("the extensions (ECE) of the device are malformed"),
        };
        Ok(Self { infiniband, mtu, number, psn, lid, serves, gid, class, ece })
    }
}

fn system_error(what: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |source| LinkError::System { what, source }
}

/// Returns an unpredictable packet number of 24 bits, so that late packets of an earlier queue pair with the same number are rejected.
fn packet_number() -> io::Result<u32> {
    let mut bytes = [0; 4];
    let mut have = 0;
    while have < bytes.len() {
        have += rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty())?;
    }
    // Packet numbers have 24 bits.
    bytes[3] = 0;
    Ok(u32::from_le_bytes(bytes))
}

/// Returns the most completions of a link that can be waiting, including that of the request that ends it.
fn completions_per_link(config: &RailConfig, places: u32) -> u32 {
    config.depth.saturating_mul(places).saturating_add(config.recv_depth).saturating_add(1)
}

impl VerbsRail {
    /// Opens a port.
    pub(crate) fn new(
        port: &Arc<VerbsPort>,
        verbs: &Arc<VerbsConfig>,
        config: &RailConfig,
        caps: trunkline_fabric::Caps,
    ) -> Result<Self, RailOpenError> {
        // With adaptive routing a write with immediate may take two requests, and each may have a completion.
        let places = if port.adaptive { 2 } else { 1 };
        let each = completions_per_link(config, places);
        let links = config.links.clamp(1, caps.links_max.clamp(1, LINKS_MAX));
        // A completion queue that overflows is lost (IBV_EVENT_CQ_ERR), so the number of links is limited to those whose
        // completions fit.
        let fits = caps.completions_max / each.max(1);
        if fits == 0 {
            let limit = caps.completions_max.into();
            return Err(RailOpenError::Exhausted { what: "the completion queue", limit });
        }
        let links = links.min(fits);
        let stage = RequestStage::new()?;
        let dirty = try_vec(2 * ROOM)?;
        let cq = CompletionQueue::new(&port.device, links * each)
            .map_err(|source| RailOpenError::System { what: "creating a completion queue", source })?;
        Ok(Self {
            links: Vec::new(),
            flusher: None,
            flushes: 0,
            cq,
            leftovers: false,
            stage,
            dirty,
            refused: Vec::new(),
            live: 0,
            lives: 0,
            registrar: Arc::new(VerbsRegistrar::new(&port.device, verbs.ordering)),
            port: Arc::clone(port),
            verbs: Arc::clone(verbs),
            config: RailConfig { links, ..*config },
            caps,
            adaptive_above: if port.adaptive { verbs.adaptive_above } else { u64::MAX },
        })
    }

    fn require_link(&self, link: LinkId) -> Result<&VerbsLink, LinkError> {
        self.find_link(link).ok_or(LinkError::State)
    }

    /// Returns how many requests an operation of a link may need.
    fn places_per_op(&self) -> u32 {
        if self.port.adaptive { 2 } else { 1 }
    }

    fn is_infiniband(&self) -> bool {
        self.port.first.attr.link_layer != LINK_LAYER_ETHERNET
    }

    /// Returns this side's attributes for the transitions of a queue pair, for a port with this address.
    pub(crate) fn local_attrs(&self, psn: u32, at: &PortAddress) -> LocalQpAttrs {
        let device = &self.port.device.attr;
        let most = |limit: i32| u8::try_from(limit).unwrap_or(READS_MAX).min(READS_MAX);
        let verbs = &self.verbs;
        LocalQpAttrs {
            port: self.port.number,
            pkey_index: verbs.pkey_index,
            gid_index: at.gid.index as u8,
            service_level: verbs.service_level.unwrap_or(0),
            traffic_class: verbs.traffic_class.or(self.config.traffic_class).unwrap_or(0),
            timeout: verbs
                .timeout
                .unwrap_or_else(|| qp_state::ack_timeout(self.config.rail_time.0, verbs.retries)),
            retries: verbs.retries,
            psn,
            reads: most(device.max_qp_init_rd_atom),
            serves: most(device.max_qp_rd_atom),
            global: !self.is_infiniband(),
        }
    }

    /// Returns the limits of device and port for those attributes.
    pub(crate) fn attr_limits(&self) -> QpAttrLimits {
        let device = &self.port.device.attr;
        let byte = |limit: i32| u8::try_from(limit).unwrap_or(u8::MAX);
        let reads = byte(device.max_qp_init_rd_atom);
        let serves = byte(device.max_qp_rd_atom);
        QpAttrLimits::from_port(
            device.phys_port_cnt,
            reads,
            serves,
            &self.port.first.attr,
            self.is_infiniband(),
        )
    }

    /// Creates a queue pair in INIT, which accepts receives.
    fn create_qp(&self, psn: u32, pipeline: Option<u32>, at: &PortAddress) -> Result<VerbsQp, LinkError> {
        let RailConfig { depth, recv_depth, .. } = self.config;
        let cap = grant::qp_sizes(depth, recv_depth, self.places_per_op(), self.port.grant.inline);
        let device = &self.port.device;
        let qp = device.pipelines.create_on(device.protection_domain(), pipeline, || {
            VerbsQp::new(device, &self.cq, cap, self.port.grant.extended)
        });
        let qp = qp.map_err(|error| match (error.raw_os_error(), pipeline) {
            (Some(libc::ENOMEM), Some(pipeline)) if self.caps.pipelines > 1 => {
                LinkError::PipelineExhausted { pipeline, limit: self.caps.links_max / self.caps.pipelines }
            }
            (Some(libc::ENOMEM), _) => LinkError::System {
                what: "creating a queue pair",
                source: io::Error::other("no more queue pairs, or no more lockable memory (raise ulimit -l)"),
            },
            _ => LinkError::System { what: "creating a queue pair", source: error },
        })?;
        let (attr, mask) = qp_state::init_attrs(&self.local_attrs(psn, at));
        qp.modify(&attr, mask).map_err(|error| {
            system_error("preparing a queue pair")(qp_state::explain_refusal(
                QpTransition::Init,
                &attr,
                &self.attr_limits(),
                &error,
            ))
        })?;
        Ok(qp)
    }

    /// Allocates memory for payload that a device with `inline` bytes of inline room does not copy itself.
    fn stage_inline(&self, inline: usize) -> Result<InlineStaging, LinkError> {
        let places = self.places_per_op() * self.config.depth.max(1);
        let most = u64::from(self.caps.inline_max);
        // A head and a body may both need copying. If the device copies both, only a head before registered bytes needs a place.
        let stride = if inline as u64 >= 2 * most { most } else { 2 * most };
        let len = u64::from(places) * stride;
        let memory = MemoryRange::try_heap(usize::try_from(len).unwrap_or(usize::MAX))?;
        let region = RegisteredRegion::register(&self.registrar(), memory, AccessRights::LOCAL)
            .map_err(|error| system_error("registering memory for a link")(io::Error::other(error)))?;
        let base =
            self.port.device.regions.resolve_extent(region.extent_at(0, len)).ok_or(LinkError::State)?;
        Ok(InlineStaging { region, base, stride })
    }

    fn make_link(&mut self, id: LinkId, pipeline: Option<u32>) -> Result<VerbsLink, LinkError> {
        let RailConfig { depth, recv_depth, .. } = self.config;
        // Allocated before the queue pair, which would have to be destroyed if memory were short.
        let queue = WorkQueue::new(depth * self.places_per_op())?;
        let receives = PostedReceives::new(recv_depth)?;
        let psn = packet_number().map_err(system_error("getrandom"))?;
        let at = self.port.read_address()?;
        let qp = self.create_qp(psn, pipeline, &at)?;
        let ece = if self.verbs.ece { qp.query_ece() } else { None };
        let inline = self.port.grant.inline as usize;
        let staging = self.stage_inline(inline)?;
        self.lives += 1;
        Ok(VerbsLink {
            id,
            pipeline: qp.pipeline(),
            qp,
            queue,
            half: None,
            chain: RequestChain::EMPTY,
            psn,
            ece,
            state: VerbsLinkStage::New,
            depth,
            flushes: 0,
            receives,
            receive_chain: RequestChain::EMPTY,
            broken: None,
            life: self.lives,
            refusal: None,
            at,
            inline,
            staging,
        })
    }

    /// Moves the queue pair of a link to RTS; returns the extensions that its device then uses.
    fn connect_qp(&self, link: &VerbsLink, peer: &VerbsLinkAddress) -> Result<Option<Ece>, LinkError> {
        let mut ours = self.local_attrs(link.psn, &link.at);
        if self.config.receives {
            // The sender of the messages chooses class and level for both ends.
            (ours.traffic_class, ours.service_level) = peer.class;
            ours.traffic_class = self.verbs.record_class.unwrap_or(ours.traffic_class);
        }
        // On InfiniBand, packets to another subnet pass a router and need a global route header.
        ours.global |= peer.gid[..8] != link.at.gid.raw[..8] && peer.gid != [0; 16];
        ours.reads = ours.reads.min(peer.serves);
        let mtu = peer.mtu.min(link.at.attr.active_mtu as u8);
        let theirs = PeerQpAttrs { number: peer.number, psn: peer.psn, mtu, lid: peer.lid, gid: peer.gid };
        let agrees = link.ece.and(peer.ece);
        if let Some(ece) = agrees {
            link.qp.set_ece(ece).map_err(system_error("setting the extensions of the devices (ECE)"))?;
        }
        let limits = self.attr_limits();
        let rungs = [
            (QpTransition::Receive, qp_state::rtr_attrs(&ours, &theirs)),
            (QpTransition::Send, qp_state::rts_attrs(&ours)),
        ];
        for (rung, (attr, mask)) in rungs {
            link.qp.modify(&attr, mask).map_err(|error| {
                system_error("connecting a queue pair")(qp_state::explain_refusal(
                    rung, &attr, &limits, &error,
                ))
            })?;
        }
        // The end that offered extensions first needs the result of the negotiation.
        Ok(agrees.and_then(|_| link.qp.query_ece()))
    }
}

impl LinkControl for VerbsRail {
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        let pipelines = self.caps.pipelines;
        if let Some(asked) = pipeline.filter(|asked| *asked >= pipelines) {
            return Err(LinkError::NoSuchPipeline { asked, pipelines });
        }
        if self.live >= self.config.links {
            return Err(LinkError::Exhausted(self.config.links));
        }
        let place = self.links.iter().position(Option::is_none).unwrap_or(self.links.len());
        try_grow(&mut self.links, 1)?;
        // Reserved here, so that listing a refused link later never allocates.
        let listed = self.refused.len();
        try_grow(&mut self.refused, (place + 1).saturating_sub(listed))?;
        let id = LinkId(place as u32);
        let link = Box::new(self.make_link(id, pipeline)?);
        if place == self.links.len() {
            self.links.push(Some(link));
        } else {
            self.links[place] = Some(link);
        }
        self.live += 1;
        Ok(id)
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        self.find_link(link).map(|link| link.pipeline)
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        let found = self.require_link(link)?;
        let PortAddress { attr, gid } = found.at;
        let ours = self.local_attrs(0, &found.at);
        let address = VerbsLinkAddress {
            infiniband: attr.link_layer == LINK_LAYER_INFINIBAND,
            mtu: attr.active_mtu as u8,
            number: found.qp.qp_number(),
            psn: found.psn,
            lid: attr.lid,
            serves: ours.serves,
            gid: gid.raw,
            class: (ours.traffic_class, ours.service_level),
            ece: found.ece,
        };
        Ok(LinkAddress { bytes: address.to_bytes(), fd: None })
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        let address = VerbsLinkAddress::parse(&peer.bytes).map_err(LinkError::Address)?;
        let found = self.require_link(link)?;
        if found.state != VerbsLinkStage::New {
            return Err(LinkError::State);
        }
        if address.infiniband != self.is_infiniband() {
            return Err(LinkError::Unreachable("one port is on InfiniBand and the other is on Ethernet"));
        }
        let ece = self.connect_qp(found, &address)?;
        if let Some(Some(found)) = self.links.get_mut(link.0 as usize) {
            (found.state, found.ece) = (VerbsLinkStage::Up, ece);
        }
        Ok(())
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        let device = &self.port.device;
        if self.verbs.async_events {
            let calls = device.calls();
            device.faults.take_events(device.context(), calls.get_async_event, calls.ack_async_event);
        }
        let Some(Some(found)) = self.links.get_mut(link.0 as usize) else { return Err(LinkError::State) };
        if let Some(why) = found.qp.fault_reason().or_else(|| self.cq.fault_reason()) {
            found.break_down();
            return Err(LinkError::Unreachable(why));
        }
        if device.faults.is_dead() {
            found.break_down();
            return Err(LinkError::Unreachable("the device is lost"));
        }
        if found.state == VerbsLinkStage::Error {
            return Err(LinkError::State);
        }
        let limit = std::time::Duration::from_nanos(self.config.rail_time.0);
        match device.faults.down_since(self.port.number) {
            Some(since) if since.elapsed() >= limit => Err(LinkError::Unreachable("the port is down")),
            _ => Ok(()),
        }
    }

    fn fail_link(&mut self, link: LinkId) {
        // Submit the queued requests, so that the device flushes them like the others.
        self.ring_all();
        if let Some(Some(found)) = self.links.get_mut(link.0 as usize) {
            found.break_down();
        }
    }

    fn poll_link_quiet(&mut self, link: LinkId) -> bool {
        let found = self.links.get_mut(link.0 as usize).and_then(Option::as_deref_mut);
        found.is_none_or(VerbsLink::is_quiet)
    }

    fn destroy_link(&mut self, link: LinkId) {
        self.ring_all();
        let place = link.0 as usize;
        let Some(found) = self.links.get_mut(place).and_then(Option::take) else { return };
        self.live -= 1;
        self.refused.retain(|refused| *refused != link.0);
        let number = found.qp.qp_number();
        drop(found);
        // Only after the queue pair was destroyed, because until then the device may add completions.
        self.leftovers |= !self.cq.retain_completions(|wc| wc.qp_num != number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> VerbsLinkAddress {
        VerbsLinkAddress {
            infiniband: false,
            mtu: 5,
            number: 0xff_ffff,
            psn: 0,
            lid: 0,
            serves: 16,
            gid: [1; 16],
            class: (106, 3),
            ece: Some(Ece { vendor_id: 7, options: 8, comp_mask: 0 }),
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let good = address().to_bytes();
        assert_eq!(good.len(), BYTES);
        assert_eq!(VerbsLinkAddress::parse(&good), Ok(address()));
        let bad: &[(usize, &[u8], &str)] = &[
            (0, b"X", "not of an RDMA device"),
            (8, &[2], "version"),
            (10, &[0], "no known kind"),
            (10, &[3], "no known kind"),
            (11, &[0], "packet size"),
            (11, &[6], "packet size"),
            (12, &[0, 0, 0], "queue pair"),
            (15, &[1], "queue pair"),
            (19, &[1], "packet number"),
            (23, &[1], "packet size"),
            (24, &[0; 16], "no port"),
            (41, &[16], "service level"),
            (42, &[0], "extensions"),
            (42, &[2], "extensions"),
            (43, &[1], "extensions"),
        ];
        for (at, change, why) in bad {
            let mut bytes = good.clone();
            bytes[*at..*at + change.len()].copy_from_slice(change);
            let error = VerbsLinkAddress::parse(&bytes).unwrap_err();
            assert!(error.contains(why), "{error} instead of {why}");
        }
        assert!(VerbsLinkAddress::parse(&good[1..]).is_err());
        assert!(VerbsLinkAddress::parse(&[&good[..], &[0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn parsed_addresses_encode_unchanged(mut bytes in proptest::collection::vec(any::<u8>(), BYTES)) {
            bytes[..10].copy_from_slice(&address().to_bytes()[..10]);
            if let Ok(parsed) = VerbsLinkAddress::parse(&bytes) {
                prop_assert_eq!(parsed.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn completion_queue_holds_all_possible_completions() {
        let config = |depth, recv_depth| RailConfig {
            depth,
            recv_depth,
            recv_order: trunkline_fabric::RecvOrder::Any,
            links: 1,
            peer_time: trunkline_proto::time::Duration::from_secs(1),
            rail_time: trunkline_proto::time::Duration::from_secs(1),
            receives: false,
            traffic_class: None,
            many: false,
        };
        assert_eq!(completions_per_link(&config(64, 10), 1), 64 + 10 + 1);
        assert_eq!(completions_per_link(&config(1, 0), 1), 2);
        assert_eq!(completions_per_link(&config(u32::MAX, 5), 2), u32::MAX);
    }
}
