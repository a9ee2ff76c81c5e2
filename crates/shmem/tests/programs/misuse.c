/* Misuse of calls, by the name in the argument: each ends the program with a line that describes the mistake. */
#include "check.h"

static long word;

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    long local = 0;
    long *volatile none = NULL;
    int provided;
    if (strcmp(how, "before") == 0) shmem_barrier_all();
    if (strcmp(how, "granted into null") == 0) shmem_init_thread(SHMEM_THREAD_SINGLE, (int *)none);
    if (strcmp(how, "no level") == 0) shmem_init_thread(SHMEM_THREAD_MULTIPLE + 1, &provided);
    if (strcmp(how, "below all levels") == 0) shmem_init_thread(-1, &provided);
    if (strcmp(how, "name into null") == 0) shmem_info_get_name((char *)none);
    if (strcmp(how, "version into null") == 0) shmem_info_get_version(&provided, (int *)none);
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
    if (strcmp(how, "context of a team before") == 0) {
        shmem_ctx_t ctx;
        shmem_team_t team, next;
        shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, shmem_n_pes(), NULL, 0, &team);
        shmem_team_create_ctx(team, 0, &ctx);
        shmem_team_destroy(team);
        shmem_team_split_strided(SHMEM_TEAM_WORLD, shmem_n_pes() - 1, -1, shmem_n_pes(), NULL, 0, &next);
        shmem_ctx_long_p(ctx, &word, 1, 0);
    }
    if (strcmp(how, "twice") == 0) {
        char *at = shmem_malloc(64);
        shmem_free(at);
        shmem_free(at);
    }
    if (strcmp(how, "sizes") == 0) shmem_malloc(64 + (size_t)me);
    if (strcmp(how, "malloc and align") == 0) me == 0 ? shmem_malloc(4096) : shmem_align(4096, 4096);
    if (strcmp(how, "malloc and calloc") == 0) me == 0 ? shmem_malloc(64) : shmem_calloc(8, 8);
    if (strcmp(how, "realloc of another") == 0) {
        void *two[2] = {shmem_malloc(64), shmem_malloc(64)};
        shmem_realloc(two[me != 0], 128);
    }
    if (strcmp(how, "free of another") == 0) {
        void *two[2] = {shmem_malloc(64), shmem_malloc(64)};
        shmem_free(two[me != 0]);
    }
    if (strcmp(how, "free against malloc") == 0) {
        void *one = shmem_malloc(64);
        if (me == 0) shmem_free(one);
        else shmem_malloc(64);
    }
    if (strcmp(how, "compare") == 0) shmem_wait_until(&word, 9, 0L);
    if (strcmp(how, "signal") == 0) shmem_putmem_signal(&word, &local, 8, (uint64_t *)&word, 1, 7, 0);
    if (strcmp(how, "root") == 0) shmem_broadcastmem(SHMEM_TEAM_WORLD, &word, &word, 8, shmem_n_pes());
    if (strcmp(how, "alltoalls by 0") == 0) shmem_long_alltoalls(SHMEM_TEAM_WORLD, shmem_malloc(64), &(long[4]){0}[0], 0, 1, 2);
    if (strcmp(how, "alltoalls by -1") == 0) {
        static long words[SHMEM_ALLTOALLS_SYNC_SIZE];
        shmem_alltoalls64(shmem_malloc(64), &(long[4]){0}[2], 1, -1, 2, 0, 0, shmem_n_pes(), words);
    }
    const size_t many = ((size_t)1 << 61) + 1;
    if (strcmp(how, "too many") == 0) shmem_long_put(&word, &local, many, 0);
    if (strcmp(how, "too many got") == 0) shmem_get128(&local, &word, many, 0);
    if (strcmp(how, "too many signalled") == 0) shmem_long_put_signal(&word, &local, many, (uint64_t *)&word, 1, SHMEM_SIGNAL_SET, 0);
    if (strcmp(how, "too far apart") == 0) shmem_long_iput(&word, &local, (ptrdiff_t)1 << 60, 1, 17, 0);
    if (strcmp(how, "apart below") == 0) shmem_long_iget(&local, shmem_malloc(64), 1, -1, 2, 0);
    if (strcmp(how, "too many collected") == 0) shmem_long_collect(SHMEM_TEAM_WORLD, &word, &word, many);
    if (strcmp(how, "too much collected") == 0) shmem_long_collect(SHMEM_TEAM_WORLD, &word, &word, (size_t)1 << 60);
    if (strcmp(how, "too many fcollected") == 0) shmem_char_fcollect(SHMEM_TEAM_WORLD, (char *)&word, (char *)&word, (size_t)-1 / 2 + 1);
    if (strcmp(how, "too many exchanged") == 0) shmem_long_alltoalls(SHMEM_TEAM_WORLD, &word, &word, 1, (ptrdiff_t)1 << 60, 1);
    if (strcmp(how, "too many broadcast") == 0) shmem_long_broadcast(SHMEM_TEAM_WORLD, &word, &word, many, 0);
    if (strcmp(how, "too many reduced") == 0) shmem_long_sum_reduce(SHMEM_TEAM_WORLD, &word, &word, many);
    if (strcmp(how, "set") == 0) shmem_barrier(0, 0, shmem_n_pes() + 1, &word);
    static long lock;
    if (strcmp(how, "clear") == 0) shmem_clear_lock(&lock);
    if (strcmp(how, "cleared") == 0 && me == 0) {
        shmem_set_lock(&lock);
        shmem_clear_lock(&lock);
        shmem_clear_lock(&lock);
    }
    if (strcmp(how, "another's") == 0) {
        if (me == 0) shmem_set_lock(&lock);
        shmem_barrier_all();
        if (me == 1) shmem_clear_lock(&lock);
        shmem_barrier_all();
    }
    if (strcmp(how, "again") == 0 && me == 0) {
        shmem_set_lock(&lock);
        shmem_set_lock(&lock);
    }
    if (strcmp(how, "tested") == 0 && me == 0 && shmem_test_lock(&lock) == 0) shmem_set_lock(&lock);
    static long wrong = -1, half = 0x500000000;
    if (strcmp(how, "set before") == 0) shmem_set_lock(&wrong);
    if (strcmp(how, "set to this PE") == 0 && me == 1) {
        static long own = 2;
        shmem_set_lock(&own);
    }
    if (strcmp(how, "set to this PE") == 0) shmem_barrier_all();
    if (strcmp(how, "tested before") == 0) {
        while (shmem_test_lock(&wrong)) {
        }
    }
    if (strcmp(how, "half set") == 0) {
        while (shmem_test_lock(&half)) {
        }
        shmem_clear_lock(&half);
    }
    if (strcmp(how, "from null") == 0) shmem_putmem(&word, none, 8, 1);
    if (strcmp(how, "strided from null") == 0) shmem_long_iput(&word, none, 1, 1, 1, 1);
    if (strcmp(how, "into null") == 0) shmem_getmem(none, &word, 8, 1);
    if (strcmp(how, "signalled from null") == 0) shmem_putmem_signal(&word, none, 8, (uint64_t *)&lock, 1, SHMEM_SIGNAL_SET, 1);
    if (strcmp(how, "collected from null") == 0) shmem_fcollectmem(SHMEM_TEAM_WORLD, shmem_malloc(64), none, 8);
    if (strcmp(how, "exchanged from null") == 0) shmem_alltoallmem(SHMEM_TEAM_WORLD, shmem_malloc(64), none, 8);
    if (strcmp(how, "wait for null") == 0) shmem_long_wait_until(none, SHMEM_CMP_NE, 0);
    if (strcmp(how, "test null") == 0) shmem_long_test(none, SHMEM_CMP_NE, 0);
    if (strcmp(how, "fetched into null") == 0) shmem_long_atomic_fetch_add_nbi(none, &word, 1, 0);
    if (strcmp(how, "context into null") == 0) shmem_ctx_create(0, (shmem_ctx_t *)none);
    if (strcmp(how, "team's context into null") == 0) shmem_team_create_ctx(SHMEM_TEAM_WORLD, 0, (shmem_ctx_t *)none);
    if (strcmp(how, "context's team into null") == 0) shmem_ctx_get_team(SHMEM_CTX_DEFAULT, (shmem_team_t *)none);
    if (strcmp(how, "split into null") == 0) shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1, NULL, 0, (shmem_team_t *)none);
    if (strcmp(how, "column into null") == 0) {
        shmem_team_t row;
        shmem_team_split_2d(SHMEM_TEAM_WORLD, 1, NULL, 0, &row, NULL, 0, (shmem_team_t *)none);
    }
    if (strcmp(how, "config into null") == 0) shmem_team_get_config(SHMEM_TEAM_WORLD, SHMEM_TEAM_NUM_CONTEXTS, (shmem_team_config_t *)none);
    if (strcmp(how, "level into null") == 0) shmem_query_thread((int *)none);
    if (strcmp(how, "indices into null") == 0) shmem_long_test_some(&word, 1, (size_t *)none, NULL, SHMEM_CMP_NE, 0);
    if (strcmp(how, "after") == 0) {
        shmem_finalize();
        shmem_quiet();
    }
    fprintf(stderr, "it went on\n");
    exit(0);
}
