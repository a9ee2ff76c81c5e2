/* Collectives of teams other than the world: every second PE, all PEs backwards, and rows and columns. */
#include "check.h"

#define LARGE 3000
#define PES 8

/* The value of the PE with an index at a place. */
static long value(int mine, int at) { return mine * 100000L + at; }

static long *from, *to;

static void clear(shmem_team_t team, size_t count) {
    for (size_t at = 0; at < count; at++) to[at] = -1;
    shmem_team_sync(team);
}

static void moved(shmem_team_t team, int count) {
    int size = shmem_team_n_pes(team), mine = shmem_team_my_pe(team);
    for (int at = 0; at < size * count; at++) from[at] = value(mine, at);
    for (int root = 0; root < size; root++) {
        clear(team, count);
        CHECK(shmem_broadcast(team, to, from, count, root) == 0);
        for (int at = 0; at < count; at++) CHECK(to[at] == value(root, at));
        shmem_team_sync(team);
    }
    clear(team, size * count);
    CHECK(shmem_fcollect(team, to, from, count) == 0);
    for (int at = 0; at < size * count; at++) CHECK(to[at] == value(at / count, at % count));
    /* Each index contributes one element more than the index before, and the first none. */
    clear(team, size * (size + count));
    CHECK(shmem_collect(team, to, from, mine ? count + mine : 0) == 0);
    long *next = to;
    for (int of = 1; of < size; of++)
        for (int at = 0; at < count + of; at++) CHECK(*next++ == value(of, at));
    CHECK(*next == -1);
    clear(team, size * count);
    CHECK(shmem_alltoall(team, to, from, count) == 0);
    for (int at = 0; at < size * count; at++) CHECK(to[at] == value(at / count, mine * count + at % count));
    int some = count < 20 ? count : 20;
    clear(team, 2 * size * some);
    CHECK(shmem_alltoalls(team, to, from, 2, 1, some) == 0);
    for (int at = 0; at < size * some; at++) {
        CHECK(to[2 * at] == value(at / some, mine * some + at % some));
        CHECK(to[2 * at + 1] == -1);
    }
    shmem_team_sync(team);
}

static void reduced(shmem_team_t team, int count) {
    int size = shmem_team_n_pes(team), mine = shmem_team_my_pe(team);
    for (int at = 0; at < count; at++) from[at] = (mine + 1) * (at + 1L);
    clear(team, count);
    CHECK(shmem_sum_reduce(team, to, from, count) == 0);
    for (int at = 0; at < count; at++) CHECK(to[at] == size * (size + 1L) / 2 * (at + 1));
    clear(team, count);
    CHECK(shmem_max_reduce(team, to, from, count) == 0);
    for (int at = 0; at < count; at++) CHECK(to[at] == size * (at + 1L));
    clear(team, count);
    CHECK(shmem_min_reduce(team, to, from, count) == 0);
    for (int at = 0; at < count; at++) CHECK(to[at] == at + 1L);
    shmem_team_sync(team);
}

static void use(shmem_team_t team) {
    if (team == SHMEM_TEAM_INVALID) return;
    const int counts[] = {1, 7, LARGE};
    for (int at = 0; at < 3; at++) moved(team, counts[at]), reduced(team, counts[at]);
    /* Parts so long that they are combined in several pieces. */
    reduced(team, 9 * LARGE);
    shmem_team_destroy(team);
}

int main(void) {
    shmem_init();
    int n = shmem_n_pes();
    CHECK(n <= PES);
    from = shmem_malloc(9 * LARGE * sizeof *from);
    to = shmem_malloc(9 * LARGE * sizeof *to);
    shmem_team_t steps, back, row, column;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back) == 0);
    CHECK(shmem_team_split_strided(back, (n - 1) % 2, 2, (n + 1) / 2, NULL, 0, &steps) == 0);
    /* At the same time, the PEs of other teams do the same. */
    use(steps);
    use(back);
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column) == 0);
    use(column);
    use(row);
    shmem_finalize();
    return failures != 0;
}
