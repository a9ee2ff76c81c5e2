//! Fuzzes `rendezvous`; its checks are in `trunkline_nccl_host::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_nccl_host::fuzzing::run("rendezvous", bytes);
});
