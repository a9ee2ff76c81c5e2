/* In place of NVIDIA's driver, libcuda.so.1, with a device that has threads of the host in place of its own. A kernel is a function of a library that was compiled from
 * the same source, and runs in a process of its own, which this one starts for it and which has the same addresses. In it the device's memory and the device's
 * view of pinned memory can be touched, and the host's addresses of both cannot; in the process of the test it is the other way round. So whoever uses the
 * other's address dies of it. Copies are made late, when an event has been asked about often enough. */
#define _GNU_SOURCE
#include <dlfcn.h>
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

typedef uint64_t u64;

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_IMAGE = 200, NOT_FOUND = 500, NOT_READY = 600,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801
};

enum { WINDOW = 512 << 20, OPS = 4096, THREADS = 256, PAGE = 4096 };

/* A file, by the addresses of those who may touch it and of those who may not. */
static struct window {
    char *own;   /* the device's memory: what kernels use. Pinned memory: what the device calls it */
    char *bytes; /* what the host uses; of the device's memory only copies do */
    size_t used;
} device, pinned;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread void *stack[16];
static __thread int depth;
static int primary;
static u64 late = 3, state = 1, fail_in;
static int fail_event;
static char library[4096]; /* or $STUB_KERNELS */
static u64 copied, launched;

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

/* What tests say. */
void stub_library(const char *path) { snprintf(library, sizeof library, "%s", path); }
void stub_late(u64 looks) { late = looks; }
void stub_fail_copy(u64 nth) { fail_in = nth; }
/* The next event behind copies cannot be recorded. */
void stub_fail_event(u64 is) { fail_event = (int)is; }
u64 stub_copied(void) { return copied; }
u64 stub_launched(void) { return launched; }
u64 stub_depth(void) { return (u64)depth; }

int cuInit(unsigned flags) {
    pthread_mutex_lock(&mutex);
    if (!device.own)
        map(&device), map(&pinned);
    pthread_mutex_unlock(&mutex);
    return flags ? INVALID_VALUE : OK;
}
int cuDriverGetVersion(int *version) { return *version = 12040, OK; }
int cuDeviceGetCount(int *devices) { return *devices = 1, OK; }
int cuDeviceGet(int *found, int ordinal) { return *found = ordinal, ordinal ? INVALID_VALUE : OK; }
int cuDeviceGetName(char *name, int size, int of) { return snprintf(name, (size_t)size, "stand-in"), of ? INVALID_VALUE : OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int of) { return *bytes = WINDOW, of ? INVALID_VALUE : OK; }
/* Compute capability 9.0; virtual memory and 64-bit operations on streams; nothing that a NIC could use. */
int cuDeviceGetAttribute(int *value, unsigned attribute, int of) {
    return (void)of, *value = attribute == 75 ? 9 : attribute == 102 || attribute == 122, OK;
}
int cuGetErrorName(unsigned error, const char **name) { return (void)error, *name = "STUB_ERROR", OK; }
int cuDevicePrimaryCtxRetain(void **context, int of) { return *context = &primary, __atomic_add_fetch(&primary, 1, 5), of ? INVALID_VALUE : OK; }
int cuDevicePrimaryCtxRelease_v2(int of) { return __atomic_sub_fetch(&primary, 1, 5), of ? INVALID_VALUE : OK; }
int cuCtxPushCurrent_v2(void *context) { return depth == 16 ? OUT_OF_MEMORY : (stack[depth++] = context, OK); }
int cuCtxPopCurrent_v2(void **context) { return depth ? (*context = stack[--depth], OK) : INVALID_CONTEXT; }
static int here(void) { return depth > 0 && stack[depth - 1] == &primary && primary > 0; }

/* The device's allocations, so that an address is found; memory is never used again, so they stay. */
static struct {
    u64 start, size;
} allocations[OPS];
static int allocated;

/* All zero for an address that is not of the device, as the driver has it. */
int cuPointerGetAttributes(unsigned asked, unsigned *attributes, void **data, u64 at) {
    u64 start = 0, size = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < allocated; i++)
        if (at - allocations[i].start < allocations[i].size)
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
/* Copies without a stream do not exist here, so that all of them have ended when they return. */
int cuPointerSetAttribute(const void *value, unsigned attribute, u64 at) {
    return (void)value, attribute == 6 && is_in((char *)at, 1, device.own) ? OK : INVALID_VALUE;
}

static u64 take(struct window *window, size_t size) {
    pthread_mutex_lock(&mutex);
    size_t at = window->used, whole = (size + PAGE - 1) / PAGE * PAGE;
    int fits = whole <= WINDOW - at;
    if (fits)
        window->used += whole;
    pthread_mutex_unlock(&mutex);
    /* What was there before is not zero. */
    if (fits)
        memset(window->bytes + at, 0xa5, whole);
    return fits ? at : ~0ull;
}

int cuMemAlloc_v2(u64 *at, size_t size) {
    u64 offset = here() && allocated < OPS ? take(&device, size) : ~0ull;
    if (offset == ~0ull)
        return here() ? OUT_OF_MEMORY : INVALID_CONTEXT;
    *at = (u64)device.own + offset;
    pthread_mutex_lock(&mutex);
    allocations[allocated].start = *at, allocations[allocated++].size = size;
    pthread_mutex_unlock(&mutex);
    return OK;
}
/* Memory is never used again, so that late users are seen. */
int cuMemFree_v2(u64 at) { return is_in((char *)at, 1, device.own) ? OK : INVALID_VALUE; }
int cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    u64 offset = here() && flags == 3 ? take(&pinned, size) : ~0ull;
    return flags != 3 ? INVALID_VALUE : !here() ? INVALID_CONTEXT : offset == ~0ull ? OUT_OF_MEMORY : (*at = pinned.bytes + offset, OK);
}
int cuMemFreeHost(void *at) { return is_in(at, 1, pinned.bytes) ? OK : INVALID_VALUE; }
int cuMemHostGetDevicePointer_v2(u64 *at, void *of, unsigned flags) {
    return flags || !is_in(of, 1, pinned.bytes) ? INVALID_VALUE : (*at = (u64)pinned.own + (u64)((char *)of - pinned.bytes), OK);
}

/* Streams: what is on them, in order. */

struct op {
    enum { COPY, RECORD, KERNEL } kind;
    char *to, *from;
    size_t size;
    struct event *event;
    pid_t child;
    u64 looks;
};

struct event {
    u64 recorded, done;
    struct stream *stream;
};

struct stream {
    struct op ops[OPS];
    u64 first, end;
    int failed;
};

static u64 dice(void) { return state = state * 6364136223846793005ull + 1442695040888963407ull, state >> 33; }

/* Goes on with a stream as far as it can; `all`: waits for what it takes. */
static void advance(struct stream *stream, int all) {
    for (; stream->first != stream->end; stream->first++) {
        struct op *op = &stream->ops[stream->first % OPS];
        if (op->kind == COPY) {
            if (!all && op->looks-- > 0)
                return;
            memmove(op->to, op->from, op->size);
            copied++;
        } else if (op->kind == RECORD) {
            op->event->done++;
        } else {
            int status = 0;
            pid_t ended = waitpid(op->child, &status, all ? 0 : WNOHANG);
            if (!ended)
                return;
            if (ended < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
                stream->failed = LAUNCH_FAILED;
        }
    }
}

static struct op *put(struct stream *stream) {
    return stream->end - stream->first == OPS ? NULL : &stream->ops[stream->end++ % OPS];
}

int cuStreamCreate(struct stream **stream, unsigned flags) {
    return !here() ? INVALID_CONTEXT : flags != 1 ? INVALID_VALUE : (*stream = calloc(1, sizeof **stream), OK);
}
int cuStreamDestroy_v2(struct stream *stream) { return free(stream), OK; }

static int ask(struct stream *stream, int all) {
    pthread_mutex_lock(&mutex);
    advance(stream, all);
    int result = stream->failed ? stream->failed : stream->first == stream->end ? OK : NOT_READY;
    pthread_mutex_unlock(&mutex);
    return result;
}
int cuStreamQuery(struct stream *stream) { return ask(stream, 0); }
int cuStreamSynchronize(struct stream *stream) { return ask(stream, 1); }

int cuEventCreate(struct event **event, unsigned flags) { return flags != 2 ? INVALID_VALUE : (*event = calloc(1, sizeof **event), OK); }
int cuEventDestroy_v2(struct event *event) { return free(event), OK; }
int cuEventRecord(struct event *event, struct stream *stream) {
    pthread_mutex_lock(&mutex);
    struct op *op = fail_event ? NULL : put(stream);
    fail_event = 0;
    if (op)
        *op = (struct op){.kind = RECORD, .event = event}, event->recorded++, event->stream = stream;
    pthread_mutex_unlock(&mutex);
    return op ? OK : OUT_OF_MEMORY;
}
int cuEventQuery(struct event *event) {
    pthread_mutex_lock(&mutex);
    if (event->done < event->recorded)
        advance(event->stream, 0);
    int done = event->done == event->recorded;
    pthread_mutex_unlock(&mutex);
    return done ? OK : NOT_READY;
}

/* Where the host finds bytes; null: nowhere. */
static char *bytes_of(u64 at, size_t size) {
    char *start = (char *)at;
    if (is_in(start, size, device.own))
        return device.bytes + (start - device.own);
    int is_stray = is_in(start, 1, device.own) || is_in(start, 1, device.bytes) || is_in(start, 1, pinned.own);
    return is_stray ? NULL : start;
}

int cuMemcpyAsync(u64 to, u64 from, size_t size, struct stream *stream) {
    char *target = bytes_of(to, size), *source = bytes_of(from, size);
    if (!here())
        return INVALID_CONTEXT;
    if (!target || !source || (fail_in && !--fail_in))
        return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct op *op = put(stream);
    if (op)
        *op = (struct op){.kind = COPY, .to = target, .from = source, .size = size, .looks = late ? dice() % (late + 1) : 0};
    pthread_mutex_unlock(&mutex);
    return op ? OK : OUT_OF_MEMORY;
}

/* Kernels. */

typedef void (*kernel)(void **, unsigned, unsigned, unsigned, unsigned);

int cuModuleLoadData(void **module, const void *image) {
    void (*window)(u64, u64);
    /* PTX, machine code, or what a test calls an image. */
    if (!here() || (memcmp(image, "\x7f" "ELF", 4) && !strstr(image, ".version") && strcmp(image, "stub")))
        return INVALID_IMAGE;
    const char *named = getenv("STUB_KERNELS");
    *module = dlopen(*library ? library : named ? named : "", RTLD_NOW | RTLD_LOCAL);
    if (!*module)
        return fprintf(stderr, "%s\n", dlerror()), INVALID_IMAGE;
    *(void **)&window = dlsym(*module, "stub_window");
    return window ? (window((u64)device.own, WINDOW), OK) : INVALID_IMAGE;
}
int cuModuleUnload(void *module) { return dlclose(module) ? INVALID_VALUE : OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    return (*function = dlsym(module, name)) ? OK : NOT_FOUND;
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

/* The device: all threads of all blocks at once. */
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
    pthread_mutex_lock(&mutex);
    struct op *op = put(stream);
    pid_t child = op ? fork() : -1;
    if (!child)
        play((kernel)(uintptr_t)function, parameters, bx, tx);
    if (op)
        *op = (struct op){.kind = KERNEL, .child = child};
    launched++;
    pthread_mutex_unlock(&mutex);
    return child < 0 ? OUT_OF_MEMORY : OK;
}
