// Windows: memory of every rank with data, signals, counters and barriers. crates/trunkline/src/device/window.rs creates them, and
// kernel.rs there is the twin of this file. A rank is named by its number, and a place by its offset, which is equal at all ranks.
// docs/wire.md ("Windows") defines the layout.
//
// Every thread of a kernel's group makes the same calls with the same arguments. The leader acts, and all threads get the same result.
// After the first call that fails, later calls do nothing and return that failure.
#ifndef TRUNKLINE_DEVICE_WINDOW_H
#define TRUNKLINE_DEVICE_WINDOW_H

#include "trunkline/device/abi.h"
#include "trunkline/device/entry.h"
#include "trunkline/device/group.h"
#include "trunkline/device/lane.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"
#include "trunkline/device/slot.h"
#include "trunkline/device/successor.h"

namespace trunkline {

constexpr u32 WINDOW_VERSION = 3;
constexpr u64 SLOT_BYTES = 16;
// Size of a cache line: each word that several ranks or threads change has a line of its own.
constexpr u64 LINE_BYTES = 128;

// How entries name a rank's part of a window.
struct Peer {
    u32 rank;
    u32 key;
};

// A window as the host passes it to a kernel, read only. `..._at` are offsets from the first byte, valid at every rank. Addresses are valid
// where the kernel runs. Except for `base` and `slots`, they name memory that only threads of this device change, also by atomics, so it is
// device memory.
struct Window {
    u32 version;
    u32 rank;
    u32 ranks;
    u32 signals;   // that each rank may raise here
    u32 counters;
    u32 barriers;
    u32 channels;  // kernels at a time
    u32 lanes;     // queues per channel
    u32 chunks;    // of a stream that may be in flight; 0: no streams
    u32 reserved;
    u64 chunk;     // bytes per chunk
    u8 *base;      // the part of this rank
    u64 bytes;     // of data, at the beginning of the part
    u64 signals_at;
    u64 *signal_bases;
    u64 counters_at;
    u64 *counter_bases;
    u64 barriers_at;
    u64 *epochs;   // number of times that this rank has entered each barrier
    u64 streams_at;
    u64 stream_bytes;
    const Peer *peers;  // by rank
    const Lane *queues; // by channel, then by lane
    u64 *words;         // per channel: words of its group, two per lane, and the counter of puts
    u8 *slots;          // base of `..._at` on this rank: `base`, or another address if only the data lies at `base`
};

static_assert(sizeof(Window) == 10 * 4 + 15 * 8 && sizeof(Peer) == 8 && sizeof(Lane) == 24, "Window");

// The number of words per channel.
TRUNKLINE_FN u64 words_of_channel(u32 lanes) { return (GROUP_WORDS + 2ull * lanes + 1 + 15) / 16 * 16; }

// The words through which the kernels of a channel synchronise, one kernel after another. For group_of and similar functions.
TRUNKLINE_FN u64 *group_words(const Window &window, u32 channel) {
    return window.words + channel * words_of_channel(window.lanes);
}

// The actions of a put: a signal at the target and a counter on this rank, by number, and the increment of each; 0: none.
struct Along {
    u32 signal;
    u32 counter;
    u64 signal_by;
    u64 counter_by;
};

TRUNKLINE_FN Along nothing_along() { return Along{0, 0, 0, 0}; }
TRUNKLINE_FN Along along_signal(u32 id, u64 by = 1) { return Along{id, 0, by, 0}; }
TRUNKLINE_FN Along along_counter(u32 id, u64 by = 1) { return Along{0, id, 0, by}; }
TRUNKLINE_FN Along and_counter(Along along, u32 id, u64 by = 1) {
    along.counter = id;
    along.counter_by = by;
    return along;
}

// The state of one thread of a group that uses a window. No other group may use the same channel at the same time.
struct Kernel {
    const Window *window;
    u32 channel;
    Channel lanes;
    Group group;
    Budget limit;  // of each wait
    Wait how;      // GOOD, or the first failure. Set it to good() to continue after a failure that was handled
};

TRUNKLINE_FN bool is_good(const Kernel &kernel) { return kernel.how.kind == GOOD; }
TRUNKLINE_FN u32 rank(const Kernel &kernel) { return kernel.window->rank; }
TRUNKLINE_FN u32 ranks(const Kernel &kernel) { return kernel.window->ranks; }

// Returns an address in this rank's part, by offset. Bytes that other ranks put there can be read after a wait for their signal.
TRUNKLINE_FN u8 *data(const Kernel &kernel, u64 at) { return kernel.window->base + at; }

TRUNKLINE_FN Wait wait_of(const Post &post) {
    switch (post.kind) {
        case POSTED: return good();
        case BUSY: return ended(TIMEOUT);
        case OVER:
        case COMPANION:
        case WAITING: return post.why;
        default: return ended(REFUSED);
    }
}

// Refuses an invalid argument with REFUSED. All threads passed the same argument, so all return the same.
TRUNKLINE_FN Wait refuse(Kernel &kernel) { return kernel.how = ended(REFUSED); }

// Shares the leader's result, and some words of the leader, with all threads.
TRUNKLINE_FN Wait conclude(Kernel &kernel, const Wait &leaders, u64 *handed, u32 count) {
    return kernel.how = agree(kernel.group, leaders, handed, count);
}

TRUNKLINE_FN bool is_inside(const Window &window, u64 at, u64 len) {
    return at <= window.bytes && len <= window.bytes - at;
}

TRUNKLINE_FN Remote remote_at(const Window &window, u32 rank, u64 at) { return Remote{at, window.peers[rank].key, rank}; }
TRUNKLINE_FN Local local_at(const Window &window, u64 at) { return Local{at, window.peers[window.rank].key}; }

TRUNKLINE_FN Entry entry_raise(const Window &window, u32 rank, u64 slot, u64 by) {
    return entry_atomic(OP_ADD, remote_at(window, rank, slot), by, 0, true);
}

// Returns the slot at an offset of this rank's part.
TRUNKLINE_FN Slot slot_at(const Window &window, u64 at, u64 *base) {
    Slot slot = poisoned_slot((const u64 *)(window.slots + at));
    slot.base = base;
    return slot;
}

TRUNKLINE_FN u64 nth_signal(const Window &window, u32 by, u32 id) {
    return (u64)by * window.signals + id;
}
TRUNKLINE_FN Slot signal_slot(const Window &window, u32 by, u32 id) {
    u64 nth = nth_signal(window, by, id);
    return slot_at(window, window.signals_at + nth * SLOT_BYTES, window.signal_bases + nth);
}
TRUNKLINE_FN Slot counter_slot(const Window &window, u32 id) {
    return slot_at(window, window.counters_at + id * SLOT_BYTES, window.counter_bases + id);
}
// Returns the offset of the slot that rank `by` raises when it enters a barrier.
TRUNKLINE_FN u64 barrier_at(const Window &window, u32 id, u32 by) {
    return window.barriers_at + ((u64)id * window.ranks + by) * SLOT_BYTES;
}

// Posts entries on a lane, and records them for later flushes. Called by the leader alone.
TRUNKLINE_CALL Post lead_post(Kernel &kernel, u32 lane, const Entry *entries, u32 count, Ticket &last) {
    Budget budget = kernel.limit;
    Post result = post(*kernel.lanes.lanes[lane].main, entries, count, budget, last);
    if (result.kind == POSTED) record(kernel.lanes, lane, last);
    return result;
}

// Waits for a slot. Called by the leader alone.
TRUNKLINE_CALL Wait lead_wait(Kernel &kernel, const Slot &slot, u64 value, u64 &found) {
    Budget budget = kernel.limit;
    return wait_unless_aborted(*kernel.lanes.lanes[0].main, slot, Condition{AT_LEAST, value}, budget, found);
}

TRUNKLINE_CALL Wait lead_flush(Kernel &kernel) {
    Budget budget = kernel.limit;
    return flush(kernel.lanes, budget);
}

// Creates the state of a thread for a channel. It continues where the channel's last kernel ended, once all entries of that kernel have
// completed.
TRUNKLINE_CALL Kernel kernel_of(const Window &window, u32 channel, const Group &group, Budget limit) {
    u64 *words = group_words(window, channel) + GROUP_WORDS;
    const Lane *lanes = window.queues + (u64)channel * window.lanes;
    Kernel kernel = {&window, channel, {lanes, window.lanes, words, words + 2 * window.lanes}, group, limit, good()};
    if (window.version != WINDOW_VERSION || channel >= window.channels) {
        kernel.how = ended(REFUSED);
        return kernel;
    }
    Wait how = good();
    for (u32 lane = 0; lane < window.lanes && is_leader(group); lane++)
        if (!is_usable(*lanes[lane].main)) how = ended(REFUSED);
    if (is_leader(group) && how.kind == GOOD) how = lead_flush(kernel);
    conclude(kernel, how, nullptr, 0);
    return kernel;
}

// The leader's part of a put: pieces of a GiB, with the actions behind the last one. The last WRITE raises the counter itself if the
// increment fits the entry. Otherwise an ADD precedes the signal: it executes locally, and need not wait for a reply of the other rank.
TRUNKLINE_CALL Post lead_put(Kernel &kernel, u32 rank, const Bytes &bytes, const Along &along, Put &done) {
    const Window &window = *kernel.window;
    done.lane = next_lane(kernel.lanes);
    u64 pieces = pieces_of(bytes);
    for (u64 nth = 0; nth + 1 < pieces; nth++) {
        Entry piece = nth_piece(bytes, nth);
        Post result = lead_post(kernel, done.lane, &piece, 1, done.last);
        if (result.kind != POSTED) return result;
    }
    Entry entries[3] = {nth_piece(bytes, pieces - 1), entry_nop(), entry_nop()};
    u32 count = 1;
    u64 signal = window.signals_at + nth_signal(window, window.rank, along.signal) * SLOT_BYTES;
    Remote slot = remote_at(window, window.rank, window.counters_at + along.counter * SLOT_BYTES);
    Addition counter = {slot, along.counter_by, true};
    bool in_entry = fits_entry(counter);
    if (along.counter_by != 0 && in_entry) entries[0] = last_of(Beside{nullptr, &counter}, entries[0]);
    if (along.counter_by != 0 && !in_entry) entries[count++] = entry_add(counter);
    if (along.signal_by != 0) entries[count++] = entry_raise(window, rank, signal, along.signal_by);
    Post result = lead_post(kernel, done.lane, entries, count, done.last);
    done.write = done.last;
    done.write.index -= count - 1;
    return result;
}

// Writes `len` bytes of this rank's part, from `from` on, to another rank's part, from `to` on, with the given actions. It includes all
// that any thread of the group wrote before the call. Puts are not ordered among each other.
TRUNKLINE_CALL Wait put(Kernel &kernel, u32 rank, u64 to, u64 from, u64 len, const Along &along, Put &done) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    bool has_signal = along.signal_by == 0 || along.signal < window.signals;
    bool has_counter = along.counter_by == 0 || along.counter < window.counters;
    if (rank >= window.ranks || !has_signal || !has_counter) return refuse(kernel);
    if (!is_inside(window, to, len) || !is_inside(window, from, len)) return refuse(kernel);
    Post result = posted();
    done = Put{0, Ticket{0, 0, 0}, Ticket{0, 0, 0}};
    meet(kernel.group);
    Bytes bytes = {local_at(window, from), remote_at(window, rank, to), len};
    if (is_leader(kernel.group)) result = lead_put(kernel, rank, bytes, along, done);
    return kernel.how = wait_of(agree(kernel.group, result, done));
}

TRUNKLINE_FN Wait put(Kernel &kernel, u32 rank, u64 to, u64 from, u64 len, const Along &along) {
    Put done;
    return put(kernel, rank, to, from, len, along, done);
}

// The leader's part of a get.
TRUNKLINE_CALL Post lead_get(Kernel &kernel, const Remote &from, const Local &into, u64 len, Put &done) {
    done.lane = next_lane(kernel.lanes);
    u64 at = 0;
    do {
        u64 piece = len - at < LENGTH_MAX ? len - at : LENGTH_MAX;
        Local to = {into.addr + at, into.key};
        Remote source = {from.addr + at, from.key, from.peer};
        Entry entry = entry_read(to, source, piece);
        Post result = lead_post(kernel, done.lane, &entry, 1, done.last);
        if (result.kind != POSTED) return result;
        at += piece;
    } while (at < len);
    done.write = done.last;
    return posted();
}

// Reads `len` bytes of another rank's part, from `from` on, into this rank's, from `into` on. They have arrived after a wait for `done`.
TRUNKLINE_CALL Wait get(Kernel &kernel, u32 rank, u64 from, u64 into, u64 len, Put &done) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (rank >= window.ranks || !is_inside(window, from, len) || !is_inside(window, into, len)) return refuse(kernel);
    Post result = posted();
    done = Put{0, Ticket{0, 0, 0}, Ticket{0, 0, 0}};
    meet(kernel.group);
    if (is_leader(kernel.group)) result = lead_get(kernel, remote_at(window, rank, from), local_at(window, into), len, done);
    return kernel.how = wait_of(agree(kernel.group, result, done));
}

// Raises a signal of a rank, behind all puts on the first lane. It implies nothing about other lanes: flush first.
TRUNKLINE_CALL Wait signal(Kernel &kernel, u32 rank, u32 id, u64 by = 1) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (rank >= window.ranks || id >= window.signals) return refuse(kernel);
    Post result = posted();
    Ticket last;
    meet(kernel.group);
    if (is_leader(kernel.group)) {
        u64 slot = window.signals_at + nth_signal(window, window.rank, id) * SLOT_BYTES;
        Entry entry = entry_raise(window, rank, slot, by);
        result = lead_post(kernel, 0, &entry, 1, last);
    }
    return conclude(kernel, wait_of(result), nullptr, 0);
}

// Waits until a put or a get is complete: the source may be changed, and the bytes of a get have arrived.
TRUNKLINE_CALL Wait wait(Kernel &kernel, const Put &done) {
    if (!is_good(kernel)) return kernel.how;
    if (done.lane >= kernel.lanes.count) return refuse(kernel);
    Budget budget = kernel.limit;
    return kernel.how = wait(kernel.group, *kernel.lanes.lanes[done.lane].main, done.write, budget);
}

// Waits until all posted entries have completed.
TRUNKLINE_CALL Wait flush(Kernel &kernel) {
    if (!is_good(kernel)) return kernel.how;
    Wait how = good();
    if (is_leader(kernel.group)) how = lead_flush(kernel);
    return conclude(kernel, how, nullptr, 0);
}

// Waits until a rank has raised a signal here to `value`, and returns it in `found`. Bytes that were put before it can be read.
TRUNKLINE_CALL Wait wait_signal(Kernel &kernel, u32 by, u32 id, u64 value, u64 &found) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (by >= window.ranks || id >= window.signals) return refuse(kernel);
    Wait how = good();
    if (is_leader(kernel.group)) how = lead_wait(kernel, signal_slot(window, by, id), value, found);
    return conclude(kernel, how, &found, 1);
}

TRUNKLINE_FN Wait wait_signal(Kernel &kernel, u32 by, u32 id, u64 value) {
    u64 found = 0;
    return wait_signal(kernel, by, id, value, found);
}

// Waits until a rank has raised a signal here to `value`, then resets it. `taken` is the amount that was set aside.
TRUNKLINE_CALL Wait take_signal(Kernel &kernel, u32 by, u32 id, u64 value, u64 &taken) {
    const Window &window = *kernel.window;
    taken = 0;
    if (!is_good(kernel)) return kernel.how;
    if (by >= window.ranks || id >= window.signals) return refuse(kernel);
    Wait how = good();
    if (is_leader(kernel.group)) {
        Slot slot = signal_slot(window, by, id);
        how = lead_wait(kernel, slot, value, taken);
        if (how.kind == GOOD) reset(slot, taken);
    }
    return conclude(kernel, how, &taken, 1);
}

TRUNKLINE_FN u64 sum_of_signals(const Window &window, u32 id) {
    u64 sum = 0;
    for (u32 by = 0; by < window.ranks; by++) sum += read(signal_slot(window, by, id));
    return sum;
}

// Polls once whether the sum of a signal over all ranks is at least `value`. TIMEOUT: not yet. POISONED: it never will be.
TRUNKLINE_CALL Wait look_at_signals(const Window &window, u32 id, u64 value, u64 &found) {
    found = sum_of_signals(window, id);
    if (found >= value) return good();
    TRUNKLINE_STEP("looked");
    Wait how = ended(TIMEOUT);
    for (u32 by = 0; by < window.ranks; by++) {
        if (!is_poisoned(signal_slot(window, by, id), how)) continue;
        // Additions before the failure may have arrived since the first read.
        found = sum_of_signals(window, id);
        return found >= value ? good() : how;
    }
    return how;
}

// Waits until the sum of a signal over all ranks is at least `value`, and returns it in `found`.
TRUNKLINE_CALL Wait wait_signals(Kernel &kernel, u32 id, u64 value, u64 &found) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (id >= window.signals) return refuse(kernel);
    Wait how = good();
    if (is_leader(kernel.group)) {
        Budget budget = kernel.limit;
        for (;;) {
            how = look_at_signals(window, id, value, found);
            if (how.kind != TIMEOUT || is_aborted(*kernel.lanes.lanes[0].main, how) || !goes_on(budget)) break;
            pause();
        }
    }
    return conclude(kernel, how, &found, 1);
}

// Returns the value to which a rank has raised a signal here; 0 for an unknown signal.
TRUNKLINE_FN u64 read_signal(const Kernel &kernel, u32 by, u32 id) {
    const Window &window = *kernel.window;
    return by < window.ranks && id < window.signals ? read(signal_slot(window, by, id)) : 0;
}

// Resets a signal of this rank: earlier additions no longer count, later ones do. `counted` is the amount that was set aside.
TRUNKLINE_CALL Wait reset_signal(Kernel &kernel, u32 by, u32 id, u64 &counted) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (by >= window.ranks || id >= window.signals) return refuse(kernel);
    if (is_leader(kernel.group)) reset(signal_slot(window, by, id), counted);
    return conclude(kernel, good(), &counted, 1);
}

// Waits until a counter of this rank is at least `value`, and returns it in `found`.
TRUNKLINE_CALL Wait wait_counter(Kernel &kernel, u32 id, u64 value, u64 &found) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (id >= window.counters) return refuse(kernel);
    Wait how = good();
    if (is_leader(kernel.group)) how = lead_wait(kernel, counter_slot(window, id), value, found);
    return conclude(kernel, how, &found, 1);
}

// As read_signal and reset_signal, for a counter of this rank.
TRUNKLINE_FN u64 read_counter(const Kernel &kernel, u32 id) {
    return id < kernel.window->counters ? read(counter_slot(*kernel.window, id)) : 0;
}

TRUNKLINE_CALL Wait reset_counter(Kernel &kernel, u32 id, u64 &counted) {
    if (!is_good(kernel)) return kernel.how;
    if (id >= kernel.window->counters) return refuse(kernel);
    if (is_leader(kernel.group)) reset(counter_slot(*kernel.window, id), counted);
    return conclude(kernel, good(), &counted, 1);
}

// The leader's part of a barrier.
TRUNKLINE_CALL Wait lead_barrier(Kernel &kernel, u32 id) {
    const Window &window = *kernel.window;
    Wait how = lead_flush(kernel);
    if (how.kind != GOOD) return how;
    // The round is kept in memory, so that a later kernel continues with it.
    u64 round = dev_add(window.epochs + id, 1) + 1;
    for (u32 other = 0; other < window.ranks && how.kind == GOOD; other++) {
        if (other == window.rank) continue;
        Entry entry = entry_raise(window, other, barrier_at(window, id, window.rank), 1);
        Ticket last;
        how = wait_of(lead_post(kernel, 0, &entry, 1, last));
    }
    for (u32 other = 0; other < window.ranks && how.kind == GOOD; other++) {
        if (other == window.rank) continue;
        u64 found;
        how = lead_wait(kernel, slot_at(window, barrier_at(window, id, other), nullptr), round, found);
    }
    return how;
}

// Waits until all ranks have entered this barrier as often as this one. All earlier puts of this kernel have then reached their targets.
TRUNKLINE_CALL Wait barrier(Kernel &kernel, u32 id) {
    if (!is_good(kernel)) return kernel.how;
    if (id >= kernel.window->barriers) return refuse(kernel);
    Wait how = good();
    meet(kernel.group);
    if (is_leader(kernel.group)) how = lead_barrier(kernel, id);
    return conclude(kernel, how, nullptr, 0);
}

// Aborts this kernel's channel for all of its users. Any thread may call it.
TRUNKLINE_FN void abort(const Kernel &kernel, u32 reason) {
    for (u32 lane = 0; lane < kernel.lanes.count; lane++) abort(*kernel.lanes.lanes[lane].main, STATUS_ABORTED, reason);
}

}  // namespace trunkline

#endif
