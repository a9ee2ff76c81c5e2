/* Atomics in every form: non-blocking ones, those of a context whose team counts PEs backwards, and each type. */
#include "check.h"

static int me, n, next;
static shmem_ctx_t ctx;
static int ctx_next;

/* The word of the next PE, which only this PE changes, and its former value. */
#define FORMS(name, type)                                                                                       \
    do {                                                                                                        \
        static type at;                                                                                         \
        type was[6] = {1, 1, 1, 1, 1, 1};                                                                       \
        shmem_##name##_atomic_set(&at, 40, next);                                                               \
        shmem_quiet();                                                                                          \
        shmem_##name##_atomic_fetch_nbi(&was[0], &at, next);                                                    \
        shmem_quiet();                                                                                          \
        shmem_##name##_atomic_swap_nbi(&was[1], &at, 50, next);                                                 \
        shmem_quiet();                                                                                          \
        shmem_ctx_##name##_atomic_fetch_nbi(ctx, &was[2], &at, ctx_next);                                       \
        shmem_ctx_quiet(ctx);                                                                                   \
        shmem_ctx_##name##_atomic_swap_nbi(ctx, &was[3], &at, 60, ctx_next);                                    \
        shmem_ctx_quiet(ctx);                                                                                   \
        CHECK(was[0] == 40 && was[1] == 40 && was[2] == 50 && was[3] == 50 && was[4] == 1 && was[5] == 1);      \
        CHECK(shmem_ctx_##name##_atomic_fetch(ctx, &at, ctx_next) == 60);                                       \
        shmem_ctx_##name##_atomic_set(ctx, &at, 70, ctx_next);                                                  \
        shmem_ctx_quiet(ctx);                                                                                   \
        CHECK(shmem_ctx_##name##_atomic_swap(ctx, &at, 71, ctx_next) == 70);                                    \
        CHECK(shmem_##name##_atomic_fetch(&at, next) == 71);                                                    \
    } while (0)

#define COUNTS(name, type)                                                                                      \
    do {                                                                                                        \
        static type at;                                                                                         \
        type was[8];                                                                                            \
        shmem_##name##_atomic_set(&at, 10, next);                                                               \
        shmem_quiet();                                                                                          \
        /* A compare-and-swap with another value changes nothing. */                                                    \
        shmem_##name##_atomic_compare_swap_nbi(&was[0], &at, 9, 1, next);                                       \
        shmem_quiet();                                                                                          \
        shmem_##name##_atomic_compare_swap_nbi(&was[1], &at, 10, 20, next);                                     \
        shmem_quiet();                                                                                          \
        shmem_ctx_##name##_atomic_compare_swap_nbi(ctx, &was[2], &at, 20, 30, ctx_next);                        \
        shmem_ctx_quiet(ctx);                                                                                   \
        shmem_##name##_atomic_fetch_inc_nbi(&was[3], &at, next);                                                \
        shmem_quiet();                                                                                          \
        shmem_ctx_##name##_atomic_fetch_inc_nbi(ctx, &was[4], &at, ctx_next);                                   \
        shmem_ctx_quiet(ctx);                                                                                   \
        shmem_##name##_atomic_fetch_add_nbi(&was[5], &at, 8, next);                                             \
        shmem_quiet();                                                                                          \
        shmem_ctx_##name##_atomic_fetch_add_nbi(ctx, &was[6], &at, 60, ctx_next);                               \
        shmem_ctx_quiet(ctx);                                                                                   \
        CHECK(was[0] == 10 && was[1] == 10 && was[2] == 20 && was[3] == 30 && was[4] == 31 && was[5] == 32 && was[6] == 40); \
        CHECK(shmem_ctx_##name##_atomic_compare_swap(ctx, &at, 100, 1, ctx_next) == 100);                       \
        CHECK(shmem_ctx_##name##_atomic_fetch_inc(ctx, &at, ctx_next) == 1);                                    \
        CHECK(shmem_ctx_##name##_atomic_fetch_add(ctx, &at, 5, ctx_next) == 2);                                 \
        shmem_ctx_##name##_atomic_inc(ctx, &at, ctx_next);                                                      \
        shmem_ctx_##name##_atomic_add(ctx, &at, 3, ctx_next);                                                   \
        shmem_ctx_quiet(ctx);                                                                                   \
        CHECK(shmem_##name##_atomic_fetch(&at, next) == 11);                                                    \
    } while (0)

#define BITS(name, type)                                                                                        \
    do {                                                                                                        \
        static type at;                                                                                         \
        type was[6];                                                                                            \
        shmem_##name##_atomic_set(&at, 0x0f, next);                                                             \
        shmem_quiet();                                                                                          \
        shmem_##name##_atomic_fetch_and_nbi(&was[0], &at, 0x3c, next);                                          \
        shmem_quiet();                                                                                          \
        shmem_##name##_atomic_fetch_or_nbi(&was[1], &at, 0x50, next);                                           \
        shmem_quiet();                                                                                          \
        shmem_##name##_atomic_fetch_xor_nbi(&was[2], &at, 0x11, next);                                          \
        shmem_quiet();                                                                                          \
        shmem_ctx_##name##_atomic_fetch_and_nbi(ctx, &was[3], &at, 0x4f, ctx_next);                             \
        shmem_ctx_quiet(ctx);                                                                                   \
        shmem_ctx_##name##_atomic_fetch_or_nbi(ctx, &was[4], &at, 0x20, ctx_next);                              \
        shmem_ctx_quiet(ctx);                                                                                   \
        shmem_ctx_##name##_atomic_fetch_xor_nbi(ctx, &was[5], &at, 0x6d, ctx_next);                             \
        shmem_ctx_quiet(ctx);                                                                                   \
        CHECK(was[0] == 0x0f && was[1] == 0x0c && was[2] == 0x5c && was[3] == 0x4d && was[4] == 0x4d && was[5] == 0x6d); \
        shmem_ctx_##name##_atomic_or(ctx, &at, 0x3f, ctx_next);                                                 \
        shmem_ctx_##name##_atomic_and(ctx, &at, 0x3e, ctx_next);                                                \
        shmem_ctx_##name##_atomic_xor(ctx, &at, 0x02, ctx_next);                                                \
        shmem_ctx_quiet(ctx);                                                                                   \
        CHECK(shmem_ctx_##name##_atomic_fetch_or(ctx, &at, 1, ctx_next) == 0x3c);                               \
        CHECK(shmem_ctx_##name##_atomic_fetch_and(ctx, &at, 0x0f, ctx_next) == 0x3d);                           \
        CHECK(shmem_ctx_##name##_atomic_fetch_xor(ctx, &at, 0x0f, ctx_next) == 0x0d);                           \
        CHECK(shmem_##name##_atomic_fetch(&at, next) == 0x02);                                                  \
    } while (0)

int main(void) {
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    shmem_team_t team;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &team) == 0);
    CHECK(shmem_team_create_ctx(team, SHMEM_CTX_PRIVATE, &ctx) == 0);
    ctx_next = n - 1 - next;
#define ALL(make)                                                                                               \
    make(int, int);                                                                                             \
    make(long, long);                                                                                           \
    make(longlong, long long);                                                                                  \
    make(uint, unsigned int);                                                                                   \
    make(ulong, unsigned long);                                                                                 \
    make(ulonglong, unsigned long long);                                                                        \
    make(int32, int32_t);                                                                                       \
    make(int64, int64_t);                                                                                       \
    make(uint32, uint32_t);                                                                                     \
    make(uint64, uint64_t);                                                                                     \
    make(size, size_t);                                                                                         \
    make(ptrdiff, ptrdiff_t)
    ALL(FORMS);
    FORMS(float, float);
    FORMS(double, double);
    ALL(COUNTS);
    BITS(uint, unsigned int);
    BITS(ulong, unsigned long);
    BITS(ulonglong, unsigned long long);
    BITS(int32, int32_t);
    BITS(int64, int64_t);
    BITS(uint32, uint32_t);
    BITS(uint64, uint64_t);
    shmem_barrier_all();
    /* Many concurrent atomics of all PEs on one word. */
    static uint64_t word;
    uint64_t was[200];
    for (int at = 0; at < 200; at++) shmem_uint64_atomic_fetch_add_nbi(&was[at], &word, 1, 0);
    shmem_quiet();
    for (int at = 0; at < 200; at++)
        for (int other = 0; other < at; other++) CHECK(was[at] != was[other]);
    shmem_barrier_all();
    CHECK(shmem_g(&word, 0) == 200u * (unsigned)n);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return failures != 0;
}
