//! Rows of this host's unused devices. Shown by `info`; `crates/runtime` finds the devices.

use serde::Serialize;
use trunkline_runtime::UnusedDevice;

/// A device that is not used.
#[derive(Debug, Serialize)]
pub(super) struct UnusedRow {
    name: String,
    driver: String,
    cause: String,
    remedy: String,
}

impl From<&UnusedDevice> for UnusedRow {
    fn from(UnusedDevice { name, driver, cause, remedy, .. }: &UnusedDevice) -> Self {
        let [name, driver, cause, remedy] = [name, driver, cause, remedy].map(Clone::clone);
        Self { name, driver, cause, remedy }
    }
}

impl UnusedRow {
    /// The titles of the columns.
    pub(super) fn column_titles() -> [String; 4] {
        ["name", "driver", "cause", "remedy"].map(str::to_owned)
    }

    pub(super) fn row_cells(&self) -> [String; 4] {
        [&self.name, &self.driver, &self.cause, &self.remedy].map(Clone::clone)
    }
}
