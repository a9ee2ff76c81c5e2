/* Replaces AMD's runtime, libamdhip64.so, with one device or STUB_DEVICES. It follows these rules of the runtime:
 * - Each thread has a current device. Ids of allocations have 32 bits, and repeat.
 * - Handles are those of legacy.h. Memory that was exported once stays allocated until its process ends (as of ROCm 7;
 *   not with STUB_HIP_PINS=0). Memory of pools, and memory mapped at chosen addresses, has no handle.
 * - Each device copies only its own memory, host memory, and memory that is mapped for it, inside one allocation. Real
 *   devices find a slower way.
 * - Calls that allocate, free, open or close memory, and calls that create or destroy streams, wait for a running
 *   kernel (device.h). */
#include "legacy.h"
#include "streams.h"

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, MAP_FAILED_ = 205,
    ALREADY_MAPPED = 208, NOT_READY = 600
};

/* Values of more[0] of a range. more[1] of an open range: whether all devices share it. */
enum { PLAIN, POOLED, VIRTUAL };

/* After the devices there is one without memory. Each thread begins with it, so code that chooses no device fails. */
static __thread int chosen = -1;

static int devices(void) { return getenv("STUB_DEVICES") ? atoi(getenv("STUB_DEVICES")) : 1; }
static int current(void) { return chosen < 0 ? devices() : chosen; }

int hipInit(unsigned flags) { return flags ? INVALID_VALUE : begin() ? NO_DEVICE : OK; }
int hipRuntimeGetVersion(int *version) { return *version = 70051831, OK; }
int hipGetDeviceCount(int *count) { return *count = devices() + 1, OK; }
int hipGetDevice(int *found) { return mine(), *found = current(), OK; }
int hipSetDevice(int wanted) { return wanted >= 0 && wanted <= devices() ? (chosen = wanted, OK) : INVALID_DEVICE; }
const char *hipGetErrorName(unsigned error) { return (void)error, "hipStubError"; }
u64 stub_current(void) { return (u64)current(); }

static int allocate_as(void **at, size_t size, u64 kind) {
    if (current() == devices())
        return OUT_OF_MEMORY;
    wait_for_kernel();
    enter();
    struct range *made = allocate(size);
    if (made)
        *at = (void *)made->va, made->on = (u64)current(), made->more[0] = kind;
    leave();
    return made ? OK : OUT_OF_MEMORY;
}

int hipMalloc(void **at, size_t size) { return allocate_as(at, size, PLAIN); }

/* For tests: allocates memory of that sort on the first device. */
u64 stub_make(const char *sort, u64 len) {
    void *at = NULL;
    int before = chosen;
    chosen = 0;
    if (!strcmp(sort, "pooled"))
        allocate_as(&at, len, POOLED);
    if (!strcmp(sort, "virtual"))
        allocate_as(&at, len, VIRTUAL);
    if (!strcmp(sort, "segments")) {
        enter();
        struct range *made = allocate_two(len / 2, 0, PLAIN);
        leave();
        at = made ? (void *)made->va : NULL;
    }
    chosen = before;
    return (u64)at;
}

int hipFree(void *at) {
    wait_for_kernel();
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
        *out = (struct attributes){2, (int)found->on, (void *)at, NULL, 0, 0};
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
    int is_it = found && !found->import && found->va == (u64)at && found->more[0] == PLAIN && found->on == (u64)current();
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
    if (current() == devices())
        return MAP_FAILED_;
    wait_for_kernel();
    enter();
    enum outcome outcome = open_handle(&handle, (u64)current(), &opened);
    leave();
    if (outcome != OPENED)
        return outcome == MAPPED ? ALREADY_MAPPED : outcome == OWN ? INVALID_CONTEXT : INVALID_VALUE;
    return *at = (void *)opened->va, OK;
}

int hipIpcCloseMemHandle(void *at) {
    wait_for_kernel();
    enter();
    struct range *found = find((u64)at);
    int is_ours = found && (found->on == (u64)current() || found->more[1]);
    int failed = !is_ours || close_handle((u64)at);
    leave();
    return failed ? INVALID_VALUE : OK;
}

static struct stream *stream_of(void *stream) {
    return current() < devices() ? find_stream(stream, (u64)current()) : NULL;
}

int hipStreamCreateWithFlags(void **stream, unsigned flags) {
    if (current() == devices() || flags != 1)
        return INVALID_VALUE;
    wait_for_kernel();
    return (*stream = make_stream((u64)current())) ? OK : OUT_OF_MEMORY;
}

int hipStreamDestroy(void *stream) {
    struct stream *of = (mine(), wait_for_kernel(), stream_of(stream));
    return of ? (land_stream(of), of->live = 0, OK) : INVALID_VALUE;
}

int hipStreamSynchronize(void *stream) {
    struct stream *of = stream_of(stream);
    return of && !wait_for_stream(of) ? OK : INVALID_VALUE;
}

int hipEventCreateWithFlags(void **event, unsigned flags) {
    if (current() == devices() || flags != 2)
        return INVALID_VALUE;
    return (*event = make_event()) ? OK : OUT_OF_MEMORY;
}

int hipEventDestroy(void *event) { return ((struct event *)event)->live = 0, OK; }

int hipEventRecord(void *event, void *stream) {
    struct stream *of = stream_of(stream);
    return of ? (record_event(event, of), OK) : INVALID_VALUE;
}

int hipEventQuery(void *event) { return is_over(event) ? OK : NOT_READY; }

#include "pins.h"

int hipHostRegister(void *at, size_t size, unsigned flags) {
    if (current() == devices() || flags != 1)
        return INVALID_VALUE;
    wait_for_kernel();
    return pin(at, size) ? OUT_OF_MEMORY : OK;
}
int hipHostUnregister(void *at) { return current() < devices() && (wait_for_kernel(), !unpin(at)) ? OK : INVALID_VALUE; }

static int touchable(u64 at, size_t size) {
    enter();
    struct range *found = find(at);
    int is_it = is_whole(at, size) && (!found || found->on == (u64)current() || found->more[1]);
    leave();
    return is_it;
}

int hipMemcpyAsync(void *to, const void *from, size_t size, unsigned kind, void *stream) {
    struct stream *of = stream_of(stream);
    if (kind != 4 || !of || !touchable((u64)to, size) || !touchable((u64)from, size))
        return INVALID_VALUE;
    return begin_copy(of, (u64)to, (u64)from, size) ? INVALID_VALUE : OK;
}
