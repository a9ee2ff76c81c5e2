//! What a provider grants, read once from the `fi_info` that was selected: plain values that decide everything after set-up.

use trunkline_sys::ofi::{caps, mode, mr_mode, order, progress, threading};

use crate::info::OfiInfo;
use crate::library;

/// Which calls must not happen at the same time, on one domain and by several threads. What one thread at a time owns anyhow,
/// as a queue and the endpoints on it, is not counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallExclusion {
    /// None.
    Nothing,
    /// Those that make, change and end something.
    SetUp,
    /// All.
    All,
}

/// What comes in order in one direction: bits of libfabric's `FI_ORDER_*`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OrderGuarantees {
    /// What arrives as it was posted.
    pub messages: u64,
    /// What completes as it was posted.
    pub completions: u64,
}

/// How much of what there may be.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SizeLimits {
    /// Bytes that an injected operation may have.
    pub inject: usize,
    /// Bytes that an operation may have.
    pub message: usize,
    /// Bytes up to which the order of writes after writes holds.
    pub ordered_writes: usize,
    /// Operations that an endpoint takes at once.
    pub transmits: usize,
    /// Receives that it takes at once.
    pub receives: usize,
    /// Local ranges of an operation.
    pub transmit_ranges: usize,
    /// Ranges of a receive.
    pub receive_ranges: usize,
    /// Remote ranges of an operation.
    pub remote_ranges: usize,
}

/// What a provider grants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProviderGrant {
    /// A registration belongs to an endpoint, is bound to it and enabled.
    pub endpoint_scoped: bool,
    /// The provider chooses keys.
    pub prov_key: bool,
    /// Remote addresses are the owner's virtual ones; else they count from the start of a registration.
    pub virt_addr: bool,
    /// Local buffers of the host are registered, too.
    pub local: bool,
    /// Memory has its pages before it is registered.
    pub allocated: bool,
    /// Memory of devices is registered and used. Some providers ask for its registration by a mode besides (`FI_MR_HMEM`), and
    /// others (`cxi`) do not; it always is.
    pub hmem: bool,
    /// Keys are longer than 64 bits, which this crate cannot do.
    pub raw_keys: bool,
    /// dma-bufs can be registered.
    pub dmabuf: bool,
    /// Bits of a key that the application chooses, at most 64.
    pub key_bits: u32,
    /// Bytes of remote CQ data, 0 if there is none.
    pub cq_data_bytes: usize,
    /// Remote CQ data of a write takes a receive.
    pub data_takes_receive: bool,
    /// How much of what there may be.
    pub sizes: SizeLimits,
    /// Operations go on without calls of ours.
    pub data_auto: bool,
    /// So does set-up.
    pub control_auto: bool,
    /// libfabric's threading model, a number of `FI_THREAD_*`.
    pub threading: u32,
    /// Order of what goes out.
    pub sends: OrderGuarantees,
    /// Order of what comes in.
    pub receives: OrderGuarantees,
    /// Bits of a tag that can be used, from the lowest on.
    pub tag_bits: u32,
    /// A completion tells who sent.
    pub source: bool,
    /// A receive may name its peer.
    pub directed: bool,
    /// The best that a completion can tell: `FI_DELIVERY_COMPLETE`, `FI_TRANSMIT_COMPLETE`, or 0 for what the provider does
    /// by itself.
    pub reach: u64,
    /// Capabilities that were granted, all of them.
    pub caps: u64,
}

impl ProviderGrant {
    /// Reads it.
    #[must_use]
    pub fn from_info(info: &OfiInfo) -> Self {
        let domain = info.domain_attr();
        let ep = info.ep_attr();
        let tx = info.tx_attr();
        let rx = info.rx_attr();
        let all_modes = info.mode() | domain.mode;
        let granted = info.caps();
        // What was called so before there were bits.
        let basic = mr_mode::VIRT_ADDR | mr_mode::ALLOCATED | mr_mode::PROV_KEY;
        let asked = domain.mr_mode | if domain.mr_mode & mr_mode::BASIC == 0 { 0 } else { basic };
        let mr = |bit: i32| asked & bit != 0;
        let reaches = [caps::DELIVERY_COMPLETE, caps::TRANSMIT_COMPLETE];
        Self {
            endpoint_scoped: mr(mr_mode::ENDPOINT),
            prov_key: mr(mr_mode::PROV_KEY),
            virt_addr: mr(mr_mode::VIRT_ADDR),
            local: mr(mr_mode::LOCAL) || all_modes & mode::LOCAL_MR != 0,
            allocated: mr(mr_mode::ALLOCATED),
            hmem: granted & caps::HMEM != 0,
            raw_keys: mr(mr_mode::RAW),
            dmabuf: library::has_dmabuf(info.fabric_attr().api_version),
            key_bits: u32::try_from(domain.mr_key_size.saturating_mul(8))
                .map_or(u64::BITS, |bits| bits.min(64)),
            cq_data_bytes: domain.cq_data_size,
            data_takes_receive: (all_modes | rx.mode) & mode::RX_CQ_DATA != 0,
            sizes: SizeLimits {
                inject: tx.inject_size,
                message: ep.max_msg_size,
                ordered_writes: ep.max_order_waw_size,
                transmits: tx.size,
                receives: rx.size,
                transmit_ranges: tx.iov_limit,
                receive_ranges: rx.iov_limit,
                remote_ranges: tx.rma_iov_limit,
            },
            data_auto: domain.data_progress == progress::AUTO,
            control_auto: domain.control_progress == progress::AUTO,
            threading: domain.threading,
            sends: OrderGuarantees { messages: tx.msg_order, completions: tx.comp_order },
            receives: OrderGuarantees { messages: rx.msg_order, completions: rx.comp_order },
            tag_bits: u64::BITS - ep.mem_tag_format.leading_zeros(),
            source: granted & caps::SOURCE != 0,
            directed: granted & caps::DIRECTED_RECV != 0,
            reach: reaches.into_iter().find(|bit| tx.op_flags & bit != 0).unwrap_or(0),
            caps: granted,
        }
    }

    /// The threading model, as people name it.
    #[must_use]
    pub const fn threading_name(&self) -> &'static str {
        match self.threading {
            threading::UNSPEC => "unspecified",
            threading::SAFE => "safe",
            threading::FID => "object",
            threading::DOMAIN => "domain",
            threading::COMPLETION => "completion",
            threading::ENDPOINT => "endpoint",
            _ => "unknown",
        }
    }

    /// Which calls must not happen at the same time. A registration of an endpoint is bound to it by whoever registers, while
    /// the endpoint's owner posts, so that only a provider that locks for itself is left alone there.
    #[must_use]
    pub fn call_exclusion(&self) -> CallExclusion {
        match self.threading {
            threading::SAFE => CallExclusion::Nothing,
            threading::FID | threading::ENDPOINT | threading::COMPLETION if !self.endpoint_scoped => {
                CallExclusion::SetUp
            }
            _ => CallExclusion::All,
        }
    }

    /// What peers add an offset to, for memory that begins at an address: the one place that knows.
    #[must_use]
    pub fn remote_base(&self, addr: usize) -> u64 {
        if self.virt_addr { addr as u64 } else { 0 }
    }

    /// Whether sends and writes of any length arrive as they were posted, whichever they are.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        let wanted = order::SAS | order::SAW | order::WAS | order::WAW;
        let both = self.sends.messages & self.receives.messages;
        both & wanted == wanted && self.sizes.ordered_writes == usize::MAX
    }

    /// Whether a write is seen by the peer before a later one to the same place, of up to so many bytes.
    #[must_use]
    pub fn writes_in_order(&self, bytes: usize) -> bool {
        let both = self.sends.messages & self.receives.messages;
        both & (order::WAW | order::RMA_WAW) != 0 && bytes <= self.sizes.ordered_writes
    }
}
