//! Trunkline's protocol logic: pure state and wire formats.
//!
//! The engine drives it over a fabric, and the simulator drives the same engine. Nothing here reads a clock, makes a random number, allocates on a message's
//! path or does I/O. Time is an argument. A decision is returned as a value, and the caller carries it out.
//!
//! # Modules, in reading order
//!
//! - [`wire`]: parses and prints bytes as docs/wire.md defines them; a parsed value is always valid.
//! - [`comm`]: the decisions for each two-sided message, as plain functions.
//! - [`control`]: connect and accept, and the life of a control stream.
//! - [`link`]: the life of one link of a comm that has several.
//! - [`pool`]: which comms share queue pairs, and how they divide them.
//! - [`rma`]: one-sided communication: order, acknowledgements, completion, atomics.
//! - [`registrations`]: which registration of memory serves a request, and when it is closed. [`intervals`]: its index, also used by caches of mappings.
//! - [`chooser`]: which way of copying is the fastest for messages of a size.
//! - [`ipc`]: which memory of devices other processes of the node have mapped, and until when.
//! - [`tagged`]: which receive matches a message inside a node, and how its bytes are copied.
//! - [`ranges`]: which bytes of a symmetric heap are allocated.
//! - [`counters`]: the statistics of a process.
//! - [`reserve`]: allocations that may fail.
//! - [`log_rate`]: how often a line is logged that a peer can cause.
//!
//! # One send, as decisions
//!
//! ```text
//!  comm::sender                                    comm::receiver
//!  on_isend: Direct, Eager or NotYet               on_irecv: number, tokens        <- irecv
//!    Direct: a clear-to-send record has arrived      cts_fields: the record of a buffer
//!    Eager:  small, and there is eager credit        on_eager: match, or keep in a bounce buffer
//!    NotYet: the caller tries again                  on_imm, on_fin: a buffer is full -> receive complete
//! ```
//!
//! The engine posts the operation that a decision names, and calls the receiver's functions for completions. `crates/engine/src/lib.rs` has the whole walk.
//!
//! # Groups of shared queue pairs: the pool
//!
//! A process has one [`pool::GroupPool`]. It knows which comms may share (their *key*: peer, direction, NICs of both ends in order), which groups exist, which
//! members each group has, and how many queue pairs each NIC has left. It does nothing by itself: to make links, to ask the peer and to destroy links are
//! values that it returns.
//!
//! - *Placement.* The sending end decides, because it alone knows all its comms towards a process. It makes a further group while there are fewer than both
//!   ends want and queue pairs are left. Else it selects the group with the fewest members, then the least load. While the best group is still being made, the
//!   comm tries again later.
//! - *Agreement.* An *epoch* names the making of a group. A *proof*, a digest of both ends' link addresses, shows that the groups of the two ends are wired to
//!   each other. No member joins without both.
//! - *Shortage.* The more groups a key has, the emptier its NIC must be for another one, so that at least half of a NIC's queue pairs are left for comms that
//!   cannot share. A shortage at either end makes comms share before it makes them fail.
//! - *Members.* `wr_id`s, eager headers and ranges of token slots name a member (`pool/members.rs`, `pool/ranges.rs`), so a message needs no search and no
//!   allocation. All ids have generations, and an id is reused only after others have been used. A late message thus meets no member, and is counted.
//! - *Fairness* (`pool/credits.rs`). Members share by count the eager messages that the peer has room for, and the slices of long messages. Half are for any
//!   member, the other half for members that hold less than their part. So no member starves and nothing is overrun.
//! - *Mailboxes.* At the sending end a member's mailbox is a ring of 128 records (`wire/layout.rs`, `comm/ring.rs`). A member with several buffers per receive
//!   may thus have fewer receives outstanding than the usual 32: 12 of eight buffers, 4 over several links. At the receiving end it holds 256 fin records.
//! - *The end.* Members leave in any order. Queue pairs remain complete until the last member has left, are destroyed before their completion queues, and
//!   count as used until that is done. A break is reported once to each member, and the next comm begins a new group.
//!
//! # Registrations that several requests share
//!
//! The map of registrations ([`registrations`]) is an interval map with a count of users per entry. A request is served by a registration of the same scope
//! and memory with at least the same rights that contains the bytes, to the byte: nothing is rounded to pages.
//!
//! - A *scope* is the number of an endpoint or domain, never reused, so a new endpoint at the same address finds nothing of an earlier one.
//! - A NIC registers and closes without the lock. Meanwhile a thread that requests the same bytes waits, for a bounded time, and repeats its request.
//! - A registration with users is never closed. One without users is closed before the last release returns: no event reports that memory was freed, so none
//!   is kept. For the same reason a registration of which users hold only parts serves no new request: the rest may be other memory by now.
//! - An owner that does get free events calls [`registrations`]' `forget_memory`. Then no new request finds a registration that has a byte of that memory.
//!
//! # Memory shared inside a node
//!
//! - *One end decides.* The exporter knows every address and every free of its own memory, so it alone detects, completely, that an export overlaps a new
//!   allocation, or has its address and another id. It knows which peers received which export, and thus which peers must release it.
//! - *Messages contain names, not addresses*: a slot and a generation. They can be refused. They are valid from the second message on, mapped or not: 64
//!   messages about a new buffer cost one export, one announcement and one mapping.
//! - *Both ends pin.* An exporter recalls no export that a message uses. An importer unmaps no memory that it copies from, and reports the unmapping only
//!   afterwards. Ended exports that not all peers have released (*zombies*) count against the budget, as the driver still holds them.
//! - *Overlapping mappings are stale.* An importer unmaps them before it maps the new memory, so no driver has to refuse, and no message waits for a round
//!   trip. A stale mapping in use remains, and the new memory is copied in another way; so is a late message of the stale one.
//! - *A budget shrinks* as fast as messages end, however closely they follow each other. An export beyond the budget stops being part of it at once, and ends
//!   with its last message; no further message that wants it kept joins.
//! - *A search changes nothing.* It compares the entry found last, then descends a balanced tree: 25 and 183 instructions among 1,024 exports (`cargo xtask
//!   budget`, with the loop around them).
//!
//! `ipc/tests/model.rs` tries every sequence of events in small worlds of both machines, their streams and drivers, and checks that each ends. Random
//! sequences in larger worlds are those of `churn.rs`. Another file, `orders.rs`, compares the results of different orders of delivery.
//!
//! # How a tagged message is copied
//!
//! [`tagged`] matches messages and receives, and decides twice about a long message. The sender decides, as its memory can be mapped or not, and then the
//! receiver, if the sender's cannot. Then the receiver copies, the sender does, or both copy through a stage at the same time. Memory that is mapped is never
//! staged, and it is copied by turns, one message by each rank, only after 128 messages in a row that needed no new export.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod chooser;
pub mod comm;
pub mod control;
pub mod counters;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod id;
pub mod intervals;
pub mod ipc;
pub mod limits;
pub mod link;
pub mod log_rate;
pub mod nics;
pub mod pool;
mod queue;
pub mod ranges;
pub mod registrations;
pub mod reserve;
pub mod rma;
pub mod slots;
pub mod table_capacity;
pub mod tagged;
pub mod time;
pub mod wire;
