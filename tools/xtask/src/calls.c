/* Calls of OpenSHMEM by one PE on its own memory, for `cargo xtask budget`. Arguments: a file and bytes (both not used),
   the call, and the number of calls. */
#include <shmem.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **args) {
    if (count != 5) return 2;
    const char *call = args[2];
    long often = atol(args[4]), sum = 0;
    shmem_init();
    int me = shmem_my_pe();
    long *word = shmem_calloc(2, sizeof *word);
    if (!strcmp(call, "shmem_p"))
        for (long at = 0; at < often; at++) shmem_long_p(word, at, me);
    else if (!strcmp(call, "shmem_g"))
        for (long at = 0; at < often; at++) sum += shmem_long_g(word, me);
    else if (!strcmp(call, "shmem_put"))
        for (long at = 0; at < often; at++) shmem_long_put(word, &at, 1, me);
    else if (!strcmp(call, "shmem_fetch_add"))
        for (long at = 0; at < often; at++) sum += shmem_long_atomic_fetch_add(word, 1, me);
    else if (!strcmp(call, "shmem_wait_until"))
        for (long at = 0; at < often; at++) shmem_long_wait_until(word, SHMEM_CMP_GE, 0);
    else if (!strcmp(call, "shmem_quiet"))
        for (long at = 0; at < often; at++) shmem_quiet();
    else
        return 2;
    shmem_finalize();
    return sum < 0;
}
