//! Fuzzes `launcher_frame`; its checks are in `trunkline_cli::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_cli::fuzzing::run("launcher_frame", bytes);
});
