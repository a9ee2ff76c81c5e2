//! The grant of a provider, read once from the selected `fi_info`: plain values that decide all later behaviour.

use trunkline_sys::ofi::{caps, mode, mr_mode, order, progress, threading};

use crate::info::OfiInfo;
use crate::library;

/// Which calls exclude each other, on one domain and across threads. Objects with one owner thread at a time, such as a queue and its
/// endpoints, need no exclusion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallExclusion {
    /// None.
    Nothing,
    /// Calls that create, change and close objects.
    SetUp,
    /// All calls.
    All,
}

/// Ordering in one direction: bits of libfabric's `FI_ORDER_*`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OrderGuarantees {
    /// Order of arrival.
    pub messages: u64,
    /// Order of completions.
    pub completions: u64,
}

/// Limits of an endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SizeLimits {
    /// Maximum length of an injected operation, in bytes.
    pub inject: usize,
    /// Maximum length of an operation, in bytes.
    pub message: usize,
    /// Length up to which writes after writes stay in order, in bytes.
    pub ordered_writes: usize,
    /// Maximum number of operations in flight on an endpoint.
    pub transmits: usize,
    /// Maximum number of receives posted on an endpoint.
    pub receives: usize,
    /// Maximum number of local ranges of an operation.
    pub transmit_ranges: usize,
    /// Maximum number of ranges of a receive.
    pub receive_ranges: usize,
    /// Maximum number of remote ranges of an operation.
    pub remote_ranges: usize,
}

/// The grant of a provider.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProviderGrant {
    /// A registration must be bound to an endpoint and enabled (`FI_MR_ENDPOINT`).
    pub endpoint_scoped: bool,
    /// The provider chooses keys (`FI_MR_PROV_KEY`).
    pub prov_key: bool,
    /// Remote addresses are the owner's virtual addresses (`FI_MR_VIRT_ADDR`); otherwise offsets from the start of a registration.
    pub virt_addr: bool,
    /// Local buffers of the host must be registered as well (`FI_MR_LOCAL`).
    pub local: bool,
    /// Memory must have its pages before it is registered (`FI_MR_ALLOCATED`).
    pub allocated: bool,
    /// Memory of devices can be registered and used. Some providers also demand its registration by a mode (`FI_MR_HMEM`), others (`cxi`) do not;
    /// this crate always registers it.
    pub hmem: bool,
    /// Keys are longer than 64 bits (`FI_MR_RAW`), which this crate does not support.
    pub raw_keys: bool,
    /// dma-bufs can be registered.
    pub dmabuf: bool,
    /// Bits of a key that the application chooses, at most 64.
    pub key_bits: u32,
    /// Length of remote CQ data in bytes, 0 if not supported.
    pub cq_data_bytes: usize,
    /// Remote CQ data of a write consumes a receive (`FI_RX_CQ_DATA`).
    pub data_takes_receive: bool,
    /// Limits of an endpoint.
    pub sizes: SizeLimits,
    /// Operations progress without calls of the application (`FI_PROGRESS_AUTO`).
    pub data_auto: bool,
    /// Set-up progresses without calls of the application.
    pub control_auto: bool,
    /// libfabric's threading model, a number of `FI_THREAD_*`.
    pub threading: u32,
    /// Ordering of outgoing operations.
    pub sends: OrderGuarantees,
    /// Ordering of incoming operations.
    pub receives: OrderGuarantees,
    /// Number of usable tag bits, from the lowest on.
    pub tag_bits: u32,
    /// A completion reports the sender (`FI_SOURCE`).
    pub source: bool,
    /// A receive may name its peer (`FI_DIRECTED_RECV`).
    pub directed: bool,
    /// The strongest completion level: `FI_DELIVERY_COMPLETE`, `FI_TRANSMIT_COMPLETE`, or 0 for the provider's default.
    pub reach: u64,
    /// All granted capabilities.
    pub caps: u64,
}

impl ProviderGrant {
    /// Reads the grant from an info.
    #[must_use]
    pub fn from_info(info: &OfiInfo) -> Self {
        let domain = info.domain_attr();
        let ep = info.ep_attr();
        let tx = info.tx_attr();
        let rx = info.rx_attr();
        // Providers report modes of the domain in either place (fi_getinfo(3), fi_domain(3)).
        let all_modes = info.mode() | domain.mode;
        let granted = info.caps();
        // `FI_MR_BASIC` is the older name of these three modes together (fi_mr(3)).
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
            // The provider reserves the upper bits that are zero in mem_tag_format (fi_endpoint(3)).
            tag_bits: u64::BITS - ep.mem_tag_format.leading_zeros(),
            source: granted & caps::SOURCE != 0,
            directed: granted & caps::DIRECTED_RECV != 0,
            reach: reaches.into_iter().find(|bit| tx.op_flags & bit != 0).unwrap_or(0),
            caps: granted,
        }
    }

    /// Returns the name of the threading model.
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

    /// Returns which calls exclude each other. With `FI_MR_ENDPOINT`, a registrar's thread binds registrations to an endpoint while the endpoint's
    /// owner posts on it, so anything below full thread safety needs the lock for all calls.
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

    /// Returns the address to which peers add an offset, for memory that begins at `addr`. The only place that decides this.
    #[must_use]
    pub fn remote_base(&self, addr: usize) -> u64 {
        if self.virt_addr { addr as u64 } else { 0 }
    }

    /// Returns whether sends and writes of any length arrive in the order in which they were posted.
    #[must_use]
    pub fn keeps_order(&self) -> bool {
        let wanted = order::SAS | order::SAW | order::WAS | order::WAW;
        let both = self.sends.messages & self.receives.messages;
        // max_order_waw_size bounds the length up to which writes stay in order, and rails post writes of any length.
        both & wanted == wanted && self.sizes.ordered_writes == usize::MAX
    }

    /// Returns whether the peer sees a write of up to `bytes` bytes before a later one to the same place.
    #[must_use]
    pub fn writes_in_order(&self, bytes: usize) -> bool {
        let both = self.sends.messages & self.receives.messages;
        both & (order::WAW | order::RMA_WAW) != 0 && bytes <= self.sizes.ordered_writes
    }
}
