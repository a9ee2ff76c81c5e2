//! OpenSHMEM's own variables. Those of other implementations without effect are in `unused`.

use crate::SettingAlias;
use crate::SettingKind::{Bytes, LooseSwitch};

const HEAP: crate::SettingKind = Bytes { min: 1, max: 1 << 46 };

setting_rows! {
    SYMMETRIC_SIZE: "SHMEM_SYMMETRIC_SIZE", OpenShmem, HEAP, "512M",
        "bytes of the symmetric heap of each PE",
        aliases(&[
            SettingAlias::same("SHMEM_SYMMETRIC_HEAP_SIZE", HEAP),
            SettingAlias::same("SMA_SYMMETRIC_SIZE", HEAP),
        ]);
    INFO: "SHMEM_INFO", OpenShmem, LooseSwitch, "0",
        "print OpenSHMEM's variables and their values when PE 0 starts",
        aliases(&[SettingAlias::same("SMA_INFO", LooseSwitch)]);
    VERSION: "SHMEM_VERSION", OpenShmem, LooseSwitch, "0",
        "print the version of the library when PE 0 starts",
        aliases(&[SettingAlias::same("SMA_VERSION", LooseSwitch)]);
    DEBUG: "SHMEM_DEBUG", OpenShmem, LooseSwitch, "0",
        "print lines at INFO, beside warnings",
        aliases(&[SettingAlias::same("SMA_DEBUG", LooseSwitch)]);
}
