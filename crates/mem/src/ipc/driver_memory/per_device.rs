//! Driver objects per device of a process, by the device's number.

use std::sync::{Mutex, PoisonError};

use crate::gpu::DriverCallError;

/// Handles of a driver, one per device, created on first use.
#[derive(Debug)]
pub(in crate::ipc) struct PerDevice<T> {
    /// Null until created. One lock per device, because creating a handle may take long and must not block callers for other devices.
    made: Vec<Mutex<*mut T>>,
}

impl<T> PerDevice<T> {
    /// Prepares places for that many devices.
    pub(in crate::ipc) fn for_devices(devices: u32) -> Self {
        Self { made: (0..devices).map(|_| Mutex::new(std::ptr::null_mut())).collect() }
    }

    /// Returns the handle of a device, creating it once by `make`.
    ///
    /// # Errors
    /// The error of `make`; the next call tries again.
    pub(in crate::ipc) fn get(
        &self,
        device: u32,
        make: impl FnOnce() -> Result<*mut T, DriverCallError>,
    ) -> Result<*mut T, DriverCallError> {
        let Some(place) = self.made.get(device as usize) else { return make() };
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.is_null() {
            *place = make()?;
        }
        Ok(*place)
    }

    /// Takes all created handles out, to destroy them.
    pub(in crate::ipc) fn take_all(&mut self) -> impl Iterator<Item = (u32, *mut T)> + use<T> {
        let all = std::mem::take(&mut self.made).into_iter();
        let all = all.map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner));
        (0..).zip(all).filter(|(_, made)| !made.is_null())
    }
}

/// Returns the device that maps and copies for memory of device `own`, or of the host: `own` if it is valid, else `by_default`. Returns `None`
/// if there is only one device.
pub(in crate::ipc) fn choose_device(devices: u32, by_default: u32, own: Option<u32>) -> Option<u32> {
    (devices > 1).then(|| own.filter(|own| *own < devices).unwrap_or(by_default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_is_created_once_unless_creation_failed() {
        let mut one = 5;
        let at = &raw mut one;
        let mut each = PerDevice::<i32>::for_devices(3);
        let failed = || DriverCallError { call: "cuStreamCreate", code: 2, name: "?".to_owned(), remedy: "" };
        assert!(each.get(1, || Err(failed())).is_err());
        assert_eq!(each.get(1, || Ok(at)), Ok(at));
        assert_eq!(each.get(1, || Err(failed())), Ok(at), "the handle of the first call must be returned");
        assert_eq!(each.take_all().collect::<Vec<_>>(), [(1, at)]);
        assert_eq!(each.take_all().count(), 0);
    }

    #[test]
    fn single_device_is_not_distinguished() {
        assert_eq!([choose_device(1, 0, None), choose_device(1, 0, Some(0))], [None, None]);
        assert_eq!(
            [choose_device(3, 2, None), choose_device(3, 2, Some(1)), choose_device(3, 2, Some(7))],
            [Some(2), Some(1), Some(2)]
        );
    }
}
