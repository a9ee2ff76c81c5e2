//! Fuzzes `start_notice`; its checks are in `trunkline_proto::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_proto::fuzzing::run("start_notice", bytes);
});
