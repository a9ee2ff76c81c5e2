/* Collectives of the world and of active sets, of every size and type. */
#include "check.h"
#include <complex.h>

#define MOST 100000
static long sync_words[SHMEM_SYNC_SIZE], work[MOST];
static const size_t COUNTS[] = {0, 1, 2, 3, 7, 100, 128, 129, 1000, 5001, MOST};

static void reductions(long *to, long *from, int me, int n) {
    for (size_t at = 0; at < sizeof COUNTS / sizeof *COUNTS; at++) {
        size_t count = COUNTS[at];
        for (int way = 0; way < 3; way++) {
            for (size_t i = 0; i < count; i++) from[i] = (long)(i * 7 + me), to[i] = -1;
            shmem_barrier_all();
            long *out = way == 1 ? from : to;
            if (way == 2)
                shmem_long_max_to_all(to, from, (int)count, 0, 0, n, work, sync_words);
            else
                CHECK(shmem_sum_reduce(SHMEM_TEAM_WORLD, out, from, count) == 0);
            for (size_t i = 0; i < count; i++)
                CHECK(out[i] == (way == 2 ? (long)(i * 7 + n - 1) : (long)(n * i * 7) + n * (n - 1) / 2));
        }
    }
}

static void types(int me, int n) {
    static long double precise[3], precise_sum[3];
    static double _Complex turn[2], turned[2];
    static unsigned char bits[5], all[5];
    static float least[4], found[4];
    for (int i = 0; i < 3; i++) precise[i] = me + i + 0x1p-60L;
    turn[0] = me + 1 + 2 * I, turn[1] = I;
    for (int i = 0; i < 5; i++) bits[i] = (unsigned char)(1 << me);
    for (int i = 0; i < 4; i++) least[i] = (float)(i - me) / 2;
    shmem_barrier_all();
    shmem_sum_reduce(SHMEM_TEAM_WORLD, precise_sum, precise, 3);
    for (int i = 0; i < 3; i++) CHECK(precise_sum[i] == n * i + n * (n - 1) / 2 + n * 0x1p-60L);
    shmem_prod_reduce(SHMEM_TEAM_WORLD, turned, turn, 2);
    double _Complex want = 1, power = 1;
    for (int pe = 0; pe < n; pe++) want *= pe + 1 + 2 * I, power *= I;
    CHECK(turned[0] == want && turned[1] == power);
    shmem_or_reduce(SHMEM_TEAM_WORLD, all, bits, 5);
    CHECK(all[4] == (1 << n) - 1);
    shmem_min_reduce(SHMEM_TEAM_WORLD, found, least, 4);
    CHECK(found[3] == (float)(3 - (n - 1)) / 2);
}

static void moves(unsigned char *to, unsigned char *from, int me, int n) {
    for (size_t at = 0; at < sizeof COUNTS / sizeof *COUNTS; at++) {
        size_t len = COUNTS[at];
        for (int root = 0; root < n; root++) {
            fill(from, len, me);
            memset(to, 0, len * n + 1);
            shmem_barrier_all();
            shmem_broadcastmem(SHMEM_TEAM_WORLD, to, from, len, root);
            CHECK(is_filled(to, len, root));
        }
        shmem_barrier_all();
        shmem_fcollectmem(SHMEM_TEAM_WORLD, to, from, len);
        for (int pe = 0; pe < n; pe++) CHECK(is_filled(to + pe * len, len, pe));
        shmem_barrier_all();
        /* Each PE contributes one element more than the PE before. */
        fill(from, len + me, me);
        shmem_collectmem(SHMEM_TEAM_WORLD, to, from, len + me);
        size_t begin = 0;
        for (int pe = 0; pe < n; begin += len + pe, pe++) CHECK(is_filled(to + begin, len + pe, pe));
        shmem_barrier_all();
        for (int pe = 0; pe < n; pe++) fill(from + pe * len, len, me * n + pe);
        shmem_alltoallmem(SHMEM_TEAM_WORLD, to, from, len);
        for (int pe = 0; pe < n; pe++) CHECK(is_filled(to + pe * len, len, pe * n + me));
        shmem_barrier_all();
    }
}

/* Only some PEs take part, with their own words. */
static void sets(int *to, int *from, int me, int n) {
    static long some[SHMEM_SYNC_SIZE];
    int size = (n + 1) / 2;
    if (me % 2 == 0 && size < n) {
        for (int round = 0; round < 5; round++) {
            for (int i = 0; i < 50; i++) from[i] = me + i + round;
            shmem_barrier(0, 1, size, some);
            shmem_int_sum_to_all(to, from, 50, 0, 1, size, (int *)work, some);
            for (int i = 0; i < 50; i++) CHECK(to[i] == size * (i + round) + size * (size - 1));
            shmem_collect32(to, from, 3 + me, 0, 1, size, some);
            CHECK(to[0] == round && (size < 2 || to[3] == 2 + round));
            shmem_sync(0, 1, size, some);
            shmem_broadcast32(to, from, 10, size - 1, 0, 1, size, some);
            if (me != 2 * (size - 1)) CHECK(to[9] == 2 * (size - 1) + 9 + round);
            shmem_sync(0, 1, size, some);
        }
        for (int i = 0; i < SHMEM_SYNC_SIZE; i++) CHECK(some[i] == SHMEM_SYNC_VALUE);
    }
    shmem_barrier_all();
}

static void apart(int *to, int *from, int me, int n) {
    for (int i = 0; i < 200; i++) to[i] = -1, from[i] = me * 1000 + i;
    shmem_barrier_all();
    shmem_alltoalls(SHMEM_TEAM_WORLD, to, from, 3, 2, 4);
    for (int pe = 0; pe < n; pe++)
        for (int i = 0; i < 4; i++) CHECK(to[(pe * 4 + i) * 3] == pe * 1000 + (me * 4 + i) * 2);
    CHECK(to[1] == -1 && to[2] == -1);
    shmem_barrier_all();
}

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    long *to = shmem_malloc((MOST + 64) * sizeof *to * n), *from = shmem_malloc((MOST + 64) * sizeof *from * n);
    reductions(to, from, me, n);
    types(me, n);
    moves((unsigned char *)to, (unsigned char *)from, me, n);
    sets((int *)to, (int *)from, me, n);
    apart((int *)to, (int *)from, me, n);
    static uint64_t arrived;
    for (int round = 1; round <= 200; round++) {
        shmem_atomic_inc(&arrived, 0);
        shmem_barrier_all();
        if (me == 0) CHECK(arrived == (uint64_t)(round * n));
        shmem_sync_all();
    }
    shmem_finalize();
    return failures != 0;
}
