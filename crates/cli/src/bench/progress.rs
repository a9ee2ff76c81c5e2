//! The progress bar, drawn on standard error if that is a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `rows` rows.
pub(crate) fn row_bar(rows: usize) -> ProgressBar {
    bar_of("rows", rows)
}

/// A bar over `count` items, whose kind `unit` names.
pub(crate) fn bar_of(unit: &str, count: usize) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(count as u64), target);
    if let Ok(style) =
        ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{elapsed}}, {{msg}}"))
    {
        bar.set_style(style);
    }
    bar
}
