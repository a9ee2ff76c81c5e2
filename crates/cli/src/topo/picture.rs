//! The node as one SVG file without anything outside of it: a frame a NUMA node, frames for host bridges and switches in it,
//! GPUs above, NICs below, a line for each NIC that a GPU uses. Pure. Called by `cmd::topo`.

use svg::Document;
use svg::node::element::{Group as Element, Line, Path, Rectangle, Text, Title};
use trunkline_topo::Distance;

use super::tree::{Entry, Group, tree};
use super::{View, address, gpus, model, speed};

const MARGIN: f64 = 24.0;
/// Frames of nodes begin below title and subtitle.
const TOP: f64 = 84.0;
/// A device's box, and the way to the next.
const BOX: (f64, f64) = (108.0, 46.0);
const GAP: f64 = 10.0;
/// Above the devices of a frame: its label. Beside and below: air.
const HEAD: f64 = 24.0;
const PAD: f64 = 10.0;
/// Between GPUs and NICs.
const LINKS: f64 = 84.0;
/// Between the frames of nodes.
const BETWEEN: f64 = 24.0;
/// A row of nodes is no wider, unless one alone is.
const ROW_MAX: f64 = 1600.0;
/// Room for the title.
const WIDTH_MIN: f64 = 640.0;
/// Letters of a name in a box.
const LETTERS: usize = 14;
/// Size of a frame's label, and the most that a letter of it takes.
const LABEL: (u32, f64) = (10, 5.8);

const TEXT: &str = "#222222";
const FAINT: &str = "#666666";
const FONTS: &str = "Helvetica, Arial, 'DejaVu Sans', sans-serif";
/// Fill and edge of GPUs, of NICs, of NICs that nobody uses.
const GPU: (&str, &str) = ("#e3f1fa", "#0072B2");
const NIC: (&str, &str) = ("#fdf0dc", "#B87300");
const IDLE: (&str, &str) = ("#f4f4f4", "#aaaaaa");

/// Where a device's box begins, by its number.
#[derive(Default)]
struct Places {
    gpus: Vec<(f64, f64)>,
    nics: Vec<(f64, f64)>,
}

/// How far down a frame reaches, the same for all nodes of the picture, so that devices stand in rows.
#[derive(Clone, Copy)]
struct Rows {
    /// Frames inside each other, the node's not counted.
    depth: usize,
}

impl Rows {
    /// From the upper edge of a node's frame to its GPUs.
    fn gpus(self) -> f64 {
        HEAD * (self.depth + 1) as f64 + PAD
    }

    fn nics(self) -> f64 {
        self.gpus() + BOX.1 + LINKS
    }

    fn height(self) -> f64 {
        self.nics() + BOX.1 + PAD * (self.depth + 1) as f64
    }
}

/// The whole file.
pub(crate) fn picture(view: &View) -> String {
    let nodes = tree(&view.topology);
    let depth = nodes.iter().map(Group::depth).max().unwrap_or(1) - 1;
    let rows = Rows { depth };
    let mut places =
        Places { gpus: vec![(0.0, 0.0); view.gpus().len()], nics: vec![(0.0, 0.0); view.nics().len()] };
    let mut frames = Element::new().set("class", "frames");
    let mut x = MARGIN;
    let mut y = TOP;
    let mut right = WIDTH_MIN - MARGIN;
    for node in &nodes {
        let wide = width(node);
        if x > MARGIN && x + wide > ROW_MAX {
            (x, y) = (MARGIN, y + rows.height() + BETWEEN);
        }
        frames = frame(node, (x, y), 0, rows, frames, &mut places);
        right = right.max(x + wide);
        x += wide + BETWEEN;
    }
    let bottom = if nodes.is_empty() { TOP } else { y + rows.height() };
    let (legend, bottom) = legend(view, bottom + 30.0, right);
    let width = right + MARGIN;
    let height = bottom + MARGIN;
    let paper = Rectangle::new().set("width", width).set("height", height).set("fill", "#ffffff");
    let document = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", FONTS)
        .add(Title::new(view.title()))
        .add(paper)
        .add(text(MARGIN, 36.0, capital(&view.title()), 20).set("font-weight", "bold"))
        .add(text(MARGIN, 60.0, capital(&view.subtitle()), 13).set("fill", FAINT))
        .add(frames)
        .add(links(view, &places))
        .add(devices(view, &places))
        .add(legend);
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{document}\n")
}

/// Own devices of a group: how many of each.
fn own(group: &Group) -> (usize, usize) {
    let count = |wanted: fn(&Entry) -> bool| group.entries.iter().filter(|entry| wanted(entry)).count();
    (count(|entry| matches!(entry, Entry::Gpu(_))), count(|entry| matches!(entry, Entry::Nic(_))))
}

fn inner(group: &Group) -> impl Iterator<Item = &Group> {
    group.entries.iter().filter_map(|entry| match entry {
        Entry::Group(group) => Some(group),
        Entry::Gpu(_) | Entry::Nic(_) => None,
    })
}

/// Boxes beside each other with gaps between.
fn boxes(count: usize) -> f64 {
    count as f64 * (BOX.0 + GAP) - if count > 0 { GAP } else { 0.0 }
}

/// How wide a group's frame is: its own devices, then the groups in it.
fn width(group: &Group) -> f64 {
    let (gpus, nics) = own(group);
    let parts = std::iter::once(boxes(gpus.max(nics))).chain(inner(group).map(width));
    let parts: Vec<f64> = parts.filter(|part| *part > 0.0).collect();
    let gaps = parts.len().saturating_sub(1) as f64 * GAP;
    parts.iter().sum::<f64>() + gaps + 2.0 * PAD
}

/// Draws a group's frame with all in it, `deep` frames inside its node's, and notes where its devices are.
fn frame(
    group: &Group,
    (x, y): (f64, f64),
    deep: usize,
    rows: Rows,
    mut all: Element,
    places: &mut Places,
) -> Element {
    let top = y + HEAD * deep as f64;
    let bottom = y + rows.height() - PAD * deep as f64;
    let (fill, edge) = if deep == 0 { ("#fafafa", "#888888") } else { ("#ffffff", "#bbbbbb") };
    let wide = width(group);
    let outline = rectangle(x, top, wide, bottom - top, 8).set("fill", fill).set("stroke", edge);
    let label = if deep == 0 {
        text(x + PAD, top + 17.0, group.label.clone(), 12).set("font-weight", "bold")
    } else {
        let letters = ((wide - PAD) / LABEL.1) as usize;
        text(x + PAD - 2.0, top + 16.0, short(&group.label, letters), LABEL.0).set("fill", FAINT)
    };
    all = all.add(outline).add(label);
    let (gpus, nics) = own(group);
    let columns = gpus.max(nics);
    // The fewer stand in the middle of the more.
    let begin = |count: usize| x + PAD + (boxes(columns) - boxes(count)) / 2.0;
    let mut next_gpu = begin(gpus);
    let mut next_nic = begin(nics);
    for entry in &group.entries {
        match entry {
            Entry::Gpu(at) => {
                places.gpus[*at] = (next_gpu, y + rows.gpus());
                next_gpu += BOX.0 + GAP;
            }
            Entry::Nic(at) => {
                places.nics[*at] = (next_nic, y + rows.nics());
                next_nic += BOX.0 + GAP;
            }
            Entry::Group(_) => {}
        }
    }
    let mut next = x + PAD + if columns > 0 { boxes(columns) + GAP } else { 0.0 };
    for group in inner(group) {
        all = frame(group, (next, y), deep + 1, rows, all, places);
        next += width(group) + GAP;
    }
    all
}

/// A curve from each GPU to each of its NICs.
fn links(view: &View, places: &Places) -> Element {
    let mut all = Element::new().set("class", "links").set("fill", "none");
    for (gpu, from) in places.gpus.iter().enumerate() {
        for pick in view.assignment.of(gpu) {
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
            let (colour, dash) = look(pick.distance);
            let curve = Path::new().set("d", way).set("stroke", colour).set("stroke-width", 2.5);
            all = all.add(Element::new().add(Title::new(tip)).add(curve.set("stroke-dasharray", dash)));
        }
    }
    all
}

fn devices(view: &View, places: &Places) -> Element {
    let mut all = Element::new().set("class", "devices");
    for (at, (gpu, place)) in view.gpus().iter().zip(&places.gpus).enumerate() {
        let words = [format!("GPU {at}"), gpu.address.to_string(), model(gpu.id)];
        all = all.add(device(*place, GPU, &words, &[]));
    }
    for (at, (nic, place)) in view.nics().iter().zip(&places.nics).enumerate() {
        let users = view.users(at);
        let look = if users.is_empty() { IDLE } else { NIC };
        let words = [nic.name.to_string(), address(nic.address()), speed(nic.speed_mbps)];
        let interfaces = nic.interfaces.iter().map(ToString::to_string);
        let told: Vec<String> = interfaces.chain([gpus(&users)]).filter(|told| !told.is_empty()).collect();
        all = all.add(device(*place, look, &words, &told));
    }
    all
}

/// A box with a name and two smaller lines; all of it, and what is told besides, is shown to who points at it.
fn device((x, y): (f64, f64), (fill, edge): (&str, &str), words: &[String; 3], told: &[String]) -> Element {
    let [name, address, what] = words;
    let said: Vec<&str> =
        words.iter().chain(told).map(String::as_str).filter(|word| !word.is_empty()).collect();
    let middle = |line: Text| line.set("text-anchor", "middle");
    let line =
        |down: f64, words: &str, size| middle(text(x + BOX.0 / 2.0, y + down, short(words, LETTERS), size));
    let outline =
        rectangle(x, y, BOX.0, BOX.1, 5).set("fill", fill).set("stroke", edge).set("stroke-width", 1.5);
    let mut all = Element::new().add(Title::new(said.join("\n"))).add(outline);
    all = all.add(line(16.0, name, 12).set("font-weight", "bold"));
    for (down, words) in [(29.0, address), (41.0, what)] {
        if !words.is_empty() {
            all = all.add(line(down, words, 10).set("fill", FAINT));
        }
    }
    all
}

/// What lines and boxes mean, and where it ends below.
fn legend(view: &View, top: f64, right: f64) -> (Element, f64) {
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
    let picks = || (0..view.gpus().len()).flat_map(|gpu| view.assignment.of(gpu));
    for distance in
        Distance::ALL.into_iter().filter(|distance| picks().any(|pick| pick.distance == *distance))
    {
        let words = format!("{distance}: {}", distance.meaning());
        let (x, y) = place(60.0 + 6.4 * words.len() as f64);
        let (colour, dash) = look(distance);
        let sample = Line::new().set("x1", x).set("y1", y).set("x2", x + 36.0).set("y2", y);
        let sample = sample.set("stroke", colour).set("stroke-width", 2.5).set("stroke-dasharray", dash);
        all = all.add(sample).add(text(x + 44.0, y + 4.0, words, 12));
    }
    if (0..view.nics().len()).any(|nic| view.users(nic).is_empty()) {
        let (x, y) = place(220.0);
        let sample = rectangle(x, y - 8.0, 36.0, 16.0, 4).set("fill", IDLE.0).set("stroke", IDLE.1);
        all = all.add(sample).add(text(x + 44.0, y + 4.0, "a NIC that no GPU uses".to_owned(), 12));
    }
    for note in view.notes() {
        let (_, y) = place(right);
        all = all.add(text(MARGIN, y + 4.0, capital(&note), 12).set("fill", FAINT));
    }
    (all, y)
}

/// Colour and dashes of a line: Okabe and Ito's colours, and readable without any.
fn look(distance: Distance) -> (&'static str, &'static str) {
    match distance {
        Distance::Pix => ("#009E73", "none"),
        Distance::Pxb => ("#56B4E9", "none"),
        Distance::Phb => ("#0072B2", "9 4"),
        Distance::Node => ("#E69F00", "5 4"),
        Distance::Sys => ("#D55E00", "2 3"),
    }
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, round: u32) -> Rectangle {
    let corner = Rectangle::new().set("x", number(x)).set("y", number(y)).set("rx", round);
    corner.set("width", number(width)).set("height", number(height))
}

fn text(x: f64, y: f64, content: String, size: u32) -> Text {
    let text = Text::new(content).set("x", number(x)).set("y", number(y));
    text.set("font-size", size).set("fill", TEXT)
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn short(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        None => text.to_owned(),
        Some(_) => text.chars().take(letters.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}
