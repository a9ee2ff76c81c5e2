//! Puts and gets: of all sizes, with strides, from symmetric memory, and with invalid arguments.

use trunkline::{Compare, ElementRange, Error, SignalOp, Strides, World};

use crate::ranks::run;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at ^ at >> 7 ^ at >> 15) * 31 + seed) as u8).collect()
}

#[test]
fn puts_and_gets_move_bytes_of_all_sizes() {
    run("moving::puts_and_gets_move_bytes_of_all_sizes", 3, |world: World| {
        let (rank, size) = (world.rank(), world.size());
        let next = (rank + 1) % size;
        let before = (rank + size - 1) % size;
        let room = 700_000;
        let place = world.alloc::<u8>(room).unwrap();
        let own = world.alloc::<u8>(room).unwrap();
        // Lengths around the inline limit, one stage and two stages; and no bytes.
        for len in [0, 1, 8, 96, 97, 4096, 100_001, 262_144, 262_145, 600_000] {
            place.fill(0xee);
            world.barrier().unwrap();
            let from = bytes(len, rank);
            // The source of a put may be changed at once.
            let mut given = from.clone();
            world.put(next, place.at(7), &given).unwrap();
            given.fill(0xff);
            world.barrier().unwrap();
            let mut there = vec![0; len + 2];
            place.read(6, &mut there);
            assert_eq!((there[0], there[len + 1]), (0xee, 0xee), "{len}");
            assert!(there[1..=len] == bytes(len, before), "{len}");
            world.get(next, place.at(7), &mut given).unwrap();
            assert!(given == from, "{len}: got back");
            world.barrier().unwrap();
            // The same without copies.
            own.write(1, &bytes(len, rank + 10));
            world.put_nbi(next, place.at(3), own.at(1), len).unwrap();
            world.barrier().unwrap();
            let mut there = vec![0; len];
            place.read(3, &mut there);
            assert!(there == bytes(len, before + 10), "{len}: nbi");
            world.get_nbi(next, place.at(3), own.at(50_000), len).unwrap();
            world.quiet().unwrap();
            own.read(50_000, &mut there);
            assert!(there == bytes(len, rank + 10), "{len}: got nbi");
            world.barrier().unwrap();
        }
        world.finish().unwrap();
    });
}

#[test]
fn many_puts_share_a_stage() {
    run("moving::many_puts_share_a_stage", 2, |world: World| {
        for (each, count) in [(1000, 600), (100_000, 40)] {
            let all = world.alloc::<u8>(each * count).unwrap();
            if world.rank() == 0 {
                for at in 0..count {
                    world.put(1, all.at(at * each), &bytes(each, at)).unwrap();
                }
            }
            world.barrier().unwrap();
            if world.rank() == 1 {
                for (at, there) in all.to_vec().chunks(each).enumerate() {
                    assert!(there == bytes(each, at), "{at} of {each}");
                }
            }
        }
        world.finish().unwrap();
    });
}

#[test]
fn strides_are_kept_at_both_ends() {
    run("moving::strides_are_kept_at_both_ends", 2, |world: World| {
        let other = 1 - world.rank();
        let place = world.alloc::<i32>(5000).unwrap();
        let from: Vec<i32> = (0..5000).collect();
        for (remote, local, count) in
            [(1, 1, 700), (1, 3, 1600), (4, 1, 1100), (3, 2, 600), (5, 7, 1), (2, 2, 0)]
        {
            place.fill(-1);
            world.barrier().unwrap();
            let strides = Strides { remote, local };
            world.put_strided(other, place.at(9), &from, strides, count).unwrap();
            world.barrier().unwrap();
            let there = place.to_vec();
            for (at, value) in there.iter().enumerate() {
                let is_one = at >= 9 && (at - 9) % remote == 0 && (at - 9) / remote < count;
                let expected = if is_one { ((at - 9) / remote * local) as i32 } else { -1 };
                assert_eq!(*value, expected, "{strides:?}, place {at}");
            }
            let mut into = vec![-2; 5000];
            world.get_strided(other, place.at(9), &mut into, strides, count).unwrap();
            for (at, value) in into.iter().enumerate() {
                let is_one = at % local == 0 && at / local < count;
                assert_eq!(*value, if is_one { at as i32 } else { -2 }, "{strides:?}, element {at}");
            }
            world.barrier().unwrap();
        }
        let zero = Strides { remote: 0, local: 1 };
        assert!(world.put_strided(other, &place, &from, zero, 2).is_err());
        let far = Strides { remote: 1, local: 5000 };
        assert!(world.put_strided(other, &place, &from, far, 2).is_err());
        let far = Strides { remote: 5000, local: 1 };
        assert!(matches!(world.put_strided(other, &place, &from, far, 2), Err(Error::Range { .. })));
        world.finish().unwrap();
    });
}

#[test]
fn strided_gets_of_large_elements_stay_in_their_stage() {
    run("moving::strided_gets_of_large_elements_stay_in_their_stage", 2, |world: World| {
        let other = 1 - world.rank();
        let place = world.alloc::<[u64; 128]>(1200).unwrap();
        place.write(0, &(0..1200).map(|at| [at + world.rank() as u64; 128]).collect::<Vec<_>>());
        world.barrier().unwrap();
        // The stage of the last context is at the end of its heap. The elements of one call exceed a stage.
        let contexts: Vec<_> = (1..16).map(|_| world.context().unwrap()).collect();
        let mut into = vec![[0; 128]; 600];
        let strides = Strides { remote: 2, local: 1 };
        contexts[14].get_strided(other, &place, &mut into, strides, 600).unwrap();
        for (at, element) in into.iter().enumerate() {
            assert_eq!(*element, [2 * at as u64 + other as u64; 128], "element {at}");
        }
        drop(contexts);
        world.finish().unwrap();
    });
}

#[test]
fn signal_arrives_after_earlier_puts() {
    run("moving::signal_arrives_after_earlier_puts", 2, |world: World| {
        let other = 1 - world.rank();
        let data = world.alloc::<u64>(1000).unwrap();
        let own = world.alloc::<u64>(1000).unwrap();
        let count = world.alloc_one::<u64>().unwrap();
        let most = world.alloc_one::<u64>().unwrap();
        for round in 1..=200_u64 {
            let some = [round; 30];
            world.put(other, data.at(900), &some).unwrap();
            if round % 2 == 0 {
                own.fill(round);
                let from = ElementRange { first: own.at(0), count: 900 };
                world.put_signal_nbi(other, &data, from, &count, SignalOp::Add, 1).unwrap();
            } else {
                world.put_signal(other, &data, &[round; 900], &count, SignalOp::Add, 1).unwrap();
            }
            let seen = world.wait_until(&count, Compare::AtLeast, round, other).unwrap();
            assert_eq!(seen, round);
            let there = data.to_vec();
            assert!(there[..930].iter().all(|&value| value == round), "round {round}");
            // The other rank must not begin the next round before this one has read the data.
            world.barrier().unwrap();
        }
        for value in [5, 9, 7] {
            world.signal(other, &most, SignalOp::Max, value).unwrap();
        }
        world.signal(other, &count, SignalOp::Set, 3).unwrap();
        world.barrier().unwrap();
        assert_eq!((most.load(), count.load()), (9, 3));
        assert!(world.test(&most, Compare::NotEqual, 8).unwrap());
        assert!(!world.test(&most, Compare::Less, 9).unwrap());
        world.finish().unwrap();
    });
}

#[test]
fn errors_name_the_invalid_argument() {
    run("moving::errors_name_the_invalid_argument", 2, |world: World| {
        let place = world.alloc::<u32>(10).unwrap();
        let floats = world.alloc::<f32>(1).unwrap();
        let told = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert_eq!(
            told(world.put(2, &place, &[1])),
            "rank 2 is out of range: the world has 2, counted from 0"
        );
        let range = "2 elements from index 9 on exceed a symmetric object of 10";
        assert_eq!(told(world.put(1, place.at(9), &[1, 2])), range);
        assert_eq!(told(world.get(0, place.at(9), &mut [1, 2])), range);
        assert!(matches!(world.fetch(1, place.at(10)), Err(Error::Range { .. })));
        let turn = world.fetch_nbi(1, &floats, trunkline::FetchOp::Xor(1.0));
        assert_eq!(
            turn.unwrap_err().to_string(),
            "words with floating-point numbers support only fetch, set, swap and add"
        );
        assert_eq!(
            told(world.wait_until(&place, Compare::Equal, 1, 7).map(drop)),
            "rank 7 is out of range: the world has 2, counted from 0"
        );
        let full = told(world.alloc::<u64>(1 << 40).map(drop));
        assert!(full.contains("TRUNKLINE_HEAP_BYTES"), "{full}");
        world.finish().unwrap();
    });
}
