//! Messages of private memory, which processes access by system calls without mappings.

use trunkline_engine::host::{UnixHost, UnixStream};
use trunkline_fabric::{Host as _, OobListener as _, OobTransport as _};
use trunkline_mem::ipc::PrivateMemory;
use trunkline_mem::{MemoryKind, MemoryRange};
use trunkline_node::ipc::{MessageBuffer, NodeConfig as Sharing};
use trunkline_node::tagged::{
    MessageStatus, ReceiveRefused, SendRefused, TaggedConfig, TaggedEndpoint, TaggedFailure, TaggedPeerId,
    TaggedRequestId, TaggedSendStart,
};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::tagged::{CopyMethod, MethodChoice};
use trunkline_proto::time::{Duration, Instant};
use trunkline_proto::wire::tagged::InboxSizes;

use crate::two::{ALL, pattern};

const LEN: usize = 100_000;

pub(crate) struct Pair {
    sender: TaggedEndpoint<PrivateMemory, UnixStream>,
    receiver: TaggedEndpoint<PrivateMemory, UnixStream>,
    to: TaggedPeerId,
    from: TaggedPeerId,
    now: Instant,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let (host, now) = (UnixHost::new(|_, _| {}), Instant(0));
        let inbox = InboxSizes::new(1024, 512, 1 << 18).unwrap();
        // The budget is less than the address space, and the export of private memory covers all addresses.
        let budget = ExportAmount { entries: 16, bytes: 1 << 40 };
        let endpoint = |number: u8| {
            let sharing = Sharing::new([number; 16], budget);
            TaggedEndpoint::new(
                PrivateMemory::new().unwrap(),
                TaggedConfig { sharing, inbox, copy: MethodChoice::Learned },
                now,
            )
        };
        let (mut sender, mut receiver) = (endpoint(1), endpoint(2));
        let mut listener = host.oob().listen().unwrap();
        let from = receiver.join_peer(host.oob().connect(&listener.listen_address()).unwrap()).unwrap();
        let to = loop {
            if let Some(stream) = listener.accept().unwrap() {
                break sender.join_peer(stream).unwrap();
            }
        };
        let mut pair = Self { sender, receiver, to, from, now };
        pair.until("both endpoints report their peer", |pair| {
            (pair.sender.next_event().is_some() | pair.receiver.next_event().is_some()).then_some(())
        });
        (0..50).for_each(|_| pair.step());
        pair
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(100);
        self.sender.progress(self.now);
        self.receiver.progress(self.now);
    }

    /// Exchanges short messages of private memory through the ring, one after another, while the clock stands still.
    pub(crate) fn small(
        &mut self,
        [source, target]: &[MessageBuffer; 2],
        count: usize,
        mut after: impl FnMut(),
    ) {
        for _ in 0..count {
            let received = self.receiver.receive(Some(self.from), 1, ALL, target.clone()).unwrap();
            assert_eq!(self.sender.send(self.to, 1, source), Ok(TaggedSendStart::Done));
            let end = loop {
                self.sender.progress(self.now);
                self.receiver.progress(self.now);
                if let Some(end) = self.receiver.test(received) {
                    break end;
                }
            };
            assert_eq!(end.unwrap().len, source.len());
            after();
        }
    }

    fn until<T>(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..100_000 {
            if let Some(found) = is(self) {
                return found;
            }
            self.step();
        }
        panic!("not reached: {what}");
    }

    fn send(&mut self, buffer: &MessageBuffer) -> TaggedRequestId {
        let to = self.to;
        self.until("the send begins", |pair| match pair.sender.send(to, 1, buffer).unwrap() {
            TaggedSendStart::Request(request) => Some(request),
            TaggedSendStart::Done => panic!("a long message must be a request"),
            TaggedSendStart::Busy => None,
        })
    }

    fn sent(&mut self, request: TaggedRequestId) -> Result<MessageStatus, TaggedFailure> {
        self.until("the send ends", |pair| pair.sender.test(request))
    }

    fn received(&mut self, request: TaggedRequestId) -> Result<MessageStatus, TaggedFailure> {
        self.until("the receive ends", |pair| pair.receiver.test(request))
    }
}

#[test]
fn private_messages_are_copied_once_without_budget() {
    let mut pair = Pair::new();
    for round in 0..3 {
        let (source, target) = (MemoryRange::heap(LEN), MemoryRange::heap(LEN));
        source.write(0, &pattern(LEN, round)).unwrap();
        let received = pair.receiver.receive(Some(pair.from), 1, ALL, target.clone().into()).unwrap();
        let sent = pair.send(&source.into());
        assert!(pair.received(received).is_ok() && pair.sent(sent).is_ok());
        let mut bytes = vec![0; LEN];
        target.read(0, &mut bytes).unwrap();
        assert!(bytes == pattern(LEN, round), "round {round}");
    }
    let (sender, receiver) = (pair.sender.counts(), pair.receiver.counts());
    assert_eq!((receiver.mapped, sender.staged, sender.fallbacks), (3, 0, 0));
    let usage = pair.sender.node().exporter().usage();
    assert_eq!((usage.live.entries, usage.live.bytes), (1, 0));
}

/// Inside one process a node accesses only heap memory of the crate. Other bytes, lent by their address, are staged by
/// each method.
#[test]
fn messages_of_lent_bytes_in_one_process_are_staged() {
    for choice in [CopyMethod::Pull, CopyMethod::Turns, CopyMethod::Stage]
        .map(MethodChoice::Fixed)
        .into_iter()
        .chain([MethodChoice::Learned])
    {
        let mut pair = Pair::new();
        pair.sender.set_copy_choice(choice);
        for round in 0..3 {
            let (source, mut target) = (pattern(LEN, round), vec![0_u8; LEN]);
            // SAFETY: both buffers outlive the messages, and no reference to their bytes exists meanwhile.
            let own =
                |at: usize| MessageBuffer::from(unsafe { MemoryRange::from_raw(at, LEN, MemoryKind::Host) });
            let into = own(target.as_mut_ptr().expose_provenance());
            let received = pair.receiver.receive(Some(pair.from), 1, ALL, into).unwrap();
            let sent = pair.send(&own(source.as_ptr().expose_provenance()));
            assert!(pair.received(received).is_ok() && pair.sent(sent).is_ok());
            assert!(target == source, "{choice:?}, round {round}");
        }
        let (sender, receiver) = (pair.sender.counts(), pair.receiver.counts());
        assert_eq!((receiver.mapped, sender.mapped, sender.staged), (0, 0, 3), "{choice:?}");
    }
}

/// An address alone does not show whether its memory will be freed, or referenced, while a peer writes it.
#[test]
fn addresses_of_private_memory_are_refused() {
    let mut pair = Pair::new();
    let bytes = vec![7_u8; LEN];
    let foreign = |len: usize| MessageBuffer::from_own(bytes.as_ptr().expose_provenance(), len as u64);
    let allocated = MessageBuffer::from_own(pair.sender.node().memory().alloc(LEN).unwrap(), LEN as u64);
    for buffer in [foreign(64), foreign(LEN), allocated] {
        assert_eq!(pair.sender.send(pair.to, 1, &buffer), Err(SendRefused::Outside));
        let refused = pair.receiver.receive(Some(pair.from), 1, ALL, buffer);
        assert_eq!(refused, Err(ReceiveRefused::Outside));
    }
    assert!(bytes.iter().all(|byte| *byte == 7));
}

/// Private memory that was never exported explicitly, with each method and with the learned choice.
#[test]
fn each_method_accesses_any_private_memory() {
    let methods = [CopyMethod::Pull, CopyMethod::Turns, CopyMethod::Stage].map(MethodChoice::Fixed);
    for (choice, expected) in methods.into_iter().zip([[4, 0, 0], [2, 2, 0], [0, 0, 4]]) {
        let mut pair = Pair::new();
        pair.sender.set_copy_choice(choice);
        for round in 0..4 {
            let (source, target) = (MemoryRange::heap(LEN), MemoryRange::heap(LEN));
            source.write(0, &pattern(LEN, round)).unwrap();
            let received = pair.receiver.receive(Some(pair.from), 1, ALL, target.clone().into()).unwrap();
            let sent = pair.send(&source.into());
            assert!(pair.received(received).is_ok() && pair.sent(sent).is_ok());
            let mut bytes = vec![0; LEN];
            target.read(0, &mut bytes).unwrap();
            assert!(bytes == pattern(LEN, round), "{choice:?}, round {round}");
        }
        let (sender, receiver) = (pair.sender.counts(), pair.receiver.counts());
        assert_eq!([receiver.by_receiver, sender.by_sender, sender.staged], expected, "{choice:?}");
        assert_eq!(sender.fallbacks + receiver.fallbacks, 0);
    }
    let mut pair = Pair::new();
    let (source, target) = (MemoryRange::heap(LEN), MemoryRange::heap(LEN));
    for _ in 0..300 {
        let received = pair.receiver.receive(Some(pair.from), 1, ALL, target.clone().into()).unwrap();
        let sent = pair.send(&source.clone().into());
        assert!(pair.received(received).is_ok() && pair.sent(sent).is_ok());
    }
    (0..50).for_each(|_| pair.step());
    let (sender, receiver) = (pair.sender.counts(), pair.receiver.counts());
    let all = [receiver.by_receiver, sender.by_sender, sender.staged];
    assert!(
        all.iter().all(|count| *count > 0) && all.iter().sum::<u64>() == 300,
        "each method must be tried: {all:?}"
    );
    assert!(!pair.sender.is_timing(), "the timing of staged messages must end, too");
}
