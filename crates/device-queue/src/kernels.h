// Kernels of this project: every operation, a flood of entries, exchanges with checked bytes, and failures. There are also the kernels that
// `trunkline bench device` times, and those of the three examples (a ring of sums, tokens, halos). NVRTC compiles them when a program
// starts (crates/device-queue/src/kernels.rs). Tests without a GPU compile them for threads of the host (crates/device/tests/m2).
#ifndef TRUNKLINE_KERNELS_H
#define TRUNKLINE_KERNELS_H

#include "trunkline/device.h"

namespace kernels {

using namespace trunkline;

// The arguments of a kernel, as words by value; the twin is in crates/device/src/lanes.rs.
struct Job {
    const View *views;  // lanes, then their companions
    u64 lanes;
    u64 *channel;       // of each block: two words per lane, and the cursor
    u64 *group;         // of each block
    const u64 *slots;   // slots of 16 bytes that are raised on this rank
    u64 *bases;         // one base per slot
    u64 *data;          // the bytes of this rank's region
    u64 *results;       // one word per thread
    u64 key;            // of the region of this rank; above 32 bits that of the peer's
    u64 peer;
    u64 slots_at;       // offset of the slots in the peer's region
    u64 rounds;
    u64 batch;
    u64 bytes;
    u64 ticks;          // limit of each wait; 0 for no limit
    u64 number;         // number of this kernel among several
};

static_assert(sizeof(Job) == 128, "Job");

// The position of a thread.
struct Me {
    u32 block;
    u32 blocks;
    Group group;
};

constexpr u32 LANES_OF_JOB = 8;

TRUNKLINE_FN u64 bad(const Post &result) { return result.kind != POSTED; }
TRUNKLINE_FN u64 bad(const Wait &result) { return result.kind != GOOD; }

TRUNKLINE_FN Local here(const Job &job, u64 at) { return Local{at, (u32)job.key}; }
TRUNKLINE_FN Remote there(const Job &job, u64 at) { return Remote{at, (u32)(job.key >> 32), (u32)job.peer}; }
TRUNKLINE_FN Addition raise(const Job &job, u32 slot, u64 value) { return add_to_slot(there(job, job.slots_at), slot, value); }
TRUNKLINE_FN Budget patience(const Job &job) { return job.ticks == 0 ? forever() : until(now() + job.ticks); }

TRUNKLINE_FN Slot slot_of(const Job &job, u32 number) {
    Slot slot = poisoned_slot(job.slots + number * 2);
    slot.base = job.bases + number;
    return slot;
}

TRUNKLINE_FN Channel channel_of(const Job &job, const Me &me, Lane *lanes) {
    for (u32 at = 0; at < job.lanes && at < LANES_OF_JOB; at++)
        lanes[at] = Lane{job.views + at, job.views + job.lanes, (u32)job.lanes};
    u64 *words = job.channel + me.block * (2 * job.lanes + 2);
    return Channel{lanes, (u32)job.lanes, words, words + 2 * job.lanes};
}

// The state of the programs below, one per thread.
struct Run {
    Lane lanes[LANES_OF_JOB];
    Channel channel;
    Group group;
    Budget budget;
    Put done;
    Ticket ticket;
    u64 failed;  // number of failed operations
    u64 value;   // result of the last wait
};

TRUNKLINE_FN void begin(const Job &job, const Me &me, Run &run) {
    run.channel = channel_of(job, me, run.lanes);
    run.group = me.group;
    run.budget = patience(job);
    run.done = Put{0, {0, 0, 0}, {0, 0, 0}};
    run.ticket = Ticket{0, 0, 0};
    run.failed = run.value = 0;
}

// The word for this thread's result.
TRUNKLINE_FN u64 *result_of(const Job &job, const Me &me) { return job.results + me.block * me.group.size + me.group.rank; }

// Waits until a slot of this rank is at least `value`; called by all threads of the group.
TRUNKLINE_FN void await(const Job &job, Run &run, u32 slot, u64 value) {
    Condition until = {AT_LEAST, value};
    run.failed += bad(wait_unless_aborted(run.group, *run.lanes[0].main, slot_of(job, slot), until, run.budget, run.value));
}

// Puts bytes; called by all threads of the group.
TRUNKLINE_FN void give(Run &run, const Bytes &bytes, const With &with) {
    run.failed += bad(put(run.group, run.channel, bytes, with, run.budget, run.done));
}

// Raises a signal; called by one thread.
TRUNKLINE_FN void tell(Run &run, const Addition &signal) {
    run.failed += bad(trunkline::signal(run.channel, signal, run.budget, run.ticket));
}

// Reads a word of the device's memory that a copy of the host, or another thread, has changed.
TRUNKLINE_FN u64 data_at(const Job &job, u64 at) { return sys_load(job.data + at / 8); }

struct Checks {
    u64 failed;  // one bit per failed check
    u32 next;
};

TRUNKLINE_FN void check(Checks &checks, u64 is_bad) {
    checks.failed |= (u64)(is_bad != 0) << checks.next;
    checks.next += 1;
}

// Waits for a signal that no rank raises, until the budget is spent, and stores the result of that wait. With a number in the job the
// timeout ends the kernel.
TRUNKLINE_FN void expires(const Job &job, const Me &me) {
    Budget soon = job.number == 0 ? looks(50) : or_die(looks(50));
    u64 value = 0;
    Wait how = wait(slot_of(job, 9), Condition{AT_LEAST, 1}, soon, value);
    dev_store(job.results + me.group.rank, how.kind);
}

TRUNKLINE_CALL void puts_and_gets(const Job &job, const Channel &channel, Checks &checks) {
    Budget budget = patience(job);
    With none = {nullptr, nullptr, false, false, false};
    Put done = {0, {0, 0, 0}, {0, 0, 0}};
    u64 value = 0, number = 42;
    sys_store(job.data, 1234567);
    check(checks, bad(put(channel, Bytes{here(job, 0), there(job, 4096), 64}, none, budget, done)));        // 0
    check(checks, bad(wait_local(channel, done, budget)));
    check(checks, data_at(job, 4096) != 1234567);                                                           // 2
    Addition signal = raise(job, 0, 1), counter = raise(job, 1, 1);
    With both = {&signal, &counter, false, false, false};
    check(checks, bad(put(channel, Bytes{here(job, 4096), there(job, 6144), 64}, both, budget, done)));     // 3
    check(checks, bad(wait(slot_of(job, 0), Condition{AT_LEAST, 1}, budget, value)));
    check(checks, data_at(job, 6144) != 1234567 || value != 1);                                             // 5
    check(checks, bad(wait(slot_of(job, 1), Condition{AT_LEAST, 1}, budget, value)));
    check(checks, bad(put_inline(channel, &number, 8, there(job, 8192), budget, done)));                    // 7
    check(checks, bad(flush(channel, budget)) + (pending(channel) != 0));
    check(checks, data_at(job, 8192) != 42);                                                                // 9
    check(checks, bad(get(channel, here(job, 12288), there(job, 8192), 8, budget, done)));
    check(checks, bad(wait_local(channel, done, budget)));                                                  // 11
    check(checks, data_at(job, 12288) != 42);
}

TRUNKLINE_CALL void changes(const Job &job, const Channel &channel, Checks &checks) {
    Budget budget = patience(job);
    const View &view = *channel.lanes[0].main;
    Ticket ticket = {0, 0, 0};
    Completion found = {0, 0, 0};
    u64 value = 0;
    Addition signal = raise(job, 0, 1), counter = raise(job, 1, 1);
    Remote most = raise(job, 2, 0).at, flag = raise(job, 3, 0).at, masked = raise(job, 4, 0).at;
    check(checks, bad(change(channel, OP_MAX, most, 17, 0, true, false, budget, ticket)));                  // 13
    check(checks, bad(change(channel, OP_MAX, most, 3, 0, true, false, budget, ticket)));
    check(checks, bad(change(channel, OP_SET, flag, 5, 0, true, true, budget, ticket)));                    // 15
    check(checks, bad(change(channel, OP_SWAP_IF, flag, 6, 5, true, true, budget, ticket)));
    check(checks, bad(wait(view, ticket, budget)));                                                         // 17
    check(checks, completion(view, ticket, found) != HERE || found.value != 5);
    check(checks, bad(change(channel, OP_SWAP_IF, flag, 9, 5, true, true, budget, ticket)));                // 19
    check(checks, bad(wait(view, ticket, budget)) + (completion(view, ticket, found) != HERE || found.value != 6));
    check(checks, bad(change(channel, OP_ADD_MASKED, masked, 0xff, 0x8080, true, true, budget, ticket)));   // 21
    check(checks, bad(flush(channel, budget)));
    check(checks, read(slot_of(job, 2)) != 17);                                                             // 23
    check(checks, read(slot_of(job, 3)) != 6 || read(slot_of(job, 4)) != 0xff);
    check(checks, bad(trunkline::signal(channel, signal, budget, ticket)));                                 // 25
    check(checks, bad(signal_counter(channel, signal, counter, budget, ticket)));
    check(checks, bad(wait_unless_aborted(view, slot_of(job, 0), Condition{EQUAL, 3}, budget, value)));     // 27
    check(checks, bad(wait(slot_of(job, 1), Condition{MORE_THAN, 1}, budget, value)));
    check(checks, !reset(slot_of(job, 0), value) || value != 3 || read(slot_of(job, 0)) != 0);              // 29
}

TRUNKLINE_CALL void by_hand(const Job &job, const Channel &channel, Checks &checks) {
    Budget budget = patience(job);
    const View &view = *channel.lanes[0].main;
    const Lane &lane = channel.lanes[0];
    Reservation taken = {0, 0, 0};
    Ticket ticket = {0, 0, 0};
    check(checks, !is_usable(view));                                                                        // 30
    check(checks, bad(reserve_within(view, 2, budget, taken)) + !write(view, taken, entry_nop()));
    cancel(view, taken);
    ticket = ticket_of(view, taken.first + 1);
    check(checks, bad(wait(view, ticket, budget)));                                                         // 32
    Wait how = good();
    ticket.epoch += 1;
    check(checks, !poll(view, ticket, how) || how.kind != STALE);
    check(checks, bad(post_on(channel, 0, entry_barrier(), budget, ticket)));                               // 34
    check(checks, bad(post_on(channel, 0, entry_show(), budget, ticket)) + bad(flush(channel, budget)));
    check(checks, reserve(view, view.depth + 1, taken).kind != TOO_MANY);                                   // 36
    Addition signal = raise(job, 5, 1), counter = raise(job, 6, 1);
    Bytes bytes = {here(job, 0), there(job, 16384), 256};
    check(checks, bad(original::put_signal_counter_remote(lane, bytes, signal, counter, budget)));          // 37
    check(checks, bad(original::put_signal(lane, bytes, signal, budget, ticket)));
    check(checks, bad(original::fence(lane, budget)));                                                      // 39
    u64 value = 0;
    check(checks, bad(wait(slot_of(job, 5), Condition{AT_LEAST, 2}, budget, value)));
    check(checks, bad(wait(slot_of(job, 6), Condition{AT_LEAST, 1}, budget, value)));                       // 41
    check(checks, data_at(job, 16384) != 1234567);
}

// Every operation, once. The result has one bit per failed check.
TRUNKLINE_CALL void operations(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    Checks checks = {0, 0};
    if (is_leader(me.group)) {
        puts_and_gets(job, run.channel, checks);
        changes(job, run.channel, checks);
        by_hand(job, run.channel, checks);
    }
    checks.next = 48;
    meet(me.group);
    Addition signal = raise(job, 7, 1);
    With with = {&signal, nullptr, false, false, false};
    Bytes bytes = {here(job, 0), there(job, 20480), 1000};
    for (u64 round = 1; round <= job.rounds; round++) {
        checks.next = 48;
        check(checks, bad(put(run.group, run.channel, bytes, with, run.budget, run.done)));                // 48
        check(checks, bad(put_cooperative(run.group, run.channel, bytes, with, run.budget, run.done)));
        check(checks, bad(wait_unless_aborted(run.group, *run.lanes[0].main, slot_of(job, 7), Condition{AT_LEAST, 2 * round}, run.budget, run.value)));
        check(checks, bad(flush(run.group, run.channel, run.budget)));                              // 51
    }
    dev_store(result_of(job, me), checks.failed);
}

// Every thread of every block posts batches on its block's lane: WRITEs of one word, and behind them an ADD to the lane's slot. A thread
// writes the number of the batch, to a word of its own.
TRUNKLINE_CALL void flood(const Job &job, const Me &me) {
    u32 lane = me.block % (u32)job.lanes;
    const View &view = job.views[lane];
    u32 thread = me.block * me.group.size + me.group.rank;
    u64 from = thread * 8ull, to = job.bytes + thread * 8ull;
    Entry add = entry_add(raise(job, lane, 1)), write_word = entry_write(here(job, from), there(job, to), 8);
    Budget budget = patience(job);
    Ticket last = {0, 0, 0};
    u64 failed = 0;
    for (u64 round = 1; round <= job.rounds && failed == 0; round++) {
        sys_store(job.data + from / 8, round);
        Reservation taken;
        Post result = reserve_within(view, (u32)job.batch, budget, taken);
        if (result.kind == POSTED) {
            for (u64 at = 1; at < job.batch; at++) write(view, taken, write_word);
            write(view, taken, add);
            result = finish(view, taken, budget, last);
        }
        failed += bad(result);
    }
    if (failed == 0) failed += bad(wait(view, last, budget)) << 8;
    dev_store(job.results + thread, failed);
}

// The first block fills its bytes with the number of the round and puts them with a signal. The second block waits for the signal, checks
// every word, and replies with a signal. The result is the number of words that arrived after the signal, and above 32 bits the number of
// failed operations.
TRUNKLINE_CALL void exchange(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    u64 words = job.bytes / 8, late = 0;
    Addition come = raise(job, 0, 1), taken = raise(job, 1, 1);
    With with = {&come, nullptr, false, false, false};
    for (u64 round = 1; round <= job.rounds && run.failed == 0; round++) {
        if (me.block == 0) {
            for (u64 at = run.group.rank; at < words; at += run.group.size) dev_store_relaxed(job.data + at, round);
            give(run, Bytes{here(job, 0), there(job, job.bytes), job.bytes}, with);
            await(job, run, 1, round);
        } else {
            await(job, run, 0, round);
            for (u64 at = run.group.rank; at < words; at += run.group.size) late += dev_load_relaxed(job.data + words + at) != round;
            meet(run.group);
            if (is_leader(run.group)) tell(run, taken);
        }
    }
    dev_store(result_of(job, me), late | run.failed << 32);
}

// All kinds of waits for operations that fail or are aborted: each thread puts with a signal, then waits by ticket, by slot and by flush.
// The result contains the kinds of the three waits, 8 bits each, and the status of the first.
TRUNKLINE_CALL void endure(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    Addition signal = raise(job, 0, 1);
    With with = {&signal, nullptr, false, false, false};
    const View &view = *run.lanes[0].main;
    Post posted = put(run.channel, Bytes{here(job, 0), there(job, 4096), 64}, with, run.budget, run.done);
    Wait ticket = posted.kind == POSTED ? wait(view, run.done.last, run.budget) : posted.why;
    Wait slot = wait_unless_aborted(view, slot_of(job, 0), Condition{AT_LEAST, job.number}, run.budget, run.value);
    Wait all = flush(run.channel, run.budget);
    u64 kinds = ticket.kind | slot.kind << 8 | all.kind << 16;
    dev_store(result_of(job, me), kinds | (u64)ticket.status << 32 | 1ull << 63);
}

// A thread of the device aborts the queue, and then waits as in `endure`.
TRUNKLINE_CALL void stop(const Job &job, const Me &me) {
    if (me.block == 0 && is_leader(me.group)) abort(job.views[0], STATUS_ABORTED, 7);
    endure(job, me);
}

// Puts of `bytes`, each followed by a wait. The results from the second on are the ticks of each put; the first is the number of failed
// operations.
TRUNKLINE_CALL void ping(const Job &job, const Me &me) {
    if (me.block != 0 || !is_leader(me.group)) return;
    Entry entry = entry_write(here(job, 0), there(job, job.bytes), job.bytes);
    const View &view = job.views[0];
    u64 failed = 0;
    for (u64 round = 0; round < job.rounds; round++) {
        Budget budget = patience(job);
        Ticket ticket = {0, 0, 0};
        u64 began = now();
        failed += bad(post(view, &entry, 1, budget, ticket));
        if (failed == 0) failed += bad(wait(view, ticket, budget));
        dev_store_relaxed(job.results + 1 + round, now() - began);
    }
    dev_store(job.results, failed);
}

// Gets bytes of the peer and checks every word: each is `number` more than the word before. The result is the number of wrong words, and
// above 32 bits the number of failed operations.
TRUNKLINE_CALL void fetch(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    u64 wrong = 0;
    if (is_leader(me.group)) {
        run.failed += bad(get(run.channel, here(job, 0), there(job, job.bytes), job.bytes, run.budget, run.done));
        run.failed += bad(wait_local(run.channel, run.done, run.budget));
        for (u64 at = 0; at < job.bytes / 8; at++) wrong += data_at(job, at * 8) != at * job.number;
    }
    dev_store(result_of(job, me), wrong | run.failed << 32);
}

// The three programs below are kernels of several ranks, with equal regions that have one key: `peer` is this rank, `number` the number of
// ranks. They use one lane and one block.

TRUNKLINE_FN Remote at_rank(const Job &job, u64 rank, u64 at) { return Remote{at, (u32)(job.key >> 32), (u32)rank}; }
TRUNKLINE_FN Addition raise_at(const Job &job, u64 rank, u32 slot, u64 value) {
    return add_to_slot(at_rank(job, rank, job.slots_at), slot, value);
}

// Sums: the numbers of every rank are sent around the ring, and each rank adds them to its own. The region contains the numbers to send,
// the received numbers, and the sums, `bytes` each.
TRUNKLINE_CALL void ring(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    u64 words = job.bytes / 8;
    u64 *out = job.data, *in = out + words, *sums = in + words;
    u64 next = (job.peer + 1) % job.number, before = (job.peer + job.number - 1) % job.number;
    Addition come = raise_at(job, next, 0, 1), taken = raise_at(job, before, 1, 1);
    With with = {&come, nullptr, false, false, false};
    for (u64 at = run.group.rank; at < words; at += run.group.size) dev_store_relaxed(sums + at, dev_load_relaxed(out + at));
    for (u64 step = 1; step < job.number && run.failed == 0; step++) {
        give(run, Bytes{here(job, 0), at_rank(job, next, job.bytes), job.bytes}, with);
        run.failed += bad(wait(run.group, *run.lanes[0].main, run.done.write, run.budget));
        await(job, run, 0, step);
        for (u64 at = run.group.rank; at < words; at += run.group.size) {
            u64 number = dev_load_relaxed(in + at);
            dev_store_relaxed(sums + at, dev_load_relaxed(sums + at) + number);
            dev_store_relaxed(out + at, number);
        }
        meet(run.group);
        // The rank before writes the next numbers only after this signal, so it cannot overwrite numbers that are still being read.
        if (is_leader(run.group)) tell(run, taken);
        await(job, run, 1, step);
    }
    dev_store(job.results + run.group.rank, run.failed);
}

// Tokens: each token is sent to the rank that its number selects, to a place of its sender there. Then a signal per pair of ranks reports
// the number of tokens. Each rank has `batch` tokens; a sender's places begin at `bytes` times its number. The sum of the received tokens
// is stored behind all places.
TRUNKLINE_CALL void dispatch(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    u64 sum = 0;
    if (is_leader(me.group)) {
        for (u64 rank = 0; rank < job.number; rank++) {
            u64 sent = 0;
            for (u64 token = 0; token < job.batch; token++) {
                u64 number = token * 2654435761u + job.peer;
                if (number % job.number != rank) continue;
                run.failed += bad(put_inline(run.channel, &number, 8, at_rank(job, rank, job.peer * job.bytes + sent * 8), run.budget, run.done));
                sent += 1;
            }
            Addition told = raise_at(job, rank, 2 + (u32)job.peer, sent + 1);
            tell(run, told);
        }
        for (u64 rank = 0; rank < job.number && run.failed == 0; rank++) {
            Condition some = {AT_LEAST, 1};
            run.failed += bad(wait_unless_aborted(*run.lanes[0].main, slot_of(job, 2 + (u32)rank), some, run.budget, run.value));
            for (u64 at = 0; at + 1 < run.value; at++) sum += data_at(job, rank * job.bytes + at * 8);
        }
        run.failed += bad(flush(run.channel, run.budget));
        dev_store_relaxed(job.data + job.number * job.bytes / 8, sum);
    }
    dev_store(job.results + me.group.rank, run.failed);
}

// Cells in a row around all ranks: in each round a cell becomes the sum of itself and its neighbours. Behind the `batch` cells are two
// pairs of ghost cells, for even and odd rounds. So a rank that is one round ahead does not overwrite ghost cells that another rank still
// reads.
TRUNKLINE_CALL void halo(const Job &job, const Me &me) {
    Run run;
    begin(job, me, run);
    u64 cells = job.batch;
    u64 *ghosts = job.data + cells, *next = ghosts + 4;
    u64 right = (job.peer + 1) % job.number, left = (job.peer + job.number - 1) % job.number;
    for (u64 round = 1; round <= job.rounds && run.failed == 0; round++) {
        u64 pair = (cells + (round & 1) * 2) * 8;
        if (is_leader(run.group)) {
            u64 first = dev_load(job.data), last = dev_load(job.data + cells - 1);
            run.failed += bad(put_inline(run.channel, &first, 8, at_rank(job, left, pair + 8), run.budget, run.done));
            tell(run, raise_at(job, left, 17, 1));
            run.failed += bad(put_inline(run.channel, &last, 8, at_rank(job, right, pair), run.budget, run.done));
            tell(run, raise_at(job, right, 16, 1));
        }
        await(job, run, 16, round);
        await(job, run, 17, round);
        for (u64 at = run.group.rank; at < cells; at += run.group.size) {
            u64 before = at == 0 ? sys_load(job.data + pair / 8) : dev_load_relaxed(job.data + at - 1);
            u64 behind = at + 1 == cells ? sys_load(job.data + pair / 8 + 1) : dev_load_relaxed(job.data + at + 1);
            dev_store_relaxed(next + at, before + dev_load_relaxed(job.data + at) + behind);
        }
        meet(run.group);
        for (u64 at = run.group.rank; at < cells; at += run.group.size) dev_store_relaxed(job.data + at, dev_load_relaxed(next + at));
        meet(run.group);
    }
    dev_store(job.results + run.group.rank, run.failed);
}

}  // namespace kernels

#if !defined(TRUNKLINE_ON_HOST)
#define TRUNKLINE_ENTRY(name)                                                                                     \
    extern "C" __attribute__((global)) void name(const kernels::Job job) {                                        \
        trunkline::Group group = trunkline::this_block(job.group + blockIdx.x * trunkline::GROUP_WORDS);          \
        kernels::name(job, kernels::Me{blockIdx.x, gridDim.x, group});                                            \
    }
#else
// For threads of the host: the stand-in driver calls these, one call per device thread.
#define TRUNKLINE_ENTRY(name)                                                                                     \
    extern "C" void name(void **arguments, unsigned block, unsigned blocks, unsigned rank, unsigned size) {       \
        const kernels::Job job = *(const kernels::Job *)arguments[0];                                             \
        trunkline::Meeting meeting = size == 1 ? trunkline::MEET_ALONE : trunkline::MEET_COUNT;                   \
        trunkline::u64 *words = job.group + block * trunkline::GROUP_WORDS;                                       \
        kernels::name(job, kernels::Me{block, blocks, trunkline::group_of(words, rank, size, meeting)});          \
    }
#endif

TRUNKLINE_ENTRY(operations)
TRUNKLINE_ENTRY(flood)
TRUNKLINE_ENTRY(exchange)
TRUNKLINE_ENTRY(endure)
TRUNKLINE_ENTRY(stop)
TRUNKLINE_ENTRY(expires)
TRUNKLINE_ENTRY(ping)
TRUNKLINE_ENTRY(fetch)
TRUNKLINE_ENTRY(ring)
TRUNKLINE_ENTRY(dispatch)
TRUNKLINE_ENTRY(halo)

#endif
