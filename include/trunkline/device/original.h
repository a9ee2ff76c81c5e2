// The operations of the original API; the twin of crates/device-queue/src/original.rs. Signals and counters are words of 8 bytes. The
// signal of a put is an entry of its own behind a fence, and a counter waits for the signal. Unlike the original, every wait returns how it
// ended.
#ifndef TRUNKLINE_DEVICE_ORIGINAL_H
#define TRUNKLINE_DEVICE_ORIGINAL_H

#include "trunkline/device/abi.h"
#include "trunkline/device/lane.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"
#include "trunkline/device/slot.h"

namespace trunkline {
namespace original {

// Writes bytes. The ticket does not report when the peer sees them.
TRUNKLINE_FN Post put(const Lane &lane, const Bytes &bytes, Budget &budget, Ticket &ticket) {
    Ticket write_done;
    return write_bytes(lane, bytes, Beside{nullptr, nullptr}, budget, write_done, ticket);
}

// As put, one share per thread of a group.
TRUNKLINE_FN Post put_group(const Lane &lane, const Bytes &bytes, u32 threads, Budget &budget, Ticket &ticket) {
    Ticket write_done;
    return write_shares(lane, bytes, threads, Beside{nullptr, nullptr}, budget, write_done, ticket);
}

// Raises a signal. It is not ordered behind earlier reads and atomics.
TRUNKLINE_FN Post signal_remote(const Lane &lane, const Addition &signal, Budget &budget, Ticket &ticket) {
    return post_one(lane, entry_add(signal), budget, ticket);
}

// Raises a signal behind earlier reads and atomics.
TRUNKLINE_FN Post signal_remote_with_fence(const Lane &lane, const Addition &signal, Budget &budget, Ticket &ticket) {
    return post_one(lane, fenced(entry_add(signal), FENCE_READS_AND_ATOMICS), budget, ticket);
}

// Writes bytes, then raises a signal behind a fence. Returns the signal's ticket. Rings two doorbells.
TRUNKLINE_FN Post put_signal(const Lane &lane, const Bytes &bytes, const Addition &signal, Budget &budget, Ticket &ticket) {
    Post result = put(lane, bytes, budget, ticket);
    if (result.kind != POSTED) return result;
    return signal_remote_with_fence(lane, signal, budget, ticket);
}

// Writes bytes, raises a signal, and raises a local counter once the signal's entry has completed.
TRUNKLINE_FN Post put_signal_counter_remote(const Lane &lane, const Bytes &bytes, const Addition &signal,
                                            const Addition &counter, Budget &budget) {
    const View *companion = nullptr;
    Post result = find_companion(lane, budget, companion);
    if (result.kind != POSTED) return result;
    Entry behind = entry_add(signal);
    Ticket write_done, last;
    result = write_bytes(lane, bytes, Beside{&behind, nullptr}, budget, write_done, last);
    if (result.kind != POSTED) return result;
    return count(*companion, last, counter, budget);
}

// Raises a signal, and raises a local counter once the signal's entry has completed.
TRUNKLINE_FN Post signal_counter_remote(const Lane &lane, const Addition &signal, const Addition &counter, Budget &budget) {
    const View *companion = nullptr;
    Post result = find_companion(lane, budget, companion);
    if (result.kind != POSTED) return result;
    Ticket last;
    result = signal_remote(lane, signal, budget, last);
    if (result.kind != POSTED) return result;
    return count(*companion, last, counter, budget);
}

// Waits until an entry has completed: its source can be reused.
TRUNKLINE_FN Wait wait_local(const Lane &lane, const Ticket &ticket, Budget &budget) {
    return wait(*lane.main, ticket, budget);
}

// Waits for a posted entry, as a part of an operation.
TRUNKLINE_FN Post wait_posted(const Lane &lane, const Ticket &ticket, Budget &budget) {
    Wait how = wait_local(lane, ticket, budget);
    return how.kind == GOOD ? posted() : Post{WAITING, how};
}

// Waits until all earlier entries have completed locally.
TRUNKLINE_FN Post fence(const Lane &lane, Budget &budget) {
    Ticket nop;
    Post result = post_one(lane, entry_nop(), budget, nop);
    return result.kind == POSTED ? wait_posted(lane, nop, budget) : result;
}

// Sets a signal of the peer to 0 behind all earlier entries, and waits until that has completed locally.
TRUNKLINE_FN Post reset_signal(const Lane &lane, const Remote &first, u32 id, Budget &budget) {
    Post result = fence(lane, budget);
    if (result.kind != POSTED) return result;
    u64 zero = 0;
    Ticket ticket;
    result = post_one(lane, entry_write_inline(&zero, 8, add_to_word(first, id, 0).at), budget, ticket);
    return result.kind == POSTED ? wait_posted(lane, ticket, budget) : result;
}

// Waits until a signal of this process is at least `value`, and returns it in `found`. Bytes written before it can be read then.
TRUNKLINE_FN Wait wait_signal(const Slot &slot, u64 value, Budget &budget, u64 &found) {
    return wait(slot, Condition{AT_LEAST, value}, budget, found);
}

TRUNKLINE_FN u64 read_signal(const Slot &slot) { return read(slot); }

}  // namespace original
}  // namespace trunkline

#endif
