//! The bounds of all machines in this crate, in one place. The machines and the engine use them. A change of one that docs/wire.md
//! mentions changes the wire format.

use crate::time::Duration;

/// Buffers of one grouped receive (`maxRecvs` of NCCL's net interface).
pub const RECV_BUFFERS_MAX: usize = 8;

/// Receives of one comm that may be outstanding at once; NCCL uses at most 32 (`NCCL_NET_MAX_REQUESTS`).
pub const RECVS_MAX: usize = 64;

/// Sends of one comm that may be outstanding at once: 32 for each buffer of a grouped receive.
pub const SENDS_MAX: usize = 256;

/// Slots of the sender's mailbox: outstanding receives, plus those completed by eager messages whose records the
/// sender has not read yet, rounded up to a power of two.
pub const MAILBOX_SLOTS: usize = 128;

/// Bytes of the mailbox of a group's member: the registered memory that a further connection over shared queue pairs costs.
pub const MEMBER_MAILBOX_BYTES: usize = 8 << 10;

/// Eager messages that may be unmatched at the sender.
pub const EAGER_CREDITS_MAX: usize = 32;

/// Writes with immediate that one message may be split into; a longer message is announced after all its bytes were placed.
pub const STRIPES_MAX: usize = 16;

/// Pieces of a message begin at multiples of these bytes. This is a line of NCCL's LL128 protocol, whose flag must not arrive
/// before its data over another link.
pub const LINE_BYTES: u64 = 128;

/// Returns the most bytes of a piece if one operation moves at most `most`: whole lines. An operation of less than a line
/// cannot carry one, and no NIC has such a limit.
#[must_use]
pub const fn whole_lines(most: u64) -> u64 {
    match most {
        0 => 1,
        1..LINE_BYTES => most,
        _ => most - most % LINE_BYTES,
    }
}

/// Rails of one comm, at each end (`NCCL_NET_MAX_DEVS_PER_NIC`).
pub const RAILS_MAX: usize = 4;

/// Links of one comm: a rail of the end that has fewer carries several.
pub const LINKS_MAX: usize = RAILS_MAX;

/// Tokens of one comm: one per buffer of each receive.
pub const TOKENS_MAX: usize = RECVS_MAX * RECV_BUFFERS_MAX;

/// Most groups per peer that the parameter may request.
pub const GROUPS_ASKED_MAX: u8 = 8;

/// Groups of one key, also while comms are not forced to share.
pub const GROUPS_OF_KEY_MAX: u8 = 64;

/// Groups of one process, including those of comms that share nothing: the same limit as for the comms of a process.
pub const GROUPS_MAX: usize = 65_535;

/// Requests of one connection attempt: more than the groups of its key that the other end can have lost.
pub const TURNS_MAX: u32 = 2 * GROUPS_OF_KEY_MAX as u32;

/// Receives of one member of a group that may be outstanding at once: the number that NCCL uses at most (`NCCL_NET_MAX_REQUESTS`).
pub const RANGE_RECVS: usize = 32;

/// Members of one group, each with its range of the tokens' slots; more comms begin another group.
pub const MEMBERS_OF_GROUP_MAX: usize = 128;

/// Longest message of a member of a group that is sent in one piece and does not count as a slice.
pub const SMALL_MAX: u64 = 32 << 10;

/// Longest slice of a message of a member of a group.
pub const SLICE_MAX: u64 = 256 << 10;

/// Slices that all members of a group may have in flight together: a small message of another member waits for at most
/// 2 MiB of long ones.
pub const SLICES_MAX: u32 = 8;

/// Members of all groups of one process.
pub const MEMBERS_MAX: usize = 65_535;

/// Ids of groups and of their members that stay unused before one of them is reused.
pub const POOL_QUARANTINE: usize = 256;

/// Ids of members of one group that stay unused before one of them is reused.
pub const MEMBER_QUARANTINE: usize = 64;

/// Slots of the tokens of one group: the immediate has 15 bits for them.
pub const GROUP_TOKENS_MAX: usize = 1 << 15;

/// Registrations that a cache has at once, including those that are being made or closed.
pub const REGISTRATIONS_MAX: usize = 1 << 16;

/// Open scopes of a registration cache: one endpoint per comm.
pub const REGISTRATION_SCOPES_MAX: usize = 1 << 16;

/// Users of one registration at once.
pub const REGISTRATION_USERS_MAX: u32 = 1 << 24;

/// Exports of memory that a process may have at once, including those that are being ended: slots of names.
pub const EXPORTS_MAX: usize = 1 << 16;

/// Processes with which one process shares memory at once, in either direction.
pub const IPC_PEERS_MAX: usize = 1 << 10;

/// Operations that use one export, or one import, at once.
pub const IPC_PINS_MAX: u32 = 1 << 24;

/// Mappings of one export at one importer: one per device and mapping method.
pub const MAPPINGS_OF_IMPORT_MAX: usize = 32;

/// Requests to open or close memory of peers that a process may have pending in the thread that executes them. A further request waits until one
/// of them has ended.
pub const MAPPING_REQUESTS_MAX: usize = 64;

/// Names of one exporter that messages refer to before their announcement has arrived.
pub const NAMES_AWAITED_MAX: usize = 64;

/// The longest run of sends that use another method after an importer could not map an export; the run doubles with each failure.
pub const IPC_PASSED_OVER_MAX: u16 = 1 << 10;

/// Heaps of one process of a one-sided job: the number that one byte can name.
pub const RMA_HEAPS_MAX: usize = 256;

/// Bytes of a piece of an entry that is copied to memory of a device. While one piece is copied, the next one is in flight over the network.
pub const DEVICE_PIECE_BYTES: u64 = 512 << 10;

/// Pieces of an entry that are copied to memory of a device at the same time.
pub const DEVICE_PIECES_MAX: u32 = 16;

/// Heaps that the message for a new link describes: the first ones. Their owner publishes the others separately.
pub const RMA_HEAPS_TOLD_MAX: usize = 16;

/// Streams from one process to another: contexts whose signals are ordered independently. Further contexts share them.
pub const RMA_STREAMS_MAX: usize = 64;

/// Writes in one epoch of a stream.
pub const RMA_EPOCH_WRITES_MAX: u32 = 1 << 31;

/// Atomics of one stream that were requested from a peer and have no reply yet.
pub const RMA_CALLS_MAX: usize = 64;

/// Accepted control streams of one listener that have not shown a nonce of this process yet. Each is a descriptor; a further one ends the oldest.
pub const UNPROVEN_STREAMS_MAX: usize = 256;

/// Unproven streams that are read in each pass over the listener's streams.
pub const UNPROVEN_READS_MAX: usize = 32;

/// How long an unproven stream may exist.
pub const UNPROVEN_TIME: Duration = Duration::from_secs(10);

/// Work for unproven processes, per listener: the most units at once. An accepted stream is a unit, and so is each frame that is read from it
/// until it has proved itself.
pub const STRANGER_BURST: u32 = 512;

/// Time after which one more unit of [`STRANGER_BURST`] is available.
pub const STRANGER_PERIOD: Duration = Duration::from_millis(1);

/// Units that an OPEN costs on a stream without connections, because links are made for it, with rings and bounce buffers.
pub const STRANGER_OPEN_COST: u32 = 64;

/// Streams of one process of this host that have shown a nonce and carry no connection: a process has one per fabric that it opens. A further
/// one ends the oldest.
pub const INVITED_STREAMS_MAX: usize = 8;

/// Such streams of all processes of other hosts together, because the kernel does not identify those processes. Many ranks of a large job may wait
/// for an accept at once, and a further stream ends the oldest.
pub const INVITED_REMOTE_MAX: usize = 8192;

/// Links that a member of a one-sided job may request from a process at once, on one control stream: more than its streams and paths need.
pub const DIALS_BURST: u32 = 512;

/// Time after which it may request one more.
pub const DIALS_PERIOD: Duration = Duration::from_millis(10);

/// OPENs that wait at one listener for an accept by its owner.
pub const OPENS_PENDING_MAX: usize = 4096;

/// OPENs among them on streams that carry no connection. Each holds up to two descriptors; a further one is dropped, and the peer repeats it.
pub const OPENS_INVITED_MAX: usize = 64;

/// OPENs that a listener remembers, so that a repeated OPEN makes no new connection.
pub const OPENS_SEEN_MAX: usize = 4096;

/// Events of control streams that wait for one context of a one-sided job. A further event ends the stream that it arrived on.
pub const RMA_EVENTS_MAX: usize = 1 << 12;

const _: () = assert!(RANGE_RECVS <= RECVS_MAX && RANGE_RECVS.is_power_of_two());
const _: () = assert!(MEMBERS_OF_GROUP_MAX + MEMBER_QUARANTINE < 1 << 10);
const _: () = assert!(RECVS_MAX + EAGER_CREDITS_MAX <= MAILBOX_SLOTS);
const _: () = assert!(MAILBOX_SLOTS.is_power_of_two());
const _: () = assert!(SLICE_MAX.is_multiple_of(LINE_BYTES) && SMALL_MAX.is_multiple_of(LINE_BYTES));
