//! Every bound of the machines in this crate, in one place. Changing one that docs/wire.md mentions changes the wire.

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

/// Bytes of the mailbox of a member of a group: what a further connection that shares queue pairs takes of registered memory.
pub const MEMBER_MAILBOX_BYTES: usize = 8 << 10;

/// Eager messages that may be unmatched at the sender.
pub const EAGER_CREDITS_MAX: usize = 32;

/// Writes with immediate that one message may be split into; longer messages announce themselves after placement.
pub const STRIPES_MAX: usize = 16;

/// Pieces of a message begin at multiples of so many bytes: a line of NCCL's LL128 protocol, whose flag must not arrive before
/// its data by another link.
pub const LINE_BYTES: u64 = 128;

/// The most bytes of a piece where one operation moves at most `most`: whole lines. An operation of less than a line cannot
/// carry one, and no NIC has so little.
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

/// Tokens of one comm: a buffer of a receive each.
pub const TOKENS_MAX: usize = RECVS_MAX * RECV_BUFFERS_MAX;

/// Groups that comms towards one peer are spread over, as a parameter may ask for.
pub const GROUPS_ASKED_MAX: u8 = 8;

/// Groups of one key, also while nothing forces comms to share.
pub const GROUPS_OF_KEY_MAX: u8 = 64;

/// Groups of one process, those of comms that share nothing included; as many as a process may have comms.
pub const GROUPS_MAX: usize = 65_535;

/// Asks of one attempt to connect: more than there can be groups of its key that the other end has lost.
pub const TURNS_MAX: u32 = 2 * GROUPS_OF_KEY_MAX as u32;

/// Receives of one member of a group that may be outstanding at once: what NCCL uses at most (`NCCL_NET_MAX_REQUESTS`).
pub const RANGE_RECVS: usize = 32;

/// Members of one group, each with its range of the tokens' slots; more comms begin another group.
pub const MEMBERS_OF_GROUP_MAX: usize = 128;

/// Longest message of a member of a group that goes in one piece without counting as a slice.
pub const SMALL_MAX: u64 = 32 << 10;

/// Longest slice of a message of a member of a group.
pub const SLICE_MAX: u64 = 256 << 10;

/// Slices that all members of a group may have under way together: a small message of another member waits for at most
/// 2 MiB of long ones.
pub const SLICES_MAX: u32 = 8;

/// Members of all groups of one process.
pub const MEMBERS_MAX: usize = 65_535;

/// Ids of groups and of seats in them that stay unused before one of them is given again.
pub const POOL_QUARANTINE: usize = 256;

/// Ids of members of one group that stay unused before one of them is given again.
pub const MEMBER_QUARANTINE: usize = 64;

/// Slots of the tokens of one group: the immediate has 15 bits for them.
pub const GROUP_TOKENS_MAX: usize = 1 << 15;

/// Registrations that a cache has at once, those that are being made or closed included.
pub const REGISTRATIONS_MAX: usize = 1 << 16;

/// Open scopes of a cache of registrations: an endpoint of each comm.
pub const REGISTRATION_SCOPES_MAX: usize = 1 << 16;

/// Users of one registration at once.
pub const REGISTRATION_USERS_MAX: u32 = 1 << 24;

/// Exports of memory that a process may have at once, those that are being ended included: slots of names.
pub const EXPORTS_MAX: usize = 1 << 16;

/// Processes that one shares memory with at once, in either direction.
pub const IPC_PEERS_MAX: usize = 1 << 10;

/// Operations that use one export, or one import, at once.
pub const IPC_PINS_MAX: u32 = 1 << 24;

/// Mappings of one export at one importer: devices, and ways to map.
pub const MAPPINGS_OF_IMPORT_MAX: usize = 32;

/// Requests to open or close memory of peers that a process may have under way in the thread that carries them out. One more waits until one of them has
/// ended.
pub const MAPPING_REQUESTS_MAX: usize = 64;

/// Names of one exporter that references are there for and no announcement yet.
pub const NAMES_AWAITED_MAX: usize = 64;

/// The longest run of sends that go another way after an importer could not map an export: doubled with each failure.
pub const IPC_PASSED_OVER_MAX: u16 = 1 << 10;

/// Heaps of one process of a one-sided job: as many as a byte names.
pub const RMA_HEAPS_MAX: usize = 256;

/// Bytes of a piece in which an entry's bytes come to memory of a device: while one is copied there, the next one is on its way over the network.
pub const DEVICE_PIECE_BYTES: u64 = 512 << 10;

/// Pieces of an entry that come to memory of a device at the same time.
pub const DEVICE_PIECES_MAX: u32 = 16;

/// Heaps that are told when a link is made, the first ones. Of others their owner tells by another way.
pub const RMA_HEAPS_TOLD_MAX: usize = 16;

/// Streams of one process towards another: contexts whose signals are ordered by themselves. Further contexts share them.
pub const RMA_STREAMS_MAX: usize = 64;

/// Writes of one epoch of a stream.
pub const RMA_EPOCH_WRITES_MAX: u32 = 1 << 31;

/// Atomics of one stream that were asked of a peer and not answered.
pub const RMA_CALLS_MAX: usize = 64;

/// Accepted control streams of one listener that have not shown a nonce of this process yet. Each is a descriptor; one more ends the oldest.
pub const UNPROVEN_STREAMS_MAX: usize = 256;

/// Such streams that are read each time the listener's streams are.
pub const UNPROVEN_READS_MAX: usize = 32;

/// How long such a stream may exist.
pub const UNPROVEN_TIME: Duration = Duration::from_secs(10);

/// Work for processes that have proved nothing, per listener: units at once, and the time after which there is one more. A stream that is accepted
/// is a unit, and each frame that is read from it until it has proved itself.
pub const STRANGER_BURST: u32 = 512;

/// See [`STRANGER_BURST`].
pub const STRANGER_PERIOD: Duration = Duration::from_millis(1);

/// Units of the same work that an OPEN costs on a stream that carries no connection: links are made for it, with rings and bounce buffers.
pub const STRANGER_OPEN_COST: u32 = 64;

/// Streams of one process of this host that have shown a nonce and carry no connection: a process has one per fabric that it opens. One more ends
/// the oldest.
pub const INVITED_STREAMS_MAX: usize = 8;

/// The same of all processes of other hosts together, which the kernel does not tell apart: as many ranks of a large job may wait for an accept at
/// once, and one more would end the oldest of them.
pub const INVITED_REMOTE_MAX: usize = 8192;

/// Links that a member of a one-sided job may ask a process for at once, on one control stream: more than it has streams and paths.
pub const DIALS_BURST: u32 = 512;

/// And the time after which it may ask for one more.
pub const DIALS_PERIOD: Duration = Duration::from_millis(10);

/// OPENs that wait at one listener until its owner accepts.
pub const OPENS_PENDING_MAX: usize = 4096;

/// Of them those on streams that carry no connection. Each holds up to two descriptors; one more is dropped, and is asked again.
pub const OPENS_INVITED_MAX: usize = 64;

/// OPENs that a listener remembers, so that one that comes again asks for nothing new.
pub const OPENS_SEEN_MAX: usize = 4096;

/// Events of control streams that wait for one context of a one-sided job. One more ends the stream that it came on.
pub const RMA_EVENTS_MAX: usize = 1 << 12;

const _: () = assert!(RANGE_RECVS <= RECVS_MAX && RANGE_RECVS.is_power_of_two());
const _: () = assert!(MEMBERS_OF_GROUP_MAX + MEMBER_QUARANTINE < 1 << 10);
const _: () = assert!(RECVS_MAX + EAGER_CREDITS_MAX <= MAILBOX_SLOTS);
const _: () = assert!(MAILBOX_SLOTS.is_power_of_two());
const _: () = assert!(SLICE_MAX.is_multiple_of(LINE_BYTES) && SMALL_MAX.is_multiple_of(LINE_BYTES));
