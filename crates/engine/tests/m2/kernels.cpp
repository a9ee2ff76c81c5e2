// The kernels, for the device of stub.c: threads of a process of its own. An atomic that changes anything but the device's own memory ends it.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long long start, bytes;

static void changes(const void *word) {
    if ((unsigned long long)word - start < bytes) return;
    fprintf(stderr, "an atomic of the device changes %p, which is the host's\n", word);
    abort();
}

static bool is_planted(const char *name) {
    static const char *planted = getenv("TRUNKLINE_MUTANT");
    return planted != nullptr && strcmp(planted, name) == 0;
}

#define TRUNKLINE_PAUSE() sched_yield()
#define TRUNKLINE_CHANGES(word) changes(word)
#define TRUNKLINE_PLANTED(name) is_planted(name)
#include "../../../devq/src/kernels.h"

extern "C" void stub_window(unsigned long long at, unsigned long long size) { start = at, bytes = size; }

// What no kernel does: an atomic on the host's memory, by the device's address of it; and a store by the host's address.
extern "C" void stray_atomic(void **arguments, unsigned, unsigned, unsigned, unsigned) {
    trunkline::dev_add(*(trunkline::u64 **)arguments[0], 1);
}

extern "C" void stray_store(void **arguments, unsigned, unsigned, unsigned, unsigned) {
    trunkline::sys_store(*(trunkline::u64 **)arguments[0], 1);
}
