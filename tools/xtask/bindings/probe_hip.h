/* The reference for crates/sys/src/hip.rs in `cargo xtask bindings`: AMD's own headers, if they are installed. */
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <hsa/hsa_ext_amd.h>
#include <stdint.h>
