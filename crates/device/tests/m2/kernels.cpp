// The kernels, for the device of stub.c.
#include "played.h"
#include "../../../device-queue/src/kernels.h"

// Accesses that no correct kernel makes: an atomic on host memory by the device's address, and a store to the host's
// address.
extern "C" void stray_atomic(void **arguments, unsigned, unsigned, unsigned, unsigned) {
    trunkline::dev_add(*(trunkline::u64 **)arguments[0], 1);
}

extern "C" void stray_store(void **arguments, unsigned, unsigned, unsigned, unsigned) {
    trunkline::sys_store(*(trunkline::u64 **)arguments[0], 1);
}
