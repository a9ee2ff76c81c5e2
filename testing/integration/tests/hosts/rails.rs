//! Two hosts joined by several cables: the share of each NIC of a comm over several NICs, and the effects of cut
//! cables. Control streams use the same cables.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use trunkline_integration::testbed::{self, LineShape, RelayCable, TestHost, Testbed};

use crate::hosts::stream::Carrying;
use crate::run::{Setting, scenario};

/// Bytes per second of a megabit per second.
const MEGABIT: u64 = 1_000_000 / 8;
/// Shortest time after which a silent link is considered dead.
const RAIL_TIME: Duration = Duration::from_secs(2);
/// Detection time of an end that only receives: it probes once a second, and four probes must stay unanswered.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Additional time for a busy machine, the kernel's whole seconds and the interval of checks.
const SLACK: Duration = Duration::from_secs(6);
/// Time until a mended link carries again: the pause before it is requested may have grown to 5 s.
const RETAKEN: Duration = Duration::from_secs(8);
/// Shortest time after which a silent host is given up.
const PEER_TIME: Duration = Duration::from_secs(2);
/// Time until a control connection over a dead cable is given up: its kernel probes once a second, and rounds up.
const GIVEN_UP: Duration = Duration::from_secs(2 * PEER_TIME.as_secs() + SLACK.as_secs());
const MIB: u64 = 1 << 20;

/// Two hosts and the cables between them.
pub(super) struct Pair {
    pub(super) left: TestHost,
    pub(super) right: TestHost,
    pub(super) rails: Vec<RelayCable>,
}

impl Pair {
    pub(super) fn new(testbed: &mut Testbed, shapes: &[LineShape]) -> Self {
        // Large packets, so that few are sent, because the testbed has few processors.
        testbed.mtu = 9000;
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let rails = shapes.iter().map(|shape| testbed.add_relay(&left, &right, *shape)).collect();
        Self { left, right, rails }
    }

    pub(super) fn setting(&self, name: &'static str) -> Setting {
        let count = self.rails.len();
        let setting = scenario(name).env("TRUNKLINE_FABRIC", "soft:tcp").env("NCCL_SOCKET_FAMILY", "AF_INET");
        let setting = setting.env("TRUNKLINE_RAIL_TIME_MS", RAIL_TIME.as_millis());
        setting.env("TEST_RAILS", format!("{count},{count}")).on([&self.left, &self.right])
    }

    /// Bytes that each rail has carried to the right host.
    fn carried(&self) -> Vec<u64> {
        self.rails.iter().map(|rail| rail.tally_from(&self.left).passed.bytes).collect()
    }

    /// Bytes that each rail carries to the right host within some time.
    fn carried_in(&self, time: Duration) -> Vec<u64> {
        let before = self.carried();
        std::thread::sleep(time);
        self.carried().iter().zip(before).map(|(now, before)| now - before).collect()
    }

    /// Waits until a rail has carried `bytes` more from a host; returns how long that took.
    #[track_caller]
    pub(super) fn wait(&self, from: &TestHost, rail: usize, bytes: u64, limit: Duration) -> Duration {
        let carried = || self.rails[rail].tally_from(from).passed.bytes;
        let (since, before) = (Instant::now(), carried());
        loop {
            let carried = carried() - before;
            if carried >= bytes {
                return since.elapsed();
            }
            assert!(since.elapsed() < limit, "rail {rail} carried {carried} bytes in {limit:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all rails are in use.
    #[track_caller]
    fn wait_for_all(&self) {
        (0..self.rails.len()).for_each(|rail| _ = self.wait(&self.left, rail, MIB, RETAKEN));
    }
}

/// The file whose creation ends a stream, or announces its failure. It is created on drop at the latest, so that a failed test ends soon.
pub(super) struct File<'a>(&'a Path);

impl File<'_> {
    fn make(&self) {
        std::fs::write(self.0, b"").unwrap();
    }

    /// Waits until both ends report those links and connections; returns how long that took.
    #[track_caller]
    pub(super) fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&Carrying) -> bool,
    ) -> Duration {
        let since = Instant::now();
        let folder = self.0.parent().unwrap();
        let said = || [0, 1].map(|role| Carrying::of(folder, role));
        while !said().iter().all(|said| said.as_ref().is_some_and(&is_so)) {
            assert!(since.elapsed() < limit, "not {what} after {limit:?}: {:?}", said());
            std::thread::sleep(Duration::from_millis(10));
        }
        since.elapsed()
    }

    /// Waits until `links` links of all connections carry at either end; returns how long that took.
    #[track_caller]
    fn wait_for_links(&self, links: u32, limit: Duration) -> Duration {
        self.wait_until(&format!("{links} links"), limit, |carrying| carrying.links == links)
    }

    /// Waits until each control stream has `of_each` connections that carry, at either end.
    #[track_caller]
    fn wait_for_connections(&self, of_each: u16) {
        let limit = GIVEN_UP.max(RETAKEN);
        let what = format!("{of_each} connections of each control stream");
        self.wait_until(&what, limit, |carrying| carrying.has_connections(of_each));
    }
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0, b"");
    }
}

/// Plays a stream and calls `act` meanwhile.
pub(super) fn during(setting: Setting, act: impl FnOnce(&File<'_>)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("told");
    let setting = setting.env("TEST_FILE", path.display()).env("TEST_SAYS", 1);
    std::thread::scope(|scope| {
        scope.spawn(|| setting.two());
        act(&File(&path));
    });
}

/// How often a share is measured before it counts as wrong: the machine may have other work.
const ATTEMPTS: usize = 4;

/// A stream over rails with these rates in megabits per second, low enough for a machine with two processors. At least
/// 40 % of their sum must arrive, and each rail must carry its share.
fn shares(testbed: &mut Testbed, megabits: &[u64]) {
    let shape = |&rate: &u64| LineShape { rate: Some(rate * MEGABIT), ..LineShape::PLAIN };
    let pair = Pair::new(testbed, &megabits.iter().map(shape).collect::<Vec<_>>());
    let sum = megabits.iter().sum::<u64>();
    let setting = pair.setting("a_stream_arrives_whole").env("TEST_LENGTH", MIB);
    during(setting.env("TEST_SPEED", sum * MEGABIT * 4 / 10 / 1_000_000), |_| {
        pair.wait_for_all();
        let time = Duration::from_secs(4);
        let fair = |carried: &[u64]| {
            let all = carried.iter().sum::<u64>();
            println!("figure: {megabits:?} Mbit/s carried {carried:?} in {time:?}");
            megabits.iter().zip(carried).all(|(&rate, &carried)| {
                let (share, fair) = (carried as f64 / all as f64, rate as f64 / sum as f64);
                (0.65..1.35).contains(&(share / fair))
            })
        };
        let measured = (0..ATTEMPTS).any(|_| fair(&pair.carried_in(time)));
        assert!(measured, "{megabits:?}: no rail carries its share");
    });
}

#[test]
fn equal_rails_carry_alike() {
    testbed::run(|testbed| shares(testbed, &[100, 100]));
}

#[test]
fn unequal_rails_carry_in_proportion() {
    testbed::run(|testbed| shares(testbed, &[50, 200]));
}

#[test]
fn four_unequal_rails_carry_in_proportion() {
    testbed::run(|testbed| shares(testbed, &[50, 25, 75, 50]));
}

#[test]
fn small_messages_use_the_fast_rail() {
    testbed::run(|testbed| {
        let delays = [20, 1].map(|ms| LineShape { delay: Duration::from_millis(ms), ..LineShape::PLAIN });
        let pair = Pair::new(testbed, &delays);
        // Messages one at a time, with pauses long enough for every link to become idle.
        for rest_us in [0, 50_000] {
            let setting =
                pair.setting("a_stream_arrives_whole").env("TEST_LENGTH", 3000).env("TEST_WINDOW", 1);
            during(setting.env("TEST_REST_US", rest_us), |_| {
                // Wait until both rates are known.
                std::thread::sleep(Duration::from_secs(1));
                let quick = || {
                    let carried = pair.carried_in(Duration::from_secs(3));
                    println!("figure: {rest_us} us between: slow and quick carried {carried:?}");
                    carried[1] > 5 * carried[0]
                };
                assert!((0..ATTEMPTS).any(|_| quick()), "{rest_us} us between: the slow rail carries more");
            });
        }
    });
}

/// If the network limits each stream, several links carry more.
#[test]
fn several_links_over_a_rail_carry_more_where_each_is_limited() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(100 * MEGABIT), each: true, ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape]);
        let carried = [1, 4].map(|links| {
            let setting = pair.setting("a_stream_arrives_whole").env("TEST_LENGTH", MIB);
            let mut carried = 0;
            during(setting.env("TRUNKLINE_LINKS_PER_RAIL", links), |_| {
                pair.wait(&pair.left, 0, MIB, RETAKEN);
                carried = pair.carried_in(Duration::from_secs(4))[0];
            });
            carried
        });
        println!("figure: one link and four carried {carried:?} bytes in 4 s");
        assert!(carried[1] > 2 * carried[0], "{carried:?}");
    });
}

/// Data flows to each address of the receiver's that the sender knows.
#[test]
fn any_numbers_of_rails_connect() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 4]);
        for (left, right) in [(1, 2), (2, 4), (4, 1), (2, 1)] {
            let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
            during(setting.env("TEST_RAILS", format!("{left},{right}")), |_| {
                (0..right).for_each(|rail| _ = pair.wait(&pair.left, rail, 4 * MIB, RETAKEN));
                (0..left).for_each(|rail| _ = pair.wait(&pair.right, rail, 4 * MIB, RETAKEN));
            });
        }
    });
}

#[test]
fn a_cut_rail_is_left_and_taken_back() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 2]);
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
        during(setting.env("TEST_PAUSE_MS", (RAIL_TIME + SLACK).as_millis()), |_| {
            for cut in [0, 1, 0] {
                pair.wait_for_all();
                pair.rails[cut].cut();
                // More than the outstanding bytes.
                let goes_on = pair.wait(&pair.left, 1 - cut, 16 * MIB, RAIL_TIME + SLACK);
                pair.rails[cut].mend();
                let back = pair.wait(&pair.left, cut, MIB, RETAKEN);
                println!(
                    "figure: rail {cut}: 16 MiB over the other {goes_on:?} after the cut, back {back:?} after it was mended"
                );
            }
        });
    });
}

/// Four connections on one group per direction: requests that were outstanding on the cut rail complete over the other one.
#[test]
fn members_of_a_group_leave_a_cut_rail_and_take_it_back() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 2]);
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both").env("TEST_WINDOW", 4);
        let setting = setting.env("TRUNKLINE_QP_SHARING", "on").env("TRUNKLINE_QP_GROUPS", 1);
        let setting = setting.env("TEST_STREAMS", 4).env("TEST_GROUPS", 2);
        during(setting.env("TEST_PAUSE_MS", (RAIL_TIME + SLACK).as_millis()), |file| {
            // Each of four connections has two links each way, at both ends.
            let wait = |links: u32| file.wait_for_links(links, RETAKEN);
            wait(16);
            for cut in [0, 1] {
                pair.rails[cut].cut();
                wait(8);
                let goes_on = pair.wait(&pair.left, 1 - cut, 16 * MIB, RAIL_TIME + SLACK);
                pair.rails[cut].mend();
                let back = wait(16);
                println!(
                    "figure: rail {cut} of a group: 16 MiB over the other {goes_on:?} after the members left it, all back {back:?} after it was mended"
                );
            }
        });
    });
}

/// The events of one rail in a trace. Times are in seconds.
#[derive(Default)]
struct Track {
    /// Events of its links, and when they happened.
    marks: Vec<(String, f64)>,
    /// Outcome, begin and end of its operations.
    slices: Vec<(String, f64, f64)>,
}

impl Track {
    fn of(trace: &Value, rail: usize) -> Self {
        let events = trace["traceEvents"].as_array().unwrap();
        let name = format!("soft{rail}");
        let named = |event: &&Value| event["name"] == "thread_name" && event["args"]["name"] == name;
        let tid = &events.iter().find(named).unwrap()["tid"];
        let seconds = |event: &Value, key: &str| event[key].as_f64().unwrap() / 1e6;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut track = Self::default();
        for event in events.iter().filter(|event| event["tid"] == *tid) {
            let (name, begin) = (text(&event["name"]), seconds(event, "ts"));
            match event["ph"].as_str().unwrap() {
                "i" if name.starts_with("link ") => track.marks.push((name, begin)),
                "X" => {
                    let end = begin + seconds(event, "dur");
                    track.slices.push((text(&event["args"]["status"]), begin, end));
                }
                _ => {}
            }
        }
        track
    }
}

#[test]
fn a_trace_shows_the_rail_that_was_cut() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 2]);
        let traces = tempfile::tempdir().unwrap();
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
        let setting = setting.env("TRUNKLINE_TRACE", traces.path().display());
        during(setting.env("TEST_PAUSE_MS", (RAIL_TIME + SLACK).as_millis()), |_| {
            pair.wait_for_all();
            pair.rails[1].cut();
            pair.wait(&pair.left, 0, 16 * MIB, RAIL_TIME + SLACK);
            pair.rails[1].mend();
            pair.wait(&pair.left, 1, 4 * MIB, RETAKEN);
        });
        let files: Vec<_> =
            std::fs::read_dir(traces.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        for file in files {
            let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
            assert_eq!(trace["otherData"]["processes"][0]["lost"], 0);
            let Track { marks, slices } = Track::of(&trace, 1);
            let at = |name: &str| marks.iter().find(|mark| mark.0 == name).map(|mark| mark.1);
            let gone = at("link lost").into_iter().chain(at("link fenced")).reduce(f64::min);
            let (Some(gone), Some(back)) = (gone, at("link up again")) else { panic!("{marks:?}") };
            assert!(gone < back, "{marks:?}");
            // Outstanding operations waited until the link was given up, and none began before it was back.
            let stuck = slices.iter().filter(|slice| slice.0 != "ok").map(|slice| slice.2 - slice.1);
            let longest = stuck.fold(0.0, f64::max);
            assert!(longest > RAIL_TIME.as_secs_f64() / 2.0, "{longest} s");
            let between = |slice: &&(String, f64, f64)| slice.1 > gone + 0.5 && slice.1 < back;
            assert_eq!(slices.iter().filter(between).count(), 0);
            assert!(
                slices.iter().any(|slice| slice.0 == "ok" && slice.1 > back),
                "the rail does not carry again"
            );
            let Track { marks, slices } = Track::of(&trace, 0);
            assert!(slices.iter().filter(between).count() > 0, "the other rail does not continue");
            assert!(!marks.iter().any(|mark| mark.0 == "link up again"), "{marks:?}");
        }
    });
}

/// Cuts one rail after another, some only briefly, some before the previous one is back.
#[test]
fn many_cuts_in_a_row_lose_nothing() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(100 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 4]);
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
        during(setting.env("TEST_PAUSE_MS", (3 * RAIL_TIME + SLACK).as_millis()), |_| {
            pair.wait_for_all();
            for (at, ms) in [50, 2700, 300, 1200, 700, 100, 3200, 1100].into_iter().enumerate() {
                // The last rail is not cut.
                let rail = &pair.rails[at % 3];
                rail.cut();
                std::thread::sleep(Duration::from_millis(ms));
                if at % 4 != 1 {
                    rail.mend();
                }
            }
            pair.rails.iter().for_each(|rail| rail.mend());
            pair.wait_for_all();
        });
    });
}

/// A stream with two rails; `cut` cuts some; every request fails once, at both ends.
fn fails(testbed: &mut Testbed, cut: impl FnOnce(&Pair, &File<'_>)) {
    let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
    let pair = Pair::new(testbed, &[shape; 2]);
    let setting = pair.setting("a_stream_fails_once").env("TEST_WAYS", "both");
    let setting = setting.env("TRUNKLINE_PEER_TIME_MS", PEER_TIME.as_millis());
    let limit = RAIL_TIME.max(IDLE_TIME) + PEER_TIME + SLACK;
    during(setting.env("TEST_LIMIT_MS", limit.as_millis()), |file| {
        pair.wait_for_all();
        cut(&pair, file);
        file.make();
    });
}

#[test]
fn with_all_rails_cut_every_request_fails_once() {
    testbed::run(|testbed| fails(testbed, |pair, _| pair.rails.iter().for_each(|rail| rail.cut())));
}

#[test]
fn with_one_rail_cut_after_another_every_request_fails_once() {
    testbed::run(|testbed| {
        fails(testbed, |pair, file| {
            pair.rails[0].cut();
            pair.wait(&pair.left, 1, 16 * MIB, RAIL_TIME + SLACK);
            pair.rails[0].mend();
            pair.wait(&pair.left, 0, MIB, RETAKEN);
            // Otherwise the last cut might disconnect a control stream on one path, and the peer would live longer.
            file.wait_for_connections(2);
            pair.rails[1].cut();
            pair.wait(&pair.left, 0, 16 * MIB, RAIL_TIME + SLACK);
            pair.rails[0].cut();
        });
    });
}

/// Comms on the second cable alone, to test the control connection over the first.
fn on_the_second(pair: &Pair, name: &'static str) -> Setting {
    let setting = pair.setting(name).env("TEST_WAYS", "both").env("TEST_FIRST", 1).env("TEST_RAILS", "1,1");
    setting.env("TRUNKLINE_PEER_TIME_MS", PEER_TIME.as_millis())
}

#[test]
fn a_peer_lives_while_one_cable_works() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(100 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 2]);
        // Cut before the two connect.
        pair.rails[0].cut();
        during(on_the_second(&pair, "a_stream_arrives_whole"), |file| {
            let goes_on = || _ = pair.wait(&pair.left, 1, 4 * MIB, RETAKEN);
            goes_on();
            file.wait_for_connections(1);
            // The first cable is mended, and then cut permanently.
            pair.rails[0].mend();
            file.wait_for_connections(2);
            pair.rails[0].cut();
            file.wait_for_connections(1);
            goes_on();
        });
    });
}

/// The cables of four interfaces carry control streams; that of a fifth carries data only.
#[test]
fn without_control_streams_every_request_fails_once() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 5]);
        let setting = on_the_second(&pair, "a_stream_fails_once").env("TEST_FIRST", 4);
        let limit = IDLE_TIME + PEER_TIME + SLACK;
        during(setting.env("TEST_LIMIT_MS", limit.as_millis()), |file| {
            pair.wait(&pair.left, 4, MIB, RETAKEN);
            file.wait_for_connections(4);
            pair.rails[1..4].iter().for_each(|rail| rail.cut());
            file.wait_for_connections(1);
            pair.wait(&pair.left, 4, 4 * MIB, RETAKEN);
            pair.rails[0].cut();
            file.make();
        });
    });
}

/// Cuts each rail for longer than a control connection survives; all connections are restored afterwards.
#[test]
fn long_cuts_of_rails_end_no_peer() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(100 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 2]);
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
        let setting = setting.env("TRUNKLINE_PEER_TIME_MS", PEER_TIME.as_millis());
        during(setting.env("TEST_PAUSE_MS", (RAIL_TIME + SLACK).as_millis()), |file| {
            for cut in [0, 1] {
                pair.wait_for_all();
                file.wait_for_connections(2);
                pair.rails[cut].cut();
                file.wait_for_connections(1);
                pair.wait(&pair.left, 1 - cut, 4 * MIB, RAIL_TIME + SLACK);
                pair.rails[cut].mend();
                file.wait_for_connections(2);
                pair.wait(&pair.left, cut, MIB, RETAKEN);
            }
        });
    });
}

fn ip(host: &TestHost, line: &str) {
    let status = host.call_on_host(|| Command::new("ip").args(line.split(' ')).status());
    assert!(status.unwrap().success(), "ip {line}");
}

#[test]
fn a_removed_interface_is_left_and_taken_back() {
    testbed::run(|testbed| {
        let shape = LineShape { rate: Some(200 * MEGABIT), ..LineShape::PLAIN };
        let pair = Pair::new(testbed, &[shape; 2]);
        let setting = pair.setting("a_stream_arrives_whole").env("TEST_WAYS", "both");
        during(setting.env("TEST_PAUSE_MS", (RAIL_TIME + SLACK).as_millis()), |_| {
            let changes = [
                ("link set rail0 down", "link set rail0 up", 0),
                ("addr del 10.77.1.1/24 dev rail1", "addr add 10.77.1.1/24 dev rail1", 1),
            ];
            for (away, back, gone) in changes {
                pair.wait_for_all();
                ip(&pair.left, away);
                let goes_on = pair.wait(&pair.left, 1 - gone, 16 * MIB, RAIL_TIME + SLACK);
                ip(&pair.left, back);
                let taken = pair.wait(&pair.left, gone, MIB, RETAKEN);
                println!(
                    "figure: {away}: 16 MiB over the other after {goes_on:?}, back {taken:?} after {back}"
                );
            }
        });
    });
}
