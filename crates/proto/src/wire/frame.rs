//! Control frames: the handshakes of two processes.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::limits::LINKS_MAX;
use crate::wire::cursor::{Reader, Short, Writer};
use crate::wire::standing::{Standing, StandingError};

/// The version of everything behind a HELLO that this code speaks.
pub const VERSION: u16 = 3;

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
    /// Links the comm is to have, 1 to [`LINKS_MAX`]; this frame brings the first.
    pub links: u8,
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

/// A link is of no more use: the speaker's end is in error, and nothing the peer posted lands there any more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkDown {
    /// The listener's own id of its end of the comm.
    pub id: u64,
    /// Which link of the comm.
    pub link: u8,
    /// Which connection of that link, counted from 0.
    pub epoch: u32,
    /// The speaker waits for the same words.
    pub answer: bool,
    /// The first receive whose record the speaker has not read, if it sends; 0 if it receives.
    pub next: u32,
    /// What has arrived, if the speaker receives.
    pub standing: Option<Standing>,
}

/// Asks for a link of a comm that exists; the sending end does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkOpen {
    /// The listener's own id of its end of the comm.
    pub id: u64,
    /// Which link of the comm.
    pub link: u8,
    /// Which connection of that link.
    pub epoch: u32,
    /// Where clear-to-send records go over this link.
    pub mailbox: Region,
    /// The asking side's link.
    pub address: Vec<u8>,
}

/// Answers a [`LinkOpen`]: the other end is made. If it cannot be, [`LinkDown`] says so.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkResult {
    /// The listener's own id of its end of the comm.
    pub id: u64,
    /// Which link of the comm.
    pub link: u8,
    /// Which connection of that link.
    pub epoch: u32,
    /// Where fin records go over this link.
    pub fins: Region,
    /// The answering side's link.
    pub address: Vec<u8>,
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
    /// A link is left.
    LinkDown(LinkDown),
    /// A link is to be made.
    LinkOpen(LinkOpen),
    /// One end of it is.
    LinkResult(LinkResult),
    /// Both are, and it carries.
    LinkReady {
        /// The listener's own id of its end of the comm.
        id: u64,
        /// Which link of the comm.
        link: u8,
        /// Which connection of that link.
        epoch: u32,
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
    /// A comm cannot have such a link, or so many.
    #[error("link {0} of a comm")]
    Link(u8),
    /// What it says has arrived cannot be read.
    #[error(transparent)]
    Standing(#[from] StandingError),
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
            Self::LinkDown(_) => 6,
            Self::LinkOpen(_) => 7,
            Self::LinkResult(_) => 8,
            Self::LinkReady { .. } => 9,
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
            Self::LinkDown(down) => {
                write_which(&mut out, down.id, down.link, down.epoch);
                out.u32(u32::from(down.answer) | u32::from(down.standing.is_some()) << 1).u32(down.next);
                if let Some(standing) = &down.standing {
                    standing.write(&mut out);
                }
            }
            Self::LinkOpen(open) => {
                write_which(&mut out, open.id, open.link, open.epoch);
                out.u64(open.mailbox.key).u64(open.mailbox.addr);
                write_link(&mut out, &open.address);
            }
            Self::LinkResult(result) => {
                write_which(&mut out, result.id, result.link, result.epoch);
                out.u64(result.fins.key).u64(result.fins.addr);
                write_link(&mut out, &result.address);
            }
            Self::LinkReady { id, link, epoch } => write_which(&mut out, *id, *link, *epoch),
        }
        out.0
    }

    /// The id and the link, if it is about one link of a comm.
    #[must_use]
    pub fn about_link(&self) -> Option<(u64, u8)> {
        match self {
            Self::LinkDown(LinkDown { id, link, .. })
            | Self::LinkOpen(LinkOpen { id, link, .. })
            | Self::LinkResult(LinkResult { id, link, .. })
            | Self::LinkReady { id, link, .. } => Some((*id, *link)),
            Self::Hello { .. }
            | Self::Open(_)
            | Self::Result(_)
            | Self::Ready { .. }
            | Self::Close { .. } => None,
        }
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
            6 => Self::LinkDown(read_down(&mut reader)?),
            7 => {
                let (id, link, epoch) = read_which(&mut reader)?;
                let (mailbox, address) = (read_region(&mut reader)?, read_link(&mut reader)?);
                Self::LinkOpen(LinkOpen { id, link, epoch, mailbox, address })
            }
            8 => {
                let (id, link, epoch) = read_which(&mut reader)?;
                let (fins, address) = (read_region(&mut reader)?, read_link(&mut reader)?);
                Self::LinkResult(LinkResult { id, link, epoch, fins, address })
            }
            9 => {
                let (id, link, epoch) = read_which(&mut reader)?;
                Self::LinkReady { id, link, epoch }
            }
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

fn write_which(out: &mut Writer, id: u64, link: u8, epoch: u32) {
    out.u64(id).u32(u32::from(link)).u32(epoch);
}

fn read_which(reader: &mut Reader<'_>) -> Result<(u64, u8, u32), FrameError> {
    let (id, link, epoch) = (reader.u64()?, reader.u32()? as u8, reader.u32()?);
    if usize::from(link) < LINKS_MAX { Ok((id, link, epoch)) } else { Err(FrameError::Link(link)) }
}

fn read_down(reader: &mut Reader<'_>) -> Result<LinkDown, FrameError> {
    let (id, link, epoch) = read_which(reader)?;
    let (flags, next) = (reader.u32()?, reader.u32()?);
    let standing = if flags & 2 != 0 { Some(Standing::read(reader)?) } else { None };
    Ok(LinkDown { id, link, epoch, answer: flags & 1 != 0, next, standing })
}

fn write_open(out: &mut Writer, open: &Open) {
    out.u64(open.conn).u64(open.listen).bytes(&open.nonce);
    out.u32(u32::from(open.matched) | u32::from(open.links) << 8);
    out.u64(open.mailbox.key).u64(open.mailbox.addr);
    write_link(out, &open.link);
}

fn read_open(reader: &mut Reader<'_>) -> Result<Open, FrameError> {
    let (conn, listen, nonce) = (reader.u64()?, reader.u64()?, reader.array()?);
    let flags = reader.u32()?;
    let (matched, links) = (flags & 1 != 0, (flags >> 8) as u8);
    if links == 0 || usize::from(links) > LINKS_MAX {
        return Err(FrameError::Link(links));
    }
    Ok(Open { conn, listen, nonce, matched, links, mailbox: read_region(reader)?, link: read_link(reader)? })
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
    use crate::wire::imm::Token;
    use crate::wire::standing::Waiting;

    fn frames() -> Vec<Frame> {
        let region = Region { key: 1, addr: 2 };
        vec![
            Frame::Hello { min: 1, max: 3, process: ProcessId([7; 16]) },
            Frame::Open(Open {
                conn: 1,
                listen: 2,
                nonce: [3; 16],
                matched: true,
                links: 4,
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
            Frame::LinkDown(LinkDown {
                id: 1,
                link: 3,
                epoch: u32::MAX,
                answer: true,
                next: 0,
                standing: Some(Standing {
                    next: 7,
                    frontier: 8,
                    ahead: 1 << 127 | 1,
                    waiting: vec![Waiting { token: Token::new(5, 6), stripes: 0x8001, fin: true }],
                }),
            }),
            Frame::LinkDown(LinkDown { id: 1, link: 0, epoch: 0, answer: false, next: 9, standing: None }),
            Frame::LinkOpen(LinkOpen { id: 1, link: 2, epoch: 3, mailbox: region, address: vec![9; 120] }),
            Frame::LinkResult(LinkResult { id: 1, link: 2, epoch: 3, fins: region, address: vec![] }),
            Frame::LinkReady { id: 1, link: 1, epoch: 3 },
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
        fn a_flipped_bit_never_panics(which in 0..10_usize, at: prop::sample::Index, bit in 0..8_u32) {
            let mut bytes = frames()[which].to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = Frame::from_bytes(&bytes);
        }
    }
}
