/* Replaces NVIDIA's driver, libcuda.so.1, with a device whose threads are threads of the host. A kernel is a function
 * of a library that was compiled from the same source. It runs in a separate process, which the test's process forks
 * for it, so both have the same addresses. The kernel's process can access device memory and the device's view of
 * pinned memory, but not the host's addresses of either. In the test's process it is the reverse. So any access by the
 * other's address ends the process. Copies land late; rules.h has the other rules. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rules.h"

typedef uint64_t u64;

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801
};

enum { WINDOW = 512 << 20, OPS = 4096, THREADS = 256, PAGE = 4096 };

/* A file, mapped at the device's addresses and at the host's. */
static struct window {
    char *own;   /* the address for kernels */
    char *bytes; /* the address for the host; for device memory, only copies use it */
    size_t used;
} device, pinned;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread void *stack[16];
static __thread int depth;
static int primary;
static u64 late = 3, fail_in;
static int fail_event;
static char library[4096]; /* or $STUB_KERNELS */
static u64 copied, launched, made_streams, exported;

static void map(struct window *window) {
    int fd = memfd_create("stub", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, WINDOW))
        abort();
    window->own = mmap(NULL, WINDOW, PROT_NONE, MAP_SHARED, fd, 0);
    window->bytes = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (window->own == MAP_FAILED || window->bytes == MAP_FAILED)
        abort();
    close(fd);
}

static int is_in(const char *at, u64 size, const char *start) {
    return at >= start && (u64)(at - start) <= WINDOW && size <= WINDOW - (u64)(at - start);
}

/* Settings and queries of tests. */
void stub_library(const char *path) { snprintf(library, sizeof library, "%s", path); }
void stub_late(u64 looks) { late = looks; }
void stub_fail_copy(u64 nth) { fail_in = nth; }
/* Makes the next record of an event after copies fail. */
void stub_fail_event(u64 is) { fail_event = (int)is; }
u64 stub_copied(void) { return copied; }
u64 stub_launched(void) { return launched; }
/* The number of dma-bufs that were ever exported. */
u64 stub_exported(void) { return exported; }
/* The number of streams that were ever created. */
u64 stub_made_streams(void) { return __atomic_load_n(&made_streams, 5); }
/* For a test that forks: returns 0 in the child; ends the child with a code; returns the code of an ended child. */
u64 stub_fork(void) { return (u64)fork(); }
void stub_exit(u64 code) { _exit((int)code); }
u64 stub_child_code(u64 child) {
    int status = 0;
    return waitpid((pid_t)child, &status, 0) < 0 || !WIFEXITED(status) ? 255 : (u64)WEXITSTATUS(status);
}
u64 stub_depth(void) { return (u64)depth; }

/* All streams, including destroyed ones with pending operations. */
static struct stream *streams;
static void drift(void);

/* Begins a call; returns whether it must fail. */
static int begin(void) {
    pthread_mutex_lock(&mutex);
    drift();
    pthread_mutex_unlock(&mutex);
    return fails();
}
/* Ends a call that has freed something, and may report a failure of an earlier call. */
static int done(void) { return begin() ? UNKNOWN : OK; }

int cuInit(unsigned flags) {
    pthread_mutex_lock(&mutex);
    if (!device.own)
        read_rules(), map(&device), map(&pinned);
    pthread_mutex_unlock(&mutex);
    return begin() ? UNKNOWN : flags ? INVALID_VALUE : OK;
}
int cuDriverGetVersion(int *version) { return *version = 12040, OK; }

/* NVRTC 12.9 requests a private table from each loaded driver, and uses the result unchecked if the function is absent.
 * */
int cuGetExportTable(const void **table, const void *id) { return (void)table, (void)id, NOT_FOUND; }
int cuDeviceGetCount(int *devices) { return begin() ? UNKNOWN : (*devices = 1, OK); }
int cuDeviceGet(int *found, int ordinal) { return begin() ? UNKNOWN : (*found = ordinal, ordinal ? INVALID_VALUE : OK); }
int cuDeviceGetName(char *name, int size, int of) { return snprintf(name, (size_t)size, "stand-in"), of ? INVALID_VALUE : OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int of) { return *bytes = WINDOW, of ? INVALID_VALUE : OK; }
/* Compute capability 9.0, virtual memory and 64-bit operations on streams; dma-bufs if the rule is set. */
int cuDeviceGetAttribute(int *value, unsigned attribute, int of) {
    return (void)of, *value = attribute == 75 ? 9 : attribute == 102 || attribute == 122 || (attribute == 124 && rules.exports), begin() ? UNKNOWN : OK;
}
int cuGetErrorName(unsigned error, const char **name) { return (void)error, *name = "STUB_ERROR", OK; }
int cuDevicePrimaryCtxRetain(void **context, int of) {
    if (begin())
        return UNKNOWN;
    if (of)
        return INVALID_VALUE;
    count(CONTEXTS, 1);
    return *context = &primary, __atomic_add_fetch(&primary, 1, 5), OK;
}
int cuDevicePrimaryCtxRelease_v2(int of) {
    if (of)
        return INVALID_VALUE;
    count(CONTEXTS, -1);
    return __atomic_sub_fetch(&primary, 1, 5), done();
}
int cuCtxPushCurrent_v2(void *context) { return begin() ? UNKNOWN : depth == 16 ? OUT_OF_MEMORY : (stack[depth++] = context, OK); }
int cuCtxPopCurrent_v2(void **context) { return depth ? (*context = stack[--depth], done()) : INVALID_CONTEXT; }
static int here(void) { return depth > 0 && stack[depth - 1] == &primary && primary > 0; }

/* Allocations of either kind, for queries by address. Memory is never reused, so entries stay. */
static struct {
    u64 start, size;
    int is_freed;
} allocations[2 * OPS];
static int allocated;

/* Like the driver, sets all results to zero for an address that is not of the device. */
int cuPointerGetAttributes(unsigned asked, unsigned *attributes, void **data, u64 at) {
    u64 start = 0, size = 0;
    if (begin())
        return UNKNOWN;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < allocated; i++)
        if (!allocations[i].is_freed && is_in((char *)allocations[i].start, 1, device.own) && at - allocations[i].start < allocations[i].size)
            start = allocations[i].start, size = allocations[i].size;
    pthread_mutex_unlock(&mutex);
    for (unsigned i = 0; i < asked; i++)
        switch (attributes[i]) {
        case 2: *(unsigned *)data[i] = size ? 2 : 0; break;
        case 6: case 9: *(unsigned *)data[i] = 0; break;
        case 8: *(unsigned char *)data[i] = 0; break;
        case 11: *(u64 *)data[i] = start; break;
        case 12: *(size_t *)data[i] = size; break;
        default: return INVALID_VALUE;
        }
    return OK;
}
/* All copies here have a stream, so synchronous copies have ended when they return. */
int cuPointerSetAttribute(const void *value, unsigned attribute, u64 at) {
    return begin() ? UNKNOWN : (void)value, attribute == 6 && is_in((char *)at, 1, device.own) ? OK : INVALID_VALUE;
}

static void wait_for_kernels(void);

/* Allocates room in a window; `start` is the address by which it is found. */
static u64 take(struct window *window, const char *start, size_t size) {
    pthread_mutex_lock(&mutex);
    size_t at = window->used, whole = (size + PAGE - 1) / PAGE * PAGE;
    int fits = size && whole <= WINDOW - at && allocated < 2 * OPS;
    if (fits) {
        window->used += whole;
        allocations[allocated].start = (u64)start + at, allocations[allocated++].size = size;
        /* New memory is not zero. */
        memset(window->bytes + at, 0xa5, whole);
        count(window == &device ? DEVICE_BYTES : PINNED_BYTES, (int64_t)size);
    }
    pthread_mutex_unlock(&mutex);
    return fits ? at : ~0ull;
}

/* Frees an allocation, once. The memory is poisoned and closed to the host, so that late accesses are detected. */
static int give_back(struct window *window, u64 start, const char *first) {
    wait_for_kernels();
    pthread_mutex_lock(&mutex);
    int found = 0;
    while (found < allocated && (allocations[found].start != start || allocations[found].is_freed))
        found++;
    if (found == allocated)
        die("a free of memory that is not allocated");
    char *bytes = window->bytes + (start - (u64)first);
    size_t whole = (allocations[found].size + PAGE - 1) / PAGE * PAGE;
    memset(bytes, 0xdb, whole);
    mprotect(bytes, whole, PROT_NONE);
    allocations[found].is_freed = 1;
    count(window == &device ? DEVICE_BYTES : PINNED_BYTES, -(int64_t)allocations[found].size);
    pthread_mutex_unlock(&mutex);
    return done();
}

int cuMemAlloc_v2(u64 *at, size_t size) {
    if (begin())
        return UNKNOWN;
    if (!here())
        return INVALID_CONTEXT;
    wait_for_kernels();
    u64 offset = take(&device, device.own, size);
    return offset == ~0ull ? OUT_OF_MEMORY : (*at = (u64)device.own + offset, OK);
}
int cuMemFree_v2(u64 at) { return !is_in((char *)at, 1, device.own) ? INVALID_VALUE : !here() ? INVALID_CONTEXT : give_back(&device, at, device.own); }
int cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    if (begin())
        return UNKNOWN;
    if (flags != 3 || !here())
        return flags != 3 ? INVALID_VALUE : INVALID_CONTEXT;
    wait_for_kernels();
    u64 offset = take(&pinned, pinned.bytes, size);
    return offset == ~0ull ? OUT_OF_MEMORY : (*at = pinned.bytes + offset, OK);
}
int cuMemFreeHost(void *at) { return !is_in(at, 1, pinned.bytes) ? INVALID_VALUE : !here() ? INVALID_CONTEXT : give_back(&pinned, (u64)at, pinned.bytes); }
int cuMemHostGetDevicePointer_v2(u64 *at, void *of, unsigned flags) {
    if (begin())
        return UNKNOWN;
    return flags || !is_in(of, 1, pinned.bytes) ? INVALID_VALUE : (*at = (u64)pinned.own + (u64)((char *)of - pinned.bytes), OK);
}

/* A dma-buf must begin with the exported bytes, so these bytes become a separate file, which replaces their part of the
 * window. */
int cuMemGetHandleForAddressRange(int *handle, u64 at, size_t size, int kind, u64 flags) {
    if (begin())
        return UNKNOWN;
    if (!rules.exports || !here())
        return rules.exports ? INVALID_CONTEXT : NOT_SUPPORTED;
    if (kind != 1 || flags || at % PAGE || size % PAGE || !size || !is_in((char *)at, size, device.own))
        return INVALID_VALUE;
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    char *own = (char *)at, *bytes = device.bytes + (own - device.own);
    if (fd < 0 || ftruncate(fd, (off_t)size))
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    int is_done = pwrite(fd, bytes, size, 0) == (ssize_t)size &&
                  mmap(own, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == own &&
                  mmap(bytes, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == bytes;
    exported += is_done;
    pthread_mutex_unlock(&mutex);
    return is_done ? (*handle = fd, OK) : OUT_OF_MEMORY;
}

/* Streams: their operations, in order. */

struct op {
    enum { COPY, SET, RECORD, KERNEL } kind;
    char *to, *from;
    size_t size;
    struct event *event;
    pid_t child;
    u64 looks;
    int value;
};

struct event {
    u64 recorded, done;
    struct stream *stream;
};

struct stream {
    struct op ops[OPS];
    u64 first, end;
    int failed, is_gone;
    struct stream *next;
};

/* Performs the first operation of a stream; returns whether it has ended. A kernel has ended when its process has. With
 * `late`, operations that are to land later do not. */
static int perform(struct stream *stream, int late) {
    struct op *op = &stream->ops[stream->first % OPS];
    if (op->kind == COPY || op->kind == SET) {
        if (late && (rules.stuck || op->looks-- > 0))
            return 0;
        if (op->kind == COPY)
            memmove(op->to, op->from, op->size), copied++;
        else
            memset(op->to, op->value, op->size);
    } else if (op->kind == RECORD) {
        op->event->done++;
    } else {
        int status = 0;
        pid_t ended = waitpid(op->child, &status, WNOHANG);
        if (!ended)
            return 0;
        if (ended < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
            stream->failed = LAUNCH_FAILED;
    }
    stream->first++;
    return 1;
}

/* Advances a stream as far as possible. */
static void advance(struct stream *stream, int late) {
    while (stream->first != stream->end && perform(stream, late)) {}
}

/* Lets some operations of random streams land, and all possible ones of destroyed streams. */
static void drift(void) {
    for (struct stream **at = &streams; *at;) {
        struct stream *stream = *at;
        if (stream->is_gone)
            advance(stream, 0);
        else if (rules.seed && stream->first != stream->end && dice() % 4 == 0)
            perform(stream, 1);
        if (stream->is_gone && stream->first == stream->end)
            *at = stream->next, free(stream);
        else
            at = &stream->next;
    }
}

static int is_running(void) {
    int running = 0;
    pthread_mutex_lock(&mutex);
    for (struct stream *stream = streams; stream; stream = stream->next) {
        if (stream->first != stream->end && stream->ops[stream->first % OPS].kind == KERNEL)
            perform(stream, 1);
        for (u64 at = stream->first; at != stream->end; at++)
            running |= stream->ops[at % OPS].kind == KERNEL;
    }
    pthread_mutex_unlock(&mutex);
    return running;
}

static void wait_for_kernels(void) {
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    /* Unnamed threads have the program's name. */
    int serves = !strcmp(thread, "trunkline") && strcmp(program_invocation_short_name, "trunkline");
    if (rules.waits && (serves || !strcmp(thread, "trunkline-devq")))
        die("a call that may wait for a kernel, in a thread that makes progress");
    __atomic_add_fetch(&rules.waiting, 1, 5);
    while (rules.waits && is_running())
        rest();
    __atomic_sub_fetch(&rules.waiting, 1, 5);
}

static struct op *put(struct stream *stream) {
    return stream->end - stream->first == OPS ? NULL : &stream->ops[stream->end++ % OPS];
}

int cuStreamCreate(struct stream **made, unsigned flags) {
    if (begin())
        return UNKNOWN;
    if (flags != 1 || !here())
        return flags != 1 ? INVALID_VALUE : INVALID_CONTEXT;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    stream->next = streams, streams = stream;
    pthread_mutex_unlock(&mutex);
    count(STREAMS, 1);
    __atomic_add_fetch(&made_streams, 1, 5);
    return *made = stream, OK;
}

/* Operations on the stream still end. */
int cuStreamDestroy_v2(struct stream *stream) {
    pthread_mutex_lock(&mutex);
    struct stream *found = streams;
    while (found && (found != stream || found->is_gone))
        found = found->next;
    if (!found)
        die("a destroy of an invalid stream");
    stream->is_gone = 1;
    pthread_mutex_unlock(&mutex);
    count(STREAMS, -1);
    return done();
}

static int ask(struct stream *stream, int late) {
    pthread_mutex_lock(&mutex);
    advance(stream, late);
    int result = stream->failed ? stream->failed : stream->first == stream->end ? OK : NOT_READY;
    pthread_mutex_unlock(&mutex);
    return result;
}
int cuStreamQuery(struct stream *stream) { return begin() ? UNKNOWN : ask(stream, 1); }
int cuStreamSynchronize(struct stream *stream) {
    int how = begin() ? UNKNOWN : ask(stream, 0);
    while (how == NOT_READY)
        rest(), how = ask(stream, 0);
    return how;
}

int cuEventCreate(struct event **event, unsigned flags) {
    if (begin())
        return UNKNOWN;
    return flags != 2 ? INVALID_VALUE : (*event = calloc(1, sizeof **event), count(EVENTS, 1), OK);
}
/* A record of the event may still be on a stream, so its memory is kept. */
int cuEventDestroy_v2(struct event *event) { return (void)event, count(EVENTS, -1), done(); }
int cuEventRecord(struct event *event, struct stream *stream) {
    if (begin())
        return UNKNOWN;
    pthread_mutex_lock(&mutex);
    struct op *op = fail_event ? NULL : put(stream);
    fail_event = 0;
    if (op)
        *op = (struct op){.kind = RECORD, .event = event}, event->recorded++, event->stream = stream;
    pthread_mutex_unlock(&mutex);
    return op ? OK : OUT_OF_MEMORY;
}
int cuEventQuery(struct event *event) {
    if (begin())
        return UNKNOWN;
    pthread_mutex_lock(&mutex);
    if (event->done < event->recorded)
        advance(event->stream, 1);
    int done = event->done == event->recorded;
    pthread_mutex_unlock(&mutex);
    return done ? OK : NOT_READY;
}

/* Returns the host's address of bytes; NULL if they are not accessible. */
static char *bytes_of(u64 at, size_t size) {
    char *start = (char *)at;
    if (is_in(start, size, device.own))
        return device.bytes + (start - device.own);
    int is_stray = is_in(start, 1, device.own) || is_in(start, 1, device.bytes) || is_in(start, 1, pinned.own);
    return is_stray ? NULL : start;
}

static u64 lateness(void) { return late ? dice() % (late + 1) : 0; }

/* By the documentation, a copy from the device to unpinned host memory returns when the bytes have arrived. */
int cuMemcpyAsync(u64 to, u64 from, size_t size, struct stream *stream) {
    char *target = bytes_of(to, size), *source = bytes_of(from, size);
    if (begin())
        return UNKNOWN;
    if (!here())
        return INVALID_CONTEXT;
    if (!target || !source || (fail_in && !--fail_in))
        return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct op *op = put(stream);
    if (op)
        *op = (struct op){.kind = COPY, .to = target, .from = source, .size = size, .looks = lateness()};
    int returns_late = op && source != (char *)from && target == (char *)to && !is_in(target, 1, pinned.bytes);
    pthread_mutex_unlock(&mutex);
    if (returns_late)
        while (ask(stream, 0) == NOT_READY)
            rest();
    return op ? OK : OUT_OF_MEMORY;
}

int cuMemsetD8Async(u64 to, unsigned char value, size_t size, struct stream *stream) {
    char *target = bytes_of(to, size);
    if (begin())
        return UNKNOWN;
    if (!here() || !target)
        return here() ? INVALID_VALUE : INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    struct op *op = put(stream);
    if (op)
        *op = (struct op){.kind = SET, .to = target, .value = value, .size = size, .looks = lateness()};
    pthread_mutex_unlock(&mutex);
    return op ? OK : OUT_OF_MEMORY;
}

/* Kernels. */

typedef void (*kernel)(void **, unsigned, unsigned, unsigned, unsigned);

int cuModuleLoadData(void **module, const void *image) {
    void (*window)(u64, u64);
    if (begin())
        return UNKNOWN;
    wait_for_kernels();
    /* Loads PTX, machine code, or an image that a test has named. */
    if (!here() || (memcmp(image, "\x7f" "ELF", 4) && !strstr(image, ".version") && strcmp(image, "stub")))
        return INVALID_IMAGE;
    const char *named = getenv("STUB_KERNELS");
    *module = dlopen(*library ? library : named ? named : "", RTLD_NOW | RTLD_LOCAL);
    if (!*module)
        return fprintf(stderr, "%s\n", dlerror()), INVALID_IMAGE;
    *(void **)&window = dlsym(*module, "stub_window");
    return window ? (window((u64)device.own, WINDOW), count(MODULES, 1), OK) : INVALID_IMAGE;
}
int cuModuleUnload(void *module) { return wait_for_kernels(), count(MODULES, -1), dlclose(module) ? INVALID_VALUE : done(); }

/* The loaded kernels; the first use of a kernel loads it. */
static void *loaded[OPS];
int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (begin())
        return UNKNOWN;
    *function = dlsym(module, name);
    if (!*function)
        return NOT_FOUND;
    int at = 0;
    while (at < OPS - 1 && loaded[at] && loaded[at] != *function)
        at++;
    if (!loaded[at] && !rules.eager)
        wait_for_kernels();
    return loaded[at] = *function, OK;
}

struct thread {
    kernel run;
    void **arguments;
    unsigned block, blocks, rank, size;
};

static void *start(void *argument) {
    struct thread *thread = argument;
    thread->run(thread->arguments, thread->block, thread->blocks, thread->rank, thread->size);
    return NULL;
}

/* The device: runs all threads of all blocks at once. */
static void play(kernel run, void **arguments, unsigned blocks, unsigned threads) {
    static struct thread all[THREADS];
    pthread_t ids[THREADS];
    pthread_attr_t attributes;
    unsigned count = blocks * threads;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mprotect(device.own, WINDOW, PROT_READ | PROT_WRITE) || mprotect(pinned.own, WINDOW, PROT_READ | PROT_WRITE) ||
        mprotect(device.bytes, WINDOW, PROT_NONE) || mprotect(pinned.bytes, WINDOW, PROT_NONE))
        _exit(2);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (unsigned at = 0; at < count; at++) {
        all[at] = (struct thread){run, arguments, at / threads, blocks, at % threads, threads};
        if (pthread_create(&ids[at], &attributes, start, &all[at]))
            _exit(3);
    }
    for (unsigned at = 0; at < count; at++)
        pthread_join(ids[at], NULL);
    _exit(0);
}

int cuLaunchKernel(void *function, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
                   struct stream *stream, void **parameters, void **extra) {
    if (!here() || by != 1 || bz != 1 || ty != 1 || tz != 1 || shared || extra || bx * tx == 0 || bx * tx > THREADS)
        return INVALID_VALUE;
    if (begin())
        return UNKNOWN;
    pthread_mutex_lock(&mutex);
    struct op *op = put(stream);
    pid_t child = op ? fork() : -1;
    if (!child)
        play((kernel)(uintptr_t)function, parameters, bx, tx);
    if (op && child < 0)
        stream->end--;
    else if (op)
        *op = (struct op){.kind = KERNEL, .child = child};
    launched++;
    pthread_mutex_unlock(&mutex);
    return child < 0 ? OUT_OF_MEMORY : OK;
}
