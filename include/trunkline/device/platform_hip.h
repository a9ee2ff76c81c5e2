// Memory accesses on GPUs of AMD, by builtins of the compiler: no header of HIP is needed, ahead or at run time.
#ifndef TRUNKLINE_DEVICE_PLATFORM_HIP_H
#define TRUNKLINE_DEVICE_PLATFORM_HIP_H

#include "trunkline/device/abi.h"

#define TRUNKLINE_FN __attribute__((device)) inline
#define TRUNKLINE_CALL __attribute__((device, noinline)) inline

namespace trunkline {

TRUNKLINE_FN u64 dev_load(const u64 *word) {
    return __hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}

TRUNKLINE_FN u64 dev_load_relaxed(const u64 *word) {
    return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

TRUNKLINE_FN void dev_store(u64 *word, u64 value) {
    __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}

TRUNKLINE_FN void dev_store_relaxed(u64 *word, u64 value) {
    __hip_atomic_store(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

TRUNKLINE_FN u64 dev_cas(u64 *word, u64 expect, u64 value) {
    __hip_atomic_compare_exchange_strong(word, &expect, value, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE,
                                         __HIP_MEMORY_SCOPE_AGENT);
    return expect;
}

TRUNKLINE_FN u64 dev_add(u64 *word, u64 value) {
    return __hip_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

TRUNKLINE_FN u64 sys_load(const u64 *word) {
    return __hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}

TRUNKLINE_FN u64 sys_load_relaxed(const u64 *word) {
    return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

TRUNKLINE_FN u8 sys_load_u8(const u8 *byte) {
    return __hip_atomic_load(byte, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

TRUNKLINE_FN u32 sys_load_u32(const u32 *word) {
    return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

TRUNKLINE_FN void sys_store(u64 *word, u64 value) {
    __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

TRUNKLINE_FN void sys_store_u8(u8 *byte, u8 value) {
    __hip_atomic_store(byte, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

TRUNKLINE_FN void sys_store_u32(u32 *word, u32 value) {
    __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Stores two words of an entry. The later publication orders them.
TRUNKLINE_FN void sys_store_pair(u64 *words, u64 low, u64 high) {
    __hip_atomic_store(words, low, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    __hip_atomic_store(words + 1, high, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Stores to a register of a NIC.
TRUNKLINE_FN void sys_store_register(u64 *at, u64 value) { *(volatile u64 *)at = value; }

// An acquire and release fence towards all threads and devices.
TRUNKLINE_FN void sys_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }

// Also orders a store before a later load.
TRUNKLINE_FN void sys_fence_full() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

// Reads a counter with a constant rate, often of 100 MHz, independent of the clock of the cores. The host knows the rate.
TRUNKLINE_FN u64 now() {
#if __has_builtin(__builtin_readsteadycounter)
    return __builtin_readsteadycounter();
#else
    return __builtin_amdgcn_s_memrealtime();
#endif
}

TRUNKLINE_FN void die() { __builtin_trap(); }

TRUNKLINE_FN void pause() { __builtin_amdgcn_s_sleep(1); }

// As pause, for a caller whose number of polls is bounded: it pauses longer, as the awaited threads may not be running.
TRUNKLINE_FN void step_aside(u32 looks) {
    if (looks < 64) pause();
    else __builtin_amdgcn_s_sleep(127);
}

TRUNKLINE_FN u32 size_of_block() {
    const u16 *packet = (const u16 *)__builtin_amdgcn_dispatch_ptr();
    // Bytes 4 to 9 of the packet are the sizes of a work group.
    return (u32)packet[2] * packet[3] * packet[4];
}

TRUNKLINE_FN u32 rank_in_block() {
    const u16 *packet = (const u16 *)__builtin_amdgcn_dispatch_ptr();
    u32 row = __builtin_amdgcn_workitem_id_y() + packet[3] * __builtin_amdgcn_workitem_id_z();
    return __builtin_amdgcn_workitem_id_x() + packet[2] * row;
}

TRUNKLINE_FN u32 size_of_warp() {
#if __has_builtin(__builtin_amdgcn_wavefrontsize)
    return __builtin_amdgcn_wavefrontsize();
#else
    return __AMDGCN_WAVEFRONT_SIZE;
#endif
}

// Lanes of a wavefront run in lockstep: the active lanes, and the calling lane, one bit each.
#define TRUNKLINE_LOCKSTEP 1
TRUNKLINE_FN u64 active_lanes() { return __builtin_amdgcn_uicmp(1u, 0u, 33 /* not equal */); }
TRUNKLINE_FN u64 own_lane() { return 1ull << __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }

TRUNKLINE_FN void block_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The threads of a wavefront run in step, so only the visibility of their stores needs a fence.
TRUNKLINE_FN void warp_sync() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

}  // namespace trunkline

#endif
