//! `trunkline info`: its output as text and as JSON, and its errors for invalid settings.

#![expect(clippy::expect_used, reason = "a test that cannot go on stops")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs the command with these settings and no others.
fn trunkline(args: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    for (name, _) in std::env::vars_os() {
        if ["TRUNKLINE_", "RCCL_"].iter().any(|ours| name.to_string_lossy().starts_with(ours)) {
            command.env_remove(name);
        }
    }
    command.args(args.split_whitespace()).envs(settings.iter().copied()).stdin(Stdio::null());
    command.output().expect("it runs")
}

fn json(args: &str, settings: &[(&str, &str)]) -> Value {
    let output = trunkline(args, settings);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The row of a list that has this name.
fn row<'a>(list: &'a Value, name: &str) -> &'a Value {
    let rows = list.as_array().expect("a list");
    rows.iter().find(|row| row["name"] == name).expect(name)
}

#[test]
fn fabrics_are_there_or_say_why_not() {
    let info = json("info --json", &[]);
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    let build = info["build"].as_str().expect("a text");
    assert!(build.starts_with(concat!(env!("CARGO_PKG_VERSION"), " (commit ")), "{build}");
    let version = stdout(&trunkline("--version", &[]));
    assert_eq!(version.trim(), format!("trunkline {build}"));
    assert_eq!(info["asked"], "auto");
    let soft = row(&info["fabrics"], "soft");
    assert_eq!((&soft["present"], &soft["chosen"]), (&Value::Bool(true), &Value::Bool(true)));
    let missing = row(&info["fabrics"], "ofi");
    assert!(missing["present"].is_null(), "libfabric is not opened, because that takes long");
    let note = missing["note"].as_str().expect("a reason");
    assert!(
        note.ends_with("no EFA or Slingshot device here; others need TRUNKLINE_FABRIC=ofi:PROVIDER"),
        "{note}"
    );
    let soft = json("info --json", &[("TRUNKLINE_FABRIC", "soft")]);
    let note = row(&soft["fabrics"], "ofi")["note"].as_str().expect("a reason").to_owned();
    assert!(note.ends_with("searched only with TRUNKLINE_FABRIC=ofi or auto"), "{note}");
    assert_eq!(info["grants"].as_array().map(Vec::len), Some(0));
    // It is there where there is a device, and must be asked for by name all the same.
    let verbs = row(&info["fabrics"], "verbs");
    assert_eq!(verbs["chosen"], false);
    let note = verbs["note"].as_str().expect("a reason, or devices");
    assert_eq!(note.contains("InfiniBand and RoCE: "), verbs["present"] == false, "{note}");
    let wire = |name| {
        let wire = row(&info["wires"], name);
        (wire["present"].as_bool(), wire["in_use"].as_bool())
    };
    assert_eq!(wire("mem"), (Some(true), Some(true)));
    assert_eq!(wire("shm"), (Some(true), Some(true)));
    // Everything but a container without any network has an interface that is up.
    assert_eq!(wire("tcp"), (Some(true), Some(info["nics"][0]["address"].is_string())));
    assert_eq!(info["warnings"], Value::Array(vec![]));
}

#[test]
fn network_interfaces_are_chosen_as_nccl_users_say() {
    let lo = json("info --json", &[("NCCL_SOCKET_IFNAME", "=lo"), ("NCCL_SOCKET_FAMILY", "AF_INET")]);
    assert_eq!((&lo["nics"][0]["interface"], &lo["nics"][0]["address"]), (&"lo".into(), &"127.0.0.1".into()));
    let tcp = json("info --json", &[("TRUNKLINE_FABRIC", "soft:tcp"), ("NCCL_SOCKET_IFNAME", "lo")]);
    assert_eq!(
        (row(&tcp["wires"], "shm")["in_use"].as_bool(), &tcp["asked"]),
        (Some(false), &"soft:tcp".into())
    );
    assert_eq!(methods(&tcp, "tcp"), ["buffered", "straight"]);
    let buffered = tcp["copy_methods"].as_array().and_then(|rows| rows.first()).expect("a row");
    assert_eq!(buffered["to_bytes"], 4096);
    assert_eq!(methods(&tcp, "shm"), [""; 0]);
    let shm = json("info --json", &[("TRUNKLINE_FABRIC", "soft:shm")]);
    assert_eq!(
        (row(&shm["wires"], "tcp")["in_use"].as_bool(), &shm["nics"][0]["address"]),
        (Some(false), &Value::Null)
    );
    let none = trunkline("info", &[("NCCL_SOCKET_IFNAME", "wlan9")]);
    let text = String::from_utf8_lossy(&none.stderr);
    assert!(!none.status.success() && text.contains("NCCL_SOCKET_IFNAME=wlan9"), "{text}");
}

#[test]
fn nics_show_their_limits() {
    let settings = [
        ("TRUNKLINE_SOFT_NICS", "3"),
        ("TRUNKLINE_SOFT_MAX_QP", "77"),
        ("TRUNKLINE_SOFT_PIPELINES", "2"),
        ("TRUNKLINE_SOFT_MAX_MR", "99"),
        ("TRUNKLINE_SOFT_DELAYED", "1"),
    ];
    let info = json("info --json", &settings);
    let nics = info["nics"].as_array().expect("a list");
    assert_eq!(nics.len(), 3);
    assert_eq!(info["rails"].as_array().map(Vec::len), Some(3));
    let last = row(&info["nics"], "soft2");
    assert_eq!((&last["fabric"], &last["port"]), (&"soft".into(), &1.into()));
    assert_eq!((&last["links_max"], &last["pipelines"]), (&76.into(), &2.into()), "38 for each pipeline");
    assert_eq!((&last["regions_max"], &last["wait"]), (&99.into(), &true.into()));
    assert_eq!((&last["needs_flush"], &last["matched"]), (&true.into(), &true.into()));
    for key in ["speed_mbps", "depth_max", "completions_max", "message_max", "inline_max"] {
        assert!(last[key].as_u64().is_some_and(|n| n > 0), "{key}");
    }
    let guids: std::collections::BTreeSet<&str> =
        nics.iter().filter_map(|nic| nic["guid"].as_str()).collect();
    assert_eq!(guids.len(), 3, "{guids:?}");
}

/// The plugin makes its NICs of the same settings.
#[test]
fn the_bench_sees_as_many_nics() {
    // The loopback interface has no speed, so it counts as one of 10 Gb/s, of which each NIC has a third.
    let settings = [("TRUNKLINE_SOFT_NICS", "3"), ("NCCL_SOCKET_IFNAME", "=lo")];
    let info = trunkline("bench sendrecv -b 8 -e 8", &settings);
    assert!(info.status.success(), "{}", stderr(&info));
    assert!(stdout(&info).contains("device 0 of 3: soft0, 3333 Mbit/s"), "{}", stdout(&info));
    let speed = &json("info --json", &settings)["nics"][0]["speed_mbps"];
    assert_eq!(speed, 3_333);
}

/// The methods of a wire, in the order of sizes, which must have no gap.
fn methods(info: &Value, wire: &str) -> Vec<String> {
    let rows: Vec<&Value> =
        info["copy_methods"].as_array().expect("a list").iter().filter(|row| row["wire"] == wire).collect();
    for pair in rows.windows(2) {
        let end = pair[0]["to_bytes"].as_u64().expect("an end");
        assert_eq!(pair[1]["from_bytes"].as_u64(), Some(end + 1));
    }
    if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
        assert_eq!((&first["from_bytes"], &last["to_bytes"]), (&0.into(), &Value::Null));
    }
    rows.iter().filter_map(|row| row["method"].as_str().map(str::to_owned)).collect()
}

#[test]
fn copy_methods_follow_the_settings() {
    let auto = json("info --json", &[]);
    assert_eq!(methods(&auto, "mem"), ["inline", "direct"]);
    let rows = auto["copy_methods"].as_array().expect("a list");
    let shm: Vec<_> = rows.iter().filter(|row| row["wire"] == "shm").map(|row| &row["method"]).collect();
    assert_eq!(shm, ["inline", "staged", "pulled", "shared"]);
    assert_eq!(auto["copy_origin"], "each connection learns which is the fastest");
    let staging = json("info --json", &[("TRUNKLINE_SOFT_COPY", "staging")]);
    assert_eq!(methods(&staging, "shm"), ["inline", "staged"]);
    let pull = json("info --json", &[("TRUNKLINE_SOFT_COPY", "pull"), ("TRUNKLINE_FABRIC", "soft:shm")]);
    assert_eq!(methods(&pull, "shm"), ["inline", "staged", "pulled"]);
    assert_eq!(methods(&pull, "mem"), [""; 0]);
    let share = json("info --json", &[("TRUNKLINE_SOFT_COPY", "share")]);
    assert_eq!(methods(&share, "shm"), ["inline", "staged", "pulled", "shared"]);
    assert_eq!(pull["asked"], "soft:shm");
    assert_eq!(row(&pull["wires"], "mem")["in_use"], false);
}

#[test]
fn the_plugin_is_named_or_missed() {
    let found = &json("info --json", &[])["plugin"];
    assert!(found["path"].as_str().is_some_and(|path| path.ends_with(".so")), "{found}");
    let missing = &json("info --json", &[("TRUNKLINE_PLUGIN", "/nowhere/x.so")])["plugin"];
    assert_eq!((&missing["path"], &missing["from"]), (&Value::Null, &"TRUNKLINE_PLUGIN".into()));
    assert!(missing["error"].as_str().is_some_and(|text| text.contains("/nowhere/x.so")), "{missing}");
}

#[test]
fn every_setting_has_a_value_and_an_origin() {
    let settings = json("info --params --json", &[("TRUNKLINE_DEPTH", "64")]);
    let depth = row(&settings["params"], "TRUNKLINE_DEPTH");
    assert_eq!((&depth["value"], &depth["from"]), (&"64".into(), &"environment".into()));
    assert_eq!((&depth["default"], &depth["type"]), (&"512".into(), &"number".into()));
    for param in settings["params"].as_array().expect("a list") {
        for key in ["name", "group", "type", "value", "from", "default", "range", "doc"] {
            assert!(param[key].as_str().is_some_and(|text| !text.is_empty()), "{param}: {key}");
        }
        assert!(param["name"] == "TRUNKLINE_DEPTH" || param["from"] == "default", "{param}");
    }
    let text = stdout(&trunkline("info --params", &[]));
    for name in
        ["TRUNKLINE_FABRIC", "TRUNKLINE_PEER_TIME_MS", "TRUNKLINE_SOFT_MAX_MR", "SHMEM_SYMMETRIC_SIZE"]
    {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} = "))), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn an_alias_shows_where_a_value_comes_from() {
    let set = [("RCCL_ANP_COMM_NGROUPS", "2"), ("TRUNKLINE_QP_DEPTH_MULTIPLIER", "3")];
    let settings = json("info --params --json", &set);
    let shown = |name| {
        let row = row(&settings["params"], name);
        [&row["value"], &row["from"], &row["aliases"][0]].map(|v| v.as_str().unwrap_or("").to_owned())
    };
    let anp = "RCCL_ANP_COMM_NGROUPS";
    assert_eq!(shown("TRUNKLINE_QP_SHARING"), ["on", anp, "RCCL_IB_QP_SHARING_ENABLE"]);
    assert_eq!(shown("TRUNKLINE_QP_GROUPS"), ["2", anp, anp]);
    let multiplier = "RCCL_ANP_QP_DEPTH_MULTIPLIER";
    assert_eq!(shown("TRUNKLINE_QP_DEPTH_MULTIPLIER"), ["3", "environment", multiplier]);
    assert_eq!(shown("TRUNKLINE_QP_BUDGET"), ["0", "default", ""]);
    let text = stdout(&trunkline("info --params", &[]));
    let mut lines = text.lines().skip_while(|line| !line.starts_with("TRUNKLINE_QP_GROUPS"));
    assert_eq!(lines.nth(3), Some("    also: RCCL_ANP_COMM_NGROUPS, RCCL_IB_COMM_NGROUPS"), "{text}");
    let bad = trunkline("info", &[("RCCL_IB_COMM_NGROUPS", "9")]);
    let wanted = "trunkline: RCCL_IB_COMM_NGROUPS=9: expected a number from 0 to 8";
    assert!(bad.status.code() == Some(2) && stderr(&bad).starts_with(wanted), "{}", stderr(&bad));
}

#[test]
fn a_bad_value_is_an_error_that_names_the_variable() {
    for args in ["info", "info --json", "info --params"] {
        for (name, value) in [("TRUNKLINE_DEPTH", "3"), ("NCCL_SOCKET_FAMILY", "4")] {
            let output = trunkline(args, &[(name, value)]);
            assert_eq!(output.status.code(), Some(2));
            let wanted = format!("trunkline: {name}={value}: expected ");
            assert!(stderr(&output).starts_with(&wanted), "{}", stderr(&output));
            // The list of settings shows the invalid one beside the others.
            let shown = format!("{name} = invalid  (environment; default ");
            assert_eq!(stdout(&output).contains(&shown), args == "info --params", "{}", stdout(&output));
            assert!(args == "info --params" || output.stdout.is_empty());
        }
    }
    let output = trunkline("info", &[("TRUNKLINE_FABRIC", "carrier-pigeon")]);
    let wanted = "trunkline: TRUNKLINE_FABRIC=carrier-pigeon: expected auto, soft, soft:shm, ";
    assert!(output.status.code() == Some(2) && stderr(&output).starts_with(wanted), "{}", stderr(&output));
}

#[test]
fn settings_are_searched_by_a_term() {
    let names = |args: &str| -> Vec<String> {
        let text = stdout(&trunkline(args, &[]));
        text.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned()).collect()
    };
    assert_eq!(names("info --params eager"), ["TRUNKLINE_EAGER_MAX", "TRUNKLINE_EAGER_CREDITS"]);
    assert_eq!(names("info --params NCCL_IB_QPS"), ["TRUNKLINE_LINKS_PER_RAIL"]);
    assert!(!names("info --params").contains(&"SLURM_PROCID".to_owned()));
    assert!(names("info --params --all").contains(&"SLURM_PROCID".to_owned()));
    let missing = trunkline("info --params TRUNKLINE_DEPHT", &[]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("did you mean TRUNKLINE_DEPTH?"), "{}", stderr(&missing));
    let text = stdout(&trunkline("info --params ATOMICS --for nvshmem", &[]));
    assert!(text.contains("TRUNKLINE_ATOMICS = owner  (front end; default owner)"), "{text}");
}

#[test]
fn configuration_file_applies_where_the_environment_sets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.conf");
    std::fs::write(&path, "# ours\nTRUNKLINE_DEPTH = 64\nTRUNKLINE_EAGER_MAX=1K\nTRUNKLINE_NEER=1\n")
        .unwrap();
    let path = path.to_str().unwrap();
    let set = [("TRUNKLINE_CONF", path), ("TRUNKLINE_EAGER_MAX", "2K")];
    let settings = json("info --params --json", &set);
    let shown = |name| {
        let row = row(&settings["params"], name);
        (row["value"].as_str().unwrap().to_owned(), row["from"].clone(), row["line"].clone())
    };
    assert_eq!(shown("TRUNKLINE_DEPTH"), ("64".to_owned(), "file".into(), 2.into()));
    assert_eq!(shown("TRUNKLINE_EAGER_MAX"), ("2K".to_owned(), "environment".into(), Value::Null));
    assert_eq!(settings["file"], path);
    let warning = format!("{path}:4: TRUNKLINE_NEER is not a setting; did you mean TRUNKLINE_NEAR?");
    assert_eq!(settings["warnings"], Value::Array(vec![warning.into()]));
    std::fs::write(path, "TRUNKLINE_DEPTH=3").unwrap();
    let output = trunkline("info", &set);
    let wanted = format!("trunkline: TRUNKLINE_DEPTH=3: expected a number from 32 to 32768 ({path}:1)");
    assert!(output.status.code() == Some(2) && stderr(&output).starts_with(&wanted), "{}", stderr(&output));
    let output = trunkline("info", &[("TRUNKLINE_CONF", "/nowhere/t.conf")]);
    assert!(
        stderr(&output).contains("cannot read the configuration file /nowhere/t.conf"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn an_unknown_variable_is_a_warning() {
    let settings = [("TRUNKLINE_DEPHT", "64")];
    let output = trunkline("info", &settings);
    assert!(output.status.success());
    let line = "TRUNKLINE_DEPHT is not a setting; did you mean TRUNKLINE_DEPTH?";
    assert_eq!(stderr(&output).trim_end(), format!("trunkline: warning: {line}"));
    for args in ["info --json", "info --params --json"] {
        assert_eq!(json(args, &settings)["warnings"], Value::Array(vec![line.into()]));
    }
}

#[test]
fn the_text_is_short_and_aligned() {
    let output = trunkline("info", &[("NCCL_SOCKET_IFNAME", "=lo")]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
    let text = stdout(&output);
    let titles = [
        "Fabrics",
        "NICs",
        "Rails",
        "Wires of the software NIC",
        "Copy methods of the software NIC",
        "Plugin that bench loads",
    ];
    for wanted in titles {
        assert!(text.lines().any(|line| line.starts_with(wanted)), "{wanted} in {text}");
    }
    let column = |start: &str, word: &str| {
        text.lines().find(|line| line.starts_with(start)).and_then(|line| line.find(word))
    };
    assert_eq!(column("  name ", "speed"), column("  soft0 ", "10 Gb/s"));
    assert!(text.lines().count() < 40, "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
}

/// libfabric's NICs with their properties, or the reason why there are none.
#[test]
fn libfabric_is_looked_for_where_it_is_asked_for() {
    let nowhere = ("TRUNKLINE_OFI_LIBRARY", "/no/such/libfabric.so.1");
    let output = trunkline("info", &[("TRUNKLINE_FABRIC", "ofi:tcp"), nowhere]);
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("fabric ofi: /no/such/libfabric.so.1 cannot be opened"),
        "{said}"
    );
    let asked = ("TRUNKLINE_FABRIC", "ofi:tcp");
    let output = trunkline("info --json", &[asked]);
    let said = stderr(&output);
    if !output.status.success() {
        assert!(
            said.contains("Debian: package libfabric1") || said.contains("has no usable provider tcp"),
            "{said}"
        );
        let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|word| word == "ofi"), "info of libfabric must run: {said}");
        return println!("SKIPPED info of libfabric: {said}");
    }
    let info: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(info["asked"], "ofi:tcp");
    let ofi = row(&info["fabrics"], "ofi");
    assert_eq!((&ofi["present"], &ofi["chosen"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(row(&info["fabrics"], "soft")["chosen"], false);
    let note = ofi["note"].as_str().expect("a note");
    assert!(
        note.starts_with("provider ") && note.contains(" of libfabric ") && note.contains(".so"),
        "{note}"
    );
    let (nics, grants) =
        (info["nics"].as_array().expect("a list"), info["grants"].as_array().expect("a list"));
    assert!(!nics.is_empty() && nics.len() == grants.len());
    for (nic, grant) in nics.iter().zip(grants) {
        assert_eq!((&nic["fabric"], &nic["name"]), (&Value::from("ofi"), &grant["nic"]));
        assert!(grant["cq_data_bytes"].as_u64() >= Some(4), "{grant}");
    }
    let first = nics[0]["name"].as_str().expect("a name");
    let copies = [asked, ("TRUNKLINE_OFI_NICS", "3"), ("TRUNKLINE_OFI_DOMAIN", first)];
    let info = json("info --json", &copies);
    let names: Vec<&str> =
        info["nics"].as_array().expect("a list").iter().filter_map(|nic| nic["name"].as_str()).collect();
    assert_eq!(names, [first.to_owned(), format!("{first}.1"), format!("{first}.2")]);
    let refused: [(&[(&str, &str)], &str); 2] = [
        (&[("TRUNKLINE_FABRIC", "ofi:carrier-pigeon")], "no usable provider carrier-pigeon"),
        (&[asked, ("TRUNKLINE_OFI_DOMAIN", "eth99")], "has no domain eth99 here, but "),
    ];
    for (settings, named) in refused {
        let output = trunkline("info", settings);
        assert!(!output.status.success() && stderr(&output).contains(named), "{}", stderr(&output));
    }
}

/// Libraries that stand for rdma-core and a driver of GPUs, compiled here; `None` where that cannot be.
fn fakes() -> Option<tempfile::TempDir> {
    if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("SKIPPED info of GPUs: no infiniband/verbs.h (Debian: libibverbs-dev)");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let sources =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/integration/tests/gpu");
    for (library, source) in [("libcuda.so.1", "fake_cuda.c"), ("libibverbs.so.1", "fake_verbs.c")] {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(folder.path().join(library)).arg(sources.join(source));
        if source == "fake_verbs.c" {
            cc.arg(format!("-Wl,--version-script,{}", sources.join("fake_verbs.map").display()));
        }
        assert!(cc.status().expect("cc runs").success());
    }
    Some(folder)
}

#[test]
fn memory_of_gpus_is_reached_or_says_why_not() {
    let soft = json("info --json", &[]);
    assert_eq!(row(&soft["gpus"], "soft")["present"], false);
    let Some(folder) = fakes() else { return };
    let folder = folder.path().to_str().expect("text").to_owned();
    let info = |more: &[(&str, &str)]| {
        let usual = [("LD_LIBRARY_PATH", folder.as_str()), ("TRUNKLINE_FABRIC", "verbs")];
        json("info --json", &[&usual, more].concat())
    };
    let told = |info: &Value| {
        let row = row(&info["gpus"], "fake0");
        (row["present"].as_bool().expect("a bool"), row["note"].as_str().expect("a note").to_owned())
    };
    let all = info(&[]);
    assert_eq!(told(&all), (true, "as dma-bufs".to_owned()));
    assert_eq!(row(&all["gpus"], "driver of NVIDIA")["note"], "CUDA 12.4; exports memory as dma-bufs");
    let off = info(&[("TRUNKLINE_GDR_FLUSH_DISABLE", "1")]);
    assert!(told(&off).1.contains("flushes are switched off"));
    assert_eq!(off["warnings"].as_array().map(Vec::len), Some(0), "{}", off["warnings"]);
    let (present, note) = told(&info(&[("FAKE_VERBS_DMABUF", "0")]));
    assert!(!present && note.contains("modprobe nvidia-peermem"), "{note}");
    let (present, note) = told(&info(&[("FAKE_CUDA_EXPORTS", "0")]));
    assert!(!present && note.contains("the driver does not"), "{note}");
}

/// A folder in place of `/` with a RoCE device whose port is down.
fn host_with_a_device() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let device = root.path().join("sys/class/infiniband/mlx5_0");
    for (path, text) in [("ports/1/state", "1: DOWN\n"), ("ports/1/link_layer", "Ethernet\n")] {
        let path = device.join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    std::fs::create_dir_all(device.join("device")).expect("a folder");
    std::os::unix::fs::symlink("../../../bus/pci/drivers/mlx5_core", device.join("device/driver"))
        .expect("a link");
    root
}

#[test]
fn devices_that_are_not_used_are_listed() {
    let host = host_with_a_device();
    let root = ("TRUNKLINE_HOST_ROOT", host.path().to_str().expect("text"));
    let info = json("info --json", &[root]);
    let device = row(&info["unused"], "mlx5_0");
    assert_eq!(device["driver"], "mlx5_core");
    assert!(["cause", "remedy"].iter().all(|key| device[key].as_str().is_some_and(|text| !text.is_empty())));
    let note = row(&info["fabrics"], "soft")["note"].as_str().expect("a note");
    assert!(note.contains("the NCCL plugin offers no device"), "{note}");
    let text = trunkline("info", &[root]);
    assert!(stdout(&text).contains("\nDevices that are not used\n"), "{}", stdout(&text));
    // Who names the software NIC has chosen.
    assert_eq!(json("info --json", &[root, ("TRUNKLINE_FABRIC", "soft")])["unused"], Value::Array(vec![]));
    let excluded = json("info --json", &[root, ("NCCL_IB_DISABLE", "1")]);
    assert_eq!(row(&excluded["unused"], "mlx5_0")["cause"], "NCCL_IB_DISABLE is 1");
    assert_eq!(row(&excluded["fabrics"], "soft")["note"], "the software NIC");
    let required = trunkline("info", &[root, ("TRUNKLINE_REQUIRE_NIC", "1")]);
    assert!(
        stderr(&required).contains("TRUNKLINE_REQUIRE_NIC=1: programs fail here"),
        "{}",
        stderr(&required)
    );
}

#[test]
fn front_ends_warn_once_and_use_the_software_nic() {
    let host = host_with_a_device();
    let root = ("TRUNKLINE_HOST_ROOT", host.path().to_str().expect("text"));
    let lo = ("NCCL_SOCKET_IFNAME", "=lo");
    let warned = |output: &Output| stderr(output).matches("TRUNKLINE_FABRIC=auto uses no NIC").count();
    // A program of the Rust API, as two ranks.
    let rma = trunkline("bench rma -n 2 -b 8 -e 8 -i 5", &[root, lo]);
    assert!(rma.status.success() && warned(&rma) == 2, "{}", stderr(&rma));
    assert!(stderr(&rma).contains("mlx5_0 (mlx5_core): "), "{}", stderr(&rma));
    let required = trunkline("bench rma -n 2 -b 8 -e 8 -i 5", &[root, lo, ("TRUNKLINE_REQUIRE_NIC", "1")]);
    assert!(!required.status.success(), "{}", stdout(&required));
    assert!(stderr(&required).contains("TRUNKLINE_REQUIRE_NIC=1"), "{}", stderr(&required));
    let bench = trunkline("bench sendrecv -b 8 -e 8", &[root]);
    assert!(bench.status.success() && warned(&bench) == 1, "{}", stderr(&bench));
    // The plugin leaves such a host to NCCL, which is shown where the default is asked for by its name.
    let plugin = trunkline("bench sendrecv -b 8 -e 8", &[root, ("TRUNKLINE_FABRIC", "auto")]);
    assert!(!plugin.status.success() && warned(&plugin) == 2, "{}", stderr(&plugin));
    assert!(stderr(&plugin).contains("the plugin offers no device"), "{}", stderr(&plugin));
}
