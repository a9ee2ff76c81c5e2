//! Reads reports of the provider, for tests that run programs over it, after the programs have ended.

use std::io;
use std::path::Path;

use serde_json::Value;

/// The content of a report.
#[derive(Clone, Debug, Default)]
pub struct StrictReport {
    /// The text of each violation, in order.
    pub violations: Vec<String>,
    /// The account of each domain, as `state.rs` writes it.
    pub accounts: Vec<Value>,
}

impl StrictReport {
    /// Reads a report; a missing file is an empty report.
    ///
    /// # Errors
    /// If the file cannot be read, or an account is not JSON.
    pub fn read_file(path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let mut found = Self::default();
        for line in text.lines() {
            if let Some(what) = line.strip_prefix("strict: violation: ") {
                found.violations.push(what.to_owned());
            } else if line.starts_with('{') {
                found.accounts.push(serde_json::from_str(line)?);
            }
        }
        Ok(found)
    }

    /// Returns the accounts of domains that were open when their process exited.
    #[must_use]
    pub fn open_accounts(&self) -> Vec<&Value> {
        self.accounts.iter().filter(|account| account["strict"] != "domain").collect()
    }

    /// Returns the sum of a number (`eagain`, `errors`, `most_entries`) over all accounts.
    #[must_use]
    pub fn sum_of(&self, name: &str) -> u64 {
        self.accounts.iter().filter_map(|account| account[name].as_u64()).sum()
    }

    /// Returns how many registrations with these rights (as `REMOTE_WRITE` or `SEND|WRITE`) were enabled, per
    /// endpoint of each domain. The endpoint is `None` for registrations of a whole domain.
    #[must_use]
    pub fn enabled_registrations(&self, rights: &str) -> Vec<(Option<u64>, u64)> {
        let all = self.accounts.iter().filter_map(|account| account["registrations"].as_array()).flatten();
        let those = all.filter(|made| made["rights"] == rights);
        those.map(|made| (made["endpoint"].as_u64(), made["count"].as_u64().unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_file_returns_violations_and_accounts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let nothing = StrictReport::read_file(&path).unwrap();
        assert!(nothing.violations.is_empty() && nothing.accounts.is_empty());
        let made = r#"[{"endpoint":1,"rights":"REMOTE_WRITE","count":3},{"endpoint":null,"rights":"SEND","count":2}]"#;
        let lines = [
            format!(r#"{{"strict":"domain","eagain":4,"registrations":{made}}}"#),
            "strict: violation: one".to_owned(),
            "something else".to_owned(),
            r#"{"strict":"exit","eagain":5,"registrations":[]}"#.to_owned(),
        ];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let found = StrictReport::read_file(&path).unwrap();
        assert_eq!(found.violations, ["one"]);
        assert_eq!((found.accounts.len(), found.open_accounts().len(), found.sum_of("eagain")), (2, 1, 9));
        assert_eq!(found.open_accounts()[0]["strict"], "exit");
        assert_eq!(found.enabled_registrations("REMOTE_WRITE"), [(Some(1), 3)]);
        assert_eq!(found.enabled_registrations("SEND"), [(None, 2)]);
        std::fs::write(&path, "{").unwrap();
        assert!(StrictReport::read_file(&path).is_err());
    }
}
