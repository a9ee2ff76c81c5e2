//! Fuzzes `control_address`; its checks are in `trunkline_engine::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_engine::fuzzing::run("control_address", bytes);
});
