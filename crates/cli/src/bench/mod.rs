//! Runs and prints benchmarks. Called by `cmd::bench`. It writes to the terminal and calls the plugin host: the crate
//! `trunkline-nccl-host`, which loads a plugin and drives it as NCCL does.

pub(crate) mod collective;
pub(crate) mod device;
mod error;
pub(crate) mod messages;
pub(crate) mod p2p;
pub(crate) mod plot;
pub(crate) mod progress;
mod restart;
pub(crate) mod rma;
pub(crate) mod sizes;
mod times;
pub(crate) mod trace;

use trunkline_fabric::LogLevel;
use trunkline_nccl_host::{DataType, LeftFiles, PluginReport, RankJob, RedOp};
use trunkline_runtime::{FrontEndKind, HardwareFabric, ProcessSettings};
use trunkline_settings::rows::network;

use crate::own_settings::{named_fabric, read_setting};

pub(crate) use error::BenchError;

/// The parsed arguments.
#[derive(Debug)]
pub(crate) struct BenchSettings {
    /// The ranks to start.
    pub(crate) job: RankJob,
    /// Sizes of the rows.
    pub(crate) sizes: Vec<usize>,
    /// Type of an element.
    pub(crate) dtype: DataType,
    /// Operator.
    pub(crate) op: RedOp,
    /// Verified runs of each row.
    pub(crate) check: u32,
    /// Warm-up runs before the timed ones.
    pub(crate) warmup: u32,
    /// Timed runs; 0 selects a number that fits the size.
    pub(crate) iters: u32,
    /// Print JSON instead of a table.
    pub(crate) json: bool,
    /// The picture to draw.
    pub(crate) plot: Option<plot::PendingPlot>,
    /// The trace to write.
    pub(crate) trace: Option<trace::PendingTrace>,
}

/// Ensures that the plugin offers a device. By default the plugin offers none on a host with RDMA devices that it does
/// not use, so that NCCL uses them by its own transport. The benchmark has no other transport, so this function
/// restarts the program with the software NIC.
///
/// It returns without a restart in three cases:
/// - The plugin offers a device.
/// - `TRUNKLINE_FABRIC` is set to any value, in the environment or in the configuration file.
/// - The settings cannot be read, or the fabric cannot be opened. The plugin reports that error when it is loaded.
///
/// # Errors
/// The program could not be restarted.
pub(crate) fn ready_network() -> std::io::Result<()> {
    let warn = |level, line: &str| {
        if level == LogLevel::Warn {
            eprintln!("trunkline: {line}");
        }
    };
    let settings = ProcessSettings::from_process(FrontEndKind::Nccl);
    if settings.as_ref().is_ok_and(|settings| settings.setting_values().is_set(&network::FABRIC)) {
        return Ok(());
    }
    let opened = settings.and_then(|settings| HardwareFabric::open(&settings, warn));
    match opened {
        Ok(HardwareFabric::PassedOver) => {
            Err(restart::restart_process(&[(network::FABRIC.name, "soft".as_ref())]))
        }
        Ok(HardwareFabric::None | HardwareFabric::Verbs(_) | HardwareFabric::Ofi(_)) | Err(_) => Ok(()),
    }
}

/// Whether processes of one host are to be connected by shared memory, even if another fabric reaches other hosts.
pub(crate) fn is_near() -> bool {
    read_setting(&network::NEAR).is_ok_and(|value| value.as_deref() == Some("1"))
}

/// Enables shared memory inside the host for this process and the ranks that it starts. If the variable is not set yet,
/// the program restarts with it.
///
/// # Errors
/// The program could not be restarted.
pub(crate) fn ready_near() -> std::io::Result<()> {
    if is_near() { Ok(()) } else { Err(restart::restart_process(&[(network::NEAR.name, "1".as_ref())])) }
}

/// Returns the fabric that carries the data: the first part of a value of `TRUNKLINE_FABRIC`, such as `ofi`. Where the
/// user named none (`auto`), the plugin uses software NICs, or EFA or Slingshot through libfabric; the name of the
/// device shows which. The fabric of another plugin is unknown, so the plugin's name is returned.
pub(crate) fn fabric_name(info: &PluginReport) -> &str {
    fabric_of(info, named_fabric().as_deref())
}

fn fabric_of<'a>(info: &'a PluginReport, asked: Option<&str>) -> &'a str {
    if info.name != "Trunkline" {
        return &info.name;
    }
    let asked = asked.and_then(|asked| asked.split(':').next());
    if let Some(named) = ["soft", "verbs", "ofi"].into_iter().find(|&name| asked == Some(name)) {
        return named;
    }
    // Software NICs are called soft0, soft1, ...; a fused device has the names of all its members, joined by +.
    let number = info.device.strip_prefix("soft");
    let is_soft = number.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()));
    if is_soft { "soft" } else { "ofi" }
}

impl BenchSettings {
    /// Timed runs of a size: 20 as in nccl-tests, more if one run is short.
    pub(crate) fn iteration_count(&self, bytes: usize, few: u32, many: u32) -> u32 {
        if self.iters > 0 {
            return self.iters;
        }
        let fitting = (32 << 20) / bytes.max(1);
        u32::try_from(fitting).unwrap_or(many).clamp(few, many)
    }

    /// Stores a row for the picture, if one was requested.
    pub(crate) fn keep_row(&self, line: String) {
        if let Some(plot) = &self.plot {
            plot.add_row(line);
        }
    }

    /// Writes the trace from the ranks' files, if one was requested.
    pub(crate) fn write_trace(
        &self,
        out: &mut impl std::io::Write,
        left: &[LeftFiles],
        info: &PluginReport,
    ) -> Result<(), BenchError> {
        if let Some(trace) = &self.trace {
            trace.write_merged(left, info)?.print_summary(out, !self.json)?;
        }
        Ok(())
    }

    /// Prints the lines above a table.
    pub(crate) fn table_header(&self, what: &str, info: &PluginReport) -> String {
        let job = &self.job;
        let fused = match info.members.as_slice() {
            [] | [_] => String::new(),
            members => {
                let numbers: Vec<String> = members.iter().map(i32::to_string).collect();
                format!(", fused of devices {} by makeVDevice", numbers.join(", "))
            }
        };
        let near = if is_near() { ", ranks of a host by shared memory" } else { "" };
        let flush = if info.flush { "flush after each receive" } else { "no flush after receives" };
        format!(
            "# {what}: {} ranks, {} communicator(s), {} channel(s), chunk {} B, {}, in {} memory, {flush}\n\
             # plugin {} (interface v{}) from {}\n\
             # device {} of {}: {}, {} Mbit/s{fused}{near}\n#",
            job.ranks,
            job.comms,
            job.channels,
            job.chunk,
            sizes::describe_receives(job.receive_min),
            job.memory,
            info.name,
            info.abi,
            job.plugin.display(),
            info.number,
            info.devices,
            info.device,
            info.speed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabric_of_names_the_fabric_of_our_devices_only() {
        let found = |name: &str, device: &str| {
            let name = name.to_owned();
            let device = device.to_owned();
            let info = PluginReport { name, device, abi: 12, ..PluginReport::default() };
            fabric_of(&info, None).to_owned()
        };
        for soft in ["soft0", "soft12", "soft3+soft0"] {
            assert_eq!(found("Trunkline", soft), "soft", "{soft}");
        }
        // Slingshot and EFA, which `auto` uses through libfabric.
        for device in ["cxi0", "cxi0+cxi1", "rdmap0s6-rdm", "softroce"] {
            assert_eq!(found("Trunkline", device), "ofi", "{device}");
        }
        for device in ["eth0", "soft0"] {
            assert_eq!(found("Socket", device), "Socket", "{device}");
        }
        let asked = |name: &str, asked: &str| {
            let info = PluginReport {
                name: name.to_owned(),
                device: "eth0+eth0.1".to_owned(),
                ..PluginReport::default()
            };
            fabric_of(&info, Some(asked)).to_owned()
        };
        assert_eq!(asked("Trunkline", "ofi:tcp"), "ofi");
        assert_eq!(asked("Trunkline", "verbs:mlx5_0"), "verbs");
        assert_eq!(asked("Trunkline", "soft:tcp"), "soft");
        assert_eq!(asked("Socket", "ofi"), "Socket");
    }
}
