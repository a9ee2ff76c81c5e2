//! Runs in which processes share queue pairs: their sharing parameters, and enough comms for groups with several
//! members. Drawn from a random stream of its own, so that the rest of a run does not depend on it.

use trunkline_engine::SharingParams;
use trunkline_proto::pool::config::SharingMode;

use crate::SimRng;
use crate::scenario::{CommPlan, PlannedMessage, RunScenario};

/// Regions that a NIC has at least, for all those comms.
const REGIONS_MIN: u32 = 4096;

impl RunScenario {
    /// Makes processes share in some runs, each with its own parameters.
    pub(crate) fn draw_sharing(&mut self, dice: &mut SimRng) {
        self.sharing = vec![SharingParams::default(); self.processes];
        // Frames about groups are sent once, so streams that lose frames are excluded.
        if !dice.chance(450) || self.weather.stream_lost > 0 {
            return;
        }
        // Members need room for the messages that their NIC matches.
        if self.engine.by_nic && dice.chance(700) {
            let caps = &mut self.weather.caps;
            (caps.depth_max, caps.completions_max) = (dice.pick([1152, 2048]), 4096);
        }
        let one_sided = dice.chance(100);
        for at in 0..self.processes {
            let how = draw_how(dice);
            if !(one_sided && at == 0) {
                self.sharing[at] = how;
            }
        }
        self.weather.caps.regions_max = self.weather.caps.regions_max.max(REGIONS_MIN);
        let endings = dice.pick([0, 0, 250, 600]);
        for _ in 0..dice.pick([2, 3, 5, 7]) {
            let comm = self.draw_rider(dice, endings);
            self.comms.push(comm);
        }
    }

    /// Draws a further comm between the same two processes, mostly over the same NICs.
    fn draw_rider(&self, dice: &mut SimRng, endings: u32) -> CommPlan {
        let mut comm = CommPlan::from_rng(dice, self.processes, self.weather.nics);
        let model = &self.comms[dice.below(self.comms.len().min(2) as u64) as usize];
        (comm.from, comm.to) = (model.from, model.to);
        if dice.chance(850) {
            comm.from_nics = model.from_nics[..1].to_vec();
            comm.to_nics = model.to_nics[..1].to_vec();
        }
        if dice.chance(200) {
            (comm.from, comm.to) = (model.to, model.from);
            std::mem::swap(&mut comm.from_nics, &mut comm.to_nics);
        }
        comm.groups.truncate(dice.pick([4, 12, 40]));
        if dice.chance(250) {
            let size = dice.between(30_000, 300_000);
            let tag = comm.groups[0][0].tag;
            comm.groups.push(vec![PlannedMessage { tag, size, room: size + dice.pick([0, 0, 100]) }]);
        }
        // Comms open and close while others stay.
        for side in [&mut comm.sender, &mut comm.receiver] {
            side.start = dice.pick([0, 0, 50_000, 500_000, 2_000_000, 20_000_000]);
        }
        if dice.chance(endings) {
            comm.draw_ending(dice);
        }
        // A close that does not wait for other members cannot wait for a stuck copy.
        comm.settles = dice.chance(900) || self.weather.stuck > 0;
        comm
    }

    /// Returns the sharing parameters. No process shares if the NIC matches messages and completes them before they
    /// meet a receive. Nor does any if its queues have no room for a grouped receive and one more operation of each
    /// of 128 members.
    pub(crate) fn sharing_that_fits(&self) -> Vec<SharingParams> {
        let caps = &self.weather.caps;
        let paired = self.engine.by_nic && caps.matched && caps.link_order && caps.message_max >= 1 << 30;
        let room = caps.depth_max.min(caps.completions_max) / 128;
        match paired && (room < 9 || !caps.arrives) {
            true => vec![SharingParams::default(); self.processes],
            false => self.sharing.clone(),
        }
    }

    /// Whether any process shares.
    pub(crate) fn has_sharing(&self) -> bool {
        self.sharing.iter().any(|sharing| sharing.sharing != SharingMode::Off)
    }
}

fn draw_how(dice: &mut SimRng) -> SharingParams {
    SharingParams {
        sharing: dice.pick([
            SharingMode::On,
            SharingMode::On,
            SharingMode::On,
            SharingMode::Auto,
            SharingMode::Off,
        ]),
        groups: dice.pick([1, 1, 2, 4, 8]),
        depth_multiplier: dice.pick([1, 1, 2, 4]),
        budget: dice.pick([0, 0, 0, 3, 8, 20]),
    }
}
