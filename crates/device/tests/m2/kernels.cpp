// The kernels, for the device of stub.c.
#include "played.h"
#include "../../../device-queue/src/kernels.h"

// What no kernel does: an atomic on the host's memory, by the device's address of it; and a store by the host's address.
extern "C" void stray_atomic(void **arguments, unsigned, unsigned, unsigned, unsigned) {
    trunkline::dev_add(*(trunkline::u64 **)arguments[0], 1);
}

extern "C" void stray_store(void **arguments, unsigned, unsigned, unsigned, unsigned) {
    trunkline::sys_store(*(trunkline::u64 **)arguments[0], 1);
}
