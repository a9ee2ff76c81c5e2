//! The engine's main paths, over the software NIC inside one process: two-sided messages of each protocol, one-sided
//! operations between members of a job, and messages inside a node.

use trunkline_engine::host::UnixHost;
use trunkline_engine::rma::{HeapMemory, HeapRange, PutSource, RmaError, RmaJob};
use trunkline_engine::{CommNics, Engine, EngineParams, RecvBuf};
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::PrivateMemory;
use trunkline_node::ipc::{MessageBuffer, NodeConfig as Sharing};
use trunkline_node::tagged::{TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedSendStart};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::wire::tagged::InboxSizes;
use trunkline_softnic::{SoftConfig, SoftFabric, WireMode};

use crate::trials::{Case, Outcome, told, until};

type Running = Engine<SoftFabric, UnixHost>;

pub(crate) const ALL: &[Case] = &[
    ("eager messages", || messages(WireMode::Auto, &[0], 512)),
    ("eager messages over shm", || messages(WireMode::Shm, &[0], 512)),
    ("rendezvous messages", || messages(WireMode::Auto, &[0], 300_000)),
    ("rendezvous messages over shm", || messages(WireMode::Shm, &[0], 300_000)),
    ("messages over tcp", || messages(WireMode::Tcp, &[0], 300_000)),
    ("messages over two NICs", || messages(WireMode::Auto, &[0, 1], 2 << 20)),
    ("messages over two NICs and shm", || messages(WireMode::Shm, &[0, 1], 2 << 20)),
    ("one-sided work", || one_sided(WireMode::Auto)),
    ("one-sided work over shm", || one_sided(WireMode::Shm)),
    ("tagged messages", || tagged(MethodChoice::Fixed(CopyMethod::Pull))),
    ("staged tagged messages", || tagged(MethodChoice::Fixed(CopyMethod::Stage))),
];

fn fabric(wire: WireMode, nics: usize) -> Result<SoftFabric, String> {
    SoftFabric::new(SoftConfig { wire, nics, ..SoftConfig::default() }).map_err(told)
}

/// Connects two engines over the NICs of those numbers, sends a few messages of a length, and closes everything.
fn messages(wire: WireMode, nics: &[usize], len: u64) -> Outcome {
    let count = nics.len();
    let nics = CommNics::new(nics).ok_or("the NIC numbers are invalid")?;
    let engine = || -> Result<Running, String> {
        let params = EngineParams { status: false, ..EngineParams::default() };
        Engine::new(fabric(wire, count)?, UnixHost::new(|_, _| {}), params).map_err(told)
    };
    let (from, into) = (engine()?, engine()?);
    let (listen, mut handle) = into.listen(nics).map_err(told)?;
    let (mut send, mut recv) = (None, None);
    until("a connection", || {
        if send.is_none() {
            send = from.connect(nics, &mut handle).map_err(told)?;
        }
        if recv.is_none() {
            recv = into.accept(listen).map_err(told)?;
        }
        Ok(send.zip(recv))
    })?;
    let (send, recv) = send.zip(recv).ok_or("no connection")?;
    into.close_listen(listen).map_err(told)?;
    let region = |of: &Running, comm| {
        let memory = MemoryRange::try_heap(len as usize).map_err(told)?;
        of.register(comm, memory).map_err(told)
    };
    let (source, target) = (region(&from, send)?, region(&into, recv)?);
    for _ in 0..3 {
        let buffer = RecvBuf { mr: target, offset: 0, len, tag: 0 };
        let (mut received, mut sent) = (None, None);
        let (mut has_received, mut has_sent, mut sizes) = (false, false, [0; 8]);
        until("a message", || {
            // Each end polls its requests, because a lost link is left and reconnected in these calls.
            match received {
                None => received = into.irecv(recv, &[buffer]).map_err(told)?,
                Some(request) => {
                    has_received = has_received || into.test(request, &mut sizes).map_err(told)?
                }
            }
            match sent {
                None => sent = from.isend(send, source, 0, len, 0).map_err(told)?,
                Some(request) => has_sent = has_sent || from.test(request, &mut [0; 8]).map_err(told)?,
            }
            Ok((has_received && has_sent).then_some(()))
        })?;
        if sizes[0] != len {
            return Err(format!("{} bytes of {len} arrived", sizes[0]));
        }
    }
    from.deregister(send, source).map_err(told)?;
    into.deregister(recv, target).map_err(told)?;
    from.close(send).map_err(told)?;
    into.close(recv).map_err(told)
}

/// Puts and gets between two members of a job.
fn one_sided(wire: WireMode) -> Outcome {
    const HEAP: usize = 1 << 16;
    let nics = CommNics::new(&[0]).ok_or("the NIC numbers are invalid")?;
    let job = || -> Result<RmaJob<SoftFabric, UnixHost>, String> {
        RmaJob::new(fabric(wire, 1)?, UnixHost::new(|_, _| {}), EngineParams::default(), nics).map_err(told)
    };
    let jobs = [job()?, job()?];
    let cards: Vec<_> = jobs.iter().map(RmaJob::process_card).collect();
    let mut contexts = Vec::new();
    for (me, job) in jobs.iter().enumerate() {
        job.set_members(me as u32, &cards).map_err(told)?;
        let memory = MemoryRange::try_heap(HEAP).map_err(told)?;
        job.add_heap(HeapMemory::from(memory)).map_err(told)?;
        contexts.push(job.create_context().map_err(told)?);
    }
    let go_on = || -> Result<(), RmaError> {
        jobs.iter().zip(&contexts).try_for_each(|(job, context)| job.progress(*context).map(drop))
    };
    let (job, context) = (&jobs[0], contexts[0]);
    let local = HeapRange { heap: 0, offset: 0, len: 30_000 };
    until("a put", || {
        go_on().map_err(told)?;
        job.put(context, 1, 0, 0, PutSource::Heap(local)).map_err(told)
    })?;
    until("a short put", || {
        go_on().map_err(told)?;
        job.put(context, 1, 0, 0, PutSource::Bytes(&[7; 16])).map_err(told)
    })?;
    until("a quiet", || {
        go_on().map_err(told)?;
        Ok(job.quiet(context).map_err(told)?.then_some(()))
    })?;
    until("a get", || {
        go_on().map_err(told)?;
        job.get(context, 1, 0, 0, local).map_err(told)
    })?;
    until("a quiet", || {
        go_on().map_err(told)?;
        Ok(job.quiet(context).map_err(told)?.then_some(()))
    })
}

/// A short and a long message between two endpoints of private memory.
fn tagged(copy: MethodChoice) -> Outcome {
    const LEN: usize = 200_000;
    let host = UnixHost::new(|_, _| {});
    let now = trunkline_proto::time::Instant(0);
    let inbox = InboxSizes::new(1024, 512, 1 << 18).map_err(told)?;
    let endpoint = |number: u8| -> Result<_, String> {
        let sharing = Sharing::new([number; 16], ExportAmount { entries: 16, bytes: 1 << 40 });
        let memory = PrivateMemory::new().map_err(told)?;
        Ok(TaggedEndpoint::new(memory, TaggedConfig { sharing, inbox, copy }, now))
    };
    let (mut a, mut b) = (endpoint(1)?, endpoint(2)?);
    let mut listener = host.oob().listen().map_err(told)?;
    let to_a = b.join_peer(host.oob().connect(&listener.listen_address()).map_err(told)?).map_err(told)?;
    let stream = until("a stream", || listener.accept().map_err(told))?;
    let to_b = a.join_peer(stream).map_err(told)?;
    let (mut met, mut clock) = (0, now);
    until("the connection of the endpoints", || {
        clock = clock + trunkline_proto::time::Duration::from_micros(100);
        for one in [&mut a, &mut b] {
            one.progress(clock);
            while let Some(event) = one.next_event() {
                match event {
                    TaggedEvent::Met { .. } => met += 1,
                    other => return Err(format!("{other:?}")),
                }
            }
        }
        Ok((met == 2).then_some(()))
    })?;
    for len in [100, LEN] {
        let (source, target) =
            (MemoryRange::try_heap(len).map_err(told)?, MemoryRange::try_heap(len).map_err(told)?);
        let received = b.receive(Some(to_a), 1, u64::MAX, MessageBuffer::from(target)).map_err(told)?;
        let source = MessageBuffer::from(source);
        let mut sent = None;
        let mut ended = [false; 2];
        until("a message", || {
            clock = clock + trunkline_proto::time::Duration::from_micros(100);
            a.progress(clock);
            b.progress(clock);
            if sent.is_none() {
                match a.send(to_b, 1, &source).map_err(told)? {
                    TaggedSendStart::Busy => {}
                    TaggedSendStart::Done => (sent, ended[0]) = (Some(None), true),
                    TaggedSendStart::Request(request) => sent = Some(Some(request)),
                }
            }
            if let Some(Some(request)) = sent
                && !ended[0]
                && let Some(done) = a.test(request)
            {
                done.map_err(|error| format!("{error:?}"))?;
                ended[0] = true;
            }
            if !ended[1]
                && let Some(done) = b.test(received)
            {
                done.map_err(|error| format!("{error:?}"))?;
                ended[1] = true;
            }
            Ok((ended == [true; 2]).then_some(()))
        })?;
    }
    Ok(())
}
