// Kernels over windows: the examples of crates/trunkline/examples (device_ring, device_dispatch, device_halo) in C++.
// Threads of the host run them beside kernels in Rust (crates/trunkline/tests/api/headers.rs); they are also compiled
// for GPUs.
#ifndef TRUNKLINE_TESTS_WINDOW_KERNELS_H
#define TRUNKLINE_TESTS_WINDOW_KERNELS_H

#include "trunkline/device.h"

namespace tests {

using namespace trunkline;

struct Add {
    TRUNKLINE_FN u64 operator()(u64 mine, u64 theirs) const { return mine + theirs; }
};

// Sums all ranks' numbers around the ring.
TRUNKLINE_CALL Wait ring_sum(Kernel &kernel, u64 *numbers, u64 count) {
    u32 me = rank(kernel), last = ranks(kernel) - 1;
    u32 before = (me + last) % ranks(kernel), next = (me + 1) % ranks(kernel);
    // The sums of the first ranks are sent from the first rank to the last one ...
    if (me == 0) send(kernel, next, numbers, 8 * count);
    else if (me < last) reduce_forward(kernel, before, next, numbers, count, Add{});
    else reduce(kernel, before, numbers, count, Add{});
    // ... and the total is sent around once more.
    if (me == last) send(kernel, next, numbers, 8 * count);
    else if (me + 1 == last) recv(kernel, before, numbers, 8 * count);
    else forward(kernel, before, next, numbers, 8 * count);
    return flush(kernel);
}

// Tokens are sent to the experts that they are routed to, and return changed. The window has rows for each rank: to send from, to receive
// into, and for the returned tokens.
constexpr u64 TOKEN_WORDS = 16;
constexpr u64 TOKEN_BYTES = 8 * TOKEN_WORDS;
constexpr u32 SENT = 0;

struct Tokens {
    u64 *first;
    u64 count;
};

// Copies the tokens of an expert to a place of the window, or from there. Returns their number.
TRUNKLINE_CALL u64 copy_routed(Kernel &kernel, const Tokens &tokens, u32 expert, u64 at, bool out) {
    u64 nth = 0;
    for (u64 *token = tokens.first; token < tokens.first + tokens.count * TOKEN_WORDS; token += TOKEN_WORDS) {
        if (token[0] % ranks(kernel) != expert) continue;
        u8 *place = data(kernel, at + nth++ * TOKEN_BYTES);
        copy(kernel.group, out ? (void *)place : token, out ? (const void *)token : place, TOKEN_BYTES);
    }
    return nth;
}

// The expert's operation on tokens.
TRUNKLINE_CALL void change(Kernel &kernel, u64 at, u64 count) {
    u64 *words = (u64 *)data(kernel, at);
    for (u64 nth = kernel.group.rank; nth < count * TOKEN_WORDS; nth += kernel.group.size)
        if (nth % TOKEN_WORDS != 0) words[nth] += rank(kernel) + 1;
}

TRUNKLINE_CALL Wait dispatch(Kernel &kernel, const Tokens &tokens) {
    u32 me = rank(kernel), size = ranks(kernel);
    u64 row = tokens.count * TOKEN_BYTES, came = 0;
    u64 to = 0, in = size * row, back = 2 * in;
    for (u32 expert = 0; expert < size; expert++) {
        u64 count = copy_routed(kernel, tokens, expert, to + expert * row, true);
        // The number of tokens is not known before: it arrives as the value of the signal.
        put(kernel, expert, in + me * row, to + expert * row, count * TOKEN_BYTES, along_signal(SENT, count + 1));
    }
    for (u32 by = 0; by < size; by++) {
        if (take_signal(kernel, by, SENT, 1, came).kind != GOOD) return kernel.how;
        change(kernel, in + by * row, came - 1);
        put(kernel, by, back + me * row, in + by * row, (came - 1) * TOKEN_BYTES, nothing_along());
    }
    barrier(kernel, 0);  // all ranks have sent: the tokens for this rank have arrived
    for (u32 expert = 0; expert < size && is_good(kernel); expert++)
        copy_routed(kernel, tokens, expert, back + expert * row, false);
    return barrier(kernel, 0);  // and have read them
}

// Heat along a rod. Words 0 and 1 of the window are this rank's ends. Word 2 on are the halos: left and right, per step
// parity.
TRUNKLINE_CALL void spread(double *cells, u64 count, double before, double right) {
    for (u64 at = 0; at < count; at++) {
        double cell = cells[at], after = at + 1 < count ? cells[at + 1] : right;
        cells[at] = cell + 0.25 * (before - 2.0 * cell + after);
        before = cell;
    }
}

TRUNKLINE_CALL Wait halo(Kernel &kernel, double *cells, u64 count, u64 first, u64 steps) {
    u32 me = rank(kernel);
    bool has_left = me > 0, has_right = me + 1 < ranks(kernel), leads = is_leader(kernel.group);
    double *words = (double *)data(kernel, 0);
    for (u64 step = first; step < first + steps; step++) {
        u64 turn = 2 + 2 * (step % 2);
        flush(kernel);  // the ends of the last step are in flight
        if (leads) words[0] = cells[0], words[1] = cells[count - 1];
        // The first cell of this rank is the right halo of the rank on the left, and so on.
        if (has_left) put(kernel, me - 1, 8 * (turn + 1), 0, 8, along_signal(0));
        if (has_right) put(kernel, me + 1, 8 * turn, 8, 8, along_signal(0));
        if (has_left) wait_signal(kernel, me - 1, 0, step + 1);
        if (has_right) wait_signal(kernel, me + 1, 0, step + 1);
        if (!is_good(kernel)) return kernel.how;
        if (leads) spread(cells, count, has_left ? words[turn] : cells[0], has_right ? words[turn + 1] : cells[count - 1]);
    }
    return flush(kernel);
}

// Operations that the three programs do not use. The window has two signals and a counter at least. With the rank itself as its peer,
// results arrive at once.
TRUNKLINE_CALL u64 use_window(Kernel &kernel) {
    u32 me = rank(kernel), size = ranks(kernel);
    u64 failed = 0, found = 0;
    // Only the leader reads a value alone, before the group continues; it may reset the value then.
    bool leads = is_leader(kernel.group);
    Put done;
    u64 *words = (u64 *)data(kernel, 0);
    if (leads) words[0] = 77, words[1] = 0, words[2] = 0;
    failed += put(kernel, me, 8, 0, 8, and_counter(along_signal(1, 5), 0, 3), done).kind != GOOD;
    failed += wait(kernel, done).kind != GOOD || (leads && words[1] != 77);
    failed += wait_counter(kernel, 0, 3, found).kind != GOOD || found != 3 || (leads && read_counter(kernel, 0) != 3);
    failed += reset_counter(kernel, 0, found).kind != GOOD || found != 3 || (leads && read_counter(kernel, 0) != 0);
    failed += wait_signals(kernel, 1, 5, found).kind != GOOD || found != 5 || (leads && read_signal(kernel, me, 1) != 5);
    failed += reset_signal(kernel, me, 1, found).kind != GOOD || found != 5 || (leads && read_signal(kernel, me, 1) != 0);
    failed += get(kernel, me, 0, 16, 8, done).kind != GOOD || wait(kernel, done).kind != GOOD || (leads && words[2] != 77);
    failed += signal(kernel, me, 1).kind != GOOD || wait_signal(kernel, me, 1, 1).kind != GOOD;
    failed += take_signal(kernel, me, 1, 1, found).kind != GOOD || found != 1 || (leads && read_signal(kernel, me, 1) != 0);
    failed += put(kernel, me, 0, 0, 0, along_counter(0)).kind != GOOD || wait_counter(kernel, 0, 1, found).kind != GOOD;
    failed += reset_counter(kernel, 0, found).kind != GOOD;
    // More than the entry of a WRITE has room for.
    u64 much = (1ull << 32) + 5;
    failed += put(kernel, me, 0, 0, 0, along_counter(0, much)).kind != GOOD || wait_counter(kernel, 0, 1, found).kind != GOOD || found != much;
    failed += reset_counter(kernel, 0, found).kind != GOOD;
    // An unknown item is refused, and so is each later call until the program clears the failure.
    u64 end = kernel.window->bytes;
    Wait refused[] = {
        put(kernel, size, 0, 0, 8, nothing_along()), (kernel.how = good(), put(kernel, me, end - 7, 0, 8, nothing_along())),
        (kernel.how = good(), put(kernel, me, 0, ~0ull - 3, 8, nothing_along())),
        (kernel.how = good(), put(kernel, me, 0, 0, 8, along_signal(kernel.window->signals))),
        (kernel.how = good(), put(kernel, me, 0, 0, 8, along_counter(kernel.window->counters))),
        (kernel.how = good(), get(kernel, me, end, 0, 1, done)), (kernel.how = good(), signal(kernel, me, kernel.window->signals)),
        (kernel.how = good(), wait_signal(kernel, size, 0, 1)),
        (kernel.how = good(), take_signal(kernel, me, kernel.window->signals, 1, found)), (kernel.how = good(), barrier(kernel, kernel.window->barriers)),
        (kernel.how = good(), send(kernel, me, words, 8)), flush(kernel),
    };
    for (const Wait &how : refused) failed += how.kind != REFUSED;
    kernel.how = good();
    Budget limit = kernel.limit;
    kernel.limit = looks(20);
    failed += wait_signal(kernel, me, 1, 1).kind != TIMEOUT || take_signal(kernel, me, 1, 1, found).kind != TIMEOUT || barrier(kernel, 0).kind != TIMEOUT;
    kernel.how = good();
    kernel.limit = limit;
    failed += flush(kernel).kind != GOOD;
    conclude(kernel, good(), &failed, 1);
    return failed;
}

}  // namespace tests

#endif
