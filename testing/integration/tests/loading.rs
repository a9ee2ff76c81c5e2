//! The plugin as a library: loading, unloading, and panics that must not leave it.

use std::ptr::null_mut;
use std::thread;
use std::time::Duration;

use trunkline_sys::nccl_net::{NetAttr, PTR_HOST, ResultCode};

use crate::contract::messages::round;
use crate::net::{Buf, Called, LINES, Net, load, opaque};
use crate::raw::{self, Group};
use crate::run::{Scene, scenario};

scenarios! {
    loaded_and_unloaded_a_hundred_times,
    threads_call_while_the_process_ends,
    a_panic_becomes_an_internal_error,
    a_panic_in_init_becomes_an_internal_error,
}

#[test]
fn the_plugin_is_loaded_and_unloaded_a_hundred_times() {
    for fabric in ["auto", "soft:shm"] {
        for sharing in ["off", "on"] {
            let setting = scenario("loaded_and_unloaded_a_hundred_times").env("TRUNKLINE_FABRIC", fabric);
            let setting = setting.env("TRUNKLINE_QP_SHARING", sharing).env("TRUNKLINE_QP_GROUPS", 1);
            // Memory in a thread's cache of freed chunks would count as allocated.
            setting.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0").alone();
        }
    }
}

#[test]
fn a_process_may_end_while_its_threads_call() {
    for _ in 0..4 {
        scenario("threads_call_while_the_process_ends").alone();
    }
}

#[test]
fn no_panic_crosses_the_boundary() {
    let plugin = trunkline_integration::plugin_that_panics().unwrap();
    let panics = |name| scenario(name).env("TRUNKLINE_TEST_PLUGIN", plugin.display());
    let functions = [
        "devices",
        "getProperties",
        "listen",
        "connect",
        "accept",
        "regMr",
        "regMrDmaBuf",
        "deregMr",
        "isend",
        "irecv",
        "iflush",
        "test",
        "close",
        "closeListen",
        "makeVDevice",
        "finalize",
        "setNetAttr",
    ];
    for (at, function) in functions.into_iter().enumerate() {
        // The oldest and the newest version, and one between them.
        for version in [6, 7 + (at % 5) as u8, 12] {
            let setting = panics("a_panic_becomes_an_internal_error").version(version);
            setting.env("TEST_FUNCTION", function).alone();
        }
    }
    for version in crate::run::VERSIONS {
        let setting = panics("a_panic_in_init_becomes_an_internal_error").version(version);
        setting.env("TRUNKLINE_PANIC", "init").alone();
    }
}

/// The resources of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Held {
    descriptors: usize,
    threads: usize,
    /// Lines of the memory map.
    mappings: usize,
    /// Bytes that were allocated and not freed.
    heap: usize,
}

fn held() -> Held {
    let count = |of: &str| std::fs::read_dir(of).unwrap().count();
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    // SAFETY: takes no argument, and returns a struct of numbers.
    let malloc = unsafe { libc::mallinfo2() };
    Held { descriptors, threads, mappings, heap: malloc.uordblks + malloc.hblkhd }
}

fn is_loaded() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("libtrunkline_nccl")
}

fn loaded_and_unloaded_a_hundred_times(scene: Scene) {
    let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap();
    let mut baseline = None;
    for turn in 0..100 {
        let library = load(path.as_ref());
        let version = 6 + (turn % 7) as u8;
        let net = Net::of(&library, version).unwrap();
        let pairs: Vec<_> = (0..3).map(|_| net.to_self()).collect();
        pairs.iter().for_each(|&pair| round(&net, pair, 70_000));
        // In some turns the other comms stay open, in one only the context does; otherwise everything is closed.
        let stay = if turn % 10 == 5 { 2 } else { 0 };
        for &(send, recv) in &pairs[stay..] {
            net.close_send(send).unwrap();
            net.close_recv(recv).unwrap();
        }
        pairs[..stay].iter().for_each(|&pair| round(&net, pair, 9000));
        if stay == 0
            && turn != 60
            && let Some(finalized) = net.finalize()
        {
            finalized.unwrap();
        }
        if turn == 55 {
            // A listener and half a connection stay open.
            let (_, mut handle) = net.listen();
            assert_eq!(net.try_connect(&mut handle), Ok(None));
        }
        drop(net);
        library.close().unwrap();
        LINES.lock().unwrap().clear();
        assert!(!is_loaded(), "turn {turn}: the library is still loaded");
        // The first turns warm up the allocator.
        if turn >= 4 {
            let held = held();
            let first = *baseline.get_or_insert(held);
            assert_eq!(Held { heap: first.heap, ..held }, first, "after turn {turn}");
            // The allocator rounds chunk sizes up by the free space it finds.
            assert!(held.heap < first.heap + 4096, "after turn {turn}: {held:?}, first {first:?}");
        }
    }
    assert_eq!(scene.version, 12);
}

/// Other threads call until the process ends, and each call returns as before.
fn threads_call_while_the_process_ends(scene: Scene) {
    const THREADS: usize = 2;
    let net = Box::leak(Box::new(Net::start(scene.version)));
    let devices = net.devices();
    let (called, calls) = std::sync::mpsc::channel();
    for _ in 0..THREADS {
        let (net, called) = (&*net, called.clone());
        thread::spawn(move || {
            for turn in 0_u64.. {
                let mut count = -1;
                // SAFETY: a valid pointer for the number.
                let code = unsafe { net.raw.devices(&raw mut count) };
                if (code, count) != (ResultCode::SUCCESS, devices) {
                    // SAFETY: ends the process at once.
                    unsafe { libc::_exit(3) };
                }
                if turn == 10_000 {
                    called.send(()).unwrap();
                }
            }
        });
    }
    (0..THREADS).for_each(|_| calls.recv_timeout(Duration::from_secs(20)).unwrap());
    std::process::exit(0);
}

/// Makes the plugin panic in a function from now on.
fn ask_for_panic(function: &str) {
    // SAFETY: no other thread of this process reads or writes the environment.
    unsafe { std::env::set_var("TRUNKLINE_PANIC", function) };
}

fn ask_for_no_panic() {
    // SAFETY: as above.
    unsafe { std::env::remove_var("TRUNKLINE_PANIC") };
}

/// Calls one function of the table with valid arguments; `None` if this version has no function with that name.
fn call(net: &Net, function: &str) -> Option<ResultCode> {
    let (mut out, mut number, mut sizes) = (null_mut(), 0, [0; 8]);
    let mut handle = net.listen().1;
    let listen = opaque(net.listen().0.0);
    let (send, recv) = net.to_self();
    let memory = Buf::new(64);
    let (send_mr, recv_mr) = (net.reg_buf(send, &memory), net.reg_buf(recv, &memory));
    let request = net.recv(recv, &[crate::net::Piece { addr: memory.addr(), len: 8, tag: 0, mr: recv_mr }]);
    let [send, recv, send_mr, recv_mr] = [send.0, recv.0, send_mr.0, recv_mr.0].map(opaque);
    let at = opaque(memory.addr());
    let (mut data, mut lens, mut tags, mut mrs) = ([at], [8], [0], [recv_mr]);
    let (data, mrs) = (data.as_mut_ptr(), mrs.as_mut_ptr());
    let group = Group { n: 1, data, sizes: lens.as_mut_ptr(), tags: tags.as_mut_ptr(), mhandles: mrs };
    let mut attr = NetAttr::UNDEF;
    ask_for_panic(function);
    let (raw, ctx) = (&net.raw, net.ctx());
    let handle = handle.as_mut_ptr().cast();
    // SAFETY: the arguments of each call are as NCCL's contract requires.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one of them runs")]
    let code = unsafe {
        match function {
            "devices" => Some(raw.devices(&raw mut number)),
            "getProperties" => Some(raw.properties(0, false).err().unwrap_or(ResultCode::SUCCESS)),
            "listen" => Some(raw.listen(ctx, 0, handle, &raw mut out)),
            "connect" => Some(raw.connect(ctx, 0, handle, &raw mut out, null_mut())),
            "accept" => Some(raw.accept(listen, &raw mut out, null_mut())),
            "regMr" => Some(raw.reg_mr(send, at, 64, PTR_HOST, &raw mut out)),
            "regMrDmaBuf" => Some(raw.reg_dma_buf(send, at, (64, 0), (0, -1), &raw mut out)),
            "deregMr" => Some(raw.dereg_mr(send, send_mr)),
            "isend" => Some(raw.isend(send, (at, 8), 0, send_mr, &raw mut out)),
            "irecv" => Some(raw.irecv(recv, group, &raw mut out)),
            "iflush" => Some(raw.iflush(recv, 1, data, sizes.as_mut_ptr(), mrs, &raw mut out)),
            "test" => Some(raw.test(opaque(request.0), &raw mut number, sizes.as_mut_ptr())),
            "close" => Some(raw.close_send(send)),
            "closeListen" => Some(raw.close_listen(listen)),
            "makeVDevice" => raw.make_v_device(&raw mut number, Some(&[0])),
            "finalize" => raw.finalize(ctx),
            "setNetAttr" => raw.set_net_attr(ctx, &raw mut attr),
            other => panic!("no function {other}"),
        }
    };
    ask_for_no_panic();
    code
}

fn a_panic_becomes_an_internal_error(scene: Scene) {
    let net = Net::start(scene.version);
    let function = std::env::var("TEST_FUNCTION").unwrap();
    for _ in 0..2 {
        let Some(code) = call(&net, &function) else {
            assert!(scene.version < 11, "version {} has {function}", scene.version);
            return;
        };
        assert_eq!(code, ResultCode::INTERNAL_ERROR, "{function}");
        assert!(crate::net::logged(&format!("{function}: a defect")) > 0, "no log line reports the panic");
    }
    // Other functions still work.
    let pair = net.to_self();
    round(&net, pair, 100_000);
}

fn a_panic_in_init_becomes_an_internal_error(scene: Scene) {
    let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap();
    let library = load(path.as_ref());
    let start = || -> Called<Net> { Net::init(raw::find(&library, scene.version).unwrap()) };
    for _ in 0..2 {
        assert_eq!(start().err(), Some(ResultCode::INTERNAL_ERROR));
    }
    ask_for_no_panic();
    let net = start().unwrap();
    let pair = net.to_self();
    round(&net, pair, 1000);
}
