//! The node as text, for 80 columns: the tree, then who uses what. Pure. Called by `cmd::topo`.

use trunkline_topo::Distance;

use super::tree::{Entry, Group, tree};
use super::{View, address, gpus, model, speed};

/// As wide as a line gets.
const COLUMNS: usize = 80;

/// What is said of a device, a cell each: name with its branch, address, model or speed, interfaces, users.
type Row = [String; 5];

/// A line of the tree.
enum Line {
    Group(String),
    Device(Row),
}

/// All lines.
pub(crate) fn lines(view: &View) -> Vec<String> {
    let mut all = vec![view.title(), view.subtitle()];
    let mut drawn = Vec::new();
    for node in tree(&view.topology) {
        drawn.push(Line::Group(String::new()));
        drawn.push(Line::Group(node.label.clone()));
        branches(view, &node, "", &mut drawn);
    }
    all.extend(aligned(&drawn));
    let table = table(view);
    if !table.is_empty() {
        all.extend([String::new(), "Which NICs a GPU uses".to_owned()]);
        all.extend(table);
        all.push(String::new());
        all.extend(legend(view));
    }
    let notes = view.notes();
    if !notes.is_empty() {
        all.push(String::new());
        all.extend(notes.iter().flat_map(|note| wrapped("note: ", note.split(' '))));
    }
    all.into_iter().map(|line| cut(&line)).collect()
}

/// The lines below a group, each with the branches that lead to it.
fn branches(view: &View, group: &Group, before: &str, lines: &mut Vec<Line>) {
    for (at, entry) in group.entries.iter().enumerate() {
        let last = at + 1 == group.entries.len();
        let (branch, further) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let row = |cells: Row| {
            let [name, rest @ ..] = cells;
            let [address, what, interfaces, users] = rest;
            Line::Device([format!("{before}{branch}{name}"), address, what, interfaces, users])
        };
        match entry {
            Entry::Gpu(gpu) => lines.push(row(gpu_cells(view, *gpu))),
            Entry::Nic(nic) => lines.push(row(nic_cells(view, *nic))),
            Entry::Group(group) => {
                lines.push(Line::Group(format!("{before}{branch}{}", group.label)));
                branches(view, group, &format!("{before}{further}"), lines);
            }
        }
    }
}

fn gpu_cells(view: &View, at: usize) -> Row {
    let gpu = &view.gpus()[at];
    [format!("GPU {at}"), gpu.address.to_string(), model(gpu.id), String::new(), String::new()]
}

fn nic_cells(view: &View, at: usize) -> Row {
    let nic = &view.nics()[at];
    let interfaces: Vec<&str> = nic.interfaces.iter().map(|name| name.as_str()).collect();
    let users = match (view.candidates[at], view.users(at)) {
        (false, _) => "not shared out".to_owned(),
        (true, users) if users.is_empty() && view.gpus().is_empty() => String::new(),
        (true, users) if users.is_empty() => "unused".to_owned(),
        (true, users) => format!("for {}", gpus(&users)),
    };
    [nic.name.to_string(), address(nic.address()), speed(nic.speed_mbps), interfaces.join(","), users]
}

/// Lines whose columns begin below each other; those of groups stay as they are.
fn aligned(lines: &[Line]) -> Vec<String> {
    let width = |at: usize| {
        let cells = lines.iter().map(|line| match line {
            Line::Device(row) => row[at].chars().count(),
            Line::Group(_) => 0,
        });
        cells.max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |line: &Line| match line {
        Line::Group(label) => label.clone(),
        Line::Device(row) => {
            let cells = row.iter().zip(widths).filter(|(_, width)| *width > 0);
            let padded: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        }
    };
    lines.iter().map(line).collect()
}

/// A row for each GPU: how far its NICs are, and their names.
fn table(view: &View) -> Vec<String> {
    let number = view.gpus().len().saturating_sub(1).to_string().len();
    let mut lines = Vec::new();
    for (at, gpu) in view.gpus().iter().enumerate() {
        let picks = view.assignment.of(at);
        let Some(first) = picks.first() else { continue };
        let head = format!("  GPU {at:<number$}  {}  {:<4}  ", gpu.address, first.distance);
        // NICs of one class may be at different distances; what is farther than the first says so.
        let name = |pick: &trunkline_topo::Pick| {
            let name = view.nics()[pick.nic].name.to_string();
            if pick.distance == first.distance { name } else { format!("{name}({})", pick.distance) }
        };
        let names: Vec<String> = picks.iter().map(name).collect();
        lines.extend(wrapped(&head, names.iter().map(String::as_str)));
    }
    lines
}

/// What the distances of the table mean.
fn legend(view: &View) -> Vec<String> {
    let used = |distance: &&Distance| {
        let rows = 0..view.gpus().len();
        rows.flat_map(|gpu| view.assignment.of(gpu)).any(|pick| pick.distance == **distance)
    };
    let line = |distance: &Distance| format!("  {distance:<4}  {}", distance.meaning());
    Distance::ALL.iter().filter(used).map(line).collect()
}

/// Words behind a head, on as many lines as they need.
fn wrapped<'a>(head: &str, words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let indent = head.chars().count();
    let mut lines = vec![head.to_owned()];
    let mut room = COLUMNS.saturating_sub(indent);
    for word in words {
        let width = word.chars().count();
        let fresh = room == COLUMNS.saturating_sub(indent);
        if !fresh && width + 1 > room {
            lines.push(" ".repeat(indent));
            room = COLUMNS.saturating_sub(indent);
        }
        let gap = usize::from(room < COLUMNS.saturating_sub(indent));
        if let Some(line) = lines.last_mut() {
            line.push_str(&" ".repeat(gap));
            line.push_str(word);
        }
        room = room.saturating_sub(width + gap);
    }
    lines
}

/// A line that fits.
fn cut(line: &str) -> String {
    match line.char_indices().nth(COLUMNS) {
        None => line.to_owned(),
        Some(_) => line.chars().take(COLUMNS - 1).chain(['\u{2026}']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, cut, wrapped};

    #[test]
    fn words_that_do_not_fit_go_to_the_next_line() {
        let words = ["abcdefghi"; 9];
        let lines = wrapped("12345678: ", words.iter().copied());
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], format!("12345678: {}", ["abcdefghi"; 7].join(" ")));
        assert_eq!(lines[1], format!("{}abcdefghi abcdefghi", " ".repeat(10)));
        let long = "x".repeat(100);
        assert_eq!(wrapped("a ", [long.as_str(), "b"].into_iter()), [format!("a {long}"), "  b".to_owned()]);
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        assert_eq!(cut(&"\u{2502}".repeat(COLUMNS)), "\u{2502}".repeat(COLUMNS));
        assert_eq!(cut(&"\u{2502}".repeat(COLUMNS + 1)).chars().count(), COLUMNS);
    }
}
