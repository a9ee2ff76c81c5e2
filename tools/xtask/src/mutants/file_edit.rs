//! An edit with the bug that it belongs to, and the finding when it cannot be woven.
//!
//! `bug_table` lists these by file; `woven_source` and `c_source` weave them.

use std::fmt::Display;

use super::bug_file::BugEdit;
use super::source_anchor;
use super::woven_piece::PieceOverlap;
use crate::report::CheckFinding;

/// An edit, and the bug that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileEdit<'a> {
    /// The bug's name.
    pub(crate) bug: &'a str,
    /// The edit.
    pub(crate) edit: &'a BugEdit,
}

impl FileEdit<'_> {
    /// The finding for an edit that cannot be woven. It names the bug, the file, the item and the anchor; `reason` has
    /// the remedy.
    pub(crate) fn refuse_edit(self, reason: impl Display) -> CheckFinding {
        let item = self.edit.item.as_ref().map(|item| format!("in `{item}`, ")).unwrap_or_default();
        let anchor = match self.edit.read_request() {
            Ok(request) => format!("anchor `{}`", source_anchor::on_one_line(request.anchor)),
            Err(_) => "edit".to_owned(),
        };
        CheckFinding {
            place: format!("bug {}: {}", self.bug, self.edit.file),
            text: format!("{item}{anchor}: {reason}"),
        }
    }
}

/// The finding for two edits of one file that overlap.
pub(crate) fn refuse_overlap(edits: &[FileEdit<'_>], overlap: &PieceOverlap) -> CheckFinding {
    let second = edits.iter().find(|of| of.bug == overlap.second).unwrap_or(&edits[0]);
    second.refuse_edit(format!(
        "the anchor overlaps one of bug {}: anchor the same range, or one inside the other",
        overlap.first
    ))
}
