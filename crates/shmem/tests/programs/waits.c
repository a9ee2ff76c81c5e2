/* Waits for one, all, any and some of several words, and tests of them. */
#include "check.h"

#define N 8
static int words[N], status[N];
static long one;

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    size_t indices[N], found;
    int values[N];
    CHECK(!shmem_test(&one, SHMEM_CMP_NE, 0L));
    shmem_barrier_all();
    shmem_p(&one, 5L, next);
    shmem_wait_until(&one, SHMEM_CMP_EQ, 5L);
    CHECK(shmem_test(&one, SHMEM_CMP_GT, 4L) && !shmem_test(&one, SHMEM_CMP_LT, 5L) && shmem_test(&one, SHMEM_CMP_LE, 5L));
    CHECK(!shmem_test_all(words, N, status, SHMEM_CMP_NE, 0) && shmem_test_any(words, N, status, SHMEM_CMP_NE, 0) == SIZE_MAX);
    CHECK(shmem_test_some(words, N, indices, status, SHMEM_CMP_NE, 0) == 0);
    shmem_barrier_all();
    for (int at = 0; at < N; at++) shmem_atomic_set(&words[at], at + 1, next);
    for (int left = N; left > 0;) {
        if (left % 2) {
            found = shmem_wait_until_any(words, N, status, SHMEM_CMP_NE, 0);
            CHECK(found < N && status[found] == 0 && words[found] == (int)found + 1);
            status[found] = 1;
            left--;
        } else {
            size_t count = shmem_wait_until_some(words, N, indices, status, SHMEM_CMP_NE, 0);
            CHECK(count > 0 && (int)count <= left);
            for (size_t at = 0; at < count; at++) status[indices[at]] = 1;
            left -= (int)count;
        }
    }
    /* All words are excluded now. */
    CHECK(shmem_wait_until_any(words, N, status, SHMEM_CMP_EQ, 0) == SIZE_MAX);
    CHECK(shmem_wait_until_some(words, N, indices, status, SHMEM_CMP_EQ, 0) == 0);
    shmem_wait_until_all(words, N, NULL, SHMEM_CMP_NE, 0);
    for (int at = 0; at < N; at++) values[at] = at + 1;
    shmem_wait_until_all_vector(words, N, NULL, SHMEM_CMP_EQ, values);
    values[3] = 99;
    CHECK(!shmem_test_all_vector(words, N, NULL, SHMEM_CMP_EQ, values));
    CHECK(shmem_test_any_vector(words, N, NULL, SHMEM_CMP_NE, values) == 3);
    CHECK(shmem_test_some_vector(words, N, indices, NULL, SHMEM_CMP_EQ, values) == N - 1);
    /* Each word is compared with its own value. Only included words count: the excluded ones have their values already. */
    shmem_barrier_all();
    for (int at = 0; at < N; at++) status[at] = at % 4 != 2, values[at] = at % 4 == 2 ? 200 + at : words[at];
    CHECK(shmem_test_any_vector(words, N, status, SHMEM_CMP_EQ, values) == SIZE_MAX);
    CHECK(shmem_test_some_vector(words, N, indices, status, SHMEM_CMP_EQ, values) == 0);
    CHECK(!shmem_test_all_vector(words, N, status, SHMEM_CMP_EQ, values));
    shmem_barrier_all();
    shmem_atomic_set(&words[6], 206, next);
    CHECK(shmem_wait_until_any_vector(words, N, status, SHMEM_CMP_EQ, values) == 6 && words[6] == 206);
    CHECK(shmem_wait_until_some_vector(words, N, indices, status, SHMEM_CMP_EQ, values) == 1 && indices[0] == 6);
    shmem_barrier_all();
    shmem_atomic_set(&words[2], 202, next);
    shmem_wait_until_all_vector(words, N, status, SHMEM_CMP_EQ, values);
    CHECK(words[2] == 202 && words[6] == 206);
    status[2] = status[6] = 1;
    CHECK(shmem_wait_until_any_vector(words, N, status, SHMEM_CMP_EQ, values) == SIZE_MAX);
    CHECK(shmem_wait_until_some_vector(words, N, indices, status, SHMEM_CMP_EQ, values) == 0);
    shmem_wait_until_all_vector(words, N, status, SHMEM_CMP_NE, values);
    /* Each word becomes true in turn. */
    int seen[N] = {0}, different = 0;
    for (int at = 0; at < 4 * N; at++) {
        found = shmem_test_any(words, N, NULL, SHMEM_CMP_NE, 0);
        if (found < N && seen[found]++ == 0) different++;
    }
    CHECK(different == N);
    shmem_finalize();
    return failures != 0;
}
