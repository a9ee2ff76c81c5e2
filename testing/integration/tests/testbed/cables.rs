//! Plain sockets over the cables of a testbed.

use std::io::Read as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use trunkline_integration::testbed::{self, LineShape};

use crate::traffic::{connect, datagrams, receive, round_trip, send, transfer};

const MIB: usize = 1 << 20;

/// Most bytes that the kernel sends by itself on a cable.
const NOISE: u64 = 8 << 10;

#[test]
fn both_kinds_carry_both_families() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let plain = testbed.add_veth(&left, &right);
        let relay = testbed.add_relay(&left, &right, LineShape::PLAIN);
        for cable in [&plain, &*relay] {
            for address in cable.end_at(&right).ip_addresses() {
                let (near, far) = connect(&left, &right, address);
                assert_eq!(near.peer_addr().unwrap().ip(), address);
                transfer(&near, &far, 4 * MIB);
            }
            for address in cable.end_at(&left).ip_addresses() {
                let (near, far) = connect(&right, &left, address);
                transfer(&near, &far, 100_000);
            }
        }
    });
}

#[test]
fn addresses_are_those_of_the_documentation() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let cables = [testbed.add_veth(&left, &right), testbed.add_veth(&right, &left)];
        let text = |cable: usize, host| {
            let end = cables[cable].end_at(host);
            format!("{} {} {}", end.device, end.v4, end.v6)
        };
        assert_eq!(text(0, &left), "rail0 10.77.0.1 fd77::1");
        assert_eq!(text(0, &right), "rail0 10.77.0.2 fd77::2");
        assert_eq!(text(1, &left), "rail1 10.77.1.2 fd77:0:0:1::2");
        assert_eq!(text(1, &right), "rail1 10.77.1.1 fd77:0:0:1::1");
        assert_eq!(cables[1].both_ends()[0].ip_addresses(), cables[1].end_at(&right).ip_addresses());
    });
}

#[test]
fn packets_fill_at_most_the_requested_mtu() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        for mtu in [1500, 9000] {
            testbed.mtu = mtu;
            let relay = testbed.add_relay(&left, &right, LineShape::PLAIN);
            let plain = testbed.add_veth(&left, &right);
            for cable in [&plain, &*relay] {
                let (near, far) = connect(&left, &right, cable.end_at(&right).v4.into());
                transfer(&near, &far, MIB);
                let path = format!("/sys/class/net/{}/mtu", cable.end_at(&left).device);
                let said = left.call_on_host(|| std::fs::read_to_string(path).unwrap());
                assert_eq!(said.trim(), mtu.to_string());
            }
            // TCP fills most of its packets.
            let passed = relay.tally_from(&left).passed;
            let average = passed.bytes / passed.packets;
            assert!(average > u64::from(mtu) / 2 && average <= u64::from(mtu), "{average} of {mtu}");
        }
    });
}

#[test]
fn counters_identify_the_cable_that_carried_bytes() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let relay = testbed.add_relay(&left, &right, LineShape::PLAIN);
        let cables = [&testbed.add_veth(&left, &right), &testbed.add_veth(&left, &right), &*relay];
        for (at, bytes) in [(0, MIB), (2, 2 * MIB)] {
            let (near, far) = connect(&left, &right, cables[at].end_at(&right).v4.into());
            transfer(&near, &far, bytes);
        }
        let sent = cables.map(|cable| cable.device_counters(&left).sent.bytes);
        let received = cables.map(|cable| cable.device_counters(&right).received.bytes);
        for bytes in [sent, received] {
            let mib = MIB as u64;
            // TCP may send some of them twice; bytes of the other cable would be more.
            assert!((mib..2 * mib).contains(&bytes[0]), "{bytes:?}");
            assert!(bytes[1] < NOISE, "{bytes:?}");
            assert!((2 * mib..3 * mib).contains(&bytes[2]), "{bytes:?}");
        }
        let tally = relay.tally_from(&left);
        assert!(tally.passed.bytes >= 2 * MIB as u64 && tally.passed.packets >= 2 * MIB as u64 / 1500);
        assert_eq!((tally.lost, tally.dropped, tally.cut), (0, 0, 0));
        // Acknowledgements used the other direction.
        assert!(cables[2].device_counters(&left).received.packets > 10);
    });
}

#[test]
fn a_delay_holds_both_ways() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let delay = Duration::from_millis(20);
        let cable = testbed.add_relay(&left, &right, LineShape { delay, ..LineShape::PLAIN });
        let (near, far) = connect(&left, &right, cable.end_at(&right).v4.into());
        let both = round_trip(&near, &far);
        assert!((2 * delay..2 * delay + delay).contains(&both), "{both:?}");
        cable.set_shape_from(&right, LineShape::PLAIN);
        let one = round_trip(&near, &far);
        assert!((delay..2 * delay).contains(&one), "{one:?}");
        cable.set_shape(LineShape::PLAIN);
        let none = round_trip(&near, &far);
        assert!(none < delay / 2, "{none:?}");
    });
}

#[test]
fn a_rate_limits_each_direction() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let rate = 10_000_000;
        let cable = testbed.add_relay(&left, &right, LineShape { rate: Some(rate), ..LineShape::PLAIN });
        let (near, far) = connect(&left, &right, cable.end_at(&right).v6.into());
        let bytes = 8_000_000;
        let took = std::thread::scope(|scope| {
            scope.spawn(|| send(&near, bytes));
            scope.spawn(|| send(&far, bytes));
            let other = scope.spawn(|| receive(&near, bytes));
            [receive(&far, bytes), other.join().unwrap()]
        });
        // No faster than the rate, and, with load on all cores, not many times slower.
        let least = Duration::from_secs_f64(bytes as f64 / rate as f64);
        assert!(took.iter().all(|took| (least..6 * least).contains(took)), "{took:?}, at least {least:?}");
        cable.set_shape(LineShape::PLAIN);
        let (near, far) = connect(&left, &right, cable.end_at(&right).v6.into());
        let took = transfer(&near, &far, bytes);
        assert!(took < least / 2, "{took:?} without a limit");
    });
}

#[test]
fn tcp_survives_losses() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let shape = LineShape { loss: 0.02, jitter: Duration::from_micros(100), ..LineShape::PLAIN };
        let cable = testbed.add_relay(&left, &right, shape);
        let (near, far) = connect(&left, &right, cable.end_at(&right).v4.into());
        transfer(&near, &far, 8 * MIB);
        let tally = cable.tally_from(&left);
        let share = tally.lost as f64 / (tally.lost + tally.passed.packets) as f64;
        assert!((0.01..0.03).contains(&share), "{share}: {tally:?}");
        assert!(cable.tally_from(&right).lost > 0, "{:?}", cable.tally_from(&right));
    });
}

#[test]
fn a_cut_cable_stops_bytes_until_it_is_mended() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let shape = LineShape { delay: Duration::from_millis(2), rate: Some(20_000_000), ..LineShape::PLAIN };
        let cable = testbed.add_relay(&left, &right, shape);
        let (near, far) = connect(&left, &right, cable.end_at(&right).v4.into());
        let bytes = 4 * MIB;
        std::thread::scope(|scope| {
            scope.spawn(|| send(&near, bytes));
            scope.spawn(|| receive(&far, bytes));
            while cable.device_counters(&right).received.bytes < MIB as u64 {
                std::thread::sleep(Duration::from_millis(1));
            }
            cable.cut();
            let [came, left_us] = [cable.tally_from(&left).passed, cable.device_counters(&left).sent];
            let before = cable.device_counters(&right).received;
            std::thread::sleep(Duration::from_millis(400));
            assert_eq!(cable.tally_from(&left).passed, came);
            assert_eq!(cable.device_counters(&right).received, before);
            assert!(before.bytes < bytes as u64, "all bytes arrived before the cut");
            assert!(cable.device_counters(&left).sent.packets > left_us.packets, "TCP tries again");
            assert!(cable.tally_from(&left).cut > 0);
            cable.mend();
        });
        assert!(cable.device_counters(&right).received.bytes > bytes as u64);
    });
}

#[test]
fn one_direction_can_be_cut() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let cable = testbed.add_relay(&left, &right, LineShape::PLAIN);
        let address = |host| IpAddr::from(cable.end_at(host).v4);
        let wait = Duration::from_millis(200);
        let (near, far) = datagrams((&left, address(&left)), (&right, address(&right)), wait);
        let passes = |from: &std::net::UdpSocket, to: &std::net::UdpSocket| {
            from.send(b"hello").unwrap();
            to.recv(&mut [0; 8]).is_ok()
        };
        assert!(passes(&near, &far) && passes(&far, &near));
        cable.cut_from(&left);
        assert!(!passes(&near, &far) && passes(&far, &near));
        cable.mend();
        assert!(passes(&near, &far) && passes(&far, &near));
        cable.cut_from(&right);
        assert!(passes(&near, &far) && !passes(&far, &near));
    });
}

#[test]
fn a_cut_cable_delivers_no_packet_in_flight() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let delay = Duration::from_millis(50);
        let cable = testbed.add_relay(&left, &right, LineShape { delay, ..LineShape::PLAIN });
        let (mut near, mut far) = connect(&left, &right, cable.end_at(&right).v4.into());
        near.write_all(b"under way").unwrap();
        while cable.device_counters(&left).sent.bytes == 0 {}
        std::thread::sleep(delay / 5);
        cable.cut();
        far.set_read_timeout(Some(4 * delay)).unwrap();
        far.read_exact(&mut [0]).unwrap_err();
        cable.mend();
        // TCP retransmits it.
        far.set_read_timeout(Some(crate::traffic::LIMIT)).unwrap();
        let mut said = [0; 9];
        far.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"under way");
    });
}

#[test]
fn rails_of_two_hosts_differ() {
    testbed::run(|testbed| {
        let (left, right) = (testbed.add_host("left"), testbed.add_host("right"));
        let slow = LineShape { rate: Some(2_000_000), delay: Duration::from_millis(5), ..LineShape::PLAIN };
        let rails = [
            testbed.add_relay(&left, &right, LineShape { rate: Some(8_000_000), ..LineShape::PLAIN }),
            testbed.add_relay(&left, &right, slow),
            testbed.add_relay(&left, &right, LineShape::PLAIN),
        ];
        rails[2].cut();
        let begun = Instant::now();
        let took: Vec<Duration> = std::thread::scope(|scope| {
            let one = |at: usize| {
                let (near, far) = connect(&left, &right, rails[at].end_at(&right).v4.into());
                scope.spawn(move || transfer(&near, &far, 2_000_000))
            };
            [one(0), one(1)].map(|thread| thread.join().unwrap()).into()
        });
        assert!(took[0] >= Duration::from_millis(250), "{took:?}");
        assert!(took[1] >= Duration::from_millis(1000) && took[1] > 2 * took[0], "{took:?}");
        assert!(begun.elapsed() >= took[1]);
        assert_eq!(rails[2].tally_from(&left).passed.packets, 0);
    });
}
