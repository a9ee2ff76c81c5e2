// Groups of threads: the leader posts and waits, and all threads get the same result, so that a group continues or stops as one.
//
// Every thread of a group makes the same calls in the same order. No thread may leave while others continue.
#ifndef TRUNKLINE_DEVICE_GROUP_H
#define TRUNKLINE_DEVICE_GROUP_H

#include "trunkline/device/abi.h"
#include "trunkline/device/lane.h"
#include "trunkline/device/platform.h"
#include "trunkline/device/queue.h"
#include "trunkline/device/slot.h"
#include "trunkline/device/successor.h"
#include "trunkline/device/turns.h"

namespace trunkline {

// How the threads of a group synchronise.
enum Meeting : u32 {
    MEET_ALONE = 0,  // a single thread
    MEET_WARP = 1,   // a whole warp or wavefront, whose threads all run
    MEET_BLOCK = 2,  // a whole block
    MEET_COUNT = 3,  // by a counter in memory; all threads must run at the same time
};

// Words of a group, in memory that its threads share, initially 0: the verdict (crates/device-queue/src/verdict.rs), the number of arrived
// threads, up to 8 words from the leader, and the number of meetings. The next kernel may continue with their current values.
constexpr u32 GROUP_WORDS = 16;
constexpr u32 GROUP_ARRIVED = 3;
constexpr u32 GROUP_HANDED = 4;
constexpr u32 GROUP_MEETINGS = 12;

struct Group {
    u64 *words;
    u32 rank;  // 0: the leader
    u32 size;
    Meeting meeting;
    u32 round;  // of verdicts, from 1 on
};

TRUNKLINE_FN Group group_of(u64 *words, u32 rank, u32 size, Meeting meeting) {
    return Group{words, rank, size, meeting, 0};
}

// Returns a group of the calling thread alone.
TRUNKLINE_FN Group alone(u64 *words) { return group_of(words, 0, 1, MEET_ALONE); }

#if !defined(TRUNKLINE_ON_HOST)
TRUNKLINE_FN Group this_block(u64 *words) { return group_of(words, rank_in_block(), size_of_block(), MEET_BLOCK); }

// Returns the group of the calling thread's warp. `words` are those of the block's first warp; those of the others follow. Blocks consist
// of whole warps.
TRUNKLINE_FN Group this_warp(u64 *words) {
    u32 rank = rank_in_block();
    u32 size = size_of_warp();
    return group_of(words + rank / size * GROUP_WORDS, rank % size, size, MEET_WARP);
}
#endif

TRUNKLINE_FN bool is_leader(const Group &group) { return group.rank == 0; }

// Waits until all threads have arrived. Writes of each thread before the call are visible to all after it.
TRUNKLINE_FN void meet(const Group &group) {
#if !defined(TRUNKLINE_ON_HOST)
    if (group.meeting == MEET_WARP) return warp_sync();
    if (group.meeting == MEET_BLOCK) return block_sync();
#endif
    if (group.meeting == MEET_ALONE) return;
    // All state between two meetings is in memory: a counter in a copy of the group would start again at 0.
    u64 meetings = dev_load(group.words + GROUP_MEETINGS);
    sys_fence();
    if (dev_add(group.words + GROUP_ARRIVED, 1) + 1 == group.size) {
        sys_fence();
        dev_store_relaxed(group.words + GROUP_ARRIVED, 0);
        dev_store(group.words + GROUP_MEETINGS, meetings + 1);
    }
    TRUNKLINE_WAITS("meet");
    while (dev_load(group.words + GROUP_MEETINGS) == meetings) pause();
    TRUNKLINE_WAITED("meet");
}

// Publishes the result of a round. Called by the leader alone.
TRUNKLINE_FN void tell(u64 *words, u32 round, Wait how) {
    dev_store_relaxed(words + 1, halves(how.status, how.detail));
    dev_store_relaxed(words + 2, how.first_bad);
    dev_store(words, halves(round, how.kind));
}

// Returns the result of a round, once the leader has published it; TIMEOUT also if it was not published in time.
TRUNKLINE_FN Wait hear(u64 *words, u32 round, Budget &budget) {
    for (;;) {
        u64 told = dev_load(words);
        if ((u32)told == round) {
            u64 detail = dev_load_relaxed(words + 1);
            u64 first_bad = dev_load_relaxed(words + 2);
            u32 kind = (u32)(told >> 32);
            if (kind > REFUSED) kind = STALE;
            return Wait{(Kind)kind, (u16)detail, (u32)(detail >> 32), first_bad};
        }
        if (!goes_on(budget)) return ended(TIMEOUT);
        pause();
    }
}

// Shares the leader's result with all threads, together with the leader's words in `handed`.
TRUNKLINE_CALL Wait agree(Group &group, const Wait &leaders, u64 *handed, u32 count) {
    group.round += 1;
    if (is_leader(group)) {
        for (u32 at = 0; at < count; at++) dev_store_relaxed(group.words + GROUP_HANDED + at, handed[at]);
        tell(group.words, group.round, leaders);
    }
    meet(group);
    Budget once = looks(1);
    Wait how = hear(group.words, group.round, once);
    for (u32 at = 0; at < count; at++) handed[at] = dev_load_relaxed(group.words + GROUP_HANDED + at);
    // The leader publishes the next round only after all threads have read this one.
    meet(group);
    return how;
}

TRUNKLINE_CALL Post agree(Group &group, const Post &leaders, Put &put) {
    u64 handed[6] = {leaders.kind, put.lane, halves(put.write.queue, put.write.epoch), put.write.index,
                     put.last.index, 0};
    Wait why = agree(group, leaders.why, handed, 6);
    Ticket ticket = {(u32)handed[2], (u32)(handed[2] >> 32), handed[3]};
    put = Put{(u32)handed[1], ticket, Ticket{ticket.queue, ticket.epoch, handed[4]}};
    return Post{(Posting)(u32)handed[0], why};
}

// Waits until an entry has ended. Only the leader polls.
TRUNKLINE_FN Wait wait(Group &group, const View &view, const Ticket &ticket, Budget &budget) {
    Wait how = good();
    if (is_leader(group)) how = wait(view, ticket, budget);
    return agree(group, how, nullptr, 0);
}

// Waits until a signal or counter meets the condition, and returns its value.
TRUNKLINE_FN Wait wait(Group &group, const Slot &slot, const Condition &until, Budget &budget, u64 &value) {
    Wait how = good();
    if (is_leader(group)) how = wait(slot, until, budget, value);
    return agree(group, how, &value, 1);
}

// As wait, and ends when the queue is aborted.
TRUNKLINE_FN Wait wait_unless_aborted(Group &group, const View &view, const Slot &slot, const Condition &until, Budget &budget,
                                      u64 &value) {
    Wait how = good();
    if (is_leader(group)) how = wait_unless_aborted(view, slot, until, budget, value);
    return agree(group, how, &value, 1);
}

// Waits until all recorded entries of a channel have completed.
TRUNKLINE_FN Wait flush(Group &group, const Channel &channel, Budget &budget) {
    Wait how = good();
    if (is_leader(group)) how = flush(channel, budget);
    return agree(group, how, nullptr, 0);
}

// Writes bytes of the whole group: it includes all that any of its threads wrote before the call.
TRUNKLINE_FN Post put(Group &group, const Channel &channel, const Bytes &bytes, const With &with, Budget &budget, Put &done) {
    Post result = posted();
    done = Put{0, Ticket{0, 0, 0}, Ticket{0, 0, 0}};
    meet(group);
    if (is_leader(group)) result = put(channel, bytes, with, budget, done);
    return agree(group, result, done);
}

// Begins a cooperative put and reserves its places. Called by the leader alone.
TRUNKLINE_FN Post begin_shares(const Channel &channel, const Bytes &bytes, u32 threads, const With &with, Budget &budget,
                               Begun &begun, Reservation &taken) {
    Post result = begin_put(channel, bytes, threads, with, budget, begun);
    if (result.kind != POSTED) return result;
    const View &view = *channel.lanes[begun.lane].main;
    result = check_shares(view, bytes, threads, begun.has_signal);
    if (result.kind != POSTED) return result;
    return reserve_within(view, threads + begun.has_signal, budget, taken);
}

// Returns whether threads of several groups may run in lockstep in one wavefront. A leader must then not wait for room while the threads of
// another group write entries that their leader has reserved.
TRUNKLINE_FN bool may_share_wavefront(const Group &group) {
#if defined(TRUNKLINE_LOCKSTEP)
    return group.meeting == MEET_ALONE || group.meeting == MEET_COUNT;
#else
    (void)group;
    return false;
#endif
}

// As put_cooperative, but the leader writes all shares, in its turn.
TRUNKLINE_CALL Post put_by_leader(Group &group, const Channel &channel, const Bytes &bytes, const With &with, Budget &budget, Put &done) {
    Post result = posted();
    done = Put{0, Ticket{0, 0, 0}, Ticket{0, 0, 0}};
    meet(group);
    if (is_leader(group)) result = put_shares(channel, bytes, group.size, with, budget, done);
    return agree(group, result, done);
}

// Writes bytes: each thread of the group writes the entry of its share. There is one reservation, one publication and one doorbell.
TRUNKLINE_CALL Post put_cooperative(Group &group, const Channel &channel, const Bytes &bytes, const With &with, Budget &budget,
                                  Put &done) {
    if (may_share_wavefront(group)) return put_by_leader(group, channel, bytes, with, budget, done);
    Begun begun = not_begun();
    Reservation taken = {0, 0, 0};
    Post result = posted();
    if (is_leader(group)) result = begin_shares(channel, bytes, group.size, with, budget, begun, taken);
    u64 handed[3] = {result.kind, begun.lane, taken.first};
    result.why = agree(group, result.why, handed, 3);
    result.kind = (Posting)(u32)handed[0];
    if (result.kind != POSTED) return result;
    const View &view = *channel.lanes[handed[1]].main;
    Entry share = share_of(bytes, group.rank, group.size);
    // The thread with the last share computes its counter itself, from the common arguments.
    if (group.rank + 1 == group.size) share = last_of(Beside{nullptr, counter_in_entry(with, bytes, group.size)}, share);
    put_entry(view, handed[2] + group.rank, share);
    meet(group);
    done = Put{(u32)handed[1], ticket_of(view, handed[2] + group.size - 1), ticket_of(view, 0)};
    if (is_leader(group)) {
        taken.written = group.size;
        if (begun.has_signal) write(view, taken, begun.signal);
        result = finish(view, taken, budget, done.last);
        if (result.kind == POSTED) result = end_put(channel, with, begun, budget, done);
    }
    return agree(group, result, done);
}

}  // namespace trunkline

#endif
