//! The plugin on a host with NICs that it does not use, which a folder in place of `/` shows. `rdma::unused` plays the
//! same with devices of the kernel.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;

use libloading::os::unix::Library;
use rustix::process::{Resource, Rlimit, setrlimit};
use trunkline_sys::nccl_net::ResultCode;

use crate::net::{Called, LINES, Net, load, logged};
use crate::raw;
use crate::run::{Scene, Setting, scenario};

scenarios! {
    a_host_has_unused_nics,
    a_required_nic_is_missing,
}

/// How the warning begins.
const WARNING: &str = "TRUNKLINE_FABRIC=auto uses no NIC of this host";
/// The user and group `nobody`.
const NOBODY: u32 = 65_534;

/// Adds a RoCE device to a folder in place of `/`.
fn add_device(root: &Path, name: &str, driver: &str) {
    let device = root.join("sys/class/infiniband").join(name);
    let write = |path: &str, text: &str| {
        let path = device.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("ports/1/state", "4: ACTIVE\n");
    write("ports/1/link_layer", "Ethernet\n");
    write("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a5a:0001\n");
    std::fs::create_dir_all(device.join("device")).unwrap();
    std::os::unix::fs::symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("device/driver"))
        .unwrap();
}

/// A host with a RoCE device and an EFA device, without libfabric.
fn over_unused(name: &'static str, root: &Path) -> Setting {
    add_device(root, "mlx5_0", "mlx5_core");
    on(name, root)
}

fn on(name: &'static str, root: &Path) -> Setting {
    scenario(name).env("TRUNKLINE_FABRIC", "auto").env("TRUNKLINE_HOST_ROOT", root.display())
}

#[test]
fn the_plugin_offers_no_device_beside_unused_nics() {
    let root = tempfile::tempdir().unwrap();
    let setting = over_unused("a_host_has_unused_nics", root.path()).env("TEST_TOLD", "mlx5_0 (mlx5_core): ");
    for version in crate::run::VERSIONS {
        setting.clone().version(version).env("NCCL_DEBUG", "VERSION").env("TEST_SHOWN", 1).alone();
    }
    // NCCL prints it at these levels.
    for level in ["WARN", "info"] {
        setting.clone().env("NCCL_DEBUG", level).env("TEST_SHOWN", 0).alone();
    }
}

#[test]
fn an_efa_that_libfabric_does_not_open_is_left_to_nccl() {
    let root = tempfile::tempdir().unwrap();
    add_device(root.path(), "rdmap0s6", "efa");
    let setting =
        on("a_host_has_unused_nics", root.path()).env("TRUNKLINE_OFI_LIBRARY", "/no/such/libfabric.so.1");
    setting
        .env("TEST_TOLD", "rdmap0s6 (efa): libfabric does not open it (/no/such")
        .env("TEST_SHOWN", 1)
        .alone();
}

#[test]
fn nics_that_users_exclude_leave_the_software_nic() {
    let root = tempfile::tempdir().unwrap();
    let setting =
        over_unused("a_host_has_unused_nics", root.path()).env("TEST_OFFERS", 1).env("TEST_SHOWN", 0);
    for (name, value) in [("NCCL_IB_DISABLE", "1"), ("NCCL_IB_HCA", "^mlx5")] {
        let told = format!("mlx5_0 (mlx5_core): {name}");
        setting.clone().env(name, value).env("TEST_TOLD", told).alone();
    }
    let named = setting.env("TEST_TOLD", "fabric soft, 1 NICs").env("TRUNKLINE_SOFT_NICS", 1);
    named.env("TRUNKLINE_FABRIC", "soft").alone();
}

#[test]
fn a_missing_required_nic_fails_init() {
    let (root, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let setting = over_unused("a_required_nic_is_missing", root.path()).env("TRUNKLINE_REQUIRE_NIC", 1);
    setting.clone().env("TEST_TOLD", "mlx5_0 (mlx5_core): ").alone();
    let without = setting.env("TRUNKLINE_HOST_ROOT", empty.path().display());
    without.env("TEST_TOLD", "has no RDMA, EFA or Slingshot device").alone();
}

fn number(name: &str) -> usize {
    std::env::var(name).ok().map_or(0, |text| text.parse().expect("a number"))
}

/// Runs `play` with standard error in a file; returns the text written there, too.
fn with_errors<R>(play: impl FnOnce() -> R) -> (R, String) {
    let mut file = tempfile::tempfile().unwrap();
    let usual = File::from(rustix::io::dup(std::io::stderr()).unwrap());
    rustix::stdio::dup2_stderr(&file).unwrap();
    let done = play();
    rustix::stdio::dup2_stderr(&usual).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    eprint!("{text}");
    (done, text)
}

/// Removes from this process the rights that the test forbids.
fn give_up_rights() {
    if let Some(procs) = std::env::var_os("TEST_CGROUP") {
        std::fs::write(procs, std::process::id().to_string()).unwrap();
    }
    if std::env::var_os("TEST_MEMLOCK").is_some() {
        let bytes = Some(number("TEST_MEMLOCK") as u64);
        setrlimit(Resource::Memlock, Rlimit { current: bytes, maximum: bytes }).unwrap();
    }
    if std::env::var_os("TEST_NOBODY").is_some() {
        // SAFETY: changes the rights of this process alone, which holds nothing that depends on them.
        assert_eq!(unsafe { libc::setgid(NOBODY) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    }
}

fn library() -> Library {
    load(Path::new(&std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap()))
}

/// Starts and ends two communicators, as NCCL does. The test sets the lines expected in the log, and the number of
/// warnings on standard error.
fn a_host_has_unused_nics(scene: Scene) {
    let library = library();
    let (nets, errors) = with_errors(|| {
        give_up_rights();
        [(), ()].map(|()| Net::init(raw::find(&library, scene.version).unwrap()).expect("init succeeds"))
    });
    let lines = LINES.lock().unwrap().join("\n");
    for net in &nets {
        let offered = net.devices();
        assert_eq!(offered > 0, number("TEST_OFFERS") > 0, "{offered} devices\n{lines}");
    }
    for told in std::env::var("TEST_TOLD").unwrap().split('|') {
        assert!(lines.contains(told), "no log line contains {told}\n{lines}");
    }
    let warnings = usize::from(number("TEST_OFFERS") == 0);
    assert_eq!(logged(&format!("2 trunkline: {WARNING}")), warnings, "{lines}");
    let shown = errors.lines().filter(|line| line.starts_with(&format!("trunkline: {WARNING}"))).count();
    assert_eq!(shown, number("TEST_SHOWN"), "{errors}");
    assert_eq!(logged("as NCCL plugin: "), 1, "one banner: {lines}");
    assert_eq!(logged("as NCCL plugin: no NIC is offered"), warnings, "{lines}");
    for net in nets {
        net.finalize().into_iter().for_each(|ended| ended.unwrap());
    }
}

fn a_required_nic_is_missing(scene: Scene) {
    let library = library();
    let told = std::env::var("TEST_TOLD").unwrap();
    let (started, errors): (Called<Net>, _) =
        with_errors(|| Net::init(raw::find(&library, scene.version).unwrap()));
    assert_eq!(started.err(), Some(ResultCode::SYSTEM_ERROR));
    assert!(logged(&told) >= 1 && logged("TRUNKLINE_REQUIRE_NIC=1") >= 1, "{:?}", LINES.lock().unwrap());
    assert!(errors.contains("trunkline: init: TRUNKLINE_REQUIRE_NIC=1"), "{errors}");
}
