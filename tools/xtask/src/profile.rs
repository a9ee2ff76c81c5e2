//! Parses callgrind's output into instructions per object file ("Callgrind Format Specification" of valgrind's manual).
//! Called by `budget` for messages through a library whose own work has no limit here. Supports one event, and no
//! jumps.

use std::collections::HashMap;

use anyhow::{Context as _, Result, ensure};

/// Instructions by the name of the object.
#[derive(Debug, Default)]
pub(crate) struct ObjectProfile(HashMap<String, u64>);

impl ObjectProfile {
    /// Reads a profile, all of whose instructions must be found in some object.
    ///
    /// # Errors
    /// It does not follow the format.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut names: HashMap<&str, &str> = HashMap::new();
        let mut found = Self::default();
        let mut object = "";
        let mut called = false;
        let mut totals = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
                // A name is written once, with a number that stands for it later.
                let (number, given) = name.split_once(' ').unwrap_or((name, ""));
                let name = *names.entry(number).or_insert(given);
                if line.starts_with("ob=") {
                    object = name;
                }
            } else if line.starts_with("calls=") {
                called = true;
            } else if let Some(all) = line.strip_prefix("totals:") {
                totals = Some(all.trim().parse::<u64>().context("the totals")?);
            } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                let cost = line.split_whitespace().nth(1).unwrap_or("0");
                let cost = cost.parse::<u64>().with_context(|| format!("a cost: {line}"))?;
                // The cost of a call is counted at the called function.
                if !std::mem::take(&mut called) {
                    *found.0.entry(object.to_owned()).or_default() += cost;
                }
            }
        }
        let sum: u64 = found.0.values().sum();
        ensure!(totals == Some(sum), "the lines add up to {sum} instructions, and not to {totals:?}");
        Ok(found)
    }

    /// Instructions of the object with that file name.
    pub(crate) fn object_cost(&self, file: &str) -> u64 {
        let is_it = |path: &str| path.rsplit('/').next() == Some(file);
        self.0.iter().filter(|(path, _)| is_it(path)).map(|(_, cost)| cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# callgrind format\npositions: line\nevents: Ir\n\nob=(1) /lib/one.so\nfl=(1) a.c\nfn=(1) f\n\
                        3 100\n+2 5\ncob=(2) /lib/two.so\ncfn=(2) g\ncalls=3 7\n+1 90\n* 1\n\nfn=(3) h\n9 10\n\n\
                        ob=(2)\nfn=(2)\n7 90\n\nob=(1)\nfn=(1)\n-3 4\n\ntotals: 210\n";

    #[test]
    fn each_object_has_its_own_instructions() {
        let profile = ObjectProfile::parse(TEXT).unwrap();
        assert_eq!(["one.so", "two.so", "e.so"].map(|file| profile.object_cost(file)), [120, 90, 0]);
    }

    #[test]
    fn profile_with_wrong_totals_is_refused() {
        for (from, to) in [("totals: 210", "totals: 211"), ("totals: 210", ""), ("9 10", "9 x")] {
            assert!(ObjectProfile::parse(&TEXT.replace(from, to)).is_err(), "{to}");
        }
    }
}
