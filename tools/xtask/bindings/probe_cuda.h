/* What `cargo xtask bindings` compares crates/sys/src/cuda.rs with: NVIDIA's own header, where it is installed. */
#include <cuda.h>
#include <stdint.h>
