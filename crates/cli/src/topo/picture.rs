//! The node as one self-contained SVG file: a frame per NUMA node, with frames for host bridges and switches in it.
//! GPUs are drawn above, NICs below, with a line for each NIC that a GPU uses. Pure. Called by `cmd::topo`.

use svg::Document;
use svg::node::element::{Group as Element, Line, Path, Rectangle, Text, Title};
use trunkline_topo::Distance;

use super::tree::{DeviceGroup, TreeEntry, build_tree};
use super::{TopologyView, format_address, format_gpus, format_speed, model_name};

const MARGIN: f64 = 24.0;
/// The top of the nodes' frames, below title and subtitle.
const TOP: f64 = 84.0;
/// Width and height of a device's box, and the gap to the next one.
const BOX: (f64, f64) = (108.0, 46.0);
const GAP: f64 = 10.0;
/// Height of a frame's label above its devices, and the padding on the other sides.
const HEAD: f64 = 24.0;
const PAD: f64 = 10.0;
/// Between GPUs and NICs.
const LINKS: f64 = 84.0;
/// Between the frames of nodes.
const BETWEEN: f64 = 24.0;
/// Widest row of nodes, unless a single node is wider.
const ROW_MAX: f64 = 1600.0;
/// Least width of the picture, for the title.
const WIDTH_MIN: f64 = 640.0;
/// Most letters of a name in a box.
const LETTERS: usize = 14;
/// Font size of a frame's label, and the greatest width of one of its letters.
const LABEL: (u32, f64) = (10, 5.8);

const TEXT: &str = "#222222";
const FAINT: &str = "#666666";
const FONTS: &str = "Helvetica, Arial, 'DejaVu Sans', sans-serif";
/// The colours of a GPU's box, of a NIC's, and of the box of a NIC that no GPU uses.
const GPU: BoxColours = BoxColours { fill: "#e3f1fa", edge: "#0072B2" };
const NIC: BoxColours = BoxColours { fill: "#fdf0dc", edge: "#B87300" };
const IDLE: BoxColours = BoxColours { fill: "#f4f4f4", edge: "#aaaaaa" };

/// The colours of a device's box.
#[derive(Clone, Copy)]
struct BoxColours {
    /// The colour of its area.
    fill: &'static str,
    /// The colour of its outline.
    edge: &'static str,
}

/// The position of each device's box, by number.
#[derive(Default)]
struct DevicePositions {
    gpus: Vec<(f64, f64)>,
    nics: Vec<(f64, f64)>,
}

/// The height of frames, the same for all nodes of the picture, so that devices are drawn in rows.
#[derive(Clone, Copy)]
struct PictureRows {
    /// Levels of nested frames, the node's not counted.
    depth: usize,
}

impl PictureRows {
    /// The distance from the upper edge of a node's frame to its GPUs.
    fn gpu_offset(self) -> f64 {
        HEAD * (self.depth + 1) as f64 + PAD
    }

    fn nic_offset(self) -> f64 {
        self.gpu_offset() + BOX.1 + LINKS
    }

    fn frame_height(self) -> f64 {
        self.nic_offset() + BOX.1 + PAD * (self.depth + 1) as f64
    }
}

/// The whole file.
pub(crate) fn render_picture(view: &TopologyView) -> String {
    let nodes = build_tree(&view.topology);
    let depth = nodes.iter().map(DeviceGroup::depth).max().unwrap_or(1) - 1;
    let rows = PictureRows { depth };
    let mut places = DevicePositions {
        gpus: vec![(0.0, 0.0); view.gpus().len()],
        nics: vec![(0.0, 0.0); view.nics().len()],
    };
    let mut frames = Element::new().set("class", "frames");
    let mut x = MARGIN;
    let mut y = TOP;
    let mut right = WIDTH_MIN - MARGIN;
    for node in &nodes {
        let wide = frame_width(node);
        if x > MARGIN && x + wide > ROW_MAX {
            (x, y) = (MARGIN, y + rows.frame_height() + BETWEEN);
        }
        frames = draw_frame(node, x, y, 0, rows, frames, &mut places);
        right = right.max(x + wide);
        x += wide + BETWEEN;
    }
    let bottom = if nodes.is_empty() { TOP } else { y + rows.frame_height() };
    let (legend, bottom) = draw_legend(view, bottom + 30.0, right);
    let width = right + MARGIN;
    let height = bottom + MARGIN;
    let paper = Rectangle::new().set("width", width).set("height", height).set("fill", "#ffffff");
    let document = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", FONTS)
        .add(Title::new(view.title_line()))
        .add(paper)
        .add(text_node(MARGIN, 36.0, capitalize_text(&view.title_line()), 20).set("font-weight", "bold"))
        .add(text_node(MARGIN, 60.0, capitalize_text(&view.subtitle_line()), 13).set("fill", FAINT))
        .add(frames)
        .add(draw_links(view, &places))
        .add(draw_devices(view, &places))
        .add(legend);
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{document}\n")
}

/// The group's own devices: the numbers of GPUs and NICs.
fn own_devices(group: &DeviceGroup) -> (usize, usize) {
    let count = |wanted: fn(&TreeEntry) -> bool| group.entries.iter().filter(|entry| wanted(entry)).count();
    (count(|entry| matches!(entry, TreeEntry::Gpu(_))), count(|entry| matches!(entry, TreeEntry::Nic(_))))
}

fn inner_groups(group: &DeviceGroup) -> impl Iterator<Item = &DeviceGroup> {
    group.entries.iter().filter_map(|entry| match entry {
        TreeEntry::Group(group) => Some(group),
        TreeEntry::Gpu(_) | TreeEntry::Nic(_) => None,
    })
}

/// The width of `count` boxes in a row, with gaps between them.
fn boxes_width(count: usize) -> f64 {
    count as f64 * (BOX.0 + GAP) - if count > 0 { GAP } else { 0.0 }
}

/// The width of a group's frame: its own devices, then the groups in it.
fn frame_width(group: &DeviceGroup) -> f64 {
    let (gpus, nics) = own_devices(group);
    let parts = std::iter::once(boxes_width(gpus.max(nics))).chain(inner_groups(group).map(frame_width));
    let parts: Vec<f64> = parts.filter(|part| *part > 0.0).collect();
    let gaps = parts.len().saturating_sub(1) as f64 * GAP;
    parts.iter().sum::<f64>() + gaps + 2.0 * PAD
}

/// Draws a group's frame with its content, `deep` frames inside its node's, and records where its devices are. The
/// node's frame begins at the height `y`, the group's at `x`.
fn draw_frame(
    group: &DeviceGroup,
    x: f64,
    y: f64,
    deep: usize,
    rows: PictureRows,
    mut all: Element,
    places: &mut DevicePositions,
) -> Element {
    let top = y + HEAD * deep as f64;
    let bottom = y + rows.frame_height() - PAD * deep as f64;
    let (fill, edge) = if deep == 0 { ("#fafafa", "#888888") } else { ("#ffffff", "#bbbbbb") };
    let wide = frame_width(group);
    let outline = rectangle_node(x, top, wide, bottom - top, 8).set("fill", fill).set("stroke", edge);
    let label = if deep == 0 {
        text_node(x + PAD, top + 17.0, group.label.clone(), 12).set("font-weight", "bold")
    } else {
        let letters = ((wide - PAD) / LABEL.1) as usize;
        text_node(x + PAD - 2.0, top + 16.0, shorten_text(&group.label, letters), LABEL.0).set("fill", FAINT)
    };
    all = all.add(outline).add(label);
    let (gpus, nics) = own_devices(group);
    let columns = gpus.max(nics);
    // The shorter row is centred above or below the longer one.
    let begin = |count: usize| x + PAD + (boxes_width(columns) - boxes_width(count)) / 2.0;
    let mut next_gpu = begin(gpus);
    let mut next_nic = begin(nics);
    for entry in &group.entries {
        match entry {
            TreeEntry::Gpu(at) => {
                places.gpus[*at] = (next_gpu, y + rows.gpu_offset());
                next_gpu += BOX.0 + GAP;
            }
            TreeEntry::Nic(at) => {
                places.nics[*at] = (next_nic, y + rows.nic_offset());
                next_nic += BOX.0 + GAP;
            }
            TreeEntry::Group(_) => {}
        }
    }
    let mut next = x + PAD + if columns > 0 { boxes_width(columns) + GAP } else { 0.0 };
    for group in inner_groups(group) {
        all = draw_frame(group, next, y, deep + 1, rows, all, places);
        next += frame_width(group) + GAP;
    }
    all
}

/// A curve from each GPU to each of its NICs.
fn draw_links(view: &TopologyView, places: &DevicePositions) -> Element {
    let mut all = Element::new().set("class", "links").set("fill", "none");
    for (gpu, from) in places.gpus.iter().enumerate() {
        for pick in view.assignment.gpu_nics(gpu) {
            let to = places.nics[pick.nic];
            let x1 = from.0 + BOX.0 / 2.0;
            let y1 = from.1 + BOX.1;
            let x2 = to.0 + BOX.0 / 2.0;
            let y2 = to.1;
            let way = format!(
                "M{x1:.1},{y1:.1}C{x1:.1},{:.1} {x2:.1},{:.1} {x2:.1},{y2:.1}",
                y1 + LINKS / 2.0,
                y2 - LINKS / 2.0
            );
            let tip = format!(
                "GPU {gpu} to {}: {} ({})",
                view.nics()[pick.nic].name,
                pick.distance,
                pick.distance.meaning()
            );
            let (colour, dash) = line_style(pick.distance);
            let curve = Path::new().set("d", way).set("stroke", colour).set("stroke-width", 2.5);
            all = all.add(Element::new().add(Title::new(tip)).add(curve.set("stroke-dasharray", dash)));
        }
    }
    all
}

fn draw_devices(view: &TopologyView, places: &DevicePositions) -> Element {
    let mut all = Element::new().set("class", "devices");
    for (at, (gpu, &(x, y))) in view.gpus().iter().zip(&places.gpus).enumerate() {
        let words = [format!("GPU {at}"), gpu.address.to_string(), model_name(gpu.id)];
        all = all.add(draw_device(x, y, GPU, &words, &[]));
    }
    for (at, (nic, &(x, y))) in view.nics().iter().zip(&places.nics).enumerate() {
        let users = view.nic_users(at);
        let colours = if users.is_empty() { IDLE } else { NIC };
        let words = [nic.name.to_string(), format_address(nic.pci_address()), format_speed(nic.speed_mbps)];
        let interfaces = nic.interfaces.iter().map(ToString::to_string);
        let told: Vec<String> =
            interfaces.chain([format_gpus(&users)]).filter(|told| !told.is_empty()).collect();
        all = all.add(draw_device(x, y, colours, &words, &told));
    }
    all
}

/// Draws a box with a name and two smaller lines. The full text and the lines of `told` are its tooltip.
fn draw_device(x: f64, y: f64, colours: BoxColours, words: &[String; 3], told: &[String]) -> Element {
    let [name, address, what] = words;
    let said: Vec<&str> =
        words.iter().chain(told).map(String::as_str).filter(|word| !word.is_empty()).collect();
    let middle = |line: Text| line.set("text-anchor", "middle");
    let line = |down: f64, words: &str, size| {
        middle(text_node(x + BOX.0 / 2.0, y + down, shorten_text(words, LETTERS), size))
    };
    let outline = rectangle_node(x, y, BOX.0, BOX.1, 5)
        .set("fill", colours.fill)
        .set("stroke", colours.edge)
        .set("stroke-width", 1.5);
    let mut all = Element::new().add(Title::new(said.join("\n"))).add(outline);
    all = all.add(line(16.0, name, 12).set("font-weight", "bold"));
    for (down, words) in [(29.0, address), (41.0, what)] {
        if !words.is_empty() {
            all = all.add(line(down, words, 10).set("fill", FAINT));
        }
    }
    all
}

/// Draws the legend of lines and boxes; returns it with its lower edge.
fn draw_legend(view: &TopologyView, top: f64, right: f64) -> (Element, f64) {
    let mut all = Element::new().set("class", "legend");
    let mut x = MARGIN;
    let mut y = top;
    let mut place = |wide: f64| {
        if x > MARGIN && x + wide > right {
            (x, y) = (MARGIN, y + 24.0);
        }
        x += wide;
        (x - wide, y)
    };
    let picks = || (0..view.gpus().len()).flat_map(|gpu| view.assignment.gpu_nics(gpu));
    for distance in
        Distance::ALL.into_iter().filter(|distance| picks().any(|pick| pick.distance == *distance))
    {
        let words = format!("{distance}: {}", distance.meaning());
        let (x, y) = place(60.0 + 6.4 * words.len() as f64);
        let (colour, dash) = line_style(distance);
        let sample = Line::new().set("x1", x).set("y1", y).set("x2", x + 36.0).set("y2", y);
        let sample = sample.set("stroke", colour).set("stroke-width", 2.5).set("stroke-dasharray", dash);
        all = all.add(sample).add(text_node(x + 44.0, y + 4.0, words, 12));
    }
    if (0..view.nics().len()).any(|nic| view.nic_users(nic).is_empty()) {
        let (x, y) = place(220.0);
        let sample =
            rectangle_node(x, y - 8.0, 36.0, 16.0, 4).set("fill", IDLE.fill).set("stroke", IDLE.edge);
        all = all.add(sample).add(text_node(x + 44.0, y + 4.0, "a NIC that no GPU uses".to_owned(), 12));
    }
    for note in view.note_lines() {
        let (_, y) = place(right);
        all = all.add(text_node(MARGIN, y + 4.0, capitalize_text(&note), 12).set("fill", FAINT));
    }
    (all, y)
}

/// Colour and dashes of a line: Okabe and Ito's colours, and distinguishable without colour.
fn line_style(distance: Distance) -> (&'static str, &'static str) {
    match distance {
        Distance::Pix => ("#009E73", "none"),
        Distance::Pxb => ("#56B4E9", "none"),
        Distance::Phb => ("#0072B2", "9 4"),
        Distance::Node => ("#E69F00", "5 4"),
        Distance::Sys => ("#D55E00", "2 3"),
    }
}

fn rectangle_node(x: f64, y: f64, width: f64, height: f64, round: u32) -> Rectangle {
    let corner =
        Rectangle::new().set("x", format_coordinate(x)).set("y", format_coordinate(y)).set("rx", round);
    corner.set("width", format_coordinate(width)).set("height", format_coordinate(height))
}

fn text_node(x: f64, y: f64, content: String, size: u32) -> Text {
    let text = Text::new(content).set("x", format_coordinate(x)).set("y", format_coordinate(y));
    text.set("font-size", size).set("fill", TEXT)
}

fn format_coordinate(value: f64) -> String {
    format!("{value:.1}")
}

fn capitalize_text(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn shorten_text(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        None => text.to_owned(),
        Some(_) => text.chars().take(letters.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}
