// The producer's side of a queue, for any number of threads at once: reserve, write, publish, submit, poll. The twin of
// crates/device-queue/src/queue.rs, access by access.
//
// A reservation acquires places only if they are free, so a producer that finds no room has nothing to give back. After a reservation a
// thread must publish or cancel: until then no later reservation can be published.
//
// A few functions depend on the executor, and are overloaded for each kind of queue (here for View, in mlx5.h for a NIC): put_entry,
// put_nop, completed_near, ring, poll, is_aborted, is_over, abort. All others are templates over the queue, and equal for both.
#ifndef TRUNKLINE_DEVICE_QUEUE_H
#define TRUNKLINE_DEVICE_QUEUE_H

#include "trunkline/device/abi.h"
#include "trunkline/device/entry.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/turns.h"

namespace trunkline {

// Attempts of `cancel` to publish NOPs. The producers before it normally publish soon. They do not if they have left, and they are late if
// they are not running.
constexpr u32 LEAVING_LOOKS_MAX = 1024;

TRUNKLINE_FN Wait good() { return Wait{GOOD, STATUS_DONE, 0, 0}; }
TRUNKLINE_FN Wait ended(Kind kind) { return Wait{kind, STATUS_DONE, 0, 0}; }
TRUNKLINE_FN Post posted() { return Post{POSTED, good()}; }
TRUNKLINE_FN Post not_posted(Posting kind) { return Post{kind, good()}; }

// Consecutive places that one producer alone writes.
struct Reservation {
    u64 first;
    u32 count;
    u32 written;
};

TRUNKLINE_FN Ticket ticket_of(const View &view, u64 index) { return Ticket{view.number, view.epoch, index}; }

// Returns whether this code can use a queue. Call it once, before anything else.
TRUNKLINE_FN bool is_usable(const View &view) {
#if defined(TRUNKLINE_ON_HOST)
    bool is_reached = true;
#else
    // A bit would need an atomic on host memory, which not every bus carries. Entries are stored 16 bytes at a time.
    bool is_reached = view.bit == 0 && view.claims != nullptr && (u64)view.ring % 16 == 0;
#endif
    bool is_power = view.depth >= DEPTH_MIN && view.depth <= DEPTH_MAX && view.shift < 16 && view.depth == 1u << view.shift;
    return is_reached && is_power && view.version == VERSION;
}

// Returns the status in a word that the engine or another thread has written; `instead` where the word contains no failure.
TRUNKLINE_FN u16 status_of(u64 bits, u16 instead) {
    u16 status = (u16)bits;
    // WRITING marks only completions, so another word with that status is invalid.
    if (status == STATUS_WRITING) return STATUS_NETWORK;
    return status == STATUS_DONE ? instead : status;
}

// Returns the index of a frontier, which has 63 bits: of the two candidates the one nearer to `index`.
TRUNKLINE_FN u64 frontier_near(u64 frontier, u64 index) {
    i64 ahead = (i64)((frontier - index) << 1) >> 1;
    return index + (u64)ahead;
}

// Returns whether the failure bit of a frontier is set, and the fault in `how`.
TRUNKLINE_FN bool has_failed(const View &view, u64 frontier, Wait &how) {
    if (!(frontier & FRONTIER_FAILED)) return false;
    // Relaxed is enough: the engine wrote the error page before the frontier, which the caller has acquired.
    u64 error = sys_load_relaxed(view.told + TOLD_ERROR);
    u64 reason = sys_load_relaxed(view.told + TOLD_REASON);
    u64 first_bad = sys_load_relaxed(view.told + TOLD_FIRST_BAD);
    how = Wait{FAILED, status_of(error >> 32, STATUS_FLUSHED), (u32)reason, first_bad};
    return true;
}

// Returns whether the queue was aborted, and the reason in `how`.
TRUNKLINE_FN bool is_aborted(const View &view, Wait &how) {
    u64 word = sys_load(view.told + TOLD_ABORT);
    // An abort by a thread of this device is visible here before the engine has copied it to the abort word.
    if (word == 0 && view.claims != nullptr) word = dev_load(view.claims + CLAIM_ABORT);
    if (word == 0) return false;
    how = Wait{ABORTED, status_of(word, STATUS_ABORTED), (u32)(word >> 32), 0};
    return true;
}

// Returns whether the queue has failed or was aborted.
TRUNKLINE_CALL bool is_over(const View &view, Wait &how) {
    return has_failed(view, sys_load(view.told + TOLD_FRONTIER), how) || is_aborted(view, how);
}

// Has the engine poll the queue.
TRUNKLINE_FN void mark(const View &view) {
    if (view.bit == 0) {
        sys_store_u8((u8 *)view.mark, 1);
        return;
    }
#if defined(TRUNKLINE_ON_HOST)
    host_or((u64 *)view.mark, view.bit);
#endif
}

// Aborts the queue. Returns whether this is the first reason, as far as this device knows; the first one is kept.
TRUNKLINE_FN bool abort(const View &view, u16 status, u32 reason) {
    u64 word = halves(status == STATUS_DONE ? STATUS_ABORTED : status, reason);
    bool is_first = false;
    if (view.claims != nullptr) {
        // The claim in device memory selects one thread. Two stores to the request word would otherwise replace each other.
        is_first = sys_load(view.told + TOLD_ABORT) == 0 && dev_cas(view.claims + CLAIM_ABORT, 0, word) == 0;
        if (is_first) sys_store(view.told + TOLD_ABORT_ASKED, word);
    } else {
#if defined(TRUNKLINE_ON_HOST)
        is_first = host_cas(view.told + TOLD_ABORT, 0, word) == 0;
#endif
    }
    mark(view);
    return is_first;
}

// Returns the number of completed entries, near `needed`. For a NIC it is a lower bound.
TRUNKLINE_FN u64 completed_near(const View &view, u64 needed) {
    return frontier_near(sys_load(view.told + TOLD_FRONTIER), needed);
}

TRUNKLINE_FN void put_nop(const View &view, u64 index) { put_entry(view, index, entry_nop()); }

// Returns whether the place before `end` is free: the entry that used it one lap earlier has completed. It first reads the shadow, the
// frontier as some producer last saw it, because the frontier itself may be in host memory behind a bus.
template <class Q>
TRUNKLINE_FN bool has_room(const Q &queue, u64 end) {
    u64 needed = end - queue.depth;
    if (!is_before(dev_load(queue.words + WORD_SHADOW), needed)) return true;
    u64 completed = completed_near(queue, needed);
    dev_advance(queue.words + WORD_SHADOW, completed);
    return !is_before(completed, needed);
}

// Reserves `count` consecutive places, if they are free: POSTED, BUSY, TOO_MANY or OVER.
template <class Q>
TRUNKLINE_FN Post reserve(const Q &queue, u32 count, Reservation &taken) {
    if (count == 0 || count > queue.depth) return not_posted(TOO_MANY);
    u64 first = dev_load_relaxed(queue.words + WORD_RESERVED);
    for (;;) {
        if (!has_room(queue, first + count)) {
            Post refusal = not_posted(BUSY);
            if (is_over(queue, refusal.why)) refusal.kind = OVER;
            return refusal;
        }
        u64 old = dev_cas(queue.words + WORD_RESERVED, first, first + count);
        if (old == first) break;
        first = old;
    }
    taken = Reservation{first, count, 0};
    return posted();
}

// As reserve, and waits for room, which may need another thread to publish first. So of lanes in lockstep one at a time reserves, then
// publishes or cancels: a turn (turns.h) encloses both. The callers in this and other files do so.
template <class Q>
TRUNKLINE_CALL Post reserve_within(const Q &queue, u32 count, Budget &budget, Reservation &taken) {
    TRUNKLINE_WAITS("reserve");
    Post result = reserve(queue, count, taken);
    while (result.kind == BUSY && goes_on(budget)) {
        pause();
        result = reserve(queue, count, taken);
    }
    TRUNKLINE_WAITED("reserve");
    return result;
}

// Writes the next entry; false when all places are written.
template <class Q, class E>
TRUNKLINE_FN bool write(const Q &queue, Reservation &taken, const E &entry) {
    if (taken.written == taken.count) return false;
    put_entry(queue, taken.first + taken.written, entry);
    taken.written += 1;
    return true;
}

// Publishes the entries, with NOPs in unwritten places. False while earlier reservations are unpublished.
template <class Q>
TRUNKLINE_FN bool publish(const Q &queue, Reservation &taken) {
    for (; taken.written < taken.count; taken.written++) put_nop(queue, taken.first + taken.written);
    // Other threads of the group may have written some of the entries. The fence also covers data in memory that the device shares with the
    // host.
    sys_fence();
    u64 *ready = queue.words + WORD_READY;
    TRUNKLINE_STEP("publish");
    // No other producer changes the word during this reservation's turn, so a store does instead of a compare and swap.
    if (dev_load(ready) != taken.first) return false;
    dev_store(ready, taken.first + taken.count);
    return true;
}

// As publish, and waits for earlier reservations. False when the budget is spent or the queue was aborted; the caller must then cancel.
template <class Q>
TRUNKLINE_CALL bool publish_within(const Q &queue, Reservation &taken, Budget &budget) {
    Wait how;
    TRUNKLINE_WAITS("publish");
    bool is_published = publish(queue, taken);
    while (!is_published && !is_aborted(queue, how) && goes_on(budget)) {
        pause();
        is_published = publish(queue, taken);
    }
    TRUNKLINE_WAITED("publish");
    return is_published;
}

// Stores the doorbell, then the mark by which the engine finds it. In the other order the engine could clear the mark and read the old
// doorbell.
TRUNKLINE_FN void ring(const View &view, u64 end) {
    sys_store(view.bell, end);
    TRUNKLINE_STEP("half-rung");
    mark(view);
}

// A full fence: it also orders a store before a later load.
TRUNKLINE_FN void settle() {
    sys_fence_full();
    TRUNKLINE_STEP("full-fence");
}

// Submits all entries before `end`, which are published, to the engine. False: another producer's doorbell covers them, or will.
template <class Q>
TRUNKLINE_CALL bool submit(const Q &queue, u64 end) {
    u64 *submitted = queue.words + WORD_SUBMITTED;
    if (!is_before(dev_advance(submitted, end), end)) return false;
    for (;;) {
        u64 to = dev_load(submitted);
        TRUNKLINE_STEP("submit");
        // Two producers may store their doorbells in the wrong order. The later of the two reads the counter after the other has raised it,
        // and rings again. That needs a full fence on both sides of the store.
        settle();
        ring(queue, to);
        settle();
        TRUNKLINE_STEP("rung");
        if (dev_load(submitted) == to) return true;
    }
}

// Gives the places up: they become NOPs, which are published and submitted. If the producers before have left in the middle, no producer
// can publish past them, so the queue is aborted for all.
template <class Q>
TRUNKLINE_CALL void cancel(const Q &queue, Reservation &taken) {
    taken.written = 0;
    Wait how;
    for (u32 look = 0; look < LEAVING_LOOKS_MAX; look++) {
        if (publish(queue, taken)) {
            submit(queue, taken.first + taken.count);
            return;
        }
        if (is_aborted(queue, how)) return;
        step_aside(look);
    }
    abort(queue, STATUS_ABANDONED, 0);
}

// Publishes and submits, or cancels: POSTED with the ticket of the last entry, or BUSY.
template <class Q>
TRUNKLINE_CALL Post finish(const Q &queue, Reservation &taken, Budget &budget, Ticket &last) {
    u64 end = taken.first + taken.count;
    if (!publish_within(queue, taken, budget)) {
        cancel(queue, taken);
        return not_posted(BUSY);
    }
    submit(queue, end);
    last = ticket_of(queue, end - 1);
    return posted();
}

// The part of post that one lane of a wavefront executes in its turn.
template <class Q, class E>
TRUNKLINE_FN Post post_in_turn(const Q &queue, const E *entries, u32 count, Budget &budget, Ticket &last) {
    Reservation taken;
    Post result = reserve_within(queue, count, budget, taken);
    if (result.kind != POSTED) return result;
    for (u32 at = 0; at < count; at++) write(queue, taken, entries[at]);
    return finish(queue, taken, budget, last);
}

// Reserves, writes, publishes and submits entries. `last` is the ticket of the last one.
template <class Q, class E>
TRUNKLINE_CALL Post post(const Q &queue, const E *entries, u32 count, Budget &budget, Ticket &last) {
    Post result = posted();
    for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns))
        if (is_own_turn(turns)) result = post_in_turn(queue, entries, count, budget, last);
    return result;
}

// Polls a ticket once. True if the entry has ended, with GOOD, FAILED, ABORTED or STALE in `how`.
TRUNKLINE_FN bool poll(const View &view, const Ticket &ticket, Wait &how) {
    if (ticket.queue != view.number || ticket.epoch != view.epoch) {
        how = ended(STALE);
        return true;
    }
    u64 frontier = sys_load(view.told + TOLD_FRONTIER);
    if (!is_before(ticket.index, frontier_near(frontier, ticket.index))) return is_aborted(view, how);
    if (!has_failed(view, frontier, how) || is_before(ticket.index, how.first_bad)) how = good();
    return true;
}

// Waits until an entry has ended: as poll, and TIMEOUT.
template <class Q>
TRUNKLINE_CALL Wait wait(const Q &queue, const Ticket &ticket, Budget &budget) {
    Wait how;
    while (!poll(queue, ticket, how)) {
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
    return how;
}

// The state of a completion.
enum Completed : u32 {
    HERE = 0,
    NOT_YET = 1,       // the entry has not completed
    GONE = 2,          // a later entry's completion has replaced it
    NOT_OF_QUEUE = 3,  // the ticket belongs to another queue
};

struct Completion {
    u16 status;
    u8 op;
    u64 value;  // the value that the operation returned: the old value of the word
};

// Reads the completion of an entry: its status, and the value that the operation returned. It is valid until a later entry's completion
// replaces it.
TRUNKLINE_CALL Completed completion(const View &view, const Ticket &ticket, Completion &found) {
    if (ticket.queue != view.number || ticket.epoch != view.epoch) return NOT_OF_QUEUE;
    u64 *place = view.completions + (ticket.index & (view.depth - 1)) * 2;
    u64 head = sys_load(place);
    u32 owner = (u32)(head >> 56);
    int ahead = (int)((u32)head - (u32)ticket.index);
    if (owner > 1 || ahead < 0) return NOT_YET;
    u64 lap = ticket.index >> view.shift;
    if (ahead > 0 || owner != (lap & 1)) return GONE;
    if ((u16)(head >> 32) == STATUS_WRITING) return NOT_YET;
    u64 value = sys_load_relaxed(place + 1);
    // The engine may replace the completion meanwhile: the second read of the head detects that. The fence keeps it behind the read of the
    // value.
    sys_fence();
    if (sys_load_relaxed(place) != head) return GONE;
    found = Completion{(u16)(head >> 32), (u8)(head >> 48), value};
    return HERE;
}

// Returns the companion word. The first call requests a companion from the host.
TRUNKLINE_FN u64 companion(const View &view) {
    u64 *told = view.told;
    u64 known = sys_load(told + TOLD_COMPANION);
    if (known != COMPANION_NONE) return known;
    if (view.claims != nullptr) {
        if (dev_cas(view.claims + CLAIM_COMPANION, 0, 1) != 0) return COMPANION_ASKED;
        sys_store(told + TOLD_COMPANION_ASKED, COMPANION_ASKED);
    } else {
#if defined(TRUNKLINE_ON_HOST)
        known = host_cas(told + TOLD_COMPANION, COMPANION_NONE, COMPANION_ASKED);
        if (known != COMPANION_NONE) return known;
#endif
    }
    mark(view);
    return COMPANION_ASKED;
}

// As companion, and waits until the host has created it: GOOD and its number, REFUSED, TIMEOUT, or the end of the queue.
TRUNKLINE_CALL Wait companion_within(const View &view, Budget &budget, u32 &number) {
    for (;;) {
        u64 word = companion(view);
        Wait how = ended(REFUSED);
        if (word > COMPANION_ASKED) {
            if (word - COMPANION_FIRST >= 0xffffffffull - 1) return how;
            number = (u32)(word - COMPANION_FIRST);
            return good();
        }
        if (is_over(view, how)) return how;
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
}

}  // namespace trunkline

#endif
