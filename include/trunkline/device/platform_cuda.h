// Memory accesses on GPUs of NVIDIA from sm_70 on, by PTX alone: libcu++ is not available to kernels that are compiled at run time.
#ifndef TRUNKLINE_DEVICE_PLATFORM_CUDA_H
#define TRUNKLINE_DEVICE_PLATFORM_CUDA_H

#include "trunkline/device/abi.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#error "device queues need sm_70: older GPUs have no memory model"
#endif

#define TRUNKLINE_FN __attribute__((device)) inline
#define TRUNKLINE_CALL __attribute__((device, noinline)) inline

namespace trunkline {

TRUNKLINE_FN u64 dev_load(const u64 *word) {
    u64 value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

TRUNKLINE_FN u64 dev_load_relaxed(const u64 *word) {
    u64 value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

TRUNKLINE_FN void dev_store(u64 *word, u64 value) {
    asm volatile("st.release.gpu.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

TRUNKLINE_FN void dev_store_relaxed(u64 *word, u64 value) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

TRUNKLINE_FN u64 dev_cas(u64 *word, u64 expect, u64 value) {
    u64 old;
    asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(word), "l"(expect), "l"(value)
                 : "memory");
    return old;
}

TRUNKLINE_FN u64 dev_add(u64 *word, u64 value) {
    u64 old;
    asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(word), "l"(value) : "memory");
    return old;
}

TRUNKLINE_FN u64 sys_load(const u64 *word) {
    u64 value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

TRUNKLINE_FN u64 sys_load_relaxed(const u64 *word) {
    u64 value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

TRUNKLINE_FN u8 sys_load_u8(const u8 *byte) {
    u32 value;
    asm volatile("ld.relaxed.sys.u8 %0, [%1];" : "=r"(value) : "l"(byte) : "memory");
    return (u8)value;
}

TRUNKLINE_FN u32 sys_load_u32(const u32 *word) {
    u32 value;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

TRUNKLINE_FN void sys_store(u64 *word, u64 value) {
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
}

TRUNKLINE_FN void sys_store_u8(u8 *byte, u8 value) {
    asm volatile("st.release.sys.u8 [%0], %1;" : : "l"(byte), "r"((u32)value) : "memory");
}

TRUNKLINE_FN void sys_store_u32(u32 *word, u32 value) {
    asm volatile("st.release.sys.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}

// Stores two words of an entry, aligned to 16 bytes. The later publication orders them.
TRUNKLINE_FN void sys_store_pair(u64 *words, u64 low, u64 high) {
    asm volatile("st.v2.u64 [%0], {%1, %2};" : : "l"(words), "l"(low), "l"(high) : "memory");
}

// Stores to a register of a NIC.
TRUNKLINE_FN void sys_store_register(u64 *at, u64 value) {
#if defined(__CUDACC_VER_MAJOR__) && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 2))
    asm volatile("st.mmio.relaxed.sys.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
#else
    asm volatile("st.volatile.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
#endif
}

// An acquire and release fence towards all threads and devices.
TRUNKLINE_FN void sys_fence() { asm volatile("fence.acq_rel.sys;" : : : "memory"); }

// Also orders a store before a later load.
TRUNKLINE_FN void sys_fence_full() { asm volatile("fence.sc.sys;" : : : "memory"); }

TRUNKLINE_FN u64 now() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value) : : "memory");
    return value;
}

TRUNKLINE_FN void pause() { asm volatile("nanosleep.u32 40;" : : : "memory"); }

// As pause, for a caller whose number of polls is bounded: it pauses longer, as the awaited threads may not be running.
TRUNKLINE_FN void step_aside(u32 looks) {
    if (looks < 64) pause();
    else asm volatile("nanosleep.u32 100000;" : : : "memory");
}

TRUNKLINE_FN void die() { asm volatile("trap;" : : : "memory"); }

TRUNKLINE_FN u32 rank_in_block() {
    u32 x, y, z, width, height;
    asm("mov.u32 %0, %%tid.x;" : "=r"(x));
    asm("mov.u32 %0, %%tid.y;" : "=r"(y));
    asm("mov.u32 %0, %%tid.z;" : "=r"(z));
    asm("mov.u32 %0, %%ntid.x;" : "=r"(width));
    asm("mov.u32 %0, %%ntid.y;" : "=r"(height));
    return x + width * (y + height * z);
}

TRUNKLINE_FN u32 size_of_block() {
    u32 width, height, layers;
    asm("mov.u32 %0, %%ntid.x;" : "=r"(width));
    asm("mov.u32 %0, %%ntid.y;" : "=r"(height));
    asm("mov.u32 %0, %%ntid.z;" : "=r"(layers));
    return width * height * layers;
}

TRUNKLINE_FN u32 size_of_warp() { return 32; }
TRUNKLINE_FN void block_sync() { asm volatile("bar.sync 0;" : : : "memory"); }
TRUNKLINE_FN void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" : : : "memory"); }

}  // namespace trunkline

#endif
