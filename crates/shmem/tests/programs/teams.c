/* Teams: split by rows, columns and strides, used, destroyed, and created again. */
#include "check.h"

static long sum_to, sum_from;

static void use(shmem_team_t team, int start, int stride) {
    int size = shmem_team_n_pes(team), mine = shmem_team_my_pe(team);
    CHECK(start + mine * stride == shmem_my_pe());
    sum_from = mine + 1;
    shmem_team_sync(team);
    shmem_sum_reduce(team, &sum_to, &sum_from, 1);
    CHECK(sum_to == size * (size + 1) / 2);
    shmem_team_sync(team);
}

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    use(SHMEM_TEAM_WORLD, 0, 1);
    CHECK(shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1 && shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1);
    CHECK(shmem_team_n_pes(SHMEM_TEAM_SHARED) >= 1 && shmem_team_my_pe(SHMEM_TEAM_SHARED) >= 0);
    for (int round = 0; round < 100; round++) {
        shmem_team_t steps, back, inner;
        shmem_team_config_t config = {.num_contexts = round}, said = {-1};
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, &config, SHMEM_TEAM_NUM_CONTEXTS, &steps) == 0);
        CHECK((steps != SHMEM_TEAM_INVALID) == (me % 2 == 0));
        if (steps != SHMEM_TEAM_INVALID) {
            use(steps, 0, 2);
            CHECK(shmem_team_get_config(steps, SHMEM_TEAM_NUM_CONTEXTS, &said) == 0 && said.num_contexts == round);
            CHECK(shmem_team_translate_pe(steps, 0, SHMEM_TEAM_WORLD) == 0);
            CHECK(shmem_team_translate_pe(SHMEM_TEAM_WORLD, 1, steps) == -1);
            /* A team of a team. */
            CHECK(shmem_team_split_strided(steps, 0, 1, 1, NULL, 0, &inner) == 0);
            if (inner != SHMEM_TEAM_INVALID) use(inner, 0, 2);
            shmem_team_destroy(inner);
        }
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back) == 0);
        use(back, n - 1, -1);
        CHECK(shmem_team_translate_pe(back, 0, SHMEM_TEAM_WORLD) == n - 1);
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n + 1, NULL, 0, &inner) != 0);
        CHECK(inner == SHMEM_TEAM_INVALID);
        shmem_team_destroy(back);
        shmem_team_destroy(steps);
    }
    shmem_team_t row, column;
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column) == 0);
    use(row, me / 2 * 2, 1);
    use(column, me % 2, 2);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
    /* The largest number of teams; the next one fails. */
    shmem_team_t many[100];
    int made = 0;
    while (made < 100 && shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &many[made]) == 0) made++;
    CHECK(made == 62);
    use(many[61], 0, 1);
    /* Rows use one slot together, and columns another. With only one free slot, the split uses none. */
    shmem_team_destroy(many[61]);
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 1, NULL, 0, &row, NULL, 0, &column) != 0);
    CHECK(row == SHMEM_TEAM_INVALID && column == SHMEM_TEAM_INVALID);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &many[61]) == 0);
    for (int at = 58; at < made; at++) shmem_team_destroy(many[at]);
    made = 58;
    for (int width = 1; width <= 2 * n + 1; width++) {
        CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, width, NULL, 0, &row, NULL, 0, &column) == 0);
        int of = width < n ? width : n;
        use(row, me / of * of, 1);
        use(column, me % of, of);
        CHECK(shmem_team_n_pes(column) == (n - me % of + of - 1) / of);
        shmem_team_destroy(row);
        shmem_team_destroy(column);
    }
    for (int at = 0; at < made; at++) shmem_team_destroy(many[at]);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &row) == 0);
    use(row, 0, 1);
    shmem_finalize();
    return failures != 0;
}
