//! Bits of capabilities, operations and modes.

/// Capabilities of endpoints, and flags of operations, registrations, bindings and completions. All share one word.
pub mod caps {
    /// `FI_MSG`: two-sided messages.
    pub const MSG: u64 = 1 << 1;
    /// `FI_RMA`: reads and writes.
    pub const RMA: u64 = 1 << 2;
    /// `FI_TAGGED`: tagged messages.
    pub const TAGGED: u64 = 1 << 3;
    /// `FI_ATOMIC`: atomic operations.
    pub const ATOMIC: u64 = 1 << 4;
    /// `FI_MULTICAST`.
    pub const MULTICAST: u64 = 1 << 5;
    /// `FI_COLLECTIVE`.
    pub const COLLECTIVE: u64 = 1 << 6;
    /// `FI_READ`: initiates reads.
    pub const READ: u64 = 1 << 8;
    /// `FI_WRITE`: initiates writes.
    pub const WRITE: u64 = 1 << 9;
    /// `FI_RECV`: receives messages.
    pub const RECV: u64 = 1 << 10;
    /// `FI_SEND`: sends messages.
    pub const SEND: u64 = 1 << 11;
    /// `FI_TRANSMIT`: a flag of bindings: for all outgoing operations.
    pub const TRANSMIT: u64 = 1 << 11;
    /// `FI_REMOTE_READ`: peers may read.
    pub const REMOTE_READ: u64 = 1 << 12;
    /// `FI_REMOTE_WRITE`: peers may write.
    pub const REMOTE_WRITE: u64 = 1 << 13;
    /// `FI_MULTI_RECV`: one buffer receives many messages.
    pub const MULTI_RECV: u64 = 1 << 16;
    /// `FI_REMOTE_CQ_DATA`: data for the peer's completion queue.
    pub const REMOTE_CQ_DATA: u64 = 1 << 17;
    /// `FI_MORE`: more operations follow immediately.
    pub const MORE: u64 = 1 << 18;
    /// `FI_PEEK`: only queries whether a message has arrived.
    pub const PEEK: u64 = 1 << 19;
    /// `FI_TRIGGER`.
    pub const TRIGGER: u64 = 1 << 20;
    /// `FI_FENCE`: starts after all earlier operations to this peer.
    pub const FENCE: u64 = 1 << 21;
    /// `FI_COMPLETION`: requests a completion if completions are selective.
    pub const COMPLETION: u64 = 1 << 24;
    /// `FI_INJECT`: the buffer may be reused when the call returns.
    pub const INJECT: u64 = 1 << 25;
    /// `FI_INJECT_COMPLETE`: completes when the buffer may be reused.
    pub const INJECT_COMPLETE: u64 = 1 << 26;
    /// `FI_TRANSMIT_COMPLETE`: completes when a failure of this process can no longer lose the data.
    pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
    /// `FI_DELIVERY_COMPLETE`: completes when the data has been placed at its destination.
    pub const DELIVERY_COMPLETE: u64 = 1 << 28;
    /// `FI_AFFINITY`: a flag of queues: `signaling_vector` is valid.
    pub const AFFINITY: u64 = 1 << 29;
    /// `FI_COMMIT_COMPLETE`: completes when the data is durable.
    pub const COMMIT_COMPLETE: u64 = 1 << 30;
    /// `FI_MATCH_COMPLETE`: completes when the message has been matched with a receive.
    pub const MATCH_COMPLETE: u64 = 1 << 31;
    /// `FI_PEER_TRANSFER`.
    pub const PEER_TRANSFER: u64 = 1 << 36;
    /// `FI_AV_USER_ID`.
    pub const AV_USER_ID: u64 = 1 << 41;
    /// `FI_PEER`.
    pub const PEER: u64 = 1 << 43;
    /// `FI_HMEM`: memory of devices.
    pub const HMEM: u64 = 1 << 47;
    /// `FI_RMA_PMEM`.
    pub const RMA_PMEM: u64 = 1 << 49;
    /// `FI_SOURCE_ERR`: messages from unknown addresses are reported as errors.
    pub const SOURCE_ERR: u64 = 1 << 50;
    /// `FI_LOCAL_COMM`: communication within the host.
    pub const LOCAL_COMM: u64 = 1 << 51;
    /// `FI_REMOTE_COMM`: communication with other hosts.
    pub const REMOTE_COMM: u64 = 1 << 52;
    /// `FI_SHARED_AV`.
    pub const SHARED_AV: u64 = 1 << 53;
    /// `FI_PROV_ATTR_ONLY`: requests only the names of providers.
    pub const PROV_ATTR_ONLY: u64 = 1 << 54;
    /// `FI_NUMERICHOST`: addresses are numeric.
    pub const NUMERICHOST: u64 = 1 << 55;
    /// `FI_RMA_EVENT`: accesses by peers can be counted.
    pub const RMA_EVENT: u64 = 1 << 56;
    /// `FI_SOURCE`: completions contain the source of a message. As a flag of
    /// [`getinfo`](crate::ofi::Calls::getinfo): node and service name the own address.
    pub const SOURCE: u64 = 1 << 57;
    /// `FI_NAMED_RX_CTX`.
    pub const NAMED_RX_CTX: u64 = 1 << 58;
    /// `FI_DIRECTED_RECV`: a receive may select its peer.
    pub const DIRECTED_RECV: u64 = 1 << 59;
    /// `FI_CLAIM`: receives the message that a peek has reserved.
    pub const CLAIM: u64 = 1 << 59;
    /// `FI_DISCARD`: discards the message that a peek has found.
    pub const DISCARD: u64 = 1 << 58;
    /// `FI_SELECTIVE_COMPLETION`: a flag of bindings: completions only on request.
    pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
}

/// Requirements of a provider to its caller.
pub mod mode {
    /// `FI_CONTEXT`: a context is a [`Context`](crate::ofi::Context), which the provider may write until the
    /// operation ends.
    pub const CONTEXT: u64 = 1 << 59;
    /// `FI_MSG_PREFIX`: buffers begin with free space before the message.
    pub const MSG_PREFIX: u64 = 1 << 58;
    /// `FI_ASYNC_IOV`: the caller keeps lists of ranges until the operation ends.
    pub const ASYNC_IOV: u64 = 1 << 57;
    /// `FI_RX_CQ_DATA`: remote CQ data consumes a receive.
    pub const RX_CQ_DATA: u64 = 1 << 56;
    /// `FI_LOCAL_MR`: deprecated form of [`mr_mode::LOCAL`](crate::ofi::mr_mode::LOCAL).
    pub const LOCAL_MR: u64 = 1 << 55;
    /// `FI_CONTEXT2`: a context is a [`Context2`](crate::ofi::Context2), which the provider may write until the
    /// operation ends.
    pub const CONTEXT2: u64 = 1 << 52;
}
