/* PE 1 computes and makes no call. Operations of PE 0 on its memory complete long before its next call. */
#include "check.h"
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static long word, count, other;
static uint64_t flag;

int main(void) {
    shmem_init();
    int me = shmem_my_pe();
    double begin, worst = 0;
    shmem_p(&word, 1L, (me + 1) % 2);
    shmem_barrier_all();
    begin = now();
    if (me == 1) {
        volatile double sum = 0;
        while (now() - begin < 2) sum += 1;
        CHECK(shmem_signal_fetch(&flag) == 20);
    } else {
        for (long round = 1; round <= 20; round++) {
            double start = now();
            shmem_p(&word, round, 1);
            shmem_quiet();
            CHECK(shmem_g(&word, 1) == round);
            CHECK(shmem_atomic_fetch_add(&count, 1L, 1) == round - 1);
            shmem_put_signal(&other, &round, 1, &flag, (uint64_t)round, SHMEM_SIGNAL_SET, 1);
            shmem_quiet();
            double took = now() - start;
            worst = took > worst ? took : worst;
        }
        /* Four operations take less than this, also on a loaded machine. */
        CHECK(worst < 0.2 && now() - begin < 1.5);
    }
    shmem_barrier_all();
    shmem_finalize();
    return failures != 0;
}
