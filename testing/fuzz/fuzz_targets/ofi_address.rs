//! Fuzzes `ofi_address`; its checks are in `trunkline_ofi::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_ofi::fuzzing::run("ofi_address", bytes);
});
