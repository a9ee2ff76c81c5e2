//! The tables of settings, one file per group of groups. Readers name a row by its constant; output and checks iterate over
//! [`all_rows`].

use crate::SettingRow;

/// Defines the rows of a file: one constant for each, and `ROWS` with all of them.
macro_rules! setting_rows {
    ($($id:ident: $name:literal, $group:ident, $kind:expr, $default:literal, $text:literal
        $(, $method:ident($argument:expr))*;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $text, ".")]
            pub const $id: $crate::SettingRow =
                $crate::SettingRow::new($name, $crate::SettingGroup::$group, $kind, $default, $text)
                    $(.$method($argument))*;
        )*
        /// The rows of this file.
        pub const ROWS: &[$crate::SettingRow] = &[$($id),*];
    };
}

pub mod command;
pub mod connections;
pub mod diagnosis;
pub mod job;
pub mod network;
pub mod nvshmem;
pub mod one_sided;
pub mod rdma;
pub mod shmem;
pub mod soft;
pub mod unused;

/// The tables.
const TABLES: [&[SettingRow]; 13] = [
    network::ROWS,
    rdma::ROWS,
    soft::ROWS,
    connections::ROWS,
    one_sided::ROWS,
    shmem::ROWS,
    nvshmem::ROWS,
    diagnosis::ROWS,
    command::ROWS,
    job::ROWS,
    unused::nccl::ROWS,
    unused::sandia::ROWS,
    unused::nvshmem::ROWS,
];

/// Returns all rows, in the order of the tables.
pub fn all_rows() -> impl Iterator<Item = &'static SettingRow> {
    TABLES.iter().copied().flatten()
}

/// Returns the row with a name or an alias.
#[must_use]
pub fn find_row(name: &str) -> Option<&'static SettingRow> {
    all_rows()
        .find(|row| row.name == name)
        .or_else(|| all_rows().find(|row| row.aliases.iter().any(|alias| alias.name == name)))
}

/// Returns whether a row has a name, or an alias.
#[must_use]
pub fn is_known_name(name: &str) -> bool {
    find_row(name).is_some()
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
