//! Channels of windows that kernels in other processes of the host use. The process that has the window lends a
//! channel ([`Window::lend`]) and passes a [`GuestCard`]; the other process opens it as a [`GuestWindow`]. Each side
//! validates everything that it reads of the other, and detects the other's death.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use trunkline_device::{EntryKey, GuestQueues, QueueWords, guest_queues::open_pidfd};
use trunkline_device_queue::DeviceQueue;
use trunkline_mem::{MemoryFileId, MemoryRange, OutOfMemory, SharedMemory};
use trunkline_proto::reserve::{try_filled, try_filled_with, try_vec};
use trunkline_proto::wire::device_queue::{self as wire, EntryStatus, GuestFile};

use super::error::DeviceError;
use super::kernel::Kernel;
use super::window::{OwnPart, Window};

/// The description of a lent channel, for the process that opens it. It can be passed through a pipe or a socket
/// between processes of a host. It names memory files of the process that created it, and contains no secret: a
/// process needs permission to access that process to open them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GuestCard(wire::GuestChannelCard);

/// The memory file of a window, and its channels that are lent to other processes.
#[derive(Debug)]
pub(super) struct LentChannels {
    file: SharedMemory,
    channels: Box<[AtomicBool]>,
}

/// A channel of another process's window. Its kernels are used like those of a window of this process.
#[derive(Debug)]
pub struct GuestWindow {
    guest: GuestQueues,
    part: OwnPart,
    channel: u32,
    lanes: Vec<DeviceQueue<QueueWords>>,
}

impl LentChannels {
    pub(super) fn new(bytes: usize, channels: u32) -> Result<Self, DeviceError> {
        let file = SharedMemory::new("trunkline-window", bytes).map_err(DeviceError::File)?;
        Ok(Self { file, channels: try_filled_with(channels as usize, || AtomicBool::new(false))? })
    }

    pub(super) fn window_memory(&self) -> &MemoryRange {
        self.file.memory()
    }

    pub(super) fn is_lent(&self, channel: u32) -> bool {
        self.channels.get(channel as usize).is_some_and(|lent| lent.load(Ordering::Acquire))
    }

    /// Marks a channel as lent. Returns false if it is out of range or was lent before.
    fn acquire_channel(&self, channel: u32) -> bool {
        self.channels.get(channel as usize).is_some_and(|lent| !lent.swap(true, Ordering::AcqRel))
    }
}

const fn to_guest_file(found: &MemoryFileId) -> GuestFile {
    GuestFile { fd: found.fd, inode: found.inode, len: found.len }
}

impl Window {
    /// Lends a channel to process `to` of this host, permanently: kernels of this process cannot use it any more.
    /// When that process ends, its submitted entries are executed, and the channel ends within 100 ms
    /// ([`guest_has_ended`](Self::guest_has_ended)). The window must live as long as the channel is used.
    ///
    /// # Errors
    /// - [`DeviceError::NotForProcesses`]: the executor is not of
    ///   [`World::devices_for_processes`](crate::World::devices_for_processes).
    /// - [`DeviceError::NoChannel`], [`DeviceError::Lent`]: the channel is out of range, or was lent before.
    /// - [`DeviceError::Process`]: the process does not exist, or cannot be watched.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::process::{Command, Stdio};
    /// # use trunkline::device::Window;
    /// # fn example(window: &Window) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut child = Command::new("worker").stdin(Stdio::piped()).spawn()?;
    /// let card = window.lend(0, child.id())?;
    /// if let Some(mut stdin) = child.stdin.take() {
    ///     card.write_to(&mut stdin)?; // the child opens it as a `GuestWindow`
    /// }
    /// let status = child.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lend(&self, channel: u32, to: u32) -> Result<GuestCard, DeviceError> {
        let lanes = self.channel_lanes(channel)?;
        let lent = self.lent.as_ref().ok_or(DeviceError::NotForProcesses)?;
        let failed = |source: io::Error| DeviceError::Process { process: to, source };
        let watched = open_pidfd(to).map_err(|error| failed(error.into()))?;
        let mut descriptors = try_vec(lanes.len())?;
        for _ in lanes {
            descriptors.push(watched.try_clone().map_err(failed)?);
        }
        let keys = try_vec(self.part.keys.len())?;
        let numbers = try_vec(lanes.len())?;
        if !lent.acquire_channel(channel) {
            return Err(DeviceError::Lent { channel });
        }
        let queues = self.inner.queues.with_executor(|executor| {
            for (queue, descriptor) in lanes.iter().zip(descriptors) {
                executor.set_queue_owner(queue.queue_shape().number(), descriptor);
            }
            executor.memory_file().map(SharedMemory::file_id)
        });
        let queues = queues.ok_or(DeviceError::NotForProcesses)?;
        let part = lent.file.file_id();
        let OwnPart { layout, rank, .. } = &self.part;
        let mut keys = keys;
        let mut numbers = numbers;
        keys.extend(self.part.keys.iter().map(|key| key.to_bits()));
        numbers.extend(lanes.iter().map(|queue| queue.queue_shape().number()));
        Ok(GuestCard(wire::GuestChannelCard {
            pid: part.pid,
            queues: to_guest_file(&queues),
            part: to_guest_file(&part),
            shape: *layout.shape(),
            rank: *rank as u32,
            channel,
            keys,
            numbers,
        }))
    }

    /// Returns whether the process that borrowed a channel has ended, and its submitted entries have been executed or
    /// aborted.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::process::Child;
    /// # use std::time::Duration;
    /// # use trunkline::device::Window;
    /// # fn example(window: &Window, child: &mut Child) -> std::io::Result<()> {
    /// while !window.guest_has_ended(0) {
    ///     std::thread::sleep(Duration::from_millis(10));
    /// }
    /// // No entry of the child is executed any more.
    /// println!("the child that had channel 0 ended with {}", child.wait()?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn guest_has_ended(&self, channel: u32) -> bool {
        let ended = |queue: &DeviceQueue<QueueWords>| {
            queue.abort_word().is_some_and(|why| why.status == EntryStatus::PeerDead)
        };
        let is_lent = self.lent.as_ref().is_some_and(|lent| lent.is_lent(channel));
        is_lent && self.channel_lanes(channel).is_ok_and(|lanes| lanes.iter().all(ended))
    }
}

impl GuestCard {
    /// Returns the rank whose window it describes.
    ///
    /// # Examples
    /// See [`read_from`](Self::read_from).
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.0.rank as usize
    }

    /// Returns the channel.
    ///
    /// # Examples
    /// See [`read_from`](Self::read_from).
    #[must_use]
    pub const fn channel(&self) -> u32 {
        self.0.channel
    }

    /// Serializes the card (docs/wire.md, "Guests").
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{DeviceError, GuestCard, Window};
    /// # fn example(window: &Window, process: u32) -> Result<(), DeviceError> {
    /// let card = window.lend(0, process)?;
    /// let bytes = card.to_bytes(); // for a message of the program to that process
    /// assert_eq!(GuestCard::from_bytes(&bytes)?, card);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    /// Parses a card. Its sender is not trusted: invalid values are rejected here, and the named files are checked
    /// when the card is opened.
    ///
    /// # Errors
    /// [`DeviceError::Card`]: the bytes are no valid card.
    ///
    /// # Examples
    /// ```
    /// use trunkline::device::{DeviceError, GuestCard};
    ///
    /// // Bytes that are no card are an error, so the sender need not be trusted.
    /// let refused = GuestCard::from_bytes(b"not a card");
    /// assert!(matches!(refused, Err(DeviceError::Card(_))));
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DeviceError> {
        Ok(Self(wire::GuestChannelCard::from_bytes(bytes)?))
    }

    /// Writes the card to a pipe, a socket or a file.
    ///
    /// # Errors
    /// The error of the writer.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::process::ChildStdin;
    /// # use trunkline::device::GuestCard;
    /// # fn example(card: &GuestCard, mut stdin: ChildStdin) -> std::io::Result<()> {
    /// card.write_to(&mut stdin)?; // the pipe to the child to which the channel was lent
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.to_bytes())?;
        to.flush()
    }

    /// Reads one card from a pipe, a socket or a file, and no byte beyond it.
    ///
    /// # Errors
    /// The error of the reader; [`io::ErrorKind::InvalidData`] if the bytes are no valid card.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::GuestCard;
    /// # fn example() -> std::io::Result<()> {
    /// let card = GuestCard::read_from(&mut std::io::stdin())?; // from the pipe of the parent
    /// println!("channel {} of rank {}", card.channel(), card.rank());
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_from(from: &mut impl Read) -> io::Result<Self> {
        let wrong = |error: wire::GuestCardError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut head = [0; 16];
        from.read_exact(&mut head)?;
        let len = wire::GuestChannelCard::len_of(&head).map_err(wrong)?;
        let refused = |error: OutOfMemory| io::Error::new(io::ErrorKind::OutOfMemory, error);
        let mut bytes = try_filled(0, len).map_err(refused)?;
        let (first, rest) = bytes.split_at_mut(head.len());
        first.copy_from_slice(&head);
        from.read_exact(rest)?;
        wire::GuestChannelCard::from_bytes(&bytes).map(Self).map_err(wrong)
    }
}

impl GuestWindow {
    /// Opens a lent channel, and maps the memory files of the other process. Call it once, in the process to which
    /// the channel was lent.
    ///
    /// # Errors
    /// - [`DeviceError::Process`]: the lending process does not exist.
    /// - [`DeviceError::Map`], [`DeviceError::Guest`]: its files cannot be mapped, or have no such queues.
    /// - [`DeviceError::Shape`]: the card has an invalid shape.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{GuestCard, GuestWindow};
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let card = GuestCard::read_from(&mut std::io::stdin())?;
    /// let window = GuestWindow::open(&card)?;
    /// let kernel = window.kernel();
    /// println!("a kernel of rank {} of {}", kernel.rank(), kernel.size());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(card: &GuestCard) -> Result<Self, DeviceError> {
        let GuestCard(card) = card;
        // The process is opened before its files, whose numbers then show whether it is still the same process.
        let failed =
            |error: rustix::io::Errno| DeviceError::Process { process: card.pid, source: error.into() };
        let host = open_pidfd(card.pid).map_err(failed)?;
        let map = |file: &GuestFile| {
            MemoryFileId { pid: card.pid, fd: file.fd, inode: file.inode, len: file.len }.map_file()
        };
        let queues = map(&card.queues)?;
        let memory = map(&card.part)?;
        let guest = GuestQueues::open(&queues, Some(host))?;
        let mut lanes = try_vec(card.numbers.len())?;
        let mut keys = try_vec(card.keys.len())?;
        for number in &card.numbers {
            lanes.push(guest.open_queue(*number)?);
        }
        keys.extend(card.keys.iter().map(|key| EntryKey::from_bits(*key)));
        let part = OwnPart {
            layout: card.window_layout()?,
            words: QueueWords::from_memory(memory.clone()),
            memory,
            keys,
            rank: card.rank as usize,
        };
        Ok(Self { guest, part, channel: card.channel, lanes })
    }

    /// Returns the access of one thread of this process to the window; only one may use it at a time. It has all
    /// operations of the rank's own kernels. Its waits end with [`WaitError::Aborted`](super::WaitError::Aborted)
    /// within 100 ms after the executing process has ended.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{GuestWindow, KernelError, PutNotification};
    /// # fn example(window: &GuestWindow) -> Result<(), KernelError> {
    /// let kernel = window.kernel(); // of the rank that has lent the channel
    /// let next = (kernel.rank() + 1) % kernel.size();
    /// kernel.put_bytes(next, 100, 0, b"hello", PutNotification::signal(0))?;
    /// kernel.barrier(0)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kernel(&self) -> Kernel<'_> {
        Kernel::new(&self.part, self.channel, &self.lanes, Some(&self.guest))
    }

    /// Returns whether the executing process has ended, so that all waits end.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::device::{GuestWindow, KernelError};
    /// # fn example(window: &GuestWindow) -> Result<(), KernelError> {
    /// match window.kernel().wait_signal(0, 0, 1) {
    ///     Err(_) if window.host_has_ended() => eprintln!("the lending process has ended"),
    ///     waited => println!("the value of signal 0 is {}", waited?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn host_has_ended(&self) -> bool {
        self.guest.check_host()
    }
}
