//! Bus bandwidth over size: a picture per collective, a line per configuration.

use svg::Document;
use svg::node::element::{Circle, Element, Group, Line, Polyline, Rectangle, Text, Title};

use super::element::{ElementBuilder as _, html_element, text_element};
use crate::bench;
use crate::bench::plot::axis::{self, AxisRange, AxisTick, LogAxis};
use crate::sweep::SweepPlan;
use crate::sweep::configuration::SweepConfiguration;
use crate::sweep::results::{SweepCell, SweepPoint, SweepResults};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 552.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 290.0;

/// The pictures, and one legend for all.
pub(super) fn curves_section(plan: &SweepPlan, results: &SweepResults) -> Element {
    let told = "Medians of the rounds, both axes logarithmic; point at a mark to see the spread. Colours show the number of \
                groups, dashes the depth.";
    let legend = plan.configurations.iter().fold(html_element("p").set("class", "legend"), |legend, one| {
        let sample = Document::new().set("viewBox", (0, 0, 40, 10)).set("width", 40).set("height", 10);
        let line =
            Line::new().set("x1", 0).set("x2", 40).set("y1", 5).set("y2", 5).set("class", line_class(*one));
        let entry = html_element("span")
            .set("title", one.to_words())
            .add(sample.add(line))
            .add(text_element("span", one.to_string()));
        legend.add(entry)
    });
    let charts = results.by_collective().filter_map(|cells| curve_chart(plan, cells));
    html_element("section")
        .add(text_element("h2", "Bus bandwidth over size"))
        .add(text_element("p", told))
        .add(legend)
        .add(charts.fold(html_element("div").set("class", "charts"), |all, one| all.add(one)))
}

/// The class of a configuration's line.
fn line_class(one: SweepConfiguration) -> String {
    match one {
        SweepConfiguration { groups: 0, links, .. } => format!("line q{links}"),
        SweepConfiguration { groups, depth, .. } => format!("line m{groups} d{depth}"),
    }
}

/// The coordinates of a point: bytes and GB/s.
fn point_coordinates(plan: &SweepPlan, cell: &SweepCell, point: &SweepPoint) -> (f64, f64) {
    let settings = plan.run_settings(cell.collective, cell.configuration);
    (
        bench::collective::buffer_bytes(&settings, cell.collective, point.block) as f64,
        point.bus_bandwidth().median,
    )
}

/// Draws a collective's picture; `None` if no value is above zero.
fn curve_chart(plan: &SweepPlan, cells: &[SweepCell]) -> Option<Document> {
    let name = cells.first()?.collective.name();
    let shown = |(bytes, gbs): &(f64, f64)| *bytes > 0.0 && *gbs > 0.0 && gbs.is_finite();
    let points = || {
        cells
            .iter()
            .flat_map(|cell| cell.points.iter().map(move |point| point_coordinates(plan, cell, point)))
    };
    points().find(shown)?;
    let sizes = axis::value_range(points().filter(shown).map(|(bytes, _)| bytes));
    let (values, value_ticks) = axis::decimal_ticks(
        axis::value_range(points().filter(shown).map(|(_, gbs)| gbs)),
        axis::format_number,
    );
    // Margins keep the first and the last point off the edges; they are wider if all points have one size.
    let air = (sizes.high / sizes.low).powf(0.03).max(1.1);
    let shown_sizes = AxisRange { low: sizes.low / air, high: sizes.high * air };
    let across = LogAxis::new(shown_sizes, LEFT, RIGHT);
    let up = LogAxis::new(values, BOTTOM, TOP);
    let title = format!("{name}, bus bandwidth in GB/s");
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, HEIGHT))
        .set("role", "img")
        .set("aria-label", title.clone())
        .add(text_node(0.0, 16.0, &title).set("class", "title"));
    for tick in axis::size_ticks(sizes) {
        let x = across.position_of(tick.value);
        document = document.add(grid_line(x, TOP, x, BOTTOM, &tick));
        let label = text_node(x, BOTTOM + 18.0, tick.label.as_deref().unwrap_or("")).set("class", "label");
        document = document.add(label.set("text-anchor", "middle"));
    }
    for tick in value_ticks {
        let y = up.position_of(tick.value);
        document = document.add(grid_line(LEFT, y, RIGHT, y, &tick));
        if let Some(label) = &tick.label {
            document = document
                .add(text_node(LEFT - 6.0, y + 4.0, label).set("class", "label").set("text-anchor", "end"));
        }
    }
    let frame = Rectangle::new().set("x", LEFT).set("y", TOP).set("width", RIGHT - LEFT);
    document = document.add(frame.set("height", BOTTOM - TOP).set("class", "frame"));
    for cell in cells {
        document = document.add(draw_curve(plan, cell, &across, &up));
    }
    Some(document)
}

/// Draws one configuration, with a mark at each point that shows its figures as a tooltip.
fn draw_curve(plan: &SweepPlan, cell: &SweepCell, across: &LogAxis, up: &LogAxis) -> Group {
    let class = line_class(cell.configuration);
    let mut corners = Vec::new();
    let mut marks = Group::new().set("class", class.replace("line", "mark"));
    for point in &cell.points {
        let (bytes, gbs) = point_coordinates(plan, cell, point);
        if gbs <= 0.0 || !gbs.is_finite() {
            continue;
        }
        let x = across.position_of(bytes);
        let y = up.position_of(gbs);
        let spread = point.bus_bandwidth();
        corners.push(format!("{x:.1},{y:.1}"));
        let tip = format!(
            "{} ({})\n{}: {} GB/s ({} to {})",
            cell.configuration,
            cell.configuration.to_words(),
            axis::format_size(bytes),
            axis::format_number(gbs),
            axis::format_number(spread.low),
            axis::format_number(spread.high)
        );
        let mark = Circle::new().set("cx", format!("{x:.1}")).set("cy", format!("{y:.1}")).set("r", 3);
        marks = marks.add(Group::new().add(Title::new(tip)).add(mark));
    }
    Group::new().add(Polyline::new().set("points", corners.join(" ")).set("class", class)).add(marks)
}

/// A line of the grid from `(x1, y1)` to `(x2, y2)`.
fn grid_line(x1: f64, y1: f64, x2: f64, y2: f64, tick: &AxisTick) -> Line {
    let class = if tick.label.is_some() { "grid" } else { "grid faint" };
    let line = Line::new().set("x1", format!("{x1:.1}")).set("y1", format!("{y1:.1}"));
    line.set("x2", format!("{x2:.1}")).set("y2", format!("{y2:.1}")).set("class", class)
}

fn text_node(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", format!("{x:.1}")).set("y", format!("{y:.1}"))
}
