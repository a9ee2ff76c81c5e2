//! Somebody who found a control address and is not one of us: sends garbage, half a hello, another version, or a
//! hello and then asks with a wrong nonce. Whatever it does, the job must not notice.

use trunkline_fabric::{Frame, Oob, OobAddress, OobStream};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::frame::{self, Open, Region};

use crate::{Dice, Pid, SimOob, SimStream, World};

/// A stranger with its open stream.
pub(crate) struct Stranger {
    _stream: SimStream,
}

impl Stranger {
    /// Connects to some listener and says something; `None` if nobody listens.
    pub(crate) fn call(world: &World, process: Pid, seed: u64) -> Option<Self> {
        let dice = &mut Dice::new(seed, 7);
        let addresses = world.listening();
        let address: &OobAddress = addresses.get(dice.below(addresses.len() as u64) as usize)?;
        let mut stream = SimOob::stranger(world, process).connect(address).ok()?;
        for bytes in speech(dice) {
            let _ = stream.send(Frame { bytes, fd: None });
        }
        dice.coin().then_some(Self { _stream: stream })
    }
}

fn speech(dice: &mut Dice) -> Vec<Vec<u8>> {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&dice.draw().to_le_bytes());
    let process = ProcessId(name);
    let hello = |min, max| frame::Frame::Hello { min, max, process }.to_bytes();
    let nowhere = Region { key: dice.draw(), addr: dice.draw() };
    let listen = dice.draw();
    let open = frame::Frame::Open(Open {
        conn: dice.draw(),
        listen: dice.pick([0, 1 << 32, listen]),
        nonce: name,
        matched: false,
        mailbox: nowhere,
        link: vec![7; 20],
    });
    match dice.below(6) {
        0 => vec![],
        1 => vec![(0..dice.below(200)).map(|_| dice.draw() as u8).collect()],
        2 => {
            let mut half = hello(1, 1);
            half.truncate(dice.below(half.len() as u64) as usize);
            vec![half]
        }
        3 => vec![hello(2, 9), open.to_bytes()],
        4 => vec![hello(1, 1), open.to_bytes()],
        _ => vec![hello(1, 1), vec![0xff; 64]],
    }
}
