//! Fuzzes `introduction`; what it checks stands in `trunkline_proto::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_proto::fuzzing::run(trunkline_proto::fuzzing::TARGETS, "introduction", bytes);
});
