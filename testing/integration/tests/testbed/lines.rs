//! One direction of a relayed cable, with the test's own clock.

use std::time::{Duration, Instant};

use trunkline_integration::testbed::{CableLine, LineShape};

const MS: Duration = Duration::from_millis(1);

/// Everything that leaves the line, with its time, polled every 100 us for ten seconds.
fn arrivals(line: &mut CableLine, begun: Instant) -> Vec<(Duration, Vec<u8>)> {
    let mut all = Vec::new();
    for tick in 0..100_000 {
        let after = tick * Duration::from_micros(100);
        while let Some(packet) = line.pop(begun + after) {
            all.push((after, packet));
        }
    }
    all
}

#[test]
fn a_plain_line_passes_everything_at_once() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape::PLAIN, 1);
    for number in 0..100 {
        line.push(now, vec![number; 1000]);
    }
    assert_eq!(line.next(), Some(now));
    for number in 0..100 {
        assert_eq!(line.pop(now), Some(vec![number; 1000]));
    }
    assert_eq!((line.pop(now), line.next()), (None, None));
    assert_eq!((line.line_tally().passed.packets, line.line_tally().passed.bytes), (100, 100_000));
}

#[test]
fn a_delay_is_the_time_of_every_packet() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape { delay: 20 * MS, ..LineShape::PLAIN }, 1);
    line.push(now, vec![1]);
    line.push(now + 5 * MS, vec![2]);
    assert_eq!(line.pop(now + 20 * MS - Duration::from_nanos(1)), None);
    assert_eq!(line.pop(now + 20 * MS), Some(vec![1]));
    assert_eq!((line.pop(now + 24 * MS), line.next()), (None, Some(now + 25 * MS)));
    assert_eq!(line.pop(now + 25 * MS), Some(vec![2]));
}

#[test]
fn jitter_spreads_packets_and_never_reorders_them() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape { delay: 10 * MS, jitter: 5 * MS, ..LineShape::PLAIN }, 1);
    for number in 0..200u8 {
        line.push(now + u32::from(number) * 2 * MS, vec![number]);
    }
    let all = arrivals(&mut line, now);
    let numbers: Vec<u8> = all.iter().map(|(_, packet)| packet[0]).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<u8>>());
    let took = all.iter().map(|(at, packet)| *at - u32::from(packet[0]) * 2 * MS);
    let (min, max) = (took.clone().min().unwrap(), took.max().unwrap());
    assert!(min >= 10 * MS && min < 11 * MS, "{min:?}");
    assert!(max > 14 * MS && max <= 15 * MS + MS / 5, "{max:?}");
}

/// A packet of a TCP stream between these two ports.
fn of_stream(port: u16, bytes: usize) -> Vec<u8> {
    let mut packet = vec![0; bytes];
    packet[0] = 0x45;
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet
}

#[test]
fn each_stream_may_have_its_own_rate() {
    let now = Instant::now();
    for (each, streams, took) in [(false, 2, 200), (true, 2, 100), (true, 1, 200)] {
        let shape = LineShape { rate: Some(1_000_000), each, queue: 300_000, ..LineShape::PLAIN };
        let mut line = CableLine::new(shape, 1);
        for number in 0..200 {
            line.push(now, of_stream(number % streams, 1000));
        }
        let all = arrivals(&mut line, now);
        assert_eq!(all.len(), 200);
        let last = all[199].0;
        assert!(last >= took * MS && last <= (took + 1) * MS, "{each} {streams}: {last:?}");
    }
}

#[test]
fn bytes_never_pass_faster_than_the_rate() {
    let now = Instant::now();
    // 1 MB/s: a packet of 1000 bytes each millisecond.
    let mut line = CableLine::new(LineShape { rate: Some(1_000_000), queue: 200_000, ..LineShape::PLAIN }, 1);
    for number in 0..200 {
        line.push(now + number * MS / 2, vec![0; 1000]);
    }
    let all = arrivals(&mut line, now);
    assert_eq!((all.len(), line.line_tally().dropped), (200, 0));
    for (number, (at, _)) in all.iter().enumerate() {
        assert!(*at >= (number as u32 + 1) * MS, "packet {number} arrived at {at:?}");
    }
    assert!(all[199].0 <= 201 * MS, "{:?}", all[199].0);
}

#[test]
fn packets_beyond_the_queue_are_dropped() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape { rate: Some(1_000_000), queue: 10_000, ..LineShape::PLAIN }, 1);
    for _ in 0..100 {
        line.push(now, vec![0; 1000]);
    }
    assert_eq!(arrivals(&mut line, now).len(), 10);
    assert_eq!(line.line_tally().dropped, 90);
    // A queue smaller than a packet still passes one at a time.
    let mut line = CableLine::new(LineShape { rate: Some(1_000_000), queue: 10, ..LineShape::PLAIN }, 1);
    line.push(now, vec![0; 1000]);
    line.push(now, vec![0; 1000]);
    assert_eq!((arrivals(&mut line, now).len(), line.line_tally().dropped), (1, 1));
}

#[test]
fn losses_match_the_share_and_follow_the_seed() {
    let now = Instant::now();
    let lost = |loss: f64, seed: u64| {
        let mut line = CableLine::new(LineShape { loss, ..LineShape::PLAIN }, seed);
        let passed = |number: u16| {
            line.push(now, number.to_le_bytes().to_vec());
            line.pop(now).is_some()
        };
        let passed: Vec<bool> = (0..10_000).map(passed).collect();
        let count = passed.iter().filter(|passed| !**passed).count();
        assert_eq!(line.line_tally().lost, count as u64);
        (count, passed)
    };
    assert_eq!((lost(0.0, 1).0, lost(1.0, 1).0), (0, 10_000));
    let (count, pattern) = lost(0.1, 1);
    assert!((850..1150).contains(&count), "{count}");
    assert!(pattern == lost(0.1, 1).1 && pattern != lost(0.1, 2).1);
}

#[test]
fn a_cut_loses_packets_in_flight_and_later_ones() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape { delay: 10 * MS, ..LineShape::PLAIN }, 1);
    line.push(now, vec![1]);
    line.cut();
    line.push(now, vec![2]);
    assert_eq!((line.pop(now + 100 * MS), line.next()), (None, None));
    line.mend();
    assert_eq!(line.pop(now + 100 * MS), None);
    line.push(now + 100 * MS, vec![3]);
    assert_eq!(line.pop(now + 110 * MS), Some(vec![3]));
    assert_eq!((line.line_tally().cut, line.line_tally().passed.packets), (2, 1));
}

#[test]
fn bytes_in_flight_are_bounded() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape { delay: 10_000 * MS, ..LineShape::PLAIN }, 1);
    for _ in 0..1100 {
        line.push(now, vec![0; 64 << 10]);
    }
    assert_eq!(line.line_tally().dropped, 1100 - 1024);
}

#[test]
fn a_new_shape_applies_to_later_packets() {
    let now = Instant::now();
    let mut line = CableLine::new(LineShape { rate: Some(1000), queue: 10_000, ..LineShape::PLAIN }, 1);
    line.push(now, vec![1; 1000]);
    line.set_shape(LineShape::PLAIN);
    line.push(now, vec![2; 1000]);
    assert_eq!(line.next(), Some(now + 1000 * MS));
    assert_eq!(line.pop(now + 1000 * MS).unwrap()[0], 1);
    assert_eq!(line.pop(now + 1000 * MS).unwrap()[0], 2);
}
