// The operations of the successor's API; the twin of crates/device-queue/src/successor.rs: one put with optional actions, channels of
// several lanes, and tickets. The signal of a put follows its bytes without a fence. A counter waits for the last WRITE, so its value means
// that the source can be reused.
#ifndef TRUNKLINE_DEVICE_SUCCESSOR_H
#define TRUNKLINE_DEVICE_SUCCESSOR_H

#include "trunkline/device/abi.h"
#include "trunkline/device/entry.h"
#include "trunkline/device/lane.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"

namespace trunkline {

// One to LANES_MAX lanes over which one group of threads posts, and a flush that covers them all. The host creates its words in this
// device's memory. There are two per lane: the index behind the last recorded ticket, and the index behind the last ticket that a flush has
// seen complete. One more word counts puts and selects the lane.
struct Channel {
    const Lane *lanes;
    u32 count;
    u64 *words;
    u64 *cursor;
};

// The actions of a put.
struct With {
    const Addition *signal;     // at the peer, or null
    const Addition *counter;    // local, or null
    bool signal_per_lane;       // each lane raises its own signal: two NICs must not add to one word
    bool counter_after_signal;  // the counter waits for the signal, as in the original, instead of the bytes
    // The last WRITE's own entry raises the counter, without a companion. The executor must be software, so mlx5.h ignores it. A counter
    // that does not fit the entry, or that waits for the signal, still uses the companion.
    bool counter_in_entry;
};

// A posted put.
struct Put {
    u32 lane;
    Ticket write;  // the last WRITE
    Ticket last;   // the signal, or the last WRITE if the put has no signal
};

TRUNKLINE_FN void record(const Channel &channel, u32 lane, const Ticket &ticket) {
    dev_advance(channel.words + lane * 2, ticket.index + 1);
}

// Returns the lanes that a flush would wait for, one bit each.
TRUNKLINE_FN u64 pending(const Channel &channel) {
    u64 bits = 0;
    for (u32 lane = 0; lane < channel.count; lane++) {
        u64 flushed = dev_load(channel.words + lane * 2 + 1);
        if (is_before(flushed, dev_load(channel.words + lane * 2))) bits |= 1ull << lane;
    }
    return bits;
}

// Returns the next lane. Concurrent callers get different turns.
TRUNKLINE_FN u32 next_lane(const Channel &channel) { return (u32)(dev_add(channel.cursor, 1) % channel.count); }

TRUNKLINE_FN Addition of_lane(Addition signal, const With &with, u32 lane) {
    signal.at.addr += with.signal_per_lane ? lane * LANE_STRIDE : 0;
    return signal;
}

// A put that has begun: its lane, its companion or the counter that its last WRITE raises, and the signal's entry. One thread decides all
// of it.
struct Begun {
    u32 lane;
    const View *companion;
    const Addition *counter;
    bool has_signal;
    Entry signal;
};

TRUNKLINE_FN Begun not_begun() { return Begun{0, nullptr, nullptr, false, entry_nop()}; }

TRUNKLINE_FN Beside beside_of(const Begun &begun) { return Beside{begun.has_signal ? &begun.signal : nullptr, begun.counter}; }

// Returns the counter that a put's last WRITE raises. With `threads` above 0 each thread writes one share; with 0 the bytes are cut into
// pieces.
TRUNKLINE_FN const Addition *counter_in_entry(const With &with, const Bytes &bytes, u32 threads) {
    if (!with.counter_in_entry || with.counter_after_signal || with.counter == nullptr) return nullptr;
    bool fits = threads == 0 || bytes.len - bytes.len / threads * (threads - 1) <= LENGTH_MAX;
    return fits && fits_entry(*with.counter) ? with.counter : nullptr;
}

TRUNKLINE_CALL Post begin_put(const Channel &channel, const Bytes &bytes, u32 threads, const With &with, Budget &budget,
                              Begun &begun) {
    if (bytes.len == 0) return not_posted(EMPTY);
    begun = not_begun();
    begun.lane = next_lane(channel);
    begun.has_signal = with.signal != nullptr;
    begun.counter = counter_in_entry(with, bytes, threads);
    if (with.counter != nullptr && begun.counter == nullptr) {
        Post result = find_companion(channel.lanes[begun.lane], budget, begun.companion);
        if (result.kind != POSTED) return result;
    }
    if (begun.has_signal) begun.signal = entry_add(of_lane(*with.signal, with, begun.lane));
    return posted();
}

// Returns a ticket that belongs to no queue.
TRUNKLINE_FN Ticket no_ticket() { return Ticket{~0u, 0, 0}; }

// Records the posted entries of a put that failed later: they still read their source, so a flush must wait for them.
TRUNKLINE_CALL Post leave_put(const Channel &channel, const Begun &begun, const Put &put, Post why) {
    bool is_part = put.last.queue == channel.lanes[begun.lane].main->number;
    if (is_part) record(channel, begun.lane, put.last);
    return why;
}

// Completes a put whose entries are posted.
TRUNKLINE_CALL Post end_put(const Channel &channel, const With &with, const Begun &begun, Budget &budget, const Put &put) {
    record(channel, begun.lane, put.last);
    if (begun.companion == nullptr) return posted();
    return count(*begun.companion, with.counter_after_signal ? put.last : put.write, *with.counter, budget);
}

// Writes bytes on the next lane, with the given actions.
TRUNKLINE_CALL Post put(const Channel &channel, const Bytes &bytes, const With &with, Budget &budget, Put &put) {
    Begun begun = not_begun();
    Post result = begin_put(channel, bytes, 0, with, budget, begun);
    if (result.kind != POSTED) return result;
    put.lane = begun.lane;
    put.last = no_ticket();
    result = write_bytes(channel.lanes[begun.lane], bytes, beside_of(begun), budget, put.write, put.last);
    if (result.kind != POSTED) return leave_put(channel, begun, put, result);
    return end_put(channel, with, begun, budget, put);
}

// As put, in shares for `threads` threads, all written by this thread.
TRUNKLINE_CALL Post put_shares(const Channel &channel, const Bytes &bytes, u32 threads, const With &with, Budget &budget,
                             Put &put) {
    Begun begun = not_begun();
    Post result = begin_put(channel, bytes, threads, with, budget, begun);
    if (result.kind != POSTED) return result;
    put.lane = begun.lane;
    result = write_shares(channel.lanes[begun.lane], bytes, threads, beside_of(begun), budget, put.write, put.last);
    return result.kind == POSTED ? end_put(channel, with, begun, budget, put) : result;
}

// Posts one entry on a lane, and records it for later flushes.
TRUNKLINE_CALL Post post_on(const Channel &channel, u32 lane, const Entry &entry, Budget &budget, Ticket &ticket) {
    if (lane >= channel.count) return not_posted(EMPTY);
    Post result = post_one(channel.lanes[lane], entry, budget, ticket);
    if (result.kind == POSTED) record(channel, lane, ticket);
    return result;
}

// Writes at most INLINE_BYTES_MAX bytes of a register or variable on the next lane. The variable can be changed at once.
TRUNKLINE_FN Post put_inline(const Channel &channel, const void *bytes, u32 len, const Remote &to, Budget &budget, Put &put) {
    if (len == 0) return not_posted(EMPTY);
    if (len > INLINE_BYTES_MAX || to.addr + len < to.addr) return not_posted(RANGE);
    put.lane = next_lane(channel);
    Post result = post_on(channel, put.lane, entry_write_inline(bytes, len, to), budget, put.write);
    put.last = put.write;
    return result;
}

// Reads at most LENGTH_MAX bytes on the next lane. They have arrived when the ticket is done.
TRUNKLINE_FN Post get(const Channel &channel, const Local &into, const Remote &from, u64 len, Budget &budget, Put &put) {
    if (len == 0) return not_posted(EMPTY);
    if (len > LENGTH_MAX || into.addr + len < into.addr || from.addr + len < from.addr) return not_posted(RANGE);
    put.lane = next_lane(channel);
    Post result = post_on(channel, put.lane, entry_read(into, from, len), budget, put.write);
    put.last = put.write;
    return result;
}

// Raises a signal on the first lane, behind the lane's reads and atomics. It implies nothing about other lanes: flush first.
TRUNKLINE_FN Post signal(const Channel &channel, const Addition &signal, Budget &budget, Ticket &ticket) {
    return post_on(channel, 0, fenced(entry_add(signal), FENCE_READS_AND_ATOMICS), budget, ticket);
}

// Changes a word of the peer on the first lane: OP_ADD, OP_SET, OP_MAX, OP_SWAP_IF or OP_ADD_MASKED. The completion of a fetching operation
// contains the old value. With `is_strong` the entry waits for all earlier entries of the lane.
TRUNKLINE_FN Post change(const Channel &channel, Op op, const Remote &at, u64 operand, u64 comparand, bool poisoned,
                         bool is_strong, Budget &budget, Ticket &ticket) {
    if (op < OP_ADD || op > OP_MAX || at.addr % 8 != 0) return not_posted(RANGE);
    Entry entry = entry_atomic(op, at, operand, comparand, poisoned);
    return post_on(channel, 0, fenced(entry, is_strong ? FENCE_ALL : FENCE_READS_AND_ATOMICS), budget, ticket);
}

// Raises a signal, and raises a local counter once the signal's entry has completed. The original API has this operation; the successor
// dropped it.
TRUNKLINE_FN Post signal_counter(const Channel &channel, const Addition &signal, const Addition &counter, Budget &budget,
                                 Ticket &ticket) {
    if (channel.count == 0) return not_posted(EMPTY);
    const View *companion = nullptr;
    Post result = find_companion(channel.lanes[0], budget, companion);
    if (result.kind != POSTED) return result;
    result = trunkline::signal(channel, signal, budget, ticket);
    return result.kind == POSTED ? count(*companion, ticket, counter, budget) : result;
}

// Waits until a put's last WRITE has completed: its source can be reused.
TRUNKLINE_FN Wait wait_local(const Channel &channel, const Put &put, Budget &budget) {
    if (put.lane >= channel.count) return ended(STALE);
    return wait(*channel.lanes[put.lane].main, put.write, budget);
}

// Waits until all earlier recorded entries have completed; it does not wait for counters. Returns the failure of the first lane that has
// one; later lanes have not been waited for then.
TRUNKLINE_CALL Wait flush(const Channel &channel, Budget &budget) {
    for (u32 lane = 0; lane < channel.count; lane++) {
        const View &view = *channel.lanes[lane].main;
        u64 *flushed = channel.words + lane * 2 + 1;
        u64 end = dev_load(channel.words + lane * 2);
        if (!is_before(dev_load(flushed), end)) continue;
        Wait how = wait(view, ticket_of(view, end - 1), budget);
        if (how.kind != GOOD) return how;
        dev_advance(flushed, end);
    }
    return good();
}

}  // namespace trunkline

#endif
