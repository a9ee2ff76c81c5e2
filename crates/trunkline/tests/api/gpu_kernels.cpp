// Kernels over windows for the device of crates/device/tests/m2/stub.c.
#include "../../../device/tests/m2/played.h"
#include "window_kernels.h"
#include "window_entries.h"
