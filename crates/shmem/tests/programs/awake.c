/* A PE that waits for long goes on with what others do to its memory, and does not sleep in between. */
#include "check.h"
#include <unistd.h>

enum { BATCHES = 50, ROUNDS = 200, FEW = 2 };

static long word, other;

/* How often the main thread of a process has gone to sleep: the clock tells more of what else runs here. */
static long sleeps_of(long process) {
    char line[256];
    long count = -1;
    snprintf(line, sizeof line, "/proc/%ld/status", process);
    FILE *status = fopen(line, "r");
    while (status && fgets(line, sizeof line, status)) {
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) break;
    }
    if (status) fclose(status);
    CHECK(count >= 0);
    return count;
}

/* How often the other one sleeps while it is worked on all the time. */
static long sleeps_of_a_batch(void) {
    long before = sleeps_of(other);
    for (long round = 0; round < ROUNDS; round++) {
        shmem_p(&word, round, 1);
        shmem_quiet();
    }
    return sleeps_of(other) - before;
}

int main(void) {
    shmem_init();
    if (shmem_my_pe() == 1) shmem_p(&other, (long)getpid(), 0);
    shmem_barrier_all();
    if (shmem_my_pe() == 0) {
        long least = ROUNDS;
        /* Until it has long had nothing to do. */
        long before = sleeps_of(other);
        for (int look = 0; look < 10000 && sleeps_of(other) < before + 10; look++) usleep(1000);
        /* It may sleep where this PE itself was kept from its processor. */
        for (int batch = 0; batch < BATCHES && least > FEW; batch++) {
            long sleeps = sleeps_of_a_batch();
            if (sleeps < least) least = sleeps;
        }
        fprintf(stderr, "%ld sleeps\n", least);
        CHECK(least <= FEW);
    }
    shmem_barrier_all();
    shmem_finalize();
    return failures != 0;
}
