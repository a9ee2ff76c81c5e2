//! The cause why a device is not used, and the remedy. Pure: facts in, one cause out. `unused` calls it for each
//! device.

use std::fmt;
use std::io;
use std::path::PathBuf;

use trunkline_verbs::{HcaFilter, VerbsUnavailable};

use crate::inventory::{CgroupLimit, DeviceKind, HostDevice, ProcessLimits, provider_of};

/// The least amount of memory that a process must be allowed to lock: a NIC locks the buffers of each connection, a
/// few MiB per NCCL channel.
const MEMLOCK_MIN: u64 = 64 << 20;
/// The link layer of RoCE, as the kernel calls it.
const ETHERNET: &str = "Ethernet";
/// The state of a port that can be used, as the kernel calls it.
const ACTIVE: &str = "ACTIVE";

/// The cause why a device is not used.
#[derive(Debug)]
pub(crate) enum UnusedCause {
    /// Users have excluded it.
    Excluded(&'static str),
    /// Other devices are used, over this fabric.
    BesideUsed(String),
    /// libibverbs cannot be opened.
    NoLibrary(String),
    /// libibverbs is too old.
    OldLibrary { symbol: String, version: String },
    /// The kernel has no interface of it for programs.
    NoNode,
    /// libibverbs has no provider for it.
    NoProvider(String),
    /// Its node is not in `/dev`, as in a container.
    NodeAbsent(PathBuf),
    /// Its node cannot be opened.
    NodeRefused(PathBuf, io::ErrorKind),
    /// No port is active; the first of them, and its state.
    PortDown { port: u32, state: String },
    /// An active port has no address that reaches beyond its own cable.
    NoRoutableGid(u32),
    /// This process may lock too little memory.
    Memlock(u64),
    /// Its rdma cgroup has no room.
    RdmaCgroup(CgroupLimit),
    /// libfabric does not open it.
    Libfabric { provider: &'static str, why: String },
    /// It could be used, but no setting requests it.
    NotDefault,
    /// It was requested, and could not be opened.
    NotOpened,
}

/// The settings, libraries and limits that decide whether a device is used.
pub(crate) struct HostCircumstances<'a> {
    /// `NCCL_IB_DISABLE` is 1.
    pub(crate) disabled: bool,
    /// `NCCL_IB_HCA`.
    pub(crate) filter: &'a HcaFilter,
    /// The devices for which libibverbs has a provider.
    pub(crate) listed: &'a Result<Vec<String>, VerbsUnavailable>,
    pub(crate) limits: ProcessLimits,
    /// The reason why libfabric does not open its devices.
    pub(crate) libfabric: Option<&'a str>,
    /// The fabric whose devices are used, if one is.
    pub(crate) used: Option<&'a str>,
    /// `TRUNKLINE_FABRIC` names verbs.
    pub(crate) asked: bool,
}

/// Returns the first cause that keeps a device from being used, in the order in which a user would meet them.
pub(crate) fn diagnose_device(device: &HostDevice, about: &HostCircumstances<'_>) -> UnusedCause {
    let provider = match device.kind {
        DeviceKind::Efa => Some("efa"),
        DeviceKind::Slingshot => Some("cxi"),
        DeviceKind::Hardware | DeviceKind::Software => None,
    };
    if provider.is_none()
        && let Some(variable) = excluding_variable(device, about)
    {
        return UnusedCause::Excluded(variable);
    }
    let obstacle = || first_obstacle(device, about);
    match (about.used, provider) {
        // If verbs is named explicitly, the fault of an unused device is reported although others are used.
        (Some(used), _) if !about.asked || provider.is_some() => UnusedCause::BesideUsed(used.to_owned()),
        (_, Some(provider)) => UnusedCause::Libfabric {
            provider,
            why: about.libfabric.unwrap_or("another device was searched").to_owned(),
        },
        _ if about.asked => obstacle().unwrap_or(UnusedCause::NotOpened),
        _ => obstacle().unwrap_or(UnusedCause::NotDefault),
    }
}

/// Returns the variable by which users exclude a device.
fn excluding_variable(device: &HostDevice, about: &HostCircumstances<'_>) -> Option<&'static str> {
    if about.disabled {
        return Some("NCCL_IB_DISABLE is 1");
    }
    let taken = device.ports.iter().any(|port| about.filter.matches_port(&device.name, port.number));
    let taken = taken || device.ports.is_empty() && about.filter.matches_port(&device.name, 1);
    (!taken).then_some("NCCL_IB_HCA excludes it")
}

/// Returns the first obstacle that keeps rdma-core from using a device.
fn first_obstacle(device: &HostDevice, about: &HostCircumstances<'_>) -> Option<UnusedCause> {
    of_library(device, about)
        .or_else(|| of_node(device))
        .or_else(|| of_ports(device, about))
        .or_else(|| of_limits(device, about))
}

fn of_library(device: &HostDevice, about: &HostCircumstances<'_>) -> Option<UnusedCause> {
    let names = match about.listed {
        Err(VerbsUnavailable::Symbol { symbol, version }) => {
            return Some(UnusedCause::OldLibrary { symbol: symbol.clone(), version: version.clone() });
        }
        Err(VerbsUnavailable::Library(why)) => return Some(UnusedCause::NoLibrary(why.clone())),
        Err(other) => return Some(UnusedCause::NoLibrary(other.to_string())),
        Ok(names) => names,
    };
    match &device.node {
        None => Some(UnusedCause::NoNode),
        // libibverbs lists no device whose node is absent, whatever providers there are.
        Some((path, Err(error))) if error.kind() == io::ErrorKind::NotFound => {
            Some(UnusedCause::NodeAbsent(path.clone()))
        }
        Some(_) => {
            let is_listed = names.contains(&device.name);
            (!is_listed).then(|| UnusedCause::NoProvider(provider_of(&device.driver).to_owned()))
        }
    }
}

fn of_node(device: &HostDevice) -> Option<UnusedCause> {
    let (path, opened) = device.node.as_ref()?;
    let error = opened.as_ref().err()?;
    Some(UnusedCause::NodeRefused(path.clone(), error.kind()))
}

/// Returns the obstacle that all permitted ports have; one usable port is enough for a device.
fn of_ports(device: &HostDevice, about: &HostCircumstances<'_>) -> Option<UnusedCause> {
    let taken = || device.ports.iter().filter(|port| about.filter.matches_port(&device.name, port.number));
    let mut active = taken().filter(|port| port.state == ACTIVE).peekable();
    match active.peek() {
        None => {
            let port = taken().next();
            let state = port.map_or("missing", |port| port.state.as_str()).to_owned();
            Some(UnusedCause::PortDown { port: port.map_or(1, |port| port.number), state })
        }
        Some(first) => {
            let number = first.number;
            let well = active.any(|port| port.link_layer != ETHERNET || port.routable);
            (!well).then_some(UnusedCause::NoRoutableGid(number))
        }
    }
}

fn of_limits(device: &HostDevice, about: &HostCircumstances<'_>) -> Option<UnusedCause> {
    let memlock = about.limits.memlock.filter(|bytes| *bytes < MEMLOCK_MIN).map(UnusedCause::Memlock);
    memlock.or_else(|| device.used_up.clone().map(UnusedCause::RdmaCgroup))
}

impl UnusedCause {
    /// Returns whether users have chosen this cause, so that no warning is due.
    pub(crate) fn is_chosen(&self) -> bool {
        matches!(self, Self::Excluded(_) | Self::BesideUsed(_))
    }

    /// Returns the remedy.
    pub(crate) fn describe_remedy(&self) -> String {
        match self {
            Self::Excluded(_) => "unset the variable to use it",
            Self::BesideUsed(_) => "name the fabric by TRUNKLINE_FABRIC to use it instead",
            Self::NoLibrary(_) => "install rdma-core (Debian: packages libibverbs1 and ibverbs-providers)",
            Self::OldLibrary { .. } => "install a newer rdma-core",
            Self::NoNode => "load the kernel's module (modprobe ib_uverbs)",
            Self::NoProvider(_) => {
                "install the provider (Debian: package ibverbs-providers, else rdma-core or the vendor's package)"
            }
            Self::NodeAbsent(_) => "add the folder /dev/infiniband to the container (docker: --device=/dev/infiniband)",
            Self::NodeRefused(..) => {
                "give this user read and write access to it (rdma-core's udev rules, or the container's device rules)"
            }
            Self::PortDown { .. } => {
                "bring it up (RoCE: ip link set INTERFACE up; InfiniBand: see cable and subnet manager)"
            }
            Self::NoRoutableGid(_) => "give its network interface an IP address",
            Self::Memlock(_) => {
                "raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity, docker --ulimit memlock=-1) or grant CAP_IPC_LOCK"
            }
            Self::RdmaCgroup(limit) => {
                return format!("raise the limit in {}, or end a process that uses it up", limit.file.display());
            }
            Self::Libfabric { provider, .. } => {
                return format!("see fi_info -p {provider}, and trunkline info with TRUNKLINE_FABRIC=ofi:{provider}");
            }
            Self::NotDefault => "set TRUNKLINE_FABRIC=verbs to use it",
            Self::NotOpened => "see trunkline info",
        }
        .to_owned()
    }
}

impl fmt::Display for UnusedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Excluded(variable) => f.write_str(variable),
            Self::BesideUsed(fabric) => write!(f, "devices of fabric {fabric} are used"),
            Self::NoLibrary(why) => write!(f, "libibverbs.so.1 cannot be opened ({why})"),
            Self::OldLibrary { symbol, version } => {
                write!(f, "libibverbs.so.1 is too old (it has no {symbol} of version {version})")
            }
            Self::NoNode => f.write_str("the kernel has no device node of it for programs"),
            Self::NoProvider(provider) => {
                write!(f, "the provider library is missing (libibverbs/lib{provider}-rdmav*.so)")
            }
            Self::NodeAbsent(path) => {
                write!(f, "no access to /dev/infiniband ({} does not exist)", path.display())
            }
            Self::NodeRefused(path, kind) => {
                write!(f, "no access to /dev/infiniband ({}: {kind})", path.display())
            }
            Self::PortDown { port, state } => write!(f, "port {port} is down (state {state})"),
            Self::NoRoutableGid(port) => write!(f, "port {port} has no routable GID"),
            Self::Memlock(bytes) => write!(
                f,
                "this process may lock only {} KiB of memory (memlock), and {} MiB are needed",
                bytes >> 10,
                MEMLOCK_MIN >> 20
            ),
            Self::RdmaCgroup(CgroupLimit { resource, max, current, .. }) => {
                write!(f, "the rdma cgroup has no room ({resource}: {current} of {max} in use)")
            }
            Self::Libfabric { why, .. } => write!(f, "libfabric does not open it ({why})"),
            Self::NotDefault => f.write_str("verbs is not yet the default"),
            Self::NotOpened => f.write_str("it could not be opened, or cannot create a queue pair"),
        }
    }
}

#[cfg(test)]
#[path = "cause_tests.rs"]
pub(crate) mod tests;
