/* C++ selects the function by the types of its arguments. */
#include "check.h"

static int words[4];
static long double precise;
static unsigned long count;
static uint64_t flag;

int main() {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    int from[4] = {me, me + 1, me + 2, me + 3};
    shmem_ctx_t ctx;
    CHECK(shmem_ctx_create(0, &ctx) == 0);
    shmem_put(words, from, 2, next);
    shmem_put(ctx, words + 2, from + 2, 2, next);
    shmem_p(&precise, (long double)me, next);
    shmem_atomic_add(&count, 2UL, 0);
    shmem_atomic_inc(ctx, &count, 0);
    shmem_ctx_quiet(ctx);
    shmem_barrier_all();
    CHECK(words[0] == before && words[3] == before + 3 && precise == before);
    CHECK(shmem_g(&count, 0) == 3UL * n && shmem_atomic_fetch(ctx, &count, 0) == 3UL * n);
    shmem_put_signal(words, from, 4, &flag, 1, SHMEM_SIGNAL_SET, next);
    shmem_wait_until(&flag, SHMEM_CMP_EQ, (uint64_t)1);
    CHECK(words[1] == before + 1 && shmem_test(&flag, SHMEM_CMP_GT, (uint64_t)0));
    shmem_sync(SHMEM_TEAM_WORLD);
    static double real[3], sums[3];
    real[2] = me + 0.5;
    shmem_barrier_all();
    shmem_sum_reduce(SHMEM_TEAM_WORLD, sums, real, 3);
    CHECK(sums[2] == n * (n - 1) / 2.0 + n * 0.5);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return failures != 0;
}
