//! Variables of NCCL's RDMA transport that have no effect here. Users who set one get a line in the log, once.
//! Pure; the front end reads the environment and writes the lines.

/// A variable without effect.
struct IgnoredVariable {
    /// Without `NCCL_`.
    name: &'static str,
    /// Values that request the behaviour that is used anyway.
    same: &'static [&'static str],
    /// The behaviour that is used instead.
    instead: &'static str,
}

const FAILOVER: &str = "a connection over several rails leaves one that fails and takes it back by itself; TRUNKLINE_RAIL_TIME_MS says how soon";

const UNHEARD: &[IgnoredVariable] = &[
    IgnoredVariable {
        name: "DMABUF_ENABLE",
        same: &["1"],
        instead: "memory of GPUs is registered as a dma-buf where that works, else by its address",
    },
    IgnoredVariable {
        name: "IB_DATA_DIRECT",
        same: &["0"],
        instead: "a NIC's data-direct function is used as any other is",
    },
    IgnoredVariable {
        name: "IB_WARN_RAIL_LOCAL",
        same: &["0"],
        instead: "rails pair by their numbers, without a warning",
    },
    IgnoredVariable {
        name: "IB_DEVICE_PCI_ORDER",
        same: &["0"],
        instead: "devices come in the order of rdma-core",
    },
    IgnoredVariable { name: "IB_OOO_RQ", same: &["0"], instead: "receives are taken in order" },
    IgnoredVariable {
        name: "IB_PREPOST_RECEIVE_WORK_REQUESTS",
        same: &["1", "-2"],
        instead: "receives are always posted ahead",
    },
    IgnoredVariable {
        name: "IB_RECEIVER_SIDE_MATCHING_SCHEME",
        same: &["1", "-2"],
        instead: "immediates name the receive that they are for",
    },
    IgnoredVariable {
        name: "IB_SUBNET_AWARE_ROUTING",
        same: &["0"],
        instead: "rails pair by their numbers; on InfiniBand a link goes through a router where the subnets differ",
    },
    IgnoredVariable {
        name: "IB_SUBNET_PREFIX_LEN",
        same: &[],
        instead: "rails pair by their numbers, not by subnets",
    },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_FAILOVER", same: &["1"], instead: FAILOVER },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS", same: &[], instead: FAILOVER },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", same: &[], instead: FAILOVER },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_RECOVERY", same: &["1"], instead: FAILOVER },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_RECOVERY_START_DELAY", same: &[], instead: FAILOVER },
    IgnoredVariable {
        name: "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL",
        same: &[],
        instead: FAILOVER,
    },
    IgnoredVariable {
        name: "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE",
        same: &[],
        instead: FAILOVER,
    },
    IgnoredVariable {
        name: "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE",
        same: &[],
        instead: FAILOVER,
    },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", same: &[], instead: FAILOVER },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", same: &[], instead: FAILOVER },
    IgnoredVariable { name: "IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", same: &[], instead: FAILOVER },
];

/// Returns a line for each variable that `look_up` finds set to a behaviour that is not used anyway.
#[must_use]
pub fn ignored_variables(look_up: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let line = |one: &IgnoredVariable| {
        let name = format!("NCCL_{}", one.name);
        let value = look_up(&name)?;
        let asks = !value.trim().is_empty() && !one.same.contains(&value.trim());
        asks.then(|| format!("{name}={value} changes nothing: {}", one.instead))
    };
    UNHEARD.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_something_else_is_told() {
        for one in UNHEARD {
            let name = format!("NCCL_{}", one.name);
            let told = |value: &str| ignored_variables(|asked| (asked == name).then(|| value.to_owned()));
            let lines = told("7");
            assert!(lines.len() == 1 && lines[0].starts_with(&format!("{name}=7 ")), "{lines:?}");
            for same in one.same.iter().chain(&["", " "]) {
                assert_eq!(told(same), [""; 0], "{name}={same}");
            }
        }
        assert_eq!(ignored_variables(|_| None), [""; 0]);
        assert_eq!(ignored_variables(|_| Some("7".to_owned())).len(), UNHEARD.len());
    }
}
