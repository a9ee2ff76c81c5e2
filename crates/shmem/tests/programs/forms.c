/* Puts and gets in every form: each type and each size, blocking and not, with strides, with signals, and of a context
   whose team counts PEs backwards. */
#include "check.h"

#define N 24
#define ROOM (N * 16)

static int me, n, next, before;
static shmem_ctx_t ctx;
/* The next PE in that context's team. */
static int ctx_next;

/* The source and target of puts to the next PE, and the target of gets, which read the put elements back. */
static unsigned char to[ROOM * 2] __attribute__((aligned(16))), from[ROOM * 2] __attribute__((aligned(16)));
static uint64_t flag;
static uint64_t signalled;

static void begin(int round) {
    memset(to, 0xee, sizeof to);
    fill(from, sizeof from, me + round);
    shmem_barrier_all();
}

/* Checks the received elements: `count` of them at that distance, and no changed bytes between them. */
static int came(const unsigned char *at, size_t element, size_t count, size_t there, size_t here, int pe) {
    for (size_t i = 0; i < count; i++)
        for (size_t byte = 0; byte < element * there && (i + 1 < count || byte < element); byte++) {
            unsigned char want = byte < element ? byte_of(pe, i * here * element + byte) : 0xee;
            if (at[i * there * element + byte] != want) return 0;
        }
    return at[((count - 1) * there + 1) * element] == 0xee;
}

/* `PUT(to, from)` of N elements, which the next PE has after a barrier; then `GET(back, to)` of the same elements. */
#define WHOLE(size, PUT, GET)                                     \
    do {                                                          \
        begin(__LINE__);                                          \
        PUT;                                                      \
        shmem_barrier_all();                                      \
        CHECK(came(to, size, N, 1, 1, before + __LINE__));        \
        memset(from, 0xee, sizeof from);                          \
        GET;                                                      \
        CHECK(came(from, size, N, 1, 1, me + __LINE__));          \
        shmem_barrier_all();                                      \
    } while (0)

#define SIGNALLED(size, PUT)                                                                       \
    do {                                                                                           \
        begin(__LINE__);                                                                           \
        signalled++;                                                                               \
        PUT;                                                                                       \
        CHECK(shmem_signal_wait_until(&flag, SHMEM_CMP_GE, signalled) == signalled);               \
        CHECK(came(to, size, N, 1, 1, before + __LINE__));                                         \
        shmem_barrier_all();                                                                       \
    } while (0)

/* 7 elements: from every second one here to every third one there, and back. */
#define APART(size, PUT, GET)                                     \
    do {                                                          \
        begin(__LINE__);                                          \
        PUT;                                                      \
        shmem_barrier_all();                                      \
        CHECK(came(to, size, 7, 3, 2, before + __LINE__));        \
        memset(from, 0xee, sizeof from);                          \
        GET;                                                      \
        for (size_t i = 0; i < 7; i++)                            \
            for (size_t b = 0; b < 2 * (size); b++)               \
                CHECK(from[i * 2 * (size) + b] == (b < (size) ? byte_of(me + __LINE__, i * 2 * (size) + b) : 0xee)); \
        shmem_barrier_all();                                      \
    } while (0)

/* The name is the part before the verb and, for sizes, the part after it. */
#define FORMS(type, pre, post, count, size)                                                                              \
    do {                                                                                                                 \
        type *dest = (type *)to, *source = (type *)from;                                                                 \
        WHOLE(size, shmem_##pre##put##post(dest, source, count, next), shmem_##pre##get##post(source, dest, count, next)); \
        WHOLE(size, shmem_ctx_##pre##put##post(ctx, dest, source, count, ctx_next);                                      \
              shmem_ctx_quiet(ctx), shmem_ctx_##pre##get##post(ctx, source, dest, count, ctx_next));                     \
        WHOLE(size, shmem_##pre##put##post##_nbi(dest, source, count, next),                                             \
              shmem_##pre##get##post##_nbi(source, dest, count, next);                                                   \
              shmem_quiet());                                                                                            \
        WHOLE(size, shmem_ctx_##pre##put##post##_nbi(ctx, dest, source, count, ctx_next);                                \
              shmem_ctx_quiet(ctx), shmem_ctx_##pre##get##post##_nbi(ctx, source, dest, count, ctx_next);                \
              shmem_ctx_quiet(ctx));                                                                                     \
        SIGNALLED(size, shmem_##pre##put##post##_signal(dest, source, count, &flag, signalled, SHMEM_SIGNAL_SET, next)); \
        SIGNALLED(size, shmem_ctx_##pre##put##post##_signal(ctx, dest, source, count, &flag, 1, SHMEM_SIGNAL_ADD, ctx_next)); \
        SIGNALLED(size, shmem_##pre##put##post##_signal_nbi(dest, source, count, &flag, 1, SHMEM_SIGNAL_ADD, next));     \
        SIGNALLED(size, shmem_ctx_##pre##put##post##_signal_nbi(ctx, dest, source, count, &flag, signalled, SHMEM_SIGNAL_SET, ctx_next)); \
    } while (0)

#define STRIDES(type, pre, post, size)                                                                         \
    do {                                                                                                       \
        type *dest = (type *)to, *source = (type *)from;                                                       \
        APART(size, shmem_##pre##iput##post(dest, source, 3, 2, 7, next), shmem_##pre##iget##post(source, dest, 2, 3, 7, next)); \
        APART(size, shmem_ctx_##pre##iput##post(ctx, dest, source, 3, 2, 7, ctx_next);                         \
              shmem_ctx_quiet(ctx), shmem_ctx_##pre##iget##post(ctx, source, dest, 2, 3, 7, ctx_next));        \
    } while (0)

/* One element. The next PE has the value that this PE put. */
#define SINGLE(name, type)                                                                       \
    do {                                                                                         \
        type *dest = (type *)to;                                                                 \
        memset(to, 0, sizeof to);                                                                \
        shmem_barrier_all();                                                                     \
        shmem_##name##_p(dest, (type)(me + 3), next);                                            \
        shmem_ctx_##name##_p(ctx, dest + 2, (type)(me + 5), ctx_next);                           \
        shmem_ctx_quiet(ctx);                                                                    \
        shmem_barrier_all();                                                                     \
        CHECK(dest[0] == (type)(before + 3) && dest[1] == 0 && dest[2] == (type)(before + 5));   \
        CHECK(shmem_##name##_g(dest, next) == (type)(me + 3));                                   \
        CHECK(shmem_ctx_##name##_g(ctx, dest + 2, ctx_next) == (type)(me + 5));                  \
        shmem_barrier_all();                                                                     \
    } while (0)

#define TYPED(name, type)                               \
    static void of_##name(void) {                       \
        FORMS(type, name##_, , N, sizeof(type));        \
        STRIDES(type, name##_, , sizeof(type));         \
        SINGLE(name, type);                             \
    }

#define SIZED(bits)                                     \
    static void of_##bits(void) {                       \
        FORMS(void, , bits, N, bits / 8);               \
        STRIDES(void, , bits, bits / 8);                \
    }

#define TYPES(make)                                                                                                   \
    make(float, float) make(double, double) make(longdouble, long double) make(char, char) make(schar, signed char)  \
    make(short, short) make(int, int) make(long, long) make(longlong, long long) make(uchar, unsigned char)           \
    make(ushort, unsigned short) make(uint, unsigned int) make(ulong, unsigned long)                                  \
    make(ulonglong, unsigned long long) make(int8, int8_t) make(int16, int16_t) make(int32, int32_t)                  \
    make(int64, int64_t) make(uint8, uint8_t) make(uint16, uint16_t) make(uint32, uint32_t) make(uint64, uint64_t)    \
    make(size, size_t) make(ptrdiff, ptrdiff_t)

TYPES(TYPED)
SIZED(8)
SIZED(16)
SIZED(32)
SIZED(64)
SIZED(128)

static void of_mem(void) { FORMS(void, , mem, N, 1); }

#define CALL(name, type) of_##name();

int main(void) {
    shmem_init();
    me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, before = (me + n - 1) % n;
    shmem_team_t team;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &team) == 0);
    CHECK(shmem_team_create_ctx(team, 0, &ctx) == 0);
    ctx_next = n - 1 - next;
    TYPES(CALL)
    of_8();
    of_16();
    of_32();
    of_64();
    of_128();
    of_mem();
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return failures != 0;
}
