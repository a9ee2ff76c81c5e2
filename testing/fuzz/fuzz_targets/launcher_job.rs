//! Fuzzes `launcher_job`; its checks are in `trunkline_cli::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_cli::fuzzing::run("launcher_job", bytes);
});
