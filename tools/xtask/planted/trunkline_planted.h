/* Reads at run time which planted bug is selected. `cargo xtask mutants weave` writes this file beside each edited source that is not
   Rust, in the woven tree alone. Device code has no environment, so a bug there is never selected. */
#ifndef TRUNKLINE_PLANTED_H
#define TRUNKLINE_PLANTED_H

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define TRUNKLINE_PLANTED_FN __device__ static inline
#elif defined(__CUDACC__) || defined(__HIP__)
#include <stdlib.h>
#include <string.h>
#define TRUNKLINE_PLANTED_FN __host__ __device__ static inline
#else
#include <stdlib.h>
#include <string.h>
#define TRUNKLINE_PLANTED_FN static inline
#endif

/* Returns 1 when PLANTED_BUG names this bug. The variable is read once for each file that includes this. */
TRUNKLINE_PLANTED_FN int trunkline_planted(const char *name) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__) || defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
    (void)name;
    return 0;
#elif defined(__cplusplus)
    static const char *const chosen = getenv("PLANTED_BUG");
    return chosen != 0 && strcmp(chosen, name) == 0;
#else
    /* Two threads may both read the variable: they store the same values. */
    static const char *chosen;
    static int is_read;
    if (!__atomic_load_n(&is_read, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&chosen, getenv("PLANTED_BUG"), __ATOMIC_RELAXED);
        __atomic_store_n(&is_read, 1, __ATOMIC_RELEASE);
    }
    const char *value = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    return value != 0 && strcmp(value, name) == 0;
#endif
}

#endif
