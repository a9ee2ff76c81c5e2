//! Queue pairs and completion queues: bars with the formula marked, and a table with all numbers.

use svg::Document;
use svg::node::element::{Element, Group, Line, Rectangle, Text, Title};

use super::column_heads;
use super::element::{ElementBuilder as _, html_element, table_row, text_element};
use crate::sweep::SweepPlan;
use crate::sweep::formula::QueueComparison;
use crate::sweep::results::{SweepCell, SweepResults};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 8.0;
/// Largest width of a bar.
const BAR_MAX: f64 = 64.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 200.0;

/// The section with the bars, the table, and their explanation.
pub(super) fn counts_section(plan: &SweepPlan, results: &SweepResults) -> Element {
    let told = "The most queues that one rank had in use, as its NICs count them, and the expected numbers. Each peer and \
                direction has a group per connection, or at most m groups with sharing. A group has a queue pair per link and \
                one completion queue. Fewer completion queues are right, too. A connection without messages may lack links \
                after its first, which are created on first use. The bars show the collective with the most queue pairs, \
                and the lines across them the expected numbers; differences are red.";
    let pairs = |one: QueueComparison| QueueBar::new(one.used.pairs, one.expected.pairs, one.pairs_fit());
    let completion = |one: QueueComparison| {
        QueueBar::new(one.used.completion, one.expected.completion, one.completion_fits())
    };
    let bars = html_element("div")
        .set("class", "charts")
        .add(bar_chart(plan, results, "Queue pairs", pairs))
        .add(bar_chart(plan, results, "Completion queues", completion));
    let body = results.by_collective().map(|cells| {
        let name = cells.first().map_or("", |cell| cell.collective.name());
        let counted = cells.iter().map(|one| queue_cell(one.queue_comparison(plan)));
        table_row(std::iter::once(text_element("th", name).set("scope", "row")).chain(counted))
    });
    let table = body
        .fold(html_element("table").set("class", "counts").add(column_heads(plan)), |table, line| {
            table.add(line)
        });
    html_element("section")
        .add(text_element("h2", "Queues in use"))
        .add(text_element("p", told))
        .add(bars)
        .add(text_element(
            "p",
            "Queue pairs above, completion queues below; the expected number follows one that differs.",
        ))
        .add(html_element("div").set("class", "wide").add(table))
}

fn queue_cell(counted: QueueComparison) -> Element {
    let queues = |name, fits: bool, used: u32, told: String| {
        if fits { text_element(name, used.to_string()) } else { text_element(name, told).set("class", "bad") }
    };
    let QueueComparison { used, expected, .. } = counted;
    let pairs = format!("{} \u{2260} {}", used.pairs, expected.pairs);
    let completion = format!("{} > {}", used.completion, expected.completion);
    html_element("td").add(queues("b", counted.pairs_fit(), used.pairs, pairs)).add(queues(
        "small",
        counted.completion_fits(),
        used.completion,
        completion,
    ))
}

/// The cell of a configuration to show: one that does not match the formula, else the one with the most queue pairs.
fn shown_count(plan: &SweepPlan, results: &SweepResults, at: usize) -> Option<QueueComparison> {
    let cells = || {
        results
            .by_collective()
            .filter_map(|cells| cells.get(at))
            .map(|one: &SweepCell| one.queue_comparison(plan))
    };
    let misfits = cells().filter(|one| !one.matches_formula()).max_by_key(|one| one.used.pairs);
    misfits.or_else(|| cells().max_by_key(|one| one.used.pairs))
}

/// The numbers drawn for a configuration.
#[derive(Clone, Copy)]
struct QueueBar {
    used: u32,
    expected: u32,
    fits: bool,
}

impl QueueBar {
    const fn new(used: u32, expected: u32, fits: bool) -> Self {
        Self { used, expected, fits }
    }

    /// Draws the bar with its mark and its number, `width` wide from `x` on.
    fn draw_bar(self, name: &str, x: f64, width: f64, scale: f64) -> Group {
        let Self { used, expected, fits } = self;
        let top = BOTTOM - f64::from(used) * scale;
        let line = BOTTOM - f64::from(expected) * scale;
        let class = if fits { "bar" } else { "bar bad" };
        let tip = format!("{name}: {used} in use, {expected} by the formula");
        let bar =
            Rectangle::new().set("x", format_coordinate(x + width * 0.16)).set("y", format_coordinate(top));
        let bar = bar
            .set("width", format_coordinate(width * 0.68))
            .set("height", format_coordinate(BOTTOM - top))
            .set("class", class);
        let mark = Line::new()
            .set("x1", format_coordinate(x + width * 0.06))
            .set("x2", format_coordinate(x + width * 0.94));
        let mark = mark
            .set("y1", format_coordinate(line))
            .set("y2", format_coordinate(line))
            .set("class", "formula");
        let number = text_node(x + width / 2.0, top.min(line) - 5.0, &used.to_string()).set("class", class);
        Group::new().add(Title::new(tip)).add(bar).add(mark).add(number)
    }
}

fn bar_chart(
    plan: &SweepPlan,
    results: &SweepResults,
    title: &str,
    of: impl Fn(QueueComparison) -> QueueBar,
) -> Document {
    let shown = |at| shown_count(plan, results, at).map(&of);
    let bars: Vec<Option<QueueBar>> = (0..plan.configurations.len()).map(shown).collect();
    let most = bars.iter().flatten().map(|bar| bar.used.max(bar.expected)).max();
    let scale = (BOTTOM - TOP) / f64::from(most.unwrap_or(1).max(1)) * 0.92;
    let width = ((WIDTH - LEFT) / bars.len().max(1) as f64).min(BAR_MAX);
    let floor = Line::new().set("x1", LEFT).set("x2", WIDTH).set("y1", BOTTOM).set("y2", BOTTOM);
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, HEIGHT))
        .set("role", "img")
        .set("aria-label", title)
        .add(text_node(0.0, 16.0, title).set("class", "title").set("text-anchor", "start"))
        .add(floor.set("class", "frame"));
    for (at, (one, bar)) in plan.configurations.iter().zip(&bars).enumerate() {
        let x = LEFT + width * at as f64;
        let label = text_node(x + width / 2.0, BOTTOM + 18.0, &one.to_string()).set("class", "label");
        document = document.add(label);
        if let Some(bar) = bar {
            document = document.add(bar.draw_bar(&one.to_words(), x, width, scale));
        }
    }
    document
}

fn text_node(x: f64, y: f64, content: &str) -> Text {
    Text::new(content)
        .set("x", format_coordinate(x))
        .set("y", format_coordinate(y))
        .set("text-anchor", "middle")
}

fn format_coordinate(value: f64) -> String {
    format!("{value:.1}")
}
