//! Fuzzes `softnic_record`; its checks are in `trunkline_softnic::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_softnic::fuzzing::run("softnic_record", bytes);
});
