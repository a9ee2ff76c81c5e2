//! NVSHMEM's own variables that the transport honours. Those without effect are in `unused`; two more are aliases of rows in
//! `network` and `one_sided`.

use crate::SettingKind::{LooseSwitch, Number, Text};

setting_rows! {
    NICS_PER_PE: "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", Nvshmem, Number { min: 1, max: 1024 }, "16",
        "NICs per PE; at most 4 are used together";
    DISABLE_GDRCOPY: "NVSHMEM_DISABLE_GDRCOPY", Nvshmem, LooseSwitch, "0",
        "on: GDRCopy is not used to access words in GPU memory";
    DISABLE_BATCH_RMA: "NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA", Nvshmem, LooseSwitch, "0",
        "on: batch hints of NVSHMEM are ignored";
    DEBUG: "NVSHMEM_DEBUG", Nvshmem, Text { expected: "a level: NONE, VERSION, WARN, INFO, ABORT or TRACE" }, "",
        "INFO or TRACE: print lines at INFO, beside warnings";
    DEBUG_SUBSYS: "NVSHMEM_DEBUG_SUBSYS", Nvshmem, Text { expected: "subsystems, separated by commas; ^ before the list: all but these" }, "",
        "subsystems whose lines are printed; this transport belongs to INIT and TRANSPORT; unset: all";
}
