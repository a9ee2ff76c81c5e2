/* What `cargo xtask bindings` compares crates/sys/src/ze.rs with: Intel's own header, where it is installed. */
#include <level_zero/ze_api.h>
#include <stdint.h>
