//! Messages by which two processes of one node share memory: docs/wire.md, "Memory shared inside a node". An exporter announces, references and
//! retires exports; an importer replies. The code that sends the messages of [`crate::ipc`] encodes and parses them. No process uses an address of
//! another process's address space.

use alloc::vec::Vec;

use crate::intervals::ByteSpan;
use crate::limits::EXPORTS_MAX;
use crate::slots::SlotId;
use crate::wire::cursor::{FieldReader, FieldWriter, ShortInput};
use crate::wire::tagged::InboxSizes;

/// Size in bytes of the head of a message: kind (1 byte), version (1), count (2), 4 reserved.
pub const HEAD_BYTES: usize = 8;

/// Size in bytes of a reference, which identifies a buffer in a message.
pub const REFERENCE_BYTES: usize = 24;

/// Longest handle of a driver, in bytes.
pub const HANDLE_MAX: usize = 192;

/// Most names in one RETIRE or RETIRED.
pub const NAMES_MAX: usize = 32;

/// Longest message, in bytes.
pub const MESSAGE_MAX: usize = HEAD_BYTES + 8 * NAMES_MAX;

const VERSION: u8 = 1;

/// The magic number of HELLO.
const MAGIC: u64 = u64::from_le_bytes(*b"trunkipc");

/// Identifies one export of one allocation (8 bytes): slot (4), below [`EXPORTS_MAX`], and generation (4), never 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ExportName(SlotId);

/// Identifies a part of an announced allocation (24 bytes).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ExportReference {
    /// Offset 0, 8 bytes: the export.
    pub name: ExportName,
    /// Offset 8, 16 bytes: offset of the first byte in the allocation, and length in bytes, at least 1.
    pub part: ByteSpan,
}

/// A driver's handle of an allocation, unchanged: at most [`HANDLE_MAX`] bytes, of a kind that both processes know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportHandle {
    kind: u8,
    len: u8,
    bytes: [u8; HANDLE_MAX],
}

/// ANNOUNCE (kind 1): an export that the importer may map from now on. The head's count is the length of the handle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExportAnnouncement {
    /// The name of the export (8 bytes).
    pub name: ExportName,
    /// Address (8 bytes) and length (8 bytes) of the whole allocation at the exporter.
    pub span: ByteSpan,
    /// The exporter's number of the device (4 bytes).
    pub device: u32,
    /// Whether a file descriptor is sent with the message: flags (1 byte), bit 0.
    pub descriptor: bool,
    /// The handle to map: its kind (1 byte, before the flags) and, after 2 reserved bytes, its bytes.
    pub handle: ExportHandle,
}

/// How an operation ended at the importer (1 byte).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CopyOutcome {
    /// 0: the bytes were copied.
    Copied,
    /// 1: the memory could not be mapped; no bytes were copied.
    NotMapped,
    /// 2: it was ended for another reason.
    Ended,
}

/// A list of at least 1 and at most [`NAMES_MAX`] names (8 bytes each); their number is the head's count.
#[derive(Clone, Copy, Debug)]
pub struct ExportNames {
    names: [ExportName; NAMES_MAX],
    len: u8,
}

/// A message of a process to another process of the same node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IpcMessage {
    /// From the exporter: the importer may map an export.
    Announce(ExportAnnouncement),
    /// Kind 2, from the exporter: identifies the memory of an operation.
    Refer {
        /// The exporter's number of the operation (8 bytes).
        operation: u64,
        /// The memory (24 bytes).
        reference: ExportReference,
    },
    /// Kind 3, from the importer: an operation has ended.
    Done {
        /// The exporter's number of the operation (8 bytes).
        operation: u64,
        /// How it ended (1 byte, and 7 reserved).
        outcome: CopyOutcome,
    },
    /// Kind 4, from the exporter: the importer has to unmap these exports.
    Retire(ExportNames),
    /// Kind 5, from the importer: these exports are not mapped any more.
    Retired(ExportNames),
    /// Kind 6: the sender has unmapped everything and shares no memory any more.
    Bye,
    /// Kind 7, the first message of each end.
    Hello(IpcHello),
    /// Kind 8: the memory into which the peer writes tagged messages. A descriptor is sent with it.
    Inbox(InboxSizes),
}

/// HELLO: a magic number (8 bytes), then the fields in this order, then 4 reserved bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpcHello {
    /// The random name of the process, different after each start (16 bytes).
    pub process: [u8; 16],
    /// The number of operations without DONE that may reference the peer's memory at once; at least 1 (4 bytes).
    pub operations: u32,
}

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IpcError {
    /// It is too short.
    #[error(transparent)]
    Short(#[from] ShortInput),
    /// Bytes follow its end.
    #[error("{0} bytes follow the end of the message")]
    Long(usize),
    /// The version is not that of this code.
    #[error("the message has version {0}, this process {VERSION}")]
    Version(u8),
    /// The kind is unknown.
    #[error("the message has the unknown kind {0}")]
    Kind(u8),
    /// Bits that must be zero are set.
    #[error("reserved bits are set")]
    Reserved,
    /// The slot or the generation of a name is out of range.
    #[error("slot {0}, generation {1} is not a valid name of an export")]
    Name(u32, u32),
    /// The range is empty, or reaches beyond the last address.
    #[error("{len} bytes at {start:#x} are empty or exceed the address range")]
    Span {
        /// The first byte.
        start: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The number of names or the length of a handle is out of range, or the kind has no count.
    #[error("the count {0} of handle bytes or names is out of range")]
    Count(u16),
    /// The outcome is unknown.
    #[error("unknown outcome {0}")]
    Outcome(u8),
    /// The sizes of an inbox are invalid.
    #[error("the inbox has invalid sizes: {0:?} cells and bytes")]
    Inbox([u32; 3]),
    /// The magic number of a HELLO is wrong, or the process accepts no operations.
    #[error("the HELLO is not of a process that shares memory")]
    Hello,
}

impl ExportName {
    /// Returns the name of that slot and generation; `None` if they are out of range.
    #[must_use]
    pub const fn new(id: SlotId) -> Option<Self> {
        if (id.slot as usize) < EXPORTS_MAX && id.generation != 0 { Some(Self(id)) } else { None }
    }

    /// Returns the slot and the generation.
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
    /// Returns the reference's bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[0..8].copy_from_slice(&self.name.0.to_bits().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.part.start().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.part.len().to_le_bytes());
        bytes
    }

    /// Parses a reference.
    ///
    /// # Errors
    /// [`IpcError`] names the invalid field.
    #[inline]
    pub fn from_bytes(bytes: &[u8; REFERENCE_BYTES]) -> Result<Self, IpcError> {
        Self::from_reader(&mut FieldReader(bytes))
    }

    fn from_reader(reader: &mut FieldReader<'_>) -> Result<Self, IpcError> {
        Ok(Self { name: ExportName::from_reader(reader)?, part: read_span(reader)? })
    }
}

impl ExportHandle {
    /// Creates a handle from a driver's bytes; `None` if they exceed [`HANDLE_MAX`].
    #[must_use]
    pub fn new(kind: u8, of: &[u8]) -> Option<Self> {
        let len = u8::try_from(of.len()).ok()?;
        let mut bytes = [0; HANDLE_MAX];
        bytes.get_mut(..of.len())?.copy_from_slice(of);
        Some(Self { kind, len, bytes })
    }

    /// Returns the kind of the handle, a number that both processes know.
    #[must_use]
    pub const fn memory_kind(&self) -> u8 {
        self.kind
    }

    /// Returns the driver's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl ExportNames {
    /// Creates a list of names; `None` if there are none or too many.
    #[must_use]
    pub fn new(of: &[ExportName]) -> Option<Self> {
        let mut names = [*of.first()?; NAMES_MAX];
        names.get_mut(..of.len())?.copy_from_slice(of);
        Some(Self { names, len: of.len() as u8 })
    }

    /// Returns all names.
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
    /// Returns the message's bytes, at most [`MESSAGE_MAX`].
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

    /// Parses a message, which occupies all of `bytes`.
    ///
    /// # Errors
    /// [`IpcError`] names the invalid field.
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
