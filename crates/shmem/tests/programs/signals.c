/* Signals arrive once each, after all earlier puts. */
#include "check.h"

#define LEN 70000
static uint64_t flag, count;
static unsigned char data[LEN];

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    unsigned char *from = malloc(LEN);
    for (uint64_t round = 1; round <= 60; round++) {
        size_t len = round % 3 == 0 ? LEN : round * 17;
        fill(from, len, me + (int)round);
        if (round % 2)
            shmem_put_signal(data, from, len, &flag, round, SHMEM_SIGNAL_SET, next);
        else
            shmem_putmem_signal_nbi(data, from, len, &flag, round, SHMEM_SIGNAL_SET, next);
        CHECK(shmem_signal_wait_until(&flag, SHMEM_CMP_GE, round) == round);
        CHECK(shmem_signal_fetch(&flag) == round && is_filled(data, len, before + (int)round));
        shmem_barrier_all();
    }
    for (int at = 0; at < 300; at++) shmem_putmem_signal(data, from, 0, &count, 2, SHMEM_SIGNAL_ADD, at % n);
    shmem_barrier_all();
    uint64_t sum = 0;
    for (int pe = 0; pe < n; pe++) sum += shmem_g(&count, pe);
    CHECK(sum == 600UL * n);
    shmem_finalize();
    return failures != 0;
}
