// A lane towards another process: a queue, and its companion once a counter needs it.
#ifndef TRUNKLINE_DEVICE_LANE_H
#define TRUNKLINE_DEVICE_LANE_H

#include "trunkline/device/abi.h"
#include "trunkline/device/entry.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"

namespace trunkline {

// `companions` are views that the host has created, or creates before it publishes the companion word. A thread finds its own by number.
struct Lane {
    const View *main;
    const View *companions;
    u32 count;
};

// The bytes of a put.
struct Bytes {
    Local from;
    Remote to;
    u64 len;
};

// An addition to a signal of another process, or to a counter of this one.
struct Addition {
    Remote at;
    u64 value;
    bool poisoned;  // a poison word follows the word
};

// Signals or counters of 8 bytes side by side (the original's), by the address of the first.
TRUNKLINE_FN Addition add_to_word(Remote first, u32 id, u64 value) {
    first.addr += (u64)id * 8;
    return Addition{first, value, false};
}

// Slots of 16 bytes (the successor's), by the address of the first.
TRUNKLINE_FN Addition add_to_slot(Remote first, u32 id, u64 value) {
    first.addr += (u64)id * 16;
    return Addition{first, value, true};
}

TRUNKLINE_FN Entry entry_add(const Addition &what) {
    return entry_atomic(OP_ADD, what.at, what.value, 0, what.poisoned);
}

// Returns whether a WRITE has room for this counter.
TRUNKLINE_FN bool fits_entry(const Addition &counter) { return counter.value <= 0xffffffffull && counter.at.addr % 8 == 0; }

// Additions to a write, each or null: an entry behind the last WRITE, and a local counter that the last WRITE raises itself.
struct Beside {
    const Entry *behind;
    const Addition *counter;
};

// Returns the last WRITE with its counter. An empty share is a NOP, which raises no counter.
TRUNKLINE_FN Entry last_of(const Beside &beside, const Entry &write) {
    if (beside.counter == nullptr || write.op != OP_WRITE) return write;
    const Addition &counter = *beside.counter;
    return entry_counted(write, Local{counter.at.addr, counter.at.key}, (u32)counter.value, counter.poisoned);
}

TRUNKLINE_FN Entry entry_of_piece(const Bytes &bytes, u64 offset, u64 len) {
    Local from = bytes.from;
    Remote to = bytes.to;
    from.addr += offset;
    to.addr += offset;
    return entry_write(from, to, len);
}

// Returns the number of entries for these bytes: one per GiB, and one for an empty range.
TRUNKLINE_FN u64 pieces_of(const Bytes &bytes) {
    u64 pieces = bytes.len / LENGTH_MAX + (bytes.len % LENGTH_MAX != 0);
    return pieces == 0 ? 1 : pieces;
}

TRUNKLINE_FN Entry nth_piece(const Bytes &bytes, u64 nth) {
    u64 offset = nth * LENGTH_MAX;
    u64 left = bytes.len - offset;
    return entry_of_piece(bytes, offset, left < LENGTH_MAX ? left : LENGTH_MAX);
}

// Returns the entry of one thread of a group. All threads write the same length, and the last one writes the remainder too; a NOP if the
// share is empty.
TRUNKLINE_FN Entry share_of(const Bytes &bytes, u32 thread, u32 threads) {
    u64 each = bytes.len / threads;
    u64 offset = each * thread;
    u64 len = thread + 1 == threads ? bytes.len - offset : each;
    return len == 0 ? entry_nop() : entry_of_piece(bytes, offset, len);
}

TRUNKLINE_FN bool is_in_range(const Bytes &bytes) {
    return bytes.from.addr + bytes.len >= bytes.from.addr && bytes.to.addr + bytes.len >= bytes.to.addr;
}

// Posts the entries from number `next` on that fit into the queue. One lane of a wavefront executes it in its turn.
TRUNKLINE_FN Post write_in_turn(const View &view, const Bytes &bytes, const Beside &beside, u64 &next, Budget &budget, Ticket &write_done,
                                Ticket &last) {
    u64 writes = pieces_of(bytes);
    u64 left = writes + (beside.behind != nullptr) - next;
    Reservation taken;
    Post result = reserve_within(view, left < view.depth ? (u32)left : view.depth, budget, taken);
    if (result.kind != POSTED) return result;
    for (u32 at = 0; at < taken.count; at++, next++) {
        if (next < writes) write_done = ticket_of(view, taken.first + at);
        if (next + 1 == writes) write(view, taken, last_of(beside, nth_piece(bytes, next)));
        else write(view, taken, next < writes ? nth_piece(bytes, next) : *beside.behind);
    }
    return finish(view, taken, budget, last);
}

// Writes bytes and the additions. One doorbell covers all entries that fit into the queue at once. On failure `last` is the last ticket
// that was posted before it, if any.
TRUNKLINE_CALL Post write_bytes(const Lane &lane, const Bytes &bytes, const Beside &beside, Budget &budget, Ticket &write_done,
                              Ticket &last) {
    if (!is_in_range(bytes)) return not_posted(RANGE);
    u64 total = pieces_of(bytes) + (beside.behind != nullptr);
    u64 next = 0;
    Post result = posted();
    while (next != total && result.kind == POSTED)
        for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns))
            if (is_own_turn(turns)) result = write_in_turn(*lane.main, bytes, beside, next, budget, write_done, last);
    return result;
}

// Returns whether a group of `threads` threads can write its shares at once.
TRUNKLINE_FN Post check_shares(const View &view, const Bytes &bytes, u32 threads, bool has_more) {
    if (!is_in_range(bytes)) return not_posted(RANGE);
    u64 count = (u64)threads + has_more;
    if (threads == 0 || count > view.depth) return not_posted(GROUP);
    return posted();
}

// The part of write_shares that one lane of a wavefront executes in its turn.
TRUNKLINE_FN Post write_shares_in_turn(const View &view, const Bytes &bytes, u32 threads, const Beside &beside, Budget &budget,
                                       Ticket &write_done, Ticket &last) {
    bool has_more = beside.behind != nullptr;
    Reservation taken;
    Post result = reserve_within(view, threads + has_more, budget, taken);
    if (result.kind != POSTED) return result;
    for (u32 thread = 0; thread + 1 < threads; thread++) write(view, taken, share_of(bytes, thread, threads));
    write(view, taken, last_of(beside, share_of(bytes, threads - 1, threads)));
    if (has_more) write(view, taken, *beside.behind);
    write_done = ticket_of(view, taken.first + threads - 1);
    return finish(view, taken, budget, last);
}

// Writes the shares of a group's threads in one reservation. One thread writes all of them; in put_cooperative each thread writes its own.
TRUNKLINE_CALL Post write_shares(const Lane &lane, const Bytes &bytes, u32 threads, const Beside &beside, Budget &budget,
                               Ticket &write_done, Ticket &last) {
    const View &view = *lane.main;
    Post result = check_shares(view, bytes, threads, beside.behind != nullptr);
    if (result.kind != POSTED) return result;
    for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns))
        if (is_own_turn(turns)) result = write_shares_in_turn(view, bytes, threads, beside, budget, write_done, last);
    return result;
}

// Finds the companion, which the host creates on the first request.
TRUNKLINE_CALL Post find_companion(const Lane &lane, Budget &budget, const View *&found) {
    u32 number = 0;
    Wait how = companion_within(*lane.main, budget, number);
    if (how.kind != GOOD) return Post{COMPANION, how};
    for (u32 at = 0; at < lane.count; at++) {
        if (lane.companions[at].number != number) continue;
        found = lane.companions + at;
        return posted();
    }
    return Post{COMPANION, ended(REFUSED)};
}

// Has the companion raise a counter when an entry has completed.
TRUNKLINE_CALL Post count(const View &companion, const Ticket &of, const Addition &counter, Budget &budget) {
    Entry entries[2] = {entry_wait(of.queue, of.index), entry_add(counter)};
    Ticket last;
    return post(companion, entries, 2, budget, last);
}

TRUNKLINE_FN Post post_one(const Lane &lane, const Entry &entry, Budget &budget, Ticket &ticket) {
    return post(*lane.main, &entry, 1, budget, ticket);
}

}  // namespace trunkline

#endif
