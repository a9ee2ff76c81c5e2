/* In place of AMD's runtime, libamdhip64.so, with its rules: a thread has a device of its own, ids of allocations have 32 bits and come
 * again, handles are as in legacy.h, and memory that was exported once stays taken until its process ends, whatever becomes of
 * it (as of ROCm 7; not with STUB_HIP_PINS=0). */
#include "legacy.h"

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, MAP_FAILED_ = 205,
    ALREADY_MAPPED = 208
};

/* Two devices, of which the second has no memory. A thread begins with the second, so that who does not choose finds nothing. */
static __thread int current = 1;

int hipInit(unsigned flags) { return flags ? INVALID_VALUE : begin() ? NO_DEVICE : OK; }
int hipRuntimeGetVersion(int *version) { return *version = 70051831, OK; }
int hipGetDeviceCount(int *devices) { return *devices = 2, OK; }
int hipGetDevice(int *found) { return mine(), *found = current, OK; }
int hipSetDevice(int wanted) { return wanted == 0 || wanted == 1 ? (current = wanted, OK) : INVALID_DEVICE; }
const char *hipGetErrorName(unsigned error) { return (void)error, "hipStubError"; }
u64 stub_current(void) { return (u64)current; }

int hipMalloc(void **at, size_t size) {
    if (current)
        return OUT_OF_MEMORY;
    enter();
    struct range *made = allocate(size);
    if (made)
        *at = (void *)made->va;
    leave();
    return made ? OK : OUT_OF_MEMORY;
}

int hipFree(void *at) {
    enter();
    struct range *found = find((u64)at);
    int is_it = found && !found->import && found->va == (u64)at;
    if (is_it)
        release(found);
    leave();
    return is_it ? OK : INVALID_VALUE;
}

struct attributes {
    unsigned type;
    int device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
};

int hipPointerGetAttributes(struct attributes *out, const void *at) {
    enter();
    struct range *found = find((u64)at);
    leave();
    memset(out, 0, sizeof *out);
    if (found)
        *out = (struct attributes){2, 0, (void *)at, NULL, 0, 0};
    return OK;
}

int hipPointerGetAttribute(void *data, unsigned attribute, void *at) {
    enter();
    struct range *found = find((u64)at);
    if (found && attribute == 7)
        *(uint32_t *)data = (uint32_t)found->id;
    leave();
    return found && attribute == 7 ? OK : INVALID_VALUE;
}

int hipMemGetAddressRange(void **base, size_t *size, void *at) {
    enter();
    struct range *found = find((u64)at);
    if (found)
        *base = (void *)found->va, *size = found->len;
    leave();
    return found ? OK : INVALID_VALUE;
}

int hipIpcGetMemHandle(struct ipc_handle *handle, void *at) {
    const char *pins = getenv("STUB_HIP_PINS");
    enter();
    struct range *found = find((u64)at);
    int is_it = found && !found->import && found->va == (u64)at;
    if (is_it) {
        *handle = handle_of(found);
        /* The descriptor is never closed. */
        if (!pins || strcmp(pins, "0"))
            is_it = hold(found->start, found->span) >= 0;
    }
    leave();
    return is_it ? OK : INVALID_VALUE;
}

int hipIpcOpenMemHandle(void **at, struct ipc_handle handle, unsigned flags) {
    struct range *opened = NULL;
    if (flags != 1)
        return INVALID_VALUE;
    if (current)
        return MAP_FAILED_;
    enter();
    enum outcome outcome = open_handle(&handle, 0, &opened);
    leave();
    if (outcome != OPENED)
        return outcome == MAPPED ? ALREADY_MAPPED : outcome == OWN ? INVALID_CONTEXT : INVALID_VALUE;
    return *at = (void *)opened->va, OK;
}

int hipIpcCloseMemHandle(void *at) {
    if (current)
        return INVALID_VALUE;
    enter();
    int failed = close_handle((u64)at);
    leave();
    return failed ? INVALID_VALUE : OK;
}

int hipStreamCreateWithFlags(void **stream, unsigned flags) {
    return current || flags != 1 ? INVALID_VALUE : (*stream = ranges, OK);
}
int hipStreamDestroy(void *stream) { return mine(), stream == ranges ? OK : INVALID_VALUE; }
int hipStreamSynchronize(void *stream) { return stream == ranges ? OK : INVALID_VALUE; }

int hipMemcpyAsync(void *to, const void *from, size_t size, unsigned kind, void *stream) {
    if (kind != 4 || stream != ranges)
        return INVALID_VALUE;
    return transfer((u64)to, (u64)from, size) ? INVALID_VALUE : OK;
}
