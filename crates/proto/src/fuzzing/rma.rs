//! Fuzzing of one-sided communication: the messages, and both ends of a stream with a hostile peer.

use alloc::vec;
use alloc::vec::Vec;

use super::make_variants;
use crate::limits::RMA_STREAMS_MAX;
use crate::rma::PathId;
use crate::rma::ProtocolFault;
use crate::rma::atomic::{AtomicAction, AtomicType, TypedAtomic};
use crate::rma::atomic_requests::AtomicRequests;
use crate::rma::inbox::{ArrivalEffect, StreamInbox};
use crate::rma::incoming::{MakeUp, PathDeliveryReport};
use crate::rma::outgoing::{OutgoingStream, SignalOrdering};
use crate::rma::served::ServedSlots;
use crate::rma::shape::EpochShape;
use crate::wire::cursor::FieldReader;
use crate::wire::imm::{CountedImmediate, WriteImmediate};
use crate::wire::rma::atomic::{AtomicOutcome, AtomicReply, AtomicRequest, ReplySlot};
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage, SignalUpdate, UpdateOp};
use crate::wire::rma::word::{SymmetricWord, WordWidth};
use crate::wire::rma::{BYTES_MAX, RmaMessage, RmaStream};

/// A message, and an immediate.
pub(super) fn check_words(bytes: &[u8]) {
    if let Ok(message) = RmaMessage::from_bytes(bytes) {
        let (printed, len) = message.to_bytes();
        assert_eq!(printed[..len], *bytes);
    }
    if let Ok(bits) = FieldReader(bytes).u32()
        && let Some(counted) = CountedImmediate::from_bits(bits)
    {
        assert_eq!((counted.to_bits(), WriteImmediate::from_bits(bits)), (bits, None));
    }
}

/// The state of a process for one peer.
struct StreamEnds {
    inbox: StreamInbox,
    out: OutgoingStream,
    calls: AtomicRequests,
    served: ServedSlots,
    stream: RmaStream,
    shape: EpochShape,
}

/// Per step, a byte for the action and up to 32 bytes of arguments, until the peer has broken the protocol.
pub(super) fn check_hostile(bytes: &[u8]) {
    let (Some(shape), Some(stream)) = (EpochShape::new(4, 8, 2), RmaStream::new(0)) else { return };
    let order = SignalOrdering::Counted { revert_after: 3 };
    let Ok(out) = OutgoingStream::new(stream, order, shape) else { return };
    let mut ends = StreamEnds {
        inbox: StreamInbox::new(shape),
        out,
        calls: AtomicRequests::new(stream),
        served: ServedSlots::new(),
        stream,
        shape,
    };
    for step in bytes.chunks(1 + BYTES_MAX).take(256) {
        let Some((&what, rest)) = step.split_first() else { return };
        if ends.run_step(what, rest).is_err() {
            return;
        }
        assert!(ends.out.unacknowledged_signals() <= shape.epoch_window());
        assert!(ends.inbox.stream_capacity().0 <= RMA_STREAMS_MAX);
        let seen = ends.inbox.arrival_counts();
        assert!(seen.acks + seen.rode <= 2 * 256 && seen.signals <= 256);
    }
}

impl StreamEnds {
    fn run_step(&mut self, what: u8, rest: &[u8]) -> Result<(), ProtocolFault> {
        let one = rest.first().copied().unwrap_or(0);
        let two = rest.get(1).copied().unwrap_or(0);
        let Some(path) = PathId::new(one % 4) else { return Ok(()) };
        match what % 6 {
            0 => {
                let imm = CountedImmediate::new(self.out_stream(two), (one % 16).into()).to_bits();
                self.take_arrival(|ends| ends.inbox.on_write(imm, path))
            }
            1 => {
                for message in
                    [RmaMessage::from_bytes(rest), RmaMessage::from_bytes(&rest[..rest.len().min(16)])]
                {
                    message.map_or(Ok(()), |message| self.on_message(&message))?;
                }
                Ok(())
            }
            2 => {
                if let Some(stream) = RmaStream::new(one % 64) {
                    while self.inbox.take_signal(stream).is_some() {}
                }
                let told = [self.inbox.next_ack(), self.inbox.piggyback_ack()];
                assert!(told.into_iter().flatten().all(|ack| ack.number < 1 << 48));
                Ok(())
            }
            3 => {
                self.send_signal(two, path);
                Ok(())
            }
            4 => {
                let seen = rest.chunks_exact(2).map(|pair| ((pair[0] % 16).into(), pair[1].into())).collect();
                self.inbox.close_path(self.stream, path);
                self.out
                    .lose_path(path, &PathDeliveryReport { applied: two.into(), seen, signals: Vec::new() })
                    .map(drop)
            }
            _ => {
                let lost = MakeUp { stream: self.out_stream(0), epoch: two.into(), count: one.into() };
                self.take_arrival(|ends| ends.inbox.make_up(&lost))
            }
        }
    }

    fn out_stream(&self, number: u8) -> RmaStream {
        RmaStream::new(number % 64).unwrap_or(self.stream)
    }

    fn take_arrival(
        &mut self,
        tell: impl Fn(&mut Self) -> Result<ArrivalEffect, ProtocolFault>,
    ) -> Result<(), ProtocolFault> {
        if let ArrivalEffect::Unknown(stream) = tell(self)? {
            let _ = self.inbox.add_stream(stream);
            assert!(!matches!(tell(self)?, ArrivalEffect::Unknown(_)));
        }
        Ok(())
    }

    fn send_signal(&mut self, pieces: u8, path: PathId) {
        let word = SymmetricWord::new(0, 0, WordWidth::Eight).ok();
        let Some(update) = word.and_then(|word| SignalUpdate::new(UpdateOp::Add, word, 1)) else { return };
        let Ok(batch) = self.out.begin_signal() else { return };
        for _ in 0..pieces {
            assert!(self.out.tag_piece(&batch, path).is_ok());
        }
        match self.out.end_signal(batch, update, false) {
            Ok(signal) => assert!(signal.epoch < 16 && self.shape.is_valid_epoch(signal.epoch)),
            Err((batch, _)) => self.out.abandon_signal(batch),
        }
        let atomic = TypedAtomic::new(AtomicType::U64, AtomicAction::Add(1), true);
        if let (Ok(word), Some(atomic)) = (SymmetricWord::new(0, 8, WordWidth::Eight), atomic) {
            let _ = self.calls.begin_request(word, atomic);
        }
    }

    fn on_message(&mut self, message: &RmaMessage) -> Result<(), ProtocolFault> {
        match message {
            RmaMessage::Signal(signal) => {
                self.take_arrival(|ends| ends.inbox.on_signal(signal))?;
                signal.ack.map_or(Ok(()), |ack| self.out.on_ack(ack).map(drop))
            }
            RmaMessage::Ack(ack) => self.out.on_ack(*ack).map(drop),
            RmaMessage::Ask(ask) => self.take_arrival(|ends| ends.inbox.on_ask(ask)),
            RmaMessage::Request(request) => {
                self.served.serve_request(request, |_| AtomicOutcome::Refused).map(drop)
            }
            RmaMessage::Reply(reply) => self.calls.on_reply(reply).map(drop),
        }
    }
}

fn sample_messages() -> Vec<RmaMessage> {
    let (Some(stream), Ok(word)) =
        (RmaStream::new(1), SymmetricWord::new(2, 0x0102_0304_0508, WordWidth::Eight))
    else {
        return Vec::new();
    };
    let ack = SignalAck { stream, number: 0x0102_0304_0506 };
    let update = |op| SignalUpdate::new(op, word, 0x1122_3344_5566_7788);
    let signal = |op, epoch, ack| {
        let update = update(op)?;
        Some(RmaMessage::Signal(SignalMessage { stream, epoch, count: 0, update, at_once: epoch == 1, ack }))
    };
    let slot = ReplySlot::new(3, 1);
    let request = |action| {
        let atomic = TypedAtomic::new(AtomicType::I64, action, true)?;
        Some(RmaMessage::Request(AtomicRequest::new(stream, slot?, word, atomic)?))
    };
    let reply = |outcome| Some(RmaMessage::Reply(AtomicReply { stream, slot: slot?, outcome }));
    let all = [
        signal(UpdateOp::Set, 0, None),
        request(AtomicAction::CompareSwap { expect: 1, swap: 2 }),
        Some(RmaMessage::Ack(ack)),
        Some(RmaMessage::Ask(AckRequest { stream, number: 1 })),
        reply(AtomicOutcome::Done(5)),
        signal(UpdateOp::Add, 1, Some(ack)),
        signal(UpdateOp::Max, 2, Some(SignalAck { stream, number: 1 })),
        request(AtomicAction::Fetch),
        request(AtomicAction::Xor(7)),
        reply(AtomicOutcome::Refused),
    ];
    all.into_iter().flatten().collect()
}

fn encode_message(message: &RmaMessage) -> Vec<u8> {
    let (bytes, len) = message.to_bytes();
    bytes[..len].to_vec()
}

pub(super) fn word_seeds() -> Vec<Vec<u8>> {
    let mut all: Vec<_> = sample_messages().iter().map(encode_message).collect();
    all.push(0x5001_0203_u32.to_le_bytes().to_vec());
    make_variants(&all)
}

pub(super) fn hostile_seeds() -> Vec<Vec<u8>> {
    let step = |what: u8, rest: &[u8]| {
        let mut out = vec![0; 1 + BYTES_MAX];
        out[0] = what;
        out[1..=rest.len()].copy_from_slice(rest);
        out
    };
    let told: Vec<_> = sample_messages().iter().map(|message| step(1, &encode_message(message))).collect();
    let alone = vec![
        told[0].clone(),
        [step(0, &[0, 1]), told[0].clone(), step(2, &[1])].concat(),
        [told[0].clone(), step(2, &[1]), told[5].clone(), step(2, &[1]), step(4, &[0, 0])].concat(),
        [step(3, &[0, 2]), step(3, &[0, 0]), step(4, &[0, 0, 0, 1])].concat(),
        [step(0, &[3, 0]), step(5, &[2, 3]), step(4, &[1, 0])].concat(),
        [step(3, &[0, 0]), told[3].clone(), told[1].clone(), told[4].clone()].concat(),
        told.concat(),
    ];
    make_variants(&alone)
}
