// The same protocol on a queue pair of NVIDIA's NICs (the mlx5 family): the NIC reads the ring, and no thread executes entries.
//
// Reserving, publishing and submitting are those of queue.h. This file contains the differences: work queue entries of that NIC, its
// doorbell, and completions that it writes. Every entry is signalled, and only this code polls the completion queue. So the index of an
// entry is that of its completion, and a WAIT of the companion queue pair can name it. Tests compare the formats with
// crates/proto/src/wire/mlx5.
#ifndef TRUNKLINE_DEVICE_MLX5_H
#define TRUNKLINE_DEVICE_MLX5_H

#include "trunkline/device/abi.h"
#include "trunkline/device/lane.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"
#include "trunkline/device/successor.h"

namespace trunkline {
namespace mlx5 {

constexpr u32 INLINE_MAX = 28;
constexpr u32 WORD_LOCK = 64;  // behind the producers' words, in a line of its own
constexpr u32 WORDS_BYTES = 640;

constexpr u8 OPCODE_NOP = 0x00;
constexpr u8 OPCODE_RDMA_WRITE = 0x08;
constexpr u8 OPCODE_WAIT = 0x0f;
constexpr u8 OPCODE_RDMA_READ = 0x10;
constexpr u8 OPCODE_ATOMIC_CS = 0x11;
constexpr u8 OPCODE_ATOMIC_FA = 0x12;
constexpr u8 OPCODE_DUMP = 0x23;

constexpr u8 CONTROL_COMPLETES = 2 << 2;
constexpr u32 DATA_INLINE = 1u << 31;

constexpr u8 CQE_REQUEST = 0;
constexpr u8 CQE_INVALID = 15;
constexpr u32 CQE_VENDOR = 54;
constexpr u32 CQE_SYNDROME = 55;
constexpr u32 CQE_OWNER = 63;

// The fence of an entry: the three bits of the control segment. READS_AND_ATOMICS does not cover writes, which a queue pair places in order
// anyway.
enum Fence : u8 { FENCE_NONE = 0, FENCE_SMALL = 1, FENCE_READS_AND_ATOMICS = 2, FENCE_STRONG = 3, FENCE_VERBS = 4 };

// A queue pair as its producers see it: addresses that are valid where the kernel runs. Created by the host, read only. The completion
// queue is as deep as the ring, serves this queue pair alone, and may overrun.
struct QueuePair {
    u64 *words;      // producers' words and the lock, in memory of this device
    u64 *ring;       // 64 bytes each
    u8 *cqes;        // 64 bytes each
    u32 *record;     // the send queue's half of the doorbell record
    u64 *doorbell;   // the register
    u64 *abort;      // the reason of an abort, or 0; written by the host, only loaded here
    u64 *claims;     // as in View: the first word determines which thread aborts first
    u32 depth;       // 1 << shift
    u32 shift;
    u32 number;      // of the queue pair, 24 bits
    u32 epoch;
    u32 cq;          // number of its completion queue, 24 bits
    u32 sink;        // key of the region that receives the old values of atomics: 8 bytes that begin at address 0
    u64 reserved[6];
};

static_assert(sizeof(QueuePair) == 128 && alignof(QueuePair) == 8, "QueuePair");

// A queue pair, and its companion on a connection back to this NIC; null: this lane has no counters.
struct Lane {
    const QueuePair *main;
    const QueuePair *companion;
};

// An entry without its index: 64 bytes, big-endian.
struct Entry {
    u8 opcode;
    u8 segments;
    u8 flags;
    u64 words[8];
};

static_assert(sizeof(Entry) == 72, "Entry");

TRUNKLINE_FN u64 big_endian(u64 value) {
    value = (value & 0x00ff00ff00ff00ffull) << 8 | ((value >> 8) & 0x00ff00ff00ff00ffull);
    value = (value & 0x0000ffff0000ffffull) << 16 | ((value >> 16) & 0x0000ffff0000ffffull);
    return value << 32 | value >> 32;
}

// Combines two words of 4 bytes, the first one first.
TRUNKLINE_FN u64 big_endian(u32 first, u32 second) { return big_endian((u64)first << 32 | second); }

TRUNKLINE_FN Entry entry_of(u8 opcode, u8 segments) {
    return Entry{opcode, segments, CONTROL_COMPLETES, {0, 0, 0, 0, 0, 0, 0, 0}};
}

TRUNKLINE_FN Entry fenced(Entry entry, Fence fence) {
    entry.flags = (u8)(CONTROL_COMPLETES | fence << 5);
    return entry;
}

TRUNKLINE_FN void put_remote(Entry &entry, const Remote &remote) {
    entry.words[2] = big_endian(remote.addr);
    entry.words[3] = big_endian(remote.key, 0);
}

TRUNKLINE_FN void put_local(Entry &entry, u32 word, const Local &local, u32 len) {
    entry.words[word] = big_endian(len, local.key);
    entry.words[word + 1] = big_endian(local.addr);
}

TRUNKLINE_FN Entry entry_nop() { return entry_of(OPCODE_NOP, 1); }

// Writes up to LENGTH_MAX bytes. For 0 bytes the entry has no data segment.
TRUNKLINE_FN Entry entry_write(const Local &from, const Remote &to, u32 len) {
    Entry entry = entry_of(OPCODE_RDMA_WRITE, len == 0 ? 2 : 3);
    put_remote(entry, to);
    if (len != 0) put_local(entry, 4, from, len);
    return entry;
}

// Writes 1 to INLINE_MAX bytes, which are copied into the entry.
TRUNKLINE_FN Entry entry_write_inline(const void *bytes, u32 len, const Remote &to) {
    Entry entry = entry_of(OPCODE_RDMA_WRITE, len <= 12 ? 3 : 4);
    put_remote(entry, to);
    entry.words[4] = big_endian(len | DATA_INLINE, 0);
    for (u32 at = 0; at < len && at < INLINE_MAX; at++)
        entry.words[4 + (4 + at) / 8] |= (u64)((const u8 *)bytes)[at] << (8 * ((4 + at) % 8));
    return entry;
}

// Reads 1 to LENGTH_MAX bytes.
TRUNKLINE_FN Entry entry_read(const Local &into, const Remote &from, u32 len) {
    Entry entry = entry_of(OPCODE_RDMA_READ, 3);
    put_remote(entry, from);
    put_local(entry, 4, into, len);
    return entry;
}

// Returns the sink, which receives the old value of a word that no caller needs: a region of 8 bytes that begins at address 0, wherever its
// memory is.
TRUNKLINE_FN Local sink_of(const QueuePair &queue) {
    return Local{0, queue.sink};
}

TRUNKLINE_FN Entry entry_add(const Remote &at, u64 value, const Local &old) {
    Entry entry = entry_of(OPCODE_ATOMIC_FA, 4);
    put_remote(entry, at);
    entry.words[4] = big_endian(value);
    put_local(entry, 6, old, 8);
    return entry;
}

TRUNKLINE_FN Entry entry_swap_if(const Remote &at, u64 swap, u64 compare, const Local &old) {
    Entry entry = entry_of(OPCODE_ATOMIC_CS, 4);
    put_remote(entry, at);
    entry.words[4] = big_endian(swap);
    entry.words[5] = big_endian(compare);
    put_local(entry, 6, old, 8);
    return entry;
}

// Holds the queue pair until a completion queue has produced completion number `index`, of which the NIC compares 32 bits.
TRUNKLINE_FN Entry entry_wait(u32 cq, u64 index) {
    Entry entry = entry_of(OPCODE_WAIT, 2);
    entry.words[3] = big_endian((u32)index, cq);
    return entry;
}

// Reads local bytes and discards them, behind all bytes placed before: it flushes the data of a READ.
TRUNKLINE_FN Entry entry_dump(const Local &from, u32 len) {
    Entry entry = entry_of(OPCODE_DUMP, 2);
    put_local(entry, 2, from, len);
    return entry;
}

// The functions that queue.h needs for a queue.

TRUNKLINE_CALL void put_entry(const QueuePair &queue, u64 index, const Entry &entry) {
    u64 *place = queue.ring + (index & (queue.depth - 1)) * 8;
    u64 first = big_endian((u32)(index & 0xffff) << 8 | entry.opcode, queue.number << 8 | entry.segments);
    sys_store_pair(place, first, big_endian(entry.flags, 0));
    for (u32 at = 2; at < 8; at += 2) sys_store_pair(place + at, entry.words[at], entry.words[at + 1]);
}

TRUNKLINE_FN void put_nop(const QueuePair &queue, u64 index) { put_entry(queue, index, entry_nop()); }

TRUNKLINE_FN Ticket ticket_of(const QueuePair &queue, u64 index) { return Ticket{queue.number, queue.epoch, index}; }

// The part of ring that one lane of a wavefront executes in its turn. The lock's holder is always a running thread: with lanes in lockstep
// it belongs to another wavefront.
TRUNKLINE_FN void ring_in_turn(const QueuePair &queue) {
    u64 *lock = queue.words + WORD_LOCK;
    TRUNKLINE_WAITS("lock");
    while (dev_cas(lock, 0, 1) != 0) pause();
    TRUNKLINE_WAITED("lock");
    u64 end = dev_load(queue.words + WORD_SUBMITTED);
    // The record is written before the register: the NIC recovers from it if the register write was lost.
    sys_fence();
    sys_store_u32(queue.record, (u32)(big_endian(end & 0xffff) >> 32));
    TRUNKLINE_STEP("record");
    sys_fence();
    sys_store_register(queue.doorbell, big_endian((u32)(end & 0xffff) << 8, queue.number << 8));
    TRUNKLINE_STEP("register");
    dev_store(lock, 0);
}

// Rings the doorbell, one thread at a time: a record or register that moves backwards would mean 65,536 more entries to the NIC.
TRUNKLINE_CALL void ring(const QueuePair &queue, u64) {
    for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns))
        if (is_own_turn(turns)) ring_in_turn(queue);
}

TRUNKLINE_FN bool is_aborted(const QueuePair &queue, Wait &how) {
    u64 word = sys_load(queue.abort);
    if (word == 0) word = dev_load(queue.claims + CLAIM_ABORT);
    if (word == 0) return false;
    how = Wait{ABORTED, status_of(word, STATUS_ABORTED), (u32)(word >> 32), 0};
    return true;
}

// Aborts this queue pair for its users on this device. Returns whether this is the first reason.
TRUNKLINE_FN bool abort(const QueuePair &queue, u16 status, u32 reason) {
    u64 word = halves(status == STATUS_DONE ? STATUS_ABORTED : status, reason);
    return dev_cas(queue.claims + CLAIM_ABORT, 0, word) == 0;
}

// The state of a completion that the NIC writes.
enum Cqe : u32 { CQE_NOT_YET = 0, CQE_DONE = 1, CQE_FAILED = 2 };

// Valid only for indices from the shadow on, less than the depth ahead: no other completion can be in their places.
TRUNKLINE_FN Cqe look_at(const QueuePair &queue, u64 index) {
    u8 owner = sys_load_u8(queue.cqes + (index & (queue.depth - 1)) * 64 + CQE_OWNER);
    bool is_here = (owner & 1) == ((index >> queue.shift) & 1);
    if (owner >> 4 == CQE_INVALID || !is_here) return CQE_NOT_YET;
    sys_fence();
    return owner >> 4 == CQE_REQUEST ? CQE_DONE : CQE_FAILED;
}

TRUNKLINE_FN u64 completed_near(const QueuePair &queue, u64 needed) {
    return look_at(queue, needed - 1) == CQE_DONE ? needed : dev_load(queue.words + WORD_SHADOW);
}

TRUNKLINE_FN u16 status_of_syndrome(u8 syndrome) {
    switch (syndrome) {
        case 0x01:
        case 0x02: return STATUS_BAD_ENTRY;
        case 0x04:
        case 0x11:
        case 0x12:
        case 0x13: return STATUS_ACCESS;
        case 0x05: return STATUS_FLUSHED;
        case 0x15: return STATUS_PEER_DEAD;
        default: return STATUS_NETWORK;
    }
}

// Finds the first failed entry, if there is one. The shadow never passes it: the walk over good completions ends there.
TRUNKLINE_CALL bool has_failed(const QueuePair &queue, Wait &how) {
    u64 index = dev_load(queue.words + WORD_SHADOW);
    for (u32 at = 0; at < queue.depth; at++, index++) {
        Cqe cqe = look_at(queue, index);
        if (cqe == CQE_NOT_YET) break;
        if (cqe == CQE_FAILED) {
            const u8 *bytes = queue.cqes + (index & (queue.depth - 1)) * 64;
            u8 syndrome = sys_load_u8(bytes + CQE_SYNDROME);
            u32 detail = syndrome | (u32)sys_load_u8(bytes + CQE_VENDOR) << 8;
            how = Wait{FAILED, status_of_syndrome(syndrome), detail, index};
            return true;
        }
    }
    dev_advance(queue.words + WORD_SHADOW, index);
    return false;
}

TRUNKLINE_FN bool is_over(const QueuePair &queue, Wait &how) { return has_failed(queue, how) || is_aborted(queue, how); }

// Polls a ticket once. True if the entry has ended, and how in `how`.
TRUNKLINE_CALL bool poll(const QueuePair &queue, const Ticket &ticket, Wait &how) {
    how = ended(STALE);
    if (ticket.queue != queue.number || ticket.epoch != queue.epoch) return true;
    how = good();
    u64 shadow = dev_load(queue.words + WORD_SHADOW);
    if (is_before(ticket.index, shadow)) return true;
    Cqe cqe = ticket.index - shadow < queue.depth ? look_at(queue, ticket.index) : CQE_NOT_YET;
    if (cqe == CQE_DONE) {
        dev_advance(queue.words + WORD_SHADOW, ticket.index + 1);
        return true;
    }
    if (cqe == CQE_FAILED && has_failed(queue, how)) {
        // A thread that was delayed for two laps may have read the completion of a later entry.
        if (is_before(ticket.index, how.first_bad)) how = good();
        return true;
    }
    return is_aborted(queue, how);
}

// Operations, as those of the successor on one lane.

TRUNKLINE_FN Post check_put(const Lane &lane, const Bytes &bytes, const With &with) {
    if (bytes.len == 0) return not_posted(EMPTY);
    if (!is_in_range(bytes)) return not_posted(RANGE);
    if (with.counter != nullptr && lane.companion == nullptr) return Post{COMPANION, ended(REFUSED)};
    return posted();
}

// Raises a counter when an entry has completed: the companion waits for the completion, then adds over its connection back to this NIC. The
// counter's key is that of its region here.
TRUNKLINE_CALL Post count(const Lane &lane, const Ticket &of, const Addition &counter, Budget &budget) {
    const QueuePair &companion = *lane.companion;
    Entry entries[2] = {mlx5::entry_wait(lane.main->cq, of.index),
                        mlx5::entry_add(counter.at, counter.value, sink_of(companion))};
    Ticket last;
    return post(companion, entries, 2, budget, last);
}

TRUNKLINE_FN Entry entry_of_nth(const Bytes &bytes, u64 nth) {
    u64 offset = nth * LENGTH_MAX;
    u64 left = bytes.len - offset;
    Local from = {bytes.from.addr + offset, bytes.from.key};
    Remote to = {bytes.to.addr + offset, bytes.to.key, bytes.to.peer};
    return mlx5::entry_write(from, to, (u32)(left < LENGTH_MAX ? left : LENGTH_MAX));
}

// Posts the entries from number `next` on that fit into the queue. One lane of a wavefront executes it in its turn.
TRUNKLINE_FN Post write_in_turn(const QueuePair &queue, const Bytes &bytes, const Addition *signal, u64 &next, Budget &budget,
                                Ticket &write_done, Ticket &last) {
    u64 writes = pieces_of(bytes);
    u64 left = writes + (signal != nullptr) - next;
    Reservation taken;
    Post result = reserve_within(queue, left < queue.depth ? (u32)left : queue.depth, budget, taken);
    if (result.kind != POSTED) return result;
    for (u32 at = 0; at < taken.count; at++, next++) {
        if (next < writes) write_done = ticket_of(queue, taken.first + at);
        write(queue, taken, next < writes ? entry_of_nth(bytes, next) : mlx5::entry_add(signal->at, signal->value, sink_of(queue)));
    }
    return finish(queue, taken, budget, last);
}

// Writes bytes, then raises a signal, then raises a local counter for the last WRITE; signal and counter are optional.
TRUNKLINE_CALL Post put(const Lane &lane, const Bytes &bytes, const With &with, Budget &budget, Ticket &write_done,
                        Ticket &last) {
    Post result = check_put(lane, bytes, with);
    if (result.kind != POSTED) return result;
    u64 total = pieces_of(bytes) + (with.signal != nullptr);
    u64 next = 0;
    while (next != total && result.kind == POSTED)
        for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns))
            if (is_own_turn(turns)) result = write_in_turn(*lane.main, bytes, with.signal, next, budget, write_done, last);
    if (result.kind != POSTED || with.counter == nullptr) return result;
    return count(lane, with.counter_after_signal ? last : write_done, *with.counter, budget);
}

TRUNKLINE_FN Post put_inline(const Lane &lane, const void *bytes, u32 len, const Remote &to, Budget &budget, Ticket &ticket) {
    if (len == 0) return not_posted(EMPTY);
    if (len > INLINE_MAX) return not_posted(RANGE);
    Entry entry = mlx5::entry_write_inline(bytes, len, to);
    return post(*lane.main, &entry, 1, budget, ticket);
}

// Reads 1 to LENGTH_MAX bytes, which are visible here when the ticket is done.
TRUNKLINE_FN Post get(const Lane &lane, const Local &into, const Remote &from, u64 len, Budget &budget, Ticket &ticket) {
    if (len == 0) return not_posted(EMPTY);
    if (len > LENGTH_MAX) return not_posted(RANGE);
    Entry entries[2] = {mlx5::entry_read(into, from, (u32)len), fenced(mlx5::entry_dump(into, 1), FENCE_READS_AND_ATOMICS)};
    return post(*lane.main, entries, 2, budget, ticket);
}

// Raises a signal behind earlier reads and atomics.
TRUNKLINE_FN Post signal(const Lane &lane, const Addition &signal, Budget &budget, Ticket &ticket) {
    Entry entry = fenced(mlx5::entry_add(signal.at, signal.value, sink_of(*lane.main)), FENCE_READS_AND_ATOMICS);
    return post(*lane.main, &entry, 1, budget, ticket);
}

// Replaces a word of the peer if it equals `compare`. The old value is written to `old`.
TRUNKLINE_FN Post swap_if(const Lane &lane, const Remote &at, u64 swap, u64 compare, const Local &old, Budget &budget,
                          Ticket &ticket) {
    Entry entry = mlx5::entry_swap_if(at, swap, compare, old);
    return post(*lane.main, &entry, 1, budget, ticket);
}

}  // namespace mlx5
}  // namespace trunkline

#endif
