//! A share of the rows, as `--share` chooses it.
//!
//! `mod` calls this before the build.

use super::mutant_row::MutantRow;

/// A share of the rows: its number, from 0, and the number of shares. Rows of one package stay together, so that few
/// packages have to be built.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RowShare {
    number: usize,
    of: usize,
}

impl RowShare {
    /// Keeps only the rows of this share.
    pub(crate) fn retain_share(self, rows: &mut Vec<MutantRow<'_>>) {
        rows.sort_by_key(|row| (row.package, &row.suite.target));
        let from = |number: usize| rows.len() * number / self.of;
        let range = from(self.number)..from(self.number + 1);
        *rows = rows.drain(range).collect();
    }
}

impl std::str::FromStr for RowShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(n, of)| Some((n.parse().ok()?, of.parse().ok()?)));
        let share = parts.map(|(number, of)| Self { number, of }).filter(|share| share.number < share.of);
        share.ok_or_else(|| format!("{text} is no share; 0/3, 1/3 and 2/3 are the three thirds"))
    }
}
