use std::io::Write as _;

use super::axis::{
    AxisRange, decimal_ticks, format_number, format_size, format_time, size_ticks, value_range,
};
use super::*;

fn row(collective: &str, plugin: &str, bytes: u64) -> String {
    format!(
        r#"{{"collective":"{collective}","fabric":"soft","plugin":"{plugin}","device":"soft0","ranks":2,
            "bytes":{bytes},"type":"float","redop":"sum","in_place":false,"time_us":2.5,"busbw":3.0}}"#
    )
    .replace('\n', "")
}

fn runs_of(lines: &[String]) -> Vec<PlotRun> {
    parse_own_lines(lines).expect("rows")
}

fn file(lines: &[String]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "{}", lines.join("\n")).expect("written");
    file
}

#[test]
fn run_ends_at_another_identity_or_repeated_sizes() {
    let sizes = |plugin: &str, sizes: &[u64]| -> Vec<String> {
        sizes.iter().map(|bytes| row("all_reduce", plugin, *bytes)).collect()
    };
    let lines = [sizes("A", &[8, 16, 32]), sizes("B", &[8, 16]), sizes("B", &[8]), sizes("B", &[8])].concat();
    let runs = runs_of(&lines);
    let lengths: Vec<usize> = runs.iter().map(|run| run.points.len()).collect();
    assert_eq!(lengths, [3, 2, 1, 1]);
    assert_eq!(runs[0].points[1], PlotPoint { bytes: 16.0, gbs: 3.0, us: 2.5 });
}

#[test]
fn point_to_point_shows_its_own_figures() {
    let line =
        row("p2p", "A", 8).replace("\"time_us\"", "\"latency_p50_us\":1.5,\"one_way_gbs\":7.0,\"time_us\"");
    let runs = runs_of(&[line]);
    assert_eq!(runs[0].points, [PlotPoint { bytes: 8.0, gbs: 7.0, us: 1.5 }]);
}

#[test]
fn rows_of_the_other_kind_are_left_out() {
    let there = row("all_reduce", "A", 8);
    let inside = row("all_reduce", "A", 16).replace("\"in_place\":false", "\"in_place\":true");
    let file = file(&[there, inside]);
    let path = file.path().to_str().expect("a name");
    for (in_place, bytes) in [(false, 8.0), (true, 16.0)] {
        let runs = read_runs(path, "x", in_place).expect("rows");
        assert_eq!((runs.len(), runs[0].points.len(), runs[0].points[0].bytes), (1, 1, bytes));
    }
}

#[test]
fn title_has_common_words_and_legend_the_others() {
    let of = |lines: &[String]| name_runs(&runs_of(lines));
    let (title, labels) = of(&[row("all_reduce", "A", 8)]);
    assert_eq!(title, "all_reduce, A on soft0 (soft), 2 ranks, float, sum");
    assert_eq!(labels, ["A on soft0 (soft)"]);
    let (title, labels) = of(&[row("all_reduce", "A", 8), row("all_reduce", "B", 8)]);
    assert_eq!(title, "all_reduce, 2 ranks, float, sum");
    assert_eq!(labels, ["A on soft0 (soft)", "B on soft0 (soft)"]);
    let (_, labels) = of(&[row("gather", "A", 8), row("reduce", "A", 8), row("gather", "A", 8)]);
    assert_eq!(labels, ["gather", "reduce", "gather (2)"]);
}

#[test]
fn file_of_one_run_keeps_the_users_name() {
    let one = file(&[row("gather", "A", 8)]);
    let two = file(&[row("gather", "A", 8), row("reduce", "A", 8)]);
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("a name").to_owned();
    let mut runs = read_runs(&path(&one), "mine", false).expect("rows");
    runs.extend(read_runs(&path(&two), "both", false).expect("rows"));
    assert_eq!(name_runs(&runs).1, ["mine", "both: gather", "both: reduce"]);
}

#[test]
fn labels_are_short_and_in_their_units() {
    let sizes = [8.0, 512.0, 1024.0, 65_536.0, 1_048_576.0, 1_572_864.0, 16.0 * 1_073_741_824.0];
    assert_eq!(sizes.map(format_size), ["8 B", "512 B", "1 KiB", "64 KiB", "1 MiB", "1.5 MiB", "16 GiB"]);
    let times = [0.25, 1.0, 31.28, 999.7, 2000.0, 1_500_000.0];
    assert_eq!(times.map(format_time), ["250 ns", "1 \u{b5}s", "31.3 \u{b5}s", "1 ms", "2 ms", "1.5 s"]);
    assert_eq!(
        [0.001, 0.02, 0.5, 1.0, 12.34, 200.0, 1e4].map(format_number),
        ["0.001", "0.02", "0.5", "1", "12.3", "200", "10000"]
    );
}

#[test]
fn ticks_of_sizes_are_powers_of_two_and_few() {
    let labels = |low: f64, high: f64| -> Vec<String> {
        size_ticks(AxisRange { low, high }).into_iter().filter_map(|tick| tick.label).collect()
    };
    assert_eq!(labels(8.0, 128.0), ["8 B", "16 B", "32 B", "64 B", "128 B"]);
    assert_eq!(
        labels(8.0, 67_108_864.0),
        ["8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB", "16 MiB"]
    );
    assert_eq!(labels(4096.0, 4096.0), ["4 KiB"]);
    // The range contains no power of two: the ticks are the sizes themselves.
    assert_eq!(labels(300.0, 500.0), ["300 B", "500 B"]);
    assert_eq!(labels(300.0, 300.0), ["300 B"]);
}

#[test]
fn ticks_of_figures_surround_them_all() {
    for (low, high) in [(0.003, 17.0), (1.0, 1.0), (5.0, 5.2), (0.31, 20_000.0), (1e-9, 1e9)] {
        let (shown, ticks) = decimal_ticks(AxisRange { low, high }, format_number);
        let AxisRange { low: below, high: above } = shown;
        assert!(below < low && above > high && below > low / 3.0 && above < high * 3.0, "{below} {above}");
        let named = ticks.iter().filter(|tick| tick.label.is_some()).count();
        assert!((2..=20).contains(&named), "{low} to {high}: {named}");
        assert!(ticks.iter().all(|tick| tick.value >= below * 0.99 && tick.value <= above * 1.01));
    }
    assert_eq!(value_range([3.0, 1.0, 2.0].into_iter()), AxisRange { low: 1.0, high: 3.0 });
}
