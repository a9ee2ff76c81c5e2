/* Replaces NVIDIA's driver, libcuda.so.1, with one device or STUB_DEVICES. It follows these rules of the driver:
 * - Each thread has a stack of contexts, and most calls need one. The primary context ends with its last user, and all
 *   memory that it has opened is closed with it.
 * - cudaMalloc's memory has legacy handles (legacy.h). Physical memory of cuMemCreate lives while any descriptor,
 *   handle or mapping holds it, at addresses that the importer chooses. Memory of pools has no legacy handle.
 * - Each device copies only its own memory, host memory, and memory that is mapped for it. Real devices find a slower
 *   way.
 * - Synchronous copies and memsets return early, and land when the context is synchronized. They land at once if their
 *   memory has SYNC_MEMOPS, which VIRTUAL and POOLED memory refuses, if the context has the flag, or with
 *   STUB_EARLY=off. With STUB_CTX_FLAGS=refuse no context accepts flags.
 * - Calls that allocate, free, map, unmap, open or close memory, and calls that create or destroy streams, wait for a
 *   running kernel (device.h). */
#include "legacy.h"

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, ALREADY_MAPPED = 208,
    INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, UNKNOWN = 999
};

/* Values of more[0] of a range. */
enum { LEGACY, POOLED, VIRTUAL };
/* more[1] of a VIRTUAL range is its physical memory; more[2]: whether the device may access it. */

static struct physical {
    u64 start, len;
    int fd, handles, mappings, types;
} physicals[RANGES];

static struct reserved {
    u64 va, len;
} reserves[RANGES];

/* The primary context of each device. */
enum { DEVICES = 4 };
static int primary[DEVICES];
static unsigned context_flags[DEVICES];
enum { SYNC_MEMOPS = 6, CTX_SYNC_MEMOPS = 0x80 };

/* A copy or memset that has returned early and not landed, with the id of its allocation. */
static struct late {
    u64 at, id;
    size_t len;
    char *bytes;
} lates[64];
static __thread void *stack[16];
static __thread int depth;

static int here(void) { return depth > 0 && stack[depth - 1] != NULL; }
/* Returns the device of the thread's current context. */
static u64 on(void) { return (u64)((int *)stack[depth - 1] - primary); }
static int devices(void) { return getenv("STUB_DEVICES") ? atoi(getenv("STUB_DEVICES")) : 1; }

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : begin() ? NO_DEVICE : OK; }
int cuDriverGetVersion(int *version) { return *version = 12040, OK; }

/* NVRTC 12.9 requests a private table from each loaded driver, and uses the result unchecked if the function is absent.
 * */
int cuGetExportTable(const void **table, const void *id) { return (void)table, (void)id, NOT_FOUND; }
int cuDeviceGetCount(int *count) { return *count = devices(), OK; }
int cuDeviceGet(int *found, int ordinal) { return *found = ordinal, ordinal < 0 || ordinal >= devices() ? INVALID_VALUE : OK; }
int cuDeviceGetAttribute(int *value, unsigned attribute, int of) { return (void)attribute, (void)of, *value = 0, OK; }
int cuGetErrorName(unsigned error, const char **name) { return (void)error, *name = "STUB_ERROR", OK; }

int cuDevicePrimaryCtxRetain(void **context, int of) {
    if (of < 0 || of >= devices())
        return INVALID_VALUE;
    enter();
    primary[of]++, counters[CONTEXTS]++;
    leave();
    return *context = &primary[of], OK;
}

int cuDevicePrimaryCtxRelease_v2(int of) {
    if (of < 0 || of >= devices())
        return INVALID_VALUE;
    enter();
    primary[of]--, counters[CONTEXTS]--;
    for (int i = 0; !primary[of] && i < RANGES; i++)
        if (ranges[i].len && ranges[i].more[0] == LEGACY && ranges[i].on == (u64)of)
            ranges[i].import ? unmap(&ranges[i]) : release(&ranges[i]);
    if (!primary[of])
        context_flags[of] = 0;
    leave();
    return OK;
}

int cuCtxGetFlags(unsigned *flags) { return here() ? (*flags = context_flags[on()], OK) : INVALID_CONTEXT; }
int cuCtxSetFlags(unsigned flags) {
    const char *rule = getenv("STUB_CTX_FLAGS");
    if (!here())
        return INVALID_CONTEXT;
    return rule && !strcmp(rule, "refuse") ? NOT_SUPPORTED : (context_flags[on()] = flags, OK);
}

int cuCtxPushCurrent_v2(void *context) { return mine(), depth == 16 ? OUT_OF_MEMORY : (stack[depth++] = context, OK); }
int cuCtxPopCurrent_v2(void **context) { return depth ? (*context = stack[--depth], OK) : INVALID_CONTEXT; }
u64 stub_depth(void) { return (u64)depth; }

static int allocate_as(u64 *at, size_t size, u64 kind) {
    if (!here())
        return INVALID_CONTEXT;
    wait_for_kernel();
    enter();
    struct range *made = allocate(size);
    if (made)
        *at = made->va, made->more[0] = kind, made->on = on();
    leave();
    return made ? OK : OUT_OF_MEMORY;
}

int cuMemAlloc_v2(u64 *at, size_t size) { return allocate_as(at, size, LEGACY); }
int cuMemAllocAsync(u64 *at, size_t size, void *stream) { return (void)stream, allocate_as(at, size, POOLED); }

int cuMemFree_v2(u64 at) {
    if (!here())
        return INVALID_CONTEXT;
    wait_for_kernel();
    enter();
    struct range *found = find(at);
    int is_it = found && !found->import && found->va == at && found->more[0] != VIRTUAL;
    if (is_it)
        release(found);
    leave();
    return is_it ? OK : INVALID_VALUE;
}

static struct reserved *reserved_at(u64 at) {
    for (int i = 0; i < RANGES; i++)
        if (reserves[i].len && at >= reserves[i].va && at - reserves[i].va < reserves[i].len)
            return &reserves[i];
    return NULL;
}

int cuPointerGetAttributes(unsigned asked, unsigned *attributes, void **data, u64 at) {
    int result = OK;
    if (!here())
        return INVALID_CONTEXT;
    enter();
    struct range *found = find(at);
    struct reserved *all = reserved_at(at);
    for (unsigned i = 0; i < asked && (found || all) && result == OK; i++) {
        u64 kind = found ? found->more[0] : VIRTUAL;
        struct physical *physical = found && kind == VIRTUAL ? &physicals[found->more[1]] : NULL;
        switch (attributes[i]) {
        case 2: *(unsigned *)data[i] = found ? 2 : 0; break;
        case 6: *(unsigned *)data[i] = found ? (unsigned)found->sync : 0; break;
        case 7: *(u64 *)data[i] = found ? found->id : 0; break;
        case 8: *(unsigned char *)data[i] = 0; break;
        case 9: *(int *)data[i] = found ? (int)found->on : 0; break;
        case 10: *(unsigned *)data[i] = found && kind == LEGACY; break;
        case 11: *(u64 *)data[i] = all ? all->va : found->va; break;
        case 12: *(size_t *)data[i] = all ? all->len : found->len; break;
        case 14: *(u64 *)data[i] = physical ? (u64)physical->types : 0; break;
        case 17: *(void **)data[i] = kind == POOLED ? ranges : NULL; break;
        default: result = INVALID_VALUE;
        }
    }
    leave();
    return result;
}

/* Lands the pending operations of an allocation, or all of them if it is NULL. */
static void land(const struct range *of) {
    for (int i = 0; i < 64; i++) {
        struct range *found = lates[i].len ? find(lates[i].at) : NULL;
        if (!lates[i].len || (of && of != found))
            continue;
        if (found && found->id == lates[i].id)
            memcpy(found->bytes + (lates[i].at - found->va), lates[i].bytes, lates[i].len);
        free(lates[i].bytes);
        lates[i].len = 0;
    }
}

int cuPointerSetAttribute(const void *value, unsigned attribute, u64 at) {
    if (!here())
        return INVALID_CONTEXT;
    if (attribute != SYNC_MEMOPS)
        return INVALID_VALUE;
    enter();
    struct range *found = find(at);
    int takes = found && !found->import && found->more[0] == LEGACY;
    if (takes)
        land(found), found->sync = *(const unsigned *)value != 0, counters[SYNCS]++;
    leave();
    return takes ? OK : found ? NOT_SUPPORTED : INVALID_VALUE;
}

int cuMemGetAddressRange_v2(u64 *base, size_t *size, u64 at) {
    enter();
    struct range *found = find(at);
    if (found)
        *base = found->va, *size = found->len;
    leave();
    return found ? OK : INVALID_VALUE;
}

int cuIpcGetMemHandle(struct ipc_handle *handle, u64 at) {
    if (!here())
        return INVALID_CONTEXT;
    enter();
    struct range *found = find(at);
    int is_it = found && !found->import && found->va == at && found->more[0] == LEGACY;
    if (is_it)
        *handle = handle_of(found);
    leave();
    return is_it ? OK : INVALID_VALUE;
}

int cuIpcOpenMemHandle_v2(u64 *at, struct ipc_handle handle, unsigned flags) {
    struct range *opened = NULL;
    if (!here())
        return INVALID_CONTEXT;
    if (flags != 1)
        return INVALID_VALUE;
    wait_for_kernel();
    enter();
    enum outcome outcome = open_handle(&handle, on(), &opened);
    leave();
    if (outcome != OPENED)
        /* The last but one is the value of driver 580. */
        return outcome == MAPPED   ? ALREADY_MAPPED
               : outcome == OWN    ? INVALID_CONTEXT
               : outcome == REUSED ? NOT_PERMITTED
                                   : INVALID_VALUE;
    return *at = opened->va, OK;
}

int cuIpcCloseMemHandle(u64 at) {
    if (!here())
        return INVALID_CONTEXT;
    wait_for_kernel();
    enter();
    struct range *found = find(at);
    int failed = !found || found->on != on() || close_handle(at);
    leave();
    return failed ? INVALID_VALUE : OK;
}

/* Physical memory. */

struct properties {
    unsigned type, handle_types, location, device;
    void *metadata;
    unsigned char flags[8];
};

static struct physical *physical_of(u64 handle) {
    return handle && handle <= RANGES && physicals[handle - 1].handles > 0 ? &physicals[handle - 1] : NULL;
}

static struct physical *vacant_physical(void) {
    for (int i = 0; i < RANGES; i++)
        if (!physicals[i].len)
            return &physicals[i];
    return NULL;
}

static u64 number(struct physical *of) { return (u64)(of - physicals) + 1; }

static void let_go(struct physical *of) {
    if (of->handles || of->mappings)
        return;
    close(of->fd);
    of->len = 0;
    reap();
}

int cuMemGetAllocationGranularity(size_t *granularity, const struct properties *of, unsigned option) {
    return (void)of, (void)option, *granularity = GRANULE, OK;
}

int cuMemCreate(u64 *handle, size_t size, const struct properties *of, u64 flags) {
    int slot, fd = -1;
    if (flags || size % GRANULE || of->type != 1 || of->location != 1 || of->device)
        return INVALID_VALUE;
    enter();
    struct physical *made = vacant_physical();
    if (made && (fd = place(size, &slot)) >= 0) {
        *made = (struct physical){table->slots[slot].start, size, fd, 1, 0, (int)of->handle_types};
        *handle = number(made);
    }
    leave();
    return fd < 0 ? OUT_OF_MEMORY : OK;
}

int cuMemRelease(u64 handle) {
    enter();
    struct physical *found = physical_of(handle);
    if (found && found->handles == 1 && !found->mappings) {
        /* Frees it. */
        leave();
        wait_for_kernel();
        enter();
    }
    if (found)
        found->handles--, counters[PUTS]++, let_go(found);
    leave();
    return found ? OK : INVALID_VALUE;
}

int cuMemRetainAllocationHandle(u64 *handle, void *at) {
    enter();
    struct range *found = find((u64)at);
    int is_it = found && found->more[0] == VIRTUAL;
    if (is_it)
        physicals[found->more[1]].handles++, counters[GETS]++, *handle = found->more[1] + 1;
    leave();
    return is_it ? OK : INVALID_VALUE;
}

int cuMemExportToShareableHandle(void *out, u64 handle, unsigned type, u64 flags) {
    enter();
    struct physical *found = physical_of(handle);
    /* Fabric handles (8) need a channel, which does not exist here. */
    int fd = found && (found->types & 1) && type == 1 && !flags ? hold(found->start, round_up(found->len)) : -1;
    leave();
    return fd < 0 ? INVALID_VALUE : (*(int *)out = fd, OK);
}

int cuMemImportFromShareableHandle(u64 *handle, void *in, unsigned type) {
    enter();
    struct record *record = type == 1 ? record_of((int)(intptr_t)in) : NULL;
    struct physical *made = record ? vacant_physical() : NULL;
    int fd = made ? hold(record->start, record->span) : -1;
    if (fd >= 0) {
        *made = (struct physical){record->start, record->len, fd, 1, 0, 1};
        *handle = number(made), counters[OPENS]++;
    }
    leave();
    /* As driver 580 does for a descriptor of no memory. */
    return fd >= 0 ? OK : record ? INVALID_VALUE : UNKNOWN;
}

/* Reserved addresses: ranges of a separate kind hold them while nothing is mapped there. */
int cuMemAddressReserve(u64 *at, size_t size, size_t alignment, u64 wanted, u64 flags) {
    (void)alignment, (void)wanted;
    struct reserved *made = NULL;
    if (!size || size % GRANULE || flags)
        return INVALID_VALUE;
    enter();
    for (int i = 0; i < RANGES && !made; i++)
        made = reserves[i].len ? NULL : &reserves[i];
    u64 va = (u64)own_window + WINDOW / 2;
    for (int again = 1; again;) {
        again = 0;
        va = addresses((char *)va, size);
        for (int i = 0; i < RANGES && va; i++)
            if (reserves[i].len && reserves[i].va < va + size && va < reserves[i].va + reserves[i].len)
                va = reserves[i].va + reserves[i].len, again = 1;
    }
    if (made && va)
        *made = (struct reserved){va, size}, *at = va;
    leave();
    return made && va ? OK : OUT_OF_MEMORY;
}

int cuMemAddressFree(u64 at, size_t size) {
    enter();
    struct reserved *found = reserved_at(at);
    int is_it = found && found->va == at && found->len == size;
    for (int i = 0; i < RANGES && is_it; i++)
        is_it = !ranges[i].len || ranges[i].va + ranges[i].len <= at || ranges[i].va >= at + size;
    if (is_it)
        found->len = 0;
    leave();
    return is_it ? OK : INVALID_VALUE;
}

int cuMemMap(u64 at, size_t size, size_t offset, u64 handle, u64 flags) {
    int result = INVALID_VALUE;
    wait_for_kernel();
    enter();
    struct physical *physical = physical_of(handle);
    struct reserved *all = reserved_at(at);
    struct range *made = vacant();
    if (physical && all && made && !offset && !flags && size == physical->len && at + size <= all->va + all->len && !find(at)) {
        char *bytes = map(physical->start, size);
        result = bytes ? OK : OUT_OF_MEMORY;
        if (bytes) {
            *made = (struct range){.va = at, .len = size, .span = size, .id = table->next_id++, .start = physical->start,
                                   .bytes = bytes, .refs = 1, .more = {VIRTUAL, number(physical) - 1, 0}};
            physical->mappings++;
        }
    }
    leave();
    return result;
}

int cuMemUnmap(u64 at, size_t size) {
    int result = INVALID_VALUE;
    wait_for_kernel();
    enter();
    /* Unmaps all segments inside. */
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].len && ranges[i].more[0] == VIRTUAL && ranges[i].va >= at && ranges[i].va + ranges[i].len <= at + size) {
            struct physical *physical = &physicals[ranges[i].more[1]];
            unmap(&ranges[i]);
            physical->mappings--, counters[CLOSES]++;
            let_go(physical);
            result = OK;
        }
    leave();
    return result;
}

struct access {
    unsigned location, device, flags;
};

int cuMemSetAccess(u64 at, size_t size, const struct access *access, size_t count) {
    int result = INVALID_VALUE;
    wait_for_kernel();
    enter();
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].len && ranges[i].more[0] == VIRTUAL && ranges[i].va >= at && ranges[i].va + ranges[i].len <= at + size)
            ranges[i].more[2] = count == 1 && access->location == 1 && access->flags == 3, ranges[i].on = access->device, result = OK;
    leave();
    return result;
}

int cuMemGetInfo_v2(size_t *vacant, size_t *total) {
    if (!here())
        return INVALID_CONTEXT;
    enter();
    *total = table->capacity, *vacant = table->capacity - used();
    leave();
    return OK;
}

#include "streams.h"

static struct stream *stream_of(void *stream) { return here() ? find_stream(stream, on()) : NULL; }

int cuStreamCreate(void **stream, unsigned flags) {
    if (!here() || flags != 1)
        return here() ? INVALID_VALUE : INVALID_CONTEXT;
    wait_for_kernel();
    return (*stream = make_stream(on())) ? OK : OUT_OF_MEMORY;
}

int cuStreamDestroy_v2(void *stream) {
    struct stream *of = (mine(), wait_for_kernel(), stream_of(stream));
    return of ? (land_stream(of), of->live = 0, OK) : INVALID_VALUE;
}

int cuStreamSynchronize(void *stream) {
    struct stream *of = stream_of(stream);
    return of && !wait_for_stream(of) ? OK : INVALID_VALUE;
}

int cuEventCreate(void **event, unsigned flags) {
    if (!here() || flags != 2)
        return here() ? INVALID_VALUE : INVALID_CONTEXT;
    return (*event = make_event()) ? OK : OUT_OF_MEMORY;
}

int cuEventDestroy_v2(void *event) { return here() ? (((struct event *)event)->live = 0, OK) : INVALID_CONTEXT; }

int cuEventRecord(void *event, void *stream) {
    struct stream *of = stream_of(stream);
    return of ? (record_event(event, of), OK) : INVALID_VALUE;
}

int cuEventQuery(void *event) { return !here() ? INVALID_CONTEXT : is_over(event) ? OK : NOT_READY; }

static int touchable(u64 at) {
    enter();
    struct range *found = find(at);
    int is_it = !found || (found->on == on() && (found->more[0] != VIRTUAL || found->more[2]));
    leave();
    return is_it;
}

int cuMemcpyAsync(u64 to, u64 from, size_t size, void *stream) {
    struct stream *of = stream_of(stream);
    if (!of)
        return INVALID_CONTEXT;
    return touchable(to) && touchable(from) && !begin_copy(of, to, from, size) ? OK : INVALID_VALUE;
}

#include "pins.h"

int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    if (!here() || flags != 1)
        return here() ? INVALID_VALUE : INVALID_CONTEXT;
    wait_for_kernel();
    return pin(at, size) ? OUT_OF_MEMORY : OK;
}
int cuMemHostUnregister(void *at) { return here() && (wait_for_kernel(), !unpin(at)) ? OK : INVALID_VALUE; }

/* All requested operations of the device have been done when it returns. */
int cuCtxSynchronize(void) {
    if (!here())
        return INVALID_CONTEXT;
    enter(), land(NULL), leave();
    return OK;
}
/* Copies bytes, which it frees, to device memory: at once, or later if synchronous calls return early. */
static int write_bytes(u64 to, char *bytes, size_t len) {
    const char *rule = getenv("STUB_EARLY");
    if (!here())
        return free(bytes), INVALID_CONTEXT;
    enter();
    struct range *found = find(to);
    int is_late = found && to + len <= found->va + found->len && !found->sync && !(context_flags[on()] & CTX_SYNC_MEMOPS) &&
                  !(rule && !strcmp(rule, "off"));
    for (int i = 0; is_late && i < 64; i++)
        if (!lates[i].len) {
            lates[i] = (struct late){to, found->id, len, bytes};
            return leave(), OK;
        }
    leave();
    int failed = transfer(to, (u64)bytes, len);
    return free(bytes), failed ? INVALID_VALUE : OK;
}

int cuMemsetD8_v2(u64 to, unsigned char value, size_t len) {
    char *bytes = malloc(len);
    return bytes ? write_bytes(to, memset(bytes, value, len), len) : OUT_OF_MEMORY;
}

int cuMemcpyHtoD_v2(u64 to, const void *from, size_t len) {
    char *bytes = malloc(len);
    return bytes ? write_bytes(to, memcpy(bytes, from, len), len) : OUT_OF_MEMORY;
}

/* For tests, as a user of the first device: fills an allocation with sevens; and waits. */
u64 stub_set(u64 at) {
    void *context;
    enter();
    struct range *found = find(at);
    size_t len = found ? found->len : 0;
    leave();
    cuDevicePrimaryCtxRetain(&context, 0), cuCtxPushCurrent_v2(context);
    int result = cuMemsetD8_v2(at, 7, len);
    cuCtxPopCurrent_v2(&context), cuDevicePrimaryCtxRelease_v2(0);
    return (u64)result;
}
u64 stub_wait(void) {
    void *context;
    cuDevicePrimaryCtxRetain(&context, 0), cuCtxPushCurrent_v2(context);
    int result = cuCtxSynchronize();
    cuCtxPopCurrent_v2(&context), cuDevicePrimaryCtxRelease_v2(0);
    return (u64)result;
}

/* Makes adjacent physical memory, each of that many bytes, with those types of handles. */
static u64 make_segments(u64 count, u64 len, unsigned types) {
    struct properties of = {.type = 1, .handle_types = types, .location = 1};
    struct access access = {1, 0, 3};
    u64 base = 0;
    int result = cuMemAddressReserve(&base, count * len, 0, 0, 0);
    for (u64 i = 0; i < count && result == OK; i++) {
        u64 handle = 0;
        result = cuMemCreate(&handle, len, &of, 0);
        if (result == OK)
            result = cuMemMap(base + i * len, len, 0, handle, 0), cuMemRelease(handle);
    }
    return result == OK && cuMemSetAccess(base, count * len, &access, 1) == OK ? base : 0;
}

/* For tests: allocates memory of that sort on the first device. */
u64 stub_make(const char *sort, u64 len) {
    void *context;
    u64 at = 0;
    cuDevicePrimaryCtxRetain(&context, 0), cuCtxPushCurrent_v2(context);
    if (!strcmp(sort, "pooled"))
        cuMemAllocAsync(&at, len, NULL);
    if (!strcmp(sort, "segments"))
        at = make_segments(2, len / 2, 1);
    /* Each segment is on its own device. */
    if (!strcmp(sort, "two devices") && (at = make_segments(2, len / 2, 1)))
        enter(), find(at + len / 2)->on = 1, leave();
    if (!strcmp(sort, "unshareable"))
        at = make_segments(1, len, 0);
    if (!strcmp(sort, "fabric"))
        at = make_segments(1, len, 8);
    if (!strcmp(sort, "either"))
        at = make_segments(1, len, 8 | 1);
    cuCtxPopCurrent_v2(&context);
    return at;
}
