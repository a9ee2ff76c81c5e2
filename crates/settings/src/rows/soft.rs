//! The software NIC.

use crate::SettingKind::{Number, Switch, Word};

setting_rows! {
    NICS: "TRUNKLINE_SOFT_NICS", SoftNic, Number { min: 0, max: 16 }, "0",
        "software NICs of this host; 0: one per address";
    COPY: "TRUNKLINE_SOFT_COPY", SoftNic, Word(&["auto", "staging", "pull", "share"]), "auto",
        "how large messages reach another process: through a shared ring, read by the receiver, or copied by both; auto: each connection measures";
    DELAYED: "TRUNKLINE_SOFT_DELAYED", SoftNic, Switch, "0",
        "1: written data is visible only after a flush, as on some accelerators; for tests";
    DMABUF: "TRUNKLINE_SOFT_DMABUF", SoftNic, Switch, "0",
        "1: accept dma-bufs that the CPU can map, in place of NICs that reach GPUs; for tests";
    MAX_QP: "TRUNKLINE_SOFT_MAX_QP", SoftNic, Number { min: 0, max: 1 << 20 }, "0",
        "queue pairs per software NIC; 0: its default";
    PIPELINES: "TRUNKLINE_SOFT_PIPELINES", SoftNic, Number { min: 0, max: 64 }, "0",
        "pipelines per software NIC, which share its queue pairs; 0: one";
    MAX_MR: "TRUNKLINE_SOFT_MAX_MR", SoftNic, Number { min: 0, max: 1 << 20 }, "0",
        "registrations per software NIC; 0: its default";
}
