/* Locks: one PE holds a lock at a time, and all PEs get it. */
#include "check.h"

static long locks[3], inside;
static long counts[3];

int main(void) {
    shmem_init();
    int n = shmem_n_pes();
    for (int round = 0; round < 150; round++) {
        int at = round % 3;
        if (round % 5 == 4)
            while (shmem_test_lock(&locks[at])) {
            }
        else
            shmem_set_lock(&locks[at]);
        if (at == 0) CHECK(shmem_atomic_fetch_inc(&inside, 0) == 0);
        long count = shmem_g(&counts[at], 0);
        shmem_p(&counts[at], count + 1, 0);
        if (at == 0) CHECK(shmem_atomic_fetch_add(&inside, -1L, 0) == 1);
        shmem_clear_lock(&locks[at]);
    }
    shmem_barrier_all();
    for (int at = 0; at < 3; at++) {
        CHECK(shmem_g(&counts[at], 0) == 50 * n);
    }
    shmem_finalize();
    return failures != 0;
}
