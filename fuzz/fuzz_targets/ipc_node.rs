//! Fuzzes `ipc_node`; what it checks stands in `trunkline_engine::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    trunkline_proto::fuzzing::run(trunkline_engine::fuzzing::TARGETS, "ipc_node", bytes);
});
