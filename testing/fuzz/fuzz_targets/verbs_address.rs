//! Fuzzes `verbs_address`; its checks are in `trunkline_verbs::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_verbs::fuzzing::run("verbs_address", bytes);
});
