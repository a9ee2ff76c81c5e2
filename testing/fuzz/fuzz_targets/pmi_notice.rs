//! Fuzzes `pmi_notice`; its checks are in `trunkline_bootstrap::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_bootstrap::fuzzing::run("pmi_notice", bytes);
});
