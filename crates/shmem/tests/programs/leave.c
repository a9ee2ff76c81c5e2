/* One PE ends the program for all, with the status of the argument, while the others compute or wait. With "at once" it does
   so before PEs have connected; with "atexit" programs leave by a handler; with "stopped" PE 0 is stopped; with "reads" a
   thread of PE 0 reads from a stream without data. */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static long word;

static void leave(void) { shmem_finalize(); }

int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "";
    int at_once = strcmp(how, "at once") == 0;
    shmem_init();
    if (strcmp(how, "atexit") == 0) atexit(leave);
    int me = shmem_my_pe(), n = shmem_n_pes();
    printf("here\n");
    if (!at_once) shmem_barrier_all();
    if (me == 0 && strcmp(how, "stopped") == 0) raise(SIGSTOP);
    if (me == 0 && strcmp(how, "reads") == 0) {
        int ends[2];
        char line[8];
        FILE *from = pipe(ends) == 0 ? fdopen(ends[0], "r") : NULL;
        return from && fgets(line, sizeof line, from) ? 98 : 97;
    }
    if (me == n - 1 && strcmp(how, "reads") == 0) usleep(200000);
    if (me == n - 1) shmem_global_exit(argc > 1 ? atoi(argv[1]) : 3);
    if (at_once) shmem_barrier_all();
    if (me == 0)
        for (volatile long at = 0;; at++) {
        }
    shmem_wait_until(&word, SHMEM_CMP_NE, 0L);
    return 99;
}
