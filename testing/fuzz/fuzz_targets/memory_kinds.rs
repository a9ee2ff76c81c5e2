//! Fuzzes `memory_kinds`; its checks are in `trunkline_mem::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_mem::fuzzing::run("memory_kinds", bytes);
});
