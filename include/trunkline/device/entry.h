// Entries: operations for a queue, as the eight words in its ring.
#ifndef TRUNKLINE_DEVICE_ENTRY_H
#define TRUNKLINE_DEVICE_ENTRY_H

#include "trunkline/device/abi.h"
#include "trunkline/device/platform.h"

namespace trunkline {

// The entries that must have ended before an entry begins, in addition to the queue's own rules.
enum Fence : u8 {
    FENCE_NONE = 0,
    FENCE_READS_AND_ATOMICS = FLAG_FENCE_READS_AND_ATOMICS,
    FENCE_ALL = FLAG_FENCE_ALL,
};

TRUNKLINE_FN Entry entry_of(Op op) { return Entry{0, op, FLAG_COMPLETES, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; }

TRUNKLINE_FN Entry fenced(Entry entry, Fence fence) {
    entry.flags = (u8)((entry.flags & ~(FLAG_FENCE_READS_AND_ATOMICS | FLAG_FENCE_ALL)) | fence);
    return entry;
}

// Sets the tag, for traces.
TRUNKLINE_FN Entry tagged(Entry entry, u16 tag) {
    entry.tag = tag;
    return entry;
}

TRUNKLINE_FN Entry towards(Entry entry, const Remote &remote) {
    entry.remote = remote.addr;
    entry.remote_key = remote.key;
    entry.peer = remote.peer;
    return entry;
}

TRUNKLINE_FN Entry entry_nop() { return entry_of(OP_NOP); }
// Makes data that was read or written here visible to the device.
TRUNKLINE_FN Entry entry_show() { return entry_of(OP_SHOW); }
// Completes when all earlier entries have.
TRUNKLINE_FN Entry entry_barrier() { return entry_of(OP_BARRIER); }

// Writes at most LENGTH_MAX bytes.
TRUNKLINE_FN Entry entry_write(const Local &from, const Remote &to, u64 len) {
    Entry entry = towards(entry_of(OP_WRITE), to);
    entry.local = from.addr;
    entry.local_key = from.key;
    entry.len = len;
    return entry;
}

// As entry_write, with an immediate that the target receives when the bytes have arrived.
TRUNKLINE_FN Entry entry_write_telling(const Local &from, const Remote &to, u64 len, u32 number) {
    Entry entry = entry_write(from, to, len);
    entry.flags |= FLAG_IMMEDIATE;
    entry.operand = number;
    return entry;
}

// Has a WRITE raise a counter of this process once it has completed. `poisoned`: a poison word follows the counter.
TRUNKLINE_FN Entry entry_counted(Entry write, const Local &counter, u32 value, bool poisoned) {
    write.flags |= FLAG_COUNTED;
    if (poisoned) write.flags |= FLAG_POISONED;
    write.operand = counter.addr;
    write.comparand = counter.key | (u64)value << 32;
    return write;
}

// Writes at most INLINE_BYTES_MAX bytes, which are copied into the entry.
TRUNKLINE_FN Entry entry_write_inline(const void *bytes, u32 len, const Remote &to) {
    Entry entry = towards(entry_of(OP_WRITE), to);
    u64 words[3] = {0, 0, 0};
    for (u32 at = 0; at < len && at < INLINE_BYTES_MAX; at++)
        words[at / 8] |= (u64)((const u8 *)bytes)[at] << (8 * (at % 8));
    entry.flags |= FLAG_INLINE;
    entry.local = words[0];
    entry.operand = words[1];
    entry.comparand = words[2];
    entry.len = len;
    return entry;
}

// Reads at most LENGTH_MAX bytes.
TRUNKLINE_FN Entry entry_read(const Local &into, const Remote &from, u64 len) {
    Entry entry = towards(entry_of(OP_READ), from);
    entry.local = into.addr;
    entry.local_key = into.key;
    entry.len = len;
    return entry;
}

// Changes the word at `at`. OP_ADD, OP_SET and OP_MAX use one operand. OP_SWAP_IF compares the word with `comparand`; OP_ADD_MASKED uses it
// as the highest bits of the numbers in the word. `poisoned`: a poison word follows the word.
TRUNKLINE_FN Entry entry_atomic(Op op, const Remote &at, u64 operand, u64 comparand, bool poisoned) {
    Entry entry = towards(entry_of(op), at);
    entry.operand = operand;
    entry.comparand = op == OP_SWAP_IF || op == OP_ADD_MASKED ? comparand : 0;
    if (poisoned) entry.flags |= FLAG_POISONED;
    return entry;
}

// Holds the queue until an entry of another queue has completed.
TRUNKLINE_FN Entry entry_wait(u32 queue, u64 index) {
    Entry entry = entry_of(OP_WAIT);
    entry.remote = index;
    entry.remote_key = queue;
    return entry;
}

TRUNKLINE_FN Entry entry_notify(u32 peer, u32 number) {
    Entry entry = entry_of(OP_NOTIFY);
    entry.peer = peer;
    entry.operand = number;
    return entry;
}

TRUNKLINE_FN u64 halves(u32 low, u32 high) { return low | (u64)high << 32; }

// Returns the place of an index.
TRUNKLINE_FN u64 *place_of_entry(const View &view, u64 index) { return view.ring + (index & (view.depth - 1)) * 8; }

// Writes an entry to the place of its index.
TRUNKLINE_CALL void put_entry(const View &view, u64 index, const Entry &entry) {
    u32 kind = entry.op | (u32)entry.flags << 8 | (u32)entry.tag << 16;
    u64 words[8] = {
        halves((u32)index + 1, kind),
        entry.local,
        entry.remote,
        halves(entry.local_key, entry.remote_key),
        entry.len,
        entry.operand,
        entry.comparand,
        entry.peer,
    };
    if (view.flags & VIEW_CHECKED) {
        u64 all = 0;
        for (u32 at = 0; at < 8; at++) all ^= words[at];
        u32 check = (u32)all ^ (u32)(all >> 32) ^ 0x51564544u;  // "DEVQ"
        words[7] |= (u64)check << 32;
    }
    u64 *place = place_of_entry(view, index);
    for (u32 at = 0; at < 8; at += 2) sys_store_pair(place + at, words[at], words[at + 1]);
}

}  // namespace trunkline

#endif
