//! An unauthenticated peer that knows a control address. It sends garbage, half a hello, another version, or a hello
//! in the name of a process of the job. Or it sends its own hello, and then a wrong nonce or frames about connections
//! of other processes, whose ids are small numbers. The job must not be affected.

use trunkline_fabric::{OobAddress, OobFrame, OobStream, OobTransport};
use trunkline_proto::id::ProcessId;
use trunkline_proto::wire::frame::{self, OpenAnswer, OpenFrame, RemoteRegion, ResultFrame, VERSION};
use trunkline_proto::wire::share::{self, ShareMode, ShareOffer, ShareOutcome, ShareRequest};

use crate::{SimOob, SimPid, SimRng, SimStream, SimWorld};

/// A rogue peer with its open stream.
pub(crate) struct RoguePeer {
    _stream: SimStream,
}

impl RoguePeer {
    /// Connects to a listener and sends frames; `None` if there is no listener. It knows the names of `others`,
    /// because each process sends its name to every peer that connects.
    pub(crate) fn connect_and_send(
        world: &SimWorld,
        process: SimPid,
        seed: u64,
        others: &[ProcessId],
    ) -> Option<Self> {
        let dice = &mut SimRng::new(seed, 7);
        let addresses = world.listener_addresses();
        let address: &OobAddress = addresses.get(dice.below(addresses.len() as u64) as usize)?;
        let mut stream = SimOob::for_rogue_peer(world, process).connect(address).ok()?;
        for bytes in random_frames(dice, others) {
            let _ = stream.send(OobFrame { bytes, fd: None });
        }
        dice.coin().then_some(Self { _stream: stream })
    }
}

fn random_frames(dice: &mut SimRng, others: &[ProcessId]) -> Vec<Vec<u8>> {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&dice.draw_u64().to_le_bytes());
    let process = ProcessId(name);
    let offer = ShareOffer { groups: 4 };
    let hello = |min, max| frame::ControlFrame::Hello { min, max, offer, process }.to_bytes();
    // The first slots of the tables of comms and attempts, in their first generation.
    let comm = 1 << 16 | dice.below(4);
    let conn = 1 << 32 | dice.below(4);
    let nowhere = RemoteRegion { key: dice.draw_u64(), addr: dice.draw_u64() };
    let listen = dice.draw_u64();
    let open = frame::ControlFrame::Open(OpenFrame {
        conn: dice.draw_u64(),
        listen: dice.pick([0, 1 << 32, listen]),
        nonce: name,
        matched: false,
        near: dice.below(2) == 1,
        links: 1,
        mailbox: nowhere,
        link: vec![7; 20],
        share: ShareRequest { mode: ShareMode::Alone, turn: 0 },
    });
    match dice.below(11) {
        0 => vec![],
        1 => vec![(0..dice.below(200)).map(|_| dice.draw_u64() as u8).collect()],
        2 => {
            let mut half = hello(VERSION, VERSION);
            half.truncate(dice.below(half.len() as u64) as usize);
            vec![half]
        }
        3 => vec![hello(VERSION + 1, 9), open.to_bytes()],
        4 => vec![hello(VERSION, VERSION), open.to_bytes()],
        5 | 6 => {
            let process = others.get(dice.below(others.len() as u64) as usize).copied().unwrap_or(process);
            vec![frame::ControlFrame::Hello { min: VERSION, max: VERSION, offer, process }.to_bytes()]
        }
        7 => {
            let id = dice.pick([comm, conn]);
            let word = match dice.below(4) {
                0 => frame::ControlFrame::Gone { id },
                1 => frame::ControlFrame::Stop { id },
                _ => frame::ControlFrame::Close { id, messages: 0 },
            };
            vec![hello(VERSION, VERSION), word.to_bytes()]
        }
        8 => vec![hello(VERSION, VERSION), frame::ControlFrame::Ready { comm, conn }.to_bytes()],
        9 => vec![
            hello(VERSION, VERSION),
            forged_result(conn, dice.pick([OpenAnswer::Accepted, OpenAnswer::Refused])).to_bytes(),
        ],
        _ => vec![hello(VERSION, VERSION), vec![0xff; 64]],
    }
}

/// Returns a reply to an attempt of another process.
fn forged_result(conn: u64, answer: OpenAnswer) -> frame::ControlFrame {
    let link = if answer == OpenAnswer::Accepted { vec![7; 20] } else { vec![] };
    frame::ControlFrame::Result(ResultFrame {
        conn,
        answer,
        matched: false,
        remote_len: false,
        comm: 1 << 16,
        fins: RemoteRegion { key: 0, addr: 0 },
        eager_max: 0,
        eager_credits: 0,
        link,
        share: share::ShareAnswer { given: ShareOutcome::Alone, turn: 0 },
    })
}
