/* The functions that the programs share: a check that prints where it failed, and the exit status. */
#ifndef CHECK_H
#define CHECK_H
#include <shmem.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* A test that fails must not leave a program running. */
__attribute__((constructor)) static void end_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

static int failures __attribute__((unused));

#define CHECK(holds)                                                                          \
    do {                                                                                      \
        if (!(holds) && failures++ < 10)                                                      \
            fprintf(stderr, "%s:%d: PE %d: %s\n", __FILE__, __LINE__, shmem_my_pe(), #holds); \
    } while (0)

static inline unsigned char byte_of(int pe, size_t at) { return (unsigned char)((at * 0x9E3779B97F4A7C15ull >> 29) + (unsigned)pe * 37); }

static inline void fill(void *to, size_t len, int pe) {
    for (size_t at = 0; at < len; at++) ((unsigned char *)to)[at] = byte_of(pe, at);
}

static inline int is_filled(const void *of, size_t len, int pe) {
    for (size_t at = 0; at < len; at++)
        if (((const unsigned char *)of)[at] != byte_of(pe, at)) return 0;
    return 1;
}
#endif
