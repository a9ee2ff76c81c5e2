/* One PE ends the program for all, with the status of the argument, while the others compute or wait; with a second argument before any
   has said anything to another. */
#include "check.h"

static long word;

int main(int argc, char **argv) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    printf("here\n");
    if (argc < 3) shmem_barrier_all();
    if (me == n - 1) shmem_global_exit(argc > 1 ? atoi(argv[1]) : 3);
    if (argc > 2) shmem_barrier_all();
    if (me == 0)
        for (volatile long at = 0;; at++) {
        }
    shmem_wait_until(&word, SHMEM_CMP_NE, 0L);
    return 99;
}
