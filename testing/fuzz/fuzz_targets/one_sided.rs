//! Fuzzes `one_sided`; its checks are in `trunkline_runtime::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_runtime::fuzzing::run("one_sided", bytes);
});
