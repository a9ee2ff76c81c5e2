/* The reference for crates/sys/src/ze.rs in `cargo xtask bindings`: Intel's own header, if it is installed. */
#include <level_zero/ze_api.h>
#include <stdint.h>
