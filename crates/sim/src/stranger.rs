//! Somebody who found a control address and is not one of us: sends garbage, half a hello, another version, a hello
//! in the name of one of us, or its own and then asks with a wrong nonce or speaks about connections of others, whose
//! ids are small numbers. Whatever it does, the job must not notice.

use trunkline_fabric::{Frame, Oob, OobAddress, OobStream};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::frame::{self, Answer, Open, Region, Reply, VERSION};
use trunkline_proto::wire::share::{self, Given, Mode, Offer, Request};

use crate::{Dice, Pid, SimOob, SimStream, World};

/// A stranger with its open stream.
pub(crate) struct Stranger {
    _stream: SimStream,
}

impl Stranger {
    /// Connects to some listener and says something; `None` if nobody listens. It knows the names of `others`, because
    /// each of them tells its name to whoever calls.
    pub(crate) fn call(world: &World, process: Pid, seed: u64, others: &[ProcessId]) -> Option<Self> {
        let dice = &mut Dice::new(seed, 7);
        let addresses = world.listening();
        let address: &OobAddress = addresses.get(dice.below(addresses.len() as u64) as usize)?;
        let mut stream = SimOob::stranger(world, process).connect(address).ok()?;
        for bytes in speech(dice, others) {
            let _ = stream.send(Frame { bytes, fd: None });
        }
        dice.coin().then_some(Self { _stream: stream })
    }
}

fn speech(dice: &mut Dice, others: &[ProcessId]) -> Vec<Vec<u8>> {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&dice.draw().to_le_bytes());
    let process = ProcessId(name);
    let offer = Offer { groups: 4 };
    let hello = |min, max| frame::Frame::Hello { min, max, offer, process }.to_bytes();
    // The first places of the tables of comms and attempts, in their first use.
    let comm = 1 << 16 | dice.below(4);
    let conn = 1 << 32 | dice.below(4);
    let nowhere = Region { key: dice.draw(), addr: dice.draw() };
    let listen = dice.draw();
    let open = frame::Frame::Open(Open {
        conn: dice.draw(),
        listen: dice.pick([0, 1 << 32, listen]),
        nonce: name,
        matched: false,
        near: dice.below(2) == 1,
        links: 1,
        mailbox: nowhere,
        link: vec![7; 20],
        share: Request { mode: Mode::Alone, turn: 0 },
    });
    match dice.below(11) {
        0 => vec![],
        1 => vec![(0..dice.below(200)).map(|_| dice.draw() as u8).collect()],
        2 => {
            let mut half = hello(VERSION, VERSION);
            half.truncate(dice.below(half.len() as u64) as usize);
            vec![half]
        }
        3 => vec![hello(VERSION + 1, 9), open.to_bytes()],
        4 => vec![hello(VERSION, VERSION), open.to_bytes()],
        5 | 6 => {
            let process = others.get(dice.below(others.len() as u64) as usize).copied().unwrap_or(process);
            vec![frame::Frame::Hello { min: VERSION, max: VERSION, offer, process }.to_bytes()]
        }
        7 => {
            let id = dice.pick([comm, conn]);
            let word = match dice.below(4) {
                0 => frame::Frame::Gone { id },
                1 => frame::Frame::Stop { id },
                _ => frame::Frame::Close { id, messages: 0 },
            };
            vec![hello(VERSION, VERSION), word.to_bytes()]
        }
        8 => vec![hello(VERSION, VERSION), frame::Frame::Ready { comm, conn }.to_bytes()],
        9 => vec![
            hello(VERSION, VERSION),
            result(conn, dice.pick([Answer::Accepted, Answer::Refused])).to_bytes(),
        ],
        _ => vec![hello(VERSION, VERSION), vec![0xff; 64]],
    }
}

/// An answer to an attempt that somebody else made.
fn result(conn: u64, answer: Answer) -> frame::Frame {
    let link = if answer == Answer::Accepted { vec![7; 20] } else { vec![] };
    frame::Frame::Result(Reply {
        conn,
        answer,
        matched: false,
        remote_len: false,
        comm: 1 << 16,
        fins: Region { key: 0, addr: 0 },
        eager_max: 0,
        eager_credits: 0,
        link,
        share: share::Answer { given: Given::Alone, turn: 0 },
    })
}
