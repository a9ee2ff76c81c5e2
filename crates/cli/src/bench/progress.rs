//! The progress bar: on standard error, and only when that is a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over so many rows.
pub(crate) fn bar(rows: usize) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(rows as u64), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} rows, {elapsed}, {msg}") {
        bar.set_style(style);
    }
    bar
}
