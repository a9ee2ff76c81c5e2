//! Fuzzes `softnic_address`; its checks are in `trunkline_softnic::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_softnic::fuzzing::run("softnic_address", bytes);
});
