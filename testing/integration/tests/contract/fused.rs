//! Virtual devices: several NICs fused to one by `makeVDevice`. The plugin has four NICs here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use trunkline_sys::nccl_net::ResultCode;

use crate::contract::arguments::text;
use crate::contract::messages::round;
use crate::net::{Net, logged};
use crate::raw::Props;
use crate::run::Scene;

scenarios! {
    virtual_devices_follow_physical_ones,
    impossible_member_lists_are_refused,
    older_versions_see_no_virtual_devices,
    virtual_devices_outlive_the_last_communicator,
    threads_fuse_beside_traffic,
    nics_without_a_pci_path_are_fused_only_on_request,
    fused_devices_connect_to_any_other,
}

/// NICs of the plugin.
const NICS: i32 = 4;

fn start(version: u8) -> Net {
    let net = Net::start(version);
    assert_eq!(net.devices(), NICS, "the scenario needs four NICs");
    net
}

/// Makes a virtual device.
#[track_caller]
fn fuse(net: &Net, members: &[i32]) -> i32 {
    net.make_v_device(members).expect("a version that fuses").expect("makeVDevice")
}

/// The members in the properties.
#[track_caller]
fn members(props: &Props) -> Vec<i32> {
    let (count, devs) = props.members.expect("a version whose properties contain members");
    devs[..usize::try_from(count).unwrap()].to_vec()
}

fn virtual_devices_follow_physical_ones(scene: Scene) {
    let net = start(scene.version);
    let physical: Vec<Props> = (0..NICS).map(|dev| net.props(dev).unwrap()).collect();
    let lists: [&[i32]; 6] = [&[0, 1], &[3, 1, 2], &[0, 1, 2, 3], &[1, 0], &[2], &[2, 3]];
    let mut told = Vec::new();
    for (at, list) in lists.iter().enumerate() {
        let dev = fuse(&net, list);
        assert_eq!(dev, NICS + at as i32, "device numbers are not consecutive");
        // NCCL computes the number of virtual devices from the difference to the earlier number.
        assert_eq!(net.devices(), dev + 1);
        let props = net.props(dev).unwrap();
        assert_eq!(members(&props), *list);
        let of: Vec<&Props> = list.iter().map(|&member| &physical[member as usize]).collect();
        let names: Vec<String> = of.iter().map(|member| text(member.name)).collect();
        assert_eq!(text(props.name), names.join("+"));
        assert_eq!(props.speed, of.iter().map(|member| member.speed).sum::<i32>());
        assert!(of.iter().all(|member| props.latency >= member.latency));
        assert!(of.iter().all(|member| props.max_comms <= member.max_comms) && props.max_comms > 0);
        // All other properties are the first member's.
        let first = *of[0];
        let same = Props {
            name: props.name,
            speed: props.speed,
            latency: props.latency,
            max_comms: props.max_comms,
            members: props.members,
            ..first
        };
        assert_eq!(props, same);
        told.push(props);
    }
    // Earlier devices are unchanged, with strings at the same addresses, and the same list of members returns the same device.
    for (at, list) in lists.iter().enumerate() {
        let dev = NICS + at as i32;
        assert_eq!(fuse(&net, list), dev);
        assert_eq!(net.props(dev), Ok(told[at]));
    }
    for (dev, props) in physical.iter().enumerate() {
        assert_eq!(net.props(dev as i32).as_ref(), Ok(props));
        assert_eq!(members(props), [dev as i32]);
    }
    assert_eq!(net.devices(), NICS + lists.len() as i32);
    assert_eq!(net.props(net.devices()), Err(ResultCode::INVALID_ARGUMENT));
    let count = net.devices();
    assert_eq!(net.on(count).try_listen().err(), Some(ResultCode::INVALID_ARGUMENT));
}

fn impossible_member_lists_are_refused(scene: Scene) {
    let net = start(scene.version);
    let made = fuse(&net, &[0, 1]);
    let wrong: [&[i32]; 11] = [
        &[],
        &[0, 0],
        &[0, 1, 2, 0],
        &[-1],
        &[0, -1],
        &[NICS + 1],
        &[i32::MAX, 0],
        &[i32::MIN],
        // Virtual devices cannot be members.
        &[made],
        &[2, made],
        // More members than the newest structure can hold.
        &[0, 1, 2, 3, 0, 1, 2, 3, 0],
    ];
    for members in wrong {
        let answer = net.make_v_device(members).unwrap();
        assert_eq!(answer, Err(ResultCode::INVALID_ARGUMENT), "{members:?}");
    }
    // The structure of version 12 holds more members than a comm uses.
    let many = net.make_v_device(&[0, 1, 2, 3, 0]).unwrap();
    if scene.version < 12 {
        assert_eq!(many, Err(ResultCode::INVALID_ARGUMENT));
    } else {
        assert_eq!(many, Err(ResultCode::INVALID_USAGE));
        assert_eq!(logged("at most 4 members"), 1);
    }
    assert_eq!(net.devices(), NICS + 1, "a refused request creates no device");
    net.on(made).messages();
}

impl Net {
    /// Connects its device to itself, and sends messages.
    #[track_caller]
    fn messages(&self) {
        let (send, recv) = self.to_self();
        [0, 1, 4000, 70_000, (1 << 21) + 5].into_iter().for_each(|len| round(self, (send, recv), len));
        self.close_send(send).unwrap();
        self.close_recv(recv).unwrap();
    }
}

fn nics_without_a_pci_path_are_fused_only_on_request(scene: Scene) {
    let net = start(scene.version);
    let count = net.devices();
    for members in [&[0, 1][..], &[3, 2, 1]] {
        assert_eq!(net.make_v_device(members).unwrap(), Err(ResultCode::INVALID_ARGUMENT), "{members:?}");
    }
    assert!(logged("TRUNKLINE_FUSE=all") >= 1, "the log line names the remedy");
    assert_eq!(net.devices(), count, "a refused request creates no device");
    // A device with a single member equals that member.
    let one = fuse(&net, &[2]);
    net.on(one).messages();
}

fn older_versions_see_no_virtual_devices(scene: Scene) {
    let net = start(scene.version);
    let dev = fuse(&net, &[1, 2]);
    let fused = net.on(dev);
    for version in 6..=8 {
        let old = Net::start(version);
        assert_eq!(old.devices(), NICS, "version {version}");
        assert_eq!(old.props(dev), Err(ResultCode::INVALID_ARGUMENT));
        assert!((0..NICS).all(|dev| old.props(dev).is_ok()));
        let old = old.on(dev);
        assert_eq!(old.try_listen().err(), Some(ResultCode::INVALID_ARGUMENT), "version {version}");
        let (listen, mut handle) = fused.listen();
        assert_eq!(old.try_connect(&mut handle), Err(ResultCode::INVALID_ARGUMENT), "version {version}");
        fused.close_listen(listen).unwrap();
        // A comm of a physical device connects to one of the fused device, in either direction.
        let old = old.on(NICS - 1);
        for (from, to) in [(&old, &fused), (&fused, &old)] {
            let (send, recv) = from.to(to);
            round(&fused, (send, recv), 100_000);
            from.close_send(send).unwrap();
            to.close_recv(recv).unwrap();
        }
    }
    for version in 9..=12 {
        let other = Net::start(version);
        assert_eq!(other.devices(), NICS + 1, "version {version}");
        assert_eq!(other.props(dev).map(|props| members(&props)), Ok(vec![1, 2]));
        assert_eq!(fuse(&other, &[1, 2]), dev);
        other.on(dev).messages();
    }
}

fn virtual_devices_outlive_the_last_communicator(scene: Scene) {
    let net = start(scene.version);
    let (pair, all) = (fuse(&net, &[0, 1]), fuse(&net, &[0, 1, 2, 3]));
    let told = [pair, all].map(|dev| net.props(dev).unwrap());
    let names = told.map(|props| text(props.name));
    let Some(ended) = net.finalize() else {
        // Without finalize the plugin is not notified that the last communicator ended: virtual devices stay unchanged.
        let again = Net::start(scene.version);
        assert_eq!(again.devices(), NICS + 2);
        assert_eq!([pair, all].map(|dev| again.props(dev).unwrap()), told);
        return;
    };
    ended.unwrap();
    for turn in 0..3 {
        let again = Net::start(scene.version);
        // A restarted NCCL core queries the number of physical devices; one that was not restarted keeps its device
        // numbers.
        assert_eq!(again.devices(), NICS, "turn {turn}");
        assert_eq!([pair, all].map(|dev| again.props(dev).unwrap()), told);
        assert_eq!(told.map(|props| text(props.name)), names);
        let second = Net::start(scene.version).on(all);
        second.messages();
        assert_eq!(fuse(&again, &[0, 1]), pair);
        assert_eq!(fuse(&again, &[0, 1, 2, 3]), all);
        // The end of another communicator changes nothing.
        second.finalize().unwrap().unwrap();
        assert_eq!(again.devices(), NICS + 2);
        let again = again.on(pair);
        again.messages();
        again.finalize().unwrap().unwrap();
    }
}

fn threads_fuse_beside_traffic(scene: Scene) {
    let net = start(scene.version);
    let pair = net.to_self();
    let stop = AtomicBool::new(false);
    let lists: [&[i32]; 5] = [&[0, 1], &[1, 2, 3], &[3, 0], &[2, 1, 0, 3], &[3]];
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                round(&net, pair, 50_000);
                rounds += 1;
            }
            rounds
        });
        let makers: Vec<_> = (0..4)
            .map(|first| {
                let net = &net;
                scope.spawn(move || {
                    // Each thread makes the devices in an order of its own, repeatedly.
                    (0..200)
                        .map(|at| (at + first) % 5)
                        .map(|at| (at, fuse(net, lists[at])))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let made: Vec<_> = makers.into_iter().map(|maker| maker.join()).collect();
        // Stop the traffic before an assertion here can fail: nothing else ends it.
        stop.store(true, Ordering::Relaxed);
        let mut numbers = [None; 5];
        for (at, dev) in made.into_iter().flat_map(Result::unwrap) {
            assert_eq!(*numbers[at].get_or_insert(dev), dev, "one number for one list");
        }
        for (at, dev) in numbers.into_iter().enumerate() {
            assert_eq!(members(&net.props(dev.unwrap()).unwrap()), lists[at]);
        }
        assert!(traffic.join().unwrap() > 0, "there was no traffic");
    });
    assert_eq!(net.devices(), NICS + 5);
}

fn fused_devices_connect_to_any_other(scene: Scene) {
    let shapes: [&[i32]; 6] = [&[0], &[2], &[0, 1], &[3, 2], &[1, 2, 3], &[3, 0, 2, 1]];
    let first = start(scene.version);
    let devs: Vec<i32> = shapes.iter().map(|members| fuse(&first, members)).collect();
    let physical = (0..NICS).chain(devs);
    let ends: Vec<Net> = physical.map(|dev| Net::start(scene.version).on(dev)).collect();
    for (at, from) in ends.iter().enumerate() {
        // Each end connects to some of the others and to itself.
        for to in ends.iter().skip(at % 3).step_by(3).chain([from]) {
            let (send, recv) = from.to(to);
            [0, 9, 5000, 300_000].into_iter().for_each(|len| round(from, (send, recv), len));
            from.close_send(send).unwrap();
            to.close_recv(recv).unwrap();
        }
    }
}
