/* A stand-in for GDRCopy's library, for the stand-in CUDA driver: a mapping is the memory in which that keeps the bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 65536ul
#define MOST 256

struct handle { unsigned long h; };
struct info { uint64_t va, mapped_size; uint32_t page_size; uint64_t tm_cycles; uint32_t cycles_per_ms; unsigned bits, type; };

static struct { unsigned long first; size_t size; void *mapped; } all[MOST];
static int opened;

/* Counts of pinned and mapped memory, for tests of their release. */
int fake_gdr_in_use(void) {
    int count = opened;
    for (int i = 0; i < MOST; i++)
        count += (all[i].size != 0) + (all[i].mapped != NULL);
    return count;
}

void *gdr_open(void) { return getenv("FAKE_GDR_GONE") ? NULL : (opened++, all); }
int gdr_close(void *g) { return opened--, g == all ? 0 : 22; }

int gdr_pin_buffer(void *g, unsigned long at, size_t size, uint64_t token, uint32_t space, struct handle *handle) {
    if (g != all || at % PAGE || size % PAGE || token || space)
        return 22;
    for (unsigned long i = 0; i < MOST; i++)
        if (!all[i].size) {
            all[i].first = at, all[i].size = size, all[i].mapped = NULL;
            handle->h = i;
            return 0;
        }
    return 12;
}

int gdr_unpin_buffer(void *g, struct handle handle) {
    if (g != all || handle.h >= MOST || !all[handle.h].size || all[handle.h].mapped)
        return 22;
    all[handle.h].size = 0;
    return 0;
}

/* FAKE_GDR_SMALL: BAR1 has no room. The page of the first byte may begin before the driver's allocation. */
int gdr_map(void *g, struct handle handle, void **at, size_t size) {
    char *(*bytes)(void *) = (char *(*)(void *))dlsym(RTLD_DEFAULT, "fake_bytes");
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (cuda)
        bytes = (char *(*)(void *))dlsym(cuda, "fake_bytes");
    if (g != all || !bytes || size != all[handle.h].size)
        return 22;
    if (getenv("FAKE_GDR_SMALL"))
        return 12;
    for (unsigned long in = 0; in < PAGE; in += 4096) {
        char *found = bytes((void *)(all[handle.h].first + in));
        if (found) {
            *at = all[handle.h].mapped = found - in;
            return 0;
        }
    }
    return 14;
}

int gdr_unmap(void *g, struct handle handle, void *at, size_t size) {
    if (g != all || all[handle.h].mapped != at || size != all[handle.h].size)
        return 22;
    all[handle.h].mapped = NULL;
    return 0;
}

int gdr_get_info_v2(void *g, struct handle handle, struct info *info) {
    if (g != all)
        return 22;
    info->va = all[handle.h].first, info->mapped_size = all[handle.h].size, info->page_size = PAGE;
    return 0;
}

/* Counts the bytes of copies, by which all accesses to more than a word are made. */
static size_t copied;
size_t fake_gdr_copied(void) { return __atomic_load_n(&copied, __ATOMIC_RELAXED); }

/* Returns whether bytes are inside a mapping. */
static int is_mapped(struct handle handle, const void *at, size_t size) {
    const char *first = handle.h < MOST ? all[handle.h].mapped : NULL;
    return first && (const char *)at >= first && (const char *)at + size <= first + all[handle.h].size;
}

int gdr_copy_to_mapping(struct handle handle, void *to, const void *from, size_t size) {
    if (!is_mapped(handle, to, size))
        return 22;
    memcpy(to, from, size);
    __atomic_fetch_add(&copied, size, __ATOMIC_RELAXED);
    return 0;
}

int gdr_copy_from_mapping(struct handle handle, void *to, const void *from, size_t size) {
    if (!is_mapped(handle, from, size))
        return 22;
    memcpy(to, from, size);
    __atomic_fetch_add(&copied, size, __ATOMIC_RELAXED);
    return 0;
}
