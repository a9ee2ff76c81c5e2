//! Lines of the acceptance checklist in docs/acceptance-libfabric.md that need the plugin over the enforcing provider.
//! Each test's name begins with its line.

use std::collections::BTreeMap;
use std::path::Path;

use strict_fi::StrictReport;
use trunkline_sys::nccl_net::ResultCode;

use super::strict::{Env, Strict};
use crate::contract::messages::{between, round};
use crate::net::{Buf, Called, Comm, LINES, Net, Piece, Request, logged, until};
use crate::run::Scene;
use crate::sharing::flow::Stream;
use crate::sharing::is_full;

scenarios! {
    user_memory_is_registered_without_traffic,
    connections_are_made_and_used_once,
    failing_steps_are_retried,
    no_nic_opens,
    communicators_end_with_live_registrations,
    a_receiver_ends_with_64_writes_under_way,
    messages_use_any_offset_of_a_registration,
    eager_and_direct_messages_alternate,
    empty_messages_have_no_address,
    comms_open_and_close_on_two_threads,
}

/// The number of registrations, by domain, endpoint and rights.
type Registered = BTreeMap<(String, String, String), u64>;

fn registered(found: &StrictReport) -> Registered {
    let mut all = Registered::new();
    for account in &found.accounts {
        for made in account["registrations"].as_array().expect("a list") {
            let place =
                (account["domain"].to_string(), made["endpoint"].to_string(), made["rights"].to_string());
            *all.entry(place).or_default() += made["count"].as_u64().expect("a number");
        }
    }
    all
}

/// The registrations that the second report has in addition.
fn more(before: &Registered, after: &Registered) -> Registered {
    let grown = after.iter().map(|(place, count)| (place.clone(), count - before.get(place).unwrap_or(&0)));
    grown.filter(|(_, count)| *count > 0).collect()
}

/// The value of `TEST_COUNT`.
fn count() -> usize {
    std::env::var("TEST_COUNT").expect("a count").parse().expect("a number")
}

fn close(net: &Net, (send, recv): (Comm, Comm)) {
    net.close_send(send).expect("closeSend");
    net.close_recv(recv).expect("closeRecv");
}

/// Registers buffers at both ends, and sends nothing.
fn user_memory_is_registered_without_traffic(scene: Scene) {
    let net = Net::start(scene.version);
    let pair = net.to_self();
    let memory = Buf::new(1 << 16);
    for _ in 0..count() {
        let mrs = (net.reg_buf(pair.0, &memory), net.reg_buf(pair.1, &memory));
        net.dereg(pair.0, mrs.0).expect("deregMr");
        net.dereg(pair.1, mrs.1).expect("deregMr");
    }
    close(&net, pair);
}

#[test]
fn a1_user_memory_is_registered_for_data_once_per_rail() {
    let Some(strict) = Strict::here("registrations over ofi:strict") else { return };
    for (nics, fused) in [("1", "1"), ("4", "4")] {
        let [before, after] = [0, 10].map(|count| {
            let env: Env<'_> = &[("FI_STRICT_NICS", nics), ("TEST_FUSED", fused)];
            strict.over("user_memory_is_registered_without_traffic", env).env("TEST_COUNT", count).alone();
            registered(&strict.clean(1))
        });
        let grown = more(&before, &after);
        let rails: usize = nics.parse().expect("a number");
        // One endpoint of the sender's and one of the receiver's on each NIC.
        assert_eq!(grown.len(), 2 * rails, "{grown:#?}");
        assert!(grown.values().all(|count| *count == 10), "{grown:#?}");
        for (domain, endpoint, rights) in grown.keys() {
            assert!(rights.contains("SEND|RECV|READ|WRITE"), "{rights}");
            // The endpoint for data has no registration of a mailbox.
            let control = |(at, of, _): &&(String, String, String)| at == domain && of == endpoint;
            assert!(before.keys().filter(control).all(|(.., rights)| rights != "\"REMOTE_WRITE\""));
        }
    }
}

/// Makes connections, and uses each once.
fn connections_are_made_and_used_once(scene: Scene) {
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..count()).map(|_| net.to_self()).collect();
    pairs.iter().for_each(|&pair| round(&net, pair, 70_000));
    pairs.into_iter().for_each(|pair| close(&net, pair));
}

#[test]
fn a2_a_mailbox_is_one_registration_that_peers_may_only_write() {
    let Some(strict) = Strict::here("mailboxes over ofi:strict") else { return };
    for count in [1, 5] {
        strict.over("connections_are_made_and_used_once", &[]).env("TEST_COUNT", count).alone();
        let made = registered(&strict.clean(1));
        let boxes: Vec<u64> =
            made.iter().filter(|((.., rights), _)| rights == "\"REMOTE_WRITE\"").map(|(_, n)| *n).collect();
        // One per direction: records of receives are written to the sender, records of ends to the receiver.
        assert_eq!(boxes.iter().sum::<u64>(), 2 * count, "{made:#?}");
        // Peers may read no memory, and may write only mailboxes and memory that was given to a receive.
        assert!(made.keys().all(|(.., rights)| !rights.contains("REMOTE_READ")), "{made:#?}");
    }
}

/// Connects the process to itself; returns the first error.
fn try_to_self(net: &Net) -> Called<(Comm, Comm)> {
    let (listen, mut handle) = net.try_listen()?;
    let (mut send, mut recv) = (None, None);
    let mut step = || -> Called<Option<(Comm, Comm)>> {
        if send.is_none() {
            send = net.try_connect(&mut handle)?;
        }
        if recv.is_none() {
            recv = net.try_accept(listen)?;
        }
        Ok(send.zip(recv))
    };
    let made = until("a connection or an error", || step().transpose());
    net.close_listen(listen).expect("closeListen");
    if made.is_err() {
        send.into_iter().for_each(|comm| net.close_send(comm).expect("closeSend"));
        recv.into_iter().for_each(|comm| net.close_recv(comm).expect("closeRecv"));
    }
    made
}

/// Repeats an attempt until it succeeds; returns the number of failures.
fn again<T>(mut attempt: impl FnMut() -> Called<T>) -> (T, usize) {
    for failed in 0..100 {
        if let Ok(done) = attempt() {
            return (done, failed);
        }
    }
    panic!("the step fails at every attempt");
}

/// Connects and registers, repeating each until it succeeds, and uses the results.
fn failing_steps_are_retried(scene: Scene) {
    let net = Net::start(scene.version);
    // It keeps the NICs open, whose calls are counted.
    let stays = net.to_self();
    let mut failures = 0;
    for turn in 0..3 {
        let (pair, failed) = again(|| try_to_self(&net));
        failures += failed;
        let memory = Buf::filled(200_000, turn);
        for len in [8, 5000, 200_000] {
            let ((from, to), failed) = again(|| {
                let from = net.reg(pair.0, memory.addr(), memory.len())?;
                let to = net.reg(pair.1, memory.addr(), memory.len());
                if to.is_err() {
                    net.dereg(pair.0, from).expect("deregMr");
                }
                Ok((from, to?))
            });
            failures += failed;
            let received = net.recv(pair.1, &[Piece { addr: memory.addr(), len, tag: 1, mr: to }]);
            let sent = net.send(pair.0, Piece { addr: memory.addr(), len, tag: 1, mr: from });
            assert_eq!(net.finish_all(&[received, sent])[0][0] as usize, len);
            net.dereg(pair.0, from).expect("deregMr");
            net.dereg(pair.1, to).expect("deregMr");
        }
        close(&net, pair);
    }
    round(&net, stays, 200_000);
    close(&net, stays);
    assert!(failures > 0, "nothing failed");
}

/// A NIC that never opens returns an error each time.
fn no_nic_opens(scene: Scene) {
    let net = Net::start(scene.version);
    for _ in 0..3 {
        assert_eq!(try_to_self(&net).err(), Some(ResultCode::SYSTEM_ERROR));
    }
    let named = std::env::var("TEST_NAME").expect("a name");
    assert!(logged(&named) >= 3, "no line of the log names {named}: {:?}", LINES.lock().unwrap());
}

#[test]
fn a5_failing_steps_leave_nothing_and_succeed_on_retry() {
    let Some(strict) = Strict::here("failing steps over ofi:strict") else { return };
    // Calls on a NIC: one connection has two queues, four endpoints and a handful of registrations there.
    let steps: [(&str, std::ops::Range<u32>); 8] = [
        ("cq_open", 3..9),
        ("av_open", 5..17),
        ("av_insert", 5..17),
        ("endpoint", 5..17),
        ("enable", 5..17),
        ("mr_regattr", 10..30),
        ("mr_bind", 10..30),
        ("mr_enable", 10..30),
    ];
    for (at, (step, calls)) in steps.into_iter().enumerate() {
        let few = if at % 2 == 1 { vec![calls.start + 2 * at as u32] } else { Vec::new() };
        let tried = if is_full() { calls.collect() } else { few };
        for n in tried {
            let fails = format!("{step}:{n}");
            let env: Env<'_> = &[("FI_STRICT_FAIL", &fails), ("FI_STRICT_NICS", "3"), ("TEST_FUSED", "3")];
            strict.over("failing_steps_are_retried", env).alone();
            strict.clean(1);
        }
    }
    let opening = [
        ("mr_bind:1", "Bind: I/O error"),
        ("domain:1", "Domain: I/O error"),
        ("fabric:1", "Fabric: I/O error"),
        ("cq_open:1", "Queue: I/O error"),
        ("getname:1", "I/O error"),
    ];
    for (fails, named) in &opening[..if is_full() { 5 } else { 2 }] {
        strict.over("no_nic_opens", &[("FI_STRICT_FAIL", *fails)]).env("TEST_NAME", *named).alone();
        // Not every failed step had a domain to close.
        assert!(strict.unbroken().open_accounts().is_empty(), "{fails}");
    }
}

/// Communicators end in each order of their parts, and while memory is registered.
fn communicators_end_with_live_registrations(scene: Scene) {
    let memory = Buf::filled(1 << 20, 3);
    for turn in 0..4 {
        let net = Net::start(scene.version);
        let pair = net.to_self();
        let to = Buf::new(1 << 20);
        let mrs = (net.reg_buf(pair.0, &memory), net.reg_buf(pair.1, &to));
        round(&net, pair, 100_000);
        let piece = Piece { addr: to.addr(), len: 1 << 20, tag: 0, mr: mrs.1 };
        let received = net.recv(pair.1, &[piece]);
        net.finish_all(&[net.send(pair.0, Piece { addr: memory.addr(), mr: mrs.0, ..piece }), received]);
        to.check(0..1 << 20, 3);
        if turn == 0 {
            net.dereg(pair.0, mrs.0).expect("deregMr");
            net.dereg(pair.1, mrs.1).expect("deregMr");
        }
        if turn < 2 {
            close(&net, pair);
            assert!(net.dereg(pair.0, mrs.0).is_err(), "a registration outlived its comm");
        }
        // The last two communicators end with live objects.
        drop(net);
        if turn == 2 {
            let other = Net::start(scene.version);
            let pair = other.to_self();
            round(&other, pair, 5000);
            close(&other, pair);
        }
    }
}

#[test]
fn a8_communicators_with_live_registrations_end_without_ebusy() {
    let Some(strict) = Strict::here("ends over ofi:strict") else { return };
    let modes = ["endpoint,prov_key,allocated", "endpoint,local,virt_addr", "none"];
    for mode in &modes[..if is_full() { 3 } else { 1 }] {
        strict.over("communicators_end_with_live_registrations", &[("FI_STRICT_MR", mode)]).alone();
        strict.clean(1);
    }
}

#[test]
fn a8_connections_with_pending_operations_end_without_ebusy() {
    let Some(strict) = Strict::here("operations under way over ofi:strict") else { return };
    let modes: [Env<'_>; 4] = [
        &[("FI_STRICT_MR", "endpoint,prov_key,allocated")],
        &[("FI_STRICT_MR", "endpoint,local,virt_addr"), ("FI_STRICT_EAGAIN", "0.5")],
        &[("FI_STRICT_MR", "none"), ("FI_STRICT_REORDER", "0.5"), ("TRUNKLINE_PROGRESS_THREAD", "1")],
        &[("FI_STRICT_MR", "prov_key,local"), ("FI_STRICT_PROGRESS", "auto"), ("FI_STRICT_DELAY", "50")],
    ];
    for mode in &modes[..if is_full() { 4 } else { 2 }] {
        strict.over("comms_close_with_work_in_flight", mode).alone();
        strict.clean(1);
        strict.over("two_processes_close_at_any_time", mode).two();
        strict.clean(2);
    }
}

/// The receiver closes while 64 buffers of eight receives are being written. The writer gets an error, and both processes continue.
fn a_receiver_ends_with_64_writes_under_way(mut scene: Scene) {
    const LEN: usize = 1 << 20;
    let net = Net::start(scene.version);
    let (send, recv) = between(&net, &mut scene);
    let memory = Buf::filled(64 * LEN, 1);
    let (from, to) = (net.reg_buf(send, &memory), net.reg_buf(recv, &memory));
    let piece = |at: usize, mr| Piece { addr: memory.addr() + at * LEN, len: LEN, tag: at as i32, mr };
    scene.meet();
    if scene.role == 0 {
        for group in 0..8 {
            let pieces: Vec<Piece> = (0..8).map(|at| piece(group * 8 + at, to)).collect();
            net.recv(recv, &pieces);
        }
        assert_eq!(scene.hear(), b"under way");
        let begun = std::time::Instant::now();
        net.close_recv(recv).expect("closeRecv");
        assert!(begun.elapsed().as_secs() < 5, "it took {:?}", begun.elapsed());
        net.close_send(send).expect("closeSend");
    } else {
        let mut sent: Vec<Request> = (0..8).map(|at| net.send(send, piece(at, from))).collect();
        scene.say(b"under way");
        let mut next = 8;
        // Sends that start later fail.
        until("the error of a send", || {
            let begun = net.try_send(send, piece(next.min(63), from), 0);
            next += usize::from(matches!(begun, Ok(Some(_))));
            if let Ok(request) = &begun {
                sent.extend(*request);
            }
            sent.retain(|&request| matches!(net.try_test(request), Ok(None)));
            begun.is_err().then_some(())
        });
        for request in sent {
            let _ = until("an end", || net.try_test(request).transpose());
        }
        net.close_send(send).expect("closeSend");
        net.close_recv(recv).expect("closeRecv");
    }
    scene.meet();
    // Another connection works at once.
    let pair = between(&net, &mut scene);
    let to = Buf::new(LEN);
    let (from, into) = (net.reg_buf(pair.0, &memory), net.reg_buf(pair.1, &to));
    let received = net.recv(pair.1, &[Piece { addr: to.addr(), len: LEN, tag: 0, mr: into }]);
    net.finish_all(&[net.send(pair.0, piece(0, from)), received]);
    to.check(0..LEN, 1);
    scene.meet();
    close(&net, pair);
}

#[test]
fn a9_a_receiver_that_ends_fails_64_writes_and_leaves_nothing() {
    let Some(strict) = Strict::here("aborts over ofi:strict") else { return };
    let modes = ["endpoint,prov_key,allocated", "none"];
    for mode in &modes[..if is_full() { 2 } else { 1 }] {
        strict.over("a_receiver_ends_with_64_writes_under_way", &[("FI_STRICT_MR", mode)]).two();
        strict.clean(2);
    }
}

/// Messages from and to unaligned offsets of one registration each; adjacent bytes stay unchanged.
fn messages_use_any_offset_of_a_registration(scene: Scene) {
    const ROOM: usize = 1 << 20;
    let net = Net::start(scene.version);
    let pair = net.to_self();
    let from = Buf::filled(ROOM, 0);
    let (from_mr, to) = (net.reg_buf(pair.0, &from), Buf::new(ROOM));
    let to_mr = net.reg_buf(pair.1, &to);
    for (turn, &(at, into, len)) in [
        (0, 0, 8),
        (1, ROOM - 9, 9),
        (4097, 3, 5000),
        (ROOM - 70_001, 1, 70_001),
        (77, ROOM - 500_003, 500_003),
    ]
    .iter()
    .enumerate()
    {
        let zero = Buf::new(ROOM);
        from.fill(at..at + len, turn + 1);
        let received = net.recv(pair.1, &[Piece { addr: to.addr() + into, len, tag: 0, mr: to_mr }]);
        let sent = net.send(pair.0, Piece { addr: from.addr() + at, len, tag: 0, mr: from_mr });
        net.finish_all(&[received, sent]);
        to.check(into..into + len, turn + 1);
        to.untouched(0..into);
        to.untouched(into + len..ROOM);
        zero.untouched(0..ROOM);
        // Clear it for the next message.
        let nothing = net.reg_buf(pair.0, &zero);
        let received = net.recv(pair.1, &[Piece { addr: to.addr(), len: ROOM, tag: 0, mr: to_mr }]);
        let sent = net.send(pair.0, Piece { addr: zero.addr(), len: ROOM, tag: 0, mr: nothing });
        net.finish_all(&[received, sent]);
        net.dereg(pair.0, nothing).expect("deregMr");
    }
    close(&net, pair);
}

#[test]
fn a11_offsets_and_addresses_give_the_same_bytes() {
    let Some(strict) = Strict::here("offsets over ofi:strict") else { return };
    for mode in ["endpoint,prov_key", "endpoint,prov_key,virt_addr", "none", "virt_addr"] {
        strict.over("messages_use_any_offset_of_a_registration", &[("FI_STRICT_MR", mode)]).alone();
        strict.clean(1);
    }
}

#[test]
fn a12_exhausted_list_entries_are_named_and_harm_nothing() {
    let Some(strict) = Strict::here("list entries of ofi:strict") else { return };
    let budgets = if is_full() { vec!["11", "12", "13", "40", "41", "400"] } else { vec!["12", "41"] };
    for entries in budgets {
        strict.over("a_limit_of_list_entries_is_named", &[("FI_STRICT_ENTRIES", entries)]).alone();
        // A registration that peers may use takes two entries, and each end of a connection has one such registration.
        let most =
            strict.clean(1).accounts.iter().filter_map(|account| account["most_entries"].as_u64()).max();
        let budget: u64 = entries.parse().expect("a number");
        assert!(most.is_some_and(|most| most + 2 > budget), "{most:?} of {budget} entries were in use");
    }
}

/// More direct messages between two bursts of eager ones than the number space of either.
const BURSTS: [usize; 24 + 1100] = {
    let mut lengths = [40_000; 24 + 1100];
    let mut at = 0;
    while at < 24 {
        lengths[at] = 8 + at;
        at += 1;
    }
    lengths
};

fn eager_and_direct_messages_alternate(scene: Scene) {
    let net = Net::start(scene.version);
    let (send, recv) = net.to_self();
    let mut sends = Stream::of(&net, send, true, 0, &BURSTS);
    let mut receives = Stream::of(&net, recv, false, 0, &BURSTS);
    let upto = 3 * BURSTS.len();
    until("messages", || {
        for _ in 0..100 {
            sends.step(upto).expect("isend");
            receives.step(upto).expect("irecv");
        }
        (sends.done == upto && receives.done == upto).then_some(())
    });
    sends.close();
    receives.close();
}

#[test]
fn p4_eager_bursts_survive_a_thousand_direct_messages() {
    let Some(strict) = Strict::here("bursts over ofi:strict") else { return };
    let storm: Env<'_> =
        &[("FI_STRICT_EAGAIN", "0.3"), ("FI_STRICT_REORDER", "0.5"), ("TRUNKLINE_PROGRESS_THREAD", "1")];
    strict.over("eager_and_direct_messages_alternate", storm).alone();
    strict.clean(1);
}

/// Messages without bytes: with a null address, and with the registration of other memory.
fn empty_messages_have_no_address(scene: Scene) {
    let net = Net::start(scene.version);
    let pair = net.to_self();
    let memory = Buf::filled(64, 1);
    let (from, to) = (net.reg_buf(pair.0, &memory), net.reg_buf(pair.1, &memory));
    for addr in [0, memory.addr(), 4096] {
        let nothing = |mr| Piece { addr, len: 0, tag: 3, mr };
        let received = net.recv(pair.1, &[nothing(to), nothing(to)]);
        let sent = [net.send(pair.0, nothing(from)), net.send(pair.0, nothing(from))];
        assert_eq!(net.finish(received)[..2], [0, 0]);
        net.finish_all(&sent);
    }
    memory.check(0..64, 1);
    round(&net, pair, 5000);
    close(&net, pair);
}

#[test]
fn p7_messages_without_a_byte_need_no_memory() {
    let Some(strict) = Strict::here("empty messages over ofi:strict") else { return };
    for mode in ["endpoint,prov_key,allocated,local", "none"] {
        strict.over("empty_messages_have_no_address", &[("FI_STRICT_MR", mode)]).alone();
        strict.clean(1);
    }
}

/// Two threads make, use and end connections on the same NIC, each its own.
fn comms_open_and_close_on_two_threads(scene: Scene) {
    let net = Net::start(scene.version);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for turn in 0..count() {
                    let (send, recv) = net.to_self();
                    if turn % 4 == 0 {
                        round(&net, (send, recv), 9000);
                    }
                    net.close_recv(recv).expect("closeRecv");
                    net.close_send(send).expect("closeSend");
                }
            });
        }
    });
}

#[test]
fn p12_one_thread_accepts_while_another_closes() {
    let Some(strict) = Strict::here("threads over ofi:strict") else { return };
    let turns = if is_full() { 1000 } else { 100 };
    strict.over("comms_open_and_close_on_two_threads", &[]).env("TEST_COUNT", turns).alone();
    strict.clean(1);
}

/// All sources of a folder, concatenated.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            sources(&entry, text);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(&entry).expect("a source"));
        }
    }
}

#[test]
fn every_checklist_line_names_existing_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = std::fs::read_to_string(root.join("docs/acceptance-libfabric.md")).expect("the table");
    let mut all = String::new();
    sources(&root.join("crates"), &mut all);
    sources(&root.join("testing"), &mut all);
    let lines = (1..=12).flat_map(|n| [format!("A{n}"), format!("P{n}")]).chain(["Differential".to_owned()]);
    for line in lines {
        let row = table.lines().find(|row| row.starts_with(&format!("| {line} |")));
        let tests = row.unwrap_or_else(|| panic!("no row of {line}")).rsplit('|').nth(1).expect("tests");
        let words: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!words.is_empty(), "{line} has no test");
        let names = words.iter().filter(|word| {
            word.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit())
        });
        for name in names.filter(|name| name.contains('_')) {
            let there = all.contains(&format!("fn {name}(")) || all.contains(&format!("fn {name}<"));
            assert!(there, "{line}: no source has a test {name}");
        }
    }
}
