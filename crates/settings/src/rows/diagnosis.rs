//! Status pages, traces and logs.

use crate::SettingKind::{Number, Path, Switch, Text};
use crate::SettingUse::EnvironmentOnly;

setting_rows! {
    STATUS: "TRUNKLINE_STATUS", Diagnosis, Switch, "1",
        "1: a page of counters that programs of the same user can read, such as `trunkline top`";
    TRACE: "TRUNKLINE_TRACE", Diagnosis, Path { expected: "the path of a folder, or off" }, "off",
        "record the traffic of each rail into a file per process in this folder, for Perfetto";
    TRACE_EVENTS: "TRUNKLINE_TRACE_EVENTS", Diagnosis, Number { min: 1 << 10, max: 1 << 26 }, "262144",
        "events per process that are recorded, 40 bytes each; later ones are counted as lost";
    NCCL_DEBUG: "NCCL_DEBUG", Diagnosis, Text { expected: "a level of NCCL" }, "",
        "NCCL's own level: below WARN it shows no line of a plugin, so the plugin prints its errors to stderr",
        usage(EnvironmentOnly);
}
