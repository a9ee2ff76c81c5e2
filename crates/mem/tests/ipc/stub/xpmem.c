/* Replaces libxpmem, and the kernel's module by files in the folder that STUB_XPMEM names. Per process PID the folder
 * has PID.shown, with the segments that the process has made, and PID.memory, with its memory of stub_alloc.
 *
 * That memory is one range of addresses, whose pages are in the file while they are allocated. An attachment of it maps
 * the file, so it has the same pages. A userfaultfd turns accesses to pages that are not in the file into SIGBUS, as
 * the module does for pages that their owner does not have. When a process is dead, the test truncates its files, with
 * the same effect. Of any other memory of a process a copy is attached (PID.copy.*).
 *
 * Rules and numbers follow the module's sources: the access checks, offsets at the begin of pages, attachments only
 * with the access that was granted, and the refusal of everything of a forked process to the child. Two things differ:
 * attachments of a removed segment stay, and munmap of an attachment kills no process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

typedef unsigned long long u64;

struct xpmem_addr {
    int64_t apid;
    off_t offset;
};

enum { SEGMENTS = 16, PERMITS = 64, ATTACHMENTS = 4096, BLOCKS = 1024, PAGE = 4096, PERMIT_MODE = 1, RDONLY = 1, RDWR = 2 };
#define WINDOW (1ull << 36)
#define ALIGN (64ull << 20)
#define TASK_SIZE 0x7ffffffff000ull

/* The part of a process's state that others can see. */
struct shown {
    u64 window, uniq, uid;
    struct segment {
        int64_t id;
        u64 vaddr, size, mode;
    } segments[SEGMENTS];
};

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static pid_t me;
static struct shown *own;
static char *window;
static int memory = -1, faults = -1;
static u64 uniq;
static struct {
    int64_t id;
    u64 vaddr, size, window;
    pid_t owner;
    int flags;
} permits[PERMITS];
static struct {
    char *at;
    u64 size;
    int64_t apid;
    char copy[256];
} attachments[ATTACHMENTS];
static struct {
    u64 at, size;
} blocks[BLOCKS];
/* For tests. */
static u64 attached, most;

static int64_t fail(int error) {
    errno = error;
    return -1;
}

static void name(char path[256], pid_t pid, const char *what) {
    snprintf(path, 256, "%s/%d.%s", getenv("STUB_XPMEM"), pid, what);
}

/* Creates a file that all users may open. */
static int make_file(const char *path, u64 size) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0 && (ftruncate(fd, (off_t)size) || (fchmod(fd, 0666) && errno != EPERM)))
        close(fd), fd = -1;
    return fd;
}

/* Opens the module for this process. A forked child opens it again, and has nothing then. */
static int begin(void) {
    char path[256];
    if (me == getpid())
        return 0;
    if (!getenv("STUB_XPMEM"))
        return (int)fail(ENOENT);
    memset(permits, 0, sizeof permits), memset(attachments, 0, sizeof attachments), memset(blocks, 0, sizeof blocks);
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM};
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api))
        return -1;
    name(path, getpid(), "memory");
    memory = make_file(path, WINDOW);
    name(path, getpid(), "shown");
    int fd = make_file(path, sizeof *own);
    own = memory < 0 || fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    window = mmap(NULL, WINDOW + ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    close(fd);
    if (own == MAP_FAILED || window == MAP_FAILED)
        return -1;
    madvise(own, sizeof *own, MADV_DONTFORK), madvise(window, WINDOW + ALIGN, MADV_DONTFORK);
    window = (char *)(((u64)window + ALIGN - 1) / ALIGN * ALIGN);
    own->window = (u64)window, own->uid = geteuid();
    most = getenv("STUB_ATTACHMENTS") ? strtoull(getenv("STUB_ATTACHMENTS"), NULL, 10) : ATTACHMENTS;
    me = getpid();
    return 0;
}

static int enter(void) {
    pthread_mutex_lock(&threads);
    return begin();
}

static int64_t leave(int64_t result) {
    pthread_mutex_unlock(&threads);
    return result;
}

int xpmem_version(void) { return (int)leave(enter() ? -1 : 0x00027000); }

int64_t xpmem_make(void *vaddr, size_t size, int permit_type, void *permit_value) {
    if (enter())
        return leave(-1);
    u64 at = (u64)vaddr;
    if (permit_type != PERMIT_MODE || (u64)permit_value & ~0777ull || !size)
        return leave(fail(EINVAL));
    if (at + size > TASK_SIZE || at + size < at) {
        if (size != (size_t)-1)
            return leave(fail(EINVAL));
        size = TASK_SIZE - at;
    }
    if (at % PAGE || size % PAGE)
        return leave(fail(EINVAL));
    for (int i = 0; i < SEGMENTS; i++)
        if (!own->segments[i].id) {
            own->segments[i] = (struct segment){0, at, size, (u64)permit_value};
            return leave(own->segments[i].id = (int64_t)(++own->uniq << 32 | (u64)me));
        }
    return leave(fail(ENOMEM));
}

int xpmem_remove(int64_t segid) {
    if (enter())
        return (int)leave(-1);
    if (segid <= 0)
        return (int)leave(fail(EINVAL));
    if ((pid_t)segid != me)
        return (int)leave(fail(EACCES));
    for (int i = 0; i < SEGMENTS; i++)
        if (own->segments[i].id == segid)
            return own->segments[i].id = 0, (int)leave(0);
    return (int)leave(fail(ENOENT));
}

int64_t xpmem_get(int64_t segid, int flags, int permit_type, void *permit_value) {
    if (enter())
        return leave(-1);
    if (segid <= 0 || (flags != RDONLY && flags != RDWR) || permit_type != PERMIT_MODE || permit_value)
        return leave(fail(EINVAL));
    char path[256];
    struct shown of;
    name(path, (pid_t)segid, "shown");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int there = fd >= 0 && read(fd, &of, sizeof of) == sizeof of;
    if (fd >= 0)
        close(fd);
    for (int i = 0; there && i < SEGMENTS; i++) {
        struct segment *segment = &of.segments[i];
        if (segment->id != segid)
            continue;
        u64 wants = flags == RDWR ? 6 : 4, granted = of.uid == geteuid() ? segment->mode >> 6 : segment->mode;
        if (geteuid() && wants & ~granted)
            return leave(fail(EACCES));
        for (int k = 0; k < PERMITS; k++)
            if (!permits[k].id) {
                permits[k].vaddr = segment->vaddr, permits[k].size = segment->size, permits[k].window = of.window;
                permits[k].owner = (pid_t)segid, permits[k].flags = flags;
                return leave(permits[k].id = (int64_t)(++uniq << 32 | (u64)me));
            }
        return leave(fail(ENOMEM));
    }
    return leave(fail(ENOENT));
}

/* Returns a file with a copy of a process's memory at those addresses, and with holes for unmapped pages. */
static int copy_of(pid_t owner, u64 from, u64 size, char path[256]) {
    char what[64], page[PAGE];
    snprintf(what, sizeof what, "copy.%d.%llu", me, ++uniq);
    name(path, owner, what);
    int fd = make_file(path, size);
    for (u64 at = 0; fd >= 0 && at < size; at += PAGE) {
        struct iovec here = {page, PAGE}, there = {(void *)(from + at), PAGE};
        if (process_vm_readv(owner, &here, 1, &there, 1, 0) == PAGE && pwrite(fd, page, PAGE, (off_t)at) != PAGE)
            abort();
    }
    return fd;
}

void *xpmem_attach(struct xpmem_addr addr, size_t size, void *vaddr) {
    void *none = (void *)-1;
    if (enter())
        return leave(-1), none;
    int k = 0, i = 0;
    while (k < PERMITS && (addr.apid <= 0 || permits[k].id != addr.apid))
        k++;
    while (i < ATTACHMENTS && attachments[i].size)
        i++;
    if (addr.apid <= 0 || (u64)addr.offset % PAGE || vaddr)
        return leave(fail(EINVAL)), none;
    if (k == PERMITS)
        return leave(fail(ENOENT)), none;
    size = (size + PAGE - 1) / PAGE * PAGE;
    if (permits[k].flags != RDWR)
        return leave(fail(EACCES)), none;
    if (addr.offset < 0 || !size || (u64)addr.offset + size > permits[k].size)
        return leave(fail(EINVAL)), none;
    u64 now = 0, from = permits[k].vaddr + (u64)addr.offset, inside = from - permits[k].window;
    for (int other = 0; other < ATTACHMENTS; other++)
        now += attachments[other].size > PAGE;
    if (i == ATTACHMENTS || (size > PAGE && now >= most))
        return leave(fail(ENOMEM)), none;
    char path[256];
    int ours = inside < WINDOW && WINDOW - inside >= size;
    if (ours)
        name(path, permits[k].owner, "memory");
    int fd = ours ? open(path, O_RDWR | O_CLOEXEC) : copy_of(permits[k].owner, from, size, path);
    if (fd < 0)
        return leave(fail(ENOENT)), none;
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, ours ? (off_t)inside : 0);
    close(fd);
    struct uffdio_register range = {.range = {(u64)at, size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (at == MAP_FAILED || ioctl(faults, UFFDIO_REGISTER, &range))
        return leave(fail(ENOMEM)), none;
    madvise(at, size, MADV_DONTFORK);
    attachments[i].at = at, attachments[i].size = size, attachments[i].apid = addr.apid;
    strcpy(attachments[i].copy, ours ? "" : path);
    attached += size > PAGE;
    return leave(0), at;
}

static void end(int i) {
    munmap(attachments[i].at, attachments[i].size);
    if (*attachments[i].copy)
        unlink(attachments[i].copy);
    attachments[i].size = 0;
}

int xpmem_detach(void *vaddr) {
    if (enter())
        return (int)leave(-1);
    for (int i = 0; i < ATTACHMENTS; i++)
        if (attachments[i].size && attachments[i].at == vaddr)
            return end(i), (int)leave(0);
    return (int)leave(fail(EINVAL));
}

int xpmem_release(int64_t apid) {
    if (enter())
        return (int)leave(-1);
    if (apid <= 0 || (pid_t)apid != me)
        return (int)leave(fail(apid <= 0 ? EINVAL : EACCES));
    for (int k = 0; k < PERMITS; k++) {
        if (permits[k].id != apid)
            continue;
        for (int i = 0; i < ATTACHMENTS; i++)
            if (attachments[i].size && attachments[i].apid == apid)
                end(i);
        permits[k].id = 0;
        return (int)leave(0);
    }
    return (int)leave(fail(ENOENT));
}

/* For tests: allocates memory of this process that can be attached, at the lowest free addresses; returns 0 if none are
 * free. */
u64 stub_alloc(u64 len) {
    u64 size = (len + PAGE - 1) / PAGE * PAGE, at = 0;
    int vacant = -1;
    if (enter())
        return leave(-1), 0;
    for (int i = 0; i < BLOCKS; i++) {
        if (!blocks[i].size)
            vacant = i;
        else if (blocks[i].at < at + size && at < blocks[i].at + blocks[i].size)
            at = blocks[i].at + blocks[i].size, i = -1;
    }
    int flags = MAP_SHARED | MAP_FIXED;
    if (vacant < 0 || !len || at + size > WINDOW || fallocate(memory, 0, (off_t)at, (off_t)size) ||
        mmap(window + at, size, PROT_READ | PROT_WRITE, flags, memory, (off_t)at) == MAP_FAILED)
        return leave(-1), 0;
    madvise(window + at, size, MADV_DONTFORK);
    blocks[vacant].at = at, blocks[vacant].size = size;
    return leave(0), (u64)window + at;
}

/* Frees it; returns 0 if it was allocated. */
u64 stub_free(u64 addr) {
    if (me != getpid() || enter())
        return 1;
    for (int i = 0; i < BLOCKS; i++) {
        if (!blocks[i].size || (u64)window + blocks[i].at != addr)
            continue;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        mmap((void *)addr, blocks[i].size, PROT_NONE, flags, -1, 0);
        madvise((void *)addr, blocks[i].size, MADV_DONTFORK);
        fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)blocks[i].at, (off_t)blocks[i].size);
        blocks[i].size = 0;
        return (u64)leave(0);
    }
    return (u64)leave(1);
}

/* Makes the memory read-only for this process; others that attach it may still write. */
u64 stub_keep(u64 addr) { return (u64)mprotect((void *)addr, PAGE, PROT_READ); }

/* The number of pieces attached so far, and the number of mappings. */
u64 stub_attached(void) { return attached; }
u64 stub_attachments(void) {
    u64 sum = 0;
    for (int i = 0; i < ATTACHMENTS; i++)
        sum += attachments[i].size != 0;
    return sum;
}
u64 stub_permits(void) {
    u64 sum = 0;
    for (int k = 0; k < PERMITS; k++)
        sum += permits[k].id != 0;
    return sum;
}
