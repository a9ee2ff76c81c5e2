/* A driver of GPUs that is none, in place of libcuda.so.1. Memory of its one device has addresses that nobody can read or
 * write; its bytes are elsewhere, known to the fake NIC and, by fake_bytes, to the test. So a touch by the CPU is a crash.
 * FAKE_CUDA_EXPORTS=0: the device exports no memory. FAKE_CUDA_REFUSES_SYNC=1: its copies cannot be made synchronous. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define MOST 64
#define MAGIC 0x7472756e6b6c6e65ull

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

static struct memory {
    unsigned long long base;
    size_t size;
    char *bytes;
    int managed, synced;
} all[MOST];
static int count;
static int exported;

static struct memory *find(unsigned long long at) {
    for (int i = 0; i < count; i++)
        if (at >= all[i].base && at - all[i].base < all[i].size)
            return &all[i];
    return NULL;
}

/* Memory of the device, or managed memory. */
void *fake_allocate(size_t size, int managed) {
    struct memory *made = &all[count];
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    if (count == MOST)
        return NULL;
    void *base = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *bytes = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || bytes == MAP_FAILED)
        return NULL;
    *made = (struct memory){(unsigned long long)base, whole, bytes, managed, 0};
    count++;
    return base;
}

/* Where its bytes are. */
char *fake_bytes(void *at) {
    struct memory *found = find((unsigned long long)at);
    return found ? found->bytes + ((unsigned long long)at - found->base) : NULL;
}

/* Whether synchronous copies are to have ended when they return. */
int fake_is_synced(void *at) {
    struct memory *found = find((unsigned long long)at);
    return found && found->synced;
}

/* Whether a kernel runs: then each call that CUDA's documentation allows to wait for it waits. How many addresses were asked about. */
static int kernel_runs, looks;
void fake_kernel(int runs) { __atomic_store_n(&kernel_runs, runs, __ATOMIC_SEQ_CST); }
int fake_looks(void) { return __atomic_load_n(&looks, __ATOMIC_SEQ_CST); }
static void may_wait(void) {
    while (__atomic_load_n(&kernel_runs, __ATOMIC_SEQ_CST))
        usleep(100);
}

/* How many dma-bufs were made. */
int fake_exported(void) { return exported; }

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { return *version = 12040, OK; }
int cuDeviceGetCount(int *devices) { return *devices = 1, OK; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? INVALID_VALUE : OK; }

int cuDeviceGetAttribute(int *value, unsigned attribute, int device) {
    const char *exports = getenv("FAKE_CUDA_EXPORTS");
    (void)attribute, (void)device;
    *value = !exports || strcmp(exports, "0");
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = all, OK; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, OK; }
int cuCtxPushCurrent_v2(void *context) { return (void)context, OK; }
int cuCtxPopCurrent_v2(void **context) { return *context = all, OK; }
int cuGetErrorName(unsigned error, const char **name) { return (void)error, *name = "FAKE_ERROR", OK; }

int cuMemAlloc_v2(unsigned long long *at, size_t size) {
    may_wait();
    *at = (unsigned long long)fake_allocate(size, 0);
    return *at ? OK : OUT_OF_MEMORY;
}

/* Its place stays taken. */
int cuMemFree_v2(unsigned long long at) {
    may_wait();
    struct memory *found = find(at);
    if (!found || at != found->base)
        return INVALID_VALUE;
    munmap((void *)found->base, found->size);
    munmap(found->bytes, found->size);
    found->size = 0;
    return OK;
}

int cuPointerGetAttributes(unsigned asked, unsigned *attributes, void **data, unsigned long long at) {
    struct memory *found = find(at);
    __atomic_fetch_add(&looks, 1, __ATOMIC_SEQ_CST);
    if (!found)
        return OK;
    for (unsigned i = 0; i < asked; i++)
        switch (attributes[i]) {
        case 2: *(unsigned *)data[i] = 2; break;
        case 6: *(unsigned *)data[i] = (unsigned)found->synced; break;
        case 8: *(unsigned char *)data[i] = (unsigned char)found->managed; break;
        case 9: *(int *)data[i] = 0; break;
        case 11: *(unsigned long long *)data[i] = found->base; break;
        case 12: *(size_t *)data[i] = found->size; break;
        default: return INVALID_VALUE;
        }
    return OK;
}

int cuPointerSetAttribute(const void *value, unsigned attribute, unsigned long long at) {
    struct memory *found = find(at);
    if (!found || attribute != 6)
        return INVALID_VALUE;
    if (getenv("FAKE_CUDA_REFUSES_SYNC"))
        return NOT_SUPPORTED;
    found->synced = (int)*(const unsigned *)value;
    return OK;
}

/* A dma-buf is a file of its size that says where the bytes are. */
int cuMemGetHandleForAddressRange(int *handle, unsigned long long at, size_t size, unsigned type, unsigned long long flags) {
    struct memory *found = find(at);
    (void)flags;
    if (!found || type != 1 || at % PAGE || size % PAGE || at + size > found->base + found->size)
        return INVALID_VALUE;
    unsigned long long told[2] = {MAGIC, (unsigned long long)fake_bytes((void *)at)};
    int fd = memfd_create("trunkline.fake.dmabuf", 0);
    if (fd < 0 || ftruncate(fd, (off_t)size) || pwrite(fd, told, sizeof told, 0) != sizeof told)
        return NOT_SUPPORTED;
    exported++;
    *handle = fd;
    return OK;
}

/* Copies, on a stream that is none; how many there were. */
static int copies;
int fake_copies(void) { return copies; }

/* How often what NICs brought was waited for. */
static int flushes;
int fake_flushes(void) { return flushes; }
int cuFlushGPUDirectRDMAWrites(int target, int scope) { return target != 0 || scope != 100 ? INVALID_VALUE : (flushes++, OK); }

/* Streams: one that waits for no kernel of others, and one that waits for those of the default stream. */
static char streams[2];
static int is_stream(void *stream) { return stream == &streams[0] || stream == &streams[1]; }
static void copies_on(void *stream) {
    if (stream == &streams[0])
        may_wait();
}
int cuStreamCreate(void **stream, unsigned flags) { return flags > 1 ? INVALID_VALUE : (*stream = &streams[flags], OK); }
int cuStreamDestroy_v2(void *stream) { return is_stream(stream) ? OK : INVALID_VALUE; }
int cuStreamSynchronize(void *stream) { return is_stream(stream) ? (copies_on(stream), OK) : INVALID_VALUE; }

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream) {
    char *bytes = fake_bytes((void *)from);
    if (!bytes || !is_stream(stream))
        return INVALID_VALUE;
    copies_on(stream);
    memcpy(to, bytes, size);
    copies++;
    return OK;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream) {
    char *bytes = fake_bytes((void *)to);
    if (!bytes || !is_stream(stream))
        return INVALID_VALUE;
    copies_on(stream);
    memcpy(bytes, from, size);
    copies++;
    return OK;
}
