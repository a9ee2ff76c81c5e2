//! The devices of a process whose copies have their streams and events. Creating those may wait for a running kernel, so the mapping thread
//! does it; the thread that copies checks here first, and never waits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ipc::error::CallFailure;
use crate::ipc::mapping_queue::MappingQueue;

/// The state of a device.
#[derive(Debug)]
enum DeviceSlots {
    /// Their creation is requested.
    Asked,
    Made,
    /// The driver failed, and no caller has received the error yet.
    Refused(CallFailure),
}

/// All devices for which streams were requested.
#[derive(Debug, Default)]
pub(super) struct PreparedDevices(Mutex<BTreeMap<u32, DeviceSlots>>);

impl PreparedDevices {
    /// Creates the set; device `made` is ready already. `None` if the driver does not distinguish devices.
    pub(super) fn with_device(made: Option<u32>) -> Self {
        Self(Mutex::new(made.map(|device| (device, DeviceSlots::Made)).into_iter().collect()))
    }

    fn lock_devices(&self) -> MutexGuard<'_, BTreeMap<u32, DeviceSlots>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests the streams and events of a device, once.
    pub(super) fn request_device(&self, device: u32, queue: &MappingQueue) {
        let mut all = self.lock_devices();
        if !all.contains_key(&device) && queue.post_prepare(device) {
            all.insert(device, DeviceSlots::Asked);
        }
    }

    /// Returns whether a device has its streams and events, and no other device waits for its own, because the same buffer may span both. Requests
    /// them otherwise.
    ///
    /// # Errors
    /// The driver's error, once; the next call requests them again.
    pub(super) fn poll_device(&self, device: u32, queue: &MappingQueue) -> Result<bool, CallFailure> {
        self.request_device(device, queue);
        let mut all = self.lock_devices();
        let refused = all.get(&device).is_some_and(|slots| matches!(slots, DeviceSlots::Refused(_)));
        if refused && let Some(DeviceSlots::Refused(cause)) = all.remove(&device) {
            return Err(cause);
        }
        let is_made = matches!(all.get(&device), Some(DeviceSlots::Made));
        Ok(is_made && !all.values().any(|slots| matches!(slots, DeviceSlots::Asked)))
    }

    /// Returns whether a device has its streams and events.
    pub(super) fn is_prepared(&self, device: u32) -> bool {
        matches!(self.lock_devices().get(&device), Some(DeviceSlots::Made))
    }

    /// Stores the result of a request for a device.
    pub(super) fn note_answer(&self, device: u32, made: Result<(), CallFailure>) {
        let slots = made.map_or_else(DeviceSlots::Refused, |()| DeviceSlots::Made);
        self.lock_devices().insert(device, slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::mapping_queue::MappingAnswer;

    #[test]
    fn device_is_requested_once_and_again_after_failure() {
        let devices = PreparedDevices::with_device(Some(0));
        let queue = MappingQueue::new().unwrap();
        assert_eq!(devices.poll_device(0, &queue), Ok(true));
        let cause = CallFailure::System { call: "cuStreamCreate", code: 12 };
        for _ in 0..2 {
            assert_eq!(
                [devices.poll_device(1, &queue), devices.poll_device(1, &queue)],
                [Ok(false), Ok(false)]
            );
            assert_eq!(devices.poll_device(0, &queue), Ok(false), "the other device is still pending");
            devices.note_answer(1, Err(cause.clone()));
            assert_eq!(devices.poll_device(0, &queue), Ok(true));
            assert_eq!(devices.poll_device(1, &queue), Err(cause.clone()));
        }
        assert_eq!(devices.poll_device(1, &queue), Ok(false));
        devices.note_answer(1, Ok(()));
        assert_eq!(devices.poll_device(1, &queue), Ok(true));
        let served =
            std::iter::from_fn(|| queue.serve_one(|_| MappingAnswer::Prepared).then_some(())).count();
        assert_eq!(served, 3);
    }
}
