//! Fuzzes `ofi_address`; what it checks stands in `trunkline_ofi::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_proto::fuzzing::run(trunkline_ofi::fuzzing::TARGETS, "ofi_address", bytes);
});
