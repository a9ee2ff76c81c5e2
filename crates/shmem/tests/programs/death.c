/* PE 1 ends without a word while the others wait for it, in the way that the argument names. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static long word, lock;
static char data[200000];

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    shmem_init();
    int me = shmem_my_pe();
    if (strcmp(how, "lock") == 0 && me == 1) shmem_set_lock(&lock);
    shmem_barrier_all();
    if (me == 1) {
        usleep(100000);
        raise(SIGKILL);
    }
    if (strcmp(how, "barrier") == 0) shmem_barrier_all();
    if (strcmp(how, "wait") == 0) shmem_wait_until(&word, SHMEM_CMP_NE, 0L);
    if (strcmp(how, "lock") == 0) shmem_set_lock(&lock);
    if (strcmp(how, "finalize") == 0) shmem_finalize();
    if (strcmp(how, "malloc") == 0) shmem_malloc(100);
    if (strcmp(how, "reduce") == 0) {
        static long to[9000], from[9000];
        for (;;) shmem_sum_reduce(SHMEM_TEAM_WORLD, to, from, 9000);
    }
    if (strcmp(how, "put") == 0)
        for (;;) {
            static char from[200000];
            shmem_putmem(data, from, sizeof from, 1);
            shmem_quiet();
            /* Where memory is shared a put needs nobody. */
            if (shmem_ptr(data, 1)) shmem_barrier_all();
        }
    fprintf(stderr, "it went on\n");
    _exit(9);
}
