//! Every bound of the two-sided protocol, in one place. Changing one that docs/wire.md mentions changes the wire.

/// Buffers of one grouped receive (`maxRecvs` of NCCL's net interface).
pub const RECV_BUFFERS_MAX: usize = 8;

/// Receives of one comm that may be outstanding at once; NCCL uses at most 32 (`NCCL_NET_MAX_REQUESTS`).
pub const RECVS_MAX: usize = 64;

/// Sends of one comm that may be outstanding at once: 32 for each buffer of a grouped receive.
pub const SENDS_MAX: usize = 256;

/// Slots of the sender's mailbox: outstanding receives, plus those completed by eager messages whose records the
/// sender has not read yet, rounded up to a power of two.
pub const MAILBOX_SLOTS: usize = 128;

/// Eager messages that may be unmatched at the sender.
pub const EAGER_CREDITS_MAX: usize = 32;

/// Writes with immediate that one message may be split into; longer messages announce themselves after placement.
pub const STRIPES_MAX: usize = 16;

/// Rails of one comm, at each end (`NCCL_NET_MAX_DEVS_PER_NIC`).
pub const RAILS_MAX: usize = 4;

/// Links of one comm: a rail of the end that has fewer carries several.
pub const LINKS_MAX: usize = RAILS_MAX;

/// Tokens of one comm: a buffer of a receive each.
pub const TOKENS_MAX: usize = RECVS_MAX * RECV_BUFFERS_MAX;

const _: () = assert!(RECVS_MAX + EAGER_CREDITS_MAX <= MAILBOX_SLOTS);
const _: () = assert!(MAILBOX_SLOTS.is_power_of_two());
