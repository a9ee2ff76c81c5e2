//! Queue pairs and completion queues: bars with the formula marked, and a table of all of them.

use svg::Document;
use svg::node::element::{Element, Group, Line, Rectangle, Text, Title};

use super::element::{Build as _, html, row, with};
use super::heads;
use crate::sweep::Plan;
use crate::sweep::formula::Counted;
use crate::sweep::results::{Cell, Results};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 8.0;
/// Widest room of a bar.
const BAR_MAX: f64 = 64.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 200.0;

/// The bars, the table, and what they mean.
pub(super) fn section(plan: &Plan, results: &Results) -> Element {
    let told = "What one rank has in use at most, as its NICs count, and what the formula says: for each peer and direction \
                as many groups as connections, at most m where they share, each with a queue pair a link and one completion \
                queue. Completion queues may be fewer, and a connection that has carried nothing may lack links beyond its \
                first, which are made as it is used. The bars show the collective with the most queue pairs, the lines across \
                them the formula; what differs is red.";
    let pairs = |one: Counted| Bar::new(one.used.pairs, one.expected.pairs, one.pairs_fit());
    let completion =
        |one: Counted| Bar::new(one.used.completion, one.expected.completion, one.completion_fits());
    let bars = html("div")
        .set("class", "charts")
        .add(picture(plan, results, "Queue pairs", pairs))
        .add(picture(plan, results, "Completion queues", completion));
    let body = results.collectives().map(|cells| {
        let name = cells.first().map_or("", |cell| cell.collective.name());
        let counted = cells.iter().map(|one| cell(one.counted(plan)));
        row(std::iter::once(with("th", name).set("scope", "row")).chain(counted))
    });
    let table =
        body.fold(html("table").set("class", "counts").add(heads(plan)), |table, line| table.add(line));
    html("section")
        .add(with("h2", "Queues in use"))
        .add(with("p", told))
        .add(bars)
        .add(with(
            "p",
            "Queue pairs above, completion queues below; what the formula says stands behind what differs.",
        ))
        .add(html("div").set("class", "wide").add(table))
}

fn cell(counted: Counted) -> Element {
    let queues = |name, fits: bool, used: u32, told: String| {
        if fits { with(name, used.to_string()) } else { with(name, told).set("class", "bad") }
    };
    let Counted { used, expected, .. } = counted;
    let pairs = format!("{} \u{2260} {}", used.pairs, expected.pairs);
    let completion = format!("{} > {}", used.completion, expected.completion);
    html("td").add(queues("b", counted.pairs_fit(), used.pairs, pairs)).add(queues(
        "small",
        counted.completion_fits(),
        used.completion,
        completion,
    ))
}

/// The cell to show of a configuration: one that does not fit, else the one with the most queue pairs.
fn shown(plan: &Plan, results: &Results, at: usize) -> Option<Counted> {
    let cells =
        || results.collectives().filter_map(|cells| cells.get(at)).map(|one: &Cell| one.counted(plan));
    let misfits = cells().filter(|one| !one.fits()).max_by_key(|one| one.used.pairs);
    misfits.or_else(|| cells().max_by_key(|one| one.used.pairs))
}

/// What is drawn of a configuration.
#[derive(Clone, Copy)]
struct Bar {
    used: u32,
    expected: u32,
    fits: bool,
}

impl Bar {
    const fn new(used: u32, expected: u32, fits: bool) -> Self {
        Self { used, expected, fits }
    }

    /// With its mark and its number, `width` of the paper from `x` on.
    fn draw(self, name: &str, x: f64, width: f64, scale: f64) -> Group {
        let Self { used, expected, fits } = self;
        let top = BOTTOM - f64::from(used) * scale;
        let line = BOTTOM - f64::from(expected) * scale;
        let class = if fits { "bar" } else { "bar bad" };
        let tip = format!("{name}: {used} in use, {expected} by the formula");
        let bar = Rectangle::new().set("x", round(x + width * 0.16)).set("y", round(top));
        let bar =
            bar.set("width", round(width * 0.68)).set("height", round(BOTTOM - top)).set("class", class);
        let mark = Line::new().set("x1", round(x + width * 0.06)).set("x2", round(x + width * 0.94));
        let mark = mark.set("y1", round(line)).set("y2", round(line)).set("class", "formula");
        let number = text(x + width / 2.0, top.min(line) - 5.0, &used.to_string()).set("class", class);
        Group::new().add(Title::new(tip)).add(bar).add(mark).add(number)
    }
}

fn picture(plan: &Plan, results: &Results, title: &str, of: impl Fn(Counted) -> Bar) -> Document {
    let shown = |at| shown(plan, results, at).map(&of);
    let bars: Vec<Option<Bar>> = (0..plan.configurations.len()).map(shown).collect();
    let most = bars.iter().flatten().map(|bar| bar.used.max(bar.expected)).max();
    let scale = (BOTTOM - TOP) / f64::from(most.unwrap_or(1).max(1)) * 0.92;
    let width = ((WIDTH - LEFT) / bars.len().max(1) as f64).min(BAR_MAX);
    let floor = Line::new().set("x1", LEFT).set("x2", WIDTH).set("y1", BOTTOM).set("y2", BOTTOM);
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, HEIGHT))
        .set("role", "img")
        .set("aria-label", title)
        .add(text(0.0, 16.0, title).set("class", "title").set("text-anchor", "start"))
        .add(floor.set("class", "frame"));
    for (at, (one, bar)) in plan.configurations.iter().zip(&bars).enumerate() {
        let x = LEFT + width * at as f64;
        let label = text(x + width / 2.0, BOTTOM + 18.0, &one.to_string()).set("class", "label");
        document = document.add(label);
        if let Some(bar) = bar {
            document = document.add(bar.draw(&one.words(), x, width, scale));
        }
    }
    document
}

fn text(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", round(x)).set("y", round(y)).set("text-anchor", "middle")
}

fn round(value: f64) -> String {
    format!("{value:.1}")
}
