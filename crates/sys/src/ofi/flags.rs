//! Bits of capabilities, operations and modes.

/// What endpoints can do, and flags of operations, registrations, bindings and completions, which share their bits.
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
    /// `FI_READ`: reading.
    pub const READ: u64 = 1 << 8;
    /// `FI_WRITE`: writing.
    pub const WRITE: u64 = 1 << 9;
    /// `FI_RECV`: receiving.
    pub const RECV: u64 = 1 << 10;
    /// `FI_SEND`: sending.
    pub const SEND: u64 = 1 << 11;
    /// `FI_TRANSMIT`: all that goes out, of a binding.
    pub const TRANSMIT: u64 = 1 << 11;
    /// `FI_REMOTE_READ`: being read.
    pub const REMOTE_READ: u64 = 1 << 12;
    /// `FI_REMOTE_WRITE`: being written.
    pub const REMOTE_WRITE: u64 = 1 << 13;
    /// `FI_MULTI_RECV`: a buffer takes many messages.
    pub const MULTI_RECV: u64 = 1 << 16;
    /// `FI_REMOTE_CQ_DATA`: data for the peer's queue.
    pub const REMOTE_CQ_DATA: u64 = 1 << 17;
    /// `FI_MORE`: more operations follow at once.
    pub const MORE: u64 = 1 << 18;
    /// `FI_PEEK`: only look for a message.
    pub const PEEK: u64 = 1 << 19;
    /// `FI_TRIGGER`.
    pub const TRIGGER: u64 = 1 << 20;
    /// `FI_FENCE`: after all that was posted before to this peer.
    pub const FENCE: u64 = 1 << 21;
    /// `FI_COMPLETION`: a completion, where they are selective.
    pub const COMPLETION: u64 = 1 << 24;
    /// `FI_INJECT`: the buffer is free when the call returns.
    pub const INJECT: u64 = 1 << 25;
    /// `FI_INJECT_COMPLETE`: complete when the buffer is free.
    pub const INJECT_COMPLETE: u64 = 1 << 26;
    /// `FI_TRANSMIT_COMPLETE`: complete when no fault of this end can lose it.
    pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
    /// `FI_DELIVERY_COMPLETE`: complete when the bytes are where they belong.
    pub const DELIVERY_COMPLETE: u64 = 1 << 28;
    /// `FI_AFFINITY`: a signalling vector is given, of a queue.
    pub const AFFINITY: u64 = 1 << 29;
    /// `FI_COMMIT_COMPLETE`: complete when the bytes are durable.
    pub const COMMIT_COMPLETE: u64 = 1 << 30;
    /// `FI_MATCH_COMPLETE`: complete when a receive was found.
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
    /// `FI_SOURCE_ERR`: addresses of strangers come as errors.
    pub const SOURCE_ERR: u64 = 1 << 50;
    /// `FI_LOCAL_COMM`: to this host.
    pub const LOCAL_COMM: u64 = 1 << 51;
    /// `FI_REMOTE_COMM`: to other hosts.
    pub const REMOTE_COMM: u64 = 1 << 52;
    /// `FI_SHARED_AV`.
    pub const SHARED_AV: u64 = 1 << 53;
    /// `FI_PROV_ATTR_ONLY`: only names of providers are asked for.
    pub const PROV_ATTR_ONLY: u64 = 1 << 54;
    /// `FI_NUMERICHOST`: addresses are numbers.
    pub const NUMERICHOST: u64 = 1 << 55;
    /// `FI_RMA_EVENT`: peers' accesses are counted.
    pub const RMA_EVENT: u64 = 1 << 56;
    /// `FI_SOURCE`: who sent a message is told; of [`getinfo`](crate::ofi::Calls::getinfo) that names are our own.
    pub const SOURCE: u64 = 1 << 57;
    /// `FI_NAMED_RX_CTX`.
    pub const NAMED_RX_CTX: u64 = 1 << 58;
    /// `FI_DIRECTED_RECV`: a receive may name its peer.
    pub const DIRECTED_RECV: u64 = 1 << 59;
    /// `FI_CLAIM`: takes what a look has found.
    pub const CLAIM: u64 = 1 << 59;
    /// `FI_DISCARD`: drops what a look has found.
    pub const DISCARD: u64 = 1 << 58;
    /// `FI_SELECTIVE_COMPLETION`: of a binding: completions only where asked for.
    pub const SELECTIVE_COMPLETION: u64 = 1 << 59;
}

/// What a provider asks of its caller.
pub mod mode {
    /// `FI_CONTEXT`: a context is a [`Context`](crate::ofi::Context) that the provider may write while the operation lasts.
    pub const CONTEXT: u64 = 1 << 59;
    /// `FI_MSG_PREFIX`: room is left before messages.
    pub const MSG_PREFIX: u64 = 1 << 58;
    /// `FI_ASYNC_IOV`: lists of ranges stay until the operation ends.
    pub const ASYNC_IOV: u64 = 1 << 57;
    /// `FI_RX_CQ_DATA`: remote CQ data takes a receive.
    pub const RX_CQ_DATA: u64 = 1 << 56;
    /// `FI_LOCAL_MR`: as [`mr_mode::LOCAL`](crate::ofi::mr_mode::LOCAL); deprecated.
    pub const LOCAL_MR: u64 = 1 << 55;
    /// `FI_CONTEXT2`: a context is a [`Context2`](crate::ofi::Context2) that the provider may write while the operation lasts.
    pub const CONTEXT2: u64 = 1 << 52;
}
