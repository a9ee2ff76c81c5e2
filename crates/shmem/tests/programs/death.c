/* PE 1 dies silently in the call that the argument names: before the others enter it, or during it. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define MUCH 200000
static long word, lock, words[4];
static uint64_t flag;
static char data[MUCH], more[MUCH * 4];
static size_t len = 8;

static void *kills(void *none) {
    usleep(100000);
    kill(getpid(), SIGKILL);
    return none;
}

/* Mapped memory can be read and written after its PE has died. */
static void meet_the_mapped(void) {
    if (shmem_ptr(data, 1)) shmem_barrier_all();
}

static void barrier(void) { shmem_barrier_all(); }
static void waits(void) { shmem_wait_until(&word, SHMEM_CMP_NE, 0L); }
static void waits_all(void) { shmem_wait_until_all(words, 4, NULL, SHMEM_CMP_NE, 0L); }
static void waits_any(void) { shmem_wait_until_any(words, 4, NULL, SHMEM_CMP_NE, 0L); }
static void waits_some(void) {
    size_t found[4];
    shmem_wait_until_some(words, 4, found, NULL, SHMEM_CMP_NE, 0L);
}
static void waits_signal(void) { shmem_signal_wait_until(&flag, SHMEM_CMP_NE, 0); }
static void tests(void) {
    while (!shmem_test(&word, SHMEM_CMP_NE, 0L)) {
    }
}
static void tests_any(void) {
    while (shmem_test_any(words, 4, NULL, SHMEM_CMP_NE, 0L) == SIZE_MAX) usleep(100);
}
static void locks(void) { shmem_set_lock(&lock); }
static void tests_lock(void) {
    while (shmem_test_lock(&lock)) {
    }
}
static void finalize(void) { shmem_finalize(); }
static void allocates(void) { shmem_malloc(100); }

static void put(void) {
    static char from[MUCH];
    shmem_putmem(data, from, MUCH, 1);
    shmem_quiet();
    meet_the_mapped();
}
static void quiet(void) {
    static char from[MUCH];
    for (int at = 0; at < 4; at++) shmem_putmem_nbi(data, from, MUCH, 1);
    shmem_quiet();
    meet_the_mapped();
}
static void get(void) {
    char into[1000];
    shmem_getmem(into, data, sizeof into, 1);
    shmem_getmem(more, data, MUCH, 1);
    meet_the_mapped();
}
static void fetch(void) {
    shmem_atomic_fetch_inc(&word, 1);
    meet_the_mapped();
}

static void reduce(void) {
    static long to[9000], from[9000];
    shmem_sum_reduce(SHMEM_TEAM_WORLD, to, from, 9000);
}
/* Short and long data use different algorithms. */
static void broadcast(void) {
    len = len == 8 ? MUCH / 2 : 8;
    for (int root = 0; root < shmem_n_pes(); root++) shmem_broadcastmem(SHMEM_TEAM_WORLD, more, data, len, root);
}
static void collect(void) { shmem_collectmem(SHMEM_TEAM_WORLD, more, data, 8 + (size_t)shmem_my_pe() * 10000); }
static void fcollect(void) { shmem_fcollectmem(SHMEM_TEAM_WORLD, more, data, MUCH / 4); }
static void alltoall(void) { shmem_alltoallmem(SHMEM_TEAM_WORLD, more, data, MUCH / 4); }
static void split(void) {
    shmem_team_t team;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, shmem_n_pes(), NULL, 0, &team);
    shmem_team_destroy(team);
}
static void split_2d(void) {
    shmem_team_t row, column;
    shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
}

static const struct {
    const char *name;
    void (*does)(void);
    /* PE 1 takes part, and dies during the call; in other states it is dead already. */
    int together;
} ways[] = {
    {"barrier", barrier, 0},      {"wait", waits, 0},         {"wait all", waits_all, 0}, {"wait any", waits_any, 0},
    {"wait some", waits_some, 0}, {"signal", waits_signal, 0}, {"test", tests, 0},         {"test any", tests_any, 0},
    {"lock", locks, 0},           {"test lock", tests_lock, 0}, {"finalize", finalize, 0}, {"malloc", allocates, 0},
    {"put", put, 0},              {"quiet", quiet, 0},         {"get", get, 0},           {"fetch", fetch, 0},
    {"reduce", reduce, 1},        {"broadcast", broadcast, 1}, {"collect", collect, 1},   {"fcollect", fcollect, 1},
    {"alltoall", alltoall, 1},    {"split", split, 1},         {"split 2d", split_2d, 1},
};

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    shmem_init();
    int me = shmem_my_pe();
    if (strstr(how, "lock") && me == 1) shmem_set_lock(&lock);
    shmem_barrier_all();
    for (size_t at = 0; at < sizeof ways / sizeof *ways; at++) {
        if (strcmp(how, ways[at].name) != 0) continue;
        pthread_t killer;
        if (me == 1) {
            pthread_create(&killer, NULL, kills, NULL);
            if (!ways[at].together) pause();
        }
        int again = ways[at].together || shmem_ptr(data, 1) == NULL;
        do ways[at].does();
        while (again);
    }
    fprintf(stderr, "it went on\n");
    _exit(9);
}
