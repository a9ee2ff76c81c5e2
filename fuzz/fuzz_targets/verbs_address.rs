//! Fuzzes `verbs_address`; what it checks stands in `trunkline_verbs::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_proto::fuzzing::run(trunkline_verbs::fuzzing::TARGETS, "verbs_address", bytes);
});
