//! Fuzzes `ipc_node`; its checks are in `trunkline_node::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_node::fuzzing::run("ipc_node", bytes);
});
