/* Locks that several threads of a PE acquire, as do other PEs; and a lock in memory that is freed while the lock is set,
   and reused for another lock. */
#include "check.h"
#include <pthread.h>

#define THREADS 3
#define ROUNDS 100
static long lock, count, inside;
static pthread_barrier_t all;

static void *work(void *none) {
    pthread_barrier_wait(&all);
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 4 == 3)
            while (shmem_test_lock(&lock)) {
            }
        else
            shmem_set_lock(&lock);
        CHECK(shmem_atomic_fetch_inc(&inside, 0) == 0);
        shmem_p(&count, shmem_g(&count, 0) + 1, 0);
        CHECK(shmem_atomic_fetch_add(&inside, -1L, 0) == 1);
        shmem_clear_lock(&lock);
    }
    return none;
}

int main(void) {
    int provided;
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    pthread_t threads[THREADS];
    pthread_barrier_init(&all, NULL, THREADS);
    for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, NULL);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    shmem_barrier_all();
    CHECK(shmem_g(&count, 0) == (long)THREADS * ROUNDS * shmem_n_pes());
    long *before = NULL;
    for (int round = 0; round < 3; round++) {
        long *own = round == 2 ? shmem_realloc(shmem_calloc(4, sizeof *own), 64) : shmem_calloc(4, sizeof *own);
        CHECK(before == NULL || own == before || round == 2);
        before = own;
        if (shmem_my_pe() == 0) shmem_set_lock(&own[1]);
        shmem_free(own);
    }
    shmem_finalize();
    return failures != 0;
}
