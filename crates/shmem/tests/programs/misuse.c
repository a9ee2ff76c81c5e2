/* What a program may not do, by the name in the argument: each ends it with a line that says what is wrong. */
#include "check.h"

static long word;

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    long local = 0;
    if (strcmp(how, "before") == 0) shmem_barrier_all();
    shmem_init();
    int me = shmem_my_pe();
    if (strcmp(how, "pe") == 0) shmem_p(&word, 1L, shmem_n_pes());
    if (strcmp(how, "negative") == 0) shmem_p(&word, 1L, -1);
    if (strcmp(how, "local") == 0) shmem_p(&local, 1L, 0);
    if (strcmp(how, "null") == 0) shmem_p((long *)NULL, 1L, 0);
    if (strcmp(how, "beyond") == 0) shmem_putmem(shmem_malloc(64), &local, (size_t)1 << 40, 0);
    if (strcmp(how, "unaligned") == 0) shmem_atomic_inc((long *)((char *)shmem_malloc(64) + 3), 0);
    if (strcmp(how, "team") == 0) {
        shmem_team_t team;
        shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1, NULL, 0, &team);
        shmem_team_destroy(me == 0 ? team : (shmem_team_t)0x77);
        shmem_team_sync(me == 0 ? team : (shmem_team_t)0x77);
    }
    if (strcmp(how, "context") == 0) {
        shmem_ctx_t ctx;
        shmem_ctx_create(0, &ctx);
        shmem_ctx_destroy(ctx);
        shmem_ctx_quiet(ctx);
    }
    if (strcmp(how, "twice") == 0) {
        char *at = shmem_malloc(64);
        shmem_free(at);
        shmem_free(at);
    }
    if (strcmp(how, "sizes") == 0) shmem_malloc(64 + (size_t)me);
    if (strcmp(how, "compare") == 0) shmem_wait_until(&word, 9, 0L);
    if (strcmp(how, "signal") == 0) shmem_putmem_signal(&word, &local, 8, (uint64_t *)&word, 1, 7, 0);
    if (strcmp(how, "root") == 0) shmem_broadcastmem(SHMEM_TEAM_WORLD, &word, &word, 8, shmem_n_pes());
    if (strcmp(how, "set") == 0) shmem_barrier(0, 0, shmem_n_pes() + 1, &word);
    if (strcmp(how, "after") == 0) {
        shmem_finalize();
        shmem_quiet();
    }
    fprintf(stderr, "it went on\n");
    exit(0);
}
