//! What the simulated network is like in one run: guarantees, speeds and faults, drawn from the seed. Read by the
//! fabric and the host; never changes during a run.

use trunkline_fabric::{Caps, DeviceReach};

use crate::rng::SimRng;

/// Guarantees, speeds and faults of one run. Times are virtual nanoseconds; chances are per mille.
#[derive(Clone, Debug)]
pub struct NetworkModel {
    /// What every NIC says it guarantees, and does.
    pub caps: Caps,
    /// NICs of each process.
    pub nics: usize,
    /// Time from one NIC to another.
    pub latency: u64,
    /// How many times as long it takes from the NICs of each number; the last one stands for all that follow.
    pub slower: [u64; 4],
    /// Added to the latency at random, up to this.
    pub jitter: u64,
    /// Chance that an operation takes much longer.
    pub slow: u32,
    /// Time for 1024 bytes.
    pub kib_time: u64,
    /// Most pieces a write lands in.
    pub pieces: u64,
    /// How long a NIC tries to reach a peer that does not answer.
    pub retry_time: u64,
    /// How long a NIC retries a send that finds no receive; `None` is for ever.
    pub receiver_time: Option<u64>,
    /// Chance at each poll that the NIC takes no work for a while, although it has room.
    pub busy: u32,
    /// Links have to be dialled: one end dials, the other waits for it, and neither is up at once.
    pub dialled: bool,
    /// Most time until a dialled link answers.
    pub dial_time: u64,
    /// Chance that a dialled link never answers, although both processes live.
    pub no_route: u32,
    /// No NIC notices by itself that a rail has died.
    pub deaf: bool,
    /// A NIC whose link has come to its end says so by a number of its own.
    pub numbered: bool,
    /// Chance that a flush or a poll gives only part of what was posted to the network, or nothing.
    pub cramped: u32,
    /// Writes and sends up to this long are copied when they leave.
    pub copied_max: u64,
    /// A poll costs a system call, so that it is not for guesses.
    pub poll_is_call: bool,
    /// Matched operations cannot be taken back.
    pub keeps_matched: bool,
    /// Chance that a poll returns less than there is.
    pub short_poll: u32,
    /// Chance that the end of a registration finds a copy into it that does not end for a while.
    pub stuck: u32,
    /// How long it does not end, at most.
    pub stuck_time: u64,
    /// What is stuck is with the network, and not a copy of a peer's.
    pub drains: bool,
    /// Region addresses are virtual addresses instead of starting at 0.
    pub based: bool,
    /// Time of a frame on a control stream.
    pub stream_time: u64,
    /// Added to it at random, up to this.
    pub stream_jitter: u64,
    /// Chance that a frame is very late.
    pub stream_late: u32,
    /// Chance that a frame comes twice.
    pub stream_twice: u32,
    /// Chance that a frame never comes.
    pub stream_lost: u32,
    /// Frames that may wait on a stream.
    pub stream_depth: usize,
    /// How long until a stream's other end learns that its process died.
    pub death_notice: u64,
    /// Every poll advances the clock by this much, for callers that have no other clock; 0 if a driver does it.
    pub poll_time: u64,
}

impl NetworkModel {
    /// A network in good order with every optional ability, whose clock runs with the polls.
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

    /// The weather of a seed. No two abilities are tied, so that each combination comes up.
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
            // Where immediates wait for receives, NICs are told to try for ever.
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
    /// The same network, where completions do not tell of arrival: nor of refusals, nor of receives that are missing.
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

    /// The same network, whose NICs keep a word to themselves from when they read it until they have written it: what the CPU
    /// writes meanwhile is lost.
    #[must_use]
    pub fn with_incoherent_atomics(self) -> Self {
        Self { caps: Caps { atomics: true, coherent_atomics: false, ..self.caps }, ..self }
    }

    /// The same network, where a write cannot be asked to tell of its arrival.
    #[must_use]
    pub fn without_placed_writes(self) -> Self {
        Self { caps: Caps { placed_writes: false, ..self.caps }, ..self }
    }

    /// Some networks complete what they have taken. Drawn apart, so that seeds keep their meaning. Who waits to hear that the
    /// last of it has arrived hears it from a CLOSE, which is said once; streams that lose it are none.
    pub(crate) fn draw_arrival(&mut self, dice: &mut SimRng) {
        if dice.chance(250) && self.stream_lost == 0 {
            *self = self.clone().without_arrival();
        }
        if dice.chance(150) {
            *self = self.clone().without_immediates();
        }
        self.drains = dice.chance(300);
    }

    /// The same network, whose writes bring no immediates. Records are messages there, which wait for receives as long as those
    /// of other networks that wait for any.
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
    // Not drawn, so that seeds keep their meaning.
    let match_bits = if caps.inline_max < 192 { 40 } else { 64 };
    Caps { match_order: caps.link_order, match_bits, ..caps }
}
