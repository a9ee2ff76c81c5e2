//! The typed layer over libfabric's providers for TCP, on loopback: each offer for reliable connectionless endpoints, in one process and
//! between two. If `FI_PROVIDER_PATH` names a folder with the provider `strict`, over that as well.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue fails")]

mod common;

use std::collections::HashSet;
use std::ffi::CString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::skip;
use trunkline_fabric::AccessRights;
use trunkline_mem::MemoryRange;
use trunkline_ofi::OfiLibrary;
use trunkline_ofi::typed::{
    CloseFailures, CompletionEntry, CompletionFormat, ControlTraffic, EndpointPeer, EndpointRole,
    FailedOperation, LocalSlice, MemoryDuty, MrEnabled, MrRequest, OfiDomain, OfiEndpoint, OfiErrno,
    OfiHints, OfiInfo, OfiQueue, OpSlot, PayloadSource, PayloadTraffic, PostOptions, QueueRead, QueueWants,
    RKey, RemotePlace, SubmitOutcome, query_infos, register_memory,
};
use trunkline_sys::ofi::{caps, threading};

/// Bytes of a region.
const SIZE: usize = 1 << 20;
/// A time limit that no operation here reaches.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the offers of providers for TCP on loopback, one of each, and of `strict` if it is available. The native one is called `net` in
/// 1.17, and `tcp` later.
fn offers(name: &str) -> Vec<OfiInfo> {
    let instead = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
    let library = match OfiLibrary::open(instead.as_deref()) {
        Ok(library) => Arc::new(library),
        Err(missing) => {
            skip(name, &missing.to_string());
            return Vec::new();
        }
    };
    let mut found: Vec<OfiInfo> = Vec::new();
    for name in ["net", "tcp", "tcp;ofi_rxm", "strict"] {
        let provider = CString::new(name).unwrap();
        let node = (name != "strict").then_some(c"127.0.0.1");
        let hints = OfiHints::new(&library, caps::MSG | caps::RMA | caps::TAGGED).unwrap();
        let hints = hints.with_provider(&provider).with_threading(threading::COMPLETION).with_cq_data(8);
        for offer in query_infos(&hints.with_completion_flags(caps::DELIVERY_COMPLETE), node).unwrap() {
            if found.iter().all(|other| other.names()[0] != offer.names()[0]) {
                found.push(offer);
            }
        }
    }
    if found.is_empty() {
        skip(name, "libfabric has no provider for TCP with reliable connectionless endpoints");
    }
    found
}

/// One end: a queue with an endpoint of each role.
struct End {
    // The order of fields is irrelevant, because each object holds the objects that it uses.
    domain: Arc<OfiDomain>,
    queue: OfiQueue,
    data: OfiEndpoint<PayloadTraffic>,
    ctrl: OfiEndpoint<ControlTraffic>,
}

impl End {
    fn new(info: &OfiInfo) -> Self {
        let domain = OfiDomain::open(info).unwrap();
        let wants = QueueWants {
            entries: 1024,
            format: CompletionFormat::Tagged,
            sources: false,
            wait: false,
            slots: 256,
        };
        let queue = OfiQueue::open(&domain, &wants).unwrap();
        let data = OfiEndpoint::open(info, &queue, &[]).unwrap();
        let ctrl = OfiEndpoint::open(info, &queue, &[]).unwrap();
        Self { domain, queue, data, ctrl }
    }

    fn of_data(&self, memory: &MemoryRange, duty: MemoryDuty) -> MrEnabled<PayloadTraffic> {
        register_memory(&self.domain, &self.data.mr_scope(), &MrRequest::for_host(memory, duty)).unwrap()
    }

    fn of_ctrl(&self, memory: &MemoryRange, duty: MemoryDuty) -> MrEnabled<ControlTraffic> {
        register_memory(&self.domain, &self.ctrl.mr_scope(), &MrRequest::for_host(memory, duty)).unwrap()
    }

    /// Reads the queue once.
    fn look(&mut self) -> Option<Result<Vec<CompletionEntry>, FailedOperation>> {
        match self.queue.read_batch() {
            QueueRead::Entries(count) => {
                Some(Ok((0..count).map(|at| self.queue.batch_entry(at).unwrap()).collect()))
            }
            QueueRead::Nothing => None,
            QueueRead::ErrorWaits => self.queue.read_error().map(Err),
            QueueRead::Broken(errno) => panic!("the queue: {errno}"),
        }
    }

    /// Closes all objects; returns the failures.
    fn end(self) -> CloseFailures {
        let watch = self.domain.watch_close_failures();
        drop(self);
        watch()
    }
}

/// Posts until the provider has room, and polls both ends meanwhile.
fn post(
    ends: &mut [&mut End; 2],
    seen: &mut Seen,
    mut attempt: impl FnMut(&mut [&mut End; 2]) -> SubmitOutcome,
) {
    let until = Instant::now() + PATIENCE;
    loop {
        match attempt(ends) {
            SubmitOutcome::Taken => return,
            SubmitOutcome::Again => seen.turn(ends),
            SubmitOutcome::Refused(errno) => panic!("refused: {errno}"),
        }
        assert!(Instant::now() < until, "the provider has no room within the limit");
    }
}

/// The completions so far, at both ends.
#[derive(Default)]
struct Seen {
    entries: [Vec<CompletionEntry>; 2],
    failures: [Vec<FailedOperation>; 2],
}

impl Seen {
    fn turn(&mut self, ends: &mut [&mut End; 2]) {
        for (at, end) in ends.iter_mut().enumerate() {
            match end.look() {
                Some(Ok(entries)) => self.entries[at].extend(entries),
                Some(Err(failure)) => self.failures[at].push(failure),
                None => {}
            }
        }
    }

    /// Polls until a completion matches, and removes it.
    fn until<T>(
        &mut self,
        ends: &mut [&mut End; 2],
        what: &str,
        mut found: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            let (entries, failures) = (&self.entries, &self.failures);
            assert!(Instant::now() < until, "{what} did not arrive: {entries:?} {failures:?}");
            self.turn(ends);
        }
    }

    /// The completion of an operation at one end.
    fn done(&mut self, ends: &mut [&mut End; 2], at: usize, slot: OpSlot) -> CompletionEntry {
        self.until(ends, &format!("the completion of {slot:?} at {at}"), |seen| {
            assert!(
                seen.failures[at].iter().all(|failure| failure.slot != Some(slot)),
                "{:?}",
                seen.failures
            );
            let index = seen.entries[at].iter().position(|entry| entry.slot == Some(slot))?;
            Some(seen.entries[at].swap_remove(index))
        })
    }

    /// The failure of an operation at one end.
    fn failed(&mut self, ends: &mut [&mut End; 2], at: usize, slot: OpSlot) -> FailedOperation {
        self.until(ends, &format!("the failure of {slot:?} at {at}"), |seen| {
            assert!(seen.entries[at].iter().all(|entry| entry.slot != Some(slot)), "{:?}", seen.entries);
            let index = seen.failures[at].iter().position(|failure| failure.slot == Some(slot))?;
            Some(seen.failures[at].swap_remove(index))
        })
    }

    /// Waits for the entry of a peer's write with data.
    fn told(&mut self, ends: &mut [&mut End; 2], at: usize) -> CompletionEntry {
        self.until(ends, &format!("data of a write at {at}"), |seen| {
            let written =
                |entry: &CompletionEntry| entry.flags & caps::REMOTE_WRITE != 0 && entry.data.is_some();
            let index = seen.entries[at].iter().position(written)?;
            Some(seen.entries[at].swap_remove(index))
        })
    }
}

fn number<R: EndpointRole>(mr: &MrEnabled<R>) -> u64 {
    mr.key().unwrap().number()
}

fn filled(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn bytes_of(memory: &MemoryRange, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).unwrap();
    bytes
}

/// Two ends in this process with each other's addresses: `(ends, peers of the first)`.
fn pair(info: &OfiInfo) -> (End, End, EndpointPeer<PayloadTraffic>, EndpointPeer<ControlTraffic>) {
    let (mut here, there) = (End::new(info), End::new(info));
    let data = here.data.insert(&there.data.local_name().unwrap()).unwrap();
    let ctrl = here.ctrl.insert(&there.ctrl.local_name().unwrap()).unwrap();
    (here, there, data, ctrl)
}

/// Returns the addresses of the process's signal handlers.
fn handlers() -> Vec<usize> {
    let of = |signal| {
        // SAFETY: all zeros are a valid handler.
        let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call changes no handler, and writes to a local variable.
        assert_eq!(unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut handler) }, 0);
        handler.sa_sigaction
    };
    (1..32).map(of).collect()
}

#[test]
fn opening_leaves_the_handlers_of_signals() {
    let alone = "TRUNKLINE_TEST_OFI_ALONE";
    if std::env::var_os(alone).is_none() {
        // In a process in which libfabric has not been opened before.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "opening_leaves_the_handlers_of_signals"]).env(alone, "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let before = handlers();
    let _ = offers("opening_leaves_the_handlers_of_signals");
    assert_eq!(handlers(), before);
}

#[test]
fn bytes_are_written_and_read() {
    for info in offers("bytes_are_written_and_read") {
        let (mut here, mut there, peer, ctrl_peer) = pair(&info);
        let (source, target, box_) =
            (MemoryRange::heap(SIZE), MemoryRange::heap(SIZE), MemoryRange::heap(4096));
        let bytes = filled(1);
        source.write(0, &bytes).unwrap();
        let from = here.of_data(&source, MemoryDuty::User(AccessRights::LOCAL));
        let to = there.of_data(&target, MemoryDuty::User(AccessRights::READ_WRITE));
        let mailbox = there.of_ctrl(&box_, MemoryDuty::Mailbox);
        let at = |offset: u64| RemotePlace::new(RKey::new(number(&to)), to.remote_base() + offset);
        let mut seen = Seen::default();
        let ends = &mut [&mut here, &mut there];

        // A long write with CQ data.
        let local = from.local_slice(100, 600_000).unwrap();
        let told = PostOptions { placed: true, ..PostOptions::TOLD };
        let data = 0x1234_5678_9abc_def0;
        post(ends, &mut seen, |ends| {
            ends[0].data.write(peer, PayloadSource::One(local), at(4096), Some(data), OpSlot(200), told)
        });
        let entry = seen.done(ends, 0, OpSlot(200));
        assert!(entry.flags & caps::WRITE != 0, "{entry:?}");
        assert_eq!(seen.told(ends, 1).data, Some(data));
        assert_eq!(bytes_of(&target, 4096, 600_000), bytes[100..600_100]);
        assert_eq!(bytes_of(&target, 0, 4096), [0; 4096]);

        // Read back, to another place.
        let back = from.local_slice(700_000, 200_000).unwrap();
        post(ends, &mut seen, |ends| ends[0].data.read(peer, back, at(4096), OpSlot(0), PostOptions::TOLD));
        let _ = seen.done(ends, 0, OpSlot(0));
        assert_eq!(bytes_of(&source, 700_000, 200_000), bytes[100..200_100]);

        // A few bytes without a registration, on the endpoint for control.
        let record = RemotePlace::new(RKey::new(number(&mailbox)), mailbox.remote_base() + 64);
        post(ends, &mut seen, |ends| ends[0].ctrl.inject_write(ctrl_peer, b"a record", record, Some(7)));
        assert_eq!(seen.told(ends, 1).data, Some(7));
        assert_eq!(bytes_of(&box_, 64, 8), b"a record");
        post(ends, &mut seen, |ends| {
            let told = PostOptions { placed: true, ..PostOptions::TOLD };
            ends[0].ctrl.write(ctrl_peer, PayloadSource::Inline(b"another"), record, None, OpSlot(9), told)
        });
        let _ = seen.done(ends, 0, OpSlot(9));
        assert_eq!(bytes_of(&box_, 64, 8), b"anotherd");

        // A quiet write has arrived when a later read of the same place completes.
        post(ends, &mut seen, |ends| {
            let quiet = PostOptions { placed: true, ..PostOptions::QUIET };
            let local = from.local_slice(0, 64).unwrap();
            ends[0].data.write(peer, PayloadSource::One(local), at(0), None, OpSlot(1), quiet)
        });
        seen.until(ends, "a write without a completion", |_| {
            (bytes_of(&target, 0, 64) == bytes[..64]).then_some(())
        });
        // A quiet write produces no completion, so its end is known from the completion of a later operation.
        let back = from.local_slice(0, 64).unwrap();
        post(ends, &mut seen, |ends| ends[0].data.read(peer, back, at(0), OpSlot(2), PostOptions::TOLD));
        let _ = seen.done(ends, 0, OpSlot(2));
        // `net` of 1.17 reports it anyway.
        seen.entries[0].retain(|entry| entry.slot != Some(OpSlot(1)));
        let left = (&seen.entries, &seen.failures);
        assert!(left == (&Default::default(), &Default::default()), "{info:?}: {left:?}");
        drop((from, to, mailbox));
        assert_eq!(
            (here.end(), there.end()),
            (CloseFailures::default(), CloseFailures::default()),
            "{info:?}"
        );
    }
}

#[test]
fn messages_find_their_receives() {
    for info in offers("messages_find_their_receives") {
        let (mut here, mut there, peer, _) = pair(&info);
        let (source, target) = (MemoryRange::heap(SIZE), MemoryRange::heap(SIZE));
        let bytes = filled(2);
        source.write(0, &bytes).unwrap();
        let from = here.of_data(&source, MemoryDuty::Messages);
        let to = there.of_data(&target, MemoryDuty::Messages);
        let mut seen = Seen::default();
        let ends = &mut [&mut here, &mut there];
        let into = |offset, len| to.local_slice(offset, len).unwrap();
        // The receives are posted in another order of tags, and the third ignores some bits.
        for (slot, tag, ignore, offset, len) in [
            (1, 11, 0, 0, 1000),
            (2, 22, 0, 1000, 500_000),
            (3, 0x30, 0xf, 501_000, 64),
            (4, 44, 0, 502_000, 10),
        ] {
            let local = into(offset, len);
            post(ends, &mut seen, |ends| {
                ends[1].data.receive_tagged(None, local, tag, ignore, OpSlot(slot), false)
            });
        }
        let (head, body) = (from.local_slice(0, 16).unwrap(), from.local_slice(5000, 499_984).unwrap());
        post(ends, &mut seen, |ends| {
            ends[0].data.send_tagged(
                peer,
                PayloadSource::Two(head, body),
                22,
                Some(5),
                OpSlot(1),
                PostOptions::TOLD,
            )
        });
        post(ends, &mut seen, |ends| {
            let local = from.local_slice(1, 1000).unwrap();
            ends[0].data.send_tagged(peer, PayloadSource::One(local), 11, None, OpSlot(2), PostOptions::QUIET)
        });
        post(ends, &mut seen, |ends| ends[0].data.inject_tagged(peer, b"a few bytes", 0x3a, Some(9)));
        let _ = seen.done(ends, 0, OpSlot(1));
        let first = seen.done(ends, 1, OpSlot(1));
        assert_eq!((first.tag, first.len, first.data), (11, 1000, None));
        let second = seen.done(ends, 1, OpSlot(2));
        assert_eq!((second.tag, second.len, second.data), (22, 500_000, Some(5)));
        let third = seen.done(ends, 1, OpSlot(3));
        assert_eq!((third.tag, third.len, third.data), (0x3a, 11, Some(9)));
        assert_eq!(bytes_of(&target, 0, 1000), bytes[1..1001]);
        assert_eq!(bytes_of(&target, 1000, 16), bytes[..16]);
        assert_eq!(bytes_of(&target, 1016, 499_984), bytes[5000..504_984]);
        assert_eq!(bytes_of(&target, 501_000, 11), b"a few bytes");

        // A message without a tag.
        let local = into(0, 1000);
        post(ends, &mut seen, |ends| ends[1].data.receive(None, local, OpSlot(6), false));
        post(ends, &mut seen, |ends| {
            let local = from.local_slice(2000, 300).unwrap();
            ends[0].data.send(peer, PayloadSource::One(local), None, OpSlot(6), PostOptions::TOLD)
        });
        let _ = seen.done(ends, 0, OpSlot(6));
        assert_eq!(seen.done(ends, 1, OpSlot(6)).len, 300);
        assert_eq!(bytes_of(&target, 0, 300), bytes[2000..2300]);

        // A canceled receive fails as canceled, and consumes no message.
        post(ends, &mut seen, |ends| ends[1].data.receive_tagged(None, local, 55, 0, OpSlot(5), false));
        ends[1].data.cancel(OpSlot(5)).unwrap();
        let failure = seen.failed(ends, 1, OpSlot(5));
        assert_eq!((failure.errno, failure.slot), (OfiErrno::CANCELED, Some(OpSlot(5))));

        // A message longer than its receive fails there. It is the last one, because `net` then ends the connection.
        post(ends, &mut seen, |ends| ends[0].data.inject_tagged(peer, b"eleven byte", 44, None));
        let failure = seen.failed(ends, 1, OpSlot(4));
        assert_eq!(failure.errno, OfiErrno::TRUNCATED, "{failure:?}");
        assert!(!ends[1].queue.explain_failure(&failure).is_empty());
        drop((from, to));
        assert_eq!(
            (here.end(), there.end()),
            (CloseFailures::default(), CloseFailures::default()),
            "{info:?}"
        );
    }
}

#[test]
fn invalid_keys_fail_without_a_hang() {
    for info in offers("invalid_keys_fail_without_a_hang") {
        let (mut here, mut there, peer, _) = pair(&info);
        let memory = MemoryRange::heap(SIZE);
        let mine = here.of_data(&memory, MemoryDuty::Landing);
        let shut = there.of_data(&memory, MemoryDuty::User(AccessRights::WRITE));
        let mut seen = Seen::default();
        let ends = &mut [&mut here, &mut there];
        let wrong = RKey::new(number(&shut) ^ 1);
        for (slot, key) in [(1, wrong), (2, shut.key().unwrap())] {
            let local = mine.local_slice(0, 4096).unwrap();
            let from = RemotePlace::new(key, shut.remote_base());
            post(ends, &mut seen, |ends| {
                ends[0].data.read(peer, local, from, OpSlot(slot), PostOptions::TOLD)
            });
            let failure = seen.failed(ends, 0, OpSlot(slot));
            assert_ne!(failure.errno, OfiErrno::AGAIN, "{failure:?}");
        }
        drop((mine, shut));
        assert_eq!(
            (here.end(), there.end()),
            (CloseFailures::default(), CloseFailures::default()),
            "{info:?}"
        );
    }
}

#[test]
fn a_hundred_thousand_registrations_have_distinct_keys() {
    for info in offers("a_hundred_thousand_registrations_have_distinct_keys") {
        let end = End::new(&info);
        let mut random = fastrand::Rng::with_seed(5);
        let memory = MemoryRange::heap(SIZE);
        let (mut held, mut model) = (Vec::<(u64, Held)>::new(), HashSet::new());
        let turns = if std::env::var_os("TRUNKLINE_FULL").is_some() { 1_000_000 } else { 100_000 };
        for _ in 0..turns {
            if held.is_empty() || random.u32(..8) < 4 && held.len() < 500 {
                let (key, made) = if random.bool() {
                    let mr = end.of_data(&memory, MemoryDuty::User(AccessRights::WRITE));
                    (number(&mr), Held::Data { _mr: mr })
                } else {
                    let mr = end.of_ctrl(&memory, MemoryDuty::Mailbox);
                    (number(&mr), Held::Ctrl { _mr: mr })
                };
                assert!(model.insert(key), "key {key:#x} was returned twice");
                held.push((key, made));
            } else {
                let (key, _) = held.swap_remove(random.usize(..held.len()));
                assert!(model.remove(&key));
            }
            if !end.domain.provider_grant().prov_key {
                assert_eq!(end.domain.key_leases().live_count(), model.len());
            }
        }
        drop(held);
        assert_eq!(
            (end.domain.key_leases().live_count(), end.end()),
            (0, CloseFailures::default()),
            "{info:?}"
        );
    }
}

#[test]
fn another_thread_registers_while_this_one_writes() {
    for info in offers("another_thread_registers_while_this_one_writes") {
        let (mut here, mut there, peer, _) = pair(&info);
        let (source, target) = (MemoryRange::heap(SIZE), MemoryRange::heap(SIZE));
        source.write(0, &filled(4)).unwrap();
        let from = here.of_data(&source, MemoryDuty::User(AccessRights::LOCAL));
        let to = there.of_data(&target, MemoryDuty::User(AccessRights::WRITE));
        let (domain, model) = (Arc::clone(&here.domain), here.data.mr_scope());
        let other = std::thread::spawn(move || {
            let memory = MemoryRange::heap(4096);
            for _ in 0..2000 {
                register_memory(
                    &domain,
                    &model,
                    &MrRequest::for_host(&memory, MemoryDuty::User(AccessRights::WRITE)),
                )
                .unwrap();
            }
        });
        let mut seen = Seen::default();
        let ends = &mut [&mut here, &mut there];
        let mut rounds = 0;
        while !other.is_finished() || rounds < 100 {
            let local = from.local_slice(0, 4096).unwrap();
            let at = RemotePlace::new(RKey::new(number(&to)), to.remote_base());
            post(ends, &mut seen, |ends| {
                ends[0].data.write(peer, PayloadSource::One(local), at, None, OpSlot(0), PostOptions::TOLD)
            });
            let _ = seen.done(ends, 0, OpSlot(0));
            rounds += 1;
        }
        other.join().unwrap();
        drop((from, to));
        assert_eq!(
            (here.end(), there.end()),
            (CloseFailures::default(), CloseFailures::default()),
            "{info:?}"
        );
    }
}

enum Held {
    Data { _mr: MrEnabled<PayloadTraffic> },
    Ctrl { _mr: MrEnabled<ControlTraffic> },
}

/// Set in the process that is the peer: the provider's name.
const PEER_OF: &str = "TRUNKLINE_TEST_OFI_PEER";

/// The peer of the next test; does nothing unless that test started this process.
#[test]
fn peer_process() {
    let Ok(provider) = std::env::var(PEER_OF) else { return };
    let info = offers("peer_process").into_iter().find(|info| info.names()[0] == provider).unwrap();
    let mut end = End::new(&info);
    let memory = MemoryRange::heap(SIZE);
    let mr = end.of_data(&memory, MemoryDuty::User(AccessRights::READ_WRITE));
    let hex: String = end.data.local_name().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nPEER {hex} {} {}", number(&mr), mr.remote_base());
    std::io::stdout().flush().unwrap();
    let until = Instant::now() + PATIENCE;
    let mut told = 0;
    while Instant::now() < until {
        match end.look() {
            Some(Ok(entries)) => told += entries.len(),
            Some(Err(failure)) => panic!("{failure:?}"),
            None => {}
        }
        if told == 1 {
            // All expected data has arrived, and the process polls no more: later data stays in flight.
            println!("TOLD {}", bytes_of(&memory, 0, SIZE) == filled(3));
            std::io::stdout().flush().unwrap();
            std::thread::sleep(PATIENCE);
        }
    }
}

struct Peers {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Peers {
    fn start(provider: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "peer_process", "--nocapture", "--test-threads=1"]);
        let mut child = command.env(PEER_OF, provider).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Returns the words of the next line that begins with a given word.
    fn line(&mut self, first: &str) -> Vec<String> {
        let mut line = String::new();
        while self.out.read_line(&mut line).unwrap() > 0 {
            if line.starts_with(first) {
                return line.split_whitespace().skip(1).map(ToOwned::to_owned).collect();
            }
            line.clear();
        }
        panic!("the peer printed no line that begins with {first}");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn operations_to_a_dying_process_fail() {
    for info in offers("operations_to_a_dying_process_fail") {
        let mut process = Peers::start(&info.names()[0]);
        let words = process.line("PEER");
        let byte = |at: usize| u8::from_str_radix(&words[0][at..at + 2], 16).unwrap();
        let name: Vec<u8> = (0..words[0].len()).step_by(2).map(byte).collect();
        let key: RKey<PayloadTraffic> = RKey::new(words[1].parse().unwrap());
        let to = RemotePlace::new(key, words[2].parse().unwrap());
        let mut end = End::new(&info);
        let peer = end.data.insert(&name).unwrap();
        let memory = MemoryRange::heap(SIZE);
        memory.write(0, &filled(3)).unwrap();
        let mr = end.of_data(&memory, MemoryDuty::User(AccessRights::LOCAL));
        let whole = mr.local_slice(0, SIZE as u64).unwrap();
        let mut seen = Vec::new();
        let told = PostOptions { placed: true, ..PostOptions::TOLD };
        write(&mut end, &mut seen, peer, whole, to, Some(1), OpSlot(255), told);
        wait(&mut end, &mut seen, 1);
        assert_eq!(seen, [(255, true)], "{info:?}");
        assert_eq!(process.line("TOLD"), ["true"], "{info:?}");

        // More data than sockets hold, to a process that does not poll; then that process dies.
        seen.clear();
        for slot in 0..64 {
            write(&mut end, &mut seen, peer, whole, to, None, OpSlot(slot), told);
        }
        process.kill();
        wait(&mut end, &mut seen, 64);
        let slots: HashSet<u32> = seen.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(slots, (0..64).collect(), "{info:?}: each ends once");
        assert!(seen.iter().any(|(_, well)| !well), "{info:?}: {seen:?}");
        end.data.remove(peer).unwrap();
        drop(mr);
        assert_eq!(end.end(), CloseFailures::default(), "{info:?}");
    }
}

/// Posts a write; completions in the meantime are recorded as `(place, success)`.
#[allow(clippy::too_many_arguments, reason = "the parameters of a write, and of the wait for its completion")]
fn write(
    end: &mut End,
    seen: &mut Vec<(u32, bool)>,
    peer: EndpointPeer<PayloadTraffic>,
    local: LocalSlice<'_, PayloadTraffic>,
    to: RemotePlace<PayloadTraffic>,
    data: Option<u64>,
    slot: OpSlot,
    how: PostOptions,
) {
    let until = Instant::now() + PATIENCE;
    loop {
        match end.data.write(peer, PayloadSource::One(local), to, data, slot, how) {
            SubmitOutcome::Taken => return,
            SubmitOutcome::Again => note(end, seen),
            SubmitOutcome::Refused(errno) => panic!("refused: {errno}"),
        }
        assert!(Instant::now() < until, "the provider has no room within the limit");
    }
}

fn note(end: &mut End, seen: &mut Vec<(u32, bool)>) {
    match end.look() {
        Some(Ok(entries)) => seen.extend(entries.iter().map(|entry| (entry.slot.unwrap().0, true))),
        Some(Err(failure)) => seen.push((failure.slot.unwrap().0, false)),
        None => {}
    }
}

fn wait(end: &mut End, seen: &mut Vec<(u32, bool)>, count: usize) {
    let until = Instant::now() + PATIENCE;
    while seen.len() < count {
        note(end, seen);
        assert!(Instant::now() < until, "only {} of {count} completed: {seen:?}", seen.len());
    }
}
