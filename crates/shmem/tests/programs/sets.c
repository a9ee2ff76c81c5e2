/* The deprecated collectives of active sets: all PEs, every second one, and consecutive ones from the second on. Then
   collectives of teams with each type. */
#include "check.h"

#define COUNT 40
#define PES 8
static long sync_words[SHMEM_SYNC_SIZE];
static uint64_t to[COUNT * PES * 3], from[COUNT * PES * 3];
static int me, n;

/* Element `at` of a PE's contribution. */
static uint64_t given(int pe, size_t at) { return (uint64_t)(pe + 1) << 24 | at; }

/* The same value, for types with fewer bits. */
#define OF_BITS(bits)                                                                                                     \
    static void of_##bits(int start, int log_stride, int size, int mine) {                                                \
        uint##bits##_t *dest = (void *)to, *source = (void *)from;                                                        \
        int step = 1 << log_stride;                                                                                       \
        shmem_barrier(start, log_stride, size, sync_words);                                                               \
        for (size_t at = 0; at < COUNT * PES * 3; at++) dest[at] = 0, source[at] = (uint##bits##_t)given(me, at);         \
        shmem_barrier(start, log_stride, size, sync_words);                                                               \
        for (int root = 0; root < size; root++) {                                                                         \
            shmem_broadcast##bits(dest, source, COUNT, root, start, log_stride, size, sync_words);                        \
            /* The root's target is unchanged. */                                                                            \
            if (mine != root)                                                                                             \
                for (size_t at = 0; at < COUNT; at++) CHECK(dest[at] == given(start + root * step, at));                  \
            else if (root == 0)                                                                                           \
                CHECK(dest[0] == 0 && dest[COUNT - 1] == 0);                                                              \
            shmem_barrier(start, log_stride, size, sync_words);                                                           \
        }                                                                                                                 \
        shmem_fcollect##bits(dest, source, COUNT, start, log_stride, size, sync_words);                                   \
        for (int pe = 0; pe < size; pe++)                                                                                 \
            for (size_t at = 0; at < COUNT; at++) CHECK(dest[pe * COUNT + at] == given(start + pe * step, at));           \
        shmem_barrier(start, log_stride, size, sync_words);                                                               \
        /* Each PE contributes one more than the PE before; the first one none. */                                            \
        shmem_collect##bits(dest, source, mine, start, log_stride, size, sync_words);                                     \
        for (int pe = 0, begin = 0; pe < size; begin += pe++)                                                             \
            for (int at = 0; at < pe; at++) CHECK(dest[begin + at] == given(start + pe * step, at));                      \
        shmem_barrier(start, log_stride, size, sync_words);                                                               \
        shmem_alltoall##bits(dest, source, COUNT, start, log_stride, size, sync_words);                                   \
        for (int pe = 0; pe < size; pe++)                                                                                 \
            for (size_t at = 0; at < COUNT; at++)                                                                         \
                CHECK(dest[pe * COUNT + at] == given(start + pe * step, mine * COUNT + at));                              \
        shmem_barrier(start, log_stride, size, sync_words);                                                               \
        memset(to, 0, sizeof to);                                                                                         \
        shmem_barrier(start, log_stride, size, sync_words);                                                               \
        shmem_alltoalls##bits(dest, source, 3, 2, COUNT, start, log_stride, size, sync_words);                            \
        for (int pe = 0; pe < size; pe++)                                                                                 \
            for (size_t at = 0; at < COUNT; at++) {                                                                       \
                size_t there = (pe * COUNT + at) * 3;                                                                     \
                CHECK(dest[there] == given(start + pe * step, (mine * COUNT + at) * 2) && dest[there + 1] == 0);          \
            }                                                                                                             \
        shmem_sync(start, log_stride, size, sync_words);                                                                  \
    }
OF_BITS(32)
OF_BITS(64)

/* Every operation of reductions, with numbers that fit each type. */
#define REDUCES(name, type)                                                                                       \
    do {                                                                                                          \
        static type work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + 3], sum[3], part[3];                                     \
        type want = 0;                                                                                            \
        for (int pe = 0; pe < size; pe++) want += (type)(start + pe * step + 2);                                  \
        for (int at = 0; at < 3; at++) part[at] = (type)(me + 2);                                                 \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_sum_to_all(sum, part, 3, start, log_stride, size, work, sync_words);                       \
        CHECK(sum[0] == want && sum[2] == want);                                                                  \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_max_to_all(sum, part, 3, start, log_stride, size, work, sync_words);                       \
        CHECK(sum[1] == (type)(start + (size - 1) * step + 2));                                                   \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_min_to_all(sum, part, 3, start, log_stride, size, work, sync_words);                       \
        CHECK(sum[1] == (type)(start + 2));                                                                       \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_prod_to_all(sum, part, 3, start, log_stride, size, work, sync_words);                      \
        want = 1;                                                                                                 \
        for (int pe = 0; pe < size; pe++) want *= (type)(start + pe * step + 2);                                  \
        CHECK(sum[2] == want);                                                                                    \
    } while (0)

#define REDUCES_BITS(name, type)                                                                                  \
    do {                                                                                                          \
        REDUCES(name, type);                                                                                      \
        static type work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + 3], all[3], part[3];                                     \
        for (int at = 0; at < 3; at++) part[at] = (type)(8 | 1 << mine % 3);                                      \
        type want = (type)((1 << (size < 3 ? size : 3)) - 1);                                                     \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_or_to_all(all, part, 3, start, log_stride, size, work, sync_words);                        \
        CHECK(all[0] == (type)(8 | want) && all[2] == (type)(8 | want));                                          \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_and_to_all(all, part, 3, start, log_stride, size, work, sync_words);                       \
        CHECK(all[1] == (size > 1 ? 8 : part[1]));                                                                \
        want = 0;                                                                                                 \
        for (int pe = 0; pe < size; pe++) want ^= (type)(8 | 1 << pe % 3);                                        \
        shmem_barrier(start, log_stride, size, sync_words);                                                       \
        shmem_##name##_xor_to_all(all, part, 3, start, log_stride, size, work, sync_words);                       \
        CHECK(all[1] == want);                                                                                    \
    } while (0)

static void set(int start, int log_stride, int size) {
    int step = 1 << log_stride, mine = (me - start) / step;
    if (me >= start && (me - start) % step == 0 && mine < size) {
        for (int round = 0; round < 2; round++) {
            of_32(start, log_stride, size, mine);
            of_64(start, log_stride, size, mine);
        }
        REDUCES_BITS(short, short);
        REDUCES_BITS(int, int);
        REDUCES_BITS(long, long);
        REDUCES_BITS(longlong, long long);
        REDUCES(float, float);
        REDUCES(double, double);
        REDUCES(longdouble, long double);
        for (int at = 0; at < SHMEM_SYNC_SIZE; at++) CHECK(sync_words[at] == SHMEM_SYNC_VALUE);
    }
    shmem_barrier_all();
}

#define TEAMS(name, type)                                                                                         \
    do {                                                                                                          \
        type *dest = (type *)to, *source = (type *)from;                                                          \
        for (int at = 0; at < 2 * n * 2; at++) source[at] = (type)(me * 20 + at);                                 \
        memset(to, 0, sizeof to);                                                                                 \
        shmem_barrier_all();                                                                                      \
        CHECK(shmem_##name##_broadcast(SHMEM_TEAM_WORLD, dest, source, 2, n - 1) == 0);                           \
        CHECK(dest[1] == (type)((n - 1) * 20 + 1) && dest[2] == 0);                                               \
        shmem_barrier_all();                                                                                      \
        CHECK(shmem_##name##_collect(SHMEM_TEAM_WORLD, dest, source, me == 0 ? 1 : 2) == 0);                      \
        CHECK(dest[0] == 0 && dest[2 * n - 2] == (type)((n - 1) * 20 + 1));                                       \
        shmem_barrier_all();                                                                                      \
        CHECK(shmem_##name##_fcollect(SHMEM_TEAM_WORLD, dest, source, 2) == 0);                                   \
        for (int pe = 0; pe < n; pe++) CHECK(dest[2 * pe] == (type)(pe * 20) && dest[2 * pe + 1] == (type)(pe * 20 + 1)); \
        shmem_barrier_all();                                                                                      \
        CHECK(shmem_##name##_alltoall(SHMEM_TEAM_WORLD, dest, source, 2) == 0);                                   \
        for (int pe = 0; pe < n; pe++) CHECK(dest[2 * pe + 1] == (type)(pe * 20 + me * 2 + 1));                   \
        shmem_barrier_all();                                                                                      \
        memset(to, 0, sizeof to);                                                                                 \
        shmem_barrier_all();                                                                                      \
        CHECK(shmem_##name##_alltoalls(SHMEM_TEAM_WORLD, dest, source, 3, 2, 2) == 0);                            \
        for (int pe = 0; pe < n; pe++) CHECK(dest[(2 * pe + 1) * 3] == (type)(pe * 20 + (me * 2 + 1) * 2) && dest[2] == 0); \
        shmem_barrier_all();                                                                                      \
    } while (0)

int main(void) {
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes();
    set(0, 0, n);
    set(0, 1, (n + 1) / 2);
    if (n > 1) set(1, 0, n - 1);
    if (n > 3) set(1, 1, 2);
    TEAMS(float, float);
    TEAMS(double, double);
    TEAMS(longdouble, long double);
    TEAMS(char, char);
    TEAMS(schar, signed char);
    TEAMS(short, short);
    TEAMS(int, int);
    TEAMS(long, long);
    TEAMS(longlong, long long);
    TEAMS(uchar, unsigned char);
    TEAMS(ushort, unsigned short);
    TEAMS(uint, unsigned int);
    TEAMS(ulong, unsigned long);
    TEAMS(ulonglong, unsigned long long);
    TEAMS(int8, int8_t);
    TEAMS(int16, int16_t);
    TEAMS(int32, int32_t);
    TEAMS(int64, int64_t);
    TEAMS(uint8, uint8_t);
    TEAMS(uint16, uint16_t);
    TEAMS(uint32, uint32_t);
    TEAMS(uint64, uint64_t);
    TEAMS(size, size_t);
    TEAMS(ptrdiff, ptrdiff_t);
    shmem_finalize();
    return failures != 0;
}
