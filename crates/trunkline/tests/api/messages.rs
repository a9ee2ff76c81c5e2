//! Tagged messages between the ranks of a host.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use trunkline::World;
use trunkline::messages::{
    Any, AnyMemory, Buffer, CopyMethod, IpcMemory, MemfdDevice, MessageError, Messages, MethodChoice,
    TagBits, TaggedCounts, shared_device,
};
use trunkline_mem::ipc::CopyPlace;

use crate::ranks::{DIES, run_over, run_within_over};

const SHM: [&str; 1] = ["soft:shm"];
const CAPACITY: u64 = 64 << 20;

fn start(world: &World) -> Messages<MemfdDevice> {
    Messages::start(world, shared_device(world, CAPACITY).unwrap()).unwrap()
}

/// Returns bytes that depend on the seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8).wrapping_mul(31).wrapping_add(seed * 101) as u8).collect()
}

fn own(messages: &Messages<MemfdDevice>, len: usize) -> Buffer {
    Buffer::from_address(messages.memory().alloc(len).unwrap(), len)
}

#[test]
fn every_rank_sends_to_every_other_from_any_memory() {
    run_over(
        &["soft:shm", "soft:tcp"],
        "messages::every_rank_sends_to_every_other_from_any_memory",
        4,
        |world| {
            let mut messages = start(&world);
            let (rank, size) = (world.rank(), world.size());
            assert!((0..size).all(|other| messages.is_near(other) == (other != rank)));
            for len in [0, 8, 1000, 8192, 8193, 300_000] {
                let address = messages.memory().alloc(len.max(1)).unwrap();
                messages.memory().write(CopyPlace::Own(address), &pattern(len, rank)).unwrap();
                let private = Buffer::private(len).unwrap();
                private.write(0, &pattern(len, rank)).unwrap();
                let from = [Buffer::from_address(address, len), private.clone(), private];
                let into: Vec<_> = (0..size)
                    .map(|_| {
                        [
                            Buffer::private(len).unwrap(),
                            own(&messages, len.max(1)),
                            Buffer::private(len).unwrap(),
                        ]
                    })
                    .collect();
                let mut requests = Vec::new();
                for other in (0..size).filter(|other| *other != rank) {
                    for (tag, buffer) in (0..).zip(&into[other]) {
                        requests.push(messages.irecv(other, tag, buffer).unwrap());
                    }
                    for (tag, buffer) in (0..).zip(&from) {
                        requests.push(messages.isend(other, tag, buffer).unwrap());
                    }
                }
                for request in requests {
                    messages.wait(request).unwrap();
                }
                for other in (0..size).filter(|other| *other != rank) {
                    let mut bytes = vec![0; len];
                    for buffer in [&into[other][0], &into[other][2]] {
                        buffer.read(0, &mut bytes).unwrap();
                        assert!(bytes == pattern(len, other), "{len} bytes of rank {other}");
                    }
                }
            }
            let counts = messages.counts();
            assert!(
                counts.eager > 0 && counts.mapped > 0 && counts.staged > 0 && counts.fallbacks == 0,
                "{counts:?}"
            );
            messages.finish().unwrap();
            world.finish().unwrap();
        },
    );
}

/// Sends messages of all lengths from rank 0 to rank 1. Returns this rank's counts since then: messages copied as
/// receiver, as sender, and staged.
fn stream<M: IpcMemory>(messages: &mut Messages<M>, buffers: &[Buffer; 4]) -> [u64; 3] {
    let since = |now: TaggedCounts, then: TaggedCounts| {
        [now.by_receiver - then.by_receiver, now.by_sender - then.by_sender, now.staged - then.staged]
    };
    let before = messages.counts();
    for len in [1, 8192, 8193, 20_000, 100_000, 1 << 20] {
        let all = pattern(len, len);
        for round in 0..200_usize {
            let part = buffers[round % 4].part(round % 8, len).unwrap();
            let bytes = &all[..part.len()];
            if messages.rank() == 0 {
                messages.write(&part, 0, bytes).unwrap();
                let request = messages.isend(1, round as u64, &part).unwrap();
                messages.wait(request).unwrap();
            } else {
                let request = messages.irecv(0, round as u64, &part).unwrap();
                assert_eq!(messages.wait(request).unwrap().len, part.len() as u64);
                let mut got = vec![0; part.len()];
                messages.read(&part, 0, &mut got).unwrap();
                assert!(got == bytes, "{len} bytes, round {round}");
                messages.write(&part, 0, &vec![0xa5; part.len()]).unwrap();
            }
        }
    }
    messages.barrier().unwrap();
    assert_eq!(messages.counts().fallbacks, before.fallbacks);
    since(messages.counts(), before)
}

#[test]
fn private_memory_arrives_whole_by_each_copy_method() {
    run_over(&SHM, "messages::private_memory_arrives_whole_by_each_copy_method", 2, |world| {
        let mut messages = Messages::start(&world, AnyMemory::open("private", 0).unwrap()).unwrap();
        let buffers: [Buffer; 4] = std::array::from_fn(|_| Buffer::private((1 << 20) + 64).unwrap());
        let first = world.rank() == 0;
        // Messages of two of the six lengths are eager, so 800 of 1,200 are counted.
        let methods = [
            (CopyMethod::Pull, [0, 0, 0], [800, 0, 0]),
            (CopyMethod::Turns, [0, 400, 0], [400, 0, 0]),
            (CopyMethod::Stage, [0, 0, 800], [0, 0, 0]),
        ];
        for (method, sender, receiver) in methods {
            messages.choose_method(MethodChoice::Fixed(method));
            let counted = stream(&mut messages, &buffers);
            assert_eq!(counted, if first { sender } else { receiver }, "{method:?}");
        }
        messages.choose_method(MethodChoice::Learned);
        stream(&mut messages, &buffers);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn mapped_memory_arrives_whole_by_each_copy_method() {
    run_over(&SHM, "messages::mapped_memory_arrives_whole_by_each_copy_method", 2, |world| {
        let mut messages = start(&world);
        let buffers: [Buffer; 4] = std::array::from_fn(|_| own(&messages, (1 << 20) + 64));
        for choice in [
            MethodChoice::Learned,
            MethodChoice::Fixed(CopyMethod::Turns),
            MethodChoice::Fixed(CopyMethod::Stage),
        ] {
            messages.choose_method(choice);
            let counted = stream(&mut messages, &buffers);
            let by_turns = choice == MethodChoice::Fixed(CopyMethod::Turns);
            assert!(!by_turns || counted == if world.rank() == 0 { [0, 400, 0] } else { [400, 0, 0] });
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn slices_arrive_in_order() {
    run_over(&SHM, "messages::slices_arrive_in_order", 3, |world| {
        let mut messages = start(&world);
        let rank = world.rank();
        if rank == 0 {
            let mut seen = [0_usize; 3];
            for _ in 0..2 * 400 {
                let mut bytes = vec![0; 20_000];
                let got = messages.recv(Any, TagBits { tag: 0, mask: 0xff }, &mut bytes).unwrap();
                let number = seen[got.rank];
                assert_eq!(got.tag >> 8, number as u64, "a later message of rank {} arrived first", got.rank);
                let expected = pattern((number * 97) % 20_000, number);
                assert!(bytes[..got.len as usize] == expected, "message {number} of rank {}", got.rank);
                seen[got.rank] += 1;
            }
            assert!(matches!(messages.probe(Any, Any), Ok(None)));
        } else {
            for number in 0..400 {
                let bytes = pattern((number * 97) % 20_000, number);
                messages.send(0, (number as u64) << 8, &bytes).unwrap();
            }
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn message_errors_name_the_invalid_argument() {
    run_over(&SHM, "messages::message_errors_name_the_invalid_argument", 2, |world| {
        let mut messages = start(&world);
        let (rank, other) = (world.rank(), 1 - world.rank());
        let told = |error: MessageError| error.to_string();
        assert!(told(messages.send(rank, 0, &[]).unwrap_err()).contains("copy the bytes"));
        assert!(
            told(messages.send(2, 0, &[]).unwrap_err()).contains("rank 2 is out of range: the world has 2")
        );
        assert!(told(messages.send(other, 1 << 63, &[]).unwrap_err()).contains("use tags below 2^63"));
        let buffer = Buffer::private(10).unwrap();
        assert!(told(buffer.write(8, &[0; 3]).unwrap_err()).contains("3 bytes from offset 8 on"));
        assert!(buffer.part(5, 6).is_err());
        assert!(told(buffer.in_rows(4, 3).unwrap_err()).contains("must not be empty or overlap"));
        assert!(buffer.in_rows(2, 4).unwrap().in_rows(1, 2).is_err());
        let nowhere = Buffer::from_address(4096, 20_000);
        assert!(told(messages.isend(other, 0, &nowhere).unwrap_err()).contains("has it been freed?"));
        assert!(told(nowhere.write(0, &[1]).unwrap_err()).contains("Messages::read"));
        if rank == 0 {
            messages.send(1, 3, b"too long").unwrap();
        } else {
            let mut short = [0; 3];
            let error = messages.recv(0, 3, &mut short).unwrap_err();
            assert!(matches!(error, MessageError::Truncated { rank: 0, tag: 3, len: 8, room: 3 }), "{error}");
            assert_eq!(&short, b"too");
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// Rank 1 dies while long messages are being copied, by each method, from each kind of memory, and at different times.
/// Rank 0 gets an error within a second and releases all memory, and its buffers do not change any more.
#[test]
fn rank_death_during_a_copy_spares_its_peer() {
    let name = "messages::rank_death_during_a_copy_spares_its_peer";
    let ends = |status: Option<i32>| status == Some(DIES) || status.is_none();
    for (method, kind) in METHODS.into_iter().flat_map(|method| [(method, "memfd"), (method, "private")]) {
        for micros in ["100", "1000", "3000"] {
            let environment = [
                ("KILLED_BY", method.as_ref()),
                ("KILLED_OF", kind.as_ref()),
                ("KILLED_AT", micros.as_ref()),
            ];
            run_within_over(&environment, &SHM, name, 2, &ends, |world| {
                let said = |name| std::env::var(name).unwrap();
                let method = [CopyMethod::Pull, CopyMethod::Turns, CopyMethod::Stage]
                    [METHODS.iter().position(|method| *method == said("KILLED_BY")).unwrap()];
                let after = Duration::from_micros(said("KILLED_AT").parse().unwrap());
                if said("KILLED_OF") == "memfd" {
                    let messages = start(&world);
                    let long = || own(&messages, KILLED);
                    let buffers = [long(), long(), Buffer::private(KILLED).unwrap(), long()];
                    let messages = survives(&world, messages, &buffers, method, after);
                    let since = Instant::now();
                    // This rank has three allocations of its own.
                    while messages.memory().usage().unwrap().allocations > 3 {
                        assert!(
                            since.elapsed() < Duration::from_secs(2),
                            "memory of the dead rank is still in use"
                        );
                    }
                } else {
                    let messages = Messages::start(&world, AnyMemory::open("private", 0).unwrap()).unwrap();
                    let buffers: [Buffer; 4] = std::array::from_fn(|_| Buffer::private(KILLED).unwrap());
                    survives(&world, messages, &buffers, method, after);
                }
                std::process::exit(DIES);
            });
        }
    }
}

const METHODS: [&str; 3] = ["pull", "turns", "stage"];
/// Bytes of a buffer, and a time in which four messages of that length cannot all be copied.
const KILLED: usize = 8 << 20;
const SOON: Duration = Duration::from_micros(100);

/// Lets rank 1 die some time after messages began in both directions. Checks the results at rank 0.
fn survives<M: IpcMemory>(
    world: &World,
    mut messages: Messages<M>,
    buffers: &[Buffer; 4],
    method: CopyMethod,
    after: Duration,
) -> Messages<M> {
    messages.choose_method(MethodChoice::Fixed(method));
    let other = 1 - world.rank();
    // Both ranks have left the collective calls.
    if world.rank() == 0 {
        messages.send(1, 9, &[]).unwrap();
    } else {
        messages.recv(0, 9, &mut []).unwrap();
    }
    let [from, into] = [&buffers[..2], &buffers[2..]];
    let mut requests = Vec::new();
    for (tag, (from, into)) in (0..).zip(from.iter().zip(into)) {
        requests.push(messages.irecv(other, tag, into).unwrap());
        requests.push(messages.isend(other, tag, from).unwrap());
    }
    if world.rank() == 1 {
        std::thread::spawn(move || {
            std::thread::sleep(after);
            let me = Pid::from_raw(std::process::id().cast_signed()).unwrap();
            rustix::process::kill_process(me, Signal::KILL).unwrap();
        });
        loop {
            messages.progress();
        }
    }
    let since = Instant::now();
    let ended: Vec<_> = requests.into_iter().map(|request| messages.wait(request)).collect();
    let gone = ended.iter().filter(|end| matches!(end, Err(MessageError::Gone { .. }))).count();
    eprintln!("{gone} of 4 messages ended with the death");
    assert!(gone > 0 || after > SOON, "{ended:?}");
    assert!(ended.iter().all(|end| matches!(end, Ok(_) | Err(MessageError::Gone { .. }))), "{ended:?}");
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    assert!(matches!(messages.send(1, 0, &[]), Err(MessageError::Gone { rank: Some(1) })));
    // Bytes that have arrived do not change any more.
    let look = |messages: &Messages<M>| {
        let mut bytes = [vec![0; KILLED], vec![0; KILLED]];
        bytes.iter_mut().zip(into).for_each(|(bytes, into)| messages.read(into, 0, bytes).unwrap());
        bytes
    };
    let before = look(&messages);
    let until = Instant::now() + Duration::from_millis(20);
    while Instant::now() < until {
        messages.progress();
    }
    assert!(look(&messages) == before, "a buffer changed after the death");
    messages
}

/// Mirrors a loop that exhausted devices: allocate, exchange both ways, free, with little memory, ten thousand times.
#[test]
fn ten_thousand_allocations_are_exchanged_in_little_memory() {
    let rounds = if std::env::var_os("TRUNKLINE_FULL").is_some() { 10_000 } else { 200 };
    run_over(&SHM, "messages::ten_thousand_allocations_are_exchanged_in_little_memory", 2, |world| {
        let mut messages = start(&world);
        let other = 1 - world.rank();
        let len = 10 << 20;
        let into = Buffer::private(len).unwrap();
        for round in 0..rounds {
            let address = loop {
                if let Ok(address) = messages.memory().alloc(len) {
                    break address;
                }
                // Freed memory is released once the other rank unmaps it: it is recalled by a trim, or by the next
                // message.
                messages.trim_exports(0);
                messages.progress();
            };
            messages.memory().write(CopyPlace::Own(address), &[round as u8; 64]).unwrap();
            let received = messages.irecv(other, 1, &into).unwrap();
            let sent = messages.isend(other, 1, &Buffer::from_address(address, len)).unwrap();
            messages.wait(received).unwrap();
            messages.wait(sent).unwrap();
            let mut first = [0; 64];
            into.read(0, &mut first).unwrap();
            assert_eq!(first, [round as u8; 64], "round {round}");
            messages.memory().free(address).unwrap();
        }
        assert_eq!(messages.counts().fallbacks, 0);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

#[test]
fn collectives_are_whole_with_any_mix_of_memory() {
    run_over(&SHM, "messages::collectives_are_whole_with_any_mix_of_memory", 4, |world| {
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        for round in 0..12 {
            for len in [0, 8, 8192, 100_000, 1 << 20] {
                // Ranks have buffers of different kinds, only some of which others can map.
                let buffer = |messages: &Messages<MemfdDevice>, len: usize, turn: usize| match turn % 2 {
                    0 => Buffer::private(len).unwrap(),
                    _ => own(messages, len.max(1)).part(0, len).unwrap(),
                };
                let (root, seed) = (round % size, round * 7 + len);
                let all = buffer(&messages, len, rank + round);
                if rank == root {
                    messages.write(&all, 0, &pattern(len, seed)).unwrap();
                }
                messages.broadcast(root, &all).unwrap();
                // The root overwrites its buffer at once, so that a late read by another rank would be detected.
                let mut bytes = vec![0; len];
                messages.read(&all, 0, &mut bytes).unwrap();
                messages.write(&all, 0, &vec![0xee; len]).unwrap();
                assert!(bytes == pattern(len, seed), "{len} bytes of rank {root}");
                let (from, into) =
                    (buffer(&messages, len * size, rank / 2 + round), buffer(&messages, len * size, rank));
                for other in 0..size {
                    messages.write(&from, other * len, &pattern(len, seed + rank * size + other)).unwrap();
                }
                messages.all_to_all(&from, &into).unwrap();
                messages.write(&from, 0, &vec![0xdd; len * size]).unwrap();
                for other in 0..size {
                    messages.read(&into, other * len, &mut bytes).unwrap();
                    assert!(bytes == pattern(len, seed + other * size + rank), "{len} bytes of rank {other}");
                }
                messages.barrier().unwrap();
                for buffer in [all, from, into] {
                    let _ = buffer.address().map(|addr| messages.memory().free(addr).unwrap());
                }
            }
        }
        assert_eq!(messages.counts().fallbacks, 0);
        // A rank that passes other lengths gets an error, and no rank hangs.
        let odd = Buffer::private(6).unwrap();
        assert!(matches!(messages.all_to_all(&odd, &odd), Err(MessageError::Parts { size: 4, .. })));
        let mine = Buffer::private(if rank == 3 { 50 } else { 40 }).unwrap();
        let end = messages.broadcast(0, &mine);
        assert_eq!(end.is_ok(), rank != 3, "{end:?}");
        assert!(rank != 3 || end.unwrap_err().to_string().contains("rank 0 passed 40 bytes"));
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// B13, M23: all ranks decide once whether all of them read. If one rank's memory cannot be read, or it has another
/// copy method, the two ends of each message choose its method. Different lengths are errors at the ranks that detect
/// them, and leave no message in an inbox.
#[test]
fn ranks_decide_together_whether_all_read() {
    run_over(&SHM, "messages::ranks_decide_together_whether_all_read", 4, |world| {
        const LEN: usize = 100_000;
        let mut messages = start(&world);
        let (rank, size) = (world.rank(), world.size());
        let others = size as u64 - 1;
        let [from, into] = [(); 2].map(|()| own(&messages, LEN * size));
        let private = Buffer::private(LEN * size).unwrap();
        // Ranks with private memory, and ranks with another copy method.
        let odd: [[&[usize]; 2]; 5] = [[&[], &[]], [&[2], &[]], [&[], &[1]], [&[1, 2, 3], &[]], [&[], &[]]];
        for (round, [private_ranks, stubborn_ranks]) in odd.into_iter().enumerate() {
            let is_private = |rank: usize| private_ranks.contains(&rank);
            let is_stubborn = |rank: usize| stubborn_ranks.contains(&rank);
            let all_read = !(0..size).any(|rank| is_private(rank) || is_stubborn(rank));
            let from = if is_private(rank) { &private } else { &from };
            messages.choose_method(if is_stubborn(rank) {
                MethodChoice::Fixed(CopyMethod::Turns)
            } else {
                MethodChoice::Learned
            });
            for other in 0..size {
                let bytes = pattern(LEN, round + rank * size + other);
                messages.write(from, other * LEN, &bytes).unwrap();
            }
            let (counts, together) = (messages.counts(), messages.collective_counts());
            messages.all_to_all(from, &into).unwrap();
            let mut bytes = vec![0; LEN];
            for other in 0..size {
                messages.read(&into, other * LEN, &mut bytes).unwrap();
                assert!(bytes == pattern(LEN, round + other * size + rank), "round {round}, rank {other}");
            }
            let now = messages.collective_counts();
            let counted = [now.read - together.read, now.apart - together.apart];
            assert_eq!(counted, [u64::from(all_read), u64::from(!all_read)], "round {round}");
            if all_read {
                let since = messages.counts();
                assert_eq!(since.mapped - counts.mapped, others, "round {round}: each reads from all");
                assert_eq!((since.by_sender, since.staged), (counts.by_sender, counts.staged));
            }
            messages.choose_method(MethodChoice::Learned);
            for root in 0..size {
                let shared = if is_private(root) { &private } else { &into }.part(0, LEN).unwrap();
                if rank == root {
                    messages.write(&shared, 0, &pattern(LEN, 1000 + round * size + root)).unwrap();
                }
                let (counts, together) = (messages.counts(), messages.collective_counts());
                messages.broadcast(root, &shared).unwrap();
                messages.read(&shared, 0, &mut bytes).unwrap();
                assert!(bytes == pattern(LEN, 1000 + round * size + root), "round {round}, root {root}");
                let (since, now) = (messages.counts(), messages.collective_counts());
                let counted = [now.read - together.read, now.apart - together.apart];
                let reads = !is_private(root);
                let expected = if rank == root { [reads, !reads] } else { [false; 2] };
                assert_eq!(counted, expected.map(u64::from), "round {round}, root {root}");
                if reads {
                    let mapped = u64::from(rank != root);
                    assert_eq!(since.mapped - counts.mapped, mapped, "round {round}, root {root}");
                    assert_eq!(since.by_sender, counts.by_sender, "round {round}, root {root}");
                }
                messages.barrier().unwrap();
            }
        }
        // The parts of rank 3 are so short that it does not take part in the decision.
        let short = if rank == 3 { from.part(0, 100 * size).unwrap() } else { from.clone() };
        let place = if rank == 3 { into.part(0, 100 * size).unwrap() } else { into.clone() };
        let end = messages.all_to_all(&short, &place);
        assert!(end.is_err(), "rank {rank}: {end:?}");
        messages.barrier().unwrap();
        messages.all_to_all(&from, &into).unwrap();
        assert_eq!(messages.counts().fallbacks, 0);
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}

/// Each rank has a square matrix; a column of one becomes a row of the other.
#[test]
fn a_column_is_received_as_a_row() {
    run_over(&SHM, "messages::a_column_is_received_as_a_row", 2, |world| {
        let mut messages = start(&world);
        let (rank, other, side) = (world.rank(), 1 - world.rank(), 200);
        for private in [true, false] {
            let len = 8 * side * side;
            let matrix = if private { Buffer::private(len).unwrap() } else { own(&messages, len) };
            let cell = |rank: usize, row: usize, column: usize| (rank << 32 | row << 16 | column) as u64;
            let cells: Vec<u8> =
                (0..side * side).flat_map(|at| cell(rank, at / side, at % side).to_le_bytes()).collect();
            messages.write(&matrix, 0, &cells).unwrap();
            let column = matrix.part(8 * 5, len - 8 * 5).unwrap().in_rows(8, 8 * side).unwrap();
            assert_eq!(column.len(), 8 * side);
            let row = Buffer::private(8 * side).unwrap();
            let received = messages.irecv(other, 1, &row).unwrap();
            let sent = messages.isend(other, 1, &column).unwrap();
            messages.wait(received).unwrap();
            messages.wait(sent).unwrap();
            let mut got = vec![0; 8 * side];
            messages.read(&row, 0, &mut got).unwrap();
            let expected: Vec<u8> = (0..side).flat_map(|row| cell(other, row, 5).to_le_bytes()).collect();
            assert_eq!(got, expected);
        }
        messages.finish().unwrap();
        world.finish().unwrap();
    });
}
