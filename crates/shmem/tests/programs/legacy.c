/* The oldest names: start_pes as the only initialization, and no finalization. With an argument, PE 0 misuses a call
   while the others wait. */
#include "check.h"

static int word, half;
static long waited;
static double real;

/* Runs at exit, as a C++ destructor does. A call that does not release memory ends the program. */
static void *kept;
static void give_back(void) {
    shmem_free(kept);
    shmem_barrier_all();
    fprintf(stderr, "it went on\n");
}

int main(int argc, char **argv) {
    start_pes(0);
    int me = _my_pe(), n = _num_pes(), next = (me + 1) % n;
    if (argc > 1) {
        kept = shmem_malloc(64);
        atexit(give_back);
        if (me == 0) shmem_int_inc(&word, strcmp(argv[1], "pe") == 0 ? n : 0);
        shmem_barrier_all();
    }
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
