/* Loaded before the C library: has a process believe that it is alone on a host, so that all bytes to its peers go over the transport. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gethostname(char *name, size_t size) {
    const char *as = getenv("TRUNKLINE_AS_HOST");
    if (!as || strlen(as) >= size)
        return errno = ENAMETOOLONG, -1;
    strcpy(name, as);
    return 0;
}
