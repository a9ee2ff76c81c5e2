//! The node as text, for 80 columns: the tree, then the NICs of each GPU. Pure. Called by `cmd::topo`.

use trunkline_topo::Distance;

use super::tree::{DeviceGroup, TreeEntry, build_tree};
use super::{TopologyView, format_address, format_gpus, format_speed, model_name};

/// Most columns of a line.
const COLUMNS: usize = 80;

/// The cells of a device: name with its branch, address, model or speed, interfaces, users.
type DeviceCells = [String; 5];

/// A line of the tree.
enum TreeLine {
    Group(String),
    Device(DeviceCells),
}

/// All lines.
pub(crate) fn topology_lines(view: &TopologyView) -> Vec<String> {
    let mut all = vec![view.title_line(), view.subtitle_line()];
    let mut drawn = Vec::new();
    for node in build_tree(&view.topology) {
        drawn.push(TreeLine::Group(String::new()));
        drawn.push(TreeLine::Group(node.label.clone()));
        push_branches(view, &node, "", &mut drawn);
    }
    all.extend(align_lines(&drawn));
    let table = assignment_lines(view);
    if !table.is_empty() {
        all.extend([String::new(), "Which NICs a GPU uses".to_owned()]);
        all.extend(table);
        all.push(String::new());
        all.extend(legend_lines(view));
    }
    let notes = view.note_lines();
    if !notes.is_empty() {
        all.push(String::new());
        all.extend(notes.iter().flat_map(|note| wrap_words("note: ", note.split(' '))));
    }
    all.into_iter().map(|line| cut_line(&line)).collect()
}

/// Appends the lines below a group, each with the branches that lead to it.
fn push_branches(view: &TopologyView, group: &DeviceGroup, before: &str, lines: &mut Vec<TreeLine>) {
    for (at, entry) in group.entries.iter().enumerate() {
        let last = at + 1 == group.entries.len();
        let (branch, further) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let row = |cells: DeviceCells| {
            let [name, rest @ ..] = cells;
            let [address, what, interfaces, users] = rest;
            TreeLine::Device([format!("{before}{branch}{name}"), address, what, interfaces, users])
        };
        match entry {
            TreeEntry::Gpu(gpu) => lines.push(row(gpu_cells(view, *gpu))),
            TreeEntry::Nic(nic) => lines.push(row(nic_cells(view, *nic))),
            TreeEntry::Group(group) => {
                lines.push(TreeLine::Group(format!("{before}{branch}{}", group.label)));
                push_branches(view, group, &format!("{before}{further}"), lines);
            }
        }
    }
}

fn gpu_cells(view: &TopologyView, at: usize) -> DeviceCells {
    let gpu = &view.gpus()[at];
    [format!("GPU {at}"), gpu.address.to_string(), model_name(gpu.id), String::new(), String::new()]
}

fn nic_cells(view: &TopologyView, at: usize) -> DeviceCells {
    let nic = &view.nics()[at];
    let interfaces: Vec<&str> = nic.interfaces.iter().map(|name| name.as_str()).collect();
    let users = match (view.candidates[at], view.nic_users(at)) {
        (false, _) => "not assigned".to_owned(),
        (true, users) if users.is_empty() && view.gpus().is_empty() => String::new(),
        (true, users) if users.is_empty() => "unused".to_owned(),
        (true, users) => format!("for {}", format_gpus(&users)),
    };
    [
        nic.name.to_string(),
        format_address(nic.pci_address()),
        format_speed(nic.speed_mbps),
        interfaces.join(","),
        users,
    ]
}

/// Aligns the columns of lines; lines of groups stay unchanged.
fn align_lines(lines: &[TreeLine]) -> Vec<String> {
    let width = |at: usize| {
        let cells = lines.iter().map(|line| match line {
            TreeLine::Device(row) => row[at].chars().count(),
            TreeLine::Group(_) => 0,
        });
        cells.max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |line: &TreeLine| match line {
        TreeLine::Group(label) => label.clone(),
        TreeLine::Device(row) => {
            let cells = row.iter().zip(widths).filter(|(_, width)| *width > 0);
            let padded: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        }
    };
    lines.iter().map(line).collect()
}

/// A row for each GPU: how far its NICs are, and their names.
fn assignment_lines(view: &TopologyView) -> Vec<String> {
    let number = view.gpus().len().saturating_sub(1).to_string().len();
    let mut lines = Vec::new();
    for (at, gpu) in view.gpus().iter().enumerate() {
        let picks = view.assignment.gpu_nics(at);
        let Some(first) = picks.first() else { continue };
        let head = format!("  GPU {at:<number$}  {}  {:<4}  ", gpu.address, first.distance);
        // NICs of one class may be at different distances; those farther than the first show their distance.
        let name = |pick: &trunkline_topo::AssignedNic| {
            let name = view.nics()[pick.nic].name.to_string();
            if pick.distance == first.distance { name } else { format!("{name}({})", pick.distance) }
        };
        let names: Vec<String> = picks.iter().map(name).collect();
        lines.extend(wrap_words(&head, names.iter().map(String::as_str)));
    }
    lines
}

/// The explanation of the distances in the table.
fn legend_lines(view: &TopologyView) -> Vec<String> {
    let used = |distance: &&Distance| {
        let rows = 0..view.gpus().len();
        rows.flat_map(|gpu| view.assignment.gpu_nics(gpu)).any(|pick| pick.distance == **distance)
    };
    let line = |distance: &Distance| format!("  {distance:<4}  {}", distance.meaning());
    Distance::ALL.iter().filter(used).map(line).collect()
}

/// Puts words after a head, and breaks lines that are too long.
fn wrap_words<'a>(head: &str, words: impl Iterator<Item = &'a str>) -> Vec<String> {
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

/// Cuts a line to the width.
fn cut_line(line: &str) -> String {
    match line.char_indices().nth(COLUMNS) {
        None => line.to_owned(),
        Some(_) => line.chars().take(COLUMNS - 1).chain(['\u{2026}']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, cut_line, wrap_words};

    #[test]
    fn long_lines_break_between_words() {
        let words = ["abcdefghi"; 9];
        let lines = wrap_words("12345678: ", words.iter().copied());
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], format!("12345678: {}", ["abcdefghi"; 7].join(" ")));
        assert_eq!(lines[1], format!("{}abcdefghi abcdefghi", " ".repeat(10)));
        let long = "x".repeat(100);
        assert_eq!(
            wrap_words("a ", [long.as_str(), "b"].into_iter()),
            [format!("a {long}"), "  b".to_owned()]
        );
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        assert_eq!(cut_line(&"\u{2502}".repeat(COLUMNS)), "\u{2502}".repeat(COLUMNS));
        assert_eq!(cut_line(&"\u{2502}".repeat(COLUMNS + 1)).chars().count(), COLUMNS);
    }
}
