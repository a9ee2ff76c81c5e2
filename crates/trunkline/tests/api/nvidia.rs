//! Calls of NVIDIA's driver for tests on a GPU: memory of a pool, segments, and the amount of free memory.

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;

use libloading::os::unix::Library;

type Code = u32;

/// The first device of this process, with its primary context, which is kept until the process ends.
pub(crate) struct Nvidia {
    library: ManuallyDrop<Library>,
    context: *mut c_void,
}

impl Nvidia {
    pub(crate) fn open() -> Self {
        // SAFETY: each caller has the driver open already.
        let library = ManuallyDrop::new(unsafe { Library::new("libcuda.so.1") }.unwrap());
        let mut nvidia = Self { library, context: std::ptr::null_mut() };
        let init: unsafe extern "C" fn(u32) -> Code = nvidia.function(c"cuInit");
        // SAFETY: cuInit may be called several times.
        assert_eq!(unsafe { init(0) }, 0);
        let retain: unsafe extern "C" fn(*mut *mut c_void, i32) -> Code =
            nvidia.function(c"cuDevicePrimaryCtxRetain");
        // SAFETY: the pointer is to a local variable.
        assert_eq!(unsafe { retain(&raw mut nvidia.context, 0) }, 0);
        nvidia
    }

    fn function<T: Copy>(&self, name: &CStr) -> T {
        // SAFETY: the driver's header declares a function of this name with that type.
        *unsafe { self.library.get::<T>(name.to_bytes_with_nul()) }.unwrap()
    }

    fn within<T>(&self, call: impl FnOnce() -> T) -> T {
        let push: unsafe extern "C" fn(*mut c_void) -> Code = self.function(c"cuCtxPushCurrent_v2");
        let pop: unsafe extern "C" fn(*mut *mut c_void) -> Code = self.function(c"cuCtxPopCurrent_v2");
        // SAFETY: the context is retained until the process ends.
        assert_eq!(unsafe { push(self.context) }, 0);
        let result = call();
        let mut popped = std::ptr::null_mut();
        // SAFETY: the context was pushed above.
        assert_eq!(unsafe { pop(&raw mut popped) }, 0);
        result
    }

    /// Allocates memory of the default pool, as `cudaMallocAsync` does. It is kept until the process ends.
    pub(crate) fn pooled(&self, len: usize) -> usize {
        let allocate: unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> Code =
            self.function(c"cuMemAllocAsync");
        let synchronize: unsafe extern "C" fn() -> Code = self.function(c"cuCtxSynchronize");
        let mut at = 0;
        self.within(|| {
            // SAFETY: the pointer is to a local variable, and 0 is the default stream.
            assert_eq!(unsafe { allocate(&raw mut at, len, std::ptr::null_mut()) }, 0);
            // SAFETY: a context is current here.
            assert_eq!(unsafe { synchronize() }, 0);
        });
        at as usize
    }

    /// Maps consecutive segments of virtual memory, as PyTorch's expandable segments are, of at least `len` bytes in
    /// total. They are kept until the process ends.
    pub(crate) fn segments(&self, len: usize) -> usize {
        // `CUmemAllocationProp`: pinned memory of the first device, to be exported as a descriptor.
        let properties: [u64; 4] = [1 | 1 << 32, 1, 0, 0];
        // `CUmemAccessDesc`: the first device reads and writes.
        let access: [u32; 3] = [1, 0, 3];
        let granularity: unsafe extern "C" fn(*mut usize, *const u64, u32) -> Code =
            self.function(c"cuMemGetAllocationGranularity");
        let reserve: unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> Code =
            self.function(c"cuMemAddressReserve");
        let create: unsafe extern "C" fn(*mut u64, usize, *const u64, u64) -> Code =
            self.function(c"cuMemCreate");
        let map: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> Code = self.function(c"cuMemMap");
        let allow: unsafe extern "C" fn(u64, usize, *const u32, usize) -> Code =
            self.function(c"cuMemSetAccess");
        let (mut step, mut base) = (0, 0);
        self.within(|| {
            // SAFETY: the pointers are to local variables.
            assert_eq!(unsafe { granularity(&raw mut step, properties.as_ptr(), 0) }, 0);
            let step = step.max(2 << 20);
            let all = len.next_multiple_of(step);
            // SAFETY: the pointer is to a local variable.
            assert_eq!(unsafe { reserve(&raw mut base, all, 0, 0, 0) }, 0);
            for at in (0..all).step_by(step) {
                let mut handle = 0;
                // SAFETY: the pointers are to local variables.
                assert_eq!(unsafe { create(&raw mut handle, step, properties.as_ptr(), 0) }, 0);
                // SAFETY: the range is inside the reservation above.
                assert_eq!(unsafe { map(base + at as u64, step, 0, handle, 0) }, 0);
            }
            // SAFETY: the memory was mapped above, and the count is that of the one description.
            assert_eq!(unsafe { allow(base, all, access.as_ptr(), 1) }, 0);
        });
        base as usize
    }

    /// Returns the free bytes of the device.
    pub(crate) fn free_bytes(&self) -> usize {
        let ask: unsafe extern "C" fn(*mut usize, *mut usize) -> Code = self.function(c"cuMemGetInfo_v2");
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to local variables.
        self.within(|| assert_eq!(unsafe { ask(&raw mut free, &raw mut total) }, 0));
        free
    }
}
