//! Fuzzes `softnic_frame`; its checks are in `trunkline_softnic::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_softnic::fuzzing::run("softnic_frame", bytes);
});
