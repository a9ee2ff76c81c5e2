/* Puts and gets: sizes from 0 to more than any piece, every kind of memory, blocking and not, contiguous and strided. */
#include "check.h"

#define MOST (3 << 20)
static unsigned char statics[MOST];
static long double precise[8];

static const size_t SIZES[] = {0, 1, 3, 8, 63, 64, 65, 200, 1024, 1025, 4097, 65535, 65536, 65537, 1 << 20, MOST - 6};

static void whole(unsigned char *to, unsigned char *from, int next, int before, int nbi) {
    for (size_t at = 0; at < sizeof SIZES / sizeof *SIZES; at++) {
        size_t len = SIZES[at];
        memset(to, 0, MOST);
        fill(from, len, shmem_my_pe());
        shmem_barrier_all();
        if (nbi) {
            shmem_putmem_nbi(to + 5, from, len, next);
            shmem_quiet();
        } else {
            shmem_putmem(to + 5, from, len, next);
        }
        memset(from, 255, len);
        shmem_barrier_all();
        CHECK(is_filled(to + 5, len, before) && to[4] == 0 && to[5 + len] == 0);
        memset(from, 0, len + 1);
        if (nbi) {
            shmem_getmem_nbi(from, to + 5, len, next);
            shmem_quiet();
        } else {
            shmem_getmem(from, to + 5, len, next);
        }
        CHECK(is_filled(from, len, shmem_my_pe()) && from[len] == 0);
        shmem_barrier_all();
    }
}

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    unsigned char *heap = shmem_malloc(MOST), *other = shmem_malloc(MOST), *plain = malloc(MOST);
    for (int nbi = 0; nbi < 2; nbi++) {
        whole(heap, other, next, before, nbi);
        whole(statics, heap, next, before, nbi);
        whole(heap, plain, next, before, nbi);
        whole(other, statics, next, before, nbi);
    }
    /* Many small puts, unordered, and complete at the barrier. */
    uint64_t *words = (uint64_t *)heap;
    memset(heap, 0, MOST);
    shmem_barrier_all();
    for (uint64_t at = 0; at < 5000; at++) shmem_p(&words[at * n + me], at * 3 + me, next);
    shmem_barrier_all();
    for (uint64_t at = 0; at < 5000; at++) {
        CHECK(words[at * n + before] == at * 3 + before);
        if (at % 97 == 0) CHECK(shmem_g(&words[at * n + me], next) == at * 3 + me);
    }
    for (int at = 0; at < 8; at++) precise[at] = 0;
    shmem_barrier_all();
    shmem_p(&precise[3], (long double)me + 1 / 3.0L, next);
    shmem_barrier_all();
    CHECK(precise[3] == before + 1 / 3.0L && shmem_longdouble_g(&precise[3], me) == precise[3]);
    /* Strided: from every second element here to every third one there, and back. */
    short *there = (short *)statics, here[40], back[40] = {0};
    memset(there, 0, 400);
    for (int at = 0; at < 40; at++) here[at] = (short)(me * 100 + at);
    shmem_barrier_all();
    shmem_iput(there, here, 3, 2, 20, next);
    shmem_barrier_all();
    for (int at = 0; at < 60; at++) CHECK(there[at] == (at % 3 ? 0 : before * 100 + at / 3 * 2));
    shmem_iget(back, there, 2, 3, 20, next);
    for (int at = 0; at < 40; at++) CHECK(back[at] == (at % 2 ? 0 : here[at]));
    /* Backwards, at either end. */
    shmem_barrier_all();
    memset(there, 0, 400);
    memset(back, 0, sizeof back);
    shmem_barrier_all();
    shmem_iput(there + 57, here, -3, 2, 20, next);
    shmem_barrier_all();
    for (int at = 0; at < 60; at++) CHECK(there[at] == (at % 3 ? 0 : before * 100 + (19 - at / 3) * 2));
    shmem_barrier_all();
    shmem_iput(there, here + 38, 3, -2, 20, next);
    shmem_barrier_all();
    for (int at = 0; at < 60; at++) CHECK(there[at] == (at % 3 ? 0 : before * 100 + 38 - at / 3 * 2));
    shmem_iget(back + 38, there, -2, 3, 20, next);
    for (int at = 0; at < 40; at++) CHECK(back[at] == (at % 2 ? 0 : me * 100 + at));
    shmem_iget(back, there + 57, 2, -3, 20, next);
    for (int at = 0; at < 40; at++) CHECK(back[at] == (at % 2 ? 0 : me * 100 + at));
    shmem_iget32((void *)plain, statics, 1, 1, 0, next);
    shmem_finalize();
    return failures != 0;
}
