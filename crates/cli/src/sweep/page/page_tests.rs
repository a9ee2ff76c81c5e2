use std::path::PathBuf;
use std::time::Duration;

use roxmltree::{Document, Node};
use trunkline_nccl_host::{Collective, DeviceSelection, MemoryKind, PluginReport, RankJob, RowResult};

use super::*;
use crate::bench::collective::RowHalf;
use crate::sweep::configuration::SweepConfiguration;
use crate::sweep::formula::{QueueCounts, RankUsage};
use crate::sweep::{CommonSettings, IterationRule};

fn plan() -> SweepPlan {
    let time = Duration::from_secs(1);
    let job = RankJob {
        plugin: PathBuf::new(),
        abi: None,
        device: DeviceSelection::Number(0),
        ranks: 2,
        comms: 2,
        channels: 8,
        collective: None,
        root: 0,
        bytes_max: 1 << 20,
        chunk: 1 << 20,
        receive_min: 1 << 20,
        memory: MemoryKind::Private,
        flush: None,
        timeout: time,
        row_timeout: time,
        keep: None,
        environment: Vec::new(),
    };
    let sizes = vec![1 << 10, 1 << 20];
    SweepPlan {
        collectives: vec![Collective::AllReduce, Collective::Gather],
        configurations: SweepConfiguration::all(),
        rounds: 2,
        common: CommonSettings { job, sizes, warmup: 0, iterations: IterationRule::Number(1), json: false },
    }
}

/// Results in which configuration number N is N+1 times as fast as the first; `spoil` changes the observed queues.
fn results(plan: &SweepPlan, spoil: impl Fn(SweepConfiguration, &mut QueueCounts)) -> SweepResults {
    let mut cells = Vec::new();
    for collective in plan.collectives.iter().copied() {
        for (at, configuration) in plan.configurations.iter().copied().enumerate() {
            let mut cell = SweepCell::new(collective, configuration);
            for (size, block) in [(0, 256), (1, 1 << 18)] {
                for _ in 0..plan.rounds {
                    let busbw = (at + 1) as f64 * 0.5;
                    let result = RowResult { time_us: 1.0, wrong: 0 };
                    cell.add_round(size, block, RowHalf { result, algbw: busbw, busbw });
                }
            }
            let info = PluginReport { name: "<b>&\"\u{1}".to_owned(), ..PluginReport::default() };
            let seen = [0, 1].map(|rank| {
                let mut queues = cell.queue_comparison_of(plan, rank).expected;
                spoil(configuration, &mut queues);
                RankUsage { queues, idle: 0 }
            });
            cell.record_ranks(&info, &seen);
            cells.push(cell);
        }
    }
    SweepResults { cells }
}

fn page(spoil: impl Fn(SweepConfiguration, &mut QueueCounts)) -> String {
    let plan = plan();
    let run = ReportOrigin { command: "trunkline sweep '<script>'".to_owned(), machine: "a & b".to_owned() };
    let text = page_text(&plan, &results(&plan, spoil), &run);
    text.strip_prefix("<!DOCTYPE html>\n").expect("HTML").to_owned()
}

fn of_class<'a>(tree: &'a Document<'_>, class: &str) -> Vec<Node<'a, 'a>> {
    let classes =
        |node: &Node<'_, '_>| node.attribute("class").unwrap_or("").split(' ').any(|one| one == class);
    tree.descendants().filter(classes).collect()
}

#[test]
fn page_escapes_text_and_is_self_contained() {
    let page = page(|_, _| ());
    let tree = Document::parse(&page).expect("well-formed");
    let code = tree.descendants().find(|node| node.has_tag_name("code")).expect("the command");
    assert_eq!(code.text(), Some("trunkline sweep '<script>'"));
    assert!(page.contains("&lt;b&gt;&amp;\" "), "the plugin's name, without characters that XML forbids");
    assert!(
        !page.contains("http://")
            || page.matches("http").count() == page.matches("http://www.w3.org/").count()
    );
    // HTML defines only few elements without content.
    let empty = |node: &Node<'_, '_>| node.is_element() && !node.has_children();
    let names: Vec<&str> = tree.descendants().filter(empty).map(|node| node.tag_name().name()).collect();
    let known = ["meta", "line", "rect", "circle", "polyline"];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
}

#[test]
fn each_collective_has_a_line_and_a_cell_for_each_configuration() {
    let page = page(|_, _| ());
    let tree = Document::parse(&page).expect("well-formed");
    let lines = of_class(&tree, "line").into_iter().filter(|node| node.has_tag_name("polyline"));
    assert_eq!(lines.count(), 2 * 14);
    let samples = of_class(&tree, "line").into_iter().filter(|node| node.has_tag_name("line"));
    assert_eq!(samples.count(), 14, "the legend");
    assert_eq!(of_class(&tree, "bar").len(), 2 * 2 * 14, "a bar and its number, of two kinds");
    let heat = of_class(&tree, "heat")[0];
    let ratios: Vec<&str> =
        heat.descendants().filter(|node| node.has_tag_name("b")).filter_map(|node| node.text()).collect();
    let wanted: Vec<String> = (1..=14).map(|times| format!("{times}.00")).collect();
    assert_eq!(ratios, [wanted.clone(), wanted.clone(), wanted].concat(), "two collectives and their mean");
    // The styles of all lines differ.
    let mut looks: Vec<&str> =
        of_class(&tree, "line").iter().filter_map(|node| node.attribute("class")).collect();
    looks.sort_unstable();
    looks.dedup();
    assert_eq!(looks.len(), 14);
    for look in
        looks.iter().flat_map(|look| look.split(' ')).filter(|look| !["line", "q1", "d1"].contains(look))
    {
        assert!(STYLE.contains(&format!(".line.{look} ")), "{look}");
    }
}

#[test]
fn only_differences_from_the_formula_are_red() {
    let bad = |spoil: fn(SweepConfiguration, &mut QueueCounts)| {
        let page = page(spoil);
        let tree = Document::parse(&page).expect("well-formed");
        let texts = of_class(&tree, "bad").into_iter().filter_map(|node| node.text());
        let texts = texts.map(|text| text.trim().to_owned());
        texts.filter(|text| !text.is_empty()).collect::<Vec<String>>()
    };
    assert_eq!(bad(|_, _| ()), [""; 0]);
    let pairs = bad(|one, queues| queues.pairs += u32::from(one.groups == 4 && one.depth == 2));
    let said = "Queues do not match the formula in 2 of 28 cells, marked below.";
    assert_eq!(pairs, [said, "9", "9 \u{2260} 8", "5 \u{2260} 4"]);
    let completion = bad(|one, queues| queues.completion += u32::from(one.links == 4));
    let said = "Queues do not match the formula in 2 of 28 cells, marked below.";
    assert_eq!(completion, [said, "33", "33 > 32", "17 > 16"]);
    let fewer = bad(|_, queues| queues.completion = 1);
    assert_eq!(fewer, [""; 0], "fewer completion queues are no fault");
}
