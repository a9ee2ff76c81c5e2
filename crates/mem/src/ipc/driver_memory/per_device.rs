//! What each device of a process has of its own, by the device's number.

use std::sync::{Mutex, PoisonError};

use crate::gpu::DriverCallError;

/// Handles of a driver, one for each device, made when it is first wanted.
#[derive(Debug)]
pub(in crate::ipc) struct PerDevice<T> {
    /// Null where there is none yet. One lock per device, as to make a handle may take long: callers for another device do not wait for that.
    made: Vec<Mutex<*mut T>>,
}

impl<T> PerDevice<T> {
    /// For so many devices.
    pub(in crate::ipc) fn for_devices(devices: u32) -> Self {
        Self { made: (0..devices).map(|_| Mutex::new(std::ptr::null_mut())).collect() }
    }

    /// A device's, which is made if need be, once.
    ///
    /// # Errors
    /// What making it says; then there is none, and the next one who wants it tries again.
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

    /// All that were made, to be ended.
    pub(in crate::ipc) fn take_all(&mut self) -> impl Iterator<Item = (u32, *mut T)> + use<T> {
        let all = std::mem::take(&mut self.made).into_iter();
        let all = all.map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner));
        (0..).zip(all).filter(|(_, made)| !made.is_null())
    }
}

/// The device that maps and copies for memory of device `own`, or of the host, of so many devices of which one is for all else; `None` where
/// there is nothing to tell apart.
pub(in crate::ipc) fn choose_device(devices: u32, by_default: u32, own: Option<u32>) -> Option<u32> {
    (devices > 1).then(|| own.filter(|own| *own < devices).unwrap_or(by_default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_made_once_and_again_only_where_that_failed() {
        let mut one = 5;
        let at = &raw mut one;
        let mut each = PerDevice::<i32>::for_devices(3);
        let failed = || DriverCallError { call: "cuStreamCreate", code: 2, name: "?".to_owned(), remedy: "" };
        assert!(each.get(1, || Err(failed())).is_err());
        assert_eq!(each.get(1, || Ok(at)), Ok(at));
        assert_eq!(each.get(1, || Err(failed())), Ok(at), "it is there");
        assert_eq!(each.take_all().collect::<Vec<_>>(), [(1, at)]);
        assert_eq!(each.take_all().count(), 0);
    }

    #[test]
    fn one_device_is_none_among_several() {
        assert_eq!([choose_device(1, 0, None), choose_device(1, 0, Some(0))], [None, None]);
        assert_eq!(
            [choose_device(3, 2, None), choose_device(3, 2, Some(1)), choose_device(3, 2, Some(7))],
            [Some(2), Some(1), Some(2)]
        );
    }
}
