//! A member of a group is aborted amid its messages, and its memory is reused immediately. Nothing more is written to
//! that memory, none of its new bytes are sent, and the other members are not affected.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trunkline_proto::counters::ProcessTally;
use trunkline_proto::wire::status::CommState;

use crate::net::{Comm, Net, until};
use crate::run::Scene;
use crate::sharing::flow::{LEN, SLOTS, Stream};
use crate::sharing::{SOON, connect_many, queue_pairs, status, wait_for_queue_pairs};

scenarios! {
    a_member_is_aborted_between_processes,
    a_member_is_aborted_inside_one,
    a_member_joins_without_free_descriptors,
}

/// Members of the group.
const MEMBERS: usize = 8;
/// The index of the aborted member.
const VICTIM: usize = 3;
/// Messages of each member before the abort.
const BEFORE: usize = 12;
/// Messages of each other member in total.
const MESSAGES: usize = 60;
/// Seed of the bytes that replace the victim's memory.
const PATTERN: usize = 77_777_777;

/// How an end aborts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// Deregisters, reuses the memory, closes later.
    Deregisters,
    /// Closes, and reuses the memory.
    Closes,
}

fn way() -> Way {
    if std::env::var("TEST_WAY").is_ok_and(|way| way == "close") { Way::Closes } else { Way::Deregisters }
}

/// Whether the sending end aborts.
fn sender_aborts() -> bool {
    std::env::var("TEST_END").is_ok_and(|end| end == "sending")
}

/// Plays one end of all eight streams, until their messages have ended.
fn play<'a>(net: &'a Net, comms: &[Comm], sends: bool, aborts: bool) -> Vec<Stream<'a>> {
    let streams = comms.iter().enumerate().map(|(name, &comm)| Stream::new(net, comm, sends, name));
    let mut streams: Vec<_> = streams.collect();
    let mut victim = Some(streams.remove(VICTIM));
    let (mut pattern, mut closes, mut failed) = (None, None, false);
    until("the messages of the others", || {
        for stream in &mut streams {
            stream.step(MESSAGES).unwrap_or_else(|code| panic!("another member got {code:?}"));
        }
        if let Some(stream) = &mut victim
            && !failed
        {
            // It gets the error of its peer's end; before that, no error may occur.
            failed = stream.step(usize::MAX).is_err();
            assert!(!failed || !aborts, "it fails before it is aborted");
        }
        if aborts
            && let Some(stream) = victim.take_if(|stream| stream.done >= BEFORE && stream.is_amid_long())
        {
            let (memory, rest) = abort(net, stream);
            (pattern, closes) = (Some(memory), rest);
        }
        if closes.is_some() && streams.iter().all(|stream| stream.done > MESSAGES / 2) {
            let comm = closes.take().unwrap();
            close(net, comm, sends);
        }
        let over = if aborts { pattern.is_some() && closes.is_none() } else { failed };
        (over && streams.iter().all(|stream| stream.done == MESSAGES)).then_some(())
    });
    if let Some(memory) = &pattern {
        memory.check(0..memory.len(), PATTERN, "memory that was the victim's");
    }
    if let Some(stream) = victim {
        assert!(!aborts);
        stream.drop_all();
    }
    streams
}

fn close(net: &Net, comm: Comm, sends: bool) {
    if sends { net.close_send(comm) } else { net.close_recv(comm) }.expect("close");
}

/// Aborts a stream and replaces its memory by another mapping, filled with a pattern. Returns the comm, if it is to be closed later.
fn abort(net: &Net, mut stream: Stream<'_>) -> (crate::sharing::flow::Mapped, Option<Comm>) {
    let memory = stream.memory.take().expect("memory");
    let (comm, mr) = (stream.comm, stream.mr);
    let began = Instant::now();
    let later = match way() {
        Way::Deregisters => {
            net.dereg(comm, mr).expect("deregMr of memory in use");
            Some(comm)
        }
        Way::Closes => {
            stream.drop_all();
            None
        }
    };
    let took = began.elapsed();
    println!("figure: {:?}, {}: {took:?}", way(), if sender_aborts() { "sending" } else { "receiving" });
    assert!(took < SOON, "the release of memory took {took:?}");
    let memory = memory.renewed();
    memory.fill(0..SLOTS * LEN, PATTERN);
    (memory, later)
}

fn a_member_is_aborted_between_processes(mut scene: Scene) {
    let net = Net::start(scene.version);
    let comms = connect_many(&net, &mut scene, MEMBERS);
    assert_eq!(queue_pairs(), 1, "all ride on one");
    scene.meet();
    let sends = scene.role == 1;
    let streams = play(&net, &comms, sends, sends == sender_aborts());
    streams.into_iter().for_each(Stream::close);
    scene.meet();
    wait_for_queue_pairs(&net, 0);
    scene.meet();
}

fn a_member_is_aborted_inside_one(scene: Scene) {
    let net = Net::start(scene.version);
    let pairs: Vec<_> = (0..MEMBERS).map(|_| net.to_self()).collect();
    assert_eq!(queue_pairs(), 2, "all ride on one, whose ends are here");
    let over = AtomicUsize::new(0);
    thread::scope(|scope| {
        for sends in [false, true] {
            let (net, pairs, over) = (&net, &pairs, &over);
            scope.spawn(move || {
                let comms: Vec<_> = pairs.iter().map(|pair| if sends { pair.0 } else { pair.1 }).collect();
                let streams = play(net, &comms, sends, sends == sender_aborts());
                over.fetch_add(1, Ordering::AcqRel);
                until("the other end", || (over.load(Ordering::Acquire) == 2).then_some(()));
                streams.into_iter().for_each(Stream::close);
            });
        }
    });
    wait_for_queue_pairs(&net, 0);
}

/// Links that members have left since the process began, and for each row in use whether all its links carry.
fn links() -> (u64, Vec<bool>) {
    let status = status();
    let open = status.rows.iter().filter_map(|row| row.comm).filter(|comm| comm.state == CommState::Open);
    let all = open.map(|comm| comm.links.iter().all(|(_, carries)| carries)).collect();
    (status.head.tallies[ProcessTally::LinksLeft as usize], all)
}

/// Sends or receives until each stream has completed `messages` messages.
fn run_to(streams: &mut [Stream<'_>], messages: usize) {
    until("messages", || {
        streams.iter_mut().for_each(|stream| stream.step(messages).expect("a message"));
        streams.iter().all(|stream| stream.done >= messages).then_some(())
    });
}

/// A member that joins existing links needs no descriptor at either end. If no descriptors are left, the other members are not affected.
fn a_member_joins_without_free_descriptors(mut scene: Scene) {
    let net = Net::start(scene.version);
    let (sends, short) = (scene.role == 1, (scene.role == 1) == sender_aborts());
    let comms = connect_many(&net, &mut scene, 2);
    let mut streams: Vec<_> =
        comms.iter().enumerate().map(|(name, &comm)| Stream::new(&net, comm, sends, name)).collect();
    run_to(&mut streams, MESSAGES);
    assert_eq!(links(), (0, vec![true; 2]), "a member lacks one of both links");
    scene.meet();
    let usual = getrlimit(Resource::Nofile);
    if short {
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).expect("setrlimit");
    }
    let joined = connect_many(&net, &mut scene, 1);
    streams.push(Stream::new(&net, joined[0], sends, 2));
    run_to(&mut streams, 10 * MESSAGES);
    setrlimit(Resource::Nofile, usual).expect("setrlimit");
    assert_eq!(links(), (0, vec![true; 3]), "a member has lost a link, or the new member lacks one");
    scene.meet();
    streams.into_iter().for_each(Stream::close);
    scene.meet();
}
