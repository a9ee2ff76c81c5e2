/* A heap without room, by the call in the argument, after invalid alignments: each is reported with its own message. */
#include "check.h"

#define MUCH ((size_t)1 << 30)

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    shmem_init();
    CHECK(shmem_align(48, 100) == NULL && shmemalign(3, 100) == NULL);
    for (int round = 0; round < 2; round++) {
        void *had = shmem_malloc(64), *got = had;
        if (strcmp(how, "malloc") == 0) got = shmem_malloc(MUCH);
        if (strcmp(how, "calloc") == 0) got = shmem_calloc(MUCH / 8, 8);
        if (strcmp(how, "realloc") == 0) got = shmem_realloc(had, MUCH);
        if (strcmp(how, "align") == 0) got = shmem_align(4096, MUCH);
        if (strcmp(how, "shmalloc") == 0) got = shmalloc(MUCH);
        if (strcmp(how, "shmemalign") == 0) got = shmemalign(4096, MUCH);
        if (strcmp(how, "shrealloc") == 0) got = shrealloc(had, MUCH);
        CHECK(got == NULL);
        shmem_free(had);
    }
    shmem_finalize();
    return failures != 0;
}
