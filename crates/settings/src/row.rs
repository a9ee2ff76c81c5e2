//! One row of the registry: a setting with its names, type, default and text. Used by the tables in `rows` and by everything
//! that reads or prints settings; it contains no current value.

use std::borrow::Cow;

use crate::SettingKind;

/// The kind of program that reads settings. Some aliases and defaults apply to one kind only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FrontEndKind {
    /// The plugin that NCCL or RCCL loads.
    Nccl,
    /// The OpenSHMEM library.
    OpenShmem,
    /// The transport that NVSHMEM loads.
    Nvshmem,
    /// A program that uses the Rust API.
    Rust,
    /// The command `trunkline`.
    Command,
}

impl FrontEndKind {
    /// Returns the word for it in output and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::OpenShmem => "openshmem",
            Self::Nvshmem => "nvshmem",
            Self::Rust => "rust",
            Self::Command => "command",
        }
    }
}

/// The group under which a row is printed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SettingGroup {
    /// Which network is used.
    Network,
    /// Which NICs and interfaces of it are used.
    Nics,
    /// RDMA devices through rdma-core.
    Rdma,
    /// NICs through libfabric.
    Libfabric,
    /// The software NIC.
    SoftNic,
    /// Connections, and messages over them.
    Connections,
    /// Queue pairs that connections share.
    Sharing,
    /// One-sided communication, of all front ends that have it.
    OneSided,
    /// OpenSHMEM's own variables.
    OpenShmem,
    /// NVSHMEM's own variables.
    Nvshmem,
    /// Status, traces, logs.
    Diagnosis,
    /// The command `trunkline`.
    Command,
    /// Variables that `trunkline run` sets for its ranks.
    Job,
    /// Variables of other launchers.
    Launchers,
    /// Variables that select the GPUs of a process.
    Gpus,
    /// Variables of other libraries that have no effect here.
    Unused,
    /// For tests of Trunkline itself.
    Tests,
}

impl SettingGroup {
    /// All groups, in the order of output.
    pub const ALL: [Self; 17] = [
        Self::Network,
        Self::Nics,
        Self::Rdma,
        Self::Libfabric,
        Self::SoftNic,
        Self::Connections,
        Self::Sharing,
        Self::OneSided,
        Self::OpenShmem,
        Self::Nvshmem,
        Self::Diagnosis,
        Self::Command,
        Self::Job,
        Self::Launchers,
        Self::Gpus,
        Self::Unused,
        Self::Tests,
    ];

    /// Returns the heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Network => "Network",
            Self::Nics => "Interfaces and devices",
            Self::Rdma => "RDMA devices",
            Self::Libfabric => "NICs through libfabric",
            Self::SoftNic => "Software NIC",
            Self::Connections => "Connections",
            Self::Sharing => "Shared queue pairs",
            Self::OneSided => "One-sided communication",
            Self::OpenShmem => "OpenSHMEM",
            Self::Nvshmem => "NVSHMEM",
            Self::Diagnosis => "Diagnosis",
            Self::Command => "The command trunkline",
            Self::Job => "Job (set by trunkline run)",
            Self::Launchers => "Other launchers",
            Self::Gpus => "GPUs of a process",
            Self::Unused => "Variables of other libraries without effect here",
            Self::Tests => "Tests of Trunkline",
        }
    }
}

/// How a row may be set and shown, where that differs from the usual.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SettingUse {
    /// In the environment and in the file; the value is shown.
    Usual,
    /// As usual, and it names code that is loaded into the process.
    LoadsCode,
    /// Only in the environment, because a launcher, another library or a test sets it.
    EnvironmentOnly,
    /// As before, and an empty value differs from an unset one.
    EmptyIsValue,
    /// Only in the environment, and the value is never shown.
    Secret,
}

/// A further name of a setting, known from another library.
#[derive(Clone, Copy, Debug)]
pub struct SettingAlias {
    /// The environment variable.
    pub name: &'static str,
    /// The type and range of its value, which may differ from the row's.
    pub kind: SettingKind,
    /// How its value becomes one of the row.
    pub meaning: AliasMeaning,
    /// The only front end that knows this name; `None`: all.
    pub only: Option<FrontEndKind>,
}

/// How the value of an alias becomes a value of its row.
#[derive(Clone, Copy, Debug)]
pub enum AliasMeaning {
    /// It is the same value.
    Same,
    /// The same number, but at most this one.
    AtMost(u64),
    /// Each word means another word.
    Words(&'static [(&'static str, &'static str)]),
    /// 0 means `off`, any other number `on`.
    CountAsSwitch,
    /// 0 means the default, another number itself.
    CountOrDefault,
}

impl SettingAlias {
    /// Returns an alias with the type and the meaning of its row.
    #[must_use]
    pub const fn same(name: &'static str, kind: SettingKind) -> Self {
        Self { name, kind, meaning: AliasMeaning::Same, only: None }
    }

    /// Returns the value of `row` for a valid value of this alias.
    pub(crate) fn translate<'a>(&self, value: &'a str, row: &SettingRow) -> Cow<'a, str> {
        let number = || crate::kind::parse_number(value).unwrap_or(0);
        match self.meaning {
            AliasMeaning::Same => value.into(),
            AliasMeaning::AtMost(max) => number().min(max).to_string().into(),
            AliasMeaning::Words(words) => {
                words.iter().find(|(word, _)| *word == value).map_or(value, |(_, meaning)| meaning).into()
            }
            AliasMeaning::CountAsSwitch if number() == 0 => "off".into(),
            AliasMeaning::CountAsSwitch => "on".into(),
            AliasMeaning::CountOrDefault if number() == 0 => row.default.into(),
            AliasMeaning::CountOrDefault => value.into(),
        }
    }
}

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct SettingRow {
    /// The environment variable.
    pub name: &'static str,
    /// Further names; the own name has priority, then these in their order.
    pub aliases: &'static [SettingAlias],
    /// The heading under which it is printed.
    pub group: SettingGroup,
    /// The type and range of its value.
    pub kind: SettingKind,
    /// The value that applies if no name is set; empty: no value.
    pub default: &'static str,
    /// Defaults of single front ends, which replace `default` there.
    pub own_defaults: &'static [(FrontEndKind, &'static str)],
    /// One line: the effect of the setting.
    pub text: &'static str,
    /// How it may be set and shown.
    pub usage: SettingUse,
}

impl SettingRow {
    /// Returns a row without aliases and own defaults.
    #[must_use]
    pub const fn new(
        name: &'static str,
        group: SettingGroup,
        kind: SettingKind,
        default: &'static str,
        text: &'static str,
    ) -> Self {
        Self { name, aliases: &[], group, kind, default, own_defaults: &[], text, usage: SettingUse::Usual }
    }

    /// Returns the row with these aliases.
    #[must_use]
    pub const fn aliases(self, aliases: &'static [SettingAlias]) -> Self {
        Self { aliases, ..self }
    }

    /// Returns the row with defaults of single front ends.
    #[must_use]
    pub const fn own_defaults(self, own_defaults: &'static [(FrontEndKind, &'static str)]) -> Self {
        Self { own_defaults, ..self }
    }

    /// Returns the row with a use that is not the usual one.
    #[must_use]
    pub const fn usage(self, usage: SettingUse) -> Self {
        Self { usage, ..self }
    }

    /// Returns the default of a front end.
    #[must_use]
    pub fn default_of(&self, front_end: FrontEndKind) -> &'static str {
        let own = self.own_defaults.iter().find(|(of, _)| *of == front_end);
        own.map_or(self.default, |(_, value)| value)
    }

    /// Returns whether the configuration file may contain it.
    #[must_use]
    pub fn is_allowed_in_file(&self) -> bool {
        matches!(self.usage, SettingUse::Usual | SettingUse::LoadsCode)
    }

    /// Returns its own name as an alias would be, then the aliases that a front end knows.
    pub(crate) fn names(&self, front_end: FrontEndKind) -> impl Iterator<Item = SettingAlias> {
        let own = SettingAlias::same(self.name, self.kind);
        let known = move |alias: &SettingAlias| alias.only.is_none_or(|only| only == front_end);
        std::iter::once(own).chain(self.aliases.iter().copied().filter(known))
    }
}
