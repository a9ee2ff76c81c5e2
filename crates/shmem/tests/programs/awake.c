/* A PE in a long wait serves accesses to its memory, and does not sleep between them. */
#include "check.h"
#include <unistd.h>

enum { BATCHES = 50, ROUNDS = 200, FEW = 2 };

static long word, other;

/* Counts how often the main thread of a process has slept. Times would depend on other load of the machine. */
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

/* Counts how often the other PE sleeps while this PE accesses its memory continuously. */
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
        /* Afterwards the other PE has long been idle. */
        long before = sleeps_of(other);
        for (int look = 0; look < 10000 && sleeps_of(other) < before + 10; look++) usleep(1000);
        /* It may sleep while this PE itself is descheduled. */
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
