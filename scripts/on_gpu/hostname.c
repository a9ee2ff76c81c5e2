/* Loaded before the C library: has a process believe that it is alone on a host, so that all bytes to its peers go over the transport.
   Shared memory carries the host's name, too: NVSHMEM's heap has one name on each host, and its PEs would otherwise replace each other's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

int gethostname(char *name, size_t size) {
    const char *as = getenv("TRUNKLINE_AS_HOST");
    if (!as || strlen(as) >= size)
        return errno = ENAMETOOLONG, -1;
    strcpy(name, as);
    return 0;
}

/* Writes "/HOST.NAME" in place of "/NAME". */
static int with_host(char *to, const char *name) {
    const char *as = getenv("TRUNKLINE_AS_HOST");
    int length = snprintf(to, NAME_MAX, "/%s.%s", as ? as : "", name[0] == '/' ? name + 1 : name);
    return length < NAME_MAX ? 0 : (errno = ENAMETOOLONG, -1);
}

int shm_open(const char *name, int flags, mode_t mode) {
    int (*next)(const char *, int, mode_t) = (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "shm_open");
    char own[NAME_MAX];
    return with_host(own, name) ? -1 : next(own, flags, mode);
}

int shm_unlink(const char *name) {
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "shm_unlink");
    char own[NAME_MAX];
    return with_host(own, name) ? -1 : next(own);
}
