// The device of stub.c as kernels see it; they run as threads of a separate process. An atomic that changes any memory
// but the device's own ends that process. Included before the kernels, here and by
// crates/trunkline/tests/api/gpu_kernels.cpp.
#ifndef TRUNKLINE_TESTS_PLAYED_H
#define TRUNKLINE_TESTS_PLAYED_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long long start, bytes;

static void changes(const void *word) {
    if ((unsigned long long)word - start < bytes) return;
    fprintf(stderr, "an atomic of the device changes %p, which is the host's\n", word);
    abort();
}

#define TRUNKLINE_PAUSE() sched_yield()
#define TRUNKLINE_CHANGES(word) changes(word)

extern "C" void stub_window(unsigned long long at, unsigned long long size) { start = at, bytes = size; }

#endif
