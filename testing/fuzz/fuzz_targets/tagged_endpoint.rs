//! Fuzzes `tagged_endpoint`; its checks are in `trunkline_engine::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_engine::fuzzing::run("tagged_endpoint", bytes);
});
