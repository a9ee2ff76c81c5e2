//! A process that makes no call for a while: with the progress thread its peers are not affected; without it they wait.

use std::time::{Duration, Instant};

use crate::contract::messages::{between, round};
use crate::net::{Buf, Net, Piece, load, until};
use crate::run::Scene;

scenarios! {
    a_receiver_makes_no_call,
    a_sender_makes_no_call,
    finalize_ends_the_progress_thread,
}

const LEN: usize = 16 << 20;

/// Longer than a send of that length takes, and short enough for a test.
const WHILE: Duration = Duration::from_millis(500);

fn a_receiver_makes_no_call(mut scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = between(&net, &mut scene);
    if scene.role == 1 {
        let to = Buf::new(LEN);
        let mr = net.reg_buf(recv, &to);
        let request = net.recv(recv, &[Piece { addr: to.addr(), len: LEN, tag: 0, mr }]);
        scene.say(b"posted");
        assert_eq!(scene.hear(), b"looked");
        assert_eq!(net.finish(request)[0] as usize, LEN);
        to.check(0..LEN, 1);
        scene.meet();
        return;
    }
    let from = Buf::filled(LEN, 1);
    let mr = net.reg_buf(send, &from);
    assert_eq!(scene.hear(), b"posted");
    let began = Instant::now();
    let request = net.send(send, Piece { addr: from.addr(), len: LEN, tag: 0, mr });
    if std::env::var_os("TRUNKLINE_PROGRESS_THREAD").is_some() {
        net.finish(request);
        scene.say(b"looked");
    } else {
        while began.elapsed() < WHILE {
            assert_eq!(
                net.try_test(request),
                Ok(None),
                "a message completed although its receiver makes no call"
            );
        }
        scene.say(b"looked");
        net.finish(request);
    }
    scene.meet();
}

/// A completed send needs no call of its process any more, even if the provider delays its bytes.
fn a_sender_makes_no_call(mut scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = between(&net, &mut scene);
    for len in [0, 8, 4096, LEN] {
        let memory = Buf::filled(len.max(1), 1);
        if scene.role == 1 {
            let to = Buf::new(len.max(1));
            let mr = net.reg_buf(recv, &to);
            let request = net.recv(recv, &[Piece { addr: to.addr(), len, tag: 0, mr }]);
            assert_eq!(net.finish(request)[0] as usize, len);
            to.check(0..len, 1);
            scene.say(b"here");
        } else {
            let mr = net.reg_buf(send, &memory);
            let request = net.send(send, Piece { addr: memory.addr(), len, tag: 0, mr });
            net.finish(request);
            assert_eq!(scene.hear(), b"here");
        }
    }
    scene.meet();
}

/// Number of threads of this process with our name.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "trunkline").count()
}

fn finalize_ends_the_progress_thread(scene: Scene) {
    let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap();
    let mut descriptors = None;
    for _ in 0..10 {
        let library = load(path.as_ref());
        let net = Net::of(&library, scene.version).unwrap();
        // A thread gets its name a moment after it was created.
        until("the thread", || (threads() == 1).then_some(()));
        let pair = net.to_self();
        round(&net, pair, 200_000);
        net.close_send(pair.0).unwrap();
        net.close_recv(pair.1).unwrap();
        net.finalize().unwrap().unwrap();
        assert_eq!(threads(), 0);
        // Rust's threads leave destructors with the thread that made them, so the library stays loaded until that
        // thread ends. It can be opened again, and nothing accumulates.
        library.close().unwrap();
        let now = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert_eq!(now, *descriptors.get_or_insert(now));
    }
}
