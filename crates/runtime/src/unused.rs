//! The devices of this host that are not used: one warning for those that should be, lines at INFO for the others.
//! Called when hardware is opened, and by `trunkline info`, which lists the same devices.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_engine::{EngineParams, FabricName};
use trunkline_fabric::LogLevel;
use trunkline_verbs::VerbsUnavailable;

use crate::cause::{HostCircumstances, diagnose_device};
use crate::inventory::{DeviceKind, HostDevice, read_devices, read_limits};
use crate::{ChooseError, ProcessSettings, verbs_config};

/// A device that is not used.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnusedDevice {
    /// Its name in `/sys/class`.
    pub name: String,
    /// The kernel's driver.
    pub driver: String,
    /// The cause.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
    /// Whether no warning is due, because users have excluded it or other devices are used.
    pub is_expected: bool,
}

/// The devices that are not used.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct UnusedDevices(Vec<UnusedDevice>);

/// The fabric in use by its user-visible name, and the names of its NICs.
#[derive(Clone, Copy, Debug)]
pub struct UsedFabric<'a> {
    /// `verbs`, or `ofi:efa`.
    pub name: &'a str,
    /// Its NICs.
    pub nics: &'a [String],
}

impl UnusedDevices {
    /// Finds the unused devices and their causes. `listed` returns the devices for which libibverbs has a provider;
    /// it is called only if the host has a device. `libfabric` is the reason why libfabric's NICs could not be
    /// opened.
    ///
    /// # Errors
    /// [`ChooseError::Settings`]: the host has a device, and a setting that chooses devices is invalid.
    pub fn find_unused(
        settings: &ProcessSettings,
        used: Option<UsedFabric<'_>>,
        libfabric: Option<&str>,
        listed: impl FnOnce() -> Result<Vec<String>, VerbsUnavailable>,
    ) -> Result<Self, ChooseError> {
        let params = &settings.params;
        let mut devices = read_devices(&params.host_root);
        devices
            .retain(|device| is_counted(device, params) && !used.is_some_and(|used| is_used(device, used)));
        if devices.is_empty() {
            return Ok(Self::default());
        }
        let config = verbs_config(settings)?;
        let asked = params.fabric == FabricName::Verbs;
        // The library is opened only if an unused device should be used.
        let of_verbs =
            |device: &HostDevice| matches!(device.kind, DeviceKind::Hardware | DeviceKind::Software);
        let wants_list = devices.iter().any(of_verbs) && (asked || used.is_none() && !config.disabled);
        let listed = if wants_list { listed() } else { Ok(Vec::new()) };
        let about = HostCircumstances {
            disabled: config.disabled,
            filter: &config.hca,
            listed: &listed,
            limits: read_limits(&params.host_root),
            libfabric,
            used: used.map(|used| used.name),
            asked,
        };
        let one = |device: HostDevice| {
            let cause = diagnose_device(&device, &about);
            UnusedDevice {
                remedy: cause.describe_remedy(),
                is_expected: cause.is_chosen() || asked,
                cause: cause.to_string(),
                name: device.name,
                driver: device.driver,
            }
        };
        Ok(Self(devices.into_iter().map(one).collect()))
    }

    /// Returns all unused devices.
    #[must_use]
    pub fn as_slice(&self) -> &[UnusedDevice] {
        &self.0
    }

    /// Returns whether there is an unused device that should be used.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.0.iter().any(|device| !device.is_expected)
    }

    /// Returns the reason why no NIC is used, for an error.
    pub(crate) fn as_reason(&self) -> String {
        match self.0.is_empty() {
            true => "this host has no RDMA, EFA or Slingshot device".to_owned(),
            false => format!("no device of this host is used:{}", format_lines(self.0.iter())),
        }
    }

    /// Logs the devices: one warning, unless `warned` is set, and one line at INFO.
    pub(crate) fn log_unused(&self, warned: &AtomicBool, log: impl Fn(LogLevel, &str)) {
        if self.is_missed() && !warned.swap(true, Ordering::Relaxed) {
            let missed = format_lines(self.0.iter().filter(|device| !device.is_expected));
            log(
                LogLevel::Warn,
                &format!(
                    "TRUNKLINE_FABRIC=auto uses no NIC of this host:{missed}\n  (TRUNKLINE_FABRIC=soft chooses the software NIC without this warning)"
                ),
            );
        }
        let chosen = format_lines(self.0.iter().filter(|device| device.is_expected));
        if !chosen.is_empty() {
            log(LogLevel::Info, &format!("devices that are not used:{chosen}"));
        }
    }
}

/// Formats devices as lines. Devices with the same driver, cause and remedy share a line, because NCCL truncates
/// messages after some thousand bytes.
fn format_lines<'a>(devices: impl Iterator<Item = &'a UnusedDevice>) -> String {
    let mut groups: Vec<(&UnusedDevice, Vec<&str>)> = Vec::new();
    for device in devices {
        let alike = |(first, _): &&mut (&UnusedDevice, Vec<&str>)| {
            (&first.driver, &first.cause, &first.remedy) == (&device.driver, &device.cause, &device.remedy)
        };
        match groups.iter_mut().find(alike) {
            Some((_, names)) => names.push(&device.name),
            None => groups.push((device, vec![&device.name])),
        }
    }
    let mut lines = String::new();
    for (UnusedDevice { driver, cause, remedy, .. }, names) in groups {
        // Formatting into a `String` never fails.
        let _ = write!(lines, "\n  {} ({driver}): {cause}; {remedy}", names.join(", "));
    }
    lines
}

/// Returns whether a device is one that should be used.
fn is_counted(device: &HostDevice, params: &EngineParams) -> bool {
    device.kind != DeviceKind::Software || params.counts_software_rdma || params.fabric == FabricName::Verbs
}

/// Returns whether one of the fabric's NICs belongs to a device. A NIC has the name of its device, followed by the
/// port or the kind of endpoint.
fn is_used(device: &HostDevice, used: UsedFabric<'_>) -> bool {
    let by_libfabric = matches!(device.kind, DeviceKind::Efa | DeviceKind::Slingshot);
    let of_device = |nic: &String| {
        let rest = nic.strip_prefix(&device.name);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    };
    by_libfabric == used.name.starts_with("ofi") && used.nics.iter().any(of_device)
}

#[cfg(test)]
#[path = "unused_tests.rs"]
mod tests;
