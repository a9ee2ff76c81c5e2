//! The lists of actions that the fuzz target of queue pairs begins with.

use trunkline_proto::fuzzing::{make_variants, write_script};

pub(super) fn action_seeds() -> Vec<Vec<u8>> {
    let send = 0;
    let receive = 1;
    let write = 2;
    let read = 4;
    let add = 5;
    let swap = 6;
    let poll = 7;
    let scribble = 9;
    let slot = 10;
    let fail = 13;
    let destroy = 14;
    let honest: Vec<[u8; 4]> = vec![
        [receive, 1, 8, 0],
        [receive, 1, 64, 0],
        [send, 0, 8, 1],
        [send, 0, 40, 2],
        [poll, 0, 0, 0],
        [poll, 1, 0, 0],
        [write, 0, 3, 200],
        [write, 0, 255, 7],
        [read, 0, 3, 100],
        [add, 0, 0, 5],
        [swap, 0, 0, 9],
        [write, 1, 9, 60],
        [send, 1, 200, 3],
        [receive, 0, 250, 0],
        [3, 0, 5, 30],
        [8, 0, 0, 0],
        [poll, 0, 0, 0],
        [poll, 1, 0, 0],
    ];
    let hostile: Vec<[u8; 4]> = vec![
        [receive, 0, 64, 0],
        [read, 0, 3, 100],
        [scribble, 0, 16, 200],
        [poll, 0, 0, 0],
        [slot, 0, 0, 1],
        [poll, 0, 0, 0],
        [slot, 0, 1, 2],
        [poll, 0, 0, 0],
        [slot, 0, 2, 70],
        [11, 0, 1, 255],
        [poll, 0, 0, 0],
        [scribble, 1, 0, 0],
        [poll, 1, 0, 0],
    ];
    let ended: Vec<[u8; 4]> = vec![
        [send, 0, 8, 1],
        [receive, 1, 8, 0],
        [write, 0, 9, 250],
        [fail, 0, 0, 0],
        [poll, 0, 0, 0],
        [poll, 1, 0, 0],
        [send, 1, 8, 0],
        [destroy, 0, 0, 0],
        [poll, 1, 0, 0],
        [destroy, 1, 0, 0],
    ];
    let more = 15;
    let altered = [[15, 0, 7, 1], [15, 1, 3, 128], [15, 0, 131, 255]];
    let to_send = 0;
    let to_receive = 1;
    let back = 2;
    // The number of a key is above those three.
    let key = |number: u8, what: u8| number << 2 | what;
    let matched: Vec<[u8; 4]> = vec![
        [more, 0, key(1, to_send), 40],
        [more, 1, key(2, to_receive), 64],
        [more, 1, key(1, to_receive), 64],
        [more, 0, key(2, to_send), 64],
        [8, 0, 0, 0],
        [more, 0, key(3, to_send), 90],
        [more, 1, key(3, to_receive), 9],
        [8, 0, 0, 0],
        [more, 0, key(1, to_send), 7],
        [more, 0, key(0, back), 0],
        [more, 1, key(1, to_receive), 7],
        [more, 1, key(0, back), 0],
        [more, 0, key(1, to_send), 5],
        [more, 1, key(1, to_receive), 5],
        [8, 0, 0, 0],
    ];
    let mut all = Vec::new();
    for how in 0..=3 {
        all.push(write_script(how, &matched));
    }
    for change in altered {
        let mut changed = honest.clone();
        changed.insert(6, change);
        all.push(write_script(2, &changed));
    }
    for how in 0..=3 {
        for script in [&honest, &hostile, &ended] {
            all.push(write_script(how, script));
        }
    }
    make_variants(&all).into_iter().take(48).collect()
}
