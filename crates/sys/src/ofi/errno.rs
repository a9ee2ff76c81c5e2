//! Error numbers of the interface: some numbers of the operating system, and its own. Functions return them negated.

/// `FI_EPERM`: operation not permitted.
pub const EPERM: i32 = 1;
/// `FI_ENOENT`: no such file or directory.
pub const ENOENT: i32 = 2;
/// `FI_EINTR`: interrupted system call.
pub const EINTR: i32 = 4;
/// `FI_EIO`: I/O error.
pub const EIO: i32 = 5;
/// `FI_E2BIG`: argument list too long.
pub const E2BIG: i32 = 7;
/// `FI_EBADF`: bad file number.
pub const EBADF: i32 = 9;
/// `FI_EAGAIN`: try again.
pub const EAGAIN: i32 = 11;
/// `FI_ENOMEM`: out of memory.
pub const ENOMEM: i32 = 12;
/// `FI_EACCES`: permission denied.
pub const EACCES: i32 = 13;
/// `FI_EFAULT`: bad address.
pub const EFAULT: i32 = 14;
/// `FI_EBUSY`: device or resource busy.
pub const EBUSY: i32 = 16;
/// `FI_ENODEV`: no such device.
pub const ENODEV: i32 = 19;
/// `FI_EINVAL`: invalid argument.
pub const EINVAL: i32 = 22;
/// `FI_EMFILE`: too many open files.
pub const EMFILE: i32 = 24;
/// `FI_ENOSPC`: no space left on device.
pub const ENOSPC: i32 = 28;
/// `FI_ENOSYS`: function not implemented.
pub const ENOSYS: i32 = 38;
/// `FI_EWOULDBLOCK`: operation would block.
pub const EWOULDBLOCK: i32 = 11;
/// `FI_ENOMSG`: no message of desired type.
pub const ENOMSG: i32 = 42;
/// `FI_ENODATA`: no data available.
pub const ENODATA: i32 = 61;
/// `FI_EOVERFLOW`: value too large for defined data type.
pub const EOVERFLOW: i32 = 75;
/// `FI_EMSGSIZE`: message too long.
pub const EMSGSIZE: i32 = 90;
/// `FI_ENOPROTOOPT`: protocol not available.
pub const ENOPROTOOPT: i32 = 92;
/// `FI_EOPNOTSUPP`: operation not supported on transport endpoint.
pub const EOPNOTSUPP: i32 = 95;
/// `FI_EADDRINUSE`: address already in use.
pub const EADDRINUSE: i32 = 98;
/// `FI_EADDRNOTAVAIL`: cannot assign requested address.
pub const EADDRNOTAVAIL: i32 = 99;
/// `FI_ENETDOWN`: network is down.
pub const ENETDOWN: i32 = 100;
/// `FI_ENETUNREACH`: network is unreachable.
pub const ENETUNREACH: i32 = 101;
/// `FI_ECONNABORTED`: software caused connection abort.
pub const ECONNABORTED: i32 = 103;
/// `FI_ECONNRESET`: connection reset by peer.
pub const ECONNRESET: i32 = 104;
/// `FI_ENOBUFS`: no buffer space available.
pub const ENOBUFS: i32 = 105;
/// `FI_EISCONN`: transport endpoint is already connected.
pub const EISCONN: i32 = 106;
/// `FI_ENOTCONN`: transport endpoint is not connected.
pub const ENOTCONN: i32 = 107;
/// `FI_ESHUTDOWN`: cannot send after transport endpoint shutdown.
pub const ESHUTDOWN: i32 = 108;
/// `FI_ETIMEDOUT`: connection timed out.
pub const ETIMEDOUT: i32 = 110;
/// `FI_ECONNREFUSED`: connection refused.
pub const ECONNREFUSED: i32 = 111;
/// `FI_EHOSTDOWN`: host is down.
pub const EHOSTDOWN: i32 = 112;
/// `FI_EHOSTUNREACH`: no route to host.
pub const EHOSTUNREACH: i32 = 113;
/// `FI_EALREADY`: operation already in progress.
pub const EALREADY: i32 = 114;
/// `FI_EINPROGRESS`: operation now in progress.
pub const EINPROGRESS: i32 = 115;
/// `FI_EREMOTEIO`: remote I/O error.
pub const EREMOTEIO: i32 = 121;
/// `FI_ECANCELED`: operation canceled.
pub const ECANCELED: i32 = 125;
/// `FI_EKEYREJECTED`: key was rejected by service.
pub const EKEYREJECTED: i32 = 129;
/// `FI_EOTHER`: unspecified error.
pub const EOTHER: i32 = 256;
/// `FI_ETOOSMALL`: provided buffer is too small.
pub const ETOOSMALL: i32 = 257;
/// `FI_EOPBADSTATE`: operation not permitted in current state.
pub const EOPBADSTATE: i32 = 258;
/// `FI_EAVAIL`: error available.
pub const EAVAIL: i32 = 259;
/// `FI_EBADFLAGS`: flags not supported.
pub const EBADFLAGS: i32 = 260;
/// `FI_ENOEQ`: missing or unavailable event queue.
pub const ENOEQ: i32 = 261;
/// `FI_EDOMAIN`: invalid resource domain.
pub const EDOMAIN: i32 = 262;
/// `FI_ENOCQ`: missing or unavailable completion queue.
pub const ENOCQ: i32 = 263;
/// `FI_ECRC`: CRC error.
pub const ECRC: i32 = 264;
/// `FI_ETRUNC`: truncation error.
pub const ETRUNC: i32 = 265;
/// `FI_ENOKEY`: required key not available.
pub const ENOKEY: i32 = 266;
/// `FI_ENOAV`: missing or unavailable address vector.
pub const ENOAV: i32 = 267;
/// `FI_EOVERRUN`: queue has been overrun.
pub const EOVERRUN: i32 = 268;
/// `FI_ENORX`: receiver not ready, no receive buffers available.
pub const ENORX: i32 = 269;
