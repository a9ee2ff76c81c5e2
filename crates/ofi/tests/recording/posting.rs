//! The conversion of operations, and their completions.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering::SeqCst;

use trunkline_fabric::AccessRights;
use trunkline_ofi::typed::{
    CompletionEntry, CompletionFormat, FailedOperation, MemoryDuty, OfiErrno, OpSlot, OrderGuarantees,
    PayloadSource, PostOptions, QueueRead, QueueWants, RKey, RemotePlace, SubmitOutcome,
};
use trunkline_sys::ofi::{ADDR_NOTAVAIL, ADDR_UNSPEC, CqErrEntry, CqTaggedEntry, caps, errno, mr_mode};

use crate::world::{ALL, Ended, Kind, Post};
use crate::{ALLOCATED, Nic, WANTS};

/// The context of the last operation.
fn last_context(nic: &Nic) -> usize {
    nic.world.posts.lock().unwrap().last().unwrap().context
}

fn take(nic: &Nic) -> Post {
    nic.world.posts.lock().unwrap().pop().unwrap()
}

#[test]
fn operations_are_passed_on_unchanged() {
    let mut nic = Nic::new(Kind::default());
    let mr = nic.data(MemoryDuty::User(AccessRights::ALL));
    let base = nic.memory.addr();
    let peer = nic.data.insert(b"\x05").unwrap();
    let (one, two) = (mr.local_slice(8, 100).unwrap(), mr.local_slice(4000, 96).unwrap());
    let to = RemotePlace::new(RKey::new(77), 4096);
    let (ranges, remote) = (vec![(base + 8, 100, 0xd00d)], Some((4096, 100, 77)));
    let write = nic.data.write(peer, PayloadSource::One(one), to, Some(9), OpSlot(3), PostOptions::TOLD);
    assert_eq!(write, SubmitOutcome::Taken);
    let flags = caps::COMPLETION | caps::REMOTE_CQ_DATA;
    let context = last_context(&nic);
    let expected =
        Post { call: "write", ranges, peer: 5, remote, context, data: 9, flags, ..Post::default() };
    assert_eq!(take(&nic), expected);

    let how = PostOptions { tell: false, more: true, placed: true };
    let both = vec![(base + 8, 100, 0xd00d), (base + 4000, 96, 0xd00d)];
    assert_eq!(
        nic.data.write(peer, PayloadSource::Two(one, two), to, None, OpSlot(3), how),
        SubmitOutcome::Taken
    );
    let (flags, remote) = (caps::MORE | caps::DELIVERY_COMPLETE, Some((4096, 196, 77)));
    let ranges = both.clone();
    let expected = Post { call: "write", ranges, peer: 5, remote, context, flags, ..Post::default() };
    assert_eq!(take(&nic), expected);

    assert_eq!(
        nic.data.read(peer, two, to, OpSlot(0), PostOptions { placed: true, ..PostOptions::TOLD }),
        SubmitOutcome::Taken
    );
    let (ranges, remote) = (vec![(base + 4000, 96, 0xd00d)], Some((4096, 96, 77)));
    let (context, flags) = (context - 3 * 64, caps::COMPLETION);
    let expected =
        Post { call: "read", ranges: ranges.clone(), peer: 5, remote, context, flags, ..Post::default() };
    assert_eq!(take(&nic), expected);

    let sent =
        nic.data.send_tagged(peer, PayloadSource::Two(one, two), 42, Some(1), OpSlot(0), PostOptions::QUIET);
    assert_eq!(sent, SubmitOutcome::Taken);
    let flags = caps::REMOTE_CQ_DATA;
    let expected =
        Post { call: "tsend", ranges: both, peer: 5, context, data: 1, tag: 42, flags, ..Post::default() };
    assert_eq!(take(&nic), expected);

    for (from, addr) in [(Some(peer), 5), (None, ADDR_UNSPEC)] {
        assert_eq!(nic.data.receive_tagged(from, two, 42, 0xff, OpSlot(0), true), SubmitOutcome::Taken);
        let flags = caps::COMPLETION | caps::MORE;
        let (ranges, ignore) = (ranges.clone(), 0xff);
        let expected = Post {
            call: "trecv",
            ranges: ranges.clone(),
            peer: addr,
            context,
            tag: 42,
            ignore,
            flags,
            ..Post::default()
        };
        assert_eq!(take(&nic), expected);
        assert_eq!(nic.data.receive(from, two, OpSlot(0), false), SubmitOutcome::Taken);
        let flags = caps::COMPLETION;
        let expected = Post { call: "recv", ranges, peer: addr, context, flags, ..Post::default() };
        assert_eq!(take(&nic), expected);
    }
    assert_eq!(
        nic.data.send(peer, PayloadSource::One(two), None, OpSlot(0), PostOptions::TOLD),
        SubmitOutcome::Taken
    );
    let expected = Post { call: "send", ranges, peer: 5, context, flags, ..Post::default() };
    assert_eq!(take(&nic), Post { flags: caps::COMPLETION, ..expected });
    nic.data.cancel(OpSlot(2)).unwrap();
    let context = context + 2 * 64;
    assert_eq!(take(&nic), Post { call: "cancel", context, ..Post::default() });
}

#[test]
fn injected_bytes_need_no_registration() {
    let mut nic = Nic::new(Kind::default());
    let peer = nic.data.insert(b"\x05").unwrap();
    let to = RemotePlace::new(RKey::new(77), 4096);
    let bytes = [7; 65];
    let (fits, at) = (&bytes[..64], bytes.as_ptr().addr());
    let ranges = vec![(at, 64, 0)];
    let remote = Some((4096, 64, 77));
    let written = nic.data.write(peer, PayloadSource::Inline(fits), to, None, OpSlot(1), PostOptions::TOLD);
    assert_eq!(written, SubmitOutcome::Taken);
    let flags = caps::COMPLETION | caps::INJECT;
    let context = last_context(&nic);
    let expected =
        Post { call: "write", ranges: ranges.clone(), peer: 5, remote, context, flags, ..Post::default() };
    assert_eq!(take(&nic), expected);
    assert_eq!(nic.data.inject_write(peer, fits, to, None), SubmitOutcome::Taken);
    let expected = Post { call: "inject", ranges: ranges.clone(), peer: 5, remote, ..Post::default() };
    assert_eq!(take(&nic), expected);
    assert_eq!(nic.data.inject_write(peer, fits, to, Some(3)), SubmitOutcome::Taken);
    assert_eq!(take(&nic), Post { call: "injectdata", data: 3, ..expected });
    assert_eq!(nic.data.inject_tagged(peer, fits, 4, None), SubmitOutcome::Taken);
    let expected = Post { call: "tinject", ranges, peer: 5, tag: 4, ..Post::default() };
    assert_eq!(take(&nic), expected);
    assert_eq!(nic.data.inject_tagged(peer, fits, 4, Some(3)), SubmitOutcome::Taken);
    assert_eq!(take(&nic), Post { call: "tinjectdata", data: 3, ..expected });

    let long = SubmitOutcome::Refused(OfiErrno::TOO_LONG);
    assert_eq!(nic.data.inject_write(peer, &bytes, to, None), long);
    assert_eq!(nic.data.inject_tagged(peer, &bytes, 4, None), long);
    assert_eq!(
        nic.data.write(peer, PayloadSource::Inline(&bytes), to, None, OpSlot(1), PostOptions::TOLD),
        long
    );
    assert_eq!(
        nic.data.send_tagged(peer, PayloadSource::Inline(&bytes), 4, None, OpSlot(1), PostOptions::TOLD),
        long
    );
    assert_eq!(nic.data.send(peer, PayloadSource::Inline(&bytes), None, OpSlot(1), PostOptions::TOLD), long);
    assert!(nic.world.posts.lock().unwrap().is_empty());
}

#[test]
fn oversized_data_and_tags_are_refused() {
    let to = RemotePlace::new(RKey::new(77), 4096);
    let none = SubmitOutcome::Refused(OfiErrno::INVALID);
    for (data_bytes, fits, too_much) in
        [(8, Some(u64::MAX), None), (4, Some(u64::MAX >> 32), Some(1 << 32)), (0, None, Some(0))]
    {
        let mut nic = Nic::new(Kind { data_bytes, ..Kind::default() });
        let peer = nic.data.insert(b"\x05").unwrap();
        let mr = nic.data(MemoryDuty::User(AccessRights::ALL));
        let local = || PayloadSource::One(mr.local_slice(0, 8).unwrap());
        for (data, posted) in [(fits, SubmitOutcome::Taken), (None, SubmitOutcome::Taken), (too_much, none)] {
            let posted = if data.is_none() { SubmitOutcome::Taken } else { posted };
            assert_eq!(
                nic.data.write(peer, local(), to, data, OpSlot(0), PostOptions::TOLD),
                posted,
                "{data:?}"
            );
            assert_eq!(nic.data.inject_write(peer, b"x", to, data), posted);
            assert_eq!(nic.data.send_tagged(peer, local(), 1, data, OpSlot(0), PostOptions::TOLD), posted);
            assert_eq!(nic.data.inject_tagged(peer, b"x", 1, data), posted);
            assert_eq!(nic.data.send(peer, local(), data, OpSlot(0), PostOptions::TOLD), posted);
        }
        // Tags have 56 bits here.
        for (tag, posted) in [((1 << 56) - 1, SubmitOutcome::Taken), (1 << 56, none)] {
            let into = mr.local_slice(0, 8).unwrap();
            assert_eq!(nic.data.send_tagged(peer, local(), tag, None, OpSlot(0), PostOptions::TOLD), posted);
            assert_eq!(nic.data.inject_tagged(peer, b"x", tag, None), posted);
            assert_eq!(nic.data.receive_tagged(None, into, tag, 0, OpSlot(0), false), posted);
        }
    }
}

#[test]
fn busy_and_refused_posts_are_distinguished() {
    let mut nic = Nic::new(Kind { op_flags: 0, ..Kind::default() });
    let peer = nic.data.insert(b"\x05").unwrap();
    let to = RemotePlace::new(RKey::new(77), 4096);
    let mr = nic.data(MemoryDuty::User(AccessRights::ALL));
    let placed = PostOptions { placed: true, ..PostOptions::TOLD };
    for (code, posted) in [
        (0, SubmitOutcome::Taken),
        (-(errno::EAGAIN as isize), SubmitOutcome::Again),
        (-(errno::ENOKEY as isize), SubmitOutcome::Refused(OfiErrno::NO_KEY)),
    ] {
        *nic.world.answer.lock().unwrap() = code;
        let local = mr.local_slice(0, 4096).unwrap();
        assert_eq!(nic.data.write(peer, PayloadSource::One(local), to, None, OpSlot(7), placed), posted);
        assert_eq!(nic.data.inject_write(peer, b"x", to, None), posted);
    }
    // No completion level is requested that was not granted.
    assert_eq!(nic.world.posts.lock().unwrap()[0].flags, caps::COMPLETION);
    *nic.world.answer.lock().unwrap() = 0;
    // The queue has eight slots.
    let local = mr.local_slice(0, 1).unwrap();
    let none = SubmitOutcome::Refused(OfiErrno::INVALID);
    assert_eq!(nic.data.write(peer, PayloadSource::One(local), to, None, OpSlot(8), PostOptions::TOLD), none);
    assert_eq!(nic.data.receive(None, local, OpSlot(8), false), none);
    assert_eq!(nic.data.cancel(OpSlot(8)), Err(OfiErrno::INVALID));
}

#[test]
fn bytes_outside_of_a_registration_are_refused() {
    let nic = Nic::new(Kind::default());
    let mr = nic.data(MemoryDuty::User(AccessRights::WRITE));
    assert_eq!(mr.local_slice(0, 4096).unwrap().len(), 4096);
    assert!(mr.local_slice(4096, 0).unwrap().is_empty());
    for (offset, len) in [(0, 4097), (4095, 2), (4097, 0), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(mr.local_slice(offset, len).is_err(), "{offset} {len}");
    }
}

#[test]
fn peers_are_inserted_and_removed() {
    let mut nic = Nic::new(Kind::default());
    assert_eq!(nic.data.local_name().unwrap(), b"name");
    let peer = nic.data.insert(b"\x07 and more").unwrap();
    assert_eq!(peer.peer_number(), 7);
    nic.data.remove(peer).unwrap();
    let strange = nic.data.insert(&[99]).unwrap();
    assert_eq!(nic.data.remove(strange), Err(OfiErrno::INVALID));
    assert_eq!(nic.data.insert(&[0]), Err(OfiErrno::INVALID));
    assert_eq!(nic.data.insert(&[1; 1000]), Err(OfiErrno::INVALID));
}

/// Returns the contexts of the first and the last slot.
fn contexts(nic: &mut Nic) -> [*mut c_void; 2] {
    [OpSlot(0), OpSlot(7)].map(|slot| {
        nic.data.cancel(slot).unwrap();
        std::ptr::with_exposed_provenance_mut(take(nic).context)
    })
}

#[test]
fn completions_are_returned_in_order() {
    for (format, sources) in
        [(CompletionFormat::Tagged, false), (CompletionFormat::Data, true), (CompletionFormat::Tagged, true)]
    {
        let mut nic = Nic::with(Kind::default(), &QueueWants { format, sources, ..WANTS });
        let [first, last] = contexts(&mut nic);
        let own = caps::WRITE | caps::REMOTE_CQ_DATA;
        let well = CqTaggedEntry { op_context: last, flags: own, data: 5, tag: 6, ..CqTaggedEntry::ZERO };
        let flags = caps::REMOTE_WRITE | caps::REMOTE_CQ_DATA;
        let told = CqTaggedEntry { op_context: std::ptr::null_mut(), flags, len: 3, ..well };
        let failed = CqErrEntry {
            op_context: first,
            flags: caps::RECV,
            err: errno::ETRUNC,
            prov_errno: 7,
            len: 4,
            olen: 2,
            tag: 1,
            ..CqErrEntry::ZERO
        };
        *nic.world.ended.lock().unwrap() =
            VecDeque::from([Ended::Well(well, 4), Ended::Well(told, ADDR_NOTAVAIL), Ended::Badly(failed)]);
        assert!(!nic.queue.may_sleep());
        assert_eq!(nic.queue.read_batch(), QueueRead::Entries(2));
        let tag = if format == CompletionFormat::Tagged { 6 } else { 0 };
        let source = sources.then_some(4);
        let entry = CompletionEntry { slot: Some(OpSlot(7)), flags: own, len: 0, data: None, tag, source };
        assert_eq!(nic.queue.batch_entry(0), Some(entry));
        let told = CompletionEntry { slot: None, flags, len: 3, data: Some(5), tag, source: None };
        assert_eq!(nic.queue.batch_entry(1), Some(told));
        assert_eq!(nic.queue.batch_entry(2), None);
        // The error stays at the head of the queue until it is read.
        assert_eq!(nic.queue.read_batch(), QueueRead::ErrorWaits);
        assert_eq!((nic.queue.read_batch(), nic.queue.batch_entry(0)), (QueueRead::ErrorWaits, None));
        let failure = nic.queue.read_error().unwrap();
        let expected = FailedOperation {
            slot: Some(OpSlot(0)),
            flags: caps::RECV,
            errno: OfiErrno::TRUNCATED,
            provider: 7,
            len: 4,
            beyond: 2,
            tag: 1,
        };
        assert_eq!(failure, expected);
        assert_eq!(nic.queue.explain_failure(&failure), "the seventh");
        let unknown = FailedOperation { provider: 8, ..failure };
        assert_eq!(nic.queue.explain_failure(&unknown), OfiErrno::TRUNCATED.to_string());
        assert_eq!((nic.queue.read_error(), nic.queue.read_batch()), (None, QueueRead::Nothing));
        assert!(nic.queue.may_sleep());
        assert_eq!(nic.queue.wait_descriptor(), Ok(77));
    }
}

#[test]
fn posting_and_reading_allocate_nothing() {
    let mut nic = Nic::new(Kind::default());
    let [first, _] = contexts(&mut nic);
    let peer = nic.data.insert(b"\x05").unwrap();
    let mr = nic.data(MemoryDuty::User(AccessRights::ALL));
    let to = RemotePlace::new(RKey::new(77), 4096);
    let entry = CqTaggedEntry { op_context: first, ..CqTaggedEntry::ZERO };
    *nic.world.ended.lock().unwrap() = (0..64).map(|_| Ended::Well(entry, 0)).collect();
    nic.world.quiet.store(true, SeqCst);
    let before = ALLOCATED.get();
    for _ in 0..2 {
        let (one, two) = (mr.local_slice(0, 64).unwrap(), mr.local_slice(64, 64).unwrap());
        let both = PayloadSource::Two(one, two);
        assert_eq!(
            nic.data.write(peer, both, to, Some(1), OpSlot(0), PostOptions::TOLD),
            SubmitOutcome::Taken
        );
        assert_eq!(
            nic.data.write(peer, PayloadSource::Inline(b"x"), to, None, OpSlot(0), PostOptions::TOLD),
            SubmitOutcome::Taken
        );
        assert_eq!(nic.data.inject_write(peer, b"x", to, Some(1)), SubmitOutcome::Taken);
        assert_eq!(nic.data.read(peer, one, to, OpSlot(0), PostOptions::TOLD), SubmitOutcome::Taken);
        assert_eq!(
            nic.data.send_tagged(peer, both, 1, None, OpSlot(0), PostOptions::TOLD),
            SubmitOutcome::Taken
        );
        assert_eq!(nic.data.receive_tagged(None, one, 1, 0, OpSlot(0), false), SubmitOutcome::Taken);
        assert_eq!(nic.data.inject_tagged(peer, b"x", 1, None), SubmitOutcome::Taken);
        assert_eq!(nic.queue.read_batch(), QueueRead::Entries(32));
        assert!(nic.queue.batch_entry(31).is_some());
    }
    assert_eq!((nic.queue.read_batch(), nic.queue.read_error()), (QueueRead::Nothing, None));
    assert_eq!(ALLOCATED.get(), before);
}

#[test]
fn long_batches_are_read_in_parts() {
    let mut nic = Nic::new(Kind::default());
    let [first, _] = contexts(&mut nic);
    let entry = |tag| Ended::Well(CqTaggedEntry { op_context: first, tag, ..CqTaggedEntry::ZERO }, 0);
    *nic.world.ended.lock().unwrap() = (0..70).map(entry).collect();
    let mut tags = Vec::new();
    for expected in [32, 32, 6] {
        assert_eq!(nic.queue.read_batch(), QueueRead::Entries(expected));
        tags.extend((0..expected).map(|at| nic.queue.batch_entry(at).unwrap().tag));
    }
    assert_eq!(tags, (0..70).collect::<Vec<u64>>());
    assert_eq!(nic.queue.read_batch(), QueueRead::Nothing);
}

#[test]
fn grants_are_read_once() {
    let mode = mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::HMEM;
    let all = ALL | caps::HMEM | caps::SOURCE;
    let nic = Nic::new(Kind { mr_mode: mode, caps: all, key_bytes: 4, ..Kind::default() });
    let granted = nic.domain.provider_grant();
    assert!(granted.endpoint_scoped && granted.prov_key && granted.hmem && granted.source);
    assert!(!granted.virt_addr && !granted.local && !granted.allocated && !granted.directed);
    assert!(!granted.raw_keys && !granted.dmabuf && !granted.data_takes_receive);
    assert_eq!((granted.key_bits, granted.cq_data_bytes, granted.tag_bits), (32, 8, 56));
    assert_eq!((granted.sizes.inject, granted.sizes.transmit_ranges), (64, 2));
    assert_eq!((granted.reach, granted.sends), (caps::DELIVERY_COMPLETE, OrderGuarantees::default()));
    assert!(!granted.writes_in_order(1));
    let old = Nic::new(Kind { mr_mode: mr_mode::BASIC, caps: ALL, ..Kind::default() });
    let granted = old.domain.provider_grant();
    assert!(granted.prov_key && granted.virt_addr && granted.allocated && !granted.hmem);
    // The mode does not imply the capability.
    let half = Nic::new(Kind { mr_mode: mr_mode::HMEM, caps: ALL, ..Kind::default() });
    assert!(!half.domain.provider_grant().hmem);
}
