/* The symmetric heap: sizes, alignment, kept and reused memory, and exhaustion. */
#include "check.h"

int main(void) {
    shmem_init();
    CHECK(shmem_malloc(0) == NULL && shmem_calloc(0, 4) == NULL && shmem_align(64, 0) == NULL);
    char *first = shmem_malloc(1000);
    fill(first, 1000, 1);
    char *zeros = shmem_calloc(300, 7);
    for (int at = 0; at < 2100; at++) CHECK(zeros[at] == 0);
    for (size_t align = 8; align <= (8 << 20); align *= 4) {
        char *aligned = shmem_align(align, 100);
        CHECK(aligned && (uintptr_t)aligned % align == 0);
        memset(aligned, 1, 100);
        shmem_free(aligned);
    }
    CHECK(shmem_align(48, 100) == NULL);
    char *more = shmem_realloc(first, 100000);
    CHECK(is_filled(more, 1000, 1));
    more = shmem_realloc(more, 10);
    CHECK(is_filled(more, 10, 1) && shmem_realloc(more, 0) == NULL);
    shmem_free(zeros);
    shmem_free(NULL);
    /* The whole heap can be allocated again in one piece, and not more. */
    CHECK(shmem_malloc(64 << 20) == NULL);
    for (int round = 0; round < 50; round++) {
        char *all = shmem_malloc((32 << 20) - 4096);
        CHECK(all != NULL);
        all[0] = all[(32 << 20) - 4097] = 1;
        shmem_free(all);
    }
    /* Reused memory is zero. */
    char *used = shmem_malloc(100000);
    memset(used, 0xff, 100000);
    shmem_free(used);
    zeros = shmem_calloc(1000, 100);
    CHECK(zeros == used);
    for (int at = 0; at < 100000; at++) CHECK(zeros[at] == 0);
    shmem_free(zeros);
    /* A failed reallocation keeps the old allocation. Shrinking needs no room, and frees the bytes after it. */
    char *most = shmem_malloc(20 << 20);
    fill(most, 20 << 20, 3);
    CHECK(shmem_realloc(most, 30 << 20) == NULL && is_filled(most, 20 << 20, 3));
    CHECK(shmem_realloc(most, 16 << 20) == most && is_filled(most, 16 << 20, 3));
    char *behind = shmem_malloc(15 << 20);
    CHECK(behind != NULL && (behind >= most + (16 << 20) || behind < most));
    if (behind) memset(behind, 1, 15 << 20);
    CHECK(is_filled(most, 16 << 20, 3));
    shmem_free(behind);
    CHECK(shmem_realloc(most, 1) == most);
    shmem_free(most);
    most = shmem_malloc((32 << 20) - 4096);
    CHECK(most != NULL);
    shmem_free(most);
    char *hinted = shmem_malloc_with_hints(16, SHMEM_MALLOC_ATOMICS_REMOTE);
    CHECK(hinted != NULL);
    char *old = shmalloc(16);
    old = shrealloc(old, 32);
    shfree(old);
    shmem_finalize();
    return failures != 0;
}
