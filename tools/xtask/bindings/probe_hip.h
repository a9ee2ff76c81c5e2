/* What `cargo xtask bindings` compares crates/sys/src/hip.rs with: AMD's own headers, where they are installed. */
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#include <hsa/hsa_ext_amd.h>
#include <stdint.h>
