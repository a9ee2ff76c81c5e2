//! The plugin's own calls, through its C table of version 12, as NCCL makes them: init, listen, connect and accept
//! within this process, regMr, messages, deregMr, the closes and finalize.

use std::ffi::{c_int, c_void};
use std::ptr;

use trunkline_sys::nccl_net::v12::NetV12;
use trunkline_sys::nccl_net::{CommConfig, HANDLE_BYTES, PTR_HOST, ResultCode};

use crate::trials::{Case, Outcome, until};
// The table is linked by name.
use trunkline_nccl as _;

/// Runs without a change of the number of allocations after which it counts as stable.
const STEADY: u32 = 64;

unsafe extern "C" {
    safe static ncclNetPlugin_v12: NetV12;
}

pub(crate) const ALL: &[Case] = &[
    ("short messages", || messages(512)),
    ("long messages", || messages(300_000)),
    ("eight connections", || connections(8)),
];

type Opaque = *mut c_void;

/// Calls a function of the table.
macro_rules! call {
    ($slot:ident, $($arg:expr),* $(,)?) => {{
        let function = ncclNetPlugin_v12.$slot.expect(stringify!($slot));
        // SAFETY: the arguments are as NCCL's contract requires: pointers of this function's caller, which outlive the
        // call, and objects that the plugin has made and that are not closed.
        ended(stringify!($slot), unsafe { function($($arg),*) })
    }};
}

/// A call's outcome. Without memory it is a system error, or a remote error, because the peer is this process, too; any
/// other code ends the process.
fn ended(call: &str, code: ResultCode) -> Outcome {
    match code {
        ResultCode::SUCCESS => Ok(()),
        ResultCode::SYSTEM_ERROR | ResultCode::REMOTE_ERROR => Err(format!("{call}: {}", code.0)),
        code => {
            println!("wrong {call} returns {}", code.0);
            std::process::exit(3);
        }
    }
}

/// A communicator's context, finalized on drop.
struct NetContext(Opaque);

impl NetContext {
    fn init() -> Result<Self, String> {
        let (mut context, mut config) = (ptr::null_mut(), CommConfig { traffic_class: -1 });
        call!(init, &raw mut context, 1, &raw mut config, None, None)?;
        Ok(Self(context))
    }
}

impl Drop for NetContext {
    fn drop(&mut self) {
        // It was created, so finalize must succeed.
        call!(finalize, self.0).unwrap();
    }
}

/// An object that is closed on drop: a listener, or one end of a connection.
struct OpenObject(Opaque, fn(Opaque) -> Outcome);

impl Drop for OpenObject {
    fn drop(&mut self) {
        // A close succeeds without memory, because NCCL has no other call for it.
        if let Err(why) = self.1(self.0) {
            println!("wrong {why}");
            std::process::exit(3);
        }
    }
}

/// Two ends of a connection.
struct Ends {
    send: OpenObject,
    recv: OpenObject,
}

impl Ends {
    fn connect(context: &NetContext) -> Result<Self, String> {
        let (mut handle, mut listen) = ([0_u8; HANDLE_BYTES], ptr::null_mut());
        call!(listen, context.0, 0, handle.as_mut_ptr().cast(), &raw mut listen)?;
        let listen = OpenObject(listen, |listen| call!(close_listen, listen));
        let (mut send, mut recv) = (None, None);
        until("a connection", || {
            let mut made = ptr::null_mut();
            if send.is_none() {
                let handle = handle.as_mut_ptr().cast();
                call!(connect, context.0, 0, handle, &raw mut made, ptr::null_mut())?;
                send = (!made.is_null()).then(|| OpenObject(made, |comm| call!(close_send, comm)));
            }
            made = ptr::null_mut();
            if recv.is_none() {
                call!(accept, listen.0, &raw mut made, ptr::null_mut())?;
                recv = (!made.is_null()).then(|| OpenObject(made, |comm| call!(close_recv, comm)));
            }
            Ok((send.is_some() && recv.is_some()).then_some(()))
        })?;
        let (send, recv) = send.zip(recv).ok_or("no connection")?;
        Ok(Self { send, recv })
    }

    /// Sends `count` messages of `from`'s length.
    fn carry(&self, from: &mut NetRegion, into: &mut NetRegion, count: usize) -> Outcome {
        for _ in 0..count {
            let (mut received, mut sent): (Opaque, Opaque) = (ptr::null_mut(), ptr::null_mut());
            until("a request", || {
                if received.is_null() {
                    into.irecv(&self.recv, &mut received)?;
                }
                if sent.is_null() {
                    from.isend(&self.send, &mut sent)?;
                }
                Ok((!received.is_null() && !sent.is_null()).then_some(()))
            })?;
            let (mut all, mut sizes) = ([0; 2], [0; 8]);
            until("a message", || {
                for (done, request) in all.iter_mut().zip([received, sent]) {
                    if *done == 0 {
                        call!(test, request, &raw mut *done, sizes.as_mut_ptr())?;
                    }
                }
                Ok((all == [1; 2]).then_some(()))
            })?;
        }
        if into.bytes != from.bytes {
            Err("other bytes were received than were sent".to_owned())
        } else {
            Ok(())
        }
    }
}

/// Memory that one end has registered.
struct NetRegion {
    comm: Opaque,
    handle: Opaque,
    bytes: Box<[u8]>,
}

impl NetRegion {
    fn register(comm: &OpenObject, byte: u8, len: usize) -> Result<Self, String> {
        let mut bytes = trunkline_proto::reserve::try_filled(byte, len).map_err(|error| error.to_string())?;
        let mut handle = ptr::null_mut();
        call!(reg_mr, comm.0, bytes.as_mut_ptr().cast(), len, PTR_HOST, &raw mut handle)?;
        Ok(Self { comm: comm.0, handle, bytes })
    }

    fn isend(&mut self, comm: &OpenObject, request: &mut Opaque) -> Outcome {
        let (len, at) = (self.bytes.len(), self.bytes.as_mut_ptr().cast());
        call!(isend, comm.0, at, len, 7, self.handle, ptr::null_mut(), request)
    }

    fn irecv(&mut self, comm: &OpenObject, request: &mut Opaque) -> Outcome {
        let mut data: [Opaque; 1] = [self.bytes.as_mut_ptr().cast()];
        let (mut sizes, mut tags) = ([self.bytes.len()], [7 as c_int]);
        let mut handles = [self.handle];
        let (sizes, tags) = (sizes.as_mut_ptr(), tags.as_mut_ptr());
        call!(
            irecv,
            comm.0,
            1,
            data.as_mut_ptr(),
            sizes,
            tags,
            handles.as_mut_ptr(),
            ptr::null_mut(),
            request
        )
    }
}

impl Drop for NetRegion {
    fn drop(&mut self) {
        if let Err(why) = call!(dereg_mr, self.comm, self.handle) {
            println!("wrong {why}");
            std::process::exit(3);
        }
    }
}

/// Plays until the engine's permanent tables have grown to the size that these runs need: freed ids stay unused for
/// some time before they are reused. `live` returns the number of large allocations.
pub(crate) fn warm_up(live: impl Fn() -> i64) {
    let (mut last, mut same) = (live(), 0);
    while same < STEADY {
        connections(8).unwrap();
        let now = live();
        (last, same) = (now, if now == last { same + 1 } else { 0 });
    }
}

/// A communicator's whole life, with messages of a length.
pub(crate) fn messages(len: usize) -> Outcome {
    let context = NetContext::init()?;
    let mut count: c_int = 0;
    call!(devices, &raw mut count)?;
    let ends = Ends::connect(&context)?;
    let mut from = NetRegion::register(&ends.send, 5, len)?;
    let mut into = NetRegion::register(&ends.recv, 0, len)?;
    ends.carry(&mut from, &mut into, 3)
}

/// Several connections at once, each with a message.
fn connections(count: usize) -> Outcome {
    let context = NetContext::init()?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Ends::connect(&context)?);
    }
    for ends in &all {
        let mut from = NetRegion::register(&ends.send, 5, 4000)?;
        let mut into = NetRegion::register(&ends.recv, 0, 4000)?;
        ends.carry(&mut from, &mut into, 1)?;
    }
    Ok(())
}
