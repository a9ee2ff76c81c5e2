//! `trunkline plot` and `bench --plot`: the content of pictures, and refused input.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use roxmltree::{Document, Node};
use tempfile::TempDir;

fn trunkline(directory: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(args).current_dir(directory.path()).env_remove("TRUNKLINE_PLUGIN").stdin(Stdio::null());
    command.output().expect("the command runs")
}

/// Runs a command that must succeed.
fn right(directory: &TempDir, args: &[&str]) -> String {
    let output = trunkline(directory, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a command that must be refused, and returns its error.
fn wrong(directory: &TempDir, args: &[&str]) -> String {
    let output = trunkline(directory, args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn here() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn put(directory: &TempDir, name: &str, text: &str) {
    std::fs::write(directory.path().join(name), text).expect("written");
}

/// A row as `bench --json` prints it.
fn row(collective: &str, bytes: u64, in_place: bool) -> String {
    format!(
        r#"{{"collective":"{collective}","fabric":"soft","plugin":"Trunkline","device":"soft0","abi":12,"ranks":2,"comms":1,"channels":1,"bytes":{bytes},"count":1,"type":"float","redop":"sum","root":-1,"in_place":{in_place},"time_us":{},"algbw":1.0,"busbw":{},"wrong":0}}"#,
        1.0 + bytes as f64 / 1000.0,
        bytes as f64 / 50.0,
    ) + "\n"
}

fn run(collective: &str, sizes: &[u64]) -> String {
    sizes.iter().flat_map(|bytes| [row(collective, *bytes, false), row(collective, *bytes, true)]).collect()
}

/// The points of each run in a panel.
fn lines(svg: &Document<'_>, panel: &str) -> Vec<Vec<(f64, f64)>> {
    let class = |node: &Node<'_, '_>, class: &str| node.attribute("class") == Some(class);
    let group = svg.descendants().find(|node| class(node, panel)).expect("a panel");
    let runs = group.descendants().filter(|node| class(node, "run"));
    let points = |run: Node<'_, '_>| {
        let line = run.descendants().find(|node| node.has_tag_name("polyline")).expect("a line");
        let points = line.attribute("points").expect("points").split_whitespace();
        points
            .map(|pair| pair.split_once(',').expect("a pair"))
            .map(|(x, y)| (number(x), number(y)))
            .collect()
    };
    runs.map(points).collect()
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

fn texts(svg: &Document<'_>) -> Vec<String> {
    let nodes = svg.descendants().filter(|node| node.has_tag_name("text"));
    nodes.filter_map(|node| node.text()).map(|text| text.trim().to_owned()).collect()
}

fn read(directory: &TempDir, name: impl AsRef<Path>) -> String {
    std::fs::read_to_string(directory.path().join(name)).expect("a picture")
}

#[test]
fn each_run_has_a_line_with_its_points() {
    let directory = here();
    put(&directory, "first.json", &run("all_reduce", &[8, 64, 1024, 65_536, 1_048_576]));
    put(&directory, "second.json", &run("all_reduce", &[64, 1024]));
    right(&directory, &["plot", "out.svg", "first.json", "other=second.json"]);
    let text = read(&directory, "out.svg");
    let svg = Document::parse(&text).expect("XML");
    for panel in ["bandwidth", "time"] {
        let lines = lines(&svg, panel);
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [5, 2], "{panel}");
        // Larger is further right; here it is also faster and takes longer, and both lines agree.
        assert!(lines[0].is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1), "{lines:?}");
        assert_eq!(lines[0][1..3], lines[1][..]);
        assert!(lines.iter().flatten().all(|(x, y)| (0.0..1160.0).contains(x) && (92.0..472.0).contains(y)));
    }
    let texts = texts(&svg);
    for said in
        ["all_reduce, Trunkline on soft0 (soft), 2 ranks, float, sum", "first", "other", "8 B", "32 KiB"]
    {
        assert!(texts.iter().any(|text| text == said), "{said}: {texts:?}");
    }
}

#[test]
fn axes_are_logarithmic() {
    let directory = here();
    put(&directory, "a.json", &run("gather", &[8, 64, 512]));
    right(&directory, &["plot", "out.svg", "a.json"]);
    let text = read(&directory, "out.svg");
    let svg = Document::parse(&text).expect("XML");
    let line = &lines(&svg, "bandwidth")[0];
    let step = |at: usize| (line[at + 1].0 - line[at].0, line[at + 1].1 - line[at].1);
    assert!((step(0).0 - step(1).0).abs() < 0.2 && (step(0).1 - step(1).1).abs() < 0.2, "{line:?}");
}

#[test]
fn in_place_rows_are_drawn_on_request() {
    let directory = here();
    let rows = [row("gather", 8, false), row("gather", 16, true), row("gather", 32, true)].concat();
    put(&directory, "a.json", &rows);
    for (args, points) in
        [(&["plot", "out.svg", "a.json"][..], 1), (&["plot", "out.svg", "a.json", "--in-place"], 2)]
    {
        right(&directory, args);
        let text = read(&directory, "out.svg");
        assert_eq!(lines(&Document::parse(&text).expect("XML"), "time")[0].len(), points);
    }
}

#[test]
fn names_of_any_kind_stay_text() {
    let directory = here();
    put(&directory, "a.json", &run("gather", &[8, 64]));
    right(&directory, &["plot", "out.svg", "<b>&\"'\u{1}\u{fffe}]]>=a.json", "x=a.json", "x=a.json"]);
    let text = read(&directory, "out.svg");
    let svg = Document::parse(&text).expect("XML");
    let texts = texts(&svg);
    assert!(texts.iter().any(|text| text.starts_with("<b>&\"'") && text.ends_with("]]>")), "{texts:?}");
    assert!(texts.iter().any(|text| text == "x") && texts.iter().any(|text| text == "x (2)"), "{texts:?}");
}

#[test]
fn runs_have_distinct_lines_up_to_the_limit() {
    let directory = here();
    put(&directory, "a.json", &run("gather", &[8, 64]));
    let names: Vec<String> = (0..22).map(|number| format!("run {number}=a.json")).collect();
    let mut args = vec!["plot", "out.svg"];
    args.extend(names[..21].iter().map(String::as_str));
    right(&directory, &args);
    let text = read(&directory, "out.svg");
    let svg = Document::parse(&text).expect("XML");
    let looks: std::collections::BTreeSet<_> = svg
        .descendants()
        .filter(|node| node.has_tag_name("line") && node.attribute("stroke-dasharray").is_some())
        .map(|node| (node.attribute("stroke"), node.attribute("stroke-dasharray")))
        .collect();
    assert_eq!(looks.len(), 21);
    args.push(&names[21]);
    assert!(wrong(&directory, &args).contains("cannot draw 22 runs: one picture shows at most 21"));
}

#[test]
fn invalid_input_is_reported_with_file_and_line() {
    let directory = here();
    let good = run("gather", &[8]);
    put(&directory, "slip.json", &format!("{good}\n{{\"bytes\":8}}\n"));
    put(&directory, "text.json", &format!("{good}# a table\n"));
    put(&directory, "zero.json", &good.replace("\"busbw\":0.16", "\"busbw\":0.0"));
    put(&directory, "empty.json", "\n");
    for (file, words) in [
        ("slip.json", "slip.json:4: not a row of `trunkline bench --json`: missing field"),
        ("text.json", "text.json:3: not a row of `trunkline bench --json`: expected value"),
        ("zero.json", "zero.json:1: cannot draw the bandwidth 0 on a logarithmic axis; remove the row"),
        ("empty.json", "empty.json contains no out-of-place rows"),
        ("none.json", "none.json: No such file"),
    ] {
        let said = wrong(&directory, &["plot", "out.svg", file]);
        assert!(said.contains(words), "{file}: {said}");
        assert!(!directory.path().join("out.svg").exists(), "{file}");
    }
}

#[test]
fn results_are_never_overwritten_by_a_slip() {
    let directory = here();
    let rows = run("gather", &[8]);
    put(&directory, "a.json", &rows);
    assert!(wrong(&directory, &["plot", "a.json", "out.svg"]).contains("end its name in .svg"));
    assert!(wrong(&directory, &["bench", "p2p", "--plot", "a.json"]).contains("end its name in .svg"));
    assert_eq!(read(&directory, "a.json"), rows);
}

/// A plugin in C, compiled here.
fn plugin(directory: &TempDir) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-host/tests/fixtures/mini_plugin.c");
    let library = directory.path().join("mini.so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(cc.status().expect("cc runs").success());
    library.to_str().expect("text").to_owned()
}

#[test]
fn bench_plot_draws_the_run_after_its_table() {
    let directory = here();
    let plugin = plugin(&directory);
    for (what, title) in [("p2p", "One-way bandwidth, GB/s"), ("all_gather", "Bus bandwidth, GB/s")] {
        let args = ["-b", "64", "-e", "4K", "-i", "2", "-w", "1", "--plugin", &plugin, "--plot", "out.svg"];
        let said = right(&directory, &[&["bench", what][..], &args].concat());
        assert!(said.starts_with("# "), "{said}");
        let text = read(&directory, "out.svg");
        let svg = Document::parse(&text).expect("XML");
        for panel in ["bandwidth", "time"] {
            assert_eq!(lines(&svg, panel).iter().map(Vec::len).collect::<Vec<_>>(), [4], "{what} {panel}");
        }
        assert!(texts(&svg).iter().any(|text| text == title));
        assert!(texts(&svg).iter().any(|text| text == "Mini on mini0"), "{:?}", texts(&svg));
        // The same rows, saved and drawn, are the same picture up to the figures.
        let json = right(&directory, &[&["bench", what, "--json"][..], &args].concat());
        put(&directory, "saved.json", &json);
        right(&directory, &["plot", "saved.svg", "saved.json"]);
        let saved = read(&directory, "saved.svg");
        assert_eq!(lines(&Document::parse(&saved).expect("XML"), "time")[0].len(), 4);
    }
}

#[test]
fn unwritable_picture_fails_before_the_run() {
    let directory = here();
    let plugin = plugin(&directory);
    // The run would take an hour if it began.
    let args = ["bench", "p2p", "-i", "100000000", "--plugin", &plugin, "--plot", "missing/out.svg"];
    let said = wrong(&directory, &args);
    assert!(said.contains("missing/out.svg: No such file"), "{said}");
}
