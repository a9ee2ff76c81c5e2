//! One-sided communication: the messages, and both ends of a stream that are told anything by a peer.

use alloc::vec;
use alloc::vec::Vec;

use super::variants;
use crate::limits::RMA_STREAMS_MAX;
use crate::mutant::Mutant;
use crate::rma::Fault;
use crate::rma::Path;
use crate::rma::atomic::{Action, Atomic, Type};
use crate::rma::calls::Calls;
use crate::rma::inbox::{Inbox, Took};
use crate::rma::incoming::{MakeUp, Standing};
use crate::rma::outgoing::{Order, Outgoing};
use crate::rma::served::Served;
use crate::rma::shape::Shape;
use crate::wire::cursor::Reader;
use crate::wire::imm::{Counted, Imm};
use crate::wire::rma::atomic::{Outcome, Reply, Request, Slot};
use crate::wire::rma::signal::{Ack, Ask, Signal, SignalOp, Update};
use crate::wire::rma::word::{Width, Word};
use crate::wire::rma::{BYTES_MAX, Message, Stream};

/// A message, and an immediate.
pub(super) fn words(bytes: &[u8]) {
    if let Ok(message) = Message::from_bytes(bytes) {
        let (printed, len) = message.to_bytes();
        assert_eq!(printed[..len], *bytes);
    }
    if let Ok(bits) = Reader(bytes).u32()
        && let Some(counted) = Counted::from_bits(bits)
    {
        assert_eq!((counted.to_bits(), Imm::from_bits(bits)), (bits, None));
    }
}

/// What a process keeps for one peer.
struct Ends {
    inbox: Inbox,
    out: Outgoing,
    calls: Calls,
    served: Served,
    stream: Stream,
    shape: Shape,
}

/// A byte that says what happens, and up to 32 that say more; until the peer has broken the protocol.
pub(super) fn hostile(bytes: &[u8]) {
    let (Some(shape), Some(stream)) = (Shape::new(4, 8, 2), Stream::new(0)) else { return };
    let order = Order::Counted { revert_after: 3 };
    let Ok(out) = Outgoing::new(stream, order, shape, Mutant::NONE) else { return };
    let mut ends = Ends {
        inbox: Inbox::new(shape, Mutant::NONE),
        out,
        calls: Calls::new(stream, Mutant::NONE),
        served: Served::new(Mutant::NONE),
        stream,
        shape,
    };
    for step in bytes.chunks(1 + BYTES_MAX).take(256) {
        let Some((&what, rest)) = step.split_first() else { return };
        if ends.step(what, rest).is_err() {
            return;
        }
        assert!(ends.out.unacknowledged() <= shape.window());
        assert!(ends.inbox.rooms().0 <= RMA_STREAMS_MAX);
        let seen = ends.inbox.seen();
        assert!(seen.acks + seen.rode <= 2 * 256 && seen.signals <= 256);
    }
}

impl Ends {
    fn step(&mut self, what: u8, rest: &[u8]) -> Result<(), Fault> {
        let one = rest.first().copied().unwrap_or(0);
        let two = rest.get(1).copied().unwrap_or(0);
        let Some(path) = Path::new(one % 4) else { return Ok(()) };
        match what % 6 {
            0 => {
                let imm = Counted::new(self.out_stream(two), (one % 16).into()).to_bits();
                self.took(|ends| ends.inbox.on_write(imm, path))
            }
            1 => {
                for message in [Message::from_bytes(rest), Message::from_bytes(&rest[..rest.len().min(16)])] {
                    message.map_or(Ok(()), |message| self.on_message(&message))?;
                }
                Ok(())
            }
            2 => {
                if let Some(stream) = Stream::new(one % 64) {
                    while self.inbox.take(stream).is_some() {}
                }
                let told = [self.inbox.next_ack(), self.inbox.ride()];
                assert!(told.into_iter().flatten().all(|ack| ack.number < 1 << 48));
                Ok(())
            }
            3 => {
                self.signal(two, path);
                Ok(())
            }
            4 => {
                let seen = rest.chunks_exact(2).map(|pair| ((pair[0] % 16).into(), pair[1].into())).collect();
                self.inbox.leave(self.stream, path);
                self.out.lose(path, &Standing { applied: two.into(), seen, signals: Vec::new() }).map(drop)
            }
            _ => {
                let lost = MakeUp { stream: self.out_stream(0), epoch: two.into(), count: one.into() };
                self.took(|ends| ends.inbox.make_up(&lost))
            }
        }
    }

    fn out_stream(&self, number: u8) -> Stream {
        Stream::new(number % 64).unwrap_or(self.stream)
    }

    fn took(&mut self, tell: impl Fn(&mut Self) -> Result<Took, Fault>) -> Result<(), Fault> {
        if let Took::Unknown(stream) = tell(self)? {
            let _ = self.inbox.grow(stream);
            assert!(!matches!(tell(self)?, Took::Unknown(_)));
        }
        Ok(())
    }

    fn signal(&mut self, pieces: u8, path: Path) {
        let word = Word::new(0, 0, Width::Eight).ok();
        let Some(update) = word.and_then(|word| Update::new(SignalOp::Add, word, 1)) else { return };
        let Ok(batch) = self.out.begin() else { return };
        for _ in 0..pieces {
            assert!(self.out.piece(&batch, path).is_ok());
        }
        match self.out.end(batch, update, false) {
            Ok(signal) => assert!(signal.epoch < 16 && self.shape.holds(signal.epoch)),
            Err((batch, _)) => self.out.abandon(batch),
        }
        let atomic = Atomic::new(Type::U64, Action::Add(1), true);
        if let (Ok(word), Some(atomic)) = (Word::new(0, 8, Width::Eight), atomic) {
            let _ = self.calls.begin(word, atomic);
        }
    }

    fn on_message(&mut self, message: &Message) -> Result<(), Fault> {
        match message {
            Message::Signal(signal) => {
                self.took(|ends| ends.inbox.on_signal(signal))?;
                signal.ack.map_or(Ok(()), |ack| self.out.on_ack(ack).map(drop))
            }
            Message::Ack(ack) => self.out.on_ack(*ack).map(drop),
            Message::Ask(ask) => self.took(|ends| ends.inbox.on_ask(ask)),
            Message::Request(request) => self.served.serve(request, |_| Outcome::Refused).map(drop),
            Message::Reply(reply) => self.calls.on_reply(reply).map(drop),
        }
    }
}

fn messages() -> Vec<Message> {
    let (Some(stream), Ok(word)) = (Stream::new(1), Word::new(2, 0x0102_0304_0508, Width::Eight)) else {
        return Vec::new();
    };
    let ack = Ack { stream, number: 0x0102_0304_0506 };
    let update = |op| Update::new(op, word, 0x1122_3344_5566_7788);
    let signal = |op, epoch, ack| {
        let update = update(op)?;
        Some(Message::Signal(Signal { stream, epoch, count: 0, update, at_once: epoch == 1, ack }))
    };
    let slot = Slot::new(3, 1);
    let request = |action| {
        let atomic = Atomic::new(Type::I64, action, true)?;
        Some(Message::Request(Request::new(stream, slot?, word, atomic)?))
    };
    let reply = |outcome| Some(Message::Reply(Reply { stream, slot: slot?, outcome }));
    let all = [
        signal(SignalOp::Set, 0, None),
        request(Action::CompareSwap { expect: 1, swap: 2 }),
        Some(Message::Ack(ack)),
        Some(Message::Ask(Ask { stream, number: 1 })),
        reply(Outcome::Done(5)),
        signal(SignalOp::Add, 1, Some(ack)),
        signal(SignalOp::Max, 2, Some(Ack { stream, number: 1 })),
        request(Action::Fetch),
        request(Action::Xor(7)),
        reply(Outcome::Refused),
    ];
    all.into_iter().flatten().collect()
}

fn printed(message: &Message) -> Vec<u8> {
    let (bytes, len) = message.to_bytes();
    bytes[..len].to_vec()
}

pub(super) fn word_seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<_> = messages().iter().map(printed).collect();
    all.push(0x5001_0203_u32.to_le_bytes().to_vec());
    variants(&all)
}

pub(super) fn hostile_seeds() -> Vec<Vec<u8>> {
    let step = |what: u8, rest: &[u8]| {
        let mut out = vec![0; 1 + BYTES_MAX];
        out[0] = what;
        out[1..=rest.len()].copy_from_slice(rest);
        out
    };
    let told: Vec<_> = messages().iter().map(|message| step(1, &printed(message))).collect();
    let alone = vec![
        told[0].clone(),
        [step(0, &[0, 1]), told[0].clone(), step(2, &[1])].concat(),
        [told[0].clone(), step(2, &[1]), told[5].clone(), step(2, &[1]), step(4, &[0, 0])].concat(),
        [step(3, &[0, 2]), step(3, &[0, 0]), step(4, &[0, 0, 0, 1])].concat(),
        [step(0, &[3, 0]), step(5, &[2, 3]), step(4, &[1, 0])].concat(),
        [step(3, &[0, 0]), told[3].clone(), told[1].clone(), told[4].clone()].concat(),
        told.concat(),
    ];
    variants(&alone)
}
