//! Two cables, cut one after the other: while one of them is connected, the peer is alive and messages arrive.

use std::time::{Duration, Instant};

use trunkline_integration::testbed::{self, LineShape, Testbed};

use super::rails::{File, Pair, during};
use crate::run::Setting;
use crate::sharing::is_full;

/// Shortest time after which a silent link is considered dead.
const RAIL_TIME: Duration = Duration::from_secs(1);
/// The claim: time from the second cut until messages arrive again, in nine of ten rounds.
const CONTINUES: Duration = Duration::from_secs(2);
/// The limit in all rounds: on a busy machine, kernels retransmit later, and a cut is detected later.
const CONTINUES_BUSY: Duration = Duration::from_secs(2 + 4);
/// Time outside the claim: a busy machine may start late, and may notice the awaited event late.
const PATIENCE: Duration = Duration::from_secs(40);
/// More than the outstanding bytes, and than control streams and new links carry.
const BYTES: u64 = 256 << 10;

fn rounds() -> usize {
    if is_full() { 100 } else { 10 }
}

/// Longest time of one test.
fn limit(peer_time: Duration, gap: Duration) -> Duration {
    PATIENCE + (2 * peer_time + gap + PATIENCE / 4) * rounds() as u32
}

/// Both cables are in use, and no queue grows.
fn settle(setting: Setting, peer_time: Duration) -> Setting {
    let setting = setting.env("TRUNKLINE_RAIL_TIME_MS", RAIL_TIME.as_millis());
    let setting = setting.env("TRUNKLINE_PEER_TIME_MS", peer_time.as_millis());
    setting.env("TEST_LENGTH", 64 << 10).env("TEST_WINDOW", 2).env("TEST_REST_US", 10_000)
}

/// Each round starts with one cable that both ends have given up. It is connected again, and the other one is cut after `gap`.
fn second_cut(testbed: &mut Testbed, peer_time: Duration, gap: Duration) {
    let pair = Pair::new(testbed, &[LineShape::PLAIN; 2]);
    let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
    let setting = settle(setting, peer_time);
    during(setting.within(limit(peer_time, gap)), |file| {
        // Two connections with two links each, and one or two connections of the control stream.
        let wait = |count: u16| wait_for(file, count, peer_time);
        wait(2);
        pair.rails[0].cut();
        let mut times = Vec::new();
        for round in 0..rounds() {
            let (back, away) = (round % 2, 1 - round % 2);
            wait(1);
            pair.rails[back].mend();
            // Not a wait for an event: this time is varied.
            std::thread::sleep(gap);
            pair.rails[away].cut();
            let cut = Instant::now();
            pair.wait(&pair.left, back, BYTES, PATIENCE);
            pair.wait(&pair.right, back, BYTES, PATIENCE);
            times.push(cut.elapsed());
        }
        wait(1);
        pair.rails.iter().for_each(|rail| rail.mend());
        wait(2);
        times.sort();
        println!(
            "figure: peer time {peer_time:?}, second cut after {gap:?}: messages continue after {times:?}"
        );
        let (most, all) = (times[times.len() * 9 / 10 - 1], times[times.len() - 1]);
        assert!(
            most <= CONTINUES && all <= CONTINUES_BUSY,
            "messages continue too late after the second cut"
        );
    });
}

/// Waits until `cables` cables carry control streams and links.
#[track_caller]
fn wait_for(file: &File<'_>, cables: u16, peer_time: Duration) {
    let what = format!("{cables} cables");
    file.wait_until(&what, 2 * peer_time + PATIENCE, |carrying| {
        carrying.has_connections(cables) && carrying.links == 2 * u32::from(cables)
    });
}

/// Both cables are cut long enough for every link to be detected as silent, but for less than the peer time limit. The
/// peer stays alive, and its connections continue over the cable that is reconnected first.
#[test]
fn a_while_without_any_cable_loses_no_connection() {
    let (peer_time, dark) = (Duration::from_secs(10), 4 * RAIL_TIME);
    testbed::run_within(2 * limit(peer_time, dark), |testbed| {
        let pair = Pair::new(testbed, &[LineShape::PLAIN; 2]);
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
        let setting = settle(setting, peer_time);
        during(setting.within(limit(peer_time, dark)), |file| {
            for round in 0..rounds().min(20) {
                wait_for(file, 2, peer_time);
                pair.rails.iter().for_each(|rail| rail.cut());
                // The time for which both are cut, which is varied.
                std::thread::sleep(dark);
                let first = round % 2;
                pair.rails[first].mend();
                pair.wait(&pair.left, first, BYTES, PATIENCE);
                pair.wait(&pair.right, first, BYTES, PATIENCE);
                pair.rails[1 - first].mend();
            }
            wait_for(file, 2, peer_time);
        });
    });
}

macro_rules! second_cuts {
    ($($name:ident: $peer_s:literal s, $gap_ms:literal ms;)*) => {
        $(
            #[test]
            fn $name() {
                let (peer_time, gap) = (Duration::from_secs($peer_s), Duration::from_millis($gap_ms));
                testbed::run_within(2 * limit(peer_time, gap), |testbed| {
                    second_cut(testbed, Duration::from_secs($peer_s), Duration::from_millis($gap_ms));
                });
            }
        )*
    };
}

second_cuts! {
    a_second_cut_at_once_loses_no_peer_of_2_s: 2 s, 0 ms;
    a_second_cut_after_100_ms_loses_no_peer_of_2_s: 2 s, 100 ms;
    a_second_cut_after_1_s_loses_no_peer_of_2_s: 2 s, 1000 ms;
    a_second_cut_after_3_s_loses_no_peer_of_2_s: 2 s, 3000 ms;
    a_second_cut_at_once_loses_no_peer_of_10_s: 10 s, 0 ms;
    a_second_cut_after_100_ms_loses_no_peer_of_10_s: 10 s, 100 ms;
    a_second_cut_after_1_s_loses_no_peer_of_10_s: 10 s, 1000 ms;
    a_second_cut_after_3_s_loses_no_peer_of_10_s: 10 s, 3000 ms;
}
