use std::sync::Mutex;

use super::*;
use trunkline_settings::FrontEndKind;

use crate::cause::tests::FakeHost;

fn listed(names: &[&str]) -> Result<Vec<String>, VerbsUnavailable> {
    Ok(names.iter().map(|name| (*name).to_owned()).collect())
}

fn params(host: &FakeHost) -> EngineParams {
    EngineParams { host_root: host.root().to_owned(), ..EngineParams::default() }
}

/// The settings of a process without variables, with these parameters.
fn settings(params: EngineParams) -> ProcessSettings {
    let mut settings = ProcessSettings::from_lookup(FrontEndKind::Nccl, |_| None).unwrap();
    settings.params = params;
    settings
}

/// Returns the log lines about the devices, with their levels, of two calls.
fn told_twice(unused: &UnusedDevices) -> [Vec<(LogLevel, String)>; 2] {
    let warned = AtomicBool::new(false);
    [(), ()].map(|()| {
        let lines = Mutex::new(Vec::new());
        unused.log_unused(&warned, |level, line| lines.lock().unwrap().push((level, line.to_owned())));
        lines.into_inner().unwrap()
    })
}

#[test]
fn one_warning_names_each_device_cause_and_remedy() {
    let host = FakeHost::new();
    for at in 1..8 {
        host.add_device(&format!("mlx5_{at}"), "mlx5_core", &format!("uverbs{at}"));
    }
    host.write("sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
    let names: Vec<String> = (0..8).map(|at| format!("mlx5_{at}")).collect();
    let unused = UnusedDevices::find_unused(&settings(params(&host)), None, None, || Ok(names)).unwrap();
    assert!(unused.is_missed() && unused.as_slice().len() == 8);
    let [first, second] = told_twice(&unused);
    assert!(second.is_empty(), "{second:?}");
    let [(LogLevel::Warn, text)] = &first[..] else { panic!("{first:?}") };
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "devices with the same cause share a line: {text}");
    assert_eq!(
        lines[1],
        "  mlx5_0, mlx5_1, mlx5_2, mlx5_4, mlx5_5, mlx5_6, mlx5_7 (mlx5_core): verbs is not yet the default; \
         set TRUNKLINE_FABRIC=verbs to use it"
    );
    assert!(lines[2].starts_with("  mlx5_3 (mlx5_core): port 1 is down (state DOWN); bring it up"), "{text}");
    assert!(text.len() < 900, "NCCL would cut it off: {} bytes", text.len());
}

#[test]
fn software_devices_count_only_on_request() {
    let host = FakeHost::new();
    host.write("sys/class/infiniband/mlx5_0/node_desc", "rxe\n");
    let usual = params(&host);
    let unused = UnusedDevices::find_unused(&settings(usual.clone()), None, None, || {
        panic!("libibverbs must not be queried")
    })
    .unwrap();
    assert!(unused.as_slice().is_empty());
    let counts = EngineParams { counts_software_rdma: true, ..usual };
    let unused = UnusedDevices::find_unused(&settings(counts), None, None, || listed(&["mlx5_0"])).unwrap();
    assert!(unused.is_missed());
}

#[test]
fn devices_beside_used_ones_are_logged_at_info() {
    let host = FakeHost::new();
    host.add_device("rdmap0s6", "efa", "uverbs1");
    host.add_device("rdmap0s60", "efa", "uverbs2");
    let nics = ["rdmap0s6-rdm".to_owned()];
    let used = UsedFabric { name: "ofi:efa", nics: &nics };
    let unused = UnusedDevices::find_unused(&settings(params(&host)), Some(used), None, || {
        panic!("libibverbs must not be queried")
    });
    let unused = unused.unwrap();
    let names: Vec<_> = unused.as_slice().iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "rdmap0s60"]);
    assert!(!unused.is_missed());
    let [first, _] = told_twice(&unused);
    let [(LogLevel::Info, text)] = &first[..] else { panic!("{first:?}") };
    assert!(text.contains("mlx5_0 (mlx5_core): devices of fabric ofi:efa are used"), "{text}");
}

#[test]
fn devices_beside_named_ones_report_their_fault() {
    let host = FakeHost::new();
    host.add_device("mlx5_1", "mlx5_core", "uverbs1");
    host.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    let named = EngineParams { fabric: FabricName::Verbs, ..params(&host) };
    let nics = ["mlx5_0".to_owned()];
    let used = UsedFabric { name: "verbs", nics: &nics };
    let unused =
        UnusedDevices::find_unused(&settings(named), Some(used), None, || listed(&["mlx5_0", "mlx5_1"]))
            .unwrap();
    assert!(!unused.is_missed() && unused.as_slice().len() == 1);
    let [first, _] = told_twice(&unused);
    assert!(
        matches!(&first[..], [(LogLevel::Info, text)] if text.contains("mlx5_1 (mlx5_core): port 1 is down")),
        "{first:?}"
    );
}

#[test]
fn device_that_libfabric_cannot_open_is_reported() {
    let host = FakeHost(tempfile::tempdir().unwrap());
    host.add_device("rdmap0s6", "efa", "uverbs0");
    let why = Some("libfabric.so.1 cannot be opened");
    let unused = UnusedDevices::find_unused(&settings(params(&host)), None, why, || {
        panic!("the device is not one of verbs")
    })
    .unwrap();
    assert!(unused.is_missed());
    let [first, _] = told_twice(&unused);
    assert!(
        first[0].1.contains("rdmap0s6 (efa): libfabric does not open it (libfabric.so.1 cannot"),
        "{first:?}"
    );
}

#[test]
fn missing_required_nic_is_an_error() {
    let host = FakeHost::new();
    let open = |params: &EngineParams| {
        crate::HardwareFabric::open(&settings(params.clone()), |_, _| {}).err().map(|error| error.to_string())
    };
    let required = EngineParams { require_nic: true, ..params(&host) };
    let error = open(&required).unwrap();
    assert!(error.contains("TRUNKLINE_REQUIRE_NIC=1") && error.contains("mlx5_0 (mlx5_core): "), "{error}");
    std::fs::remove_dir_all(host.root().join("sys")).unwrap();
    let error = open(&required).unwrap();
    assert!(error.contains("has no RDMA, EFA or Slingshot device"), "{error}");
    for fabric in [FabricName::Soft, FabricName::SoftShm, FabricName::SoftTcp] {
        let error = open(&EngineParams { fabric, ..required.clone() }).unwrap();
        assert!(error.contains("names the software NIC"), "{error}");
        assert_eq!(open(&EngineParams { fabric, ..params(&host) }), None);
    }
    assert_eq!(open(&params(&host)), None);
}
