// Memory accesses by threads of a host, by builtins of g++ and clang++ that need no header.
#ifndef TRUNKLINE_DEVICE_PLATFORM_HOST_H
#define TRUNKLINE_DEVICE_PLATFORM_HOST_H

#include "trunkline/device/abi.h"

#define TRUNKLINE_FN inline
#define TRUNKLINE_CALL inline

// For tests: called for every word that an atomic changes.
#ifndef TRUNKLINE_CHANGES
#define TRUNKLINE_CHANGES(word) ((void)0)
#endif

namespace trunkline {

TRUNKLINE_FN u64 dev_load(const u64 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
TRUNKLINE_FN u64 dev_load_relaxed(const u64 *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
TRUNKLINE_FN void dev_store(u64 *word, u64 value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
TRUNKLINE_FN void dev_store_relaxed(u64 *word, u64 value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

TRUNKLINE_FN u64 dev_cas(u64 *word, u64 expect, u64 value) {
    TRUNKLINE_CHANGES(word);
    __atomic_compare_exchange_n(word, &expect, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expect;
}

TRUNKLINE_FN u64 dev_add(u64 *word, u64 value) {
    TRUNKLINE_CHANGES(word);
    return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

TRUNKLINE_FN u64 sys_load(const u64 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
TRUNKLINE_FN u64 sys_load_relaxed(const u64 *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
TRUNKLINE_FN u8 sys_load_u8(const u8 *byte) { return __atomic_load_n(byte, __ATOMIC_RELAXED); }
TRUNKLINE_FN u32 sys_load_u32(const u32 *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
TRUNKLINE_FN void sys_store(u64 *word, u64 value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
TRUNKLINE_FN void sys_store_u8(u8 *byte, u8 value) { __atomic_store_n(byte, value, __ATOMIC_RELEASE); }
TRUNKLINE_FN void sys_store_u32(u32 *word, u32 value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// Stores two words of an entry. The later publication orders them.
TRUNKLINE_FN void sys_store_pair(u64 *words, u64 low, u64 high) {
    __atomic_store_n(words, low, __ATOMIC_RELAXED);
    __atomic_store_n(words + 1, high, __ATOMIC_RELAXED);
}

// Stores to a register of a NIC.
TRUNKLINE_FN void sys_store_register(u64 *at, u64 value) { *(volatile u64 *)at = value; }

// An acquire and release fence towards all threads and devices.
TRUNKLINE_FN void sys_fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

// Also orders a store before a later load.
TRUNKLINE_FN void sys_fence_full() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

TRUNKLINE_FN u64 host_cas(u64 *word, u64 expect, u64 value) { return dev_cas(word, expect, value); }
TRUNKLINE_FN void host_or(u64 *word, u64 bits) {
    TRUNKLINE_CHANGES(word);
    __atomic_fetch_or(word, bits, __ATOMIC_RELEASE);
}

TRUNKLINE_FN u64 now() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    u64 value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
#error "no counter of this processor is known"
#endif
}

TRUNKLINE_FN void die() { __builtin_abort(); }

// Yields between two polls of a wait. A program with more threads than cores defines how, before it includes this file.
TRUNKLINE_FN void pause() {
#if defined(TRUNKLINE_PAUSE)
    TRUNKLINE_PAUSE();
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

// As pause, for a caller whose number of polls is bounded: it pauses longer, as the awaited threads may not be running.
TRUNKLINE_FN void step_aside(u32 looks) {
#if defined(TRUNKLINE_PAUSE)
    (void)looks;
    pause();
#else
    u32 pauses = looks < 64 ? 1 : 64;
    for (u32 nth = 0; nth < pauses; nth++) pause();
#endif
}

// A test whose threads run in lockstep, like lanes of a wavefront, defines the running lanes and the calling one.
#if defined(TRUNKLINE_LANES)
#define TRUNKLINE_LOCKSTEP 1
TRUNKLINE_FN u64 active_lanes() { return TRUNKLINE_LANES(); }
TRUNKLINE_FN u64 own_lane() { return TRUNKLINE_OWN_LANE(); }
#endif

}  // namespace trunkline

#endif
