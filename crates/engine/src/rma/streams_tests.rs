//! Counts accepts and reads of streams that have proved nothing, by a clock that the tests move.

use trunkline_proto::id::ProcessId;
use trunkline_proto::limits::{STRANGER_BURST, STRANGER_PERIOD, UNPROVEN_READS_MAX, UNPROVEN_STREAMS_MAX};
use trunkline_proto::slots::SlotId;
use trunkline_proto::time::Duration;
use trunkline_proto::wire::dial::DialMessage;
use trunkline_proto::wire::frame::{ControlFrame, VERSION};
use trunkline_proto::wire::share::ShareOffer;

use crate::flood_host::{FloodHost, FloodStream};
use crate::rma::streams::{MemberStreams, StreamEvent};

const OWN: ProcessId = ProcessId([1; 16]);
const MEMBER: ProcessId = ProcessId([2; 16]);
const UNKNOWN: ProcessId = ProcessId([3; 16]);

fn hello(process: ProcessId) -> Vec<u8> {
    ControlFrame::Hello { min: VERSION, max: VERSION, offer: ShareOffer::NONE, process }.to_bytes()
}

fn word(number: u64) -> Vec<u8> {
    DialMessage::Down { served: number }.to_bytes()
}

/// Polls once. Returns the stream from which the word of that number was read, if it was.
fn poll_for_word(streams: &mut MemberStreams<FloodHost>, host: &FloodHost, number: u64) -> Option<SlotId> {
    let mut events = Vec::new();
    streams.poll_streams(host, &mut events);
    events.into_iter().find_map(|event| match event {
        StreamEvent::Word(id, DialMessage::Down { served }, _) if served == number => Some(id),
        _ => None,
    })
}

#[test]
fn unproven_streams_cost_a_bounded_rate() {
    const PERIODS: u64 = 10;
    // Each sends a HELLO, and then words without end.
    for count in [UNPROVEN_STREAMS_MAX, 16 * UNPROVEN_STREAMS_MAX] {
        let host = FloodHost::default();
        let mut streams = MemberStreams::new(OWN, &host).unwrap();
        let opened = streams.stream_to(&host, MEMBER, &[2]).unwrap().unwrap();
        let member = host.last_opened();
        member.push_frame(hello(MEMBER));
        let unproven = || FloodStream::with_frames(&[hello(UNKNOWN)]).repeat_frame(word(0));
        let flood: Vec<_> = (0..count).map(|_| host.queue_stream(unproven())).collect();
        let mut allowed = STRANGER_BURST as usize;
        for number in 1..=80 {
            if number > 40 {
                host.advance_clock(Duration(PERIODS * STRANGER_PERIOD.0));
                allowed += PERIODS as usize;
            }
            member.push_frame(word(number));
            assert_eq!(
                poll_for_word(&mut streams, &host, number),
                Some(opened),
                "the member's stream is read by each poll"
            );
            let work = host.accept_count() + flood.iter().map(FloodStream::read_count).sum::<usize>();
            assert_eq!(work, allowed, "accepts and reads of {count} streams after {number} polls");
        }
    }
}

#[test]
fn an_accepted_member_waits_for_earlier_work() {
    let host = FloodHost::default();
    let mut streams = MemberStreams::new(OWN, &host).unwrap();
    let unproven = || FloodStream::with_frames(&[hello(UNKNOWN), word(0)]);
    // With the member no more than may wait: none of them is ended for another one.
    let earlier = UNPROVEN_STREAMS_MAX as u64 - 1;
    (0..earlier).for_each(|_| drop(host.queue_stream(unproven())));
    let member = host.queue_stream(FloodStream::with_frames(&[hello(MEMBER), word(1)]));
    // After these periods there is room for an accept and two frames of each stream. Then a full turn of polls reads each stream.
    let periods = 3 * (earlier + 1) - u64::from(STRANGER_BURST);
    let turns = UNPROVEN_STREAMS_MAX.div_ceil(UNPROVEN_READS_MAX) as u64;
    let accepted = (0..=periods + turns).find_map(|_| {
        let found = poll_for_word(&mut streams, &host, 1);
        host.advance_clock(STRANGER_PERIOD);
        found
    });
    streams.mark_proven(accepted.expect("the member's proof was read"));
    for number in 2..10 {
        member.push_frame(word(number));
        assert_eq!(
            poll_for_word(&mut streams, &host, number),
            accepted,
            "the accepted stream is read by each poll"
        );
    }
}
