/* The reference for crates/sys/src/cuda.rs in `cargo xtask bindings`: NVIDIA's own header, if it is installed. */
#include <cuda.h>
#include <stdint.h>
