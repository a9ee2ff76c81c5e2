//! The transitions of a queue pair from RESET to RTS (InfiniBand Architecture Specification, volume 1, section 10.3.1; ibv_modify_qp(3)): the
//! attributes of each, and, when the kernel refuses one, the attribute that was wrong. Pure; links and flushers call it. The kernel reports only
//! "invalid argument", so the cause is derived here.

use std::io;

use trunkline_sys::verbs::{
    ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AhAttr, Gid, GlobalRoute, PortAttr,
    QpAttr, QpCap, qp_mask, qp_state,
};

/// Time that a peer waits after an RNR NAK, as its code: 0.64 ms (InfiniBand Architecture Specification, volume 1, section 9.7.5.2.8).
const RNR_TIMER: u8 = 12;
/// Number of RNR retries that means "for ever" (same section).
const RNR_FOR_EVER: u8 = 7;
/// Most routers that a packet may pass.
const HOPS: u8 = 255;
/// Shortest local ACK timeout that is chosen automatically, as its exponent: 67 ms.
const TIMEOUT_LEAST: u8 = 14;

/// A transition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QpTransition {
    /// To INIT: accepts receives.
    Init,
    /// To RTR: ready to receive.
    Receive,
    /// To RTS: ready to send.
    Send,
}

impl QpTransition {
    fn transition_name(self) -> &'static str {
        match self {
            Self::Init => "RESET to INIT",
            Self::Receive => "INIT to RTR",
            Self::Send => "RTR to RTS",
        }
    }
}

/// The attributes of this side that the transitions need.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LocalQpAttrs {
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    pub(crate) gid_index: u8,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    /// Number of the first packet that this side sends.
    pub(crate) psn: u32,
    /// Reads and atomics that this side may have outstanding.
    pub(crate) reads: u8,
    /// Reads and atomics that this side executes at once.
    pub(crate) serves: u8,
    /// Whether packets need a global route header.
    pub(crate) global: bool,
}

/// The attributes of the peer that the transitions need.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PeerQpAttrs {
    pub(crate) number: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u8,
    pub(crate) lid: u16,
    pub(crate) gid: [u8; 16],
}

/// Returns attributes of zeros.
fn zero_attrs() -> QpAttr {
    let route = GlobalRoute {
        dgid: Gid { raw: [0; 16] },
        flow_label: 0,
        sgid_index: 0,
        hop_limit: 0,
        traffic_class: 0,
    };
    let ah =
        AhAttr { grh: route, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 0, port_num: 0 };
    QpAttr {
        qp_state: qp_state::RESET,
        cur_qp_state: 0,
        path_mtu: 0,
        path_mig_state: 0,
        qkey: 0,
        rq_psn: 0,
        sq_psn: 0,
        dest_qp_num: 0,
        qp_access_flags: 0,
        cap: QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
        ah_attr: ah,
        alt_ah_attr: ah,
        pkey_index: 0,
        alt_pkey_index: 0,
        en_sqd_async_notify: 0,
        sq_draining: 0,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        port_num: 0,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        alt_port_num: 0,
        alt_timeout: 0,
        rate_limit: 0,
    }
}

/// Returns the attributes for RESET to INIT.
pub(crate) fn init_attrs(ours: &LocalQpAttrs) -> (QpAttr, i32) {
    let mut attr = zero_attrs();
    attr.qp_state = qp_state::INIT;
    attr.pkey_index = ours.pkey_index;
    attr.port_num = ours.port;
    // Everything is allowed here: each region's registration restricts the access of peers.
    attr.qp_access_flags = (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC).unsigned_abs();
    (attr, qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::ACCESS_FLAGS)
}

/// Returns the attributes for INIT to RTR.
pub(crate) fn rtr_attrs(ours: &LocalQpAttrs, theirs: &PeerQpAttrs) -> (QpAttr, i32) {
    let mut attr = zero_attrs();
    attr.qp_state = qp_state::RTR;
    attr.path_mtu = theirs.mtu.into();
    attr.dest_qp_num = theirs.number;
    attr.rq_psn = theirs.psn;
    attr.max_dest_rd_atomic = ours.serves;
    attr.min_rnr_timer = RNR_TIMER;
    attr.ah_attr.dlid = theirs.lid;
    attr.ah_attr.sl = ours.service_level;
    attr.ah_attr.port_num = ours.port;
    // RoCE packets always have a global route header; InfiniBand packets only between subnets.
    if ours.global {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = Gid { raw: theirs.gid };
        attr.ah_attr.grh.sgid_index = ours.gid_index;
        attr.ah_attr.grh.hop_limit = HOPS;
        attr.ah_attr.grh.traffic_class = ours.traffic_class;
    }
    // Exactly the attributes that ibv_modify_qp(3) requires for this transition: the kernel refuses others.
    let mask = qp_mask::STATE
        | qp_mask::AV
        | qp_mask::PATH_MTU
        | qp_mask::DEST_QPN
        | qp_mask::RQ_PSN
        | qp_mask::MAX_DEST_RD_ATOMIC
        | qp_mask::MIN_RNR_TIMER;
    (attr, mask)
}

/// Returns the attributes for RTR to RTS.
pub(crate) fn rts_attrs(ours: &LocalQpAttrs) -> (QpAttr, i32) {
    let mut attr = zero_attrs();
    attr.qp_state = qp_state::RTS;
    attr.timeout = ours.timeout;
    attr.retry_cnt = ours.retries;
    // Retried for ever, because a send must wait for its receive while the peer lives; a dead peer ends the link by
    // the ACK timeout.
    attr.rnr_retry = RNR_FOR_EVER;
    attr.sq_psn = ours.psn;
    attr.max_rd_atomic = ours.reads;
    // As for RTR, exactly the required attributes.
    let mask = qp_mask::STATE
        | qp_mask::TIMEOUT
        | qp_mask::RETRY_CNT
        | qp_mask::RNR_RETRY
        | qp_mask::SQ_PSN
        | qp_mask::MAX_QP_RD_ATOMIC;
    (attr, mask)
}

/// Returns the attributes for any state to ERR.
pub(crate) fn error_attrs() -> (QpAttr, i32) {
    let mut attr = zero_attrs();
    attr.qp_state = qp_state::ERR;
    (attr, qp_mask::STATE)
}

/// Returns the local ACK timeout as its exponent: the longest with which all retries fit
/// into `nanoseconds`, at least 14.
pub(crate) fn ack_timeout(nanoseconds: u64, retries: u8) -> u8 {
    let tries = u64::from(retries) + 1;
    (TIMEOUT_LEAST..=31)
        .rev()
        .find(|&exponent| (4096 << exponent) * tries <= nanoseconds)
        .unwrap_or(TIMEOUT_LEAST)
}

/// The limits of a device and a port that the transitions depend on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QpAttrLimits {
    pub(crate) ports: u8,
    pub(crate) pkeys: u16,
    pub(crate) gids: u32,
    pub(crate) mtu: u8,
    pub(crate) reads: u8,
    pub(crate) serves: u8,
    pub(crate) infiniband: bool,
}

impl QpAttrLimits {
    /// Creates the limits for a port, on a device with these limits.
    pub(crate) fn from_port(ports: u8, reads: u8, serves: u8, attr: &PortAttr, infiniband: bool) -> Self {
        Self {
            ports,
            pkeys: attr.pkey_tbl_len,
            gids: attr.gid_tbl_len.unsigned_abs(),
            mtu: attr.active_mtu as u8,
            reads,
            serves,
            infiniband,
        }
    }
}

/// Returns the error of a transition, with the attribute that was wrong as far as that can be derived.
pub(crate) fn explain_refusal(
    rung: QpTransition,
    attr: &QpAttr,
    limits: &QpAttrLimits,
    error: &io::Error,
) -> io::Error {
    let why = wrong_attribute(rung, attr, limits, error)
        .unwrap_or_else(|| "all attributes are within the limits that device and port report".to_owned());
    io::Error::new(error.kind(), format!("{}: {why} ({error})", rung.transition_name()))
}

fn wrong_attribute(
    rung: QpTransition,
    attr: &QpAttr,
    limits: &QpAttrLimits,
    error: &io::Error,
) -> Option<String> {
    let ah = &attr.ah_attr;
    let beyond =
        |what: &str, is: u64, most: u64| (is > most).then(|| format!("{what} is {is}, at most {most}"));
    // The kernel returns the same error for each of them, so they are checked in turn.
    match rung {
        QpTransition::Init => beyond("port_num", attr.port_num.into(), limits.ports.into()).or_else(|| {
            beyond("pkey_index", attr.pkey_index.into(), u64::from(limits.pkeys).saturating_sub(1))
        }),
        QpTransition::Receive => beyond("path_mtu", attr.path_mtu.into(), limits.mtu.into())
            .or_else(|| (attr.path_mtu == 0).then(|| "path_mtu is 0".to_owned()))
            .or_else(|| beyond("dest_qp_num", attr.dest_qp_num.into(), 0xff_ffff))
            .or_else(|| (attr.dest_qp_num == 0).then(|| "dest_qp_num is 0".to_owned()))
            .or_else(|| beyond("rq_psn", attr.rq_psn.into(), 0xff_ffff))
            .or_else(|| beyond("max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), limits.serves.into()))
            .or_else(|| beyond("ah_attr.sl", ah.sl.into(), if limits.infiniband { 15 } else { 7 }))
            .or_else(|| wrong_route(attr, limits, error)),
        QpTransition::Send => beyond("timeout", attr.timeout.into(), 31)
            .or_else(|| beyond("retry_cnt", attr.retry_cnt.into(), 7))
            .or_else(|| beyond("sq_psn", attr.sq_psn.into(), 0xff_ffff))
            .or_else(|| beyond("max_rd_atomic", attr.max_rd_atomic.into(), limits.reads.into())),
    }
}

/// Returns the fault of the route to the peer, if there is one.
fn wrong_route(attr: &QpAttr, limits: &QpAttrLimits, error: &io::Error) -> Option<String> {
    let ah = &attr.ah_attr;
    if limits.infiniband && ah.dlid == 0 && ah.is_global == 0 {
        return Some(
            "ah_attr.dlid is 0: the peer's port has no LID; is a subnet manager running?".to_owned(),
        );
    }
    if ah.is_global == 0 {
        return (!limits.infiniband).then(|| "ah_attr.is_global is 0 on Ethernet".to_owned());
    }
    if u32::from(ah.grh.sgid_index) >= limits.gids {
        let most = limits.gids.saturating_sub(1);
        return Some(format!("ah_attr.grh.sgid_index is {}, at most {most}", ah.grh.sgid_index));
    }
    let dgid = std::net::Ipv6Addr::from(ah.grh.dgid.raw).to_canonical();
    if dgid.is_unspecified() {
        return Some("ah_attr.grh.dgid is not set".to_owned());
    }
    let unreachable = [
        libc::ETIMEDOUT,
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EINVAL,
        libc::EADDRNOTAVAIL,
        libc::ENODEV,
    ];
    let code = error.raw_os_error().unwrap_or(0);
    unreachable.contains(&code).then(|| {
        format!(
            "ah_attr.grh.dgid {dgid} cannot be reached from ah_attr.grh.sgid_index {}: no route, no neighbour, or an \
             address of another kind; NCCL_IB_GID_INDEX selects our address",
            ah.grh.sgid_index
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: LocalQpAttrs = LocalQpAttrs {
        port: 1,
        pkey_index: 0,
        gid_index: 1,
        service_level: 0,
        traffic_class: 0,
        timeout: 20,
        retries: 7,
        psn: 5,
        reads: 16,
        serves: 16,
        global: true,
    };
    const LIMITS: QpAttrLimits =
        QpAttrLimits { ports: 2, pkeys: 64, gids: 8, mtu: 5, reads: 16, serves: 16, infiniband: false };

    fn theirs() -> PeerQpAttrs {
        let gid = std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets();
        PeerQpAttrs { number: 9, psn: 7, mtu: 5, lid: 0, gid }
    }

    fn why(rung: QpTransition, attr: &QpAttr, limits: &QpAttrLimits) -> String {
        explain_refusal(rung, attr, limits, &io::Error::from_raw_os_error(libc::EPERM)).to_string()
    }

    /// Attributes of one transition, one of them changed; the error must contain the name.
    type Case = (&'static str, QpTransition, fn(&mut QpAttr));

    #[test]
    fn the_wrong_attribute_is_named() {
        let cases: &[Case] = &[
            ("port_num is 3, at most 2", QpTransition::Init, |attr| attr.port_num = 3),
            ("pkey_index is 64, at most 63", QpTransition::Init, |attr| attr.pkey_index = 64),
            ("path_mtu is 6", QpTransition::Receive, |attr| attr.path_mtu = 6),
            ("path_mtu is 0", QpTransition::Receive, |attr| attr.path_mtu = 0),
            ("dest_qp_num is 0", QpTransition::Receive, |attr| attr.dest_qp_num = 0),
            ("dest_qp_num is 16777216", QpTransition::Receive, |attr| attr.dest_qp_num = 1 << 24),
            ("rq_psn is 16777216", QpTransition::Receive, |attr| attr.rq_psn = 1 << 24),
            ("max_dest_rd_atomic is 17", QpTransition::Receive, |attr| attr.max_dest_rd_atomic = 17),
            ("ah_attr.sl is 8", QpTransition::Receive, |attr| attr.ah_attr.sl = 8),
            ("ah_attr.is_global is 0", QpTransition::Receive, |attr| attr.ah_attr.is_global = 0),
            ("ah_attr.grh.sgid_index is 8, at most 7", QpTransition::Receive, |attr| {
                attr.ah_attr.grh.sgid_index = 8
            }),
            ("ah_attr.grh.dgid is not set", QpTransition::Receive, |attr| {
                attr.ah_attr.grh.dgid.raw = [0; 16]
            }),
            ("timeout is 32", QpTransition::Send, |attr| attr.timeout = 32),
            ("retry_cnt is 8", QpTransition::Send, |attr| attr.retry_cnt = 8),
            ("sq_psn is 16777216", QpTransition::Send, |attr| attr.sq_psn = 1 << 24),
            ("max_rd_atomic is 17", QpTransition::Send, |attr| attr.max_rd_atomic = 17),
        ];
        for (name, rung, change) in cases {
            let mut attr = match rung {
                QpTransition::Init => init_attrs(&OURS).0,
                QpTransition::Receive => rtr_attrs(&OURS, &theirs()).0,
                QpTransition::Send => rts_attrs(&OURS).0,
            };
            let text = why(*rung, &attr, &LIMITS);
            assert!(text.contains("all attributes are within"), "{text}");
            change(&mut attr);
            let text = why(*rung, &attr, &LIMITS);
            assert!(
                text.contains(name) && text.starts_with(rung.transition_name()),
                "{text} instead of {name}"
            );
        }
    }

    #[test]
    fn unreachable_addresses_are_named() {
        let attr = rtr_attrs(&OURS, &theirs()).0;
        let error = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        let text = explain_refusal(QpTransition::Receive, &attr, &LIMITS, &error).to_string();
        assert!(text.contains("dgid 10.0.0.2 cannot be reached from ah_attr.grh.sgid_index 1"), "{text}");
        let infiniband = QpAttrLimits { infiniband: true, ..LIMITS };
        let attr = rtr_attrs(&LocalQpAttrs { global: false, ..OURS }, &theirs()).0;
        assert!(why(QpTransition::Receive, &attr, &infiniband).contains("ah_attr.dlid is 0"));
    }

    #[test]
    fn retries_fit_into_the_time() {
        let second = 1_000_000_000;
        for (time, retries) in [(3 * second, 7), (10 * second, 7), (3 * second, 0), (60 * second, 3)] {
            let exponent = ack_timeout(time, retries);
            let all = |exponent: u8| (4096_u64 << exponent) * (u64::from(retries) + 1);
            assert!(all(exponent) <= time && all(exponent + 1) > time, "{exponent}");
        }
        assert_eq!(ack_timeout(0, 7), 14);
        assert_eq!(ack_timeout(u64::MAX, 0), 31);
    }
}
