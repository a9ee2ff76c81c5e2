//! Devices and their properties, hints, and invalid arguments.

use std::collections::HashSet;
use std::ffi::CStr;
use std::ptr::{null_mut, with_exposed_provenance_mut};

use trunkline_sys::nccl_net::{NET_SIZE_BYTES_MAX, PTR_CUDA, PTR_HOST, ResultCode};

use crate::contract::messages::round;
use crate::net::{Buf, Comm, Net, Request};
use crate::raw::{Group, Opaque};
use crate::run::Scene;

scenarios! {
    properties_stay,
    fused_devices_and_hints,
    null_and_unknown_arguments,
}

pub(crate) fn text(pointer: *mut std::ffi::c_char) -> String {
    // SAFETY: strings of properties stay, NUL-terminated, while the plugin is loaded.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

fn properties_stay(scene: Scene) {
    let net = Net::start(scene.version);
    assert_eq!(text(net.raw.name().cast_mut()), "Trunkline");
    let count = net.devices();
    assert!(count > 0);
    let all: Vec<_> = (0..count).map(|dev| net.props(dev).unwrap()).collect();
    let names: HashSet<String> = all.iter().map(|props| text(props.name)).collect();
    assert_eq!(names.len(), all.len(), "devices of one name");
    for (dev, props) in all.iter().enumerate() {
        assert!(!text(props.name).is_empty());
        assert_eq!(props.ptr_support & PTR_HOST, PTR_HOST);
        assert!(props.speed > 0 && props.max_comms > 0 && props.max_recvs == 8, "{props:?}");
        assert!(props.latency >= 0.0);
        assert_eq!(props.device_type.unwrap_or(0), 0);
        // A region belongs to its comm.
        assert_eq!(props.reg_is_global.unwrap_or(0), 0);
        assert_eq!(props.reg_is_global.is_some(), scene.version >= 8);
        assert!(props.members.is_none_or(|(count, devs)| count == 1 && devs[0] == dev as i32));
        if let Some((p2p, collective)) = props.max_bytes {
            assert!(
                (1..=NET_SIZE_BYTES_MAX).contains(&p2p) && (1..=NET_SIZE_BYTES_MAX).contains(&collective)
            );
            assert!(p2p > 1 << 32, "messages of more than 4 GiB");
        }
        assert_eq!(props.max_multi.unwrap_or(1), 1);
    }
    // After traffic and another init, the properties are unchanged and their strings are at the same addresses.
    let pair = net.to_self();
    round(&net, pair, 4000);
    for (dev, props) in all.iter().enumerate() {
        assert_eq!(net.props(dev as i32).as_ref(), Ok(props));
    }
    for dev in [-1, count, i32::MAX, i32::MIN] {
        assert_eq!(net.props(dev), Err(ResultCode::INVALID_ARGUMENT), "device {dev}");
    }
}

fn fused_devices_and_hints(scene: Scene) {
    let net = Net::start(scene.version);
    match net.make_v_device(&[0]) {
        None => assert!(scene.version < 9),
        Some(made) => {
            let dev = made.unwrap();
            assert!(net.props(dev).is_ok());
            for members in [&[][..], &[0, 0], &[99], &[-1], &[0, 1, 2, 3]] {
                let code = net.make_v_device(members).unwrap().unwrap_err();
                assert!(code == ResultCode::INVALID_ARGUMENT || code == ResultCode::INVALID_USAGE);
            }
        }
    }
    let hinted = net.set_net_attr();
    assert_eq!(hinted.is_some(), scene.version >= 11);
    assert_eq!(hinted.unwrap_or(Ok(())), Ok(()));
    let pair = net.to_self();
    round(&net, pair, 4000);
    assert_eq!(net.set_net_attr().unwrap_or(Ok(())), Ok(()), "hints beside traffic");
}

/// A call with invalid arguments must return one of these errors.
#[track_caller]
fn refused(code: ResultCode) {
    let known = [ResultCode::INVALID_ARGUMENT, ResultCode::INTERNAL_ERROR, ResultCode::INVALID_USAGE];
    assert!(known.contains(&code), "{code:?}");
}

/// Pointers that the plugin did not return.
fn unknown() -> Vec<Opaque> {
    let numbers = [0, 1, 0xffff, 0x10_0001, 0xdead_beef, 0x7fff_1234_5678, usize::MAX, 1 << 63];
    numbers.into_iter().map(with_exposed_provenance_mut).collect()
}

fn unknown_names(net: &Net) {
    let memory = Buf::new(64);
    let at = with_exposed_provenance_mut(memory.addr());
    for name in unknown() {
        let (mut out, mut done, mut sizes) = (null_mut(), 0, [0; 8]);
        // SAFETY: an invalid pointer; the plugin promises to detect it.
        refused(unsafe { net.raw.test(name, &raw mut done, sizes.as_mut_ptr()) });
        // SAFETY: as above.
        refused(unsafe { net.raw.accept(name, &raw mut out, null_mut()) });
        // SAFETY: as above.
        refused(unsafe { net.raw.reg_mr(name, at, 64, PTR_HOST, &raw mut out) });
        // SAFETY: as above.
        refused(unsafe { net.raw.dereg_mr(name, name) });
        // SAFETY: as above.
        refused(unsafe { net.raw.isend(name, (at, 8), 0, name, &raw mut out) });
        let (mut data, mut lens, mut tags, mut mrs) = ([at], [8], [0], [name]);
        let group = Group {
            n: 1,
            data: data.as_mut_ptr(),
            sizes: lens.as_mut_ptr(),
            tags: tags.as_mut_ptr(),
            mhandles: mrs.as_mut_ptr(),
        };
        // SAFETY: as above.
        refused(unsafe { net.raw.irecv(name, group, &raw mut out) });
        // SAFETY: as above.
        refused(unsafe {
            net.raw.iflush(name, 1, data.as_mut_ptr(), [8].as_mut_ptr(), mrs.as_mut_ptr(), &raw mut out)
        });
        for comm in [net.close_send(Comm(name.addr())), net.close_recv(Comm(name.addr()))] {
            refused(comm.unwrap_err());
        }
        refused(net.close_listen(Comm(name.addr())).unwrap_err());
    }
}

fn null_outputs(net: &Net, (send, recv): (Comm, Comm)) {
    let memory = Buf::new(64);
    let at: Opaque = with_exposed_provenance_mut(memory.addr());
    let [send, recv]: [Opaque; 2] = [send, recv].map(|comm| with_exposed_provenance_mut(comm.0));
    let mut out = null_mut();
    // SAFETY: a null output pointer; the plugin promises to detect it. The same holds below.
    refused(unsafe { net.raw.devices(null_mut()) });
    // SAFETY: as above.
    refused(unsafe { net.raw.properties(0, true) }.unwrap_err());
    let mut handle = [0_u8; 128];
    // SAFETY: as above.
    refused(unsafe { net.raw.listen(net.ctx(), 0, null_mut(), &raw mut out) });
    // SAFETY: as above.
    refused(unsafe { net.raw.listen(net.ctx(), 0, handle.as_mut_ptr().cast(), null_mut()) });
    // SAFETY: as above.
    refused(unsafe { net.raw.connect(net.ctx(), 0, null_mut(), &raw mut out, null_mut()) });
    // SAFETY: as above; and the handle is invalid.
    refused(unsafe { net.raw.connect(net.ctx(), 0, handle.as_mut_ptr().cast(), &raw mut out, null_mut()) });
    // SAFETY: as above.
    refused(unsafe { net.raw.accept(recv, null_mut(), null_mut()) });
    // SAFETY: as above.
    refused(unsafe { net.raw.reg_mr(send, at, 64, PTR_HOST, null_mut()) });
    // SAFETY: as above.
    refused(unsafe { net.raw.reg_mr(send, null_mut(), 64, PTR_HOST, &raw mut out) });
    for kind in [0, PTR_CUDA, 77] {
        // SAFETY: memory of a kind that the device does not support.
        refused(unsafe { net.raw.reg_mr(send, at, 64, kind, &raw mut out) });
    }
    // SAFETY: an invalid descriptor.
    refused(unsafe { net.raw.reg_dma_buf(send, at, (64, 0), (0, -1), &raw mut out) });
    // SAFETY: a null output pointer.
    refused(unsafe { net.raw.isend(send, (at, 8), 0, null_mut(), null_mut()) });
    let nothing = Group { n: 1, data: null_mut(), sizes: null_mut(), tags: null_mut(), mhandles: null_mut() };
    for n in [1, 0, -1, 9, i32::MAX, i32::MIN] {
        // SAFETY: null arrays, and counts that no receive has.
        refused(unsafe { net.raw.irecv(recv, Group { n, ..nothing }, &raw mut out) });
        // SAFETY: as above.
        refused(unsafe { net.raw.irecv(recv, Group { n, ..nothing }, null_mut()) });
        // SAFETY: as above.
        refused(unsafe { net.raw.iflush(recv, n, null_mut(), null_mut(), null_mut(), &raw mut out) });
    }
    if scene_has_context(net) {
        // SAFETY: null instead of a structure.
        refused(unsafe { net.raw.set_net_attr(net.ctx(), null_mut()) }.unwrap());
        // SAFETY: a null context.
        refused(unsafe { net.raw.finalize(null_mut()) }.unwrap());
    }
    if net.version() >= 9 {
        let mut dev = 0;
        // SAFETY: a null output pointer or a null structure.
        refused(unsafe { net.raw.make_v_device(null_mut(), Some(&[0])) }.unwrap());
        // SAFETY: as above.
        refused(unsafe { net.raw.make_v_device(&raw mut dev, None) }.unwrap());
    }
}

fn scene_has_context(net: &Net) -> bool {
    net.version() >= 11
}

fn null_and_unknown_arguments(scene: Scene) {
    let net = Net::start(scene.version);
    unknown_names(&net);
    let pair = net.to_self();
    null_outputs(&net, pair);
    // The wrong end of a connection is no comm of that kind.
    let memory = Buf::new(64);
    let mr = net.reg_buf(pair.1, &memory);
    let piece = crate::net::Piece { addr: memory.addr(), len: 8, tag: 0, mr };
    assert!(net.try_send(pair.1, piece, 0).is_err(), "a send on a receiving comm");
    assert!(net.try_recv(pair.0, &[piece], 0).is_err(), "a receive on a sending comm");
    // The pointer for the sizes may be null.
    let request = net.recv(pair.1, &[piece]);
    let from = net.reg_buf(pair.0, &memory);
    let sent = net.send(pair.0, crate::net::Piece { mr: from, ..piece });
    finish_without_sizes(&net, sent);
    finish_without_sizes(&net, request);
    round(&net, pair, 4000);
}

fn finish_without_sizes(net: &Net, request: Request) {
    crate::net::until("test without sizes", || {
        let mut done = 0;
        // SAFETY: a request of the plugin's; sizes may be null.
        let code = unsafe { net.raw.test(with_exposed_provenance_mut(request.0), &raw mut done, null_mut()) };
        assert_eq!(code, ResultCode::SUCCESS);
        (done == 1).then_some(())
    });
}
