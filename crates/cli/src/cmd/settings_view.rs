//! The settings as `info --params` shows them: by group, with each value and its source. Called by `info`; it reads no
//! variable itself.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;
use trunkline_settings::rows::all_rows;
use trunkline_settings::{
    FoundValue, FrontEndKind, SettingError, SettingGroup, SettingRow, SettingSource, SettingUse,
    SettingValues, escape_controls, nearest_name,
};

/// Most columns of a line.
const COLUMNS_MAX: usize = 100;
/// The value and the default of a setting without one.
const UNSET: &str = "unset";

/// The front end whose names and defaults are shown.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ShownFrontEnd {
    /// The plugin for NCCL and RCCL.
    Nccl,
    /// The OpenSHMEM library.
    Openshmem,
    /// The transport for NVSHMEM.
    Nvshmem,
    /// Programs that use the Rust API.
    Rust,
}

impl ShownFrontEnd {
    pub(super) fn front_end_kind(self) -> FrontEndKind {
        match self {
            Self::Nccl => FrontEndKind::Nccl,
            Self::Openshmem => FrontEndKind::OpenShmem,
            Self::Nvshmem => FrontEndKind::Nvshmem,
            Self::Rust => FrontEndKind::Rust,
        }
    }
}

/// The settings to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettingFilter<'a> {
    /// A text that the name, an alias, the group or the description contains; empty: any.
    pub(super) term: &'a str,
    /// Whether to include groups that are usually shown only where a variable of them is set.
    pub(super) all: bool,
}

impl SettingFilter<'_> {
    fn includes_row(&self, row: &SettingRow, values: &SettingValues) -> bool {
        if !self.term.is_empty() {
            let term = self.term.to_lowercase();
            let aliases = row.aliases.iter().map(|alias| alias.name);
            let mut texts = aliases.chain([row.name, row.group.title(), row.text]);
            return texts.any(|text| text.to_lowercase().contains(&term));
        }
        let is_usual = match row.group {
            SettingGroup::Job
            | SettingGroup::Launchers
            | SettingGroup::Gpus
            | SettingGroup::Unused
            | SettingGroup::Tests => false,
            SettingGroup::Network
            | SettingGroup::Nics
            | SettingGroup::Rdma
            | SettingGroup::Libfabric
            | SettingGroup::SoftNic
            | SettingGroup::Connections
            | SettingGroup::Sharing
            | SettingGroup::OneSided
            | SettingGroup::OpenShmem
            | SettingGroup::Nvshmem
            | SettingGroup::Diagnosis
            | SettingGroup::Command => true,
        };
        is_usual || self.all || values.is_set(row)
    }
}

/// One setting.
#[derive(Debug, Serialize)]
struct ShownSetting {
    name: &'static str,
    group: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    value: String,
    /// `default`, `front end`, `environment`, `file`, or the alias that is set in the environment.
    from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    default: &'static str,
    range: String,
    aliases: Vec<&'static str>,
    doc: &'static str,
}

impl ShownSetting {
    fn new(row: &'static SettingRow, values: &SettingValues) -> (Self, Option<SettingError>) {
        let found = values.find(row);
        let default = row.default_of(values.front_end());
        let or_unset = |text: String| if text.is_empty() { UNSET.to_owned() } else { text };
        let mut shown = Self {
            name: row.name,
            group: row.group.title(),
            kind: row.kind.name(),
            value: "invalid".to_owned(),
            from: "environment",
            file: None,
            line: None,
            default: if default.is_empty() { UNSET } else { default },
            range: row.kind.to_string(),
            aliases: row.aliases.iter().map(|alias| alias.name).collect(),
            doc: row.text,
        };
        let FoundValue { value, source } = match found {
            Ok(found) => found,
            Err(error) => return (shown, Some(error)),
        };
        shown.value = match row.usage {
            SettingUse::Secret if values.is_set(row) => "(set)".to_owned(),
            SettingUse::EmptyIsValue if values.is_set(row) => format!("\"{value}\""),
            _ => or_unset(value),
        };
        match source {
            SettingSource::Default => shown.from = "default",
            SettingSource::FrontEnd(_) => shown.from = "front end",
            SettingSource::Environment { name } if name == row.name => {}
            SettingSource::Environment { name } => shown.from = name,
            SettingSource::File { path, line, .. } => {
                (shown.from, shown.file, shown.line) = ("file", Some(path), Some(line));
            }
        }
        (shown, None)
    }

    /// Returns where the value comes from, for readers.
    fn origin_text(&self) -> String {
        match (self.from, &self.file, self.line) {
            ("default", ..) => "default".to_owned(),
            (from, Some(file), Some(line)) => format!("{from} {file}:{line}; default {}", self.default),
            (from, ..) => format!("{from}; default {}", self.default),
        }
    }

    fn print_setting(&self, out: &mut impl Write, columns: usize) -> io::Result<()> {
        let value = escape_controls(&self.value);
        let head = format!("{} = {value}  ({})", self.name, self.origin_text());
        let body = [
            self.doc.to_owned(),
            format!("{}: {}", self.kind, self.range),
            format!("also: {}", self.aliases.join(", ")),
        ];
        let lines = if self.aliases.is_empty() { 2 } else { 3 };
        print_wrapped(out, &head, columns, "", "        ")?;
        body.iter().take(lines).try_for_each(|text| print_wrapped(out, text, columns, "    ", "      "))
    }
}

fn print_wrapped(
    out: &mut impl Write,
    text: &str,
    columns: usize,
    first: &str,
    further: &str,
) -> io::Result<()> {
    let options = textwrap::Options::new(columns).initial_indent(first).subsequent_indent(further);
    textwrap::wrap(text, options).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The settings that were chosen, with their values.
#[derive(Debug, Serialize)]
pub(super) struct SettingsReport {
    /// The configuration file in use.
    file: Option<String>,
    params: Vec<ShownSetting>,
    warnings: Vec<String>,
    #[serde(skip)]
    errors: Vec<SettingError>,
}

impl SettingsReport {
    pub(super) fn new(values: &SettingValues, warnings: Vec<String>, filter: SettingFilter<'_>) -> Self {
        let rows = all_rows().filter(|row| filter.includes_row(row, values));
        let (mut params, errors): (Vec<_>, Vec<_>) = rows
            .map(|row| (row.group, ShownSetting::new(row, values)))
            .map(|(group, (one, error))| ((group, one), error))
            .unzip();
        params.sort_by_key(|(group, _)| *group);
        Self {
            file: values.file().map(|file| file.path().to_owned()),
            params: params.into_iter().map(|(_, one)| one).collect(),
            warnings,
            errors: errors.into_iter().flatten().collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.params.is_empty()
    }

    /// Returns the invalid values among the settings that are shown.
    pub(super) fn invalid_values(&self) -> &[SettingError] {
        &self.errors
    }

    /// Prints the settings by group, at most 100 columns wide.
    pub(super) fn print_report(&self, out: &mut impl Write) -> io::Result<()> {
        let width =
            console::Term::stdout().size_checked().map_or(COLUMNS_MAX, |(_, width)| usize::from(width));
        let columns = width.clamp(40, COLUMNS_MAX);
        let file = self.file.as_deref().unwrap_or("none");
        writeln!(out, "configuration file: {file}")?;
        let mut group = "";
        for setting in &self.params {
            if setting.group != group {
                group = setting.group;
                writeln!(out, "\n{group}")?;
            }
            setting.print_setting(out, columns)?;
        }
        Ok(())
    }
}

/// Returns the message for a search term that no setting contains.
pub(super) fn describe_missing_term(term: &str) -> String {
    match nearest_name(&term.to_uppercase()) {
        Some(near) => format!("no setting contains {term:?}; did you mean {near}?"),
        None => format!("no setting contains {term:?}; without a term, all are listed"),
    }
}

#[cfg(test)]
mod tests {
    use trunkline_settings::SettingsFile;

    use super::*;

    fn text_of(set: &[(&str, &str)], file: &str, term: &str) -> (String, usize) {
        let values = SettingValues::from_lookup(FrontEndKind::Nccl, |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into())
        });
        let values = values.with_file(SettingsFile::parse("/etc/t.conf", file.as_bytes()).unwrap());
        let report = SettingsReport::new(&values, Vec::new(), SettingFilter { term, all: term.is_empty() });
        let mut out = Vec::new();
        report.print_report(&mut out).unwrap();
        (String::from_utf8(out).unwrap(), report.invalid_values().len())
    }

    #[test]
    fn no_line_is_wider_than_a_hundred_columns() {
        let long = format!("/{}", "x".repeat(300));
        let set = [
            ("TRUNKLINE_TRACE", long.as_str()),
            ("NCCL_SOCKET_IFNAME", &long.replace("xxx", "x, ")),
            ("TRUNKLINE_HOST_ROOT", "/\u{1b}[31m\n"),
        ];
        let (text, errors) = text_of(&set, "", "");
        assert_eq!(errors, 0);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{text}");
        assert!(text.contains("TRUNKLINE_HOST_ROOT = /\\u{1b}[31m\\n  (environment; default /)"), "{text}");
        for group in SettingGroup::ALL {
            assert!(text.lines().any(|line| line == group.title()), "{group:?}");
        }
    }

    #[test]
    fn each_value_shows_its_source() {
        let set = [("NCCL_IB_TC", "7"), ("TRUNKLINE_JOB_SECRET", "abc"), ("CUDA_VISIBLE_DEVICES", "")];
        let (text, _) = text_of(&set, "\nTRUNKLINE_DEPTH=64", "");
        for line in [
            "TRUNKLINE_IB_TC = 7  (NCCL_IB_TC; default -1)",
            "TRUNKLINE_DEPTH = 64  (file /etc/t.conf:2; default 512)",
            "TRUNKLINE_EAGER_MAX = 4096  (default)",
            "TRUNKLINE_JOB_SECRET = (set)  (environment; default unset)",
            "CUDA_VISIBLE_DEVICES = \"\"  (environment; default unset)",
            "NCCL_SOCKET_IFNAME = unset  (default)",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        }
        assert!(!text.contains("abc"), "a secret is shown: {text}");
    }

    #[test]
    fn term_finds_names_aliases_groups_and_texts() {
        for (term, name) in [
            ("qps_per_p2p", "TRUNKLINE_P2P_LINKS_PER_RAIL"),
            ("software nic", "TRUNKLINE_SOFT_MAX_QP"),
            ("eager", "TRUNKLINE_EAGER_CREDITS"),
            ("perfetto", "TRUNKLINE_TRACE"),
            ("slurm_procid", "SLURM_PROCID"),
        ] {
            let (text, _) = text_of(&[], "", term);
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} = "))), "{term}: {text}");
        }
        let (text, errors) = text_of(&[("TRUNKLINE_DEPTH", "x")], "", "TRUNKLINE_DEPTH");
        assert_eq!(errors, 1);
        assert!(text.contains("TRUNKLINE_DEPTH = invalid  (environment; default 512)"), "{text}");
        assert!(describe_missing_term("TRUNKLINE_DEPHT").contains("TRUNKLINE_DEPTH"));
    }
}
