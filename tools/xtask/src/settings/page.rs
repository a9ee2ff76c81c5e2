//! The text of docs/settings.md: a head that is written by hand, and one table per group from the registry.

use std::fmt::Write as _;

use trunkline_settings::rows::all_rows;
use trunkline_settings::{
    AliasMeaning, FrontEndKind, SettingAlias, SettingGroup, SettingKind, SettingRow, SettingUse,
};

/// The part of the page that describes all settings.
const HEAD: &str = include_str!("page_head.txt");

/// The front ends, in the order in which the page names them.
const FRONT_ENDS: [FrontEndKind; 5] = [
    FrontEndKind::Nccl,
    FrontEndKind::OpenShmem,
    FrontEndKind::Nvshmem,
    FrontEndKind::Rust,
    FrontEndKind::Command,
];

/// Renders the whole page.
pub(super) fn render_page() -> String {
    let mut page = HEAD.to_owned();
    for group in SettingGroup::ALL {
        let rows: Vec<&SettingRow> = all_rows().filter(|row| row.group == group).collect();
        let _ = write!(page, "\n## {}\n\n{}", group.title(), render_table(&rows));
    }
    page
}

fn render_table(rows: &[&SettingRow]) -> String {
    let mut table = String::from(
        "| setting | aliases | type and range | default | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let aliases: Vec<String> = row.aliases.iter().map(|alias| describe_alias(alias, row)).collect();
        let cells = [
            format!("`{}`", row.name),
            aliases.join("; "),
            row.kind.to_string(),
            describe_default(row),
            describe_effect(row),
        ];
        let cells = cells.map(|cell| escape_cell(&cell));
        let _ = writeln!(table, "| {} |", cells.join(" | "));
    }
    table
}

/// Escapes the sign that ends a cell. It ends one inside of code, too.
fn escape_cell(cell: &str) -> String {
    cell.replace('|', "\\|")
}

/// Describes an alias: its name, and how its values differ from those of the row.
fn describe_alias(alias: &SettingAlias, row: &SettingRow) -> String {
    let mut remarks = Vec::new();
    if let Some(front_end) = alias.only {
        remarks.push(format!("only for {}", front_end_title(front_end)));
    }
    if alias.kind != row.kind {
        remarks.push(alias.kind.to_string());
    }
    match alias.meaning {
        AliasMeaning::Same => {}
        AliasMeaning::AtMost(max) => remarks.push(format!("more than {max} counts as {max}")),
        AliasMeaning::Words(words) => {
            let meanings: Vec<String> = words
                .iter()
                .filter(|(word, meaning)| word != meaning)
                .map(|(word, meaning)| format!("`{word}` means `{meaning}`"))
                .collect();
            remarks.push(meanings.join(", "));
        }
        AliasMeaning::CountAsSwitch => remarks.push("0 means `off`, any other number `on`".to_owned()),
        AliasMeaning::CountOrDefault => remarks.push("0 means the default".to_owned()),
    }
    match remarks.as_slice() {
        [] => format!("`{}`", alias.name),
        _ => format!("`{}` ({})", alias.name, remarks.join("; ")),
    }
}

fn describe_default(row: &SettingRow) -> String {
    let shown = |value: &str| if value.is_empty() { "unset".to_owned() } else { format!("`{value}`") };
    let mut text = shown(row.default);
    for front_end in FRONT_ENDS.iter().filter(|front_end| row.default_of(**front_end) != row.default) {
        let _ = write!(text, "; {}: {}", front_end_title(*front_end), shown(row.default_of(*front_end)));
    }
    text
}

/// Describes the effect of a row, and how it may be set where that differs from the usual.
fn describe_effect(row: &SettingRow) -> String {
    let text = match row.kind {
        SettingKind::Ignored { same: [], instead } => instead.to_owned(),
        SettingKind::Ignored { same, instead } => {
            format!("{instead}; this is the meaning of `{}`", same.join("` and `"))
        }
        _ => row.text.to_owned(),
    };
    let mark = match row.usage {
        SettingUse::Usual => return text,
        SettingUse::LoadsCode => "*loads code*",
        SettingUse::EnvironmentOnly => "*environment only*",
        SettingUse::EmptyIsValue => "*environment only*, *empty is a value*",
        SettingUse::Secret => "*environment only*, and never shown",
    };
    format!("{text}; {mark}")
}

fn front_end_title(front_end: FrontEndKind) -> &'static str {
    match front_end {
        FrontEndKind::Nccl => "NCCL",
        FrontEndKind::OpenShmem => "OpenSHMEM",
        FrontEndKind::Nvshmem => "NVSHMEM",
        FrontEndKind::Rust => "Rust",
        FrontEndKind::Command => "the command",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_each_setting_and_alias_once() {
        let page = render_page();
        for row in all_rows() {
            let begin = format!("\n| `{}` | ", row.name);
            assert_eq!(page.matches(&begin).count(), 1, "{}", row.name);
            for alias in row.aliases {
                assert!(page.contains(&format!("`{}`", alias.name)), "{}", alias.name);
            }
        }
    }

    #[test]
    fn each_row_of_a_table_has_five_cells() {
        for line in render_page().lines().filter(|line| line.starts_with("| ")) {
            let ends = line.replace("\\|", "").matches('|').count();
            assert_eq!(ends, 6, "{line}");
        }
        assert_eq!(escape_cell("a|b"), "a\\|b");
    }

    #[test]
    fn aliases_and_defaults_name_their_front_end() {
        let page = render_page();
        for part in [
            "(only for NVSHMEM; cxi, efa or verbs; `cxi` means `ofi:cxi`, `efa` means `ofi:efa`)",
            "| `0`; OpenSHMEM: `1`; Rust: `1` |",
            "`NCCL_IB_QPS_PER_CONNECTION` (a number from 1 to 128; more than 4 counts as 4)",
            "GPUs of this process; empty: none; *environment only*, *empty is a value* |",
            "receives are always posted in advance; this is the meaning of `1` and `-2` |",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }
}
