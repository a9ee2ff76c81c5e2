//! Bus bandwidth over size: a picture for each collective, a line for each configuration.

use svg::Document;
use svg::node::element::{Circle, Element, Group, Line, Polyline, Rectangle, Text, Title};

use super::element::{Build as _, html, with};
use crate::bench;
use crate::bench::plot::axis::{self, Axis, Tick};
use crate::sweep::Plan;
use crate::sweep::configuration::Configuration;
use crate::sweep::results::{Cell, Point, Results};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 552.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 290.0;

/// The pictures, and one legend for all.
pub(super) fn section(plan: &Plan, results: &Results) -> Element {
    let told = "Medians of the rounds, both axes logarithmic; point at a mark to see the spread. Colours tell the number of \
                groups, dashes the depth.";
    let legend = plan.configurations.iter().fold(html("p").set("class", "legend"), |legend, one| {
        let sample = Document::new().set("viewBox", (0, 0, 40, 10)).set("width", 40).set("height", 10);
        let line = Line::new().set("x1", 0).set("x2", 40).set("y1", 5).set("y2", 5).set("class", look(*one));
        let entry =
            html("span").set("title", one.words()).add(sample.add(line)).add(with("span", one.to_string()));
        legend.add(entry)
    });
    let charts = results.collectives().filter_map(|cells| picture(plan, cells));
    html("section")
        .add(with("h2", "Bus bandwidth over size"))
        .add(with("p", told))
        .add(legend)
        .add(charts.fold(html("div").set("class", "charts"), |all, one| all.add(one)))
}

/// The class of a configuration's line.
fn look(one: Configuration) -> String {
    match one {
        Configuration { groups: 0, links, .. } => format!("line q{links}"),
        Configuration { groups, depth, .. } => format!("line m{groups} d{depth}"),
    }
}

/// Where a point is: bytes, and GB/s.
fn place(plan: &Plan, cell: &Cell, point: &Point) -> (f64, f64) {
    let settings = plan.settings(cell.collective, cell.configuration);
    (bench::collective::bytes(&settings, cell.collective, point.block) as f64, point.busbw().median)
}

/// `None` if there is nothing above zero to draw.
fn picture(plan: &Plan, cells: &[Cell]) -> Option<Document> {
    let name = cells.first()?.collective.name();
    let shown = |(bytes, gbs): &(f64, f64)| *bytes > 0.0 && *gbs > 0.0 && gbs.is_finite();
    let points =
        || cells.iter().flat_map(|cell| cell.points.iter().map(move |point| place(plan, cell, point)));
    points().find(shown)?;
    let sizes = axis::range(points().filter(shown).map(|(bytes, _)| bytes));
    let (values, value_ticks) =
        axis::decimal_ticks(axis::range(points().filter(shown).map(|(_, gbs)| gbs)), axis::number);
    // A little air, so that the first and the last point stand free; more where all have one size.
    let air = (sizes.1 / sizes.0).powf(0.03).max(1.1);
    let across = Axis::new((sizes.0 / air, sizes.1 * air), (LEFT, RIGHT));
    let up = Axis::new(values, (BOTTOM, TOP));
    let title = format!("{name}, bus bandwidth in GB/s");
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, HEIGHT))
        .set("role", "img")
        .set("aria-label", title.clone())
        .add(text(0.0, 16.0, &title).set("class", "title"));
    for tick in axis::size_ticks(sizes) {
        let x = across.place(tick.value);
        document = document.add(grid((x, TOP), (x, BOTTOM), &tick));
        let label = text(x, BOTTOM + 18.0, tick.label.as_deref().unwrap_or("")).set("class", "label");
        document = document.add(label.set("text-anchor", "middle"));
    }
    for tick in value_ticks {
        let y = up.place(tick.value);
        document = document.add(grid((LEFT, y), (RIGHT, y), &tick));
        if let Some(label) = &tick.label {
            document = document
                .add(text(LEFT - 6.0, y + 4.0, label).set("class", "label").set("text-anchor", "end"));
        }
    }
    let frame = Rectangle::new().set("x", LEFT).set("y", TOP).set("width", RIGHT - LEFT);
    document = document.add(frame.set("height", BOTTOM - TOP).set("class", "frame"));
    for cell in cells {
        document = document.add(line(plan, cell, &across, &up));
    }
    Some(document)
}

/// One configuration, with a mark at each point that tells its figures to whoever points at it.
fn line(plan: &Plan, cell: &Cell, across: &Axis, up: &Axis) -> Group {
    let class = look(cell.configuration);
    let mut corners = Vec::new();
    let mut marks = Group::new().set("class", class.replace("line", "mark"));
    for point in &cell.points {
        let (bytes, gbs) = place(plan, cell, point);
        if gbs <= 0.0 || !gbs.is_finite() {
            continue;
        }
        let x = across.place(bytes);
        let y = up.place(gbs);
        let spread = point.busbw();
        corners.push(format!("{x:.1},{y:.1}"));
        let tip = format!(
            "{} ({})\n{}: {} GB/s ({} to {})",
            cell.configuration,
            cell.configuration.words(),
            axis::size(bytes),
            axis::number(gbs),
            axis::number(spread.low),
            axis::number(spread.high)
        );
        let mark = Circle::new().set("cx", format!("{x:.1}")).set("cy", format!("{y:.1}")).set("r", 3);
        marks = marks.add(Group::new().add(Title::new(tip)).add(mark));
    }
    Group::new().add(Polyline::new().set("points", corners.join(" ")).set("class", class)).add(marks)
}

fn grid(from: (f64, f64), to: (f64, f64), tick: &Tick) -> Line {
    let class = if tick.label.is_some() { "grid" } else { "grid faint" };
    let line = Line::new().set("x1", format!("{:.1}", from.0)).set("y1", format!("{:.1}", from.1));
    line.set("x2", format!("{:.1}", to.0)).set("y2", format!("{:.1}", to.1)).set("class", class)
}

fn text(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", format!("{x:.1}")).set("y", format!("{y:.1}"))
}
