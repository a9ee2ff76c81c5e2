//! What processes of one node say to share memory: an exporter announces, refers and retires, an importer answers. Written
//! and read by whoever moves the messages of [`crate::ipc`]; no address of a process is ever meant for another one.

use alloc::vec::Vec;

use crate::intervals::ByteSpan;
use crate::limits::EXPORTS_MAX;
use crate::slots::SlotId;
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::tagged::InboxSizes;

/// Bytes before what a message says.
pub const HEAD_BYTES: usize = 8;

/// Bytes of a reference: what names a buffer in a message.
pub const REFERENCE_BYTES: usize = 24;

/// Most bytes of a driver's handle.
pub const HANDLE_MAX: usize = 192;

/// Most names that one message retires.
pub const NAMES_MAX: usize = 32;

/// Most bytes of a message.
pub const MESSAGE_MAX: usize = HEAD_BYTES + 8 * NAMES_MAX;

const VERSION: u8 = 1;

/// What a HELLO says first.
const MAGIC: u64 = u64::from_le_bytes(*b"trunkipc");

/// One export of one allocation. Its slot is below [`EXPORTS_MAX`], its generation never 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ExportName(SlotId);

/// A part of an allocation that was announced: what a hit says.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ExportReference {
    /// Which export.
    pub name: ExportName,
    /// Which of its bytes, counted from its first.
    pub part: ByteSpan,
}

/// What a driver gave for an allocation, as it is: at most [`HANDLE_MAX`] bytes of a kind that the two processes know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportHandle {
    kind: u8,
    len: u8,
    bytes: [u8; HANDLE_MAX],
}

/// An export that an importer may map from now on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportAnnouncement {
    /// What it is called.
    pub name: ExportName,
    /// Where the whole allocation lies at the exporter.
    pub span: ByteSpan,
    /// The exporter's number of its device.
    pub device: u32,
    /// Whether a file descriptor comes along.
    pub descriptor: bool,
    /// What to map.
    pub handle: ExportHandle,
}

/// How an operation ended at the importer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CopyOutcome {
    /// The bytes were copied.
    Copied,
    /// The memory could not be mapped; nothing was copied.
    NotMapped,
    /// It was ended for another reason.
    Ended,
}

/// At least one name, at most [`NAMES_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct ExportNames {
    names: [ExportName; NAMES_MAX],
    len: u8,
}

/// A message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IpcMessage {
    /// From the exporter: this may be mapped.
    Announce(ExportAnnouncement),
    /// From the exporter: this is what an operation is about.
    Refer {
        /// The exporter's number of the operation.
        operation: u64,
        /// Its bytes.
        reference: ExportReference,
    },
    /// From the importer: an operation has ended.
    Done {
        /// Which.
        operation: u64,
        /// How.
        outcome: CopyOutcome,
    },
    /// From the exporter: these are to be unmapped.
    Retire(ExportNames),
    /// From the importer: these are mapped no more.
    Retired(ExportNames),
    /// The speaker shares nothing any more.
    Bye,
    /// What each end says first.
    Hello(IpcHello),
    /// Where the other end may write tagged messages. A descriptor comes along.
    Inbox(InboxSizes),
}

/// Who speaks, and what it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpcHello {
    /// The random name of the process, another one after each start.
    pub process: [u8; 16],
    /// How many operations may refer to the other end's memory at once, not one DONE among them; at least 1.
    pub operations: u32,
}

/// A message could not be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IpcError {
    /// It ends too early.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// It goes on behind its end.
    #[error("{0} bytes too many")]
    Long(usize),
    /// It is of another version.
    #[error("version {0} of the messages, this is version {VERSION}")]
    Version(u8),
    /// It is of no kind that there is.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// Bits that must be zero are not.
    #[error("reserved bits are set")]
    Reserved,
    /// A slot or a generation that no export has.
    #[error("no export has slot {0}, generation {1}")]
    Name(u32, u32),
    /// No bytes, or more than an address can tell.
    #[error("{len} bytes from {start:#x} on")]
    Span {
        /// The first byte.
        start: u64,
        /// How many.
        len: u64,
    },
    /// More than there may be of something, or none.
    #[error("{0} bytes of a handle, or names")]
    Count(u16),
    /// No outcome that there is.
    #[error("unknown outcome {0}")]
    Outcome(u8),
    /// An inbox of sizes that none has.
    #[error("an inbox of {0:?} cells and bytes")]
    Inbox([u32; 3]),
    /// A HELLO of something else, or of who takes no operation.
    #[error("no HELLO of a process that shares memory")]
    Hello,
}

impl ExportName {
    /// The name of a place and of one of its uses; `None` if no export has it.
    #[must_use]
    pub const fn new(id: SlotId) -> Option<Self> {
        if (id.slot as usize) < EXPORTS_MAX && id.generation != 0 { Some(Self(id)) } else { None }
    }

    /// The place and the use.
    #[must_use]
    pub const fn slot_id(self) -> SlotId {
        self.0
    }

    fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, IpcError> {
        let id = SlotId { slot: reader.u32()?, generation: reader.u32()? };
        Self::new(id).ok_or(IpcError::Name(id.slot, id.generation))
    }
}

impl ExportReference {
    /// The reference's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[0..8].copy_from_slice(&self.name.0.to_bits().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.part.start().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.part.len().to_le_bytes());
        bytes
    }

    /// Reads a reference.
    ///
    /// # Errors
    /// [`IpcError`] says what is wrong.
    #[inline]
    pub fn from_bytes(bytes: &[u8; REFERENCE_BYTES]) -> Result<Self, IpcError> {
        Self::from_reader(&mut FieldReader(bytes))
    }

    fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, IpcError> {
        Ok(Self { name: ExportName::from_reader(reader)?, part: read_span(reader)? })
    }
}

impl ExportHandle {
    /// A driver's bytes; `None` if they are more than [`HANDLE_MAX`].
    #[must_use]
    pub fn new(kind: u8, of: &[u8]) -> Option<Self> {
        let len = u8::try_from(of.len()).ok()?;
        let mut bytes = [0; HANDLE_MAX];
        bytes.get_mut(..of.len())?.copy_from_slice(of);
        Some(Self { kind, len, bytes })
    }

    /// What sort of memory it is of, by a number that both processes know.
    #[must_use]
    pub const fn memory_kind(&self) -> u8 {
        self.kind
    }

    /// What the driver gave.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl ExportNames {
    /// These; `None` if there are none or too many.
    #[must_use]
    pub fn new(of: &[ExportName]) -> Option<Self> {
        let mut names = [*of.first()?; NAMES_MAX];
        names.get_mut(..of.len())?.copy_from_slice(of);
        Some(Self { names, len: of.len() as u8 })
    }

    /// All of them.
    #[must_use]
    pub fn get(&self) -> &[ExportName] {
        self.names.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl PartialEq for ExportNames {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for ExportNames {}

impl CopyOutcome {
    pub(super) const fn to_code(self) -> u8 {
        match self {
            Self::Copied => 0,
            Self::NotMapped => 1,
            Self::Ended => 2,
        }
    }

    pub(super) const fn of_code(code: u8) -> Result<Self, IpcError> {
        match code {
            0 => Ok(Self::Copied),
            1 => Ok(Self::NotMapped),
            2 => Ok(Self::Ended),
            other => Err(IpcError::Outcome(other)),
        }
    }
}

impl IpcMessage {
    /// The message's bytes, at most [`MESSAGE_MAX`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match self {
            Self::Announce(one) => {
                write_head(&mut out, 1, u16::from(one.handle.len)).u64(one.name.0.to_bits());
                out.u64(one.span.start()).u64(one.span.len()).u32(one.device);
                out.u8(one.handle.kind).u8(one.descriptor.into()).u16(0).bytes(one.handle.as_bytes());
            }
            Self::Refer { operation, reference } => {
                write_head(&mut out, 2, 0).u64(*operation).bytes(&reference.to_bytes());
            }
            Self::Done { operation, outcome } => {
                write_head(&mut out, 3, 0).u64(*operation).u8(outcome.to_code()).bytes(&[0; 7]);
            }
            Self::Retire(names) => write_names(&mut out, 4, names),
            Self::Retired(names) => write_names(&mut out, 5, names),
            Self::Bye => _ = write_head(&mut out, 6, 0),
            Self::Hello(hello) => {
                write_head(&mut out, 7, 0).u64(MAGIC).bytes(&hello.process).u32(hello.operations).u32(0);
            }
            Self::Inbox(inbox) => {
                let [messages, answers, stage] = inbox.to_words();
                write_head(&mut out, 8, 0).u32(messages).u32(answers).u32(stage).u32(0);
            }
        }
        out.0
    }

    /// Reads a message, all of `bytes`.
    ///
    /// # Errors
    /// [`IpcError`] says what is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, IpcError> {
        let mut reader = FieldReader(bytes);
        let kind = reader.u8()?;
        let version = reader.u8()?;
        let count = reader.u16()?;
        if version != VERSION {
            return Err(IpcError::Version(version));
        }
        check_zero(&reader.array::<4>()?)?;
        if count != 0 && !matches!(kind, 1 | 4 | 5) {
            return Err(IpcError::Count(count));
        }
        let message = match kind {
            1 => Self::Announce(read_announce(&mut reader, count)?),
            2 => Self::Refer {
                operation: reader.u64()?,
                reference: ExportReference::from_reader(&mut reader)?,
            },
            3 => {
                let operation = reader.u64()?;
                let outcome = CopyOutcome::of_code(reader.u8()?)?;
                check_zero(&reader.array::<7>()?)?;
                Self::Done { operation, outcome }
            }
            4 => Self::Retire(read_names(&mut reader, count)?),
            5 => Self::Retired(read_names(&mut reader, count)?),
            6 => Self::Bye,
            7 => Self::Hello(read_hello(&mut reader)?),
            8 => Self::Inbox(read_inbox(&mut reader)?),
            other => return Err(IpcError::Kind(other)),
        };
        if reader.0.is_empty() { Ok(message) } else { Err(IpcError::Long(reader.0.len())) }
    }
}

fn write_head(out: &mut FieldWriter, kind: u8, count: u16) -> &mut FieldWriter {
    out.u8(kind).u8(VERSION).u16(count).u32(0)
}

fn write_names(out: &mut FieldWriter, kind: u8, names: &ExportNames) {
    write_head(out, kind, u16::from(names.len));
    for name in names.get() {
        out.u64(name.0.to_bits());
    }
}

fn read_announce(reader: &mut FieldReader<'_>, count: u16) -> Result<ExportAnnouncement, IpcError> {
    let name = ExportName::from_reader(reader)?;
    let span = read_span(reader)?;
    let device = reader.u32()?;
    let kind = reader.u8()?;
    let flags = reader.u8()?;
    let reserved = reader.u16()?;
    if flags > 1 || reserved != 0 {
        return Err(IpcError::Reserved);
    }
    let bytes = reader.bytes(count.into())?;
    let handle = ExportHandle::new(kind, bytes).ok_or(IpcError::Count(count))?;
    Ok(ExportAnnouncement { name, span, device, descriptor: flags == 1, handle })
}

fn read_hello(reader: &mut FieldReader<'_>) -> Result<IpcHello, IpcError> {
    let magic = reader.u64()?;
    let process = reader.array()?;
    let operations = reader.u32()?;
    check_zero(&reader.array::<4>()?)?;
    if magic == MAGIC && operations > 0 { Ok(IpcHello { process, operations }) } else { Err(IpcError::Hello) }
}

fn read_inbox(reader: &mut FieldReader<'_>) -> Result<InboxSizes, IpcError> {
    let sizes = [reader.u32()?, reader.u32()?, reader.u32()?];
    check_zero(&reader.array::<4>()?)?;
    InboxSizes::new(sizes[0], sizes[1], sizes[2]).map_err(|_| IpcError::Inbox(sizes))
}

fn read_names(reader: &mut FieldReader<'_>, count: u16) -> Result<ExportNames, IpcError> {
    let wrong = IpcError::Count(count);
    let first = if count == 0 { Err(wrong) } else { ExportName::from_reader(reader) }?;
    let mut names = [first; NAMES_MAX];
    for name in names.get_mut(..usize::from(count)).ok_or(wrong)?.iter_mut().skip(1) {
        *name = ExportName::from_reader(reader)?;
    }
    Ok(ExportNames { names, len: count as u8 })
}

fn read_span(reader: &mut FieldReader<'_>) -> Result<ByteSpan, IpcError> {
    let start = reader.u64()?;
    let len = reader.u64()?;
    ByteSpan::new(start, len).ok_or(IpcError::Span { start, len })
}

fn check_zero(bytes: &[u8]) -> Result<(), IpcError> {
    if bytes.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(IpcError::Reserved) }
}

#[cfg(test)]
mod tests;
