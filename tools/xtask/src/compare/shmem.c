/* Measures an OpenSHMEM library with functions of version 1.4. Each line is a name and microseconds, or MB/s for streams. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 7
#define STREAM (1 << 20)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static long static_word[8], static_flag[8];
static char static_to[STREAM], static_from[STREAM];
static long words[SHMEM_REDUCE_SYNC_SIZE], barrier_words[SHMEM_BARRIER_SYNC_SIZE];
static int me, n;

static int order(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void say(const char *name, double *times) {
    qsort(times, ROUNDS, sizeof *times, order);
    if (me == 0) printf("%s %.5f\n", name, times[ROUNDS / 2]);
}

/* The number of repetitions for an operation of this duration, within bounds. */
static long often(double once) {
    double count = 0.02 / (once > 1e-9 ? once : 1e-9);
    return count > 200000 ? 200000 : count < 20 ? 20 : (long)count;
}

#define MEASURE(name, what)                                          \
    do {                                                             \
        double times[ROUNDS];                                        \
        shmem_barrier_all();                                         \
        if (me == 0) {                                               \
            double start = now();                                    \
            for (long at = 0; at < 20; at++) { what; }               \
            long count = often((now() - start) / 20);                \
            for (int round = 0; round < ROUNDS; round++) {           \
                start = now();                                       \
                for (long at = 0; at < count; at++) { what; }        \
                times[round] = (now() - start) / (double)count * 1e6; \
            }                                                        \
            say(name, times);                                        \
        }                                                            \
        shmem_barrier_all();                                         \
    } while (0)

static void words_of(const char *where, long *word, long *flag) {
    char name[64];
    snprintf(name, sizeof name, "put+quiet,%s", where);
    MEASURE(name, shmem_long_p(word, at, 1); shmem_quiet());
    snprintf(name, sizeof name, "get,%s", where);
    volatile long got;
    MEASURE(name, got = shmem_long_g(word, 1));
    (void)got;
    snprintf(name, sizeof name, "fetch-add,%s", where);
    MEASURE(name, got = shmem_long_atomic_fetch_add(word, 1, 1));
    snprintf(name, sizeof name, "ping-pong,%s", where);
    double times[ROUNDS];
    *flag = 0;
    shmem_barrier_all();
    long turn = 0;
    for (int round = 0; round < ROUNDS && me < 2; round++) {
        long count = 2000;
        double start = now();
        for (long at = 0; at < count; at++) {
            turn++;
            if (me == 0) {
                shmem_long_p(flag, turn, 1);
                shmem_long_wait_until(flag, SHMEM_CMP_GE, turn);
            } else {
                shmem_long_wait_until(flag, SHMEM_CMP_GE, turn);
                shmem_long_p(flag, turn, 0);
            }
        }
        times[round] = (now() - start) / (double)count / 2 * 1e6;
    }
    if (me < 2) say(name, times);
    shmem_barrier_all();
}

static void streams(const char *where, char *to, char *from) {
    for (long len = 64 << 10; len <= STREAM; len *= 16) {
        for (int gets = 0; gets < 2; gets++) {
            double times[ROUNDS];
            long count = (64 << 20) / len;
            shmem_barrier_all();
            for (int round = 0; round < ROUNDS && me == 0; round++) {
                double start = now();
                for (long at = 0; at < count; at++) {
                    if (gets)
                        shmem_getmem_nbi(to, from, (size_t)len, 1);
                    else
                        shmem_putmem_nbi(to, from, (size_t)len, 1);
                }
                shmem_quiet();
                times[round] = (double)(len * count) / (now() - start) / 1e6;
            }
            char name[64];
            snprintf(name, sizeof name, "%s stream,%ld KiB,%s", gets ? "get" : "put", len >> 10, where);
            if (me == 0) say(name, times);
            shmem_barrier_all();
        }
    }
}

static void together(double *to, double *from, double *work) {
    double times[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        shmem_barrier_all();
        double start = now();
        for (int at = 0; at < 1000; at++) shmem_barrier_all();
        times[round] = (now() - start) / 1000 * 1e6;
    }
    say("barrier,", times);
    /* 8 B to 256 KiB, and 1 MiB. */
    for (int count = 1; count <= STREAM / 8; count *= count < STREAM / 32 ? 8 : 4) {
        int often = count < 1000 ? 300 : count < 20000 ? 60 : 12;
        for (int round = 0; round < ROUNDS; round++) {
            shmem_barrier_all();
            double start = now();
            for (int at = 0; at < often; at++) {
                shmem_double_sum_to_all(to, from, count, 0, 0, n, work, words);
                shmem_barrier_all();
            }
            times[round] = (now() - start) / often * 1e6;
        }
        char name[64];
        snprintf(name, sizeof name, "sum and barrier,%d B", count * 8);
        say(name, times);
    }
}

int main(void) {
    for (size_t at = 0; at < sizeof words / sizeof *words; at++) words[at] = SHMEM_SYNC_VALUE;
    for (size_t at = 0; at < sizeof barrier_words / sizeof *barrier_words; at++) barrier_words[at] = SHMEM_SYNC_VALUE;
    shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();
    long *heap = shmem_malloc(1024);
    char *to = shmem_malloc(STREAM), *from = shmem_malloc(STREAM);
    double *work = shmem_malloc(STREAM + SHMEM_REDUCE_MIN_WRKDATA_SIZE * 8);
    memset(from, 1, STREAM);
    memset(to, 1, STREAM);
    if (n == 2) {
        words_of("heap", heap, heap + 32);
        words_of("statics", static_word, static_flag);
        streams("heap", to, from);
        memset(static_from, 1, STREAM);
        memset(static_to, 1, STREAM);
        streams("statics", static_to, static_from);
    }
    memset(from, 0, STREAM);
    together((double *)to, (double *)from, work);
    shmem_barrier_all();
    /* Some libraries crash after this. */
    if (me == 0) {
        puts("end");
        fflush(stdout);
    }
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
