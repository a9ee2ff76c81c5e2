/* In place of Level Zero's loader, libze_loader.so.1, with the rules of Intel's driver: a handle begins with a descriptor of the process that
 * made it, the same one each time; the descriptor holds the memory, also when that is freed, until the handle was put as often as it
 * was got. Who opens maps what the descriptor is of, wherever there is room. A list of commands is of one thread at a time. */
#include "device.h"

enum {
    OK = 0, OUT_OF_DEVICE_MEMORY = 0x70000003, UNINITIALIZED = 0x78000001, INVALID_ARGUMENT = 0x78000004, IN_USE = 0x78000006
};

static struct exported {
    u64 start;
    int fd, gets;
} exports[RANGES];

struct ze_handle {
    int fd, zero;
    u64 magic, start, spare[5];
};

static char driver, gpu, context, list;
static int busy;

unsigned zeInit(unsigned flags) { return flags > 1 || begin() ? UNINITIALIZED : OK; }

static unsigned give(uint32_t *count, void **out, void *one) {
    if (*count && out)
        *out = one;
    return *count = 1, OK;
}

unsigned zeDriverGet(uint32_t *count, void **out) { return give(count, out, &driver); }
unsigned zeDeviceGet(void *of, uint32_t *count, void **out) {
    return of == &driver ? give(count, out, &gpu) : INVALID_ARGUMENT;
}
unsigned zeContextCreate(void *of, const void *desc, void **out) {
    return of == &driver && *(const unsigned *)desc == 0xd ? (*out = &context, OK) : INVALID_ARGUMENT;
}
unsigned zeContextDestroy(void *of) { return mine(), of == &context ? OK : INVALID_ARGUMENT; }

unsigned zeMemAllocDevice(void *of, const void *desc, size_t size, size_t alignment, void *on, void **at) {
    if (of != &context || on != &gpu || *(const unsigned *)desc != 0x15 || alignment > GRANULE)
        return INVALID_ARGUMENT;
    enter();
    struct range *made = allocate(size);
    if (made)
        *at = (void *)made->va;
    leave();
    return made ? OK : OUT_OF_DEVICE_MEMORY;
}

unsigned zeMemFree(void *of, void *at) {
    enter();
    struct range *found = of == &context ? find((u64)at) : NULL;
    int is_it = found && !found->import && found->va == (u64)at;
    if (is_it)
        release(found);
    leave();
    return is_it ? OK : INVALID_ARGUMENT;
}

struct properties {
    unsigned stype;
    void *next;
    unsigned type;
    uint64_t id, page;
};

unsigned zeMemGetAllocProperties(void *of, const void *at, struct properties *out, void **on) {
    if (of != &context || out->stype != 0x17)
        return INVALID_ARGUMENT;
    enter();
    struct range *found = find((u64)at);
    out->type = found ? 2 : 0;
    out->id = found ? found->id : 0;
    out->page = GRANULE;
    if (found && on)
        *on = &gpu;
    leave();
    return OK;
}

unsigned zeMemGetAddressRange(void *of, const void *at, void **base, size_t *size) {
    enter();
    struct range *found = of == &context ? find((u64)at) : NULL;
    if (found)
        *base = (void *)found->va, *size = found->len;
    leave();
    return found ? OK : INVALID_ARGUMENT;
}

unsigned zeMemGetIpcHandle(void *of, const void *at, struct ze_handle *out) {
    struct exported *found = NULL;
    enter();
    struct range *range = of == &context ? find((u64)at) : NULL;
    for (int i = 0; range && !range->import && i < RANGES && !found; i++)
        found = exports[i].gets && exports[i].start == range->start ? &exports[i] : NULL;
    for (int i = 0; range && !range->import && i < RANGES && !found; i++)
        if (!exports[i].gets) {
            found = &exports[i];
            *found = (struct exported){range->start, hold(range->start, range->span), 0};
        }
    if (found && found->fd >= 0) {
        found->gets++, counters[GETS]++;
        *out = (struct ze_handle){found->fd, 0, MAGIC, found->start, {0}};
    }
    leave();
    return found && found->fd >= 0 ? OK : INVALID_ARGUMENT;
}

unsigned zeMemPutIpcHandle(void *of, struct ze_handle handle) {
    unsigned result = INVALID_ARGUMENT;
    enter();
    for (int i = 0; of == &context && i < RANGES && result != OK; i++)
        if (exports[i].gets && exports[i].fd == handle.fd && exports[i].start == handle.start) {
            counters[PUTS]++, result = OK;
            if (!--exports[i].gets)
                close(exports[i].fd), reap();
        }
    leave();
    return result;
}

unsigned zeMemOpenIpcHandle(void *of, void *on, struct ze_handle handle, unsigned flags, void **at) {
    enter();
    int is_one = of == &context && on == &gpu && !flags && handle.magic == MAGIC;
    struct record *record = is_one ? record_of(handle.fd) : NULL;
    struct range *made = record && record->start == handle.start ? import(record) : NULL;
    if (made)
        *at = (void *)made->va, counters[OPENS]++;
    leave();
    return made ? OK : INVALID_ARGUMENT;
}

unsigned zeMemCloseIpcHandle(void *of, const void *at) {
    enter();
    struct range *found = of == &context ? find((u64)at) : NULL;
    int is_it = found && found->import && found->va == (u64)at;
    if (is_it)
        unmap(found), counters[CLOSES]++;
    leave();
    return is_it ? OK : INVALID_ARGUMENT;
}

struct queue {
    unsigned stype;
    const void *next;
    unsigned ordinal, index, flags, mode, priority;
};

unsigned zeCommandListCreateImmediate(void *of, void *on, const struct queue *desc, void **out) {
    int is_one = of == &context && on == &gpu && desc->stype == 0xe && desc->mode == 1;
    return is_one ? (*out = &list, OK) : INVALID_ARGUMENT;
}
unsigned zeCommandListDestroy(void *of) { return mine(), of == &list ? OK : INVALID_ARGUMENT; }

unsigned zeCommandListAppendMemoryCopy(void *of, void *to, const void *from, size_t size, void *signal, uint32_t waits, void **wait) {
    if (of != &list || signal || waits || wait)
        return INVALID_ARGUMENT;
    if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        return IN_USE;
    unsigned result = transfer((u64)to, (u64)from, size) ? INVALID_ARGUMENT : OK;
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    return result;
}
