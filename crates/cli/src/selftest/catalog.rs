//! The list of checks, the most important first: RDMA hardware, memory of GPUs, then checks that need no hardware.
//!
//! Called by `selftest` once. Pure: it plans from the options and the hardware, and runs nothing.

use super::hardware::{GpuDriver, HostHardware};

/// The user's choices, from which checks are planned.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckOptions {
    /// Use small sizes.
    pub(crate) quick: bool,
    /// The two hosts, if there are two.
    pub(crate) two_hosts: Option<HostPair>,
    /// This program, as both hosts start it.
    pub(crate) program: String,
    /// `TRUNKLINE_FABRIC`, where it names one.
    pub(crate) fabric: Option<String>,
}

/// Two hosts, as arguments of `trunkline run`.
#[derive(Clone, Debug)]
pub(crate) struct HostPair {
    /// Both, as the user named them.
    pub(crate) both: String,
    pub(crate) second: String,
    /// Options of `trunkline run` that reach them.
    pub(crate) options: Vec<String>,
}

/// A check before it runs.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCheck {
    pub(crate) name: String,
    pub(crate) about: &'static str,
    /// Arguments of this program.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
    pub(crate) expected: ExpectedRows,
    /// The reason why it cannot run here.
    pub(crate) missing: Option<String>,
}

/// The output that a check must have to pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedRows {
    /// The fabric that each row names.
    pub(crate) fabric: Option<String>,
    /// Whether the device is fused of several.
    pub(crate) is_fused: bool,
    /// Whether it is one object of `trunkline info`.
    pub(crate) is_info: bool,
}

/// A fabric; the names of its checks have a common prefix.
struct FabricPlan<'a> {
    prefix: &'a str,
    /// `TRUNKLINE_FABRIC`.
    value: String,
    missing: Option<String>,
    /// The reason why NICs cannot be fused.
    unfusable: Option<String>,
}

/// Sizes and counts of the benchmarks.
struct SizeArguments {
    messages: &'static str,
    collectives: &'static str,
    /// Arguments of checks with four ranks, which may be more than the processors.
    four_ranks: &'static str,
    one_sided: &'static str,
    device: &'static str,
}

const USUAL: SizeArguments = SizeArguments {
    messages: "-b 8 -e 16M -f 8",
    collectives: "-b 8 -e 32M -f 8",
    four_ranks: "-b 8 -e 4M -f 8",
    one_sided: "-b 8 -e 4M -f 8",
    device: "-b 8 -e 64K -f 128 -i 500",
};
const QUICK: SizeArguments = SizeArguments {
    messages: "-b 8 -e 64K -f 64 -w 1 -i 10",
    collectives: "-b 8 -e 64K -f 64 -w 1 -i 4",
    four_ranks: "-b 8 -e 64K -f 64 -w 1 -i 4",
    one_sided: "-b 8 -e 4K -f 32 -i 10",
    device: "-b 8 -e 8 -i 16",
};
/// The variable that makes two software NICs, for checks of fused NICs.
const SOFT_NICS: (&str, &str) = ("TRUNKLINE_SOFT_NICS", "2");
const SHARING: (&str, &str) = ("TRUNKLINE_QP_SHARING", "on");

/// Returns all checks, the most important first.
pub(crate) fn plan_checks(options: &CheckOptions, hardware: &HostHardware) -> Vec<PlannedCheck> {
    let fabrics = plan_fabrics(options, hardware);
    let (soft, nics): (Vec<_>, Vec<_>) = fabrics.iter().partition(|fabric| fabric.prefix == "soft");
    let mut checks =
        vec![plan_info("info", "fabric, NICs and copy methods that this environment selects", None)];
    checks.extend(nics.iter().flat_map(|fabric| plan_fabric(options, fabric)));
    checks.extend(GpuDriver::ALL.iter().map(|driver| plan_gpu(options, hardware, *driver)));
    checks.extend(soft.iter().flat_map(|fabric| plan_fabric(options, fabric)));
    checks.push(PlannedCheck {
        name: "device-queues".to_owned(),
        about: "device queues, posted by the host and by an NVIDIA GPU if there is one",
        arguments: split_words(&format!("bench device --json {}", size_arguments(options).device)),
        environment: Vec::new(),
        expected: ExpectedRows::default(),
        missing: None,
    });
    checks
}

fn size_arguments(options: &CheckOptions) -> &'static SizeArguments {
    if options.quick { &QUICK } else { &USUAL }
}

/// Plans the fabrics to check: the fabric in the environment, or all.
fn plan_fabrics(options: &CheckOptions, hardware: &HostHardware) -> Vec<FabricPlan<'static>> {
    let few = |nics: usize, what: &str| (nics < 2).then(|| format!("fewer than two {what}"));
    let all = vec![
        FabricPlan {
            prefix: "verbs",
            value: "verbs".to_owned(),
            missing: hardware.lacks_verbs(),
            unfusable: few(hardware.verbs_ports(), "active RDMA ports"),
        },
        FabricPlan {
            prefix: "efa",
            value: "ofi:efa".to_owned(),
            missing: hardware.lacks_efa(),
            unfusable: few(hardware.efa_ports(), "active EFA ports"),
        },
        FabricPlan {
            prefix: "cxi",
            value: "ofi:cxi".to_owned(),
            missing: hardware.lacks_cxi(),
            unfusable: few(hardware.cxi.len(), "Slingshot NICs"),
        },
        FabricPlan { prefix: "soft", value: "soft".to_owned(), missing: None, unfusable: None },
    ];
    let Some(asked) = options.fabric.clone() else { return all };
    let known = all.iter().find(|fabric| fabric.value == asked);
    let missing = known.map_or_else(
        || if asked.starts_with("verbs") { hardware.lacks_verbs() } else { None },
        |fabric| fabric.missing.clone(),
    );
    let unfusable = known.map_or_else(
        || {
            let is_several = asked.starts_with("soft");
            (!is_several).then(|| "TRUNKLINE_FABRIC may name a single NIC".to_owned())
        },
        |fabric| fabric.unfusable.clone(),
    );
    let prefix = ["verbs", "ofi", "soft"].into_iter().find(|name| asked.starts_with(name));
    let prefix = known.map_or(prefix.unwrap_or("fabric"), |fabric| fabric.prefix);
    vec![FabricPlan { prefix, value: asked, missing, unfusable }]
}

/// The checks of one fabric.
fn plan_fabric(options: &CheckOptions, fabric: &FabricPlan<'_>) -> Vec<PlannedCheck> {
    let SizeArguments { messages, collectives, four_ranks, one_sided, .. } = size_arguments(options);
    let is_soft = fabric.prefix == "soft";
    let check = |kind: &str, about, bench: &str| PlannedCheck {
        name: format!("{}-{kind}", fabric.prefix),
        about,
        arguments: split_words(&format!("bench {bench} --json")),
        environment: vec![("TRUNKLINE_FABRIC", fabric.value.clone())],
        expected: ExpectedRows { fabric: fabric_family(&fabric.value), ..ExpectedRows::default() },
        missing: fabric.missing.clone(),
    };
    let p2p = check("p2p", "point-to-point: latency, bandwidth, message rate", &format!("p2p {messages}"));
    let pair = check("all_reduce", "all_reduce of two ranks", &format!("all_reduce -n 2 {collectives}"));
    let rma = check("rma", "one-sided: put, get, atomics, signals", &format!("rma {one_sided}"));
    let mut merge = check("merge", "NICs fused to one device", &format!("p2p --merge {messages}"));
    merge.expected.is_fused = true;
    merge.missing = merge.missing.or_else(|| fabric.unfusable.clone());
    if is_soft {
        merge.environment.push((SOFT_NICS.0, SOFT_NICS.1.to_owned()));
    }
    let shared = format!("all_reduce -n 2 --comms 2 --channels 2 {collectives}");
    let mut shared = check("shared", "queue pairs that connections share", &shared);
    shared.environment.push((SHARING.0, SHARING.1.to_owned()));
    let four = check("four_ranks", "all_reduce of four ranks", &format!("all_reduce -n 4 {four_ranks}"));

    let mut open = plan_info("open", "devices found and opened", Some(fabric));
    open.missing.clone_from(&fabric.missing);
    let about = "devices that the second host finds and opens";
    let second = PlannedCheck { about, ..open.clone() };
    let far_open = launched_check(options, second, fabric, "hosts-open", |pair| ["1", &pair.second]);
    let far = |check: &PlannedCheck, kind: &str, about| between_hosts(options, check, fabric, kind, about);
    let far_p2p = far(&p2p, "hosts-p2p", "point-to-point between the two hosts");
    let far_pair = far(&pair, "hosts-all_reduce", "all_reduce between the two hosts");
    let far_rma = far(&rma, "hosts-rma", "one-sided between the two hosts");
    let checks = [open, p2p, far_open, far_p2p, far_pair, far_rma, pair, merge, shared, rma, four];
    // The check `info` already covers the software NIC.
    checks.into_iter().skip(usize::from(is_soft)).collect()
}

/// The same between two hosts, each with one rank.
fn between_hosts(
    options: &CheckOptions,
    check: &PlannedCheck,
    fabric: &FabricPlan<'_>,
    kind: &str,
    about: &'static str,
) -> PlannedCheck {
    // The launcher sets the number of ranks.
    let mut bench = check.arguments.clone();
    if let Some(at) = bench.iter().position(|word| word == "-n") {
        bench.drain(at..at + 2);
    }
    let far = PlannedCheck { arguments: bench, about, ..check.clone() };
    launched_check(options, far, fabric, kind, |pair| ["2", &pair.both])
}

/// Puts a check under the launcher; `place` names the number of ranks and their hosts.
fn launched_check(
    options: &CheckOptions,
    check: PlannedCheck,
    fabric: &FabricPlan<'_>,
    kind: &str,
    place: impl Fn(&HostPair) -> [&str; 2],
) -> PlannedCheck {
    let name = format!("{}-{kind}", fabric.prefix);
    let Some(pair) = &options.two_hosts else {
        let alone = "no second host; name two with --hosts A,B".to_owned();
        return PlannedCheck { name, missing: check.missing.or(Some(alone)), ..check };
    };
    let [ranks, hosts] = place(pair);
    let mut arguments: Vec<String> = ["run", "-n", ranks, "--hosts", hosts].map(str::to_owned).into();
    arguments.extend(pair.options.iter().cloned());
    arguments.extend(["--".to_owned(), options.program.clone()]);
    arguments.extend(check.arguments);
    PlannedCheck { name, arguments, ..check }
}

fn plan_info(kind: &str, about: &'static str, fabric: Option<&FabricPlan<'_>>) -> PlannedCheck {
    PlannedCheck {
        name: fabric.map_or_else(|| kind.to_owned(), |fabric| format!("{}-{kind}", fabric.prefix)),
        about,
        arguments: split_words("info --json"),
        environment: fabric.map(|fabric| ("TRUNKLINE_FABRIC", fabric.value.clone())).into_iter().collect(),
        expected: ExpectedRows {
            fabric: fabric.and_then(|fabric| fabric_family(&fabric.value)),
            is_info: true,
            ..ExpectedRows::default()
        },
        missing: None,
    }
}

fn plan_gpu(options: &CheckOptions, hardware: &HostHardware, driver: GpuDriver) -> PlannedCheck {
    let memory = driver.memory_option();
    PlannedCheck {
        name: format!("gpu-{memory}"),
        about: "messages between GPU buffers inside this host",
        arguments: split_words(&format!(
            "bench p2p --memory {memory} --json {}",
            size_arguments(options).messages
        )),
        environment: Vec::new(),
        expected: ExpectedRows { fabric: Some(memory.to_owned()), ..ExpectedRows::default() },
        missing: hardware.lacks_gpu(driver),
    }
}

/// The first word of `TRUNKLINE_FABRIC`, which rows contain.
fn fabric_family(value: &str) -> Option<String> {
    value.split(':').next().map(str::to_owned)
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn plan(fabric: Option<&str>, hosts: Option<&str>) -> Vec<PlannedCheck> {
        let pair = |hosts: &str| HostPair {
            both: hosts.to_owned(),
            second: "b".to_owned(),
            options: vec!["--rsh".to_owned(), "x".to_owned()],
        };
        let options = CheckOptions {
            quick: true,
            two_hosts: hosts.map(pair),
            program: "/opt/trunkline".to_owned(),
            fabric: fabric.map(str::to_owned),
        };
        plan_checks(&options, &HostHardware::read_host(Path::new("/nowhere")))
    }

    fn find<'a>(checks: &'a [PlannedCheck], name: &str) -> &'a PlannedCheck {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn hardware_is_checked_before_software() {
        let checks = plan(None, None);
        let at = |name: &str| checks.iter().position(|check| check.name == name).unwrap();
        assert!(at("verbs-p2p") < at("efa-p2p") && at("cxi-rma") < at("gpu-cuda"));
        assert!(at("gpu-ze") < at("soft-p2p") && at("soft-p2p") < at("device-queues"));
        assert!(find(&checks, "verbs-p2p").missing.as_ref().unwrap().contains("no RDMA device"));
        assert!(find(&checks, "soft-hosts-p2p").missing.as_ref().unwrap().contains("--hosts A,B"));
        assert_eq!(find(&checks, "soft-merge").missing, None);
        let mut names: Vec<&str> = checks.iter().map(|check| &*check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks.len(), "names are unique");
    }

    #[test]
    fn the_environment_chooses_one_fabric() {
        let checks = plan(Some("ofi:tcp"), None);
        let p2p = find(&checks, "ofi-p2p");
        assert_eq!(p2p.environment, [("TRUNKLINE_FABRIC", "ofi:tcp".to_owned())]);
        assert_eq!((p2p.expected.fabric.as_deref(), &p2p.missing), (Some("ofi"), &None));
        assert!(!checks.iter().any(|check| check.name.starts_with("soft")));
        assert!(find(&plan(Some("verbs:mlx5_1"), None), "verbs-p2p").missing.is_some());
        assert!(find(&plan(Some("ofi:efa"), None), "efa-p2p").missing.is_some());
    }

    #[test]
    fn the_launcher_counts_the_ranks_of_two_hosts() {
        let checks = plan(None, Some("a,b"));
        let far = find(&checks, "soft-hosts-all_reduce");
        let command = far.arguments.join(" ");
        let start = "run -n 2 --hosts a,b --rsh x -- /opt/trunkline bench all_reduce -b 8";
        assert!(command.starts_with(start), "{command}");
        assert_eq!(far.missing, None);
        let command = find(&checks, "soft-hosts-open").arguments.join(" ");
        assert_eq!(command, "run -n 1 --hosts b --rsh x -- /opt/trunkline info --json");
        assert!(find(&checks, "verbs-hosts-p2p").missing.as_ref().unwrap().contains("no RDMA device"));
    }
}
