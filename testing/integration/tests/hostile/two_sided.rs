//! The pair's messages as sends and receives over two connections, one in each direction. Each victim also listens for
//! other processes, as a rank does that gave a handle to a third one.

use std::time::{Duration, Instant};

use trunkline_engine::host::UnixHost;
use trunkline_engine::{CommId, Engine, EngineError, EngineParams, ListenId, MrId, RecvBuf, RequestId};
use trunkline_mem::MemoryRange;
use trunkline_proto::wire::handle::{self, ConnectionHandle};

use crate::attacker::until;
use crate::canaries::SharedNics;
use crate::channel::TestChannel;
use crate::pair::PairTraffic;
use crate::victim::LONG;

/// Interval of a victim's accept calls for other processes, as of a listener's owner with other work.
const ACCEPTS_EVERY: Duration = Duration::from_millis(1);

/// The handles of a victim: one for the other victim, and one for a third process.
pub(crate) struct GivenHandles {
    pub(crate) pair: [u8; handle::BYTES],
    pub(crate) guests: [u8; handle::BYTES],
}

impl GivenHandles {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let (pair, guests) = bytes.split_at(handle::BYTES);
        Self { pair: pair.try_into().unwrap(), guests: guests.try_into().unwrap() }
    }

    /// The handles as the third process gets them: that of the pair without its nonce, which only the other victim has.
    pub(crate) fn seen_by_guest(bytes: &[u8]) -> [ConnectionHandle; 2] {
        let given = Self::from_bytes(bytes);
        let mut pair = ConnectionHandle::from_bytes(&given.pair).unwrap();
        pair.nonce = [0; 16];
        [pair, ConnectionHandle::from_bytes(&given.guests).unwrap()]
    }
}

/// One end of a connection, its memory, and its outstanding request.
struct ConnectedEnd {
    comm: CommId,
    region: MrId,
    memory: MemoryRange,
    request: Option<RequestId>,
}

impl ConnectedEnd {
    fn new(engine: &Engine<SharedNics, UnixHost>, comm: CommId) -> Self {
        let memory = MemoryRange::heap(LONG);
        let region = engine.register(comm, memory.clone()).unwrap();
        Self { comm, region, memory, request: None }
    }

    fn buffer(&self, len: usize) -> RecvBuf {
        RecvBuf { mr: self.region, offset: 0, len: len as u64, tag: 7 }
    }

    /// Whether the outstanding request has ended.
    fn is_done(&mut self, engine: &Engine<SharedNics, UnixHost>) -> Result<bool, String> {
        let Some(request) = self.request else { return Ok(false) };
        let is_done = engine.test(request, &mut [0; 8]).map_err(fault)?;
        if is_done {
            self.request = None;
        }
        Ok(is_done)
    }
}

fn fault(error: EngineError) -> String {
    trunkline_engine::in_full(&error)
}

pub(crate) struct TwoSidedPair {
    engine: Engine<SharedNics, UnixHost>,
    listens: [ListenId; 2],
    send: ConnectedEnd,
    recv: ConnectedEnd,
    accepted: Instant,
}

impl TwoSidedPair {
    /// Connects to the other victim, and accepts its connection.
    pub(crate) fn meet(
        me: u32,
        fabric: SharedNics,
        host: UnixHost,
        params: EngineParams,
        channel: &mut TestChannel,
    ) -> Self {
        let engine = Engine::new(fabric, host, EngineParams { status: false, ..params }).unwrap();
        let ((pair, to_pair), (guests, to_guests)) = (engine.listen(0).unwrap(), engine.listen(0).unwrap());
        channel.send(&[to_pair, to_guests].concat());
        let all: [Vec<u8>; 3] = std::array::from_fn(|_| channel.receive());
        let mut handle = GivenHandles::from_bytes(&all[1 - me as usize]).pair;
        let (mut send, mut recv) = (None, None);
        let (send, recv) = until("the pair's connections", || {
            send = send.or_else(|| engine.connect(0, &mut handle).unwrap());
            recv = recv.or_else(|| engine.accept(pair).unwrap());
            send.zip(recv)
        });
        let [send, recv] = [send, recv].map(|comm| ConnectedEnd::new(&engine, comm));
        Self { engine, listens: [pair, guests], send, recv, accepted: Instant::now() }
    }
}

impl PairTraffic for TwoSidedPair {
    fn send_step(&mut self, _: u64, bytes: &[u8]) -> Result<bool, String> {
        let Self { engine, send, .. } = self;
        if send.request.is_none() {
            send.memory.write(0, bytes).unwrap();
            let len = bytes.len() as u64;
            send.request = engine.isend(send.comm, send.region, 0, len, 7).map_err(fault)?;
        }
        send.is_done(engine)
    }

    fn receive_step(&mut self, _: u64, len: usize) -> Result<Option<Vec<u8>>, String> {
        let Self { engine, recv, .. } = self;
        if recv.request.is_none() {
            recv.request = engine.irecv(recv.comm, &[recv.buffer(len)]).map_err(fault)?;
        }
        if !recv.is_done(engine)? {
            return Ok(None);
        }
        let mut got = vec![0; len];
        recv.memory.read(0, &mut got).unwrap();
        Ok(Some(got))
    }

    fn progress(&mut self) -> Result<(), String> {
        // Each test of a request drives the whole engine.
        Ok(())
    }

    fn serve_others(&mut self) -> Result<(), String> {
        if self.accepted.elapsed() < ACCEPTS_EVERY {
            return Ok(());
        }
        self.accepted = Instant::now();
        for listen in self.listens {
            // A failed connection is the other process's problem.
            if let Ok(Some(comm)) = self.engine.accept(listen) {
                self.engine.close(comm).map_err(fault)?;
            }
        }
        Ok(())
    }
}
