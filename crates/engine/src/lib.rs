//! The engine: one loop that drives Trunkline's protocols over any [`Fabric`](trunkline_fabric::Fabric).
//!
//! Front ends call [`Engine`] for messages and [`rma::RmaJob`] for one-sided work; the simulator calls the same. A *comm* is one directed connection of two
//! processes. Its link, completion queue and routing state form a *lane*, which one thread at a time may use. The engine never selects a fabric and contains
//! no code for one of them: capabilities become a plan when a comm is connected (`comm/plan.rs`). Its calls never wait for the network.
//!
//! # Files, in reading order
//!
//! - `engine.rs`: the calls of front ends. `engine/driver.rs` polls open comms, `engine/core.rs` has the tables.
//! - `comm/`: the two directions of a comm, `send.rs` and `recv.rs`; `request.rs`, the requests; `plan.rs`; `pieces.rs`, `fins.rs`, `stripe.rs`,
//!   `striped_recv.rs` for long messages and several links; `matched.rs` for NICs that pair messages.
//! - `link/`: links and rails of a group; `route.rs` routes completions to members; `failover.rs` replaces links.
//! - `lane.rs`, `turns.rs`, `wait.rs`, `helper.rs`: locks, waits, and the thread that makes progress on request.
//! - `control/`, `host/`: handshakes and closes; control streams of the operating system.
//! - `pool/`, `memory/`: groups of shared links; mailboxes, bounce buffers, registrations.
//! - [`rma`]: one-sided work. `status/`: the status page. `params.rs`: all settings.
//!
//! An [`Engine`] has three parts inside each other. `CommDriver` polls open comms and maintains their links. It owns `ConnectionSetup`: the control plane
//! behind its lock, and closed comms that linger. That one owns `EngineCore`: fabric, host, parameters, status page, and the tables of comms and groups.
//!
//! The second parameter of `Engine<F, H>` is a [`Host`](trunkline_fabric::Host), not just a clock as in the first design. With only the clock replaced, ids
//! would differ from run to run, and the simulator could not lose or delay a handshake on purpose.
//!
//! # One message, from isend to the completion
//!
//! The receive is usually posted first.
//!
//! 1. `irecv`: [`Engine::irecv_into`] finds the comm by index and generation, and locks its lane. If another thread holds the lane, it returns "call again".
//!    `RecvLane::start_recv` reserves a request. `MessageReceiver::on_irecv` numbers the receive and gives each buffer a token.
//! 2. `RecvLane::write_pending_records` writes one clear-to-send record per buffer into the sender's mailbox: an `Op::Write` of a self-validating record of 64
//!    bytes. Records of receives whose messages are small, and thus arrive eagerly, are written later, several at once (`RecvLane::count_announce_poll`): they
//!    only return eager credits. `RecvLane::deliver_eager` then matches eager messages that have already arrived.
//! 3. `isend`: [`Engine::isend_from`] finds and locks the comm in the same way. `SendLane::start_send` begins only with room for all operations of the
//!    message. Otherwise it has acquired nothing, and returns "call again".
//! 4. `MessageSender::on_isend` decides on plain state: `Direct` if the record has arrived, `Eager` if it has not, the message is small and there is eager
//!    credit, else `NotYet`, which costs one load.
//! 5. `send_eager` posts an `Op::Send` with a header of 16 bytes. `send_direct` posts an `Op::Write` to the place that the record names; its immediate carries
//!    the token back. A message that exceeds one operation of the NIC is sent in pieces, followed by a fin record (`post_piece`, `post_fin`). So is a message
//!    that is shorter than its receive, as most of NCCL's are, unless the receiver's NIC reports the length of a write (`TransferPlan::fin_due`). Payload of
//!    up to `inline_max` bytes is copied into the operation, and the request completes at once.
//! 6. With `TRUNKLINE_MATCH=nic` both sides post `Op::MatchedSend` and `Op::MatchedRecv` instead (`send_matched`, `post_matched`), and the NIC pairs them.
//! 7. `test`: [`Engine::test_count`] reads the outcome of the request. While it is pending, `LockedMember::progress_member` polls the rail.
//! 8. `RecvLane::on_completion` routes a completion: `on_written` for a write (`MessageReceiver::on_imm`, `on_fin`), `on_bounced` for an eager message
//!    (`MessageReceiver::on_eager`, then a copy to its buffer). An immediate of an older generation is counted and dropped. Sizes are protocol bytes, never a
//!    completion's length, unless the NIC guarantees that length.
//! 9. When the last buffer is full, `RequestTable::complete_request` stores sizes and state as atomics; `test` of any thread finds them without the lane. At
//!    the sender, `SendLane::on_completion` does the same after the last operation has completed.
//! 10. If the NIC requires flushes (`needs_flush`), NCCL then calls `iflush`. `RecvLane::start_flush` posts an `Op::Flush` on the own link, or an
//!     `Op::FlushAt` for memory of a device. A flush needs no peer: it may follow the peer's close, and it completes on a link in error.
//!
//! # Lanes and progress
//!
//! - A lane holds a *group*: rails with their completion queues and links, and the comms that use them, its members. A comm that shares nothing is a group of
//!   one, which costs nothing extra. Where comms share, the thread that polls delivers completions of all members directly (`route.rs`), without an inbox.
//! - *The lock* (`lane.rs`). `isend`, `irecv` and `test` try once. Registering, flushing and closing wait for the lock, and are let in first.
//! - *A waiting lane helps others.* A comm is polled only when a caller tests one of its requests. Yet the awaited message may depend on another comm of the
//!   same thread: in a ring, the peer's send needs our receive first. After a few fruitless polls `CommDriver::help_other_comm` drives the next open comm that
//!   this thread last used (`CommTable::next_of_thread`). It examines a handful of places, locks only free lanes, and waits for nothing.
//! - *An idle comm frees memory* (`memory/idle_timer.rs`). A comm without messages for a second empties its bounce buffers and lets its links free memory that
//!   only work needs (`LinkControl::trim_idle_memory`). The clock is read only once in many fruitless polls.
//! - *The helper thread* (`helper.rs`), with `TRUNKLINE_PROGRESS_THREAD=1`, drives open comms that no caller has polled since its last round, and handles
//!   control frames, so that a peer does not wait for a process that computes. It tries each lane once. It is off by default because two cores carry many
//!   ranks.
//! - *Set-up.* `connect` and `accept` never block. Each call advances the state machines of `trunkline_proto::control` by one step, under the lock of the
//!   control plane (`control/mod.rs`), which all comms share.
//!
//! # Groups of shared queue pairs
//!
//! With `TRUNKLINE_QP_SHARING`, N comms towards one process use a few groups of queue pairs. The rules are in [`trunkline_proto::pool`], which is pure;
//! `pool/membership.rs` carries out the decisions of the pool.
//!
//! - *Failure isolation* (`pool/revoke.rs`, `control/linger.rs`). A member that fails withdraws, and its links continue. Its memory in use is released when
//!   one of these has happened: the posted operations have completed, the NIC has retired the region so that later writes are dropped, or the peer has sent
//!   `GONE`. If none of them happens within the peer time, the links are given up for all members. A closed member keeps its place until its own operations
//!   are proven to have ended and the peer has sent `GONE`.
//! - *NICs that pair messages* (`comm/matched.rs`). Each member has its part of the queues for unpaired sends and receives, so that it keeps no other member
//!   out, and takes unpaired operations back when it fails or closes (`Rail::take_back`).
//! - *No thread waits for one lane while it holds another.* Leftovers of an attempt to connect are cleared when the lane of their group is free, because the
//!   thread that drives the control plane may hold that lane.
//! - *Several links* (`link/links.rs`). The first member that needs a link makes it, and it ends with its last member. Members lose, replay and take back
//!   links as unshared comms do, each by its own messages. A member that cannot get its part of a shared link, because one end has run out of a resource,
//!   works without it and requests it again later; the link continues.
//! - *Mailboxes* are places in a slab (`memory/slab.rs`), and bounce buffers belong to the group. A further connection takes 8 KiB of registered memory at
//!   each end, over one link or several. The slab grows by a quarter: at most that much is registered ahead or left over, and 128 members are in 22
//!   registrations.
//!
//! # Liveness
//!
//! - *Closing.* [`Engine::close`] sends CLOSE at once, with a count: a sending end reports the messages that it sent, a receiving end those that arrived. A
//!   receiver continues until the count is reached; a sender treats its last sends as done when all were counted. Requests that can no longer complete fail
//!   with [`CommFault::PeerClosed`]. A close with operations that still read the caller's memory ends the link, because that memory may vanish next.
//! - *Lingering.* A closed sending lane lingers (`control/linger.rs`) until its messages have arrived, the peer is dead, or `TRUNKLINE_PEER_TIME_MS` has
//!   passed.
//! - *Death.* A lane that has waited for `idle_polls` polls checks the control stream of its peer (`CommDriver::check_peer`). If the stream is lost, data that
//!   the peer sent before is received, and every other request fails with [`CommFault::PeerDead`]. Silence is not death: data streams have no timeout, because
//!   a stopped reader whose window is full would count as silent.
//! - *Broken links.* A link that breaks while the stream stands has the same time to find its cause. Then it fails as [`CommFault::Link`].
//! - *Names prove nothing.* Any process of the host may connect and present the id of another one. So each stream has a peer of its own, and carries our
//!   requests only if this process opened it, at the address where the peer listens. Two processes that connect to each other have two streams.
//! - *Admission.* On one host only processes of the same user may connect, as the kernel reports it (`host/local.rs`). At most 256 streams may be unproven,
//!   each for 10 s (`trunkline_proto::control`, `unproven.rs`). The work for all of them is bounded per second (`budget.rs`), and refusals are logged at a
//!   bounded rate. Members of a one-sided job prove their identity to each other (`control/member_key.rs`).
//! - *Abandoned attempts.* An attempt to connect whose caller has not called for `TRUNKLINE_CONNECT_TIME_MS` is given up. Only time in which the process makes
//!   calls counts.
//!
//! # One-sided work
//!
//! [`rma`] applies the rules of [`trunkline_proto::rma`] over the same fabrics and hosts. A [`rma::RmaJob`] is the part of one process in a job.
//!
//! - It *serves* by one lane (`service.rs`), which owns the far ends of all links to the process, applies signals, executes atomics and replies.
//! - It *begins* operations by contexts (`context.rs`, `post.rs`, `atomics.rs`, `paths.rs`): a lane each, with rails of its own and, over each path, a link to
//!   each member that an operation has named. Contexts of different threads share nothing, and the service knows no operation that its own process has begun.
//! - The two meet only in control streams (`streams.rs`, `control_messages.rs`), which request, lose and release links. The thread that reads a stream queues
//!   its messages for the context.
//!
//! So an uncounted put costs its target nothing, a member that no operation names costs no link, and a thread that makes progress for a computing process
//! needs one lane. The process that owns a word executes its atomics, so the result does not depend on the NIC or process that requests them. Where each
//! process has one NIC that executes atomics, and no other, the NICs may do it (`atomics.rs`).
//!
//! *Heaps* (`heaps.rs`, `heap.rs`) are memory by number. Descriptors of the first sixteen are sent with each link. A process may add and remove more at any
//! time; the front ends then exchange the descriptors (`RmaJob::heap_descriptors`, `RmaJob::set_member_heap`). Memory that the CPU cannot access, such as a
//! GPU's, has an accessor for its words ([`rma::WordAccess`]).
//!
//! *A path that fails* is left at both ends before its operations are posted again (`paths.rs` here and in `proto`). The initiator puts its end into error and
//! reports that; the target receives the remaining data, ends the link, and replies with its delivery report. So nothing lands late over newer data, and both
//! know which signals and how many counted writes have arrived. Unconfirmed operations are repeated over the other paths (`trunkline_proto::rma::redo`):
//!
//! - writes, without immediates; their number is reported once they have arrived;
//! - signals that did not arrive;
//! - atomic requests, in their slots, whose owner knows which of them it has executed.
//!
//! No time limit is involved: a stopped target is waited for, and its death is detected by its control stream. Bytes that were passed by value are kept until
//! they have arrived, at most 1 KiB each, and only by contexts that have several paths to a member.
//!
//! *Progress.* A thread that waits in a call serves with each try. While no thread does, the service thread (`service_thread.rs`) serves, if the front end
//! started one. Links are polled each time, control streams less
//! often, because a stream costs a system call, and is readable only when a link is made or a process ends.
//!
//! *Not implemented.* A lost path is not made again. A put that is under way when its path is lost may be written twice. That does not harm a target that
//! waits for a signal or a quiet. A target that detects the put by its bytes, and then changes them itself, may find the put's bytes again.
//!
//! # Memory and the status page
//!
//! A region is registered with a role, data or control, which is a type. A failed allocation is an error: tables are made before links, places and
//! descriptors, so that an error path has little to release. Operations that all ranks perform together make their tables before the ranks agree, where
//! possible. So a rank without memory refuses, and no rank waits for it. `tests/refusals` runs the contract and the main paths with an allocator that refuses
//! the n-th large allocation.
//!
//! Eager messages are copied by the processor, so a NIC that reaches memory of devices grants none (`TransferPlan::new`): the buffer of a message is known
//! only after it has arrived. A flush may read a region; the region is released only when the flush has completed (`memory/registering.rs`). A failed comm
//! retires a region whose keys its peer may still use (`is_named` in `pool/revoke.rs`).
//!
//! Each process keeps a status page (`status/`): counters, a row for each comm, and a record for each of the first 32 groups.
//!
//! - *Where.* A sealed memory file, found by its name among a process's descriptors in `/proc`. A file in `/dev/shm` would outlive a killed process, and
//!   differ in each container. The page ends with its process and needs no directory. It is readable from outside of namespaces, by every process that the
//!   kernel allows to inspect this one: those of the same user and of root. Only its maker can write it. It records its owner, so an inherited descriptor does
//!   not mislead.
//! - *Cost.* Three plain stores per message at each end: begun, ended, bytes. The words belong to the lane of the comm, so nothing is contended. A row
//!   continues to count when another comm reuses it, so a total is a sum over rows. A group writes its numbers when a member is added or removed and at every
//!   256th poll.
//! - *Trust.* The engine never bases a decision on the page. A reader copies words, checks the sequence of a row, and parses the copy as hostile bytes.
//! - Without a page (`TRUNKLINE_STATUS=0`, the simulator, a system that refuses one, which logs a warning) the same words are in ordinary memory.
#![forbid(unsafe_code)]

mod comm;
mod control;
mod engine;
mod error;
#[cfg(test)]
mod flood_host;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod helper;
pub mod host;
mod id;
mod lane;
#[cfg(test)]
mod lane_tests;
mod link;
mod memory;
mod nics;
mod params;
mod pool;
pub mod rma;
mod status;
mod sync;
mod turns;
#[cfg(test)]
mod turns_tests;
mod wait;

pub use control::member_key::{MemberKey, ProofPurpose};
pub use engine::{Engine, OffsetBase, RecvBuf};
pub use error::{CommFault, EngineError, in_full};
pub use helper::{HelperRound, HelperThread};
pub use id::{CommId, ListenId, MrId, RequestId};
pub use nics::CommNics;
pub use params::{
    EngineParams, ExecuteBy, FabricName, MatchBy, OfiParams, SharedHeap, SharingParams, SoftCopy, SoftParams,
};
pub use pool::groups::SharingUsage;
pub use status::{StatusPageError, read_head, read_status};
pub use trunkline_proto::counters::Counters;
pub use trunkline_proto::pool::config::TrafficHint;
pub use turns::ExecutorLock;
pub use wait::{BackoffStep, RestMethod, WaitBackoff, WaitPolicy};
