//! The model of the simulated network in one run: guarantees, speeds and faults, drawn from the seed. Read by the
//! fabric and the host; never changes during a run.

use trunkline_fabric::{Caps, DeviceReach};

use crate::rng::SimRng;

/// Guarantees, speeds and faults of one run. Times are virtual nanoseconds; chances are per mille.
#[derive(Clone, Debug)]
pub struct NetworkModel {
    /// The capabilities that every NIC reports and fulfils.
    pub caps: Caps,
    /// NICs of each process.
    pub nics: usize,
    /// Latency from one NIC to another.
    pub latency: u64,
    /// Latency factor of the NICs of each number; the last one applies to all further NICs.
    pub slower: [u64; 4],
    /// Random addition to the latency, at most.
    pub jitter: u64,
    /// Chance that an operation takes much longer.
    pub slow: u32,
    /// Time for 1024 bytes.
    pub kib_time: u64,
    /// Pieces in which a write lands, at most.
    pub pieces: u64,
    /// How long a NIC tries to reach a peer that does not respond.
    pub retry_time: u64,
    /// How long a NIC retries a send without a receive; `None`: without limit.
    pub receiver_time: Option<u64>,
    /// Chance at each poll that the NIC accepts no work for a while, although it has room.
    pub busy: u32,
    /// Whether links must be dialled: one end dials, the other waits for it, and neither is up at once.
    pub dialled: bool,
    /// Time until a dialled link responds, at most.
    pub dial_time: u64,
    /// Chance that a dialled link never responds, although both processes are alive.
    pub no_route: u32,
    /// Whether no NIC detects by itself that a rail has died.
    pub deaf: bool,
    /// Whether a NIC reports an ended link with a vendor status.
    pub numbered: bool,
    /// Chance that a flush or a poll passes only a part of the posted operations to the network, or none.
    pub cramped: u32,
    /// Writes and sends up to this length are copied when they leave.
    pub copied_max: u64,
    /// Whether a poll costs a system call, so that engines must not poll speculatively.
    pub poll_is_call: bool,
    /// Whether matched operations cannot be cancelled.
    pub keeps_matched: bool,
    /// Chance that a poll returns fewer completions than there are.
    pub short_poll: u32,
    /// Chance that a deregistration finds a copy into the region that does not end for a while.
    pub stuck: u32,
    /// How long such a copy lasts, at most.
    pub stuck_time: u64,
    /// Whether a stuck copy is the network's, and not a peer's.
    pub drains: bool,
    /// Whether region addresses are virtual addresses instead of starting at 0.
    pub based: bool,
    /// Latency of a frame on a control stream.
    pub stream_time: u64,
    /// Random addition to that latency, at most.
    pub stream_jitter: u64,
    /// Chance that a frame is very late.
    pub stream_late: u32,
    /// Chance that a frame arrives twice.
    pub stream_twice: u32,
    /// Chance that a frame never arrives.
    pub stream_lost: u32,
    /// Frames that may be queued on a stream.
    pub stream_depth: usize,
    /// How long after the death of a process its streams close at the other end.
    pub death_notice: u64,
    /// Every poll advances the clock by this, for callers without another clock; 0 if a driver advances it.
    pub poll_time: u64,
}

impl NetworkModel {
    /// Returns a fault-free network with every optional capability, whose clock advances with the polls.
    #[must_use]
    pub fn fault_free() -> Self {
        Self {
            caps: Caps {
                link_order: true,
                remote_len: true,
                needs_flush: false,
                devices: DeviceReach::default(),
                matched: true,
                match_order: true,
                match_bits: 64,
                atomics: true,
                coherent_atomics: true,
                offloads_atomics: true,
                wait: false,
                retires: true,
                ends_are_told: true,
                refusals_are_told: true,
                errors_reach_peers: true,
                sends_wait: true,
                arrives: true,
                placed_writes: false,
                immediate_takes_receive: false,
                write_data: true,
                inline_max: 256,
                message_max: 1 << 40,
                depth_max: 1024,
                links_max: 4096,
                pipelines: 1,
                completions_max: 4096,
                unseen: false,
                receives_max: u32::MAX,
                regions_max: 4096,
            },
            nics: 1,
            latency: 1_000,
            slower: [1; 4],
            jitter: 0,
            slow: 0,
            kib_time: 20,
            pieces: 2,
            retry_time: 100_000_000,
            receiver_time: None,
            busy: 0,
            dialled: false,
            dial_time: 0,
            no_route: 0,
            deaf: false,
            numbered: false,
            cramped: 0,
            copied_max: 0,
            poll_is_call: false,
            keeps_matched: false,
            short_poll: 0,
            stuck: 0,
            stuck_time: 3_000_000_000,
            drains: false,
            based: false,
            stream_time: 10_000,
            stream_jitter: 0,
            stream_late: 0,
            stream_twice: 0,
            stream_lost: 0,
            stream_depth: 1024,
            death_notice: 1_000_000,
            poll_time: 500,
        }
    }

    /// Draws the network of a seed. Capabilities are drawn independently, so that each combination occurs.
    #[must_use]
    pub fn from_rng(dice: &mut SimRng) -> Self {
        let latency = dice.pick([100, 500, 1_000, 5_000, 20_000]);
        let caps = draw_caps(dice);
        Self {
            caps,
            nics: dice.pick([1, 1, 2]),
            latency,
            slower: [1; 4],
            jitter: dice.pick([0, latency / 4, latency, latency * 4]),
            slow: dice.pick([0, 0, 10, 50, 200]),
            kib_time: dice.pick([0, 20, 80, 400, 2_000]),
            pieces: dice.pick([1, 2, 3, 8]),
            retry_time: dice.pick([1_000_000, 50_000_000, 1_000_000_000, 4_000_000_000]),
            // If immediates wait for receives, NICs are configured to retry without limit.
            receiver_time: dice
                .pick([None, None, Some(1_000_000_000)])
                .filter(|_| !caps.immediate_takes_receive),
            busy: dice.pick([0, 0, 20, 200]),
            dialled: dice.coin(),
            dial_time: dice.pick([0, 0, 100_000, 20_000_000, 3_000_000_000]),
            no_route: dice.pick([0, 0, 0, 0, 0, 0, 0, 100]),
            deaf: false,
            numbered: false,
            cramped: dice.pick([0, 0, 100, 700]),
            copied_max: dice.pick([0, 0, 1_000, u64::MAX]),
            poll_is_call: dice.coin(),
            keeps_matched: false,
            short_poll: dice.pick([0, 100, 500]),
            stuck: dice.pick([0, 500]),
            stuck_time: 3_000_000_000,
            drains: false,
            based: dice.coin(),
            stream_time: dice.pick([1_000, 20_000, 200_000]),
            stream_jitter: dice.pick([0, 10_000, 1_000_000]),
            stream_late: dice.pick([0, 0, 20, 200]),
            stream_twice: 0,
            stream_lost: 0,
            stream_depth: 1024,
            death_notice: dice.pick([0, 100_000, 50_000_000, 2_000_000_000]),
            poll_time: 0,
        }
    }
}

impl NetworkModel {
    /// Changes the network so that completions prove neither arrival, nor refusals, nor missing receives.
    #[must_use]
    pub fn without_arrival(self) -> Self {
        let caps = Caps {
            arrives: false,
            placed_writes: true,
            refusals_are_told: false,
            sends_wait: false,
            ..self.caps
        };
        Self { caps, ..self }
    }

    /// Changes the network so that a NIC caches a word between reading and writing it: CPU writes in between are
    /// lost.
    #[must_use]
    pub fn with_incoherent_atomics(self) -> Self {
        Self { caps: Caps { atomics: true, coherent_atomics: false, ..self.caps }, ..self }
    }

    /// Changes the network so that a write cannot request a completion on arrival.
    #[must_use]
    pub fn without_placed_writes(self) -> Self {
        Self { caps: Caps { placed_writes: false, ..self.caps }, ..self }
    }

    /// Makes some networks complete operations that they have accepted before they arrive. Drawn separately, so that
    /// seeds keep their meaning. An end that waits for the arrival of its last message depends on a CLOSE, which is
    /// sent once, so streams that lose frames are excluded.
    pub(crate) fn draw_arrival(&mut self, dice: &mut SimRng) {
        if dice.chance(250) && self.stream_lost == 0 {
            *self = self.clone().without_arrival();
        }
        if dice.chance(150) {
            *self = self.clone().without_immediates();
        }
        self.drains = dice.chance(300);
    }

    /// Changes the network so that writes carry no immediates. Records are messages then. They wait for receives
    /// without limit.
    #[must_use]
    pub fn without_immediates(self) -> Self {
        let caps = Caps { write_data: false, immediate_takes_receive: false, ..self.caps };
        Self { caps, receiver_time: None, ..self }
    }
}

fn draw_caps(dice: &mut SimRng) -> Caps {
    let caps = Caps {
        link_order: dice.coin(),
        remote_len: dice.coin(),
        needs_flush: dice.coin(),
        devices: DeviceReach::default(),
        matched: dice.coin(),
        match_order: true,
        match_bits: 64,
        atomics: dice.coin(),
        coherent_atomics: true,
        offloads_atomics: true,
        wait: false,
        retires: dice.coin(),
        ends_are_told: true,
        refusals_are_told: true,
        errors_reach_peers: true,
        sends_wait: true,
        arrives: true,
        placed_writes: false,
        immediate_takes_receive: dice.coin(),
        write_data: true,
        inline_max: dice.pick([64, 128, 192, 256, 1024]),
        message_max: dice.pick([512, 1_000, 4096, 65_536, 1 << 30, 1 << 40]),
        depth_max: dice.pick([32, 32, 64, 256, 1024]),
        links_max: dice.pick([64, 256, 4096]),
        pipelines: 1,
        completions_max: dice.pick([4, 16, 64, 256, 4096]),
        unseen: false,
        receives_max: u32::MAX,
        regions_max: dice.pick([256, 1024, 65_536]),
    };
    // Derived and not drawn, so that seeds keep their meaning.
    let match_bits = if caps.inline_max < 192 { 40 } else { 64 };
    Caps { match_order: caps.link_order, match_bits, ..caps }
}
