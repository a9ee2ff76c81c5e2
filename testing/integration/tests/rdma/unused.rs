//! The reasons why devices of the kernel are not used: each cause that a machine with software devices can have, as the
//! plugin logs it. The tests change the machine, so they run only where that is allowed (`TRUNKLINE_TEST_MACHINE`), as
//! in `scripts/rxe-vm`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cable::{Cable, run};
use crate::net::until;
use crate::run::{Setting, scenario};

/// The folder of rdma-core's device nodes.
const NODES: &str = "/dev/infiniband";
/// The mount point of control groups for the test.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A process that starts the plugin and prints its log; `None`, counted as a skip, on a machine that tests may not change.
fn on_own_machine() -> Option<Setting> {
    if std::env::var_os("TRUNKLINE_TEST_MACHINE").is_none() {
        let reason = "the devices of this machine are not taken away; scripts/rxe-vm has some for that";
        trunkline_integration::skip_test(
            "causes of devices that are not used",
            "a machine of its own",
            reason,
        );
        return None;
    }
    let mut setting = scenario("a_host_has_unused_nics")
        .env("TRUNKLINE_FABRIC", "auto")
        .env("TRUNKLINE_HOST_ROOT", "/")
        .env("TRUNKLINE_AUTO_SOFTWARE_RDMA", 1)
        .env("NCCL_DEBUG", "VERSION")
        .env("TEST_SHOWN", 1);
    if let Some(plugin) = std::env::var_os("TRUNKLINE_TEST_PLUGIN") {
        setting = setting.env_os("TRUNKLINE_TEST_PLUGIN", plugin);
    }
    Some(setting)
}

/// Files and folders that are hidden from all processes until this is dropped.
struct Hidden(Vec<PathBuf>);

impl Hidden {
    #[track_caller]
    fn new(paths: Vec<PathBuf>) -> Self {
        assert!(!paths.is_empty(), "no path to hide was given");
        paths.iter().for_each(|path| fs::rename(path, Self::place(path)).expect("a new name"));
        Self(paths)
    }

    fn place(path: &Path) -> PathBuf {
        path.with_extension("hidden")
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| fs::rename(Self::place(path), path).expect("the old name"));
    }
}

/// Paths of the files with this name in the library folders.
fn libraries(name: &str) -> Vec<PathBuf> {
    let folders = ["/lib", "/usr/lib"]
        .into_iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    folders.map(|folder| folder.path().join(name)).filter(|path| path.exists()).collect()
}

/// Waits until `is_so` is true for the first port of the cable's device.
#[track_caller]
fn wait_for(cable: &Cable, what: &str, is_so: impl Fn(&Path) -> bool) {
    let port = Path::new("/sys/class/infiniband").join(cable.devices[0]).join("ports/1");
    until(what, || is_so(&port).then_some(()));
}

#[test]
fn software_devices_count_only_when_named() {
    let Some(setting) = on_own_machine() else { return };
    setting.clone().env("TEST_TOLD", "rxe0, rxe1 (rxe): verbs is not yet the default").alone();
    let usual = setting.env("TRUNKLINE_AUTO_SOFTWARE_RDMA", 0).env("TEST_OFFERS", 1).env("TEST_SHOWN", 0);
    usual.env("TEST_TOLD", "fabric soft").alone();
}

#[test]
fn a_missing_library_or_provider_is_logged() {
    let Some(setting) = on_own_machine() else { return };
    {
        let _hidden = Hidden::new(libraries("libibverbs"));
        let told = "the provider library is missing (libibverbs/librxe-rdmav*.so)";
        setting.clone().env("TEST_TOLD", told).alone();
    }
    let _hidden = Hidden::new(libraries("libibverbs.so.1"));
    setting.env("TEST_TOLD", "libibverbs.so.1 cannot be opened").alone();
}

#[test]
fn absent_or_forbidden_nodes_are_logged() {
    let Some(setting) = on_own_machine() else { return };
    let told = format!("no access to /dev/infiniband ({NODES}/uverbs");
    {
        let _hidden = Hidden::new(vec![NODES.into()]);
        setting.clone().env("TEST_TOLD", format!("{told}0 does not exist)")).alone();
    }
    let allow = |mode: u32| {
        for node in fs::read_dir(NODES).expect("nodes").flatten() {
            fs::set_permissions(node.path(), fs::Permissions::from_mode(mode)).expect("rights");
        }
    };
    allow(0o600);
    let ended = std::panic::catch_unwind(|| {
        setting.env("TEST_NOBODY", 1).env("TEST_TOLD", format!("{told}0: permission denied)")).alone();
    });
    allow(0o666);
    ended.unwrap_or_else(|why| std::panic::resume_unwind(why));
}

#[test]
fn unusable_ports_are_logged_with_their_cause() {
    let Some(setting) = on_own_machine() else { return };
    let Some(cable) = Cable::lay() else { return };
    let device = cable.devices[0];
    let setting = setting.env("NCCL_IB_HCA", format!("={device}"));
    cable.cut();
    wait_for(&cable, "a port that is down", |port| {
        fs::read_to_string(port.join("state")).is_ok_and(|state| state.contains("DOWN"))
    });
    let told = format!("{device} (rxe): port 1 is down (state DOWN)|(rxe): NCCL_IB_HCA excludes it");
    setting.clone().env("TEST_TOLD", told).alone();
    cable.mend();
    cable.forget_addresses();
    let is_local = |gid: &str| ["0000:0000:0000:0000:", "fe80:"].iter().any(|begin| gid.starts_with(begin));
    wait_for(&cable, "an active port without an address", |port| {
        let state = fs::read_to_string(port.join("state")).unwrap_or_default();
        let gids = fs::read_dir(port.join("gids")).into_iter().flatten().flatten();
        let texts = gids.filter_map(|gid| fs::read_to_string(gid.path()).ok());
        // The GID of an IPv4 address begins like an unset one.
        let mut routable = texts.filter(|gid| !is_local(gid) || gid.contains(":ffff:"));
        state.contains("ACTIVE") && routable.next().is_none()
    });
    setting.env("TEST_TOLD", format!("{device} (rxe): port 1 has no routable GID")).alone();
}

#[test]
fn locked_memory_and_cgroup_limits_are_logged() {
    let Some(setting) = on_own_machine() else { return };
    let limited = setting.clone().env("TEST_NOBODY", 1).env("TEST_MEMLOCK", 8 << 20);
    limited.env("TEST_TOLD", "rxe0, rxe1 (rxe): this process may lock only 8192 KiB of memory").alone();
    let Some(cgroup) = Cgroup::new() else { return };
    fs::write(cgroup.0.join("rdma.max"), "rxe0 hca_handle=0").expect("a limit");
    let setting = setting.env("TEST_CGROUP", cgroup.0.join("cgroup.procs").display());
    let told =
        "rxe0 (rxe): the rdma cgroup has no room (hca_handle: 0 of 0 in use)|rxe1 (rxe): verbs is not yet";
    setting.env("TEST_TOLD", told).alone();
}

/// A control group of the machine, whose devices can be limited.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "cgroup2", "none", CGROUPS]).output();
        let root = Path::new(CGROUPS);
        let limits = mounted.is_ok_and(|output| output.status.success())
            && fs::write(root.join("cgroup.subtree_control"), "+rdma").is_ok();
        if !limits {
            trunkline_integration::skip_test(
                "a limit of the rdma cgroup",
                "a kernel with it",
                "this one has none",
            );
            return None;
        }
        let group = root.join("unused");
        fs::create_dir(&group).expect("a group");
        Some(Self(group))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The processes in it have ended; the kernel may need a moment to notice.
        let gone = || fs::remove_dir(&self.0).ok();
        if !std::thread::panicking() {
            until("the group to be empty", gone);
        }
        run(&format!("umount {CGROUPS}"));
    }
}
