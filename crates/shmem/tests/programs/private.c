/* Static variables that are copied by system calls instead of mapped: short and long ones, and words that are ordered
   after atomics of their owner. */
#include "check.h"

static unsigned char bytes[100000];
static long sum, turn, seen;

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    static unsigned char mine[100000];
    fill(mine, sizeof mine, me);
    for (size_t len = 1; len <= sizeof bytes; len = len * 7 + 1) {
        shmem_putmem(bytes, mine, len, next);
        shmem_barrier_all();
        CHECK(is_filled(bytes, len, before));
        unsigned char back[1000];
        size_t part = len < sizeof back ? len : sizeof back;
        shmem_getmem(back, bytes + (len - part), part, next);
        for (size_t at = 0; at < part; at++) CHECK(back[at] == byte_of(me, len - part + at));
        shmem_barrier_all();
    }
    /* The put after the fence is visible after the atomic before it. */
    for (long round = 1; round <= 500; round++) {
        shmem_long_atomic_add(&sum, 1, next);
        shmem_fence();
        shmem_long_p(&turn, round, next);
        shmem_long_wait_until(&turn, SHMEM_CMP_GE, round);
        CHECK(shmem_long_atomic_fetch(&sum, me) >= round);
        shmem_long_p(&seen, round, before);
        shmem_long_wait_until(&seen, SHMEM_CMP_GE, round);
    }
    shmem_barrier_all();
    CHECK(sum == 500);
    shmem_finalize();
    return failures != 0;
}
