/* Threads that share the default context, and have contexts of their own. */
#include "check.h"
#include <pthread.h>

#define THREADS 4
#define ROUNDS 200
static long sum, slots[THREADS][16];
static int next;

static void *work(void *argument) {
    long thread = (long)argument, back;
    shmem_ctx_t ctx;
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) == 0);
    for (long round = 0; round < ROUNDS; round++) {
        shmem_atomic_inc(&sum, next);
        shmem_long_p(&slots[thread][0], round, next);
        shmem_ctx_long_put(ctx, &slots[thread][1], &round, 1, next);
        CHECK(shmem_ctx_long_atomic_fetch_add(ctx, &slots[thread][2], 1, next) == round);
        if (round % 10 == 0) {
            shmem_ctx_quiet(ctx);
            shmem_get(ctx, &back, &slots[thread][1], 1, next);
            CHECK(back == round);
            shmem_quiet();
        }
    }
    shmem_ctx_destroy(ctx);
    return NULL;
}

int main(void) {
    int provided;
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    int n = shmem_n_pes();
    next = (shmem_my_pe() + 1) % n;
    pthread_t threads[THREADS];
    for (long at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, (void *)at);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    shmem_barrier_all();
    CHECK(sum == THREADS * ROUNDS);
    for (int at = 0; at < THREADS; at++) CHECK(slots[at][0] == ROUNDS - 1 && slots[at][1] == ROUNDS - 1 && slots[at][2] == ROUNDS);
    shmem_finalize();
    return failures != 0;
}
