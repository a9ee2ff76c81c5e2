//! Fuzzes `one_sided`; its checks are in `trunkline_choose::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_choose::fuzzing::run("one_sided", bytes);
});
