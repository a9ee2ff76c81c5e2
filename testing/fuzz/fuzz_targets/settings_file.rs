//! Fuzzes `settings_file`; its checks are in `trunkline_settings::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_settings::fuzzing::run("settings_file", bytes);
});
