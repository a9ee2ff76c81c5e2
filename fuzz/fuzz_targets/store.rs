//! Fuzzes `store`; what it checks stands in `trunkline_bootstrap::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trunkline_bootstrap::fuzzing::store(bytes));
