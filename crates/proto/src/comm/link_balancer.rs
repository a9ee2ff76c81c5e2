//! Chooses the link for each piece of a message, where a comm has several. It measures every link: its speed while it has bytes, and the
//! latency of an operation that finds it idle. A piece is sent over the link that will complete it first. The engine calls it for each
//! operation of such comms; it reads no clock.

use crate::limits::{LINE_BYTES, LINKS_MAX, STRIPES_MAX, whole_lines};
use crate::time::Instant;

/// Bytes after which a measurement of speed is used.
const SAMPLE_BYTES: u64 = 64 * 1024;

/// Approximate number of measurements in the average.
const MEMORY: u64 = 16;

/// Nanoseconds after which an idle link is tried again, however slow it was.
const FORGET: u64 = 20_000_000;

/// A link is tried again at the earliest after its latency times this number: each message that tries a slow link arrives
/// late.
const PATIENCE: u64 = 64;

/// Bytes per second in units of 2^10 per second, roughly bytes per microsecond: one megabit per second is 122 units.
const UNITS_A_MEGABIT: u64 = 122;

/// Nanoseconds per byte at one unit.
const UNIT_NANOS: u64 = 1_000_000_000 / 1024;

/// The measurements of one link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkLoad {
    up: bool,
    /// Posted bytes that have not completed; each operation counts as one byte more.
    outstanding: u64,
    /// Speed, in 1024 bytes per second; never 0.
    speed: u64,
    /// The bytes and nanoseconds whose quotient is the speed: sums over all measurements, each of which counts less with each later
    /// one. A mean of speeds instead would rate a link as fast when its completions are reported in bursts.
    measured: (u64, u64),
    /// The speed that the NIC reports.
    nominal: u64,
    /// Nanoseconds of an operation that finds the link idle.
    latency: u64,
    /// The time since which it has outstanding operations, or at which it became idle.
    since: u64,
    /// Bytes completed since that time.
    done: u64,
    /// The most bytes outstanding since that time.
    most: u64,
}

/// The loads of a comm's links.
#[derive(Clone, Debug, Default)]
pub struct LinkBalancer {
    loads: [LinkLoad; LINKS_MAX],
}

impl LinkBalancer {
    /// Returns a balancer without links that are up.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that a link is up, with the speed that its NICs report in megabits per second (0: unknown), and their latency in nanoseconds.
    pub fn mark_up(&mut self, link: usize, speed_mbps: u64, latency: u64, now: Instant) {
        let nominal = speed_mbps.max(1).saturating_mul(UNITS_A_MEGABIT);
        let load =
            LinkLoad { up: true, speed: nominal, nominal, latency, since: now.0, ..LinkLoad::default() };
        if let Some(place) = self.loads.get_mut(link) {
            *place = load;
        }
    }

    /// Records that a link is not up any more; its outstanding operations are forgotten.
    pub fn mark_down(&mut self, link: usize) {
        if let Some(load) = self.loads.get_mut(link) {
            *load = LinkLoad::default();
        }
    }

    /// Returns the number of pieces of a message of `len` bytes, and the bytes of each piece except the last. A piece is the bytes that one
    /// operation carries. Pieces have at least `least` and at most `most` bytes, in whole lines. A message of 0 bytes is one piece.
    #[must_use]
    pub fn plan_pieces(&self, len: u64, least: u64, most: u64) -> (u64, u64) {
        let up = self.loads.iter().filter(|load| load.up).count() as u64;
        // Several pieces per link, so that slower links can carry fewer of them.
        let wanted = if up > 1 { (up * 4).min(STRIPES_MAX as u64) } else { 1 };
        let piece = len.div_ceil(wanted).max(least.min(len)).max(1);
        let piece = piece.checked_next_multiple_of(LINE_BYTES).unwrap_or(u64::MAX).min(whole_lines(most));
        (len.div_ceil(piece).max(1), piece)
    }

    /// Returns the link that completes `len` more bytes first, among those for which `may` allows an operation now.
    #[must_use]
    pub fn best_link(&self, len: u64, now: Instant, mut may: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut best = None;
        for (link, load) in self.loads.iter().enumerate() {
            if !load.up || !may(link) {
                continue;
            }
            let due = load.completion_nanos(len, now);
            if best.is_none_or(|(first, _)| due < first) {
                best = Some((due, link));
            }
        }
        best.map(|(_, link)| link)
    }

    /// Records that an operation of `len` bytes was posted.
    pub fn on_posted(&mut self, link: usize, len: u64, now: Instant) {
        let Some(load) = self.loads.get_mut(link) else { return };
        if load.outstanding == 0 {
            (load.since, load.done, load.most) = (now.0, 0, 0);
        }
        load.outstanding += len + 1;
        load.most = load.most.max(load.outstanding);
    }

    /// Records that an operation of `len` bytes, posted at `posted`, has completed.
    pub fn on_done(&mut self, link: usize, len: u64, posted: Instant, now: Instant) {
        let Some(load) = self.loads.get_mut(link).filter(|load| load.up) else { return };
        load.outstanding = load.outstanding.saturating_sub(len + 1);
        load.done += len;
        let took = now.0.saturating_sub(load.since);
        if load.done >= SAMPLE_BYTES && took > 0 {
            load.record_speed(took);
            (load.since, load.done, load.most) = (now.0, 0, load.outstanding);
        } else if load.outstanding == 0 && posted.0 == load.since {
            // The operation found the link idle, and no other is outstanding.
            let whole = now.0.saturating_sub(posted.0);
            load.latency = (load.latency * 3 + whole.saturating_sub(load.transfer_nanos(len))) / 4;
        }
        if load.outstanding == 0 {
            load.since = now.0;
        }
    }

    /// Returns the estimate for a link, for tests and diagnostics: whether it is up, megabits per second, nanoseconds of latency.
    #[must_use]
    pub fn link_estimate(&self, link: usize) -> (bool, u64, u64) {
        let load = self.loads.get(link).copied().unwrap_or_default();
        (load.up, load.speed / UNITS_A_MEGABIT, load.latency)
    }
}

impl LinkLoad {
    /// Adds a measurement: the bytes in `done` took `took` nanoseconds.
    fn record_speed(&mut self, took: u64) {
        let (bytes, nanos) = self.measured;
        let fewer = |sum: u64| sum - sum.div_ceil(MEMORY);
        let bytes = fewer(bytes).saturating_add(self.done);
        let nanos = fewer(nanos).saturating_add(took);
        let speed = (bytes.saturating_mul(UNIT_NANOS) / nanos.max(1)).max(1);
        // With a few small messages in flight the link is idle most of the time, so a low speed is no measure of the link.
        if self.most >= SAMPLE_BYTES || speed > self.speed {
            (self.measured, self.speed) = ((bytes, nanos), speed);
        }
    }

    /// Nanoseconds to transfer `bytes`.
    fn transfer_nanos(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(UNIT_NANOS) / self.speed.max(1)
    }

    /// Nanoseconds from now until `len` more bytes complete.
    fn completion_nanos(&self, len: u64, now: Instant) -> u64 {
        let rest = if self.outstanding == 0 { now.0.saturating_sub(self.since) } else { 0 };
        let speed = if rest > FORGET { self.speed.max(self.nominal) } else { self.speed };
        let forgotten = rest > FORGET.max(self.latency.saturating_mul(PATIENCE));
        let ahead = Self { speed, ..*self }.transfer_nanos(self.outstanding.saturating_add(len));
        ahead.saturating_add(if forgotten { 0 } else { self.latency })
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A link that carries the given bytes per microsecond, with the given latency in nanoseconds.
    struct Pipe {
        speed: u64,
        latency: u64,
        /// Completions are reported only at this interval, in a burst.
        burst: u64,
        told: u64,
        free_at: u64,
        under_way: VecDeque<(u64, u64, u64)>,
        carried: u64,
    }

    impl Pipe {
        fn new(speed: u64, latency: u64) -> Self {
            Self { speed, latency, burst: 1, told: 0, free_at: 0, under_way: VecDeque::new(), carried: 0 }
        }

        fn post(&mut self, len: u64, now: u64) {
            self.free_at = self.free_at.max(now) + len * 1_000 / self.speed;
            let told = (self.free_at + self.latency).next_multiple_of(self.burst);
            self.told = told.max(self.told + 1_000);
            self.under_way.push_back((self.told, len, now));
            self.carried += len;
        }
    }

    /// Sends messages one after another, `window` of them in flight. Returns the nanoseconds until all are complete.
    fn drive(spread: &mut LinkBalancer, pipes: &mut [Pipe], messages: u64, len: u64, window: u64) -> u64 {
        let mut now = 0;
        let mut begun = 0;
        let mut outstanding = 0;
        let (_, piece) = spread.plan_pieces(len, 16 * 1024, 1 << 30);
        while begun < messages * len || outstanding > 0 {
            while outstanding < window * len && begun < messages * len {
                let part = piece.min(len - begun % len);
                let Some(link) = spread.best_link(part, Instant(now), |_| true) else { break };
                pipes[link].post(part, now);
                spread.on_posted(link, part, Instant(now));
                begun += part;
                outstanding += part;
            }
            let next = pipes.iter().filter_map(|pipe| pipe.under_way.front()).map(|front| front.0).min();
            now = next.unwrap_or(now);
            for (link, pipe) in pipes.iter_mut().enumerate() {
                while let Some((_, len, posted)) = pipe.under_way.pop_front_if(|front| front.0 <= now) {
                    spread.on_done(link, len, Instant(posted), Instant(now));
                    outstanding -= len;
                }
            }
        }
        now
    }

    fn spread_over(pipes: &[Pipe], told: impl Fn(&Pipe) -> u64) -> LinkBalancer {
        let mut spread = LinkBalancer::new();
        for (link, pipe) in pipes.iter().enumerate() {
            spread.mark_up(link, told(pipe), pipe.latency, Instant(0));
        }
        spread
    }

    /// Speeds are measured even if the NICs report equal ones.
    #[test]
    fn unequal_links_are_used_in_proportion() {
        for speeds in [&[100, 400][..], &[1_000, 1_000], &[50, 100, 400, 1_000], &[1_000, 10]] {
            for told in [1, 10_000] {
                let mut pipes: Vec<Pipe> = speeds.iter().map(|&speed| Pipe::new(speed, 20_000)).collect();
                let mut spread = spread_over(&pipes, |_| told);
                let took = drive(&mut spread, &mut pipes, 400, 1 << 20, 8);
                let best = 400 * (1 << 20) * 1_000 / speeds.iter().sum::<u64>();
                assert!(took < best * 12 / 10, "{speeds:?}: {took} ns, {best} at best");
                for (pipe, &speed) in pipes.iter().zip(speeds) {
                    let fair = 400 * (1 << 20) * speed / speeds.iter().sum::<u64>();
                    let near = fair / 2..fair * 3 / 2 + (4 << 20);
                    assert!(near.contains(&pipe.carried), "{speeds:?}: {} of {fair}", pipe.carried);
                }
            }
        }
    }

    /// A network with pauses, or a caller that seldom polls, causes such bursts.
    #[test]
    fn completion_bursts_do_not_raise_measured_speed() {
        for bursts in [[20, 1], [1, 20], [20, 20], [5, 20]] {
            let pipe = |(speed, ms): (u64, u64)| Pipe { burst: ms * 1_000_000, ..Pipe::new(speed, 20_000) };
            let mut pipes = [(12, bursts[0]), (50, bursts[1])].map(pipe);
            let mut spread = spread_over(&pipes, |_| 10_000);
            let took = drive(&mut spread, &mut pipes, 400, 1 << 20, 8);
            let best = 400 * (1 << 20) * 1_000 / 62;
            assert!(took < best * 12 / 10, "{bursts:?}: {took} ns, {best} at best");
        }
    }

    /// The throughput of small messages, with few in flight, gives little information about the speed of a link.
    #[test]
    fn small_messages_do_not_lower_the_measured_speed() {
        let mut pipes = [Pipe::new(1_000, 200_000), Pipe::new(1_000, 200_000)];
        let mut spread = spread_over(&pipes, |_| 8_000);
        drive(&mut spread, &mut pipes, 100_000, 64, 8);
        for link in 0..2 {
            let (_, speed, _) = spread.link_estimate(link);
            assert!(speed > 4_000, "the measured speed is {speed} megabits per second");
        }
    }

    #[test]
    fn small_messages_take_the_quickest_free_link() {
        let mut pipes = [Pipe::new(1_000, 500_000), Pipe::new(1_000, 10_000)];
        let mut spread = spread_over(&pipes, |_| 8_000);
        drive(&mut spread, &mut pipes, 1_000, 64, 1);
        assert!(pipes[1].carried > 900 * 64, "{} of {}", pipes[1].carried, 1_000 * 64);
    }

    /// Also if messages are so rare that every link was idle before each.
    #[test]
    fn rare_messages_take_the_quickest_link() {
        for latencies in [[40_000_000, 2_000_000], [500_000, 10_000]] {
            for rest in [0, FORGET / 4, FORGET + 1, FORGET * 5] {
                let mut spread = LinkBalancer::new();
                (0..2).for_each(|link| spread.mark_up(link, 200_000, 1_000, Instant(0)));
                let mut now = 0;
                let mut late = 0;
                for _ in 0..1_000 {
                    let link = spread.best_link(64, Instant(now), |_| true).unwrap();
                    spread.on_posted(link, 64, Instant(now));
                    let done = now + latencies[link];
                    spread.on_done(link, 64, Instant(now), Instant(done));
                    late += latencies[link] - latencies[1];
                    now = done + rest;
                }
                assert!(late < now / 20 + latencies[0], "{latencies:?}, {rest}: late by {late} in {now}");
            }
        }
    }

    /// One period of slowness is forgotten in time.
    #[test]
    fn link_with_one_late_message_is_tried_again() {
        let mut spread = LinkBalancer::new();
        (0..2).for_each(|link| spread.mark_up(link, 200_000, 1_000, Instant(0)));
        let mut now = 0;
        let mut used = 0;
        for turn in 0..1_000 {
            let link = spread.best_link(64, Instant(now), |_| true).unwrap();
            spread.on_posted(link, 64, Instant(now));
            let latency = if link == 0 && turn > 10 { 1_000_000 } else { 5_000_000 };
            spread.on_done(link, 64, Instant(now), Instant(now + latency));
            now += latency;
            used += u64::from(link == 0);
        }
        assert!(used > 800, "{used} of 1000 over the link that is quicker now");
    }

    #[test]
    fn link_with_a_slow_period_is_tried_again() {
        let mut spread = LinkBalancer::new();
        spread.mark_up(0, 1_000, 1_000, Instant(0));
        spread.mark_up(1, 1_000, 1_000, Instant(0));
        // A slow period: each 64 KiB take 50 ms.
        for at in 0..20 {
            let posted = Instant(at * 50_000_000);
            let done = Instant((at + 1) * 50_000_000);
            spread.on_posted(1, SAMPLE_BYTES, posted);
            spread.on_done(1, SAMPLE_BYTES, posted, done);
        }
        let busy = |spread: &mut LinkBalancer, now| spread.on_posted(0, 1 << 16, Instant(now));
        busy(&mut spread, 1_000_000_001);
        assert_eq!(spread.best_link(1 << 16, Instant(1_000_000_002), |_| true), Some(0));
        busy(&mut spread, 1_000_000_003);
        assert_eq!(spread.best_link(1 << 16, Instant(1_000_000_000 + FORGET + 1), |_| true), Some(1));
    }

    #[test]
    fn down_or_full_link_gets_no_message() {
        let mut spread = LinkBalancer::new();
        assert_eq!(spread.best_link(1, Instant(0), |_| true), None);
        spread.mark_up(2, 1, 1, Instant(0));
        assert_eq!(spread.best_link(1, Instant(0), |link| link != 2), None);
        assert_eq!(spread.best_link(1, Instant(0), |_| true), Some(2));
        spread.mark_down(2);
        assert_eq!(spread.best_link(1, Instant(0), |_| true), None);
    }

    #[test]
    fn piece_count_exceeds_stripes_only_for_short_operations() {
        let mut spread = LinkBalancer::new();
        assert_eq!(spread.plan_pieces(1 << 20, 1, 1 << 30), (1, 1 << 20), "one link, one piece");
        for link in 0..4 {
            spread.mark_up(link, 1, 1, Instant(0));
        }
        for len in [0, 1, 4095, 65_536, 65_537, 1 << 20, (1 << 32) + 5] {
            let (count, piece) = spread.plan_pieces(len, 16_384, 1 << 30);
            assert!(count <= STRIPES_MAX as u64 && count * piece >= len, "{len}: {count} of {piece}");
            assert!(count == 1 || piece >= 16_384);
        }
        assert_eq!(spread.plan_pieces(1 << 20, 1, 4096), (256, 4096));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// So no line of NCCL's LL128 protocol is split; its flag could arrive before its data over another link.
        #[test]
        fn pieces_start_at_multiples_of_a_line(
            len in prop_oneof![0..1_u64 << 20, 0..=u64::MAX],
            links in 0..=LINKS_MAX,
            least in prop_oneof![1..=1_u64 << 20, 1..=1_u64 << 30],
            most in prop_oneof![LINE_BYTES..1_u64 << 20, LINE_BYTES..=u64::MAX],
        ) {
            let mut spread = LinkBalancer::new();
            (0..links).for_each(|link| spread.mark_up(link, 1, 1, Instant(0)));
            let (count, piece) = spread.plan_pieces(len, least, most);
            prop_assert!(piece <= most && piece > 0, "{count} pieces of {piece}");
            prop_assert!(count == 1 || piece % LINE_BYTES == 0, "{count} pieces of {piece}");
            prop_assert_eq!(count, len.div_ceil(piece).max(1));
            prop_assert!(count == 1 || piece >= least || piece + LINE_BYTES > most);
        }
    }
}
