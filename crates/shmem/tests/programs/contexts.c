/* Contexts of the world and of teams: created, used and destroyed more often than the library has contexts. */
#include "check.h"

static long words[64];

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    shmem_ctx_t ctx;
    shmem_team_t team, of;
    for (int round = 0; round < 3000; round++) {
        CHECK(shmem_ctx_create(round % 3 ? SHMEM_CTX_PRIVATE : 0, &ctx) == 0 && ctx != SHMEM_CTX_INVALID);
        if (round % 100 == 0) {
            shmem_long_p(&words[0], 0, me);
            shmem_barrier_all();
            shmem_ctx_long_p(ctx, &words[0], round + me, next);
            shmem_ctx_fence(ctx);
            shmem_ctx_long_atomic_add(ctx, &words[0], 1, next);
            shmem_ctx_quiet(ctx);
            shmem_barrier_all();
            CHECK(words[0] == round + before + 1 && shmem_g(ctx, &words[0], next) == round + me + 1);
            shmem_barrier_all();
        }
        shmem_ctx_destroy(ctx);
    }
    const long options[] = {SHMEM_CTX_SERIALIZED, SHMEM_CTX_PRIVATE, SHMEM_CTX_NOSTORE, SHMEM_CTX_SERIALIZED | SHMEM_CTX_NOSTORE};
    for (int at = 0; at < 4; at++) {
        CHECK(shmem_ctx_create(options[at], &ctx) == 0);
        shmem_ctx_long_p(ctx, &words[at], 50 + at + me, next);
        shmem_ctx_quiet(ctx);
        CHECK(shmem_ctx_long_g(ctx, &words[at], next) == 50 + at + me);
        shmem_ctx_destroy(ctx);
    }
    shmem_barrier_all();
    for (int at = 3; at < 63; at += 10) {
        CHECK(shmem_ctx_create(1L << at, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
        CHECK(shmem_team_create_ctx(SHMEM_TEAM_WORLD, 1L << at, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
    }
    shmem_ctx_t many[500];
    for (int at = 0; at < 500; at++) CHECK(shmem_ctx_create(0, &many[at]) == 0);
    for (int at = 0; at < 64; at++) shmem_put(many[at * 7], &words[at], &(long){at + me}, 1, next);
    for (int at = 0; at < 500; at++) shmem_ctx_destroy(many[at]);
    shmem_barrier_all();
    for (int at = 0; at < 64; at++) CHECK(words[at] == at + before);
    /* PE numbers are relative to the context's team. */
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &team) == 0);
    CHECK(shmem_team_create_ctx(team, 0, &ctx) == 0 && shmem_ctx_get_team(ctx, &of) == 0 && of == team);
    shmem_barrier_all();
    shmem_ctx_long_p(ctx, &words[9], 77, n - 1 - next);
    shmem_ctx_destroy(ctx);
    shmem_barrier_all();
    CHECK(words[9] == 77);
    /* A context can be destroyed after its team. */
    for (int round = 0; round < 20; round++) {
        shmem_team_t gone;
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &gone) == 0);
        CHECK(shmem_team_create_ctx(gone, 0, &ctx) == 0);
        shmem_team_destroy(gone);
        shmem_ctx_destroy(ctx);
    }
    CHECK(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
    CHECK(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &of) == 0 && of == SHMEM_TEAM_WORLD);
    shmem_ctx_destroy(SHMEM_CTX_INVALID);
    shmem_finalize();
    return failures != 0;
}
