// What the protocol asks of a machine. Names say which memory an access is for, so that nobody changes the host's memory by an
// atomic of a device, which not every bus carries:
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

// TRUNKLINE_FN stands before every function. TRUNKLINE_CALL stands before those that a kernel calls rather than has many copies
// of: what they do takes longer than a call, and a kernel that is compiled when a program starts should be small.

// For tests: points at which a test lets others go on.
#ifndef TRUNKLINE_STEP
#define TRUNKLINE_STEP(name) ((void)0)
#endif

namespace trunkline {

// How long a wait may take. It is asked after each look that found nothing.
struct Budget {
    u64 looks;     // that are left; ~0: any number
    u64 until;     // in ticks of `now`; 0: no matter when
    bool is_last;  // who has spent it ends the kernel, not the wait
};

TRUNKLINE_FN Budget forever() { return Budget{~0ull, 0, false}; }
TRUNKLINE_FN Budget looks(u64 count) { return Budget{count, 0, false}; }
// How many ticks a second has is the host's to tell: nanoseconds on CUDA, the processor's counter elsewhere.
TRUNKLINE_FN Budget until(u64 ticks) { return Budget{~0ull, ticks, false}; }

// The same, and a wait that takes longer kills the kernel: a trap on a GPU, whose driver then refuses all that follows; on threads of a host the end of the
// process. For programs that cannot go on without what they wait for.
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

// Whether index a is before index b: they wrap, and are never half of all numbers apart.
TRUNKLINE_FN bool is_before(u64 a, u64 b) {
    return (i64)(b - a) > 0;
}

// Raises a counter of the device to `to`, if that is ahead of it; the value before. Counters wrap, so this is no maximum.
TRUNKLINE_FN u64 dev_advance(u64 *word, u64 to) {
    u64 seen = dev_load_relaxed(word);
    for (;;) {
        // Also without a change it is a change of the word, so that it has the order of one.
        u64 old = dev_cas(word, seen, is_before(seen, to) ? to : seen);
        if (old == seen) return old;
        seen = old;
    }
}

}  // namespace trunkline

#endif
