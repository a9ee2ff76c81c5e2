//! Draws two panels side by side, bandwidth and time over size, and the legend below them.
//!
//! Called by `plot`. The user's text is written into text nodes only, which the library escapes.

use svg::Document;
use svg::node::element::{Circle, Group, Line, Path, Polyline, Rectangle, Text, Title};

use super::axis::{self, AxisRange, AxisTick, LogAxis};
use super::{PlotPoint, PlotRun, name_runs};

const WIDTH: f64 = 1160.0;
const MARGIN: f64 = 24.0;
const PANEL_TOP: f64 = 92.0;
const PANEL_HEIGHT: f64 = 380.0;
/// Room for the labels left of a panel.
const LABELS: f64 = 64.0;
/// Distance from a panel's lower edge to the first line of the legend.
const TO_LEGEND: f64 = 72.0;
const LEGEND_LINE: f64 = 24.0;
/// Most runs of a legend with one column; more runs use two.
const LEGEND_ALONE: usize = 4;
/// Longest text of the legend and the title, in letters.
const LEGEND_LETTERS: usize = 72;
const TITLE_LETTERS: usize = 110;

const TEXT: &str = "#222222";
const FAINT: &str = "#555555";
const FONTS: &str = "Helvetica, Arial, 'DejaVu Sans', sans-serif";

/// Okabe and Ito's colours, which readers with any kind of colour vision can distinguish; without yellow, which is too
/// light on white.
const COLOURS: [&str; 7] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];

/// Dashes of the first seven runs, the next and the last.
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];

/// Renders the whole file.
pub(super) fn render_picture(runs: &[PlotRun]) -> String {
    let (title, labels) = name_runs(runs);
    let lines = if runs.len() <= LEGEND_ALONE { runs.len() } else { runs.len().div_ceil(2) };
    let legend_top = PANEL_TOP + PANEL_HEIGHT + TO_LEGEND;
    let height = legend_top + lines as f64 * LEGEND_LINE + MARGIN / 2.0;
    let paper = Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "#ffffff");
    let head = text_node(MARGIN, 36.0, shorten_text(&title, TITLE_LETTERS), 20).set("font-weight", "bold");
    let half = (WIDTH - MARGIN) / 2.0;
    let panels = [bandwidth_panel(runs, MARGIN), time_panel(runs, MARGIN + half)];
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", FONTS)
        .add(Title::new(clean_text(&title)))
        .add(paper)
        .add(head);
    for panel in panels {
        document = document.add(panel.draw_panel(runs, &labels, half - MARGIN));
    }
    for (at, label) in labels.iter().enumerate() {
        let x = MARGIN + LABELS + half * (at / lines) as f64;
        let y = legend_top + (at % lines) as f64 * LEGEND_LINE;
        document = document.add(legend_entry(at, label, x, y));
    }
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{document}\n")
}

/// One of the two charts.
struct PlotPanel {
    class: &'static str,
    title: &'static str,
    x: f64,
    value: fn(&PlotPoint) -> f64,
    label: fn(f64) -> String,
    tip: fn(f64) -> String,
}

fn bandwidth_panel(runs: &[PlotRun], x: f64) -> PlotPanel {
    let title = match (has_runs(runs, true), has_runs(runs, false)) {
        (true, false) => "One-way bandwidth, GB/s",
        (false, _) => "Bus bandwidth, GB/s",
        (true, true) => "Bandwidth (bus; p2p: one way), GB/s",
    };
    let tip = |gbs| format!("{} GB/s", axis::format_number(gbs));
    PlotPanel { class: "bandwidth", title, x, value: |point| point.gbs, label: axis::format_number, tip }
}

fn time_panel(runs: &[PlotRun], x: f64) -> PlotPanel {
    let title = match (has_runs(runs, true), has_runs(runs, false)) {
        (true, false) => "Half round trip, median",
        (false, _) => "Time",
        (true, true) => "Time (p2p: half round trip)",
    };
    PlotPanel {
        class: "time",
        title,
        x,
        value: |point| point.us,
        label: axis::format_time,
        tip: axis::format_time,
    }
}

/// Whether any run is point-to-point, or, if `p2p` is false, any is not.
fn has_runs(runs: &[PlotRun], p2p: bool) -> bool {
    runs.iter().any(|run| run.what.is_p2p() == p2p)
}

impl PlotPanel {
    fn draw_panel(&self, runs: &[PlotRun], labels: &[String], width: f64) -> Group {
        let points = || runs.iter().flat_map(|run| &run.points);
        let sizes = axis::value_range(points().map(|point| point.bytes));
        let (values, value_ticks) =
            axis::decimal_ticks(axis::value_range(points().map(|point| (self.value)(point))), self.label);
        let left = self.x + LABELS;
        let right = self.x + width;
        let bottom = PANEL_TOP + PANEL_HEIGHT;
        // Margins keep the first and the last point off the edges; they are wider if all points have one size.
        let air = ((sizes.high / sizes.low).powf(0.03)).max(1.1);
        let shown_sizes = AxisRange { low: sizes.low / air, high: sizes.high * air };
        let across = LogAxis::new(shown_sizes, left, right);
        let up = LogAxis::new(values, bottom, PANEL_TOP);
        let mut group = Group::new().set("class", self.class);
        for tick in axis::size_ticks(sizes) {
            let x = across.position_of(tick.value);
            group = group.add(grid_line(x, PANEL_TOP, x, bottom, &tick));
            if let Some(label) = tick.label {
                group = group.add(text_node(x, bottom + 20.0, label, 12).set("text-anchor", "middle"));
            }
        }
        for tick in value_ticks {
            let y = up.position_of(tick.value);
            group = group.add(grid_line(left, y, right, y, &tick));
            if let Some(label) = tick.label {
                group = group.add(text_node(left - 8.0, y + 4.0, label, 12).set("text-anchor", "end"));
            }
        }
        let frame = Rectangle::new().set("x", left).set("y", PANEL_TOP).set("width", right - left);
        let frame = frame.set("height", PANEL_HEIGHT).set("fill", "none").set("stroke", "#888888");
        group = group.add(frame).add(text_node(left, PANEL_TOP - 14.0, self.title.to_owned(), 15));
        let below = text_node(f64::midpoint(left, right), bottom + 42.0, "Size".to_owned(), 13);
        group = group.add(below.set("text-anchor", "middle").set("fill", FAINT));
        for (at, (run, label)) in runs.iter().zip(labels).enumerate() {
            group = group.add(self.draw_run(run, label, at, &across, &up));
        }
        group
    }

    /// Draws one run, with a marker at each point that shows its figures as a tooltip.
    fn draw_run(&self, run: &PlotRun, label: &str, at: usize, across: &LogAxis, up: &LogAxis) -> Group {
        let place =
            |point: &PlotPoint| (across.position_of(point.bytes), up.position_of((self.value)(point)));
        let points: Vec<String> = run
            .points
            .iter()
            .map(|point| {
                let (x, y) = place(point);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let line = Polyline::new().set("points", points.join(" ")).set("fill", "none");
        let mut group = Group::new().set("class", "run").add(style_line(line, at));
        for point in &run.points {
            let tip =
                format!("{label}\n{}: {}", axis::format_size(point.bytes), (self.tip)((self.value)(point)));
            let (x, y) = place(point);
            group = group.add(Group::new().add(Title::new(clean_text(&tip))).add(run_marker(at, x, y)));
        }
        group
    }
}

fn legend_entry(at: usize, label: &str, x: f64, y: f64) -> Group {
    let sample = Line::new().set("x1", x).set("y1", y).set("x2", x + 36.0).set("y2", y);
    Group::new()
        .set("class", "legend")
        .add(Title::new(clean_text(label)))
        .add(style_line(sample, at))
        .add(run_marker(at, x + 18.0, y))
        .add(text_node(x + 46.0, y + 4.5, shorten_text(label, LEGEND_LETTERS), 13))
}

/// Applies colour, width and dashes of a run's line.
fn style_line<T: svg::Node>(mut node: T, at: usize) -> T {
    node.assign("stroke", run_colour(at));
    node.assign("stroke-width", 2);
    node.assign("stroke-linejoin", "round");
    node.assign("stroke-dasharray", DASHES[at / COLOURS.len() % DASHES.len()]);
    node
}

fn run_colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// The marker's shape, which distinguishes runs without colour.
fn run_marker(at: usize, x: f64, y: f64) -> Box<dyn svg::Node> {
    let corners = |steps: &[(f64, f64)]| {
        let steps: Vec<String> =
            steps.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        let path = Path::new().set("d", format!("M{}Z", steps.join("L")));
        Box::new(path.set("fill", run_colour(at)).set("stroke", "#ffffff").set("stroke-width", 0.7))
    };
    match at % COLOURS.len() {
        0 => {
            let circle =
                Circle::new().set("cx", format_coordinate(x)).set("cy", format_coordinate(y)).set("r", 4);
            Box::new(circle.set("fill", run_colour(at)).set("stroke", "#ffffff").set("stroke-width", 0.7))
        }
        1 => corners(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
        2 => corners(&[(0.0, -4.6), (4.4, 3.4), (-4.4, 3.4)]),
        3 => corners(&[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)]),
        4 => corners(&[(0.0, 4.6), (4.4, -3.4), (-4.4, -3.4)]),
        5 => corners(&[(-2.0, -4.5), (2.0, -4.5), (4.5, 0.0), (2.0, 4.5), (-2.0, 4.5), (-4.5, 0.0)]),
        _ => corners(&[(-5.0, -2.2), (5.0, -2.2), (5.0, 2.2), (-5.0, 2.2)]),
    }
}

fn format_coordinate(value: f64) -> String {
    format!("{value:.1}")
}

/// A line of the grid from `(x1, y1)` to `(x2, y2)`.
fn grid_line(x1: f64, y1: f64, x2: f64, y2: f64, tick: &AxisTick) -> Line {
    let colour = if tick.label.is_some() { "#d4d4d4" } else { "#efefef" };
    let line = Line::new().set("x1", format_coordinate(x1)).set("y1", format_coordinate(y1));
    line.set("x2", format_coordinate(x2)).set("y2", format_coordinate(y2)).set("stroke", colour)
}

fn text_node(x: f64, y: f64, content: String, size: u32) -> Text {
    let text = Text::new(clean_text(&content)).set("x", format_coordinate(x)).set("y", format_coordinate(y));
    text.set("font-size", size).set("fill", TEXT)
}

/// Letters that XML cannot hold become spaces; line ends stay.
fn clean_text(text: &str) -> String {
    let allowed = |letter: char| letter == '\n' || !(letter.is_control() || letter as u32 & 0xfffe == 0xfffe);
    text.chars().map(|letter| if allowed(letter) { letter } else { ' ' }).collect()
}

fn shorten_text(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        None => text.to_owned(),
        Some(_) => text.chars().take(letters - 1).chain(['\u{2026}']).collect(),
    }
}
