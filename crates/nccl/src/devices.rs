//! The devices that NCCL sees: the fabric's NICs, followed by the virtual devices that `makeVDevice` has fused of
//! several NICs. Owned by `world`, used by `plugin` during setup.
//!
//! No message uses this module, so a lock is fast enough. Devices exist while the library is loaded: NCCL keeps their
//! numbers and pointers to their names. A virtual device is never a member of another one, and versions without
//! `makeVDevice` never see one.

use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_engine::CommNics;
use trunkline_fabric::{DeviceReach, NicPort};
use trunkline_proto::limits::RAILS_MAX;

use crate::status::NetCallError;

/// Virtual devices of a process, at most.
const VIRTUAL_MAX: usize = 256;

/// The devices that a version of the interface knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum KnownDevices {
    /// Only the fabric's NICs: versions without `makeVDevice`.
    Physical,
    /// Virtual devices, too.
    All,
}

/// A device. A physical device consists of one NIC.
#[derive(Debug)]
pub(crate) struct NetDevice {
    name: CString,
    pci_path: Option<CString>,
    /// The NICs that its comms use.
    pub(crate) nics: CommNics,
    /// The GUID of the first NIC.
    pub(crate) guid: u64,
    /// The port of the first NIC.
    pub(crate) port: u32,
    /// The sum of all NICs, in Mb/s.
    pub(crate) speed_mbps: u32,
    /// The highest latency of its NICs, in microseconds; 0 if unknown.
    pub(crate) latency_us: f32,
    /// Whether one of its NICs needs flushes.
    pub(crate) needs_flush: bool,
    /// GPU memory that all of its NICs can access.
    pub(crate) reach: DeviceReach,
    /// The lowest limit of its NICs: a comm uses one link of each NIC.
    pub(crate) links_max: u32,
}

impl NetDevice {
    fn from_nics(nics: CommNics, all: &[NicPort]) -> Self {
        let members: Vec<&NicPort> = nics.numbers().iter().filter_map(|&number| all.get(number)).collect();
        let names: Vec<&str> = members.iter().map(|nic| nic.name.as_str()).collect();
        let first = members.first();
        Self {
            // C strings cannot contain a NUL; such a device has an empty name.
            name: CString::new(names.join("+")).unwrap_or_default(),
            pci_path: first.and_then(|nic| CString::new(nic.pci_path.as_deref()?).ok()),
            nics,
            guid: first.map_or(0, |nic| nic.guid),
            port: first.map_or(0, |nic| nic.port),
            speed_mbps: members.iter().fold(0, |sum, nic| sum.saturating_add(nic.speed_mbps)),
            latency_us: members.iter().fold(0.0, |most, nic| nic.latency_us.max(most)),
            needs_flush: members.iter().any(|nic| nic.caps.needs_flush),
            reach: members
                .iter()
                .map(|nic| nic.caps.devices)
                .reduce(DeviceReach::intersect_with)
                .unwrap_or_default(),
            links_max: members.iter().map(|nic| nic.caps.links_max).min().unwrap_or(0),
        }
    }

    /// Returns the name; for a fused NIC, the names of its members, joined by `+`.
    pub(crate) fn device_name(&self) -> &CStr {
        &self.name
    }

    /// Returns the path of the first NIC.
    pub(crate) fn pci_path(&self) -> Option<&CStr> {
        self.pci_path.as_deref()
    }
}

/// The devices that `makeVDevice` made, in the order of their numbers.
#[derive(Debug, Default)]
struct FusedDevices {
    made: Vec<NetDevice>,
    /// How many of them `devices` counts.
    counted: usize,
}

/// All devices of this process.
#[derive(Debug)]
pub(crate) struct NetDevices {
    physical: Vec<NetDevice>,
    fused: Mutex<FusedDevices>,
}

/// Converts to NCCL's number type.
fn to_int(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl NetDevices {
    /// Creates a device for each NIC.
    pub(crate) fn new(nics: &[NicPort]) -> Self {
        let physical =
            (0..nics.len()).map(|number| NetDevice::from_nics(CommNics::from(number), nics)).collect();
        Self { physical, fused: Mutex::default() }
    }

    fn lock_fused(&self) -> MutexGuard<'_, FusedDevices> {
        self.fused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of devices. NCCL queries it again after it has made virtual devices, and uses the
    /// difference as their number.
    pub(crate) fn device_count(&self, known: KnownDevices) -> i32 {
        let physical = self.physical.len();
        to_int(if sees_virtual(known) { physical + self.lock_fused().counted } else { physical })
    }

    /// Calls `look` with the device of a number.
    pub(crate) fn with_device<R>(
        &self,
        dev: i32,
        known: KnownDevices,
        look: impl FnOnce(&NetDevice) -> R,
    ) -> Result<R, NetCallError> {
        let none = NetCallError::Argument("the device number is not below the count that `devices` returns");
        let Ok(at) = usize::try_from(dev) else { return Err(none) };
        if let Some(device) = self.physical.get(at) {
            return Ok(look(device));
        }
        if !sees_virtual(known) {
            return Err(none);
        }
        self.lock_fused().made.get(at - self.physical.len()).map(look).ok_or(none)
    }

    /// Fuses the physical devices of these numbers. The same members in the same order always give the same device.
    pub(crate) fn fuse_devices(&self, members: &[i32], nics: &[NicPort]) -> Result<i32, NetCallError> {
        let member = |dev: &i32| {
            usize::try_from(*dev).ok().filter(|_| *dev < self.device_count(KnownDevices::Physical))
        };
        let numbers: Option<Vec<usize>> = members.iter().map(member).collect();
        let Some(numbers) = numbers else {
            return Err(NetCallError::Argument(
                "a member of a fused NIC must be a physical device of this plugin",
            ));
        };
        if numbers.is_empty() {
            return Err(NetCallError::Argument("a fused NIC must have at least one member"));
        }
        if numbers.len() > RAILS_MAX {
            return Err(NetCallError::Members { asked: numbers.len(), most: RAILS_MAX });
        }
        let Some(chosen) = CommNics::new(&numbers) else {
            return Err(NetCallError::Argument("a fused NIC has the same member twice"));
        };
        let mut fused = self.lock_fused();
        let same = fused.made.iter().position(|device| device.nics == chosen);
        let at = match same {
            Some(at) => at,
            None if fused.made.len() >= VIRTUAL_MAX => return Err(NetCallError::Virtual(VIRTUAL_MAX)),
            None => {
                fused.made.push(NetDevice::from_nics(chosen, nics));
                fused.made.len() - 1
            }
        };
        fused.counted = fused.counted.max(at + 1);
        Ok(to_int(self.physical.len() + at))
    }

    /// Resets the count of virtual devices when NCCL starts again without any communicator. If NCCL has forgotten the
    /// devices (it had closed the library, which another user kept loaded), it first queries the number of physical
    /// devices; otherwise it queries nothing. So virtual devices keep their numbers, and are counted only after they
    /// are made again.
    pub(crate) fn reset_counted(&self) {
        let mut fused = self.lock_fused();
        fused.counted = 0;
    }
}

fn sees_virtual(known: KnownDevices) -> bool {
    known == KnownDevices::All
}

#[cfg(test)]
mod tests {
    use trunkline_fabric::Fabric as _;
    use trunkline_softnic::{SoftConfig, SoftFabric};

    use super::*;

    /// Six NICs that all differ.
    fn nics() -> Vec<NicPort> {
        let fabric = SoftFabric::new(SoftConfig { nics: 6, ..SoftConfig::default() }).unwrap();
        let unlike = |(at, nic): (usize, &NicPort)| {
            let mut nic = nic.clone();
            nic.speed_mbps = 1000 << at;
            nic.latency_us = [3.0, 1.0, 7.0, 2.0, 0.0, 5.0][at];
            nic.caps.links_max = [50, 40, 60, 70, 80, 90][at];
            nic.caps.needs_flush = at == 3;
            nic.pci_path = (at > 0).then(|| format!("/sys/{at}"));
            nic
        };
        fabric.nics().iter().enumerate().map(unlike).collect()
    }

    #[test]
    fn a_fused_nic_is_the_sum_of_its_members() {
        let nics = nics();
        let devices = NetDevices::new(&nics);
        assert_eq!(devices.fuse_devices(&[2, 0, 3], &nics).unwrap(), 6);
        assert_eq!(
            (devices.device_count(KnownDevices::Physical), devices.device_count(KnownDevices::All)),
            (6, 7)
        );
        devices
            .with_device(6, KnownDevices::All, |device| {
                assert_eq!(device.device_name(), c"soft2+soft0+soft3");
                assert_eq!(device.pci_path(), Some(c"/sys/2"));
                assert_eq!((device.guid, device.port), (nics[2].guid, nics[2].port));
                assert_eq!((device.speed_mbps, device.latency_us), (4000 + 1000 + 8000, 7.0));
                assert_eq!((device.links_max, device.needs_flush), (50, true));
                assert_eq!(device.nics.numbers(), [2, 0, 3]);
            })
            .unwrap();
        devices.with_device(1, KnownDevices::All, |device| assert_eq!(device.nics.numbers(), [1])).unwrap();
        for (dev, known) in [
            (6, KnownDevices::Physical),
            (7, KnownDevices::All),
            (-1, KnownDevices::All),
            (i32::MAX, KnownDevices::All),
        ] {
            assert!(
                matches!(devices.with_device(dev, known, |_| ()), Err(NetCallError::Argument(_))),
                "{dev}"
            );
        }
    }

    #[test]
    fn impossible_member_lists_are_refused() {
        let nics = nics();
        let devices = NetDevices::new(&nics);
        let made = devices.fuse_devices(&[0, 1], &nics).unwrap();
        for wrong in [&[][..], &[0, 0], &[1, 2, 1], &[-1], &[0, 7], &[made], &[0, made], &[i32::MIN, 0]] {
            assert!(
                matches!(devices.fuse_devices(wrong, &nics), Err(NetCallError::Argument(_))),
                "{wrong:?}"
            );
        }
        let told = devices.fuse_devices(&[0, 1, 2, 3, 4], &nics).unwrap_err().to_string();
        assert!(told.contains("at most 4 members") && told.contains("5 were"), "{told}");
        assert_eq!(devices.device_count(KnownDevices::All), 7, "a refused request creates no device");
    }

    #[test]
    fn virtual_devices_are_limited() {
        let nics = nics();
        let devices = NetDevices::new(&nics);
        // The four-digit numbers of base 6 whose digits differ: 360.
        let lists = (0..1296).map(|n| [n / 216, n / 36 % 6, n / 6 % 6, n % 6]);
        let differ = |list: &[i32; 4]| (1..4).all(|at| !list[..at].contains(&list[at]));
        let mut made = 0;
        for list in lists.filter(differ) {
            match devices.fuse_devices(&list, &nics) {
                Ok(dev) => assert_eq!(dev, 6 + made),
                Err(error) => {
                    assert!(error.to_string().contains("256"), "{error}");
                    break;
                }
            }
            made += 1;
        }
        assert_eq!(made, 256);
        assert_eq!(
            devices.fuse_devices(&[0, 1, 2, 3], &nics).unwrap(),
            6,
            "an existing device needs no room"
        );
        assert_eq!(devices.device_count(KnownDevices::All), 262);
    }

    #[test]
    fn virtual_devices_keep_their_numbers_after_a_restart() {
        let nics = nics();
        let devices = NetDevices::new(&nics);
        assert_eq!(devices.fuse_devices(&[0, 1], &nics).unwrap(), 6);
        assert_eq!(devices.fuse_devices(&[2, 3], &nics).unwrap(), 7);
        assert_eq!(devices.fuse_devices(&[1, 0], &nics).unwrap(), 8, "another order is another device");
        let name = devices.with_device(7, KnownDevices::All, |device| device.device_name().as_ptr()).unwrap();
        devices.reset_counted();
        assert_eq!(devices.device_count(KnownDevices::All), 6);
        assert_eq!(
            devices.with_device(7, KnownDevices::All, |device| device.device_name().as_ptr()).unwrap(),
            name
        );
        assert_eq!(devices.fuse_devices(&[0, 1], &nics).unwrap(), 6);
        assert_eq!(devices.device_count(KnownDevices::All), 7);
        assert_eq!(devices.fuse_devices(&[2, 3], &nics).unwrap(), 7);
        assert_eq!(devices.device_count(KnownDevices::All), 8);
    }
}
