//! Fuzzes `rendezvous`; its checks are in `trunkline_nethost::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_nethost::fuzzing::run("rendezvous", bytes);
});
