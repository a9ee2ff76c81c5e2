//! Notes for users on which NICs reach GPU memory, and why others do not. Used by the banner of a front end and by
//! `trunkline info`; opens no driver.

use trunkline_fabric::{DeviceReach, Fabric as _, NicPort};
use trunkline_mem::gpu::VendorDrivers;
use trunkline_ofi::OfiFabric;
use trunkline_verbs::VerbsFabric;

/// Whether and how a NIC reaches GPU memory, or why it does not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GpuNote {
    /// The name of the NIC.
    pub nic: String,
    /// Whether GPU memory may be registered with it.
    pub reached: bool,
    /// The way, or the reason against.
    pub note: String,
}

/// Limits RDMA devices to the GPU memory that these drivers support, and returns a note per NIC.
#[must_use]
pub fn meet_verbs(fabric: VerbsFabric, gpus: &VendorDrivers) -> (VerbsFabric, Vec<GpuNote>) {
    let alone: Vec<DeviceReach> = fabric.nics().iter().map(|nic| nic.caps.devices).collect();
    let fabric = fabric.with_gpus(gpus);
    let one = |(nic, alone): (&NicPort, DeviceReach)| GpuNote {
        nic: nic.name.clone(),
        reached: nic.caps.devices.reaches_any(),
        note: gpu_note(nic.caps.devices, alone, gpus),
    };
    let notes = fabric.nics().iter().zip(alone).map(one).collect();
    (fabric, notes)
}

/// Limits libfabric's NICs to the GPU memory that a trial registration accepts, and returns a note per NIC.
#[must_use]
pub fn meet_ofi(fabric: OfiFabric, gpus: &VendorDrivers) -> (OfiFabric, Vec<GpuNote>) {
    if !fabric.reaches_devices() {
        let note = format!("provider {} does not support GPU memory (FI_HMEM)", fabric.provider_name());
        let one = |nic: &NicPort| GpuNote { nic: nic.name.clone(), reached: false, note: note.clone() };
        let notes = fabric.nics().iter().map(one).collect();
        return (fabric, notes);
    }
    let fabric = fabric.with_gpus(gpus);
    let refusals = |name: &str| {
        let notes =
            fabric.nic_notes().iter().filter_map(|(_, note)| note.strip_prefix(&format!("NIC {name}: ")));
        notes.collect::<Vec<_>>().join("; ")
    };
    let one = |nic: &NicPort| GpuNote {
        nic: nic.name.clone(),
        reached: nic.caps.devices.reaches_any(),
        note: describe_trial(nic.caps.devices, &refusals(&nic.name)),
    };
    let notes = fabric.nics().iter().map(one).collect();
    (fabric, notes)
}

/// Describes the outcome of a trial registration.
fn describe_trial(reach: DeviceReach, refused: &str) -> String {
    match (reach.reaches_any(), refused) {
        (true, "") => describe_reach(reach),
        (true, refused) => format!("{}; not {refused}", describe_reach(reach)),
        (false, "") => "granted, but there is no driver".to_owned(),
        (false, refused) => refused.to_owned(),
    }
}

/// Lists the ways in which a NIC reaches GPU memory.
fn describe_ways(reach: DeviceReach) -> String {
    let all = [
        (reach.dmabuf, "as dma-bufs"),
        (reach.nvidia, "by address (nvidia-peermem)"),
        (reach.amd, "by address (AMD's peer memory)"),
    ];
    all.into_iter().filter(|(on, _)| *on).map(|(_, way)| way).collect::<Vec<_>>().join(", ")
}

/// Lists the ways, and whether writes are flushed.
fn describe_reach(reach: DeviceReach) -> String {
    let flush = if reach.needs_flush { "" } else { "; flushes are switched off (NCCL_GDR_FLUSH_DISABLE)" };
    format!("{}{flush}", describe_ways(reach))
}

/// Describes the GPU memory that a NIC reaches with these drivers, or why it reaches none although it could `alone`.
fn gpu_note(reach: DeviceReach, alone: DeviceReach, gpus: &VendorDrivers) -> String {
    match (reach.reaches_any(), alone.reaches_any()) {
        (true, _) => describe_reach(reach),
        (false, true) if gpus.open_drivers().is_empty() => {
            format!("{}, but there is no driver", describe_ways(alone))
        }
        (false, true) => {
            format!(
                "{}, but the driver does not: load nvidia-peermem, or use a newer driver",
                describe_ways(alone)
            )
        }
        (false, false) => {
            "kernel, rdma-core or the NIC's driver register no dma-bufs, and no module for peer memory is \
                           loaded (modprobe nvidia-peermem)"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_a_nic_names_its_reach_or_the_cause() {
        let none = DeviceReach { needs_flush: true, ..DeviceReach::default() };
        let all = DeviceReach { dmabuf: true, nvidia: true, amd: false, needs_flush: true };
        let gpus = VendorDrivers::default();
        assert_eq!(gpu_note(all, all, &gpus), "as dma-bufs, by address (nvidia-peermem)");
        assert!(gpu_note(none, all, &gpus).ends_with("but there is no driver"));
        assert!(gpu_note(none, none, &gpus).contains("modprobe nvidia-peermem"));
        assert!(gpu_note(DeviceReach { needs_flush: false, ..all }, all, &gpus).contains("switched off"));
        let refused = "memory of NVIDIA GPUs as a dma-buf: invalid argument";
        assert_eq!(describe_trial(none, refused), refused);
        let one = DeviceReach { dmabuf: false, ..all };
        assert_eq!(describe_trial(one, refused), format!("by address (nvidia-peermem); not {refused}"));
        assert!(describe_trial(none, "").contains("no driver"));
    }
}
