//! Fuzzes `rank_card`; its checks are in `trunkline::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline::fuzzing::run("rank_card", bytes);
});
