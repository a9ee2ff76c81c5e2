//! Single rules of a stream's two ends.

use std::vec;
use std::vec::Vec;

use crate::limits::{LINKS_MAX, RMA_STREAMS_MAX};
use crate::rma::inbox::{ArrivalEffect, InboxCounts, StreamInbox};
use crate::rma::incoming::{IncomingStream, MakeUp, PathDeliveryReport};
use crate::rma::outgoing::{OutgoingStream, PutTag, QuietStep, SignalOrdering, StreamBusy};
use crate::rma::shape::EpochShape;
use crate::rma::{PathId, ProtocolFault};
use crate::wire::imm::CountedImmediate;
use crate::wire::rma::RmaStream;
use crate::wire::rma::signal::{AckRequest, SignalAck, SignalMessage, SignalUpdate, UpdateOp};
use crate::wire::rma::word::{SymmetricWord, WordWidth};

const COUNTED: SignalOrdering = SignalOrdering::Counted { revert_after: 3 };

fn stream(number: u8) -> RmaStream {
    RmaStream::new(number).unwrap()
}

fn path(place: u8) -> PathId {
    PathId::new(place).unwrap()
}

fn narrow() -> EpochShape {
    EpochShape::new(4, 8, 2).unwrap()
}

fn update(value: u64) -> SignalUpdate {
    SignalUpdate::new(UpdateOp::Set, SymmetricWord::new(0, 0, WordWidth::Eight).unwrap(), value).unwrap()
}

fn outgoing(order: SignalOrdering) -> OutgoingStream {
    OutgoingStream::new(stream(1), order, narrow()).unwrap()
}

fn inbox() -> StreamInbox {
    let mut inbox = StreamInbox::new(narrow());
    inbox.add_stream(stream(1)).unwrap();
    inbox
}

/// Sends a signal with this number of its own writes, over path 0.
fn send(
    out: &mut OutgoingStream,
    value: u64,
    writes: u32,
) -> Result<(SignalMessage, Vec<PutTag>), StreamBusy> {
    let batch = out.begin_signal()?;
    let tags = (0..writes).map(|_| out.tag_piece(&batch, path(0)).unwrap()).collect();
    match out.end_signal(batch, update(value), false) {
        Ok(signal) => Ok((signal, tags)),
        Err((batch, busy)) => {
            out.abandon_signal(batch);
            Err(busy)
        }
    }
}

fn imm(epoch: u16) -> u32 {
    CountedImmediate::new(stream(1), epoch).to_bits()
}

#[test]
fn first_signal_waits_for_uncounted_puts() {
    let mut out = outgoing(COUNTED);
    assert_eq!([out.tag_put(path(0)), out.tag_put(path(3))], [Ok(PutTag::Plain); 2]);
    let batch = out.begin_signal().unwrap();
    assert_eq!(out.tag_put(path(1)), Ok(PutTag::Counted(imm(0))), "puts are counted once a signal has begun");
    let (batch, busy) = out.end_signal(batch, update(0), false).unwrap_err();
    assert_eq!(busy, StreamBusy::Plain);
    assert!(out.on_plain_done());
    let (batch, _) = out.end_signal(batch, update(0), false).unwrap_err();
    assert!(out.on_plain_done());
    let Ok(signal) = out.end_signal(batch, update(0), false) else { panic!("the signal waits for no put") };
    assert_eq!((signal.epoch, signal.count), (0, 1));
    assert_eq!(out.tag_put(path(1)), Ok(PutTag::Counted(imm(1))));
    assert!(!out.on_plain_done(), "a surplus completion is reported and changes nothing");
    assert_eq!(send(&mut out, 1, 0).unwrap().0.count, 1);
}

#[test]
fn puts_without_signals_stop_being_counted() {
    let mut out = outgoing(COUNTED);
    send(&mut out, 0, 0).unwrap();
    let tags: Vec<_> = (0..5).map(|_| out.tag_put(path(0)).unwrap()).collect();
    let counted = PutTag::Counted(imm(1));
    assert_eq!(tags, [counted, counted, counted, PutTag::Plain, PutTag::Plain]);
    assert_eq!(send(&mut out, 1, 0), Err(StreamBusy::Plain));
    assert!(out.on_plain_done() && out.on_plain_done());
    let (signal, _) = send(&mut out, 1, 2).unwrap();
    assert_eq!((signal.epoch, signal.count), (1, 5), "the count includes earlier puts and its own writes");
}

#[test]
fn put_with_signal_stays_in_one_epoch() {
    let mut out = outgoing(COUNTED);
    let batch = out.begin_signal().unwrap();
    assert_eq!(out.tag_piece(&batch, path(0)), Ok(PutTag::Counted(imm(0))));
    assert_eq!(out.begin_signal().unwrap_err(), StreamBusy::Held);
    for place in 0..LINKS_MAX as u8 {
        assert_eq!(
            out.tag_piece(&batch, path(place)),
            Ok(PutTag::Counted(imm(0))),
            "a piece carries the epoch of its signal on every path"
        );
    }
    out.abandon_signal(batch);
    assert_eq!(
        send(&mut out, 0, 0).unwrap().0.count,
        1 + LINKS_MAX as u32,
        "the next signal counts the pieces of the abandoned one"
    );
}

#[test]
fn live_epochs_are_limited_until_acknowledged() {
    let mut out = outgoing(COUNTED);
    for value in 0..8 {
        send(&mut out, value, 1).unwrap();
    }
    assert_eq!(
        (out.tag_put(path(0)), out.begin_signal().unwrap_err()),
        (Err(StreamBusy::Acknowledgement), StreamBusy::Acknowledgement)
    );
    assert_eq!(out.on_ack(SignalAck { stream: stream(1), number: 3 }), Ok(3));
    assert_eq!(out.tag_put(path(0)), Ok(PutTag::Counted(imm(8))));
    assert_eq!(
        out.on_ack(SignalAck { stream: stream(1), number: 2 }),
        Ok(0),
        "a late acknowledgement had an effect"
    );
    assert_eq!(out.on_ack(SignalAck { stream: stream(1), number: 9 }), Err(ProtocolFault::Acknowledged(9)));
    assert_eq!(
        (out.on_ack(SignalAck { stream: stream(1), number: 8 }), out.unacknowledged_signals()),
        (Ok(5), 0)
    );
}

#[test]
fn late_acknowledgement_is_recognised_as_late() {
    let mut out = outgoing(COUNTED);
    for round in 0..6 {
        for value in 0..4 {
            send(&mut out, round * 4 + value, 0).unwrap();
        }
        let told = out.on_ack(SignalAck { stream: stream(1), number: round * 4 + 3 });
        assert_eq!(told, Ok(if round == 0 { 3 } else { 4 }));
    }
    assert_eq!(out.unacknowledged_signals(), 1);
    assert_eq!(
        out.on_ack(SignalAck { stream: stream(1), number: 24 - 16 }),
        Ok(0),
        "an acknowledgement with the same 4 bits was taken for a later one"
    );
    assert_eq!(out.unacknowledged_signals(), 1);
}

#[test]
fn signal_waits_for_writes_without_immediates() {
    let mut out = outgoing(SignalOrdering::Completed);
    for value in 0..8 {
        assert_eq!(out.tag_put(path(0)), Ok(PutTag::Plain));
        assert_eq!(send(&mut out, value, 1), Err(StreamBusy::Plain));
        assert!(out.on_plain_done() && out.on_plain_done());
        assert_eq!(send(&mut out, value, 0).unwrap().0.count, 0);
    }
    assert_eq!(
        (out.begin_signal().unwrap_err(), out.tag_put(path(0))),
        (StreamBusy::Acknowledgement, Ok(PutTag::Plain))
    );
}

#[test]
fn quiet_requests_one_acknowledgement() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    assert_eq!(out.quiet(), QuietStep::Applied);
    let (signal, tags) = send(&mut out, 0, 1).unwrap();
    let QuietStep::Ask(ask) = out.quiet() else { panic!("the quiet sent no request") };
    assert_eq!(out.quiet(), QuietStep::Wait);
    inbox.on_ask(&ask).unwrap();
    inbox.on_signal(&signal).unwrap();
    assert_eq!(
        (inbox.next_ack(), inbox.has_ack()),
        (None, false),
        "a signal was acknowledged before it was applied"
    );
    let [PutTag::Counted(imm)] = tags[..] else { panic!() };
    assert_eq!(inbox.on_write(imm, path(0)), Ok(ArrivalEffect::Ready(stream(1))));
    assert_eq!((inbox.take_signal(stream(1)), inbox.take_signal(stream(1))), (Some(signal.update), None));
    let ack = inbox.next_ack().unwrap();
    assert_eq!((ack.number, inbox.next_ack()), (1, None));
    assert_eq!((out.on_ack(ack), out.quiet()), (Ok(1), QuietStep::Applied));
}

#[test]
fn signal_can_request_its_acknowledgement() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let batch = out.begin_signal().unwrap();
    let Ok(signal) = out.end_signal(batch, update(7), true) else { panic!() };
    assert_eq!(out.quiet(), QuietStep::Wait, "the signal itself requests the acknowledgement");
    inbox.on_signal(&signal).unwrap();
    assert!(inbox.take_signal(stream(1)).is_some());
    assert_eq!(inbox.next_ack(), Some(SignalAck { stream: stream(1), number: 1 }));
}

#[test]
fn late_acknowledgement_request_revokes_no_newer_one() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let (first, _) = send(&mut out, 0, 0).unwrap();
    let QuietStep::Ask(old) = out.quiet() else { panic!() };
    inbox.on_signal(&first).unwrap();
    assert!(inbox.take_signal(stream(1)).is_some() && inbox.piggyback_ack().is_some());
    let (second, _) = send(&mut out, 1, 0).unwrap();
    let QuietStep::Ask(new) = out.quiet() else { panic!() };
    inbox.on_ask(&new).unwrap();
    inbox.on_ask(&old).unwrap();
    inbox.piggyback_ack().unwrap();
    inbox.on_signal(&second).unwrap();
    assert!(inbox.take_signal(stream(1)).is_some());
    assert_eq!(inbox.next_ack(), Some(SignalAck { stream: stream(1), number: 2 }));
}

#[test]
fn acknowledgements_are_batched_or_piggybacked() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    inbox.add_stream(stream(0)).unwrap();
    for value in 0..4 {
        let (signal, _) = send(&mut out, value, 0).unwrap();
        inbox.on_signal(&signal).unwrap();
        assert!(inbox.take_signal(stream(1)).is_some());
        assert_eq!(inbox.has_ack(), value % 2 == 1, "every second signal is acknowledged");
        if value == 2 {
            assert_eq!(inbox.piggyback_ack(), Some(SignalAck { stream: stream(1), number: 3 }));
            assert_eq!(inbox.piggyback_ack(), None, "an acknowledgement was piggybacked twice");
            break;
        }
        if value == 1 {
            assert_eq!(inbox.next_ack(), Some(SignalAck { stream: stream(1), number: 2 }));
        }
    }
    let seen = InboxCounts { signals: 3, rode: 1, acks: 1, ..InboxCounts::default() };
    assert_eq!(inbox.arrival_counts(), seen);
    let mut others = [0, 1].map(|number| OutgoingStream::new(stream(number), COUNTED, narrow()).unwrap());
    let mut inbox = StreamInbox::new(narrow());
    for (value, at) in [(0, 0), (0, 1), (1, 1)] {
        let (signal, _) = send(&mut others[at], value, 0).unwrap();
        inbox.add_stream(signal.stream).unwrap();
        inbox.on_signal(&signal).unwrap();
        assert!(inbox.take_signal(signal.stream).is_some());
    }
    assert_eq!(
        inbox.next_ack(),
        Some(SignalAck { stream: stream(1), number: 2 }),
        "a due stream waited for a stream that is not due"
    );
    assert_eq!(
        (inbox.next_ack(), inbox.piggyback_ack()),
        (None, Some(SignalAck { stream: stream(0), number: 1 }))
    );
}

#[test]
fn streams_are_independent() {
    let mut inbox = inbox();
    inbox.add_stream(stream(2)).unwrap();
    let mut outs = [1, 2].map(|number| OutgoingStream::new(stream(number), COUNTED, narrow()).unwrap());
    let (stuck, _) = send(&mut outs[0], 0, 1).unwrap();
    assert_eq!(inbox.on_signal(&stuck), Ok(ArrivalEffect::Counted), "the signal waits for its write");
    for value in 0..100 {
        let (signal, tags) = send(&mut outs[1], value, 1).unwrap();
        let [PutTag::Counted(imm)] = tags[..] else { panic!() };
        assert_eq!(inbox.on_signal(&signal), Ok(ArrivalEffect::Counted));
        assert_eq!(inbox.on_write(imm, path(0)), Ok(ArrivalEffect::Ready(stream(2))));
        assert_eq!((inbox.take_signal(stream(2)), inbox.take_signal(stream(1))), (Some(signal.update), None));
        inbox.next_ack().map_or(Ok(0), |ack| outs[1].on_ack(ack)).unwrap();
    }
}

#[test]
fn messages_outside_live_epochs_are_rejected() {
    let mut inbox = StreamInbox::new(narrow());
    assert_eq!(
        inbox.on_write(imm(0), path(0)),
        Ok(ArrivalEffect::Unknown(stream(1))),
        "a write created a stream"
    );
    assert_eq!(inbox.stream_capacity().0, 0);
    inbox.add_stream(stream(1)).unwrap();
    inbox.add_stream(stream(1)).unwrap();
    assert_eq!(inbox.stream_capacity(), (1, 8));
    for epoch in [8, 15, 16, 0xffff] {
        assert_eq!(inbox.on_write(imm(epoch), path(0)), Err(ProtocolFault::Epoch(epoch.into())));
    }
    assert_eq!(inbox.on_write(0x4000_0000, path(0)), Err(ProtocolFault::Immediate(0x4000_0000)));
    let signal = |epoch, count| SignalMessage {
        stream: stream(1),
        epoch,
        count,
        update: update(0),
        at_once: false,
        ack: None,
    };
    assert_eq!(inbox.on_signal(&signal(16, 0)), Err(ProtocolFault::Epoch(16)));
    for _ in 0..3 {
        inbox.on_write(imm(1), path(0)).unwrap();
    }
    assert_eq!(inbox.on_signal(&signal(1, 2)), Err(ProtocolFault::Count { arrived: 3, count: 2 }));
    inbox.on_signal(&signal(0, 1)).unwrap();
    assert_eq!(inbox.on_signal(&signal(0, 2)), Err(ProtocolFault::Contradiction(0)));
    inbox.on_write(imm(0), path(0)).unwrap();
    assert_eq!(inbox.on_write(imm(0), path(0)), Err(ProtocolFault::Count { arrived: 2, count: 1 }));
    let ask = |number| AckRequest { stream: stream(1), number };
    assert_eq!(inbox.on_ask(&ask(9)), Err(ProtocolFault::Epoch(9)));
    assert_eq!(inbox.on_ask(&ask(8)), Ok(ArrivalEffect::Counted));
    let wide = EpochShape::new(4, 4, 2).unwrap();
    let mut incoming = IncomingStream::new(wide).unwrap();
    assert_eq!(
        incoming.on_signal(&signal(6, 0)),
        Err(ProtocolFault::Epoch(6)),
        "the epoch is neither pending nor a repetition"
    );
    let all = (0..RMA_STREAMS_MAX as u8).map(stream);
    all.for_each(|stream| inbox.add_stream(stream).unwrap());
    assert_eq!((inbox.stream_capacity().0, RmaStream::new(RMA_STREAMS_MAX as u8)), (RMA_STREAMS_MAX, None));
}

#[test]
fn repeated_signal_is_applied_once() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let (first, _) = send(&mut out, 0, 0).unwrap();
    let (second, _) = send(&mut out, 1, 0).unwrap();
    inbox.on_signal(&second).unwrap();
    assert_eq!(inbox.on_signal(&second), Ok(ArrivalEffect::Counted), "the second signal waits for the first");
    inbox.on_signal(&first).unwrap();
    assert_eq!(
        [inbox.take_signal(stream(1)), inbox.take_signal(stream(1))],
        [Some(first.update), Some(second.update)]
    );
    inbox.next_ack().unwrap();
    assert_eq!(inbox.on_signal(&first), Ok(ArrivalEffect::Counted));
    assert_eq!((inbox.take_signal(stream(1)), inbox.arrival_counts().repeated), (None, 2));
    assert_eq!(
        inbox.next_ack(),
        Some(SignalAck { stream: stream(1), number: 2 }),
        "a repeated signal is acknowledged again"
    );
}

#[test]
fn only_lost_signals_are_sent_again() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let sent: Vec<_> = (0..4).map(|value| send(&mut out, value, 0).unwrap().0).collect();
    for at in [0, 2] {
        inbox.on_signal(&sent[at]).unwrap();
    }
    assert!(inbox.take_signal(stream(1)).is_some());
    let standing = inbox.close_path(stream(1), path(0));
    assert_eq!(standing, PathDeliveryReport { applied: 1, seen: vec![], signals: vec![2] });
    let again = [0, 1, 2, 3, 4].map(|number| out.resend_signal(number, &standing));
    assert_eq!(again, [None, Some(sent[1]), None, Some(sent[3]), None]);
    assert_eq!(out.next_number(), 4);
    out.on_ack(SignalAck { stream: stream(1), number: 2 }).unwrap();
    assert_eq!(out.resend_signal(1, &standing), None, "an acknowledged signal was sent again");
}

#[test]
fn writes_lost_with_a_path_are_made_up() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let batch = out.begin_signal().unwrap();
    let tags = [0, 0, 1, 0].map(|place| (out.tag_piece(&batch, path(place)).unwrap(), path(place)));
    let Ok(signal) = out.end_signal(batch, update(0), false) else { panic!() };
    assert!(matches!(out.tag_put(path(0)), Ok(PutTag::Counted(_))));
    inbox.on_signal(&signal).unwrap();
    for (tag, path) in &tags[..3] {
        let PutTag::Counted(imm) = *tag else { panic!() };
        assert_eq!(inbox.on_write(imm, *path), Ok(ArrivalEffect::Counted));
    }
    assert_eq!(inbox.close_path(stream(2), path(0)), PathDeliveryReport::default(), "the stream is unknown");
    let standing = inbox.close_path(stream(1), path(0));
    assert_eq!(standing, PathDeliveryReport { applied: 0, seen: vec![(0, 2)], signals: vec![0] });
    let wrong = PathDeliveryReport { applied: 0, seen: vec![(0, 4)], signals: vec![] };
    assert_eq!(
        outgoing(COUNTED).lose_path(path(0), &wrong),
        Err(ProtocolFault::Standing { seen: 4, posted: 0 })
    );
    let wrong = PathDeliveryReport { applied: 1, seen: vec![], signals: vec![] };
    assert_eq!(outgoing(COUNTED).lose_path(path(0), &wrong), Err(ProtocolFault::Acknowledged(1)));
    let lost = out.lose_path(path(0), &standing).unwrap();
    let make_up = |epoch, count| MakeUp { stream: stream(1), epoch, count };
    assert_eq!(lost, [make_up(0, 1), make_up(1, 1)]);
    assert_eq!(inbox.make_up(&lost[1]), Ok(ArrivalEffect::Counted));
    assert_eq!(inbox.make_up(&lost[0]), Ok(ArrivalEffect::Ready(stream(1))));
    assert_eq!(inbox.make_up(&lost[0]), Err(ProtocolFault::Count { arrived: 5, count: 4 }));
    assert_eq!(inbox.make_up(&make_up(9, 1)), Err(ProtocolFault::Epoch(9)));
    assert_eq!(
        out.lose_path(path(0), &standing),
        Err(ProtocolFault::Standing { seen: 2, posted: 0 }),
        "the path was reported before"
    );
    let wrong = PathDeliveryReport { applied: 0, seen: vec![(5, 1)], signals: vec![] };
    assert_eq!(out.lose_path(path(1), &wrong), Err(ProtocolFault::Epoch(5)));
}

#[test]
fn acknowledgements_over_a_lost_path_are_repeated() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let (signal, _) = send(&mut out, 0, 0).unwrap();
    inbox.on_signal(&signal).unwrap();
    assert!(inbox.take_signal(stream(1)).is_some() && inbox.piggyback_ack().is_some());
    assert!(!inbox.has_ack());
    inbox.add_stream(stream(0)).unwrap();
    (0..2).for_each(|number| drop(inbox.close_path(stream(number), path(2))));
    assert_eq!(inbox.next_ack(), Some(SignalAck { stream: stream(1), number: 1 }));
    assert_eq!(inbox.next_ack(), None, "a stream without acknowledgements repeats none");
    let QuietStep::Ask(_) = out.quiet() else { panic!() };
    out.lose_path(path(2), &PathDeliveryReport { applied: 1, seen: vec![], signals: vec![] }).unwrap();
    assert!(
        matches!(out.quiet(), QuietStep::Ask(_)),
        "the quiet repeats its request, because the first may be lost"
    );
}

#[test]
fn numbers_continue_past_48_bits() {
    let from = (1 << 48) - 20;
    let mut out = OutgoingStream::from_number(from, stream(1), COUNTED, narrow()).unwrap();
    let mut incoming = IncomingStream::from_number(from, narrow()).unwrap();
    for value in 0..40 {
        let (signal, _) = send(&mut out, value, 0).unwrap();
        incoming.on_signal(&signal).unwrap();
        assert_eq!(incoming.take_signal(), Some(signal.update));
        if value % 3 == 0 {
            let QuietStep::Ask(ask) = out.quiet() else { panic!() };
            assert!(incoming.on_ask(&ask).is_ok() && incoming.is_due() && incoming.is_owed());
            let number = incoming.acknowledge_applied();
            assert!(number < 1 << 48);
            out.on_ack(SignalAck { stream: stream(1), number }).unwrap();
            assert_eq!(out.unacknowledged_signals(), 0);
        }
    }
}

#[test]
fn forgotten_stream_restarts_at_epoch_zero() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    for value in 0..3 {
        let (signal, _) = send(&mut out, value, 0).unwrap();
        inbox.on_signal(&signal).unwrap();
        assert!(inbox.take_signal(stream(1)).is_some());
    }
    assert!(inbox.has_ack());
    inbox.forget_stream(stream(1));
    inbox.forget_stream(stream(63));
    assert_eq!((inbox.has_ack(), inbox.piggyback_ack(), inbox.stream_capacity().0), (false, None, 0));
    assert_eq!(inbox.on_write(imm(0), path(0)), Ok(ArrivalEffect::Unknown(stream(1))));
    inbox.add_stream(stream(1)).unwrap();
    let (first, _) = send(&mut outgoing(COUNTED), 9, 0).unwrap();
    assert_eq!(
        inbox.on_signal(&first),
        Ok(ArrivalEffect::Ready(stream(1))),
        "the new stream begins with epoch 0"
    );
}

#[test]
fn acknowledgement_stays_due_until_it_can_be_sent() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    for value in 0..2 {
        let (signal, _) = send(&mut out, value, 0).unwrap();
        inbox.on_signal(&signal).unwrap();
        assert!(inbox.take_signal(stream(1)).is_some());
    }
    assert_eq!(inbox.next_ack_where(|of| of != stream(1)), None);
    assert_eq!(inbox.next_ack_where(|of| of == stream(1)), Some(SignalAck { stream: stream(1), number: 2 }));
}

#[test]
fn only_signals_of_the_lost_path_are_repeated() {
    let (mut out, mut inbox) = (outgoing(COUNTED), inbox());
    let sent: Vec<_> = (0..4).map(|value| send(&mut out, value, 0).unwrap().0).collect();
    for (number, place) in [(0, 0), (1, 1), (2, 0), (3, 0)] {
        out.sent_over(number, path(place));
    }
    inbox.on_signal(&sent[2]).unwrap();
    let standing = inbox.close_path(stream(1), path(0));
    assert_eq!(out.lost_signals(path(0), &standing), [(0, sent[0]), (3, sent[3])]);
    assert_eq!(out.lost_signals(path(0), &standing), [], "the signals use another path now");
    out.sent_over(0, path(1));
    let standing = inbox.close_path(stream(1), path(1));
    assert_eq!(out.lost_signals(path(1), &standing), [(0, sent[0]), (1, sent[1])]);
}
