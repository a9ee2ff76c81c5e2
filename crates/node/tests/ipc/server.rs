//! A process that shares memory. Its node makes progress by itself, and it executes the requests of the test.

use std::collections::VecDeque;

use trunkline_engine::host::{UnixHost, UnixListener, UnixStream};
use trunkline_engine::{WaitBackoff, WaitPolicy};
use trunkline_fabric::{Host as _, OobAddress, OobListener as _, OobTransport as _};
use trunkline_mem::MemoryRange;
use trunkline_mem::ipc::{CopyPlace, HandlePassing, IpcMemory as _, MemfdDevice};
use trunkline_node::ipc::{
    ArrivalId, IpcNode, IpcSendStart, LeaveReason, NeighbourId, NodeConfig, NodeEvent, OperationId,
    ReceiveOutcome, SendOutcome, SendRequest,
};
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::time::{Duration as Span, Instant};

use crate::kind::Kind;
use crate::words::{Look, OPS, Op, Parcel, WORDS, receive, send};

/// Set in the environment of such a process.
pub(crate) const ROLE: &str = "IPC_TEST_PROCESS";

/// Does nothing unless another test of this binary started the process.
#[test]
fn serve() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let socket = std::io::stdin();
    let Ok(Some(Parcel { words, fd, .. })) = receive(&socket, true) else { return };
    let mut server = Server::new(MemfdDevice::join(3, &fd.unwrap()).unwrap(), &words);
    let mut waiting = WaitBackoff::new(WaitPolicy { spins: 16, yields: 200, ..WaitPolicy::CALL });
    let mut asked: Option<Parcel> = None;
    loop {
        if asked.is_none() {
            match receive(&socket, false) {
                Ok(parcel) => asked = parcel,
                Err(_) => return,
            }
        }
        let moved = !server.manual && server.go_on();
        let answer = asked.as_ref().and_then(|parcel| server.serve(parcel));
        if let Some(answer) = &answer {
            asked = None;
            let told = match answer {
                Ok((words, tail)) => send(&socket, &[&[0], &words[..]].concat(), tail, None),
                Err(text) => send(&socket, &[1], text.as_bytes(), None),
            };
            if told.is_err() {
                return;
            }
        }
        if moved || answer.is_some() {
            waiting.reset_backoff();
        } else {
            waiting.wait_once();
        }
    }
}

/// A reply; `None` while it is pending.
type Answer = Option<Result<(Vec<u64>, Vec<u8>), String>>;

struct Server {
    host: UnixHost,
    listener: UnixListener,
    node: IpcNode<Kind, UnixStream>,
    manual: bool,
    /// The offset of its clock, in seconds.
    ahead: u64,
    met: Vec<NeighbourId>,
    left: Vec<(NeighbourId, LeaveReason)>,
    sent: Vec<(OperationId, Option<SendOutcome>)>,
    arrivals: VecDeque<(ArrivalId, u64)>,
    received: Vec<(ArrivalId, Option<MemoryRange>, Option<ReceiveOutcome>)>,
    /// Messages that the process still sends or receives by itself.
    pump: Option<Pump>,
    drink: Option<Drink>,
}

struct Pump {
    to: NeighbourId,
    message: SendRequest,
    left: u64,
    under_way: Vec<OperationId>,
    copied: u64,
    elsewhere: u64,
}

struct Drink {
    left: u64,
    into: MemoryRange,
    under_way: Vec<ArrivalId>,
    copied: u64,
}

fn text(error: impl std::fmt::Debug + std::fmt::Display) -> String {
    format!("{error:?}: {error}")
}

#[expect(clippy::unnecessary_wraps, reason = "same type as all replies")]
fn reply(words: &[u64]) -> Answer {
    Some(Ok((words.to_vec(), Vec::new())))
}

/// Returns the words of a memory area: the first word, and steps of 7.
pub(crate) fn pattern(len: u64, first: u64) -> Vec<u8> {
    (0..len / 8).flat_map(|n| first.wrapping_add(n.wrapping_mul(7)).to_le_bytes()).collect()
}

fn wrong(found: &[u8], first: u64) -> u64 {
    let expected = pattern(found.len() as u64, first);
    found.chunks(8).zip(expected.chunks(8)).filter(|(one, other)| one != other).count() as u64
}

impl Server {
    fn new(device: MemfdDevice, words: &[u64; WORDS]) -> Self {
        let host = UnixHost::new(|_, _| {});
        let budget = ExportAmount { entries: words[1] as usize, bytes: words[2] };
        let mut config = NodeConfig::new(host.random_bytes(), budget);
        config.passing = if words[3] == 0 { HandlePassing::Bytes } else { HandlePassing::Descriptor };
        let listener = host.oob().listen().unwrap();
        Self {
            host,
            listener,
            node: IpcNode::new(Kind::new(device), config),
            manual: false,
            ahead: 0,
            met: Vec::new(),
            left: Vec::new(),
            sent: Vec::new(),
            arrivals: VecDeque::new(),
            received: Vec::new(),
            pump: None,
            drink: None,
        }
    }

    fn now(&self) -> Instant {
        self.host.now() + Span::from_secs(self.ahead)
    }

    fn go_on(&mut self) -> bool {
        while let Ok(Some(stream)) = self.listener.accept() {
            self.node.join_neighbour(stream).unwrap();
        }
        let mut moved = self.node.progress(self.now());
        while let Some(notice) = self.node.next_event() {
            moved = true;
            match notice {
                NodeEvent::Inbox { .. } => {}
                NodeEvent::Met { neighbour, .. } => self.met.push(neighbour),
                NodeEvent::Arrived { arrival, len } => self.arrivals.push_back((arrival, len)),
                NodeEvent::Sent { operation, delivery } => self.on_sent(operation, delivery),
                NodeEvent::Received { arrival, receipt } => self.on_received(arrival, receipt),
                NodeEvent::Left { neighbour, why } => self.left.push((neighbour, why)),
            }
        }
        self.pump_on();
        self.drink_on();
        moved
    }

    fn on_sent(&mut self, operation: OperationId, delivery: SendOutcome) {
        if let Some(pump) = &mut self.pump
            && let Some(at) = pump.under_way.iter().position(|one| *one == operation)
        {
            pump.under_way.swap_remove(at);
            pump.copied += u64::from(delivery == SendOutcome::Copied);
            pump.elsewhere += u64::from(delivery != SendOutcome::Copied);
            return;
        }
        let found = self.sent.iter_mut().find(|(id, _)| *id == operation);
        let (_, told) = found.expect("only operations that were sent may end");
        assert!(told.replace(delivery).is_none(), "a message may end only once");
    }

    fn on_received(&mut self, arrival: ArrivalId, receipt: ReceiveOutcome) {
        if let Some(drink) = &mut self.drink
            && let Some(at) = drink.under_way.iter().position(|one| *one == arrival)
        {
            drink.under_way.swap_remove(at);
            drink.copied += u64::from(receipt == ReceiveOutcome::Copied);
            return;
        }
        let found = self.received.iter_mut().find(|(id, ..)| *id == arrival);
        let (.., told) = found.expect("only arrivals that were received may end");
        assert!(told.replace(receipt).is_none(), "a receive may end only once");
    }

    fn pump_on(&mut self) {
        let now = self.now();
        let Some(pump) = &mut self.pump else { return };
        while pump.left > 0 {
            match self.node.send(pump.to, &pump.message, now).unwrap() {
                IpcSendStart::Begun(operation) => pump.under_way.push(operation),
                IpcSendStart::Elsewhere(_) => pump.elsewhere += 1,
                IpcSendStart::Busy => return,
            }
            pump.left -= 1;
        }
    }

    fn drink_on(&mut self) {
        let Some(drink) = &mut self.drink else { return };
        while drink.left > 0
            && let Some((arrival, _)) = self.arrivals.pop_front()
        {
            self.node.receive(arrival, drink.into.clone()).unwrap();
            drink.under_way.push(arrival);
            drink.left -= 1;
        }
    }

    fn serve(&mut self, parcel: &Parcel) -> Answer {
        let [op, a, b, c, d, ..] = parcel.words;
        match OPS[op as usize] {
            Op::Address => Some(Ok((Vec::new(), self.listener.listen_address().0))),
            Op::Connect => {
                let stream = self.host.oob().connect(&OobAddress(parcel.tail.clone())).unwrap();
                self.node.join_neighbour(stream).unwrap();
                reply(&[])
            }
            Op::Met => (self.met.len() as u64 >= a).then(|| Ok((vec![self.met.len() as u64], Vec::new()))),
            Op::Alloc => match self.node.memory().of(b).alloc(a as usize) {
                Ok(addr) => reply(&[addr as u64]),
                Err(error) => Some(Err(text(error))),
            },
            Op::Free => match self.node.memory().device.free(a as usize) {
                Ok(()) => reply(&[]),
                Err(error) => Some(Err(text(error))),
            },
            Op::Fill => {
                self.node.memory().write(CopyPlace::Own(a as usize), &pattern(b, c)).unwrap();
                reply(&[])
            }
            Op::Check => {
                let mut found = vec![0; b as usize];
                self.node.memory().read(CopyPlace::Own(a as usize), &mut found).unwrap();
                reply(&[wrong(&found, c)])
            }
            Op::Send => self.send(a, SendRequest { addr: b as usize, len: c as usize, passing: d != 0 }),
            Op::Sent => self.sent[a as usize].1.map(|delivery| Ok((vec![delivery as u64], Vec::new()))),
            Op::Receive | Op::ReceiveOwn => self.receive(OPS[op as usize], a),
            Op::Refuse => {
                let (arrival, _) = self.arrivals.pop_front()?;
                self.node.refuse_arrival(arrival).unwrap();
                reply(&[])
            }
            Op::Received => self.look_received(a, b),
            Op::Waiting => (self.arrivals.len() as u64 >= a).then(|| Ok((vec![], vec![]))),
            Op::Pump => self.pump(a, SendRequest { addr: b as usize, len: c as usize, passing: false }, d),
            Op::Drink => self.drink(a, b),
            op => self.serve_more(op, &parcel.words),
        }
    }

    fn serve_more(&mut self, op: Op, words: &[u64; WORDS]) -> Answer {
        let [_, a, b, ..] = *words;
        let amount = ExportAmount { entries: a as usize, bytes: b };
        match op {
            Op::Keep if words[3] == 0 => self.node.shrink_budget(amount),
            Op::Keep => self.node.grow_budget(amount),
            Op::Ask => match a {
                0 => self.node.trim_exports(b),
                1 => return reply(&[u64::from(self.node.release_export(b as usize))]),
                2 => self.node.drain_neighbour(self.met[b as usize]),
                _ => return reply(&[u64::from(self.node.is_exported(b as usize, words[3] as usize))]),
            },
            Op::Fail => self.node.memory().fail(a, b),
            Op::Later => self.ahead += a,
            Op::Manual => self.manual = a != 0,
            Op::Progress => {
                for _ in 0..a {
                    self.go_on();
                }
            }
            Op::Left => {
                let why = self.left.get(a as usize).map(|(_, why)| format!("{why:?}"))?;
                return Some(Ok((Vec::new(), why.into_bytes())));
            }
            Op::Close => {
                let now = self.now();
                self.node.close(now);
                if !self.node.is_closed() {
                    return None;
                }
            }
            Op::Places => self.node.memory().has_places(),
            Op::Look => return reply(&self.look().words()),
            // 0: no further descriptors; otherwise up to the hard limit.
            Op::Descriptors => {
                let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                limit.current = if a == 0 { Some(0) } else { limit.maximum };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            }
            // The child must outlive this process.
            Op::Spawn => {
                #[expect(clippy::zombie_processes, reason = "the child must outlive this process")]
                let child = std::process::Command::new("sleep").arg(a.to_string()).spawn().unwrap();
                return reply(&[child.id().into()]);
            }
            other => panic!("{other:?}"),
        }
        reply(&[])
    }

    fn send(&mut self, to: u64, message: SendRequest) -> Answer {
        let now = self.now();
        match self.node.send(self.met[to as usize], &message, now) {
            Ok(IpcSendStart::Begun(operation)) => {
                self.sent.push((operation, None));
                reply(&[0, self.sent.len() as u64 - 1])
            }
            Ok(IpcSendStart::Elsewhere(why)) => reply(&[1, why as u64]),
            Ok(IpcSendStart::Busy) => reply(&[2]),
            Err(error) => Some(Err(text(error))),
        }
    }

    fn receive(&mut self, op: Op, addr: u64) -> Answer {
        let (arrival, len) = self.arrivals.pop_front()?;
        // The test checks the contents of own memory at its address, so no memory is kept here.
        let into = (op == Op::Receive).then(|| MemoryRange::heap(len as usize));
        let begun = match &into {
            None => self.node.receive_own(arrival, addr as usize),
            Some(into) => self.node.receive(arrival, into.clone()),
        };
        if let Err(error) = begun {
            return Some(Err(text(error)));
        }
        self.received.push((arrival, into, None));
        reply(&[self.received.len() as u64 - 1])
    }

    /// Replies with the outcome of a receive and its number of wrong words, once it has ended.
    fn look_received(&mut self, number: u64, first: u64) -> Answer {
        let (_, memory, receipt) = &self.received[number as usize];
        let code = match receipt.as_ref()? {
            ReceiveOutcome::Copied => 0,
            ReceiveOutcome::NotMapped => 1,
            ReceiveOutcome::NotCopied(_) => 2,
            ReceiveOutcome::Lost => 3,
        };
        let mut found = vec![0; memory.as_ref().map_or(0, MemoryRange::len)];
        memory.iter().for_each(|memory| memory.read(0, &mut found).unwrap());
        reply(&[code, wrong(&found, first)])
    }

    fn pump(&mut self, to: u64, message: SendRequest, count: u64) -> Answer {
        let Some(pump) = &self.pump else {
            let to = self.met[to as usize];
            self.pump =
                Some(Pump { to, message, left: count, under_way: Vec::new(), copied: 0, elsewhere: 0 });
            return None;
        };
        if pump.left > 0 || !pump.under_way.is_empty() {
            return None;
        }
        let words = [pump.copied, pump.elsewhere];
        self.pump = None;
        reply(&words)
    }

    fn drink(&mut self, count: u64, len: u64) -> Answer {
        if count > 0 {
            let into = MemoryRange::heap(len as usize);
            self.drink = Some(Drink { left: count, into, under_way: Vec::new(), copied: 0 });
            return reply(&[]);
        }
        let drink = self.drink.as_ref()?;
        if drink.left > 0 || !drink.under_way.is_empty() {
            return None;
        }
        reply(&[drink.copied])
    }

    fn look(&self) -> Look {
        let (done, rules, usage) =
            (self.node.counts(), self.node.exporter().counts(), self.node.exporter().usage());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // Counts own and imported mappings alike, and the mapping of the table of the device.
        let mappings = maps.lines().filter(|line| line.contains("/memfd:trunkline.device")).count() as u64;
        Look {
            exports: done.exports,
            unexports: done.unexports,
            maps: done.maps,
            unmaps: done.unmaps,
            map_failures: done.map_failures,
            unmap_failures: done.unmap_failures,
            leaks: done.leaks,
            broken: done.broken,
            hits: rules.hits,
            announced: rules.announced,
            stale: rules.stale,
            fallbacks: rules.all_fallbacks(),
            live: usage.live.entries as u64,
            live_bytes: usage.live.bytes,
            passing: usage.passing.entries as u64,
            zombies: usage.zombies.entries as u64,
            mappings,
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            received: done.received,
            export_failures: done.export_failures,
        }
    }
}
