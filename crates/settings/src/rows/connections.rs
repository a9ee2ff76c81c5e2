//! Connections, the messages over them, and queue pairs that connections share.

use crate::SettingKind::{Bytes, Milliseconds, Number, Switch, Word};
use crate::{AliasMeaning, SettingAlias};

/// The longest time of a setting: one hour.
const HOUR_MS: u64 = 3_600_000;

/// 0 and 1 as words.
const SWITCH_WORDS: &[(&str, &str)] = &[("0", "off"), ("1", "on")];

const fn links_alias(name: &'static str, min: u64) -> SettingAlias {
    SettingAlias { name, kind: Number { min, max: 128 }, meaning: AliasMeaning::AtMost(4), only: None }
}

const fn switch_alias(name: &'static str) -> SettingAlias {
    SettingAlias { name, kind: Switch, meaning: AliasMeaning::Words(SWITCH_WORDS), only: None }
}

/// RCCL's number of groups, which also selects whether to share.
const fn groups_alias(name: &'static str, meaning: AliasMeaning) -> SettingAlias {
    SettingAlias { name, kind: Number { min: 0, max: 8 }, meaning, only: None }
}

const DEPTH_MULTIPLIER: crate::SettingKind = Number { min: 1, max: 255 };

setting_rows! {
    MATCH: "TRUNKLINE_MATCH", Connections, Word(&["auto", "nic", "mailbox"]), "auto",
        "sends are paired with receives by the NIC where it can, or by the engine with a mailbox; auto: the mailbox";
    EAGER_MAX: "TRUNKLINE_EAGER_MAX", Connections, Bytes { min: 0, max: 65536 }, "4096",
        "largest message that is sent before its receive is known; 0: none is";
    EAGER_CREDITS: "TRUNKLINE_EAGER_CREDITS", Connections, Number { min: 0, max: 32 }, "32",
        "such messages in flight per connection";
    PEER_TIME: "TRUNKLINE_PEER_TIME_MS", Connections, Milliseconds { min: 10, max: HOUR_MS }, "10000",
        "longest time from a peer's death to the failure of its requests; up to 2 s more where a whole host is silent";
    RAIL_TIME: "TRUNKLINE_RAIL_TIME_MS", Connections, Milliseconds { min: 1_000, max: HOUR_MS }, "3000",
        "longest time that pending operations of a link may lack a response before the link is left";
    CONNECT_TIME: "TRUNKLINE_CONNECT_TIME_MS", Connections, Milliseconds { min: 1_000, max: HOUR_MS }, "300000",
        "longest time between two connect calls of an attempt before it is given up";
    DEPTH: "TRUNKLINE_DEPTH", Connections, Number { min: 32, max: 32768 }, "512",
        "outstanding operations per link";
    LINKS_PER_RAIL: "TRUNKLINE_LINKS_PER_RAIL", Connections, Number { min: 1, max: 4 }, "1",
        "links over each rail of a connection, four in all at most; over TCP, several help where single streams are slow",
        aliases(&[links_alias("NCCL_IB_QPS_PER_CONNECTION", 1)]);
    P2P_LINKS_PER_RAIL: "TRUNKLINE_P2P_LINKS_PER_RAIL", Connections, Number { min: 0, max: 4 }, "0",
        "the same for connections with RCCL's point-to-point hint; 0: as for others",
        aliases(&[links_alias("RCCL_IB_QPS_PER_P2P", 0)]);
    SPLIT: "TRUNKLINE_SPLIT", Connections, Word(&["on", "off"]), "on",
        "whether a long message is spread over the links of one rail; over several rails it always is",
        aliases(&[switch_alias("NCCL_IB_SPLIT_DATA_ON_QPS")]);
    STRIPE_MIN: "TRUNKLINE_STRIPE_MIN", Connections, Bytes { min: 1, max: 1 << 30 }, "65536",
        "smallest piece of a message that is spread over several links; rounded up to a multiple of 128";
    COMMS_MAX: "TRUNKLINE_COMMS_MAX", Connections, Number { min: 1, max: 65535 }, "8192",
        "connections of this process";
    REGIONS_MAX: "TRUNKLINE_REGIONS_MAX", Connections, Number { min: 1, max: 1 << 24 }, "65536",
        "registrations per connection";
    NODE_COPY: "TRUNKLINE_NODE_COPY", Connections, Word(&["auto", "pull", "turns", "stage"]), "auto",
        "long tagged messages inside a host are copied by the receiver, by both ranks in turns, or by both through a stage; auto: measured";
    PROGRESS_THREAD: "TRUNKLINE_PROGRESS_THREAD", Connections, Switch, "0",
        "1: a thread makes progress for connections whose owner makes no call; it sleeps in between",
        own_defaults(&[(crate::FrontEndKind::OpenShmem, "1"), (crate::FrontEndKind::Rust, "1")]);
    QP_SHARING: "TRUNKLINE_QP_SHARING", Sharing, Word(&["off", "on", "auto"]), "off",
        "whether connections between two processes share queue pairs; auto: once more than half of a NIC's are in use",
        aliases(&[
            switch_alias("RCCL_IB_QP_SHARING_ENABLE"),
            groups_alias("RCCL_ANP_COMM_NGROUPS", AliasMeaning::CountAsSwitch),
            groups_alias("RCCL_IB_COMM_NGROUPS", AliasMeaning::CountAsSwitch),
        ]);
    QP_GROUPS: "TRUNKLINE_QP_GROUPS", Sharing, Number { min: 1, max: 8 }, "4",
        "groups of queue pairs that the connections of one direction to one process share",
        aliases(&[
            groups_alias("RCCL_ANP_COMM_NGROUPS", AliasMeaning::CountOrDefault),
            groups_alias("RCCL_IB_COMM_NGROUPS", AliasMeaning::CountOrDefault),
        ]);
    QP_DEPTH_MULTIPLIER: "TRUNKLINE_QP_DEPTH_MULTIPLIER", Sharing, DEPTH_MULTIPLIER, "1",
        "depth of a group's queues as a multiple of one connection's, up to the NIC's limit",
        aliases(&[
            SettingAlias::same("RCCL_ANP_QP_DEPTH_MULTIPLIER", DEPTH_MULTIPLIER),
            SettingAlias::same("RCCL_IB_QP_DEPTH_MULTIPLIER", DEPTH_MULTIPLIER),
        ]);
    QP_BUDGET: "TRUNKLINE_QP_BUDGET", Sharing, Number { min: 0, max: 1 << 20 }, "0",
        "queue pairs per NIC that this process may use; 0: all of the NIC's";
}
