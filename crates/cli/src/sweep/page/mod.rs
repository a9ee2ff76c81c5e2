//! The report of a sweep: one HTML file that needs nothing else, for light and dark screens.
//!
//! Called by `cmd::sweep`. The file is a tree of elements; the library that writes SVG writes HTML as well, and escapes all
//! text, so the page is well-formed whatever a plugin calls itself.

mod counts;
mod curves;
mod element;
mod heat;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use svg::node::element::Element;
use thiserror::Error;

use self::element::{Build as _, html, row, with};
use super::formula::Counted;
use super::results::{Cell, Results};
use super::{Plan, machine};

/// How everything looks.
const STYLE: &str = include_str!("style.css");

/// There is no report.
#[derive(Debug, Error)]
#[error("{}: {source}", path.display())]
pub(crate) struct PageError {
    path: PathBuf,
    source: io::Error,
}

/// Makes sure that the report can be written, before a long run; a file that is there keeps its content.
pub(crate) fn prepare(path: &Path) -> Result<(), PageError> {
    let opened = File::options().append(true).create(true).open(path);
    opened.map(drop).map_err(|source| PageError { path: path.to_owned(), source })
}

/// Writes the report.
pub(crate) fn write(path: &Path, plan: &Plan, results: &Results) -> Result<(), PageError> {
    let text = text(plan, results, &Run::here());
    let written = File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| PageError { path: path.to_owned(), source })
}

/// What was run, and where.
struct Run {
    command: String,
    machine: String,
}

impl Run {
    fn here() -> Self {
        let mut words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        if let Some(program) = words.first_mut() {
            *program = "trunkline".to_owned();
        }
        let quoted = shlex::try_join(words.iter().map(String::as_str));
        Self { command: quoted.unwrap_or_else(|_| words.join(" ")), machine: machine::words() }
    }
}

/// The whole page.
fn text(plan: &Plan, results: &Results, run: &Run) -> String {
    const TITLE: &str = "Trunkline: queue pairs shared and not";
    let head = html("head")
        .add(html("meta").set("charset", "utf-8"))
        .add(html("meta").set("name", "viewport").set("content", "width=device-width"))
        .add(html("meta").set("name", "color-scheme").set("content", "light dark"))
        .add(with("title", TITLE))
        .add(with("style", STYLE));
    let mut body =
        html("body").add(with("h1", TITLE)).add(facts(plan, results, run)).add(outcome(plan, results));
    for part in [heat::section(plan, results), counts::section(plan, results), curves::section(plan, results)]
    {
        body = body.add(part);
    }
    format!("<!DOCTYPE html>\n{}\n", html("html").set("lang", "en").add(head).add(body))
}

/// What ran where.
fn facts(plan: &Plan, results: &Results, run: &Run) -> Element {
    let job = &plan.common.job;
    let info = results.cells.first().map(|cell| cell.info.clone()).unwrap_or_default();
    let connections = format!(
        "{} ranks, {} communicators of {} channels: {} connections of each direction to each peer",
        job.ranks,
        job.comms,
        job.channels,
        plan.connections()
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
    let table = html("table").set("class", "facts");
    rows.into_iter().fold(table, |table, (name, value)| {
        let value = if name == "Command" { html("td").add(with("code", value)) } else { with("td", value) };
        table.add(row([with("th", name).set("scope", "row"), value]))
    })
}

/// What nobody is to overlook.
fn outcome(plan: &Plan, results: &Results) -> Element {
    let wrong: u64 = results.cells.iter().map(Cell::wrong).sum();
    let misfits: Vec<Counted> =
        results.cells.iter().map(|cell| cell.counted(plan)).filter(|one| !one.fits()).collect();
    let data = match wrong {
        0 => with("p", "All data was right.").set("class", "good"),
        _ => with("p", format!("{wrong} elements of the data were wrong.")).set("class", "bad"),
    };
    let queues = match misfits.len() {
        0 => with("p", "Queue pairs and completion queues are as the formula says.").set("class", "good"),
        count => {
            let all = results.cells.len();
            let told = format!("Queues are not as the formula says in {count} of {all} cells, marked below.");
            with("p", told).set("class", "bad")
        }
    };
    html("div").set("class", "outcome").add(data).add(queues)
}

/// The heads of columns: a configuration each.
fn heads(plan: &Plan) -> Element {
    let first = with("th", "\u{a0}");
    plan.configurations.iter().fold(html("tr").add(first), |line, one| {
        line.add(with("th", one.to_string()).set("scope", "col").set("title", one.words()))
    })
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
