//! Fuzzes `softnic_frame`; what it checks stands in `trunkline_softnic::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_proto::fuzzing::run(trunkline_softnic::fuzzing::TARGETS, "softnic_frame", bytes);
});
