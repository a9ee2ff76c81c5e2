/* Handles of 64 bytes that name an allocation of a living process, by the rules of CUDA's legacy handles and HIP's. An
 * allocation is not opened if it overlaps an open import of the same owner. It is not opened twice either, unless
 * STUB_REOPEN=count. With STUB_REOPEN=share all devices of a process share the mapping that one of them has opened, and
 * each closes it. */
#include "device.h"

struct ipc_handle {
    u64 magic, id, process, base, len, slot, spare[2];
};

/* REUSED: its memory was freed, and other memory of the owner has its address. */
enum outcome { OPENED, OWN, NO_SUCH, MAPPED, REUSED };

static struct ipc_handle handle_of(const struct range *of) {
    counters[GETS]++;
    return (struct ipc_handle){MAGIC, of->id, process, of->va, of->len, (u64)of->slot, {0, 0}};
}

/* Opens for one device of this process. The same memory may be open for several devices. */
static enum outcome open_handle(const struct ipc_handle *handle, u64 on, struct range **opened) {
    const char *again = getenv("STUB_REOPEN");
    if (handle->magic != MAGIC || handle->slot >= SLOTS || handle->spare[0] || handle->spare[1])
        return NO_SUCH;
    struct record *record = &table->slots[handle->slot];
    if (handle->process == process)
        return OWN;
    if (record->id != handle->id || record->process != handle->process || record->base != handle->base ||
        record->len != handle->len || !is_owned((int)handle->slot)) {
        for (int slot = 0; slot < SLOTS; slot++) {
            struct record *other = &table->slots[slot];
            if (other->id && other->process == handle->process && other->base == handle->base && is_owned(slot))
                return REUSED;
        }
        return NO_SUCH;
    }
    for (int i = 0; i < RANGES; i++) {
        struct range *other = &ranges[i];
        int meets = other->len && other->import && other->owner == handle->process &&
                    other->base < handle->base + handle->len && handle->base < other->base + other->len;
        int shares = again && !strcmp(again, "share");
        if (!meets || (other->id == handle->id && other->on != on && !shares))
            continue;
        if (other->id != handle->id || !again || (strcmp(again, "count") && other->on == on))
            return MAPPED;
        if (other->on != on)
            other->more[1] = 1;
        other->refs++;
        *opened = other;
        return OPENED;
    }
    *opened = import(record);
    counters[OPENS]++;
    if (*opened)
        (*opened)->on = on;
    return *opened ? OPENED : NO_SUCH;
}

static int close_handle(u64 at) {
    struct range *found = find(at);
    if (!found || !found->import || found->va != at)
        return -1;
    counters[CLOSES]++;
    if (!--found->refs)
        unmap(found);
    return 0;
}
