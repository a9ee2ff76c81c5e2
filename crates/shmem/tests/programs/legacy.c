/* The oldest names: no init but start_pes, and no end. */
#include "check.h"

static int word, half;
static long waited;
static double real;

int main(void) {
    start_pes(0);
    int me = _my_pe(), n = _num_pes(), next = (me + 1) % n;
    CHECK(shmem_int_fadd(&word, 2, me) == 0 && shmem_int_finc(&word, me) == 2 && shmem_int_cswap(&word, 3, 9, me) == 3);
    shmem_int_add(&word, 1, me);
    shmem_int_inc(&word, me);
    shmem_quiet();
    CHECK(shmem_int_swap(&word, 5, me) == 11 && shmem_int_fetch(&word, me) == 5);
    shmem_int_set(&half, 3, next);
    shmem_double_set(&real, 0.5, next);
    shmem_long_p(&waited, 7, next);
    shmem_long_wait(&waited, 0);
    shmem_long_wait_until(&waited, SHMEM_CMP_EQ, 7);
    shmem_barrier_all();
    CHECK(half == 3 && real == 0.5 && shmem_double_swap(&real, 2, me) == 0.5);
    shmem_udcflush();
    shmem_clear_cache_inv();
    if (failures) exit(1);
    return 0;
}
