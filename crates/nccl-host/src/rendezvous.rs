//! The messages between the parent and a rank.
//!
//! Frames of a 32-bit length and JSON. Used by `launch` on one end and `rank` on the other; independent of plugins,
//! and decides nothing.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trunkline_sys::nccl_net::HANDLE_BYTES;

use crate::buffer::MemoryKind;
use crate::collective::Collective;
use crate::comm::NetHandle;
use crate::device::DeviceSelection;
use crate::schedule::ConnectionGraph;
use crate::types::{DataType, RedOp};

/// Length of the largest valid frame, in bytes.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// The parameters of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RankSetup {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) plugin: PathBuf,
    pub(crate) abi: Option<u8>,
    pub(crate) device: DeviceSelection,
    pub(crate) comms: usize,
    pub(crate) channels: usize,
    pub(crate) graph: ConnectionGraph,
    pub(crate) send_bytes: usize,
    pub(crate) recv_bytes: usize,
    pub(crate) chunk: usize,
    /// Length of a receive in bytes, at least.
    pub(crate) receive_min: usize,
    /// Whether chunks may have to be kept in scratch slots.
    pub(crate) scratch: bool,
    pub(crate) memory: MemoryKind,
    pub(crate) flush: Option<bool>,
    /// The directory for files of the plugin that the parent requests, on the parent's host.
    pub(crate) left: Option<PathBuf>,
}

/// A listener's handle, to be forwarded to the rank that connects to it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct HandleOffer {
    pub(crate) comm: usize,
    pub(crate) channel: usize,
    pub(crate) listener: usize,
    pub(crate) sender: usize,
    bytes: Vec<u8>,
}

impl HandleOffer {
    pub(crate) fn new(
        comm: usize,
        channel: usize,
        listener: usize,
        sender: usize,
        handle: &NetHandle,
    ) -> Self {
        Self { comm, channel, listener, sender, bytes: handle.to_vec() }
    }

    pub(crate) fn to_handle(&self) -> NetHandle {
        let mut handle = [0; HANDLE_BYTES];
        for (to, from) in handle.iter_mut().zip(&self.bytes) {
            *to = *from;
        }
        handle
    }
}

/// One run of a collective at one size.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct CollectiveCase {
    /// The collective.
    pub collective: Collective,
    /// Type of an element.
    pub dtype: DataType,
    /// Operator.
    pub op: RedOp,
    /// Elements of one rank's part.
    pub block: usize,
    /// The special rank.
    pub root: usize,
    /// Whether send and receive buffer are one.
    pub in_place: bool,
    /// Runs before the timed ones.
    pub warmup: u32,
    /// Timed runs.
    pub iterations: u32,
    /// Verified runs.
    pub checks: u32,
    /// Seed of the data.
    pub seed: u64,
}

/// One size of the point-to-point benchmark.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct P2pCase {
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages before the timed ones.
    pub warmup: u32,
    /// Timed messages of each kind.
    pub iterations: u32,
    /// Seed of the data.
    pub seed: u64,
}

/// The measurement of one rank for a collective.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct CollectiveMeasured {
    pub(crate) time_us: f64,
    pub(crate) wrong: u64,
}

/// The results of the point-to-point benchmark.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct P2pMeasured {
    /// Median half round trip in microseconds.
    pub latency_p50_us: f64,
    /// 99th percentile.
    pub latency_p99_us: f64,
    /// Longest.
    pub latency_max_us: f64,
    /// One-way bandwidth in GB/s, with eight messages in flight.
    pub one_way_gbs: f64,
    /// Bandwidth per direction in GB/s, with both directions in use.
    pub both_way_gbs: f64,
    /// One-way message rate, in millions per second.
    pub rate_mps: f64,
    /// Wrong bytes.
    pub wrong: u64,
}

/// The report of a rank about the loaded plugin.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PluginReport {
    /// The name in the plugin's table.
    pub name: String,
    /// Version of the interface in use.
    pub abi: u8,
    /// Number of devices.
    pub devices: i32,
    /// Number of the device in use.
    pub number: i32,
    /// Its members, if it is fused.
    pub members: Vec<i32>,
    /// Its name.
    pub device: String,
    /// Its speed in Mbit/s.
    pub speed: i32,
    /// Whether receives are flushed.
    pub flush: bool,
    /// Process id of the rank.
    pub pid: u32,
}

/// Messages of the parent.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum ToRank {
    Setup(RankSetup),
    Connect(Vec<HandleOffer>),
    Run(CollectiveCase),
    RunP2p(P2pCase),
    Go,
    /// Close everything. `wrong`: whether any rank received wrong bytes.
    Quit {
        wrong: bool,
    },
    /// Exit at once: the run has failed, and the parent reports the cause.
    Abort,
}

/// Messages of a rank.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum FromRank {
    Listening(PluginReport, Vec<HandleOffer>),
    Connected,
    AtBarrier,
    Done(CollectiveMeasured),
    DoneP2p(P2pMeasured),
    /// A file of the plugin, or a further part of it.
    Left {
        begins: bool,
        text: String,
    },
    Closed,
    Failed {
        message: String,
    },
}

/// Writes one message.
pub(crate) fn write_message(stream: &mut (impl Write + ?Sized), message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

/// Reads one message; `None` at the end of the stream.
pub(crate) fn read_message<T: DeserializeOwned>(stream: &mut (impl Read + ?Sized)) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}
