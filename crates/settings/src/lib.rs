//! The registry of settings: each environment variable that Trunkline reads, and the values of one process.
//!
//! Every front end builds a [`SettingValues`] once, from its environment and a configuration file, and reads sections of it
//! into its own structures. `trunkline info --params` prints the rows, and docs/settings.md is generated from them. The crate
//! is pure: the caller passes the environment and the file's bytes; nothing here reads, logs or changes a variable.
//!
//! # Files, in reading order
//!
//! - [`rows`]: the tables, one file per group. A setting exists because it has a row there.
//! - `row`: [`SettingRow`], its aliases in other libraries, its group.
//! - `kind`: [`SettingKind`], the type and range of a value, and the parsers.
//! - `values`: [`SettingValues`], the values of a process and their sources; [`SectionReader`], which reads several rows and
//!   collects all errors.
//! - `file`: [`SettingsFile`], the configuration file.
//! - `nearest`: names without a row, and the row that was probably meant.
//! - `error`: [`SettingError`].
//!
//! # One setting, from the variable to the field
//!
//! ```text
//!  NCCL_IB_QPS_PER_CONNECTION=8
//!    SettingValues::from_lookup       keeps the text of each name of each row that is set
//!    SectionReader::number(&LINKS_PER_RAIL)
//!      find: TRUNKLINE_LINKS_PER_RAIL, then its aliases, in the environment; the same in the file;
//!            the front end's default; the default
//!      the alias has a kind of its own (1 to 128) and a meaning: at most 4      -> 4
//!    EngineParams { links_per_rail: 4, .. }
//! ```
//!
//! The source has priority over the name: a variable that a user set under NCCL's name beats a line of the administrator's file
//! under ours. White space around a value is ignored, and an empty value counts as unset, except for lists of GPUs.
//! The value of a name that another name or source overrides is not checked.
#![forbid(unsafe_code)]

mod error;
mod file;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod kind;
mod nearest;
mod row;
pub mod rows;
mod values;

#[cfg(test)]
mod property_tests;

pub use error::{SettingError, SettingErrors, escape_controls};
pub use file::{FILE_BYTES_MAX, FileError, FileLine, SettingsFile};
pub use kind::SettingKind;
pub use nearest::{TEST_PREFIXES, UnknownSetting, find_unknown_names, nearest_name};
pub use row::{AliasMeaning, FrontEndKind, SettingAlias, SettingGroup, SettingRow, SettingUse};
pub use values::{FoundValue, SectionReader, SettingSource, SettingValues};
