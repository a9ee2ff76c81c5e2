/* Device memory that processes share, for the stubs of drivers beside this file. STUB_DEVICE names the one memory file
 * that contains it: a table of allocations, followed by their bytes. Holders have locks of open files on those bytes,
 * as in crates/mem/src/ipc/memfd, because the kernel releases them when the holder ends for any reason. The CPU cannot
 * access addresses of the device: the bytes are mapped at other addresses, which only the stub knows. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned long long u64;

enum { SLOTS = 512, RANGES = 2048 };
#define GRANULE 65536ull
#define TABLE 65536ull
#define WINDOW (1ull << 36)
#define MAGIC 0x7472756e6b6c6e65ull

/* An allocation, as all processes see it; vacant if id is 0. */
struct record {
    u64 id, process, base, len, start, span, spare[2];
};

static struct table {
    u64 capacity, next_id, next_place, next_process;
    struct record slots[SLOTS];
} *table;

static int device = -1;
static u64 process;
static pid_t began;
static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;

/* A range of addresses of the device in this process. */
struct range {
    u64 va, len, span, id, start;
    char *bytes;
    int slot, import, refs;
    /* The device of this process that owns the range, or for which it is mapped. */
    u64 on;
    /* For an import: its owner, and its address in the owner. */
    u64 owner, base;
    /* Whether its synchronous copies and memsets have ended when they return. */
    int sync;
    /* Further data of a vendor. */
    u64 more[3];
};
static struct range ranges[RANGES];
static char *own_window, *import_window;

/* Counters of the stub's calls, for tests. */
enum { GETS, PUTS, OPENS, CLOSES, CONTEXTS, SYNCS, COUNTERS };
static u64 counters[COUNTERS];

/* A kernel that runs on the devices of this process, from stub_run_kernel until stub_end_kernel, but for at most
 * KERNEL_MS, so that a wait in the wrong thread is detected and does not hang. Calls that may wait for a kernel by the
 * vendor's documentation do so, without the lock of the table. With STUB_KERNEL=ignore no call waits. */
enum { KERNEL_MS = 5000 };
static int kernel;
static u64 kernel_waits, kernel_waiting;

static inline void wait_for_kernel(void) {
    const char *rule = getenv("STUB_KERNEL");
    if (!__atomic_load_n(&kernel, __ATOMIC_ACQUIRE) || (rule && !strcmp(rule, "ignore")))
        return;
    __atomic_fetch_add(&kernel_waits, 1, __ATOMIC_RELAXED), __atomic_fetch_add(&kernel_waiting, 1, __ATOMIC_RELEASE);
    for (int ms = 0; __atomic_load_n(&kernel, __ATOMIC_ACQUIRE); ms++) {
        usleep(1000);
        if (ms == KERNEL_MS)
            __atomic_store_n(&kernel, 0, __ATOMIC_RELEASE);
    }
    __atomic_fetch_sub(&kernel_waiting, 1, __ATOMIC_RELEASE);
}

static u64 round_up(u64 len) { return (len + GRANULE - 1) / GRANULE * GRANULE; }

static int lock_range(int fd, int command, int type, u64 start, u64 len) {
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)len};
    int done = fcntl(fd, command, &lock);
    return command == F_OFD_GETLK ? (done ? -1 : lock.l_type != F_UNLCK) : done;
}

/* Drivers are not usable in a forked child, and their documentation lists no functions that are. So all calls fail
 * there. */
static void mine(void) {
    if (device >= 0 && getpid() != began)
        abort();
}

static void enter(void) {
    mine();
    pthread_mutex_lock(&threads);
    while (lock_range(device, F_OFD_SETLKW, F_WRLCK, 0, 1) && errno == EINTR) {}
}

static void leave(void) {
    lock_range(device, F_OFD_SETLK, F_UNLCK, 0, 1);
    pthread_mutex_unlock(&threads);
}

/* Opens the file again, for separate locks. */
static int reopen(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", device);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* An open file that holds bytes; its file position identifies them. */
static int hold(u64 start, u64 span) {
    int fd = reopen();
    if (fd >= 0 && (lock_range(fd, F_OFD_SETLK, F_RDLCK, start, span) || lseek(fd, (off_t)start, SEEK_SET) < 0))
        close(fd), fd = -1;
    return fd;
}

/* Maps bytes; the mapping keeps them allocated. */
static char *map(u64 start, u64 span) {
    int fd = hold(start, span);
    char *bytes = fd < 0 ? NULL : mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
    if (bytes && bytes != MAP_FAILED)
        madvise(bytes, span, MADV_DONTFORK);
    if (fd >= 0)
        close(fd);
    return bytes == MAP_FAILED ? NULL : bytes;
}

/* Frees allocations that no process holds. */
static void reap(void) {
    for (int slot = 0; slot < SLOTS; slot++) {
        struct record *record = &table->slots[slot];
        if (!record->id || lock_range(device, F_OFD_GETLK, F_WRLCK, record->start, record->span))
            continue;
        fallocate(device, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)record->start, (off_t)record->span);
        record->id = 0;
    }
}

static u64 used(void) {
    u64 sum = 0;
    reap();
    for (int slot = 0; slot < SLOTS; slot++)
        sum += table->slots[slot].id ? table->slots[slot].span : 0;
    return sum;
}

/* Allocates memory of the device, held by the returned open file; -1 if there is no room. */
static int place(u64 len, int *slot) {
    u64 span = round_up(len);
    if (!len || len > WINDOW || used() + span > table->capacity)
        return -1;
    for (*slot = 0; *slot < SLOTS && table->slots[*slot].id; ++*slot) {}
    if (*slot == SLOTS)
        return -1;
    u64 start = table->next_place;
    int fd = hold(start, span);
    if (fd < 0)
        return -1;
    table->next_place += span;
    table->slots[*slot] = (struct record){0, process, 0, len, start, span, {0, 0}};
    table->slots[*slot].id = table->next_id++;
    return fd;
}

static struct record *record_at(u64 start) {
    for (int slot = 0; slot < SLOTS; slot++)
        if (table->slots[slot].id && table->slots[slot].start == start)
            return &table->slots[slot];
    return NULL;
}

/* Whether another process has allocated it and not freed it. */
static inline int is_owned(int slot) { return lock_range(device, F_OFD_GETLK, F_WRLCK, 1 + (u64)slot, 1) == 1; }

static struct range *find(u64 at) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].len && at >= ranges[i].va && at - ranges[i].va < ranges[i].span)
            return at - ranges[i].va < ranges[i].len ? &ranges[i] : NULL;
    return NULL;
}

static struct range *vacant(void) {
    for (int i = 0; i < RANGES; i++)
        if (!ranges[i].len)
            return &ranges[i];
    return NULL;
}

/* Returns the lowest free addresses of a window. */
static u64 addresses(char *window, u64 span) {
    u64 at = (u64)window;
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].len && ranges[i].va < at + span && at < ranges[i].va + ranges[i].span)
            at = ranges[i].va + ranges[i].span, i = -1;
    return at + span > (u64)window + WINDOW ? 0 : at;
}

/* Allocates memory, and addresses for it in this process. */
static struct range *allocate(u64 len) {
    int slot, fd = place(len, &slot);
    struct range *made = vacant();
    if (fd < 0)
        return NULL;
    struct record *record = &table->slots[slot];
    u64 va = addresses(own_window, record->span);
    char *bytes = made && va ? map(record->start, record->span) : NULL;
    close(fd);
    if (!bytes || lock_range(device, F_OFD_SETLK, F_WRLCK, 1 + (u64)slot, 1)) {
        reap();
        return NULL;
    }
    record->base = va;
    *made = (struct range){.va = va, .len = len, .span = record->span, .id = record->id, .start = record->start,
                           .bytes = bytes, .slot = slot, .refs = 1};
    return made;
}

/* Frees a range. Later reads return poison. */
static void release(struct range *of) {
    for (u64 at = 0; at + 8 <= of->span; at += 8)
        *(u64 *)(of->bytes + at) = 0xdead000000000000ull ^ of->id;
    munmap(of->bytes, of->span);
    lock_range(device, F_OFD_SETLK, F_UNLCK, 1 + (u64)of->slot, 1);
    of->len = 0;
    reap();
}

/* Maps memory of another process. */
static struct range *import(const struct record *record) {
    struct range *made = vacant();
    u64 va = made ? addresses(import_window, record->span) : 0;
    char *bytes = va ? map(record->start, record->span) : NULL;
    if (!bytes)
        return NULL;
    *made = (struct range){.va = va, .len = record->len, .span = record->span, .id = record->id, .start = record->start,
                           .bytes = bytes, .import = 1, .refs = 1, .owner = record->process, .base = record->base};
    return made;
}

static void unmap(struct range *of) {
    munmap(of->bytes, of->span);
    of->len = 0;
    reap();
}

/* Returns the allocation that a descriptor holds; NULL if the descriptor is not of this device. */
static inline struct record *record_of(int fd) {
    struct stat of, ours;
    if (fstat(fd, &of) || fstat(device, &ours) || of.st_ino != ours.st_ino || of.st_dev != ours.st_dev)
        return NULL;
    return record_at((u64)lseek(fd, 0, SEEK_CUR));
}

static char *locate(u64 at, u64 len, u64 *piece);

/* Makes two adjacent allocations of `len` bytes, as with addresses of the caller's choice; `more` is the vendor's data of each. */
static inline struct range *allocate_two(u64 len, u64 on, u64 more) {
    struct range *first = NULL, *second = NULL, *away[RANGES];
    int tried = 0;
    /* Allocations that are not adjacent are freed afterwards. */
    while (tried < RANGES && (second = allocate(len)) && !(first && first->va + first->span == second->va))
        if (first)
            away[tried++] = first, first = second;
        else
            first = second;
    while (tried)
        release(away[--tried]);
    if (!first || !second)
        return NULL;
    first->on = second->on = on, first->more[0] = second->more[0] = more;
    return first;
}

/* Whether bytes are inside one allocation, or in host memory. */
static inline int is_whole(u64 at, u64 len) {
    u64 piece;
    return locate(at, len, &piece) && piece == len;
}

/* Returns the bytes at an address, in device or host memory; NULL unless all of them exist. Device memory may continue
 * in the next mapping; `piece` is the number of contiguous bytes. */
static char *locate(u64 at, u64 len, u64 *piece) {
    int ours = (at >= (u64)own_window && at < (u64)own_window + WINDOW) ||
               (at >= (u64)import_window && at < (u64)import_window + WINDOW);
    struct range *found = find(at);
    *piece = len;
    if (!ours)
        return (char *)at;
    if (!found)
        return NULL;
    u64 left = found->va + found->len - at;
    *piece = left < len ? left : len;
    return found->bytes + (at - found->va);
}

static int transfer(u64 to, u64 from, u64 len) {
    int failed = 0;
    enter();
    for (u64 piece = 0; len && !failed; to += piece, from += piece, len -= piece) {
        u64 other;
        char *into = locate(to, len, &other), *out = locate(from, other, &piece);
        if (into && out)
            memmove(into, out, piece);
        else
            failed = 1;
    }
    leave();
    return failed;
}

/* Initialises the stub; returns -1 if there is no device. */
static int begin(void) {
    const char *path = getenv("STUB_DEVICE");
    pthread_mutex_lock(&threads);
    if (device < 0 && path && (device = open(path, O_RDWR | O_CLOEXEC)) >= 0) {
        int none = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        table = mmap(NULL, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
        own_window = mmap(NULL, WINDOW, PROT_NONE, none, -1, 0);
        import_window = mmap(NULL, WINDOW, PROT_NONE, none, -1, 0);
        madvise(own_window, WINDOW, MADV_DONTFORK), madvise(import_window, WINDOW, MADV_DONTFORK);
        began = getpid();
        process = __atomic_fetch_add(&table->next_process, 1, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&threads);
    return device < 0 ? -1 : 0;
}

/* For tests: starts and ends the kernel; whether it runs; the calls that wait for it now, and that ever waited. */
u64 stub_run_kernel(void) { return __atomic_store_n(&kernel, 1, __ATOMIC_RELEASE), 0; }
u64 stub_end_kernel(void) { return __atomic_store_n(&kernel, 0, __ATOMIC_RELEASE), 0; }
u64 stub_kernel_runs(void) { return (u64)__atomic_load_n(&kernel, __ATOMIC_ACQUIRE); }
u64 stub_kernel_waiting(void) { return __atomic_load_n(&kernel_waiting, __ATOMIC_ACQUIRE); }
u64 stub_kernel_waits(void) { return __atomic_load_n(&kernel_waits, __ATOMIC_RELAXED); }

/* For tests: bytes of the device in use, and the counters of calls. */
u64 stub_used(void) {
    enter();
    u64 sum = used();
    leave();
    return sum;
}
u64 stub_gets(void) { return counters[GETS]; }
u64 stub_puts(void) { return counters[PUTS]; }
u64 stub_opens(void) { return counters[OPENS]; }
u64 stub_closes(void) { return counters[CLOSES]; }
u64 stub_contexts(void) { return counters[CONTEXTS]; }
u64 stub_syncs(void) { return counters[SYNCS]; }
u64 stub_skip_ids(u64 many) {
    enter();
    table->next_id += many;
    leave();
    return 0;
}
