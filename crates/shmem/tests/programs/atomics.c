/* Atomics: each operation, every type, and sums to which all PEs add concurrently. */
#include "check.h"

static unsigned long word;
static int half;
static double real;
static long counters[64];

#define EACH(name, type)                                                                                       \
    do {                                                                                                       \
        static type at, was;                                                                                   \
        shmem_##name##_atomic_set(&at, 40, me);                                                                \
        CHECK(shmem_##name##_atomic_fetch_add(&at, 2, me) == 40 && shmem_##name##_atomic_fetch_inc(&at, me) == 42); \
        shmem_##name##_atomic_add(&at, 7, me);                                                                 \
        shmem_##name##_atomic_inc(&at, me);                                                                    \
        shmem_quiet();                                                                                         \
        CHECK(shmem_##name##_atomic_compare_swap(&at, 50, 1, me) == 51 && shmem_##name##_atomic_fetch(&at, me) == 51); \
        CHECK(shmem_##name##_atomic_compare_swap(&at, 51, 1, me) == 51 && shmem_##name##_atomic_swap(&at, 9, me) == 1); \
        shmem_##name##_atomic_fetch_add_nbi(&was, &at, 1, me);                                                 \
        shmem_quiet();                                                                                         \
        CHECK(was == 9 && at == 10);                                                                           \
    } while (0)

#define BITS(name, type)                                                                                       \
    do {                                                                                                       \
        static type at;                                                                                        \
        at = 0;                                                                                                \
        shmem_barrier_all();                                                                                   \
        CHECK((shmem_##name##_atomic_fetch_or(&at, (type)1 << me, 0) & (type)1 << me) == 0);                   \
        shmem_barrier_all();                                                                                   \
        CHECK(shmem_##name##_atomic_fetch(&at, 0) == (type)((1 << n) - 1));                                    \
        shmem_barrier_all();                                                                                   \
        shmem_##name##_atomic_xor(&at, (type)1 << (me + 8), 0);                                                \
        shmem_##name##_atomic_and(&at, (type) ~((type)1 << me), 0);                                            \
        shmem_barrier_all();                                                                                   \
        CHECK(shmem_##name##_atomic_fetch(&at, 0) == (type)(((1 << n) - 1) << 8));                             \
        shmem_barrier_all();                                                                                   \
    } while (0)

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    EACH(int, int);
    EACH(long, long);
    EACH(longlong, long long);
    EACH(uint, unsigned int);
    EACH(ulong, unsigned long);
    EACH(ulonglong, unsigned long long);
    EACH(int32, int32_t);
    EACH(int64, int64_t);
    EACH(uint32, uint32_t);
    EACH(uint64, uint64_t);
    EACH(size, size_t);
    EACH(ptrdiff, ptrdiff_t);
    BITS(uint, unsigned int);
    BITS(ulong, unsigned long);
    BITS(ulonglong, unsigned long long);
    BITS(int32, int32_t);
    BITS(int64, int64_t);
    BITS(uint32, uint32_t);
    BITS(uint64, uint64_t);
    shmem_barrier_all();
    for (int at = 0; at < 2000; at++) {
        shmem_atomic_add(&word, 3UL, at % n);
        shmem_atomic_inc(&half, 0);
        if (at % 20 == 0) CHECK(shmem_atomic_fetch_inc(&counters[at % 64], n - 1) >= 0);
    }
    shmem_barrier_all();
    unsigned long sum = 0;
    for (int pe = 0; pe < n; pe++) sum += shmem_atomic_fetch(&word, pe);
    CHECK(sum == 6000UL * n && shmem_atomic_fetch(&half, 0) == 2000 * n);
    long total = 0;
    for (int at = 0; at < 64; at++) total += shmem_g(&counters[at], n - 1);
    CHECK(total == 100 * n);
    shmem_atomic_set(&real, 1.5, me);
    shmem_quiet();
    CHECK(shmem_atomic_swap(&real, -2.25, me) == 1.5 && shmem_atomic_fetch(&real, me) == -2.25);
    shmem_finalize();
    return failures != 0;
}
