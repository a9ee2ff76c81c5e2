// The machine's operations that the protocol needs. The names include the memory that an access is for, so that device code never changes
// host memory by an atomic, which not every bus carries:
//
//   dev_...   memory of this device, shared by its threads: loads, stores, compare-and-swap, add. Scope: the device
//   sys_...   memory shared with the host, a NIC or another process: loads and stores alone. Scope: the system
//   host_...  read-modify-write of shared memory; only where the code runs on the host
#ifndef TRUNKLINE_DEVICE_PLATFORM_H
#define TRUNKLINE_DEVICE_PLATFORM_H

#include "trunkline/device/abi.h"

#if defined(__HIPCC_RTC__) || defined(__HIP__) || defined(__HIP_DEVICE_COMPILE__)
#define TRUNKLINE_ON_HIP 1
#include "trunkline/device/platform_hip.h"
#elif defined(__CUDACC_RTC__) || defined(__CUDACC__) || defined(__CUDA__)
#define TRUNKLINE_ON_CUDA 1
#include "trunkline/device/platform_cuda.h"
#else
#define TRUNKLINE_ON_HOST 1
#include "trunkline/device/platform_host.h"
#endif

// TRUNKLINE_FN precedes every function. TRUNKLINE_CALL precedes functions that a kernel calls instead of inlining: they take longer than a
// call, and a kernel compiled at a program's start should be small.

// For tests: points at which a test may switch to other threads.
#ifndef TRUNKLINE_STEP
#define TRUNKLINE_STEP(name) ((void)0)
#endif

namespace trunkline {

// The budget of a wait, charged after each fruitless poll.
struct Budget {
    u64 looks;     // remaining polls; ~0: no limit
    u64 until;     // in ticks of `now`; 0: no deadline
    bool is_last;  // a spent budget ends the kernel, not only the wait
};

TRUNKLINE_FN Budget forever() { return Budget{~0ull, 0, false}; }
TRUNKLINE_FN Budget looks(u64 count) { return Budget{count, 0, false}; }
// The host provides the number of ticks per second: nanoseconds on CUDA, the processor's counter elsewhere.
TRUNKLINE_FN Budget until(u64 ticks) { return Budget{~0ull, ticks, false}; }

// The same budget, but a wait that exceeds it ends the kernel. On a GPU a trap ends it, and the driver then refuses all
// later work; on threads of a host the process ends. For programs that cannot continue without the result.
TRUNKLINE_FN Budget or_die(Budget budget) {
    budget.is_last = true;
    return budget;
}

TRUNKLINE_FN bool has_more(Budget &budget) {
    if (budget.until != 0 && now() >= budget.until) return false;
    if (budget.looks == ~0ull) return true;
    if (budget.looks == 0) return false;
    budget.looks -= 1;
    return budget.looks > 0;
}

TRUNKLINE_FN bool goes_on(Budget &budget) {
    if (has_more(budget)) return true;
    if (budget.is_last) die();
    return false;
}

// Returns whether index a precedes index b. Indices wrap, and are never half of the range apart.
TRUNKLINE_FN bool is_before(u64 a, u64 b) {
    return (i64)(b - a) > 0;
}

// Raises a counter of the device to `to`, if that is ahead of it, and returns the old value. Counters wrap, so this is not a maximum.
TRUNKLINE_FN u64 dev_advance(u64 *word, u64 to) {
    u64 seen = dev_load_relaxed(word);
    for (;;) {
        // The exchange is made also if the value stays the same, for its memory order.
        u64 old = dev_cas(word, seen, is_before(seen, to) ? to : seen);
        if (old == seen) return old;
        seen = old;
    }
}

}  // namespace trunkline

#endif
