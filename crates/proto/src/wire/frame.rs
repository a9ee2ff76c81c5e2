//! Control frames: the handshakes of two processes.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::wire::cursor::{Reader, Short, Writer};

/// The version of everything behind a HELLO that this code speaks.
pub const VERSION: u16 = 1;

const MAGIC: u64 = 0x314b_4e55_5254_4c4b;
const LINK_MAX: usize = 256;

/// How an OPEN was answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The comm exists.
    Accepted,
    /// There is no such listener, or the nonce is not its own.
    Refused,
    /// The listener's process has run out of something.
    NoResources,
    /// A number this version does not know.
    Other(u8),
}

/// A remote region, by key and address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Region {
    /// Its remote key.
    pub key: u64,
    /// Address of its first byte.
    pub addr: u64,
}

/// Asks for a comm.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Open {
    /// The asking side's id of the connection.
    pub conn: u64,
    /// The listener.
    pub listen: u64,
    /// Its nonce.
    pub nonce: [u8; 16],
    /// The asking NIC can match by itself.
    pub matched: bool,
    /// Where clear-to-send records go.
    pub mailbox: Region,
    /// The asking side's link.
    pub link: Vec<u8>,
}

/// Answers an OPEN.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// The asking side's id of the connection.
    pub conn: u64,
    /// How it went; all that follows is meaningful only if accepted.
    pub answer: Answer,
    /// Match by NIC.
    pub matched: bool,
    /// The answering NIC vouches for the length of a remote write.
    pub remote_len: bool,
    /// The answering side's id.
    pub comm: u64,
    /// Where fin records go.
    pub fins: Region,
    /// Largest eager payload it takes, 0 for none.
    pub eager_max: u32,
    /// Eager messages it takes before they are matched.
    pub eager_credits: u32,
    /// The answering side's link.
    pub link: Vec<u8>,
}

/// One control frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Frame {
    /// Who speaks, and which versions.
    Hello {
        /// Lowest version spoken.
        min: u16,
        /// Highest version spoken.
        max: u16,
        /// The speaker.
        process: ProcessId,
    },
    /// Asks for a comm.
    Open(Open),
    /// Answers.
    Result(Reply),
    /// The asking side's link works.
    Ready {
        /// The answering side's id.
        comm: u64,
        /// The asking side's id.
        conn: u64,
    },
    /// The speaker's end is closed.
    Close {
        /// The listener's own id of its end.
        id: u64,
        /// Messages sent, by a sending end, or arrived, at a receiving end.
        messages: u64,
    },
}

/// A frame could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] Short),
    /// It is not from Trunkline.
    #[error("wrong magic {0:#x}")]
    Magic(u64),
    /// It is of a version this code does not speak.
    #[error("frame version {0}")]
    Version(u8),
    /// It is of an unknown kind.
    #[error("frame kind {0}")]
    Kind(u8),
    /// It goes on after its end, or a length in it is too large.
    #[error("wrong length")]
    Length,
}

impl Frame {
    /// The frame's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let kind = match self {
            Self::Hello { .. } => 1,
            Self::Open(_) => 2,
            Self::Result(_) => 3,
            Self::Ready { .. } => 4,
            Self::Close { .. } => 5,
        };
        out.u8(kind).u8(1).u16(0);
        match self {
            Self::Hello { min, max, process } => {
                out.u64(MAGIC).u16(*min).u16(*max).u32(0).bytes(&process.0);
            }
            Self::Open(open) => write_open(&mut out, open),
            Self::Result(reply) => write_reply(&mut out, reply),
            Self::Ready { comm, conn } => {
                out.u64(*comm).u64(*conn);
            }
            Self::Close { id, messages } => {
                out.u64(*id).u64(*messages);
            }
        }
        out.0
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// [`FrameError`] says what is wrong; the stream it came on cannot be trusted any more.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader(bytes);
        let [kind, version, ..] = reader.array::<4>()?;
        if version != 1 {
            return Err(FrameError::Version(version));
        }
        let frame = match kind {
            1 => read_hello(&mut reader)?,
            2 => Self::Open(read_open(&mut reader)?),
            3 => Self::Result(read_reply(&mut reader)?),
            4 => Self::Ready { comm: reader.u64()?, conn: reader.u64()? },
            5 => Self::Close { id: reader.u64()?, messages: reader.u64()? },
            other => return Err(FrameError::Kind(other)),
        };
        if reader.0.is_empty() { Ok(frame) } else { Err(FrameError::Length) }
    }
}

fn read_hello(reader: &mut Reader<'_>) -> Result<Frame, FrameError> {
    let magic = reader.u64()?;
    if magic != MAGIC {
        return Err(FrameError::Magic(magic));
    }
    let (min, max) = (reader.u16()?, reader.u16()?);
    reader.u32()?;
    Ok(Frame::Hello { min, max, process: ProcessId(reader.array()?) })
}

fn write_link(out: &mut Writer, link: &[u8]) {
    let used = link.len().min(LINK_MAX);
    out.u16(used as u16).bytes(&link[..used]);
}

fn read_link(reader: &mut Reader<'_>) -> Result<Vec<u8>, FrameError> {
    let used = usize::from(reader.u16()?);
    if used > LINK_MAX {
        return Err(FrameError::Length);
    }
    Ok(reader.bytes(used)?.to_vec())
}

fn read_region(reader: &mut Reader<'_>) -> Result<Region, FrameError> {
    Ok(Region { key: reader.u64()?, addr: reader.u64()? })
}

fn write_open(out: &mut Writer, open: &Open) {
    out.u64(open.conn).u64(open.listen).bytes(&open.nonce).u32(u32::from(open.matched));
    out.u64(open.mailbox.key).u64(open.mailbox.addr);
    write_link(out, &open.link);
}

fn read_open(reader: &mut Reader<'_>) -> Result<Open, FrameError> {
    let (conn, listen, nonce) = (reader.u64()?, reader.u64()?, reader.array()?);
    let matched = reader.u32()? & 1 != 0;
    Ok(Open { conn, listen, nonce, matched, mailbox: read_region(reader)?, link: read_link(reader)? })
}

fn write_reply(out: &mut Writer, reply: &Reply) {
    let answer = match reply.answer {
        Answer::Accepted => 0,
        Answer::Refused => 1,
        Answer::NoResources => 2,
        Answer::Other(n) => n,
    };
    out.u64(reply.conn).u8(answer).bytes(&[0; 3]);
    out.u32(u32::from(reply.matched) | u32::from(reply.remote_len) << 1).u64(reply.comm);
    out.u64(reply.fins.key).u64(reply.fins.addr).u32(reply.eager_max).u32(reply.eager_credits);
    write_link(out, &reply.link);
}

fn read_reply(reader: &mut Reader<'_>) -> Result<Reply, FrameError> {
    let conn = reader.u64()?;
    let [answer, ..] = reader.array::<4>()?;
    let answer = match answer {
        0 => Answer::Accepted,
        1 => Answer::Refused,
        2 => Answer::NoResources,
        n => Answer::Other(n),
    };
    let flags = reader.u32()?;
    Ok(Reply {
        conn,
        answer,
        matched: flags & 1 != 0,
        remote_len: flags & 2 != 0,
        comm: reader.u64()?,
        fins: read_region(reader)?,
        eager_max: reader.u32()?,
        eager_credits: reader.u32()?,
        link: read_link(reader)?,
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    fn frames() -> Vec<Frame> {
        let region = Region { key: 1, addr: 2 };
        vec![
            Frame::Hello { min: 1, max: 3, process: ProcessId([7; 16]) },
            Frame::Open(Open {
                conn: 1,
                listen: 2,
                nonce: [3; 16],
                matched: true,
                mailbox: region,
                link: vec![4; 256],
            }),
            Frame::Result(Reply {
                conn: 1,
                answer: Answer::Other(9),
                matched: false,
                remote_len: true,
                comm: 2,
                fins: region,
                eager_max: 3,
                eager_credits: 4,
                link: vec![],
            }),
            Frame::Ready { comm: 1, conn: 2 },
            Frame::Close { id: 3, messages: 4 },
        ]
    }

    #[test]
    fn every_frame_reads_back_and_every_cut_is_refused() {
        for frame in frames() {
            let mut bytes = frame.to_bytes();
            assert_eq!(Frame::from_bytes(&bytes).as_ref(), Ok(&frame));
            for len in 0..bytes.len() {
                assert!(Frame::from_bytes(&bytes[..len]).is_err(), "{frame:?} cut to {len}");
            }
            bytes.push(0);
            assert_eq!(Frame::from_bytes(&bytes), Err(FrameError::Length));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: Vec<u8>) {
            let _ = Frame::from_bytes(&bytes);
        }

        #[test]
        fn a_flipped_bit_never_panics(which in 0..5_usize, at: prop::sample::Index, bit in 0..8_u32) {
            let mut bytes = frames()[which].to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = Frame::from_bytes(&bytes);
        }
    }
}
