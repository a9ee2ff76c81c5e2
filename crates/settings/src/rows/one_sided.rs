//! One-sided communication, of all front ends that have it.

use crate::FrontEndKind::Nvshmem;
use crate::SettingAlias;
use crate::SettingKind::{Bytes, Number, Switch, Word, WordOrNumber};

const BATCH: crate::SettingKind = Number { min: 1, max: 1024 };

setting_rows! {
    HEAP_BYTES: "TRUNKLINE_HEAP_BYTES", OneSided, Bytes { min: 4096, max: 1 << 40 }, "67108864",
        "symmetric heap per rank of Rust programs; pages are allocated when they are used, unless a NIC pins them";
    ATOMICS: "TRUNKLINE_ATOMICS", OneSided, Word(&["auto", "nic", "owner"]), "auto",
        "8-byte atomics are executed by the NIC where every rank has exactly one that can, or by the word's owner; auto: a NIC that needs no calls",
        own_defaults(&[(Nvshmem, "owner")]);
    SHARED_HEAP: "TRUNKLINE_SHARED_HEAP", OneSided,
        WordOrNumber { words: &["on", "off"], min: 1, max: 65536 }, "on",
        "processes of one host access each other's heaps by loads and stores; off: through the fabric; N: each N ranks count as a host";
    SHARED_STATICS: "TRUNKLINE_SHARED_STATICS", OneSided, Switch, "1",
        "1: static variables of OpenSHMEM programs are shared like the heap; 0: others access them through the fabric";
    PROGRESS_BATCH: "TRUNKLINE_PROGRESS_BATCH", OneSided, BATCH, "32",
        "completions that are processed from one NIC before the next is polled",
        aliases(&[SettingAlias {
            only: Some(Nvshmem),
            ..SettingAlias::same("NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX", BATCH)
        }]);
}
