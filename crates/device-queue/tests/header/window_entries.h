// The kernels of window_kernels.h as kernels of a GPU, of one block each, and further kernels for tests of windows on a
// GPU (crates/trunkline/tests/api/gpu_windows.rs). NVRTC compiles them when a test starts. They are also compiled for
// threads of the host, which stand in for a GPU there.
#ifndef TRUNKLINE_TESTS_WINDOW_ENTRIES_H
#define TRUNKLINE_TESTS_WINDOW_ENTRIES_H

namespace tests {

// The arguments of a kernel, as words by value.
struct WindowJob {
    Window window;
    u64 *memory;   // the rank's own numbers, tokens or cells
    u64 count;
    u64 first;
    u64 steps;
    u64 ticks;     // limit of each wait
    u64 *results;  // a word per thread
};

static_assert(sizeof(WindowJob) == sizeof(Window) + 6 * 8, "WindowJob");

TRUNKLINE_CALL u64 window_ring(const WindowJob &job, Kernel &kernel) { return ring_sum(kernel, job.memory, job.count).kind; }
TRUNKLINE_CALL u64 window_dispatch(const WindowJob &job, Kernel &kernel) { return dispatch(kernel, Tokens{job.memory, job.count}).kind; }
TRUNKLINE_CALL u64 window_halo(const WindowJob &job, Kernel &kernel) {
    return halo(kernel, (double *)job.memory, job.count, job.first, job.steps).kind;
}
TRUNKLINE_CALL u64 window_use(const WindowJob &, Kernel &kernel) { return use_window(kernel); }
TRUNKLINE_CALL u64 window_barrier(const WindowJob &, Kernel &kernel) { return barrier(kernel, 0).kind; }
// Waits for signal 0 of rank `count` to be `first`.
TRUNKLINE_CALL u64 window_wait(const WindowJob &job, Kernel &kernel) { return wait_signal(kernel, (u32)job.count, 0, job.first).kind; }
// Raises signal 0 of rank `count`.
TRUNKLINE_CALL u64 window_signal(const WindowJob &job, Kernel &kernel) {
    signal(kernel, (u32)job.count, 0);
    return flush(kernel).kind;
}
// Puts to rank `count` until a put fails. Stores the kind of the failure, and whether the put failed only at its end.
TRUNKLINE_CALL u64 window_put(const WindowJob &job, Kernel &kernel) {
    while (is_good(kernel)) {
        put(kernel, (u32)job.count, 0, 0, 8, along_signal(0));
        flush(kernel);
    }
    return kernel.how.kind;
}
// Puts to rank `count`, with the given number and length, each from the first half of the window to the same place of the second one, with
// signal 0.
TRUNKLINE_CALL u64 window_leave(const WindowJob &job, Kernel &kernel) {
    for (u64 nth = 0; nth < job.first; nth++)
        put(kernel, (u32)job.count, kernel.window->bytes / 2 + nth * job.steps, nth * job.steps, job.steps, along_signal(0));
    return kernel.how.kind;
}
// Gets the bytes of rank `count` from 0 on. Stores the number of words that are not `first` times their index.
TRUNKLINE_CALL u64 window_get(const WindowJob &job, Kernel &kernel) {
    Put done;
    u64 half = kernel.window->bytes / 2, wrong = 0;
    get(kernel, (u32)job.count, 0, half, half, done);
    if (wait(kernel, done).kind != GOOD) return ~0ull;
    for (u64 at = 0; at < half / 8; at++) wrong += sys_load((const u64 *)data(kernel, half) + at) != at * job.first;
    return wrong;
}
// Adds 1 to the second word of rank `count`, `first` times. Each time it puts the number to its own part by value, gets it from there, and
// checks it.
TRUNKLINE_CALL u64 window_change(const WindowJob &job, Kernel &kernel) {
    const Window &window = *kernel.window;
    for (u64 nth = 1; nth <= job.first; nth++) {
        Ticket last;
        Post result = posted();
        if (is_leader(kernel.group)) {
            Remote word = remote_at(window, (u32)job.count, 8), own = remote_at(window, window.rank, 64);
            Entry entries[2] = {entry_atomic(OP_ADD, word, 1, 0, false), entry_write_inline(&nth, 8, own)};
            result = lead_post(kernel, 0, entries, 2, last);
        }
        if (conclude(kernel, wait_of(result), nullptr, 0).kind != GOOD || flush(kernel).kind != GOOD) return kernel.how.kind;
        Put done;
        if (get(kernel, window.rank, 64, 128, 8, done).kind != GOOD || wait(kernel, done).kind != GOOD) return kernel.how.kind;
        if (sys_load((const u64 *)data(kernel, 128)) != nth) return 100 + nth;
    }
    return GOOD;
}

}  // namespace tests

#if !defined(TRUNKLINE_ON_HOST)
#define TRUNKLINE_WINDOW_ENTRY(name)                                                                                          \
    extern "C" __attribute__((global)) void name(const tests::WindowJob job) {                                                \
        trunkline::Group group = trunkline::this_block(trunkline::group_words(job.window, 0));                                \
        trunkline::Kernel kernel = trunkline::kernel_of(job.window, 0, group, trunkline::until(trunkline::now() + job.ticks)); \
        job.results[group.rank] = tests::name(job, kernel);                                                                   \
    }
#else
#define TRUNKLINE_WINDOW_ENTRY(name)                                                                                          \
    extern "C" void name(void **arguments, unsigned, unsigned, unsigned rank, unsigned size) {                                \
        const tests::WindowJob job = *(const tests::WindowJob *)arguments[0];                                                 \
        trunkline::Meeting meeting = size == 1 ? trunkline::MEET_ALONE : trunkline::MEET_COUNT;                               \
        trunkline::Group group = trunkline::group_of(trunkline::group_words(job.window, 0), rank, size, meeting);             \
        trunkline::Kernel kernel = trunkline::kernel_of(job.window, 0, group, trunkline::until(trunkline::now() + job.ticks)); \
        job.results[rank] = tests::name(job, kernel);                                                                         \
    }
#endif

TRUNKLINE_WINDOW_ENTRY(window_ring)
TRUNKLINE_WINDOW_ENTRY(window_dispatch)
TRUNKLINE_WINDOW_ENTRY(window_halo)
TRUNKLINE_WINDOW_ENTRY(window_use)
TRUNKLINE_WINDOW_ENTRY(window_barrier)
TRUNKLINE_WINDOW_ENTRY(window_wait)
TRUNKLINE_WINDOW_ENTRY(window_signal)
TRUNKLINE_WINDOW_ENTRY(window_put)
TRUNKLINE_WINDOW_ENTRY(window_leave)
TRUNKLINE_WINDOW_ENTRY(window_get)
TRUNKLINE_WINDOW_ENTRY(window_change)

#endif
