//! The report of a sweep: one self-contained HTML file, for light and dark screens.
//!
//! Called by `cmd::sweep`. The file is a tree of elements. The library that writes SVG writes HTML as well and escapes
//! all text, so the page is well-formed for any plugin name.

mod counts;
mod curves;
mod element;
mod heat;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use svg::node::element::Element;
use thiserror::Error;

use self::element::{ElementBuilder as _, html_element, table_row, text_element};
use super::formula::QueueComparison;
use super::results::{SweepCell, SweepResults};
use super::{SweepPlan, machine};

/// The style sheet.
const STYLE: &str = include_str!("style.css");

/// The report cannot be written.
#[derive(Debug, Error)]
#[error("{}: {source}", path.display())]
pub(crate) struct SweepPageError {
    path: PathBuf,
    source: io::Error,
}

/// Checks that the report can be written before a long run begins. An existing file keeps its content.
pub(crate) fn prepare_file(path: &Path) -> Result<(), SweepPageError> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map(drop).map_err(|source| SweepPageError { path: path.to_owned(), source })
}

/// Writes the report.
pub(crate) fn write_report(
    path: &Path,
    plan: &SweepPlan,
    results: &SweepResults,
) -> Result<(), SweepPageError> {
    let text = page_text(plan, results, &ReportOrigin::from_process());
    let written = File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| SweepPageError { path: path.to_owned(), source })
}

/// The command and the machine of a run.
struct ReportOrigin {
    command: String,
    machine: String,
}

impl ReportOrigin {
    fn from_process() -> Self {
        let mut words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        if let Some(program) = words.first_mut() {
            *program = "trunkline".to_owned();
        }
        let quoted = shlex::try_join(words.iter().map(String::as_str));
        Self { command: quoted.unwrap_or_else(|_| words.join(" ")), machine: machine::describe_machine() }
    }
}

/// The whole page.
fn page_text(plan: &SweepPlan, results: &SweepResults, run: &ReportOrigin) -> String {
    const TITLE: &str = "Trunkline: queue pairs shared and not";
    let head = html_element("head")
        .add(html_element("meta").set("charset", "utf-8"))
        .add(html_element("meta").set("name", "viewport").set("content", "width=device-width"))
        .add(html_element("meta").set("name", "color-scheme").set("content", "light dark"))
        .add(text_element("title", TITLE))
        .add(text_element("style", STYLE));
    let mut body = html_element("body")
        .add(text_element("h1", TITLE))
        .add(facts_table(plan, results, run))
        .add(outcome_section(plan, results));
    for part in [
        heat::heat_section(plan, results),
        counts::counts_section(plan, results),
        curves::curves_section(plan, results),
    ] {
        body = body.add(part);
    }
    format!("<!DOCTYPE html>\n{}\n", html_element("html").set("lang", "en").add(head).add(body))
}

/// The table of the run's command, machine and settings.
fn facts_table(plan: &SweepPlan, results: &SweepResults, run: &ReportOrigin) -> Element {
    let job = &plan.common.job;
    let info = results.cells.first().map(|cell| cell.info.clone()).unwrap_or_default();
    let connections = format!(
        "{} ranks, {} communicators of {} channels: {} connections of each direction to each peer",
        job.ranks,
        job.comms,
        job.channels,
        plan.connection_count()
    );
    let plugin = format!(
        "{} (interface v{}) on {}, data is sums of float where it is reduced",
        info.name, info.abi, info.device
    );
    let rounds = format!(
        "{} rounds, each with all configurations in turn; figures are medians over the rounds, out of place",
        plan.rounds
    );
    let rows = [
        ("Command", run.command.clone()),
        ("Machine", run.machine.clone()),
        ("Job", connections),
        ("Plugin", plugin),
        ("Runs", rounds),
    ];
    let table = html_element("table").set("class", "facts");
    rows.into_iter().fold(table, |table, (name, value)| {
        let value = if name == "Command" {
            html_element("td").add(text_element("code", value))
        } else {
            text_element("td", value)
        };
        table.add(table_row([text_element("th", name).set("scope", "row"), value]))
    })
}

/// The outcome, for the top of the page: wrong elements and mismatched queues.
fn outcome_section(plan: &SweepPlan, results: &SweepResults) -> Element {
    let wrong: u64 = results.cells.iter().map(SweepCell::wrong_count).sum();
    let misfits: Vec<QueueComparison> = results
        .cells
        .iter()
        .map(|cell| cell.queue_comparison(plan))
        .filter(|one| !one.matches_formula())
        .collect();
    let data = match wrong {
        0 => text_element("p", "All data was right.").set("class", "good"),
        _ => text_element("p", format!("{wrong} elements of the data were wrong.")).set("class", "bad"),
    };
    let queues = match misfits.len() {
        0 => text_element("p", "Queue pairs and completion queues match the formula.").set("class", "good"),
        count => {
            let all = results.cells.len();
            let told = format!("Queues do not match the formula in {count} of {all} cells, marked below.");
            text_element("p", told).set("class", "bad")
        }
    };
    html_element("div").set("class", "outcome").add(data).add(queues)
}

/// The column heads, one per configuration.
fn column_heads(plan: &SweepPlan) -> Element {
    let first = text_element("th", "\u{a0}");
    plan.configurations.iter().fold(html_element("tr").add(first), |line, one| {
        line.add(text_element("th", one.to_string()).set("scope", "col").set("title", one.to_words()))
    })
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
