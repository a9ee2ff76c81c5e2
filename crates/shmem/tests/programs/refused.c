/* Static variables whose shared mapping the system refuses, to all PEs or to the odd ones, by a limit of the file size. The
   second argument is the expected result: whether each is shared. */
#include "check.h"
#include <signal.h>
#include <sys/resource.h>

static unsigned char large[64 << 20];
static long word, sum;
static unsigned char data[100000];

int main(int argc, char **argv) {
    const char *who = argc > 1 ? argv[1] : "";
    const char *rank = getenv("TRUNKLINE_JOB_RANK");
    int odd = rank && atoi(rank) % 2, all = strcmp(who, "all") == 0;
    if (all || (strcmp(who, "odd") == 0 && odd)) {
        struct rlimit limit = {48 << 20, 48 << 20};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    word = 11;
    large[sizeof large - 1] = 3;
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    CHECK(word == 11 && large[sizeof large - 1] == 3);
    int refused = all || (strcmp(who, "odd") == 0 && next % 2);
    long *there = shmem_ptr(&word, next);
    CHECK(next == me || (there == NULL) == refused);
    CHECK(shmem_team_ptr(SHMEM_TEAM_WORLD, &word, next) == there);
    shmem_barrier_all();
    if (there) {
        CHECK(*there == 11);
        *there = 100 + me;
    } else {
        shmem_p(&word, 100L + me, next);
    }
    shmem_barrier_all();
    CHECK(word == 100 + before && shmem_g(&word, next) == 100 + me);
    unsigned char mine[100000];
    fill(mine, sizeof mine, me);
    shmem_putmem(data, mine, sizeof mine, next);
    shmem_atomic_add(&sum, 2L, 0);
    shmem_barrier_all();
    CHECK(is_filled(data, sizeof data, before));
    CHECK(shmem_g(&sum, 0) == 2 * n);
    shmem_finalize();
    return failures != 0;
}
