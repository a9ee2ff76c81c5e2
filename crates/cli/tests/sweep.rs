//! `trunkline sweep`: rows, queues in use beside the formula, the report, and failures.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use roxmltree::Document;
use serde_json::Value;
use tempfile::TempDir;

/// Runs a quick sweep in a directory with these settings and no others of ours, RCCL's or a launcher's.
fn sweep(directory: &TempDir, args: &str, settings: &[(&str, &str)]) -> Output {
    trunkline(directory, &format!("sweep --quick --rounds 2 -i 2 {args}"), settings)
}

fn trunkline(directory: &TempDir, args: &str, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let foreign = ["TRUNKLINE_", "RCCL_", "PMI_", "SLURM_", "OMPI_", "RANK", "WORLD_SIZE", "MASTER_"];
        if foreign.iter().any(|start| name.starts_with(start)) {
            command.env_remove(&*name);
        }
    }
    command.args(args.split_whitespace()).envs(settings.iter().copied());
    command.current_dir(directory.path()).stdin(Stdio::null()).output().expect("the command runs")
}

fn here() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

/// Returns the report, which must be well-formed and self-contained.
fn report(directory: &TempDir) -> String {
    let path = directory.path().join("trunkline-sweep.html");
    let text = std::fs::read_to_string(path).expect("a report");
    let tree = text.strip_prefix("<!DOCTYPE html>\n").expect("HTML");
    let tree = Document::parse(tree).expect("well-formed");
    for node in tree.descendants() {
        assert!(!["script", "link", "img", "image", "use"].contains(&node.tag_name().name()), "{node:?}");
        assert!(!["src", "href"].iter().any(|name| node.attribute(*name).is_some()), "{node:?}");
    }
    text
}

/// The texts of all cells of a table in a report.
fn cells(report: &str, class: &str) -> Vec<Vec<String>> {
    let tree = Document::parse(report.trim_start_matches("<!DOCTYPE html>\n")).expect("well-formed");
    let table = tree.descendants().find(|node| node.attribute("class") == Some(class)).expect("the table");
    let words = |node: roxmltree::Node<'_, '_>| {
        let texts: String =
            node.descendants().filter(|one| one.is_text()).filter_map(|one| one.text()).collect();
        texts.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let lines = table.children().filter(|line| line.has_tag_name("tr"));
    lines.map(|line| line.children().filter(roxmltree::Node::is_element).map(words).collect()).collect()
}

/// Compiles a plugin in C. Another test may use the finished file, so the new file replaces it by one rename.
fn fixture(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-host/tests/fixtures").join(name);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = directory.join(format!("sweep-{name}")).with_extension("so");
    let fresh = tempfile::NamedTempFile::new_in(directory).expect("a file").into_temp_path();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    cc.arg(&fresh).arg(source).arg("-ldl");
    assert!(cc.status().expect("cc runs").success(), "{name}");
    fresh.persist(&library).expect("a file can be renamed");
    library
}

/// The variables that make a rank load our plugin through a faulty one.
fn corrupt(directory: &TempDir) -> [(&'static str, String); 2] {
    let info = trunkline(directory, "info --json", &[]);
    let info: Value = serde_json::from_slice(&info.stdout).expect("one JSON object");
    let target = info["plugin"]["path"].as_str().expect("our plugin").to_owned();
    let plugin = fixture("corrupt_plugin.c").to_str().expect("a name").to_owned();
    [("TRUNKLINE_PLUGIN", plugin), ("CORRUPT_TARGET", target)]
}

#[test]
fn a_sweep_has_a_row_for_each_size_and_a_report() {
    let directory = here();
    let args = "--collectives gather,all_reduce --configs m2d4,q1 -b 4K -e 64K --json";
    let output = sweep(&directory, args, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(&output);
    let told: Vec<(&str, &str, u64)> = rows
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().expect("text");
            (text("collective"), text("configuration"), row["bytes"].as_u64().expect("bytes"))
        })
        .collect();
    let of = |collective| [(collective, "q1"), (collective, "m2d4")];
    let wanted: Vec<(&str, &str, u64)> = [of("all_reduce"), of("gather")]
        .concat()
        .into_iter()
        .flat_map(|(collective, one)| [(collective, one, 4 << 10), (collective, one, 64 << 10)])
        .collect();
    assert_eq!(told, wanted);
    for row in &rows {
        let shares = row["configuration"] == "m2d4";
        let number = |key: &str| row[key].as_u64().expect(key);
        assert_eq!((number("groups"), number("depth")), if shares { (2, 4) } else { (0, 1) }, "{row}");
        assert_eq!((number("qps"), number("rounds"), number("wrong")), (1, 2, 0), "{row}");
        assert_eq!((number("comms"), number("channels"), number("ranks")), (4, 4, 2), "{row}");
        let directions = if row["collective"] == "gather" { 1 } else { 2 };
        let expected = directions * if shares { 2 } else { 16 };
        assert_eq!((number("queue_pairs_expected"), number("cqs_expected")), (expected, expected), "{row}");
        assert_eq!((&row["formula"], number("queue_pairs")), (&true.into(), expected), "{row}");
        let figure = |key: &str| row[key].as_f64().expect(key);
        assert!(figure("busbw") > 0.0 && figure("algbw") > 0.0 && figure("time_us") > 0.0, "{row}");
        assert!(figure("busbw_min") <= figure("busbw") && figure("busbw") <= figure("busbw_max"), "{row}");
        assert_eq!((&row["plugin"], &row["fabric"]), (&"Trunkline".into(), &"soft".into()));
    }
    let report = report(&directory);
    let heat = cells(&report, "heat");
    assert_eq!(heat[0][1..], ["q1", "m2d4"]);
    let names: Vec<&str> = heat[1..].iter().map(|line| line[0].as_str()).collect();
    assert_eq!(names, ["all_reduce", "gather", "all"]);
    assert!(report.contains("all_reduce, bus bandwidth in GB/s") && report.contains("All data was right."));
}

#[test]
fn a_sweep_of_shared_connections_matches_the_formula() {
    let directory = here();
    let args = "--collectives all_reduce,alltoall,sendrecv --configs q1,m1d1,m2d2,m4d4,m8d1 -n 3 -b 64K -e 64K --json";
    let output = sweep(&directory, args, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(&output);
    assert_eq!(rows.len(), 15);
    assert!(rows.iter().all(|row| row["formula"] == true && row["wrong"] == 0), "{rows:?}");
    let of = |collective: &str, configuration: &str| {
        let one =
            rows.iter().find(|row| row["collective"] == collective && row["configuration"] == configuration);
        one.and_then(|row| row["queue_pairs"].as_u64()).expect("a row")
    };
    // A rank of a ring has one peer each way, one of an exchange between all has two.
    assert_eq!(["q1", "m1d1", "m8d1"].map(|name| of("all_reduce", name)), [32, 2, 16]);
    assert_eq!(["q1", "m1d1", "m8d1"].map(|name| of("alltoall", name)), [64, 4, 32]);
}

#[test]
fn a_sweep_of_unshared_connections_matches_the_formula() {
    let directory = here();
    let output = sweep(&directory, "--collectives all_reduce,reduce --configs q1,q4 -b 64K -e 64K", &[]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}{text}", stderr(&output));
    assert!(text.contains("# Queues unlike formula  : 0 OK") && !text.contains(" !"), "{text}");
    assert!(output.stderr.is_empty(), "no progress bar when no terminal: {}", stderr(&output));
    let lines: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines.len(), 4, "{text}");
    for line in &lines {
        let links = if line[0] == "q4" { "128" } else { "32" };
        assert_eq!((line.len(), line[13], line[15]), (16, links, "32"), "{line:?}");
    }
    assert!(!report(&directory).contains("class=\"bad\""));
    // Each peer has its own connections, and the root of a gather has the connections of all peers.
    let args = "--collectives alltoall,gather --configs q1 -n 3 --comms 2 --channels 2 -b 64K -e 64K --json";
    let output = sweep(&directory, args, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let used: Vec<u64> = rows(&output).iter().filter_map(|row| row["queue_pairs"].as_u64()).collect();
    assert_eq!(used, [16, 8]);
}

/// All configurations with all collectives, as users type it; in a short run each of them with one.
#[test]
fn all_configurations_pass_a_quick_run() {
    if std::env::var_os("TRUNKLINE_FULL").is_some() {
        return passes_a_quick_one("", (10, 14));
    }
    passes_a_quick_one("--collectives alltoall", (1, 14));
    passes_a_quick_one("--configs m2d4", (10, 1));
}

fn passes_a_quick_one(args: &str, (collectives, configurations): (usize, usize)) {
    let directory = here();
    let began = Instant::now();
    let output = trunkline(&directory, &format!("sweep --quick {args}"), &[]);
    let (took, text) = (began.elapsed(), stdout(&output));
    println!("figure: a quick sweep of {collectives} and {configurations} in {took:?}");
    assert!(output.status.success(), "{}{text}", stderr(&output));
    assert!(took < Duration::from_secs(120), "{took:?}");
    let is_row = |line: &&str| !line.starts_with('#');
    let rows = text.lines().filter(is_row).count();
    assert_eq!(rows, collectives * configurations * 3, "sizes of each: {text}");
    assert!(!text.contains(" !") && text.contains("# Out of bounds values   : 0 OK"), "{text}");
    assert!(text.contains("# Queues unlike formula  : 0 OK"), "{text}");
    let heat = cells(&report(&directory), "heat");
    // Below several collectives there is a line of all of them.
    let lines = collectives + usize::from(collectives > 1);
    assert_eq!((heat.len(), heat[0].len()), (1 + lines, 1 + configurations), "{heat:?}");
}

#[test]
fn a_sweep_fails_for_wrong_data() {
    let directory = here();
    let [plugin, target] = corrupt(&directory);
    let set = [(plugin.0, &*plugin.1), (target.0, &*target.1), ("CORRUPT_MIN", "1024")];
    let output = sweep(&directory, "--collectives sendrecv --configs q1 -b 64K -e 64K --json", &set);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let wrong = rows(&output)[0]["wrong"].as_u64().expect("a number");
    assert!(wrong > 0 && stderr(&output).contains(&format!("# Out of bounds values   : {wrong} FAILED")));
    let report = report(&directory);
    assert!(report.contains(&format!("<p class=\"bad\">{wrong} elements of the data were wrong.")));
}

#[test]
fn a_sweep_fails_for_more_queues_than_expected() {
    let directory = here();
    let [plugin, target] = corrupt(&directory);
    // Ranks create twice the requested number of links.
    let set = [
        (plugin.0, &*plugin.1),
        (target.0, &*target.1),
        ("CORRUPT_MIN", "1000000000"),
        ("CORRUPT_LINKS", "2"),
    ];
    let args = "--collectives all_reduce --configs q1 -b 64K -e 64K";
    let output = sweep(&directory, args, &set);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}{text}", stderr(&output));
    assert!(text.contains("# Queues unlike formula  : 1 of 1 FAILED"), "{text}");
    let row = text.lines().find(|line| line.contains(" q1 ")).expect("the row");
    assert!(row.split_whitespace().skip(12).eq(["64", "32", "32", "32", "!"]), "{row}");
    let shown = report(&directory);
    assert_eq!(cells(&shown, "counts")[1], ["all_reduce", "64 \u{2260} 32 32"]);
    assert!(shown.contains("Queues do not match the formula in 1 of 1 cells"), "{shown}");

    let output = sweep(&directory, &format!("{args} --allow-mismatch"), &set);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("# Queues unlike formula  : 1 of 1 ALLOWED"));
    assert!(report(&directory).contains("class=\"bar bad\""), "the report shows it");
}

#[test]
fn a_sweep_refuses_invalid_arguments_with_a_reason() {
    let directory = here();
    let refused = |args: &str, set: &[(&str, &str)]| {
        let output = sweep(&directory, args, set);
        assert_eq!(output.status.code(), Some(2), "{args}");
        assert!(output.stdout.is_empty(), "{args}");
        stderr(&output)
    };
    let mini = fixture("mini_plugin.c");
    let blind = refused("--collectives gather", &[("TRUNKLINE_PLUGIN", mini.to_str().expect("a name"))]);
    assert!(blind.contains("gather with q1: rank 0: process") && blind.contains("no status page"), "{blind}");
    assert!(refused("--configs m3d1", &[]).contains("use one of q1, q4, m1d1"));
    assert!(refused("--collectives p2p", &[]).contains("all_reduce"));
    assert!(refused("--out report.svg", &[]).contains("end its name in .html"));
    assert!(refused("--out nowhere/x.html", &[]).contains("nowhere/x.html: No such file"));
    assert!(refused("-b 2M -e 1M", &[]).contains("the largest size is smaller"));
    let launched =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let told = refused("", &launched);
    assert!(told.contains("sweep starts its ranks itself"), "{told}");
}
