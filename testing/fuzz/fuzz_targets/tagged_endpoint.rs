//! Fuzzes `tagged_endpoint`; its checks are in `trunkline_node::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_node::fuzzing::run("tagged_endpoint", bytes);
});
