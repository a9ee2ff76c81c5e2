// The producer's side of a queue, for any number of threads at once: reserve, write, publish, submit, poll.
//
// What crates/device-queue/src/queue.rs does, access by access. A reservation takes nothing unless there is room, so who finds none has
// nothing to give back. Who has reserved publishes or cancels, else nobody behind gets further.
//
// What depends on who executes is in a few functions that are overloaded for each kind of queue (here for View, in mlx5.h for a
// NIC): put_entry, put_nop, completed_near, ring, poll, is_aborted, is_over, abort. All else is a template over the queue, and
// the same for both.
#ifndef TRUNKLINE_DEVICE_QUEUE_H
#define TRUNKLINE_DEVICE_QUEUE_H

#include "trunkline/device/abi.h"
#include "trunkline/device/entry.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/turns.h"

namespace trunkline {

// How often somebody who cancels tries to publish NOPs. Those before him are about to publish, unless they have left in the
// middle, or are not running.
constexpr u32 LEAVING_LOOKS_MAX = 1024;

TRUNKLINE_FN Wait good() { return Wait{GOOD, STATUS_DONE, 0, 0}; }
TRUNKLINE_FN Wait ended(Kind kind) { return Wait{kind, STATUS_DONE, 0, 0}; }
TRUNKLINE_FN Post posted() { return Post{POSTED, good()}; }
TRUNKLINE_FN Post not_posted(Posting kind) { return Post{kind, good()}; }

// Places in a row that are one's own to write.
struct Reservation {
    u64 first;
    u32 count;
    u32 written;
};

TRUNKLINE_FN Ticket ticket_of(const View &view, u64 index) { return Ticket{view.number, view.epoch, index}; }

// Whether a queue can be used here at all. To be asked once, before anything else.
TRUNKLINE_FN bool is_usable(const View &view) {
#if defined(TRUNKLINE_ON_HOST)
    bool is_reached = true;
#else
    // A bit would be set by an atomic on the host's memory. Entries are stored by 16 bytes.
    bool is_reached = view.bit == 0 && view.claims != nullptr && (u64)view.ring % 16 == 0;
#endif
    bool is_power = view.depth >= DEPTH_MIN && view.depth <= DEPTH_MAX && view.shift < 16 && view.depth == 1u << view.shift;
    return is_reached && is_power && view.version == VERSION;
}

// The status of a word that somebody else has written; `instead` where it says that nothing failed.
TRUNKLINE_FN u16 status_of(u64 bits, u16 instead) {
    u16 status = (u16)bits;
    if (status == STATUS_WRITING) return STATUS_NETWORK;
    return status == STATUS_DONE ? instead : status;
}

// The index that a frontier stands for, the one of the two that is nearer to `index`.
TRUNKLINE_FN u64 frontier_near(u64 frontier, u64 index) {
    i64 ahead = (i64)((frontier - index) << 1) >> 1;
    return index + (u64)ahead;
}

// The fault, if a frontier says that there is one.
TRUNKLINE_FN bool has_failed(const View &view, u64 frontier, Wait &how) {
    if (!(frontier & FRONTIER_FAILED)) return false;
    u64 error = sys_load_relaxed(view.told + TOLD_ERROR);
    u64 reason = sys_load_relaxed(view.told + TOLD_REASON);
    u64 first_bad = sys_load_relaxed(view.told + TOLD_FIRST_BAD);
    how = Wait{FAILED, status_of(error >> 32, STATUS_FLUSHED), (u32)reason, first_bad};
    return true;
}

// Whether everybody is to stop, and why.
TRUNKLINE_FN bool is_aborted(const View &view, Wait &how) {
    u64 word = sys_load(view.told + TOLD_ABORT);
    // What a thread of this device has asked for is known here before the engine has taken it up.
    if (word == 0 && view.claims != nullptr) word = dev_load(view.claims + CLAIM_ABORT);
    if (word == 0) return false;
    how = Wait{ABORTED, status_of(word, STATUS_ABORTED), (u32)(word >> 32), 0};
    return true;
}

// Whether the queue has come to its end.
TRUNKLINE_CALL bool is_over(const View &view, Wait &how) {
    return has_failed(view, sys_load(view.told + TOLD_FRONTIER), how) || is_aborted(view, how);
}

// Has the engine look at the queue.
TRUNKLINE_FN void mark(const View &view) {
    if (view.bit == 0) {
        sys_store_u8((u8 *)view.mark, 1);
        return;
    }
#if defined(TRUNKLINE_ON_HOST)
    host_or((u64 *)view.mark, view.bit);
#endif
}

// Tells everybody to stop, unless somebody has already; whether this is the first reason that is known here.
TRUNKLINE_FN bool abort(const View &view, u16 status, u32 reason) {
    u64 word = halves(status == STATUS_DONE ? STATUS_ABORTED : status, reason);
    bool is_first = false;
    if (view.claims != nullptr) {
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

// How many have completed, as far as one can tell who asks about `needed`.
TRUNKLINE_FN u64 completed_near(const View &view, u64 needed) {
    return frontier_near(sys_load(view.told + TOLD_FRONTIER), needed);
}

TRUNKLINE_FN void put_nop(const View &view, u64 index) { put_entry(view, index, entry_nop()); }

// Whether the place before `end` is free: what lay there a lap ago has completed. First by what some producer has seen, as the
// frontier may be far away.
template <class Q>
TRUNKLINE_FN bool has_room(const Q &queue, u64 end) {
    u64 needed = end - queue.depth;
    if (!is_before(dev_load(queue.words + WORD_SHADOW), needed)) return true;
    u64 completed = completed_near(queue, needed);
    dev_advance(queue.words + WORD_SHADOW, completed);
    return !is_before(completed, needed);
}

// Takes `count` places in a row, if they are free: POSTED, BUSY, TOO_MANY or OVER.
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

// The same, and waits for room, which may come only once somebody else has published. So of lanes in lockstep one at a time reserves and publishes or
// cancels, by a turn around both (turns.h). What follows here and in other files does so.
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

// Publishes the entries, those that were not written as NOPs. False while those before them are not published.
template <class Q>
TRUNKLINE_FN bool publish(const Q &queue, Reservation &taken) {
    for (; taken.written < taken.count; taken.written++) put_nop(queue, taken.first + taken.written);
    // Other threads of a group may have written some of them, and memory that a device shares with the host is written, too.
    sys_fence();
    u64 *ready = queue.words + WORD_READY;
    TRUNKLINE_STEP("publish");
    // Nobody else changes it when it is this reservation's turn, so it takes no exchange.
    if (dev_load(ready) != taken.first) return false;
    dev_store(ready, taken.first + taken.count);
    return true;
}

// The same, and waits for those before; false when the time is over or the queue was aborted. Then it is to be canceled.
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

// Stores the doorbell, and then what tells the engine to look at it.
TRUNKLINE_FN void ring(const View &view, u64 end) {
    sys_store(view.bell, end);
    TRUNKLINE_STEP("half-rung");
    mark(view);
}

// A fence also between a store and a later load.
TRUNKLINE_FN void settle() {
    sys_fence_full();
    TRUNKLINE_STEP("full-fence");
}

// Tells the engine of all before `end`, which were published; false: somebody else's doorbell covers it, or is about to.
template <class Q>
TRUNKLINE_CALL bool submit(const Q &queue, u64 end) {
    u64 *submitted = queue.words + WORD_SUBMITTED;
    if (!is_before(dev_advance(submitted, end), end)) return false;
    for (;;) {
        u64 to = dev_load(submitted);
        TRUNKLINE_STEP("submit");
        // Of two who store in the wrong order, the one that did so last looks after the other has raised the counter. That
        // takes a full fence on both sides of the store.
        settle();
        ring(queue, to);
        settle();
        TRUNKLINE_STEP("rung");
        if (dev_load(submitted) == to) return true;
    }
}

// Gives the places up: they become NOPs, and are published and submitted. Where those before have left in the middle nobody
// gets further than them, so everybody is told to stop.
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

// Post, of one lane of a wavefront.
template <class Q, class E>
TRUNKLINE_FN Post post_in_turn(const Q &queue, const E *entries, u32 count, Budget &budget, Ticket &last) {
    Reservation taken;
    Post result = reserve_within(queue, count, budget, taken);
    if (result.kind != POSTED) return result;
    for (u32 at = 0; at < count; at++) write(queue, taken, entries[at]);
    return finish(queue, taken, budget, last);
}

// Reserves, writes, publishes and submits entries; the ticket of the last one.
template <class Q, class E>
TRUNKLINE_CALL Post post(const Q &queue, const E *entries, u32 count, Budget &budget, Ticket &last) {
    Post result = posted();
    for (Turns turns = begin_turns(); has_turns(turns); end_turn(turns))
        if (is_own_turn(turns)) result = post_in_turn(queue, entries, count, budget, last);
    return result;
}

// Looks whether an entry is over, and how: GOOD, FAILED, ABORTED or STALE.
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

// Waits until an entry is over: as poll, and TIMEOUT.
template <class Q>
TRUNKLINE_CALL Wait wait(const Q &queue, const Ticket &ticket, Budget &budget) {
    Wait how;
    while (!poll(queue, ticket, how)) {
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
    return how;
}

// A completion, or why there is none.
enum Completed : u32 {
    HERE = 0,
    NOT_YET = 1,       // the entry has not completed
    GONE = 2,          // a later one's completion is in its place
    NOT_OF_QUEUE = 3,  // the ticket is of another queue
};

struct Completion {
    u16 status;
    u8 op;
    u64 value;  // that the entry brings: what was there before
};

// How an entry ended, and what it brought. That is there until a later one takes its place.
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
    // The head again behind the value: an acquire before it is what a fence is for.
    sys_fence();
    if (sys_load_relaxed(place) != head) return GONE;
    found = Completion{(u16)(head >> 32), (u8)(head >> 48), value};
    return HERE;
}

// The companion word; who asks first has the host make one.
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

// The same, and waits until the host has made it: GOOD and its number, REFUSED, TIMEOUT, or the end of the queue.
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
