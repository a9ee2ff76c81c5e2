/* Replaces Level Zero's loader, libze_loader.so.1. It follows these rules of Intel's driver:
 * - A handle begins with a descriptor of the exporting process, the same one for each export. The descriptor holds the
 *   memory, even after its free, until the handle was put as often as it was got.
 * - Opening maps the memory of the descriptor at any free address. With STUB_REOPEN=same the tiles of a card get the
 *   same address, which is closed once.
 * - There is one card or STUB_DEVICES, without tiles or with STUB_TILES. With STUB_SPLIT, memory of a card is split
 *   between its first two tiles, and its handle is of the first half. Memory mapped at chosen addresses has no handle.
 * - Each device copies only its own memory, host memory, and memory that is mapped for it, inside one allocation. Real
 *   devices find a slower way.
 * - A command list has one device and one thread at a time. Commands of an asynchronous list continue after they were
 *   appended.
 * - Calls that free, open or close memory, and calls that create lists, wait for a running kernel (device.h). */
#include "device.h"
#include "streams.h"

enum {
    OK = 0, NOT_READY = 1, OUT_OF_DEVICE_MEMORY = 0x70000003, UNINITIALIZED = 0x78000001, INVALID_ARGUMENT = 0x78000004, IN_USE = 0x78000006
};

static struct exported {
    u64 start;
    int fd, gets;
} exports[RANGES];

struct ze_handle {
    int fd, zero;
    u64 magic, start, part, spare[4];
};

/* The cards, followed by their tiles; and the list of each. */
enum { CARDS = 4, TILES = 2, DEVICES = CARDS + CARDS * TILES };
static char driver, context, gpus[DEVICES], lists[DEVICES];
static int busy[DEVICES];

/* Values of more[0] of a range. more[1] of an open range: whether all tiles of a card share it. */
enum { PLAIN, VIRTUAL };

static int setting(const char *name, int none) { return getenv(name) ? atoi(getenv(name)) : none; }
static int cards(void) { return setting("STUB_DEVICES", 1); }
static int tiles(void) { return setting("STUB_TILES", 0); }

/* Returns the number of a card or tile; -1 if the handle is of neither. */
static int number(const void *on) {
    long at = (const char *)on - gpus;
    if (at < 0 || at >= DEVICES)
        return -1;
    return at < CARDS ? (at < cards() ? (int)at : -1) : (at - CARDS) / TILES < cards() && (at - CARDS) % TILES < tiles() ? (int)at : -1;
}
static int card_of(int number) { return number < CARDS ? number : (number - CARDS) / TILES; }

unsigned zeInit(unsigned flags) { return flags > 1 || begin() ? UNINITIALIZED : OK; }

static unsigned give(uint32_t *count, void **out, char *first, int there) {
    for (uint32_t i = 0; out && i < *count && (int)i < there; i++)
        out[i] = first + i;
    if (!out || *count > (uint32_t)there)
        *count = (uint32_t)there;
    return OK;
}

unsigned zeDriverGet(uint32_t *count, void **out) { return give(count, out, &driver, 1); }
unsigned zeDeviceGet(void *of, uint32_t *count, void **out) {
    return of == &driver ? give(count, out, gpus, cards()) : INVALID_ARGUMENT;
}
unsigned zeDeviceGetSubDevices(void *of, uint32_t *count, void **out) {
    int card = number(of);
    if (card < 0)
        return INVALID_ARGUMENT;
    return give(count, out, gpus + CARDS + card * TILES, card < CARDS ? tiles() : 0);
}
unsigned zeContextCreate(void *of, const void *desc, void **out) {
    return of == &driver && *(const unsigned *)desc == 0xd ? (*out = &context, OK) : INVALID_ARGUMENT;
}
unsigned zeContextDestroy(void *of) { return mine(), of == &context ? OK : INVALID_ARGUMENT; }

unsigned zeMemAllocDevice(void *of, const void *desc, size_t size, size_t alignment, void *on, void **at) {
    if (of != &context || number(on) < 0 || *(const unsigned *)desc != 0x15 || alignment > GRANULE)
        return INVALID_ARGUMENT;
    enter();
    struct range *made = allocate(size);
    if (made)
        *at = (void *)made->va, made->on = (u64)number(on);
    leave();
    return made ? OK : OUT_OF_DEVICE_MEMORY;
}

/* For tests: allocates memory of that sort on the first card. */
u64 stub_make(const char *sort, u64 len) {
    struct range *made = NULL;
    enter();
    if (!strcmp(sort, "virtual") && (made = allocate(len)))
        made->more[0] = VIRTUAL;
    if (!strcmp(sort, "segments"))
        made = allocate_two(len / 2, 0, PLAIN);
    leave();
    return made ? made->va : 0;
}

unsigned zeMemFree(void *of, void *at) {
    wait_for_kernel();
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
        *on = &gpus[found->on];
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
    if (range && range->more[0] == VIRTUAL)
        range = NULL;
    for (int i = 0; range && !range->import && i < RANGES && !found; i++)
        found = exports[i].gets && exports[i].start == range->start ? &exports[i] : NULL;
    for (int i = 0; range && !range->import && i < RANGES && !found; i++)
        if (!exports[i].gets) {
            found = &exports[i];
            *found = (struct exported){range->start, hold(range->start, range->span), 0};
        }
    if (found && found->fd >= 0) {
        found->gets++, counters[GETS]++;
        int is_split = tiles() > 1 && range->on < CARDS && getenv("STUB_SPLIT");
        *out = (struct ze_handle){found->fd, 0, MAGIC, found->start, is_split ? range->len / 2 : range->len, {0}};
    }
    leave();
    return found && found->fd >= 0 ? OK : INVALID_ARGUMENT;
}

/* The last handle of memory that its owner has freed frees it. */
unsigned zeMemPutIpcHandle(void *of, struct ze_handle handle) {
    unsigned result = INVALID_ARGUMENT;
    wait_for_kernel();
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
    wait_for_kernel();
    enter();
    int is_one = of == &context && number(on) >= 0 && !flags && handle.magic == MAGIC;
    struct record *record = is_one ? record_of(handle.fd) : NULL;
    const char *again = getenv("STUB_REOPEN");
    struct range *made = NULL;
    if (record && (record->start != handle.start || handle.part > record->len))
        record = NULL;
    for (int i = 0; record && again && !strcmp(again, "same") && i < RANGES && !made; i++)
        if (ranges[i].len && ranges[i].import && ranges[i].id == record->id && card_of((int)ranges[i].on) == card_of(number(on)))
            made = &ranges[i], made->more[1] = 1;
    if (record && !made && (made = import(record)))
        made->on = (u64)number(on), made->len = handle.part;
    if (made)
        *at = (void *)made->va, counters[OPENS]++;
    leave();
    return made ? OK : INVALID_ARGUMENT;
}

unsigned zeMemCloseIpcHandle(void *of, const void *at) {
    wait_for_kernel();
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
    int is_one = of == &context && number(on) >= 0 && desc->stype == 0xe && (desc->mode == 1 || desc->mode == 2);
    if (!is_one)
        return INVALID_ARGUMENT;
    wait_for_kernel();
    *out = desc->mode == 1 ? (void *)&lists[number(on)] : (void *)make_stream((u64)number(on));
    return *out ? OK : OUT_OF_DEVICE_MEMORY;
}
static int list_of(void *of) { return number(gpus + ((char *)of - lists)); }

/* Returns the asynchronous list; NULL if the list is not asynchronous. */
static struct stream *stream_of(void *list) {
    struct stream *of = list;
    return of >= streams && of < streams + 64 && of->live ? of : NULL;
}

unsigned zeCommandListDestroy(void *of) {
    struct stream *stream = (mine(), stream_of(of));
    if (stream)
        return land_stream(stream), stream->live = 0, OK;
    return list_of(of) >= 0 ? OK : INVALID_ARGUMENT;
}

static int touchable(int list, u64 at, size_t size) {
    enter();
    struct range *found = find(at);
    int is_near = found && found->more[1] && card_of((int)found->on) == card_of(list);
    int is_it = is_whole(at, size) && (!found || found->on == (u64)list || is_near);
    leave();
    return is_it;
}

unsigned zeCommandListAppendMemoryCopy(void *of, void *to, const void *from, size_t size, void *signal, uint32_t waits, void **wait) {
    struct stream *stream = stream_of(of);
    int list = stream ? (int)stream->on : list_of(of);
    if (list < 0 || signal || waits || wait || !touchable(list, (u64)to, size) || !touchable(list, (u64)from, size))
        return INVALID_ARGUMENT;
    if (stream)
        return begin_copy(stream, (u64)to, (u64)from, size) ? INVALID_ARGUMENT : OK;
    if (__atomic_exchange_n(&busy[list], 1, __ATOMIC_ACQUIRE))
        return IN_USE;
    unsigned result = transfer((u64)to, (u64)from, size) ? INVALID_ARGUMENT : OK;
    __atomic_store_n(&busy[list], 0, __ATOMIC_RELEASE);
    return result;
}

/* Events, each in its own pool. A reset event is signalled by a barrier, and must not be reset again before that. */
struct event_desc {
    unsigned stype;
    const void *next;
    unsigned first, second;
};
static int pools;

unsigned zeEventPoolCreate(void *of, const struct event_desc *desc, uint32_t count, void **on, void **out) {
    int is_one = of == &context && desc->stype == 0x10 && desc->first == 1 && desc->second == 1 && count == 1 && number(*on) >= 0;
    return is_one ? (*out = &pools, pools++, OK) : INVALID_ARGUMENT;
}
unsigned zeEventPoolDestroy(void *pool) { return pool == &pools && pools > 0 ? (pools--, OK) : INVALID_ARGUMENT; }
unsigned zeEventCreate(void *pool, const struct event_desc *desc, void **out) {
    if (pool != &pools || desc->stype != 0x11 || desc->first || desc->second != 4)
        return INVALID_ARGUMENT;
    return (*out = make_event()) ? OK : OUT_OF_DEVICE_MEMORY;
}
unsigned zeEventDestroy(struct event *event) { return event->live ? (event->live = 0, OK) : INVALID_ARGUMENT; }
unsigned zeEventHostReset(struct event *event) {
    return is_over(event) ? (event->stream = NULL, OK) : INVALID_ARGUMENT;
}
unsigned zeEventQueryStatus(struct event *event) { return event->stream && is_over(event) ? OK : NOT_READY; }
unsigned zeEventHostSynchronize(struct event *event, uint64_t timeout) {
    return event->stream && timeout == UINT64_MAX && !wait_for_stream(event->stream) ? OK : NOT_READY;
}
unsigned zeCommandListAppendBarrier(void *of, struct event *signal, uint32_t waits, void **wait) {
    struct stream *stream = stream_of(of);
    return stream && signal && !waits && !wait ? (record_event(signal, stream), OK) : INVALID_ARGUMENT;
}
