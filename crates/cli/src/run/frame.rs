//! The frames between launcher and agent, as docs/wire.md specifies them.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Version of these frames.
pub(crate) const VERSION: u32 = 1;
/// Most bytes of a body.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Most bytes of output in a frame.
pub(crate) const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// The agent's first frame.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct AgentReady {
    pub(crate) version: u32,
    /// A TCP port that was free when the agent started, with room for following ports.
    pub(crate) port: u16,
    /// The host's addresses, best first.
    pub(crate) addresses: Vec<String>,
}

/// The ranks that an agent starts, and their program.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct AgentStart {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) directory: String,
    /// Variables of all ranks.
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) ranks: Vec<RankStart>,
}

/// One rank of an agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct RankStart {
    pub(crate) rank: u32,
    pub(crate) variables: Vec<(String, String)>,
}

/// How a rank ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RankEnding {
    Code(i32),
    Signal(i32),
}

/// A frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum LauncherFrame {
    Ready(AgentReady),
    Start(AgentStart),
    Output(u32, Vec<u8>),
    Errors(u32, Vec<u8>),
    Pmi(u32, String),
    Exited(u32, RankEnding),
    Signal(i32),
    Failed(String),
}

impl LauncherFrame {
    fn encode_parts(&self) -> io::Result<(u8, u32, Vec<u8>)> {
        Ok(match self {
            Self::Ready(ready) => (1, 0, serde_json::to_vec(ready)?),
            Self::Start(start) => (2, 0, serde_json::to_vec(start)?),
            Self::Output(rank, bytes) => (3, *rank, bytes.clone()),
            Self::Errors(rank, bytes) => (4, *rank, bytes.clone()),
            Self::Pmi(rank, line) => (5, *rank, line.clone().into_bytes()),
            Self::Exited(rank, ending) => {
                let (kind, number) = match ending {
                    RankEnding::Code(code) => (0, code),
                    RankEnding::Signal(signal) => (1, signal),
                };
                let mut body = vec![kind];
                body.extend_from_slice(&number.to_le_bytes());
                (6, *rank, body)
            }
            Self::Signal(number) => (7, 0, number.to_le_bytes().to_vec()),
            Self::Failed(why) => (8, 0, why.clone().into_bytes()),
        })
    }

    fn from_parts(kind: u8, rank: u32, body: Vec<u8>) -> io::Result<Self> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a frame of trunkline's launcher");
        let text = |body| String::from_utf8(body).map_err(|_| broken());
        let number = |bytes: &[u8]| bytes.try_into().map(i32::from_le_bytes).map_err(|_| broken());
        Ok(match kind {
            1 => Self::Ready(serde_json::from_slice(&body)?),
            2 => Self::Start(serde_json::from_slice(&body)?),
            3 => Self::Output(rank, body),
            4 => Self::Errors(rank, body),
            5 => Self::Pmi(rank, text(body)?),
            6 => match body.split_first() {
                Some((0, code)) => Self::Exited(rank, RankEnding::Code(number(code)?)),
                Some((1, signal)) => Self::Exited(rank, RankEnding::Signal(number(signal)?)),
                _ => return Err(broken()),
            },
            7 => Self::Signal(number(&body)?),
            8 => Self::Failed(text(body)?),
            _ => return Err(broken()),
        })
    }
}

/// Writes a frame with a single write.
pub(crate) fn send_frame(stream: &mut (impl Write + ?Sized), frame: &LauncherFrame) -> io::Result<()> {
    let (kind, rank, body) = frame.encode_parts()?;
    if body.len() > BODY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "arguments and variables exceed 1 MiB"));
    }
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&rank.to_le_bytes());
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes)?;
    stream.flush()
}

/// Reads a frame; `None` at the end of the stream.
pub(crate) fn receive_frame(stream: &mut (impl Read + ?Sized)) -> io::Result<Option<LauncherFrame>> {
    let mut head = [0; 12];
    let mut filled = 0;
    while filled < head.len() {
        match stream.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let [kind, _, _, _, a, b, c, d, e, f, g, h] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > BODY_BYTES_MAX {
        // Usually a greeting printed by the remote shell.
        let text = String::from_utf8_lossy(&head).into_owned();
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{text:?} is not a frame of trunkline's launcher"),
        ));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    LauncherFrame::from_parts(kind, u32::from_le_bytes([e, f, g, h]), body).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_a_round_trip_and_garbage_is_refused() {
        let rank = RankStart { rank: 3, variables: vec![("A".into(), "b=c".into())] };
        let start = AgentStart {
            program: "p".into(),
            arguments: vec!["ü \n".into()],
            directory: "/".into(),
            variables: vec![],
            ranks: vec![rank],
        };
        let frames = [
            LauncherFrame::Ready(AgentReady {
                version: VERSION,
                port: 20_001,
                addresses: vec!["10.0.0.1".into()],
            }),
            LauncherFrame::Start(start),
            LauncherFrame::Output(1, vec![0, 255]),
            LauncherFrame::Errors(2, vec![]),
            LauncherFrame::Pmi(3, "cmd=init".into()),
            LauncherFrame::Exited(4, RankEnding::Code(-1)),
            LauncherFrame::Exited(5, RankEnding::Signal(9)),
            LauncherFrame::Signal(15),
            LauncherFrame::Failed("why".into()),
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| send_frame(&mut bytes, frame).unwrap());
        let mut stream = bytes.as_slice();
        for frame in &frames {
            assert_eq!(receive_frame(&mut stream).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(receive_frame(&mut stream).unwrap(), None);
        assert!(receive_frame(&mut &b"Welcome to node7!\n"[..]).unwrap_err().to_string().contains("Welcome"));
        assert!(receive_frame(&mut &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
        assert!(receive_frame(&mut &[6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
        assert!(receive_frame(&mut &[3, 0, 0][..]).is_err());
        let too_much = LauncherFrame::Output(0, vec![0; BODY_BYTES_MAX + 1]);
        assert!(send_frame(&mut Vec::new(), &too_much).is_err());
    }
}
