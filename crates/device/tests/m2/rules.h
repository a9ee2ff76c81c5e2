/* Rules of a driver that expose faults of its users, for stub.c. A test or the environment can switch each rule off.
 *
 * - order (STUB_ORDER, a seed; 0: off): copies and memsets return early and land later, with any later call. The order
 *   is random between streams, and kept within a stream.
 * - waits (STUB_WAITS; 0: off): a call that may wait for a kernel, by CUDA's documentation, waits while one runs.
 *   Loading a kernel is such a call unless CUDA_MODULE_LOADING is EAGER. In a thread of Trunkline that makes progress,
 *   such a call ends the process, because the kernel may wait for that progress.
 * - fails (STUB_FAILS, n; 0: off): the n-th call from now on fails. A failing call that frees something has freed it
 *   nevertheless, as its error may be that of an earlier call.
 * - stuck (stub_stuck; 0: off): no copy and no memset lands unless a call waits for its stream.
 * - exports (STUB_EXPORTS, 1; 0: off, the default): device memory is exported as dma-bufs. These are ordinary host
 *   memory to processes that map them.
 *
 * Freed memory is poisoned and closed to the host, so a copy that lands there ends the process. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNKNOWN = 999 };

static struct rules {
    uint64_t seed, dice, waits, fails, calls, waiting, stuck;
    int eager, exports;
} rules;

/* The objects that exist: created and not freed. */
enum { STREAMS, EVENTS, DEVICE_BYTES, PINNED_BYTES, CONTEXTS, MODULES, KINDS };
static uint64_t live[KINDS];

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* Called once, before all other functions. */
static void read_rules(void) {
    const char *loading = getenv("CUDA_MODULE_LOADING");
    rules.seed = rules.dice = number_of("STUB_ORDER", 1);
    rules.waits = number_of("STUB_WAITS", 1);
    rules.fails = number_of("STUB_FAILS", 0);
    rules.exports = number_of("STUB_EXPORTS", 0) != 0;
    rules.eager = loading && !strcmp(loading, "EAGER");
}

/* Settings and queries of tests. */
void stub_order(uint64_t seed) { rules.seed = rules.dice = seed; }
void stub_waits(uint64_t is) { rules.waits = is; }
void stub_exports(uint64_t is) { rules.exports = is != 0; }
void stub_stuck(uint64_t is) { rules.stuck = is; }
uint64_t stub_has_waits(void) { return rules.waits; }
void stub_fails(uint64_t nth) { rules.fails = nth; }
/* Remaining calls until the failing one; 0: it has failed, or no call is to fail. */
uint64_t stub_fails_left(void) { return __atomic_load_n(&rules.fails, 5); }
uint64_t stub_calls(void) { return __atomic_load_n(&rules.calls, 5); }
/* The number of calls that wait for a kernel now. */
uint64_t stub_waiting(void) { return __atomic_load_n(&rules.waiting, 5); }
uint64_t stub_streams(void) { return __atomic_load_n(&live[STREAMS], 5); }
uint64_t stub_events(void) { return __atomic_load_n(&live[EVENTS], 5); }
uint64_t stub_device_bytes(void) { return __atomic_load_n(&live[DEVICE_BYTES], 5); }
uint64_t stub_pinned_bytes(void) { return __atomic_load_n(&live[PINNED_BYTES], 5); }
uint64_t stub_contexts(void) { return __atomic_load_n(&live[CONTEXTS], 5); }
uint64_t stub_modules(void) { return __atomic_load_n(&live[MODULES], 5); }

static void count(int kind, int64_t more) { __atomic_add_fetch(&live[kind], (uint64_t)more, 5); }

static uint64_t dice(void) {
    return rules.dice = rules.dice * 6364136223846793005ull + 1442695040888963407ull, rules.dice >> 33;
}

/* Returns whether this call must fail. */
static int fails(void) {
    __atomic_add_fetch(&rules.calls, 1, 5);
    uint64_t left = __atomic_load_n(&rules.fails, 5);
    while (left && !__atomic_compare_exchange_n(&rules.fails, &left, left - 1, 0, 5, 5)) {}
    return left == 1;
}

/* A user's bug, which a driver need not survive. */
static void die(const char *why) {
    fprintf(stderr, "stand-in for NVIDIA's driver: %s\n", why);
    abort();
}

static void rest(void) {
    struct timespec moment = {0, 50000};
    nanosleep(&moment, NULL);
}
