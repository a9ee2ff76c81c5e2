/* A store to the heap after a fence is visible after earlier puts to static variables, and the reverse. */
#include "check.h"

#define LEN 200000
#define ROUNDS 60

static unsigned char data[LEN], mine[LEN];
static long flag;

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    long *turn = shmem_calloc(2, sizeof *turn);
    unsigned char *heap = shmem_malloc(LEN);
    shmem_ctx_t ctx;
    int made = shmem_ctx_create(0, &ctx) == 0;
    for (int round = 1; round <= ROUNDS; round++) {
        fill(mine, LEN, me + round);
        if (round % 2 && made) {
            shmem_ctx_putmem_nbi(ctx, data, mine, LEN, next);
            shmem_ctx_fence(ctx);
            shmem_ctx_long_p(ctx, turn, round, next);
        } else {
            shmem_putmem_nbi(data, mine, LEN, next);
            shmem_fence();
            shmem_long_atomic_set(turn, round, next);
        }
        shmem_long_wait_until(turn, SHMEM_CMP_GE, round);
        CHECK(is_filled(data, LEN, before + round));
        shmem_putmem_nbi(heap, mine, LEN, next);
        shmem_fence();
        shmem_long_p(&flag, round, next);
        shmem_long_wait_until(&flag, SHMEM_CMP_GE, round);
        CHECK(is_filled(heap, LEN, before + round));
        shmem_barrier_all();
    }
    if (made) shmem_ctx_destroy(ctx);
    shmem_finalize();
    return failures != 0;
}
