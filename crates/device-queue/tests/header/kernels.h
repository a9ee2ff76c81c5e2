// Kernels of the tests. Threads of the host run the same functions, which are also compiled for GPUs. Together they use
// every operation.
#ifndef TRUNKLINE_TESTS_KERNELS_H
#define TRUNKLINE_TESTS_KERNELS_H

#include "trunkline/device.h"

#if defined(TRUNKLINE_ON_CUDA) || defined(TRUNKLINE_ON_HIP)
#define TRUNKLINE_KERNEL extern "C" __attribute__((global)) void
#endif

namespace tests {

using namespace trunkline;

// Words of slots, by number: signals of the peer (this process itself), counters, and the places of results.
struct Job {
    const View *views;  // lanes, then companions
    u32 lanes;
    u32 rounds;
    u64 *channel;       // its words, then the cursor
    u64 *slots;         // slots of 16 bytes, then their bases
    u64 *group;
    u64 *results;       // failed operations of each thread
    u64 looks;          // limit of each wait
};

constexpr u32 SLOTS = 8;
constexpr u32 SIGNAL = 0;   // raised by all threads
constexpr u32 COUNTER = 1;  // of the leader's puts
constexpr u32 OWN = 2;      // the original's
constexpr u32 RAISED = 3;   // by OP_MAX
constexpr u32 FLAG = 4;     // by OP_SET and OP_SWAP_IF

TRUNKLINE_FN u64 bad(const Post &result) { return result.kind != POSTED; }
TRUNKLINE_FN u64 bad(const Wait &result) { return result.kind != GOOD; }

TRUNKLINE_FN Slot slot_of(const Job &job, u32 number) {
    Slot slot = poisoned_slot(job.slots + number * 2);
    slot.base = job.slots + SLOTS * 2 + number;
    return slot;
}

// Operations of the leader alone, once.
TRUNKLINE_CALL u64 lead(const Job &job, const Channel &channel, Budget &budget) {
    Remote slots = {0, 3, 0};
    Remote there = {4096, 2, 0};
    Local here = {8192, 1};
    Put done = {0, {0, 0, 0}, {0, 0, 0}};
    Ticket ticket = {0, 0, 0};
    u64 number = 42, value = 0;
    Addition signal = add_to_slot(slots, SIGNAL, 1);
    Addition counter = add_to_slot(slots, COUNTER, 1);
    u64 failed = bad(put_inline(channel, &number, 8, there, budget, done));
    failed += bad(get(channel, here, there, 64, budget, done)) + bad(wait_local(channel, done, budget));
    failed += bad(trunkline::signal(channel, signal, budget, ticket));
    failed += bad(signal_counter(channel, signal, counter, budget, ticket));
    Remote raised = add_to_slot(slots, RAISED, 0).at, flag = add_to_slot(slots, FLAG, 0).at;
    failed += bad(change(channel, OP_MAX, raised, 17, 0, true, false, budget, ticket));
    failed += bad(change(channel, OP_SET, flag, 5, 0, true, true, budget, ticket));
    failed += bad(change(channel, OP_SWAP_IF, flag, 6, 5, true, true, budget, ticket));
    failed += bad(wait(*channel.lanes[0].main, ticket, budget));
    Completion found = {0, 0, 0};
    failed += completion(*channel.lanes[0].main, ticket, found) != HERE || found.value != 5;
    With with = {&signal, &counter, false, true, false};
    Bytes bytes = {here, there, 100};
    failed += bad(put_shares(channel, bytes, 1, with, budget, done));
    failed += bad(post_on(channel, 0, entry_barrier(), budget, ticket)) + bad(post_on(channel, 0, entry_show(), budget, ticket));
    failed += bad(post_on(channel, 0, entry_notify(0, 9), budget, ticket));
    failed += bad(post_on(channel, 0, entry_write_telling(here, there, 8, 3), budget, ticket));
    failed += bad(flush(channel, budget)) + (pending(channel) != 0);
    failed += bad(wait_unless_aborted(*channel.lanes[0].main, slot_of(job, COUNTER), Condition{AT_LEAST, 2}, budget, value));
    failed += !reset(slot_of(job, COUNTER), value) || read(slot_of(job, COUNTER)) != 0;
    return failed;
}

// The original's operations.
TRUNKLINE_CALL u64 lead_original(const Job &job, const Lane &lane, Budget &budget) {
    Remote slots = {0, 3, 0};
    Bytes bytes = {{8192, 1}, {4096, 2, 0}, 4096};
    Addition signal = add_to_word(slots, OWN * 2, 1);
    Ticket ticket = {0, 0, 0};
    u64 value = 0;
    u64 failed = bad(original::put(lane, bytes, budget, ticket)) + bad(original::wait_local(lane, ticket, budget));
    failed += bad(original::put_group(lane, bytes, 1, budget, ticket));
    failed += bad(original::put_signal(lane, bytes, signal, budget, ticket));
    failed += bad(original::signal_remote(lane, signal, budget, ticket));
    failed += bad(original::put_signal_counter_remote(lane, bytes, signal, signal, budget));
    failed += bad(original::signal_counter_remote(lane, signal, signal, budget));
    failed += bad(original::fence(lane, budget));
    failed += bad(wait_unless_aborted(*lane.main, slot_of(job, OWN), Condition{AT_LEAST, 6}, budget, value));
    Budget once = looks(1);
    failed += bad(original::wait_signal(slot_of(job, OWN), 6, once, value)) + (value != original::read_signal(slot_of(job, OWN)));
    return failed + bad(original::reset_signal(lane, slots, OWN * 2, budget));
}

// Reservations, cancels, and requests for missing things.
TRUNKLINE_CALL u64 use_queue(const View &view, Budget &budget) {
    Reservation taken = {0, 0, 0};
    u64 failed = bad(reserve_within(view, 2, budget, taken));
    failed += !write(view, taken, entry_notify(0, 1)) || !write(view, taken, fenced(entry_nop(), FENCE_ALL));
    failed += write(view, taken, entry_nop());
    cancel(view, taken);
    Ticket ticket = ticket_of(view, taken.first + 1);
    failed += bad(wait(view, ticket, budget));
    Wait how = good();
    failed += !poll(view, ticket, how) || bad(how);
    ticket.epoch += 1;
    failed += !poll(view, ticket, how) || how.kind != STALE;
    return failed + !is_usable(view);
}

// The program: a group puts together, each of its threads puts alone, and all threads get every result.
TRUNKLINE_CALL void exercise(const Job &job, Group group) {
    Lane lanes[4];
    for (u32 at = 0; at < job.lanes; at++) lanes[at] = Lane{job.views + at, job.views + job.lanes, job.lanes};
    Channel channel = {lanes, job.lanes, job.channel, job.channel + 2 * job.lanes};
    Addition signal = add_to_slot(Remote{0, 3, 0}, SIGNAL, 1);
    Addition counter = add_to_slot(Remote{0, 3, 0}, COUNTER, 1);
    With both = {&signal, &counter, false, false, false}, none = {nullptr, nullptr, false, false, false};
    Bytes bytes = {{8192, 1}, {4096, 2, 0}, 1000};
    Budget budget = looks(job.looks);
    Put done = {0, {0, 0, 0}, {0, 0, 0}};
    u64 failed = 0, value = 0;
    if (is_leader(group)) {
        failed += lead(job, channel, budget) + lead_original(job, lanes[0], budget);
        failed += use_queue(*lanes[0].main, budget);
    }
    meet(group);
    for (u32 round = 0; round < job.rounds; round++) {
        failed += bad(put(group, channel, bytes, both, budget, done));
        failed += bad(wait(group, *lanes[done.lane].main, done.last, budget));
        failed += bad(put_cooperative(group, channel, bytes, both, budget, done));
        Condition counted = {AT_LEAST, 2ull * round + 2};
        failed += bad(wait_unless_aborted(group, *lanes[0].main, slot_of(job, COUNTER), counted, budget, value));
        failed += value < 2ull * round + 2;
        // Each thread separately.
        failed += bad(trunkline::signal(channel, signal, budget, done.last));
        failed += bad(put(channel, bytes, none, budget, done)) + bad(wait_local(channel, done, budget));
        failed += bad(flush(group, channel, budget));
    }
    dev_store(job.results + group.rank, failed);
}

}  // namespace tests

#endif
