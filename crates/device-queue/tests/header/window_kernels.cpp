// Kernels over windows, for threads of the host.
#include <sched.h>

#define TRUNKLINE_PAUSE() sched_yield()
#include "window_kernels.h"

using namespace trunkline;

// The arguments of a thread.
struct Launch {
    const Window *window;
    u32 channel;
    u32 threads;
    u32 what;
    u32 reserved;
    u64 *memory;
    u64 count;
    u64 first;
    u64 steps;
    u64 looks;
};

extern "C" {

// Sizes and offsets, in the order of the Rust side.
unsigned window_layout(u64 *out) {
    const u64 words[] = {
        sizeof(Window), sizeof(Peer), sizeof(Lane), WINDOW_VERSION, words_of_channel(1), words_of_channel(3), words_of_channel(64),
        __builtin_offsetof(Window, signals), __builtin_offsetof(Window, chunks), __builtin_offsetof(Window, chunk),
        __builtin_offsetof(Window, base), __builtin_offsetof(Window, signal_bases), __builtin_offsetof(Window, counters_at),
        __builtin_offsetof(Window, counter_bases), __builtin_offsetof(Window, barriers_at), __builtin_offsetof(Window, epochs),
        __builtin_offsetof(Window, streams_at), __builtin_offsetof(Window, stream_bytes), __builtin_offsetof(Window, peers),
        __builtin_offsetof(Window, queues), __builtin_offsetof(Window, words), __builtin_offsetof(Window, slots), __builtin_offsetof(Lane, main),
        __builtin_offsetof(Lane, count), __builtin_offsetof(Peer, key), STREAM_SENT, STREAM_RECEIVED, STREAM_EXPECTED, GRANULE,
    };
    unsigned count = sizeof(words) / sizeof(words[0]);
    for (unsigned at = 0; at < count; at++) out[at] = words[at];
    return count;
}

// Runs one thread of a kernel. Returns how it ended, or the number of failed steps of `use_window`.
u64 window_run(const Launch *launch, unsigned rank) {
    Meeting meeting = launch->threads == 1 ? MEET_ALONE : MEET_COUNT;
    Group group = group_of(group_words(*launch->window, launch->channel), rank, launch->threads, meeting);
    Kernel kernel = kernel_of(*launch->window, launch->channel, group, looks(launch->looks));
    switch (launch->what) {
        case 0: return tests::ring_sum(kernel, launch->memory, launch->count).kind;
        case 1: return tests::dispatch(kernel, tests::Tokens{launch->memory, launch->count}).kind;
        case 2: return tests::halo(kernel, (double *)launch->memory, launch->count, launch->first, launch->steps).kind;
        case 3: return tests::use_window(kernel);
        case 4: return barrier(kernel, 0).kind;
        case 5: abort(kernel, 9); return wait_signal(kernel, launch->window->rank, 0, ~0ull).kind;
        case 7: return put(kernel, launch->window->rank, 64, 0, 8, and_counter(along_signal(0, 5), 0, launch->first)).kind;
        default: return wait_signal(kernel, (u32)launch->count, 0, launch->first).kind;
    }
}

}
