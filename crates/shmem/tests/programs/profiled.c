/* A program intercepts a function, and calls it by its other name. */
#include "check.h"
#include <pshmem.h>

static int calls;
static long word;

void shmem_long_put(long *dest, const long *source, size_t nelems, int pe) {
    calls++;
    pshmem_long_put(dest, source, nelems, pe);
}

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    long value = me + 1;
    shmem_put(&word, &value, 1, (me + 1) % n);
    pshmem_barrier_all();
    CHECK(calls == 1 && word == (me + n - 1) % n + 1);
    shmem_finalize();
    return failures != 0;
}
