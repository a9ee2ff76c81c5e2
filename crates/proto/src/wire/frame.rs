//! Control frames: the handshakes of two processes over a control stream. The engine encodes and parses them; this module sends nothing and keeps no
//! state. Layout: "Control frames" of docs/wire.md.

use alloc::vec::Vec;

use crate::id::ProcessId;
use crate::limits::LINKS_MAX;
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::delivery_report::{DeliveryReport, DeliveryReportError};
use crate::wire::share::{self, ShareError, ShareMode, ShareOffer, ShareOutcome, ShareRequest};

/// The protocol version of everything after a HELLO (the header's own version is 1).
pub const VERSION: u16 = 5;

const MAGIC: u64 = 0x314b_4e55_5254_4c4b;
const LINK_MAX: usize = 256;

/// The status of a RESULT (1 byte).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenAnswer {
    /// 0: the comm exists, unless the sharing answer is [`ShareOutcome::Retry`] or [`ShareOutcome::Full`].
    Accepted,
    /// 1: the listener is unknown, or the nonce is not that of the listener.
    Refused,
    /// 2: the listener's process is out of a resource.
    NoResources,
    /// A status that this version does not know.
    Other(u8),
}

/// A remote region, by key and address (16 bytes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RemoteRegion {
    /// The remote key (8 bytes).
    pub key: u64,
    /// The address of its first byte (8 bytes).
    pub addr: u64,
}

/// OPEN (kind 2): requests a comm. Fields are listed in the order of the body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OpenFrame {
    /// The connecting side's id of the connection (8 bytes).
    pub conn: u64,
    /// The id of the listener (8 bytes).
    pub listen: u64,
    /// The nonce of the listener.
    pub nonce: [u8; 16],
    /// Flags (4 bytes), bit 0: the connecting NIC can match messages by itself.
    pub matched: bool,
    /// Flags, bit 1: the comm is to use the NICs that both ends have for processes on the same host.
    pub near: bool,
    /// Flags, bits 8-15: number of links of the comm, 1 to [`LINKS_MAX`]; this frame carries the address of link 0.
    pub links: u8,
    /// The region for clear-to-send records.
    pub mailbox: RemoteRegion,
    /// The address of the connecting side's link (2 bytes of length, at most 256, and that many bytes). Empty with [`ShareMode::Join`] and only then.
    pub link: Vec<u8>,
    /// Which links the comm is to use (24 bytes, at the end).
    pub share: ShareRequest,
}

/// RESULT (kind 3): the reply to an OPEN. Fields are listed in the order of the body.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResultFrame {
    /// The connecting side's id of the connection (8 bytes).
    pub conn: u64,
    /// The status (1 byte, and 3 reserved). Unless it is [`OpenAnswer::Accepted`], all fields after it except the turn are to be ignored.
    pub answer: OpenAnswer,
    /// Flags (4 bytes), bit 0: messages are matched by the NICs.
    pub matched: bool,
    /// Flags, bit 1: the accepting NIC guarantees the length of a remote write.
    pub remote_len: bool,
    /// The accepting side's id of the comm (8 bytes).
    pub comm: u64,
    /// The region for fin records.
    pub fins: RemoteRegion,
    /// The largest eager payload in bytes that the accepting side receives; 0 for none (4 bytes).
    pub eager_max: u32,
    /// The number of eager messages that the accepting side buffers before they are matched (4 bytes).
    pub eager_credits: u32,
    /// The address of the accepting side's link (2 bytes of length, at most 256, and that many bytes). Empty if the comm is not accepted or has no
    /// links of its own, and only then.
    pub link: Vec<u8>,
    /// The links of the comm (32 bytes, at the end); [`ShareOutcome::Alone`] if the comm is not accepted.
    pub share: share::ShareAnswer,
}

/// LINK_DOWN (kind 6): the sender's end of a link is in error, and no operation that the peer posted there lands any more.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkDown {
    /// The receiver's own id of its end of the comm (8 bytes).
    pub id: u64,
    /// The index of the link (4 bytes, 0 to 3).
    pub link: u8,
    /// The number of the connection of that link (4 bytes). It counts from 0 for the link of OPEN and from 1 for the others, and wraps.
    pub epoch: u32,
    /// Flags (4 bytes), bit 0: the sender waits for the same frame from the peer.
    pub answer: bool,
    /// The first receive whose record the sender of this frame has not read, if that is a sending end; 0 from a receiving end (4 bytes).
    pub next: u32,
    /// The delivery report, which a receiving end always sends; flags, bit 1 announces it.
    pub standing: Option<DeliveryReport>,
}

/// LINK_OPEN (kind 7), sent by the sending end: requests a further link of an existing comm, or a lost one again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkOpen {
    /// The receiver's own id of its end of the comm (8 bytes).
    pub id: u64,
    /// The index of the link (4 bytes, 0 to 3).
    pub link: u8,
    /// The number of the connection of that link (4 bytes).
    pub epoch: u32,
    /// The region for clear-to-send records over this link.
    pub mailbox: RemoteRegion,
    /// The address of the requesting side's link.
    pub address: Vec<u8>,
}

/// LINK_RESULT (kind 8): the reply to a [`LinkOpen`] whose other end was created. If that fails, a [`LinkDown`] is sent instead.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkResult {
    /// The receiver's own id of its end of the comm (8 bytes).
    pub id: u64,
    /// The index of the link (4 bytes, 0 to 3).
    pub link: u8,
    /// The number of the connection of that link (4 bytes).
    pub epoch: u32,
    /// The region for fin records over this link.
    pub fins: RemoteRegion,
    /// The address of the answering side's link.
    pub address: Vec<u8>,
}

/// One control frame: kind (1 byte), header version (1 byte, 1), 2 reserved bytes, and from offset 4 the body. At most 4096 bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ControlFrame {
    /// Kind 1, the first frame of both ends: the process and its protocol versions. The body begins with a magic number (8 bytes).
    Hello {
        /// Lowest supported version (2 bytes).
        min: u16,
        /// Highest supported version (2 bytes).
        max: u16,
        /// The sender's offer of sharing (4 bytes).
        offer: ShareOffer,
        /// The sender's process id (16 bytes).
        process: ProcessId,
    },
    /// Requests a comm.
    Open(OpenFrame),
    /// The reply to an OPEN.
    Result(ResultFrame),
    /// Kind 4: the connecting side's link works.
    Ready {
        /// The accepting side's id of the comm (8 bytes).
        comm: u64,
        /// The connecting side's id of the connection (8 bytes).
        conn: u64,
    },
    /// Kind 5: the sender's end is closed.
    Close {
        /// The receiver's own id of its end (8 bytes).
        id: u64,
        /// Messages sent, from a sending end, or arrived, from a receiving end (8 bytes).
        messages: u64,
    },
    /// Reports a link that its sender has left.
    LinkDown(LinkDown),
    /// Requests a link.
    LinkOpen(LinkOpen),
    /// The reply to a LINK_OPEN.
    LinkResult(LinkResult),
    /// Kind 9: both ends of the link are connected, and the sending end uses it.
    LinkReady {
        /// The receiver's own id of its end of the comm (8 bytes).
        id: u64,
        /// The index of the link (4 bytes, 0 to 3).
        link: u8,
        /// The number of the connection of that link (4 bytes).
        epoch: u32,
    },
    /// Kind 10: no operation of the sender's end of a comm will land any more; each has completed or can no longer execute. For comms that share
    /// queue pairs, whose links do not end with them.
    Gone {
        /// The receiver's own id of its end (8 bytes).
        id: u64,
    },
    /// Kind 11: the sender ends a comm that shares queue pairs. The other end stops posting, and sends [`ControlFrame::Gone`] when all its posted
    /// operations have completed.
    Stop {
        /// The receiver's own id of its end (8 bytes).
        id: u64,
    },
}

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// The magic number of a HELLO is wrong: the peer is not Trunkline.
    #[error("the frame has the wrong magic number {0:#x}")]
    Magic(u64),
    /// The header version is not 1.
    #[error("the frame has the unknown version {0}")]
    Version(u8),
    /// The kind is unknown.
    #[error("the frame has the unknown kind {0}")]
    Kind(u8),
    /// Bytes follow the end of the frame, or a length in it is too large.
    #[error("the frame has a wrong length")]
    Length,
    /// The link index or the number of links is out of range (at most [`LINKS_MAX`] links).
    #[error("the index or number {0} of links is out of range")]
    Link(u32),
    /// The delivery report is invalid.
    #[error(transparent)]
    Standing(#[from] DeliveryReportError),
    /// The sharing request or answer is invalid.
    #[error("the sharing fields of the frame are invalid: {0}")]
    Share(#[from] ShareError),
    /// A link address is present where it must be empty, or empty where it must be present.
    #[error("a link address of {0} bytes contradicts the frame's kind of sharing")]
    Address(u16),
    /// A RESULT that does not accept the comm names a group, or has the outcome *retry* or *full*.
    #[error("a RESULT without a comm names a group")]
    Nobody,
}

impl ControlFrame {
    /// Returns the frame's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
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
            Self::Gone { .. } => 10,
            Self::Stop { .. } => 11,
        };
        out.u8(kind).u8(1).u16(0);
        match self {
            Self::Hello { min, max, offer, process } => {
                out.u64(MAGIC).u16(*min).u16(*max).u32(offer.to_bits()).bytes(&process.0);
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
                    standing.write_to(&mut out);
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
            Self::Gone { id } | Self::Stop { id } => {
                out.u64(*id);
            }
        }
        out.0
    }

    /// Returns the receiver's id of its end and the index of the link, if the frame concerns one link of a comm.
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
            | Self::Close { .. }
            | Self::Gone { .. }
            | Self::Stop { .. } => None,
        }
    }

    /// Parses a frame.
    ///
    /// # Errors
    /// [`FrameError`] names the invalid field; the stream that carried the frame must end.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut reader = FieldReader(bytes);
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
                let mailbox = read_region(&mut reader)?;
                let address = read_link(&mut reader)?;
                Self::LinkOpen(LinkOpen { id, link, epoch, mailbox, address })
            }
            8 => {
                let (id, link, epoch) = read_which(&mut reader)?;
                let fins = read_region(&mut reader)?;
                let address = read_link(&mut reader)?;
                Self::LinkResult(LinkResult { id, link, epoch, fins, address })
            }
            9 => {
                let (id, link, epoch) = read_which(&mut reader)?;
                Self::LinkReady { id, link, epoch }
            }
            10 => Self::Gone { id: reader.u64()? },
            11 => Self::Stop { id: reader.u64()? },
            other => return Err(FrameError::Kind(other)),
        };
        if reader.0.is_empty() { Ok(frame) } else { Err(FrameError::Length) }
    }
}

fn read_hello(reader: &mut FieldReader<'_>) -> Result<ControlFrame, FrameError> {
    let magic = reader.u64()?;
    if magic != MAGIC {
        return Err(FrameError::Magic(magic));
    }
    let min = reader.u16()?;
    let max = reader.u16()?;
    let offer = ShareOffer::from_bits(reader.u32()?);
    Ok(ControlFrame::Hello { min, max, offer, process: ProcessId(reader.array()?) })
}

fn write_link(out: &mut FieldWriter, link: &[u8]) {
    let used = link.len().min(LINK_MAX);
    out.u16(used as u16).bytes(&link[..used]);
}

fn read_link(reader: &mut FieldReader<'_>) -> Result<Vec<u8>, FrameError> {
    let used = usize::from(reader.u16()?);
    if used > LINK_MAX {
        return Err(FrameError::Length);
    }
    Ok(reader.bytes(used)?.to_vec())
}

/// Checks that an address is present exactly where one is needed.
fn check_link(link: &[u8], needed: bool) -> Result<(), FrameError> {
    if link.is_empty() != needed {
        return Ok(());
    }
    Err(FrameError::Address(link.len() as u16))
}

fn read_region(reader: &mut FieldReader<'_>) -> Result<RemoteRegion, FrameError> {
    Ok(RemoteRegion { key: reader.u64()?, addr: reader.u64()? })
}

fn write_which(out: &mut FieldWriter, id: u64, link: u8, epoch: u32) {
    out.u64(id).u32(u32::from(link)).u32(epoch);
}

fn read_which(reader: &mut FieldReader<'_>) -> Result<(u64, u8, u32), FrameError> {
    let id = reader.u64()?;
    let link = reader.u32()?;
    let epoch = reader.u32()?;
    match u8::try_from(link) {
        Ok(number) if usize::from(number) < LINKS_MAX => Ok((id, number, epoch)),
        _ => Err(FrameError::Link(link)),
    }
}

fn read_down(reader: &mut FieldReader<'_>) -> Result<LinkDown, FrameError> {
    let (id, link, epoch) = read_which(reader)?;
    let flags = reader.u32()?;
    let next = reader.u32()?;
    let standing = if flags & 2 != 0 { Some(DeliveryReport::from_reader(reader)?) } else { None };
    Ok(LinkDown { id, link, epoch, answer: flags & 1 != 0, next, standing })
}

fn write_open(out: &mut FieldWriter, open: &OpenFrame) {
    out.u64(open.conn).u64(open.listen).bytes(&open.nonce);
    out.u32(u32::from(open.matched) | u32::from(open.near) << 1 | u32::from(open.links) << 8);
    out.u64(open.mailbox.key).u64(open.mailbox.addr);
    write_link(out, &open.link);
    out.bytes(&open.share.to_bytes());
}

fn read_open(reader: &mut FieldReader<'_>) -> Result<OpenFrame, FrameError> {
    let conn = reader.u64()?;
    let listen = reader.u64()?;
    let nonce = reader.array()?;
    let flags = reader.u32()?;
    let matched = flags & 1 != 0;
    let near = flags & 2 != 0;
    let links = (flags >> 8) as u8;
    if links == 0 || usize::from(links) > LINKS_MAX {
        return Err(FrameError::Link(links.into()));
    }
    let mailbox = read_region(reader)?;
    let link = read_link(reader)?;
    let share = ShareRequest::from_reader(reader)?;
    check_link(&link, !matches!(share.mode, ShareMode::Join(..)))?;
    Ok(OpenFrame { conn, listen, nonce, matched, near, links, mailbox, link, share })
}

fn write_reply(out: &mut FieldWriter, reply: &ResultFrame) {
    let answer = match reply.answer {
        OpenAnswer::Accepted => 0,
        OpenAnswer::Refused => 1,
        OpenAnswer::NoResources => 2,
        OpenAnswer::Other(n) => n,
    };
    out.u64(reply.conn).u8(answer).bytes(&[0; 3]);
    out.u32(u32::from(reply.matched) | u32::from(reply.remote_len) << 1).u64(reply.comm);
    out.u64(reply.fins.key).u64(reply.fins.addr).u32(reply.eager_max).u32(reply.eager_credits);
    write_link(out, &reply.link);
    out.bytes(&reply.share.to_bytes());
}

fn read_reply(reader: &mut FieldReader<'_>) -> Result<ResultFrame, FrameError> {
    let conn = reader.u64()?;
    let [answer, ..] = reader.array::<4>()?;
    let answer = match answer {
        0 => OpenAnswer::Accepted,
        1 => OpenAnswer::Refused,
        2 => OpenAnswer::NoResources,
        n => OpenAnswer::Other(n),
    };
    let flags = reader.u32()?;
    let reply = ResultFrame {
        conn,
        answer,
        matched: flags & 1 != 0,
        remote_len: flags & 2 != 0,
        comm: reader.u64()?,
        fins: read_region(reader)?,
        eager_max: reader.u32()?,
        eager_credits: reader.u32()?,
        link: read_link(reader)?,
        share: share::ShareAnswer::from_reader(reader)?,
    };
    let accepted = answer == OpenAnswer::Accepted;
    if !accepted && reply.share.given != ShareOutcome::Alone {
        return Err(FrameError::Nobody);
    }
    let own = matches!(reply.share.given, ShareOutcome::Alone | ShareOutcome::Created { .. });
    check_link(&reply.link, accepted && own)?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use core::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::delivery_report::WaitingBuffer;
    use crate::wire::imm::BufferToken;
    use crate::wire::member::MemberId;
    use crate::wire::proof::{GroupEpoch, GroupProof};
    use crate::wire::share::{ANSWER_BYTES, REQUEST_BYTES};

    const EPOCH: GroupEpoch = GroupEpoch(NonZeroU64::MAX);

    fn member() -> MemberId {
        MemberId::from_bits(1 << 10 | 5).unwrap()
    }

    fn open(mode: ShareMode, turn: u32, link: Vec<u8>) -> ControlFrame {
        let share = ShareRequest { mode, turn };
        let mailbox = RemoteRegion { key: 1, addr: 2 };
        ControlFrame::Open(OpenFrame {
            conn: 1,
            listen: 2,
            nonce: [3; 16],
            matched: true,
            near: turn > 0,
            links: 4,
            mailbox,
            link,
            share,
        })
    }

    fn result(answer: OpenAnswer, given: ShareOutcome, turn: u32, link: Vec<u8>) -> ControlFrame {
        ControlFrame::Result(ResultFrame {
            conn: 1,
            answer,
            matched: false,
            remote_len: true,
            comm: 2,
            fins: RemoteRegion { key: 1, addr: 2 },
            eager_max: 3,
            eager_credits: 4,
            link,
            share: share::ShareAnswer { given, turn },
        })
    }

    /// All modes of a request, and whether the frame carries a link address with it.
    fn modes() -> [(ShareMode, bool); 5] {
        let join = ShareMode::Join(EPOCH, GroupProof(0));
        [
            (ShareMode::Alone, true),
            (ShareMode::Rather, true),
            (ShareMode::Create(EPOCH), true),
            (ShareMode::First(EPOCH), true),
            (join, false),
        ]
    }

    /// All outcomes, and whether the frame carries a link address with it.
    fn givens() -> [(ShareOutcome, bool); 5] {
        let created = ShareOutcome::Created { epoch: EPOCH, proof: GroupProof(1), member: member() };
        let joined = ShareOutcome::Joined { epoch: EPOCH, member: member() };
        [
            (ShareOutcome::Alone, true),
            (created, true),
            (joined, false),
            (ShareOutcome::Retry, false),
            (ShareOutcome::Full, false),
        ]
    }

    fn frames() -> Vec<ControlFrame> {
        let region = RemoteRegion { key: 1, addr: 2 };
        vec![
            ControlFrame::Hello {
                min: 1,
                max: 3,
                offer: ShareOffer { groups: 64 },
                process: ProcessId([7; 16]),
            },
            open(ShareMode::Alone, 0, vec![4; 256]),
            open(ShareMode::Join(EPOCH, GroupProof(7)), u32::MAX, vec![]),
            result(OpenAnswer::Other(9), ShareOutcome::Alone, 5, vec![]),
            result(OpenAnswer::Accepted, ShareOutcome::Alone, 0, vec![6; 120]),
            result(OpenAnswer::Accepted, ShareOutcome::Retry, 1, vec![]),
            ControlFrame::Gone { id: 9 },
            ControlFrame::Stop { id: u64::MAX },
            ControlFrame::Ready { comm: 1, conn: 2 },
            ControlFrame::Close { id: 3, messages: 4 },
            ControlFrame::LinkDown(LinkDown {
                id: 1,
                link: 3,
                epoch: u32::MAX,
                answer: true,
                next: 0,
                standing: Some(DeliveryReport {
                    next: 7,
                    frontier: 8,
                    ahead: 1 << 127 | 1,
                    waiting: vec![WaitingBuffer {
                        token: BufferToken::new(5, 6),
                        stripes: 0x8001,
                        fin: true,
                    }],
                }),
            }),
            ControlFrame::LinkDown(LinkDown {
                id: 1,
                link: 0,
                epoch: 0,
                answer: false,
                next: 9,
                standing: None,
            }),
            ControlFrame::LinkOpen(LinkOpen {
                id: 1,
                link: 2,
                epoch: 3,
                mailbox: region,
                address: vec![9; 120],
            }),
            ControlFrame::LinkResult(LinkResult { id: 1, link: 2, epoch: 3, fins: region, address: vec![] }),
            ControlFrame::LinkReady { id: 1, link: 1, epoch: 3 },
        ]
    }

    #[test]
    fn frames_round_trip_and_truncated_ones_are_rejected() {
        for frame in frames() {
            let mut bytes = frame.to_bytes();
            assert_eq!(ControlFrame::from_bytes(&bytes).as_ref(), Ok(&frame));
            for len in 0..bytes.len() {
                assert!(ControlFrame::from_bytes(&bytes[..len]).is_err(), "{frame:?} cut to {len}");
            }
            bytes.push(0);
            assert_eq!(ControlFrame::from_bytes(&bytes), Err(FrameError::Length));
        }
    }

    #[test]
    fn link_numbers_out_of_range_are_rejected() {
        // Id, number of the link and epoch are the first fields of each frame about one link.
        let frame = ControlFrame::LinkReady { id: 1, link: 1, epoch: 3 };
        for link in [LINKS_MAX as u32, 255, 256, 0x0100_0001, u32::MAX] {
            let mut bytes = frame.to_bytes();
            bytes[12..16].copy_from_slice(&link.to_le_bytes());
            assert_eq!(ControlFrame::from_bytes(&bytes), Err(FrameError::Link(link)));
        }
    }

    #[test]
    fn layout_is_the_documented_one() {
        let hello = ControlFrame::Hello {
            min: 3,
            max: 4,
            offer: ShareOffer { groups: 8 },
            process: ProcessId([7; 16]),
        };
        assert_eq!(hello.to_bytes()[12..20], [3, 0, 4, 0, 8, 0, 0, 0]);
        let request = ShareRequest { mode: ShareMode::Create(EPOCH), turn: 6 };
        let bytes = open(request.mode, 6, vec![9; 20]).to_bytes();
        assert_eq!(bytes.len(), 4 + 52 + 2 + 20 + REQUEST_BYTES);
        assert_eq!(bytes[bytes.len() - REQUEST_BYTES..], request.to_bytes());
        let answer = share::ShareAnswer { given: givens()[1].0, turn: 7 };
        let bytes = result(OpenAnswer::Accepted, answer.given, 7, vec![9; 20]).to_bytes();
        assert_eq!(bytes.len(), 4 + 48 + 2 + 20 + ANSWER_BYTES);
        assert_eq!(bytes[bytes.len() - ANSWER_BYTES..], answer.to_bytes());
        assert_eq!(ControlFrame::Gone { id: 5 }.to_bytes(), [10, 1, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ControlFrame::Stop { id: 6 }.to_bytes(), [11, 1, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn only_own_links_have_an_address() {
        let read = |frame: ControlFrame| ControlFrame::from_bytes(&frame.to_bytes()).err();
        let wrong = |len: u16| Some(FrameError::Address(len));
        for (mode, own) in modes() {
            assert_eq!(read(open(mode, 0, vec![1])), if own { None } else { wrong(1) }, "{mode:?}");
            assert_eq!(read(open(mode, 0, vec![])), if own { wrong(0) } else { None }, "{mode:?}");
        }
        for (given, own) in givens() {
            let accepted = |link| read(result(OpenAnswer::Accepted, given, 0, link));
            assert_eq!(accepted(vec![1; 256]), if own { None } else { wrong(256) }, "{given:?}");
            assert_eq!(accepted(vec![]), if own { wrong(0) } else { None }, "{given:?}");
        }
        for answer in [OpenAnswer::Refused, OpenAnswer::NoResources, OpenAnswer::Other(3)] {
            assert_eq!(read(result(answer, ShareOutcome::Alone, 0, vec![])), None);
            assert_eq!(read(result(answer, ShareOutcome::Alone, 0, vec![1])), wrong(1), "{answer:?}");
        }
    }

    #[test]
    fn refused_comm_is_in_no_group() {
        for (given, _) in &givens()[1..] {
            for answer in [OpenAnswer::Refused, OpenAnswer::NoResources, OpenAnswer::Other(3)] {
                let bytes = result(answer, *given, 0, vec![]).to_bytes();
                let read = ControlFrame::from_bytes(&bytes);
                assert_eq!(read, Err(FrameError::Nobody), "{answer:?} {given:?}");
            }
        }
    }

    #[test]
    fn invalid_sharing_fields_are_rejected() {
        let refused = |mut bytes: Vec<u8>, tail: usize, at: usize, error| {
            let at = bytes.len() - tail + at;
            bytes[at] ^= 0x41;
            assert_eq!(ControlFrame::from_bytes(&bytes), Err(FrameError::Share(error)));
        };
        let bytes = open(ShareMode::Alone, 0, vec![1]).to_bytes();
        refused(bytes.clone(), REQUEST_BYTES, 0, ShareError::Kind(0x41));
        refused(bytes.clone(), REQUEST_BYTES, 3, ShareError::Reserved);
        refused(bytes.clone(), REQUEST_BYTES, 8, ShareError::Reserved);
        let bytes = result(OpenAnswer::Accepted, ShareOutcome::Alone, 0, vec![1]).to_bytes();
        refused(bytes.clone(), ANSWER_BYTES, 0, ShareError::Kind(0x41));
        refused(bytes.clone(), ANSWER_BYTES, 12, ShareError::Reserved);
        refused(bytes, ANSWER_BYTES, 31, ShareError::Reserved);
    }

    /// As sent by a process of an older version, whose frames have no sharing fields.
    #[test]
    fn open_and_result_without_sharing_fields_are_rejected() {
        let short = Err(FrameError::Share(ShareError::Short(ShortInput)));
        let bytes = open(ShareMode::Alone, 0, vec![1; 20]).to_bytes();
        assert_eq!(ControlFrame::from_bytes(&bytes[..bytes.len() - REQUEST_BYTES]), short);
        let bytes = result(OpenAnswer::Accepted, ShareOutcome::Alone, 0, vec![1; 20]).to_bytes();
        assert_eq!(ControlFrame::from_bytes(&bytes[..bytes.len() - ANSWER_BYTES]), short);
    }

    fn mode() -> impl Strategy<Value = ShareMode> {
        let epoch = any::<NonZeroU64>().prop_map(GroupEpoch);
        prop_oneof![
            Just(ShareMode::Alone),
            Just(ShareMode::Rather),
            epoch.clone().prop_map(ShareMode::Create),
            epoch.clone().prop_map(ShareMode::First),
            (epoch, any::<u64>()).prop_map(|(epoch, proof)| ShareMode::Join(epoch, GroupProof(proof))),
        ]
    }

    fn given() -> impl Strategy<Value = ShareOutcome> {
        let member = (0..MemberId::SLOTS_MAX as u32, 1_u32..1 << MemberId::GENERATION_BITS)
            .prop_map(|(slot, generation)| MemberId::from_slot(crate::slots::SlotId { slot, generation }));
        let group = (any::<NonZeroU64>().prop_map(GroupEpoch), member);
        prop_oneof![
            Just(ShareOutcome::Alone),
            Just(ShareOutcome::Retry),
            Just(ShareOutcome::Full),
            group.clone().prop_map(|(epoch, member)| ShareOutcome::Joined { epoch, member }),
            (group, any::<u64>()).prop_map(|((epoch, member), proof)| {
                ShareOutcome::Created { epoch, proof: GroupProof(proof), member }
            }),
        ]
    }

    proptest! {
        #[test]
        fn sharing_requests_and_replies_round_trip(
            (mode, given) in (mode(), given()),
            turn: u32,
            link in prop::collection::vec(any::<u8>(), 1..=LINK_MAX),
        ) {
            let own = |own: bool| if own { link.clone() } else { vec![] };
            let asked = open(mode, turn, own(!matches!(mode, ShareMode::Join(..))));
            prop_assert_eq!(ControlFrame::from_bytes(&asked.to_bytes()), Ok(asked));
            let links = matches!(given, ShareOutcome::Alone | ShareOutcome::Created { .. });
            let answered = result(OpenAnswer::Accepted, given, turn, own(links));
            prop_assert_eq!(ControlFrame::from_bytes(&answered.to_bytes()), Ok(answered));
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: Vec<u8>) {
            let _ = ControlFrame::from_bytes(&bytes);
        }

        #[test]
        fn a_flipped_bit_never_panics(which in 0..frames().len(), at: prop::sample::Index, bit in 0..8_u32) {
            let mut bytes = frames()[which].to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = ControlFrame::from_bytes(&bytes);
        }
    }
}
