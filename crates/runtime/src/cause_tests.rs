use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::inventory::{read_devices, read_limits};

/// A folder in place of `/` with one usable RoCE device, `mlx5_0`.
pub(crate) struct FakeHost(pub(crate) tempfile::TempDir);

impl FakeHost {
    pub(crate) fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        host.add_device("mlx5_0", "mlx5_core", "uverbs0");
        host
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn add_device(&self, name: &str, driver: &str, node: &str) {
        let device = format!("sys/class/infiniband/{name}");
        self.write(&format!("{device}/node_desc"), "host\n");
        fs::create_dir_all(self.root().join(&device).join("device")).unwrap();
        let link = self.root().join(&device).join("device/driver");
        symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
        self.add_port(name, 1, "4: ACTIVE", "Ethernet");
        self.write(&format!("sys/class/infiniband_verbs/{node}/ibdev"), &format!("{name}\n"));
        self.write(&format!("dev/infiniband/{node}"), "");
    }

    fn add_port(&self, device: &str, port: u32, state: &str, link_layer: &str) {
        let port = format!("sys/class/infiniband/{device}/ports/{port}");
        self.write(&format!("{port}/state"), &format!("{state}\n"));
        self.write(&format!("{port}/link_layer"), &format!("{link_layer}\n"));
        self.write(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0a00:5eff:fe90:0001\n");
        self.write(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:ffff:0a5a:0001\n");
        self.write(&format!("{port}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    }

    /// Returns the cause of the first device, if libibverbs lists these devices.
    fn cause(&self, listed: &[&str]) -> UnusedCause {
        self.cause_by(&Ok(listed.iter().map(|name| (*name).to_owned()).collect()), "")
    }

    fn cause_by(&self, listed: &Result<Vec<String>, VerbsUnavailable>, filter: &str) -> UnusedCause {
        let devices = read_devices(self.root());
        let filter = HcaFilter::parse(filter).unwrap();
        let limits = read_limits(self.root());
        let about = HostCircumstances { filter: &filter, limits, ..circumstances(listed) };
        diagnose_device(&devices[0], &about)
    }
}

fn circumstances(listed: &Result<Vec<String>, VerbsUnavailable>) -> HostCircumstances<'_> {
    static ALL: std::sync::OnceLock<HcaFilter> = std::sync::OnceLock::new();
    HostCircumstances {
        disabled: false,
        filter: ALL.get_or_init(HcaFilter::default),
        listed,
        limits: ProcessLimits::default(),
        libfabric: None,
        used: None,
        asked: false,
    }
}

/// Asserts the texts of a cause and of its remedy.
#[track_caller]
fn says(cause: &UnusedCause, wanted: &str, remedy: &str) {
    let (text, helps) = (cause.to_string(), cause.describe_remedy());
    assert!(text.contains(wanted), "{text}");
    assert!(helps.contains(remedy), "{helps}");
    assert!(!cause.is_chosen(), "{text}");
}

const KNOWN: [&str; 1] = ["mlx5_0"];

#[test]
fn faultless_device_is_unused_until_named() {
    let cause = FakeHost::new().cause(&KNOWN);
    says(&cause, "verbs is not yet the default", "TRUNKLINE_FABRIC=verbs");
    assert!(matches!(cause, UnusedCause::NotDefault));
}

#[test]
fn a_missing_library_is_the_first_cause() {
    let host = FakeHost::new();
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    let cause = host.cause_by(&Err(VerbsUnavailable::Library("no such file".to_owned())), "");
    says(&cause, "libibverbs.so.1 cannot be opened (no such file)", "libibverbs1");
    let (symbol, version) = ("ibv_reg_mr".to_owned(), "IBVERBS_1.1".to_owned());
    let cause = host.cause_by(&Err(VerbsUnavailable::Symbol { symbol, version }), "");
    says(&cause, "too old (it has no ibv_reg_mr of version IBVERBS_1.1)", "newer rdma-core");
}

#[test]
fn unlisted_device_lacks_a_provider() {
    let host = FakeHost::new();
    says(&host.cause(&["mlx5_1"]), "libibverbs/libmlx5-rdmav*.so", "ibverbs-providers");
    fs::remove_dir_all(host.root().join("sys/class/infiniband_verbs")).unwrap();
    says(&host.cause(&[]), "no device node of it", "modprobe ib_uverbs");
    for (driver, provider) in
        [("ice", "irdma"), ("bnxt_en", "bnxt_re"), ("mana_ib", "mana"), ("erdma", "erdma")]
    {
        assert_eq!(provider_of(driver), provider);
    }
}

#[test]
fn unopenable_and_absent_nodes_have_different_causes() {
    let host = FakeHost::new();
    let node = host.root().join("dev/infiniband/uverbs0");
    fs::remove_file(&node).unwrap();
    says(&host.cause(&KNOWN), "no access to /dev/infiniband", "container");
    // Root can open any file for writing, but no folder.
    fs::create_dir(&node).unwrap();
    let cause = host.cause(&KNOWN);
    says(&cause, "no access to /dev/infiniband", "read and write access");
    assert!(cause.to_string().contains("uverbs0"), "{cause}");
}

#[test]
fn a_port_that_is_down_is_named_with_its_state() {
    let host = FakeHost::new();
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    says(&host.cause(&KNOWN), "port 1 is down (state DOWN)", "ip link set");
    // Another active port makes the device usable,
    host.add_port("mlx5_0", 2, "4: ACTIVE", "InfiniBand");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::NotDefault));
    // unless users exclude that port.
    let listed = Ok(vec!["mlx5_0".to_owned()]);
    assert!(matches!(host.cause_by(&listed, "mlx5_0:1"), UnusedCause::PortDown { port: 1, .. }));
    fs::remove_dir_all(host.root().join("sys/class/infiniband/mlx5_0/ports")).unwrap();
    says(&host.cause(&KNOWN), "port 1 is down (state missing)", "");
}

#[test]
fn a_roce_port_needs_a_routable_gid() {
    let host = FakeHost::new();
    host.write("sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    says(&host.cause(&KNOWN), "port 1 has no routable GID", "IP address");
    // InfiniBand routes by LID, without this GID.
    host.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::NotDefault));
}

#[test]
fn little_locked_memory_is_a_cause_without_the_capability() {
    let host = FakeHost::new();
    let limits = |soft: &str| {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         {soft}              unlimited              bytes     \n"
        );
        host.write("proc/self/limits", &text);
        host.cause(&KNOWN)
    };
    says(&limits("8388608"), "only 8192 KiB", "ulimit -l unlimited");
    assert!(matches!(limits("67108864"), UnusedCause::NotDefault));
    assert!(matches!(limits("67108863"), UnusedCause::Memlock(_)));
    assert!(matches!(limits("unlimited"), UnusedCause::NotDefault));
    host.write("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
    assert!(matches!(limits("65536"), UnusedCause::NotDefault));
    host.write("proc/self/status", "Name:\tx\nCapEff:\t00000000a80425fb\n");
    assert!(matches!(limits("65536"), UnusedCause::Memlock(65536)));
}

#[test]
fn an_rdma_cgroup_without_room_is_a_cause() {
    let host = FakeHost::new();
    host.write("proc/self/cgroup", "0::/jobs/one\n");
    host.write("sys/fs/cgroup/jobs/rdma.max", "mlx5_0 hca_handle=2 hca_object=max\n");
    host.write("sys/fs/cgroup/jobs/rdma.current", "mlx5_0 hca_handle=1 hca_object=9\n");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::NotDefault));
    host.write("sys/fs/cgroup/jobs/rdma.current", "mlx5_0 hca_handle=2 hca_object=9\n");
    says(&host.cause(&KNOWN), "hca_handle: 2 of 2 in use", "jobs/rdma.max");
    host.write("sys/fs/cgroup/jobs/one/rdma.max", "mlx5_0 hca_handle=max hca_object=0\n");
    says(&host.cause(&KNOWN), "hca_object: 0 of 0 in use", "jobs/one/rdma.max");
    // The older hierarchy of cgroups, and limits of another device.
    host.write("proc/self/cgroup", "7:cpu,rdma:/old\n0::/\n");
    host.write("sys/fs/cgroup/rdma/old/rdma.max", "mlx5_01 hca_handle=0 hca_object=0\n");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::NotDefault));
    host.write("sys/fs/cgroup/rdma/old/rdma.max", "mlx5_0 hca_handle=0 hca_object=0\n");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::RdmaCgroup(_)));
}

/// Everything is wrong at first; then one fault after another is repaired.
#[test]
fn causes_are_reported_in_the_order_of_discovery() {
    let host = FakeHost::new();
    let gid = "sys/class/infiniband/mlx5_0/ports/1/gids/1";
    host.write(gid, "fe80:0000:0000:0000:0000:0000:0000:0001\n");
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    host.write(
        "proc/self/limits",
        "Max locked memory         65536                65536                bytes     \n",
    );
    host.write("proc/self/cgroup", "0::/\n");
    host.write("sys/fs/cgroup/rdma.max", "mlx5_0 hca_handle=0 hca_object=0\n");
    fs::remove_file(host.root().join("dev/infiniband/uverbs0")).unwrap();
    assert!(matches!(
        host.cause_by(&Err(VerbsUnavailable::Library(String::new())), ""),
        UnusedCause::NoLibrary(_)
    ));
    // libibverbs does not list a device whose node is absent.
    assert!(matches!(host.cause(&[]), UnusedCause::NodeAbsent(_)));
    host.write("dev/infiniband/uverbs0", "");
    assert!(matches!(host.cause(&[]), UnusedCause::NoProvider(_)));
    assert!(matches!(host.cause(&KNOWN), UnusedCause::PortDown { .. }));
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::NoRoutableGid(1)));
    host.write(gid, "0000:0000:0000:0000:0000:ffff:0a5a:0001\n");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::Memlock(65536)));
    host.write("proc/self/limits", "");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::RdmaCgroup(_)));
    host.write("sys/fs/cgroup/rdma.max", "");
    assert!(matches!(host.cause(&KNOWN), UnusedCause::NotDefault));
}

#[test]
fn devices_excluded_by_users_count_as_chosen() {
    let host = FakeHost::new();
    let listed = Ok(vec!["mlx5_0".to_owned()]);
    for (filter, is_chosen) in [("^mlx5_0", true), ("=mlx5", true), ("mlx5_0:2", true), ("mlx5", false)] {
        assert_eq!(host.cause_by(&listed, filter).is_chosen(), is_chosen, "{filter}");
    }
    let device = &read_devices(host.root())[0];
    let off = HostCircumstances { disabled: true, ..circumstances(&listed) };
    assert_eq!(diagnose_device(device, &off).to_string(), "NCCL_IB_DISABLE is 1");
    let beside = HostCircumstances { used: Some("ofi:efa"), ..circumstances(&listed) };
    let cause = diagnose_device(device, &beside);
    assert!(cause.is_chosen() && cause.to_string().contains("ofi:efa"), "{cause}");
}

#[test]
fn named_unused_device_reports_its_fault() {
    let host = FakeHost::new();
    let listed = Ok(vec!["mlx5_0".to_owned()]);
    let device = |host: &FakeHost| read_devices(host.root()).remove(0);
    let asked = || HostCircumstances { used: Some("verbs"), asked: true, ..circumstances(&listed) };
    assert!(matches!(diagnose_device(&device(&host), &asked()), UnusedCause::NotOpened));
    host.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    assert!(matches!(diagnose_device(&device(&host), &asked()), UnusedCause::PortDown { .. }));
}

#[test]
fn libfabric_devices_report_why_they_do_not_open() {
    let host = FakeHost(tempfile::tempdir().unwrap());
    host.add_device("rdmap0s6", "efa", "uverbs0");
    fs::create_dir_all(host.root().join("sys/class/cxi/cxi0")).unwrap();
    let devices = read_devices(host.root());
    let listed = Ok(Vec::new());
    assert_eq!(devices.iter().map(|device| &*device.name).collect::<Vec<_>>(), ["rdmap0s6", "cxi0"]);
    // The variables of InfiniBand do not concern these devices.
    let about =
        HostCircumstances { libfabric: Some("no provider efa"), disabled: true, ..circumstances(&listed) };
    for (device, provider) in devices.iter().zip(["efa", "cxi"]) {
        says(
            &diagnose_device(device, &about),
            "libfabric does not open it (no provider efa)",
            &format!("fi_info -p {provider}"),
        );
    }
}

#[test]
fn software_devices_are_known_by_their_description() {
    let host = FakeHost::new();
    let kind = |description: &str| {
        host.write("sys/class/infiniband/mlx5_0/node_desc", description);
        let device = read_devices(host.root()).remove(0);
        (device.kind, device.driver)
    };
    assert_eq!(kind("rxe\n"), (DeviceKind::Software, "rxe".to_owned()));
    assert_eq!(kind("Software iWARP stack\n"), (DeviceKind::Software, "siw".to_owned()));
    assert_eq!(kind("host mlx5_0\n"), (DeviceKind::Hardware, "mlx5_core".to_owned()));
    host.write("sys/class/infiniband/mlx5_0/parent", "eth0\n");
    assert_eq!(kind("renamed\n").0, DeviceKind::Software);
}

#[test]
fn a_slingshot_is_known_by_its_node_alone() {
    let host = FakeHost(tempfile::tempdir().unwrap());
    host.write("dev/cxi0", "");
    host.write("dev/null", "");
    let devices = read_devices(host.root());
    assert!(
        matches!(&devices[..], [HostDevice { kind: DeviceKind::Slingshot, name, .. }] if name == "cxi0"),
        "{devices:?}"
    );
}
