//! The agreement of all ranks that their settings are valid, so that a wrong setting is reported once per job and not once per rank.
//! Each rank passes a [`StartNotice`] to the others, and rank 0 logs all lines. Called by [`JobMember`](crate::JobMember).

use std::fmt;
use std::time::Duration;

use trunkline_fabric::LogLevel;
use trunkline_proto::wire::start_notice::{NoticeKind, NoticeLine, StartNotice};

use crate::job_meeting::JobMeeting;
use crate::{ChooseError, MembershipError};

/// Most lines of each kind that rank 0 logs.
const LINES_MAX: usize = 16;
/// Most ranges of ranks in a line.
const RANGES_MAX: usize = 8;

/// Meets the other ranks, and returns `mine` if the settings of all ranks are valid. Rank 0 logs the warnings of all ranks.
///
/// # Errors
/// [`MembershipError::Agreed`]: a rank has an invalid setting. If the ranks cannot meet, or there is no other rank, the error in
/// `mine` is returned as it is. Else as [`JobMeeting::meet_ranks`] and [`JobMeeting::exchange_bytes`].
pub(crate) fn meet_and_agree<T>(
    mine: Result<T, ChooseError>,
    warnings: &[String],
    limit: Duration,
    log: &dyn Fn(LogLevel, &str),
) -> Result<(T, JobMeeting), MembershipError> {
    let notice = write_notice(mine.as_ref().err(), warnings);
    let agreed = JobMeeting::meet_ranks(limit).and_then(|mut meeting| {
        if meeting.rank_count() > 1 {
            agree_to_start(&mut meeting, &notice, log)?;
        } else {
            warnings.iter().for_each(|line| log(LogLevel::Warn, line));
        }
        Ok(meeting)
    });
    match (agreed, mine) {
        (Ok(meeting), Ok(value)) => Ok((value, meeting)),
        (Err(agreed @ MembershipError::Agreed { .. }), _) | (Err(agreed), Ok(_)) => Err(agreed),
        (_, Err(own)) => Err(own.into()),
    }
}

fn write_notice(error: Option<&ChooseError>, warnings: &[String]) -> StartNotice {
    let mut notice = StartNotice::new();
    if let Some(error) = error {
        notice.add_lines(NoticeKind::Invalid, &trunkline_engine::in_full(error));
    }
    warnings.iter().for_each(|line| notice.add_lines(NoticeKind::Warning, line));
    notice
}

fn agree_to_start(
    meeting: &mut JobMeeting,
    notice: &StartNotice,
    log: &dyn Fn(LogLevel, &str),
) -> Result<(), MembershipError> {
    let merged = MergedNotices::merge_all(&meeting.exchange_bytes(notice.as_bytes())?)?;
    if meeting.own_rank() == 0 {
        let lines = merged.warnings.to_lines(merged.size).into_iter();
        lines.chain(merged.invalid.to_lines(merged.size)).for_each(|line| log(LogLevel::Warn, &line));
    }
    let Some(rank) = merged.first_refusal else { return Ok(()) };
    // A launcher may end the job as soon as one rank has failed, so no rank fails before rank 0 has logged the lines.
    let _ = meeting.wait_for_ranks();
    Err(MembershipError::Agreed { rank, lines: merged.invalid.to_lines(merged.size) })
}

/// The notices of all ranks.
#[derive(Debug, Default)]
struct MergedNotices {
    size: usize,
    first_refusal: Option<usize>,
    invalid: MergedLines,
    warnings: MergedLines,
}

impl MergedNotices {
    /// Merges the notices of the ranks, in the order of the ranks.
    fn merge_all(notices: &[Vec<u8>]) -> Result<Self, MembershipError> {
        let mut merged = Self { size: notices.len(), ..Self::default() };
        for (rank, bytes) in notices.iter().enumerate() {
            let notice = StartNotice::from_bytes(bytes);
            let notice = notice.map_err(|source| MembershipError::Notice { rank, source })?;
            notice.iter_lines().for_each(|line| merged.lines_of(line.kind).add_line(rank, &line));
            let kind = if notice.is_refusal() { NoticeKind::Invalid } else { NoticeKind::Warning };
            merged.lines_of(kind).left_out += usize::from(notice.left_out());
            if kind == NoticeKind::Invalid {
                merged.first_refusal.get_or_insert(rank);
            }
        }
        Ok(merged)
    }

    fn lines_of(&mut self, kind: NoticeKind) -> &mut MergedLines {
        match kind {
            NoticeKind::Invalid => &mut self.invalid,
            NoticeKind::Warning => &mut self.warnings,
        }
    }
}

/// The distinct lines of one kind.
#[derive(Debug, Default)]
struct MergedLines {
    lines: Vec<MergedLine>,
    left_out: usize,
}

/// A line, and the ranks that have it.
#[derive(Debug)]
struct MergedLine {
    text: String,
    /// Ascending.
    ranks: Vec<usize>,
}

impl MergedLines {
    /// Adds a line of a rank that is not below those of earlier calls.
    fn add_line(&mut self, rank: usize, line: &NoticeLine<'_>) {
        let is_full = self.lines.len() == LINES_MAX;
        match self.lines.iter_mut().find(|merged| merged.text == line.text) {
            Some(merged) if merged.ranks.last() == Some(&rank) => {}
            Some(merged) => merged.ranks.push(rank),
            None if is_full => self.left_out += 1,
            None => self.lines.push(MergedLine { text: line.text.to_owned(), ranks: vec![rank] }),
        }
    }

    /// Returns the lines for a job of `size` ranks, and a last one with the number of those that are missing.
    fn to_lines(&self, size: usize) -> Vec<String> {
        let line = |MergedLine { text, ranks }: &MergedLine| format!("{}: {text}", RankList { ranks, size });
        let mut lines: Vec<String> = self.lines.iter().map(line).collect();
        if self.left_out > 0 {
            lines.push(format!("{} more such lines; correct these first", self.left_out));
        }
        lines
    }
}

/// Ranks for a message: `rank 3`, `ranks 0-2, 5`, `all 8 ranks`.
struct RankList<'a> {
    /// Ascending, not empty.
    ranks: &'a [usize],
    size: usize,
}

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ranks {
            [rank] => return write!(f, "rank {rank}"),
            ranks if ranks.len() == self.size => return write!(f, "all {} ranks", self.size),
            _ => {}
        }
        let ranges: Vec<&[usize]> = self.ranks.chunk_by(|rank, next| rank + 1 == *next).collect();
        for (index, range) in ranges.iter().take(RANGES_MAX).enumerate() {
            f.write_str(if index == 0 { "ranks " } else { ", " })?;
            match range {
                [first, .., last] => write!(f, "{first}-{last}")?,
                range => range.iter().try_for_each(|rank| write!(f, "{rank}"))?,
            }
        }
        match ranges.iter().skip(RANGES_MAX).map(|range| range.len()).sum::<usize>() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
#[path = "start_agreement_tests.rs"]
mod tests;
