//! How the ranks of a host connect to each other, meet in barriers, and close. Called by [`Messages::start`],
//! [`Messages::barrier`] and [`Messages::finish`].

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use trunkline_engine::MemberKey;
use trunkline_engine::host::{ControlReach, UnixHost, UnixListener, UnixOob, UnixStream};
use trunkline_fabric::{Host as _, OobAddress, OobError, OobListener as _, OobTransport as _};
use trunkline_mem::gpu::FreeCount;
use trunkline_mem::ipc::{HandlePassing, IpcMemory, MemfdDevice};
use trunkline_node::NodePage;
use trunkline_node::ipc::NodeConfig as Sharing;
use trunkline_node::tagged::{DEVICE_PIECE, TaggedConfig, TaggedEndpoint, TaggedEvent, TaggedPeerId};
use trunkline_proto::id::ProcessId;
use trunkline_proto::ipc::exporter::ExportAmount;
use trunkline_proto::reserve::{try_collect, try_filled, try_vec};
use trunkline_proto::table_capacity::try_hold;
use trunkline_proto::wire::dial::PublicKey;
use trunkline_proto::wire::tagged::InboxSizes;
use trunkline_runtime::{FrontEndKind, ProcessSettings};

use super::introduction::{ACCEPTS_PER_POLL, IntroductionQueue, RankKeys};
use super::wait::WaitRounds;
use super::window::WindowTable;
use super::{MessageError, Messages, UnixHostClock};
use crate::error::Error;
use crate::world::World;

/// The default budget of exports.
const BUDGET: ExportAmount = ExportAmount { entries: 256, bytes: 1 << 40 };

/// Cells for messages, cells for replies, and bytes of the stage.
const INBOX: [u32; 3] = [1024, 512, 1 << 18];

/// Bytes of the stage for memory whose copies run in the background: four pieces.
const DEVICE_STAGE: u32 = 4 * DEVICE_PIECE;

/// The time within which a rank of this host must connect.
const MEETING: Duration = Duration::from_secs(30);

/// Bytes of a card.
const CARD: usize = 16 + 4 + 32 + 1 + OobAddress::MAX;

/// The card that a rank sends to the others, over links that the job's store has authenticated.
struct RankCard {
    /// The random name of its process.
    process: [u8; 16],
    /// The process id, for diagnostics only.
    pid: u32,
    /// The public key by which ranks prove their numbers to each other.
    key: PublicKey,
    /// The address of its listener.
    address: OobAddress,
}

impl RankCard {
    fn to_bytes(&self) -> [u8; CARD] {
        let mut card = [0; CARD];
        card[..16].copy_from_slice(&self.process);
        card[16..20].copy_from_slice(&self.pid.to_le_bytes());
        card[20..52].copy_from_slice(&self.key);
        card[52] = self.address.0.len() as u8;
        let to = card[53..].iter_mut();
        let from = self.address.0.iter();
        to.zip(from).for_each(|(to, from)| *to = *from);
        card
    }

    fn from_bytes(card: &[u8]) -> Option<Self> {
        let (process, rest) = card.split_first_chunk::<16>()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk::<32>()?;
        let (len, rest) = rest.split_first()?;
        let address = OobAddress(rest.get(..usize::from(*len))?.to_vec());
        Some(Self { process: *process, pid: u32::from_le_bytes(*pid), key: *key, address })
    }
}

pub(super) fn start_messages<M: IpcMemory>(world: &World, memory: M) -> Result<Messages<M>, MessageError> {
    let params = ProcessSettings::from_process(FrontEndKind::Rust).map_err(Error::from)?.params;
    let host = UnixHost::with_reach(
        ControlReach { users: params.local_users, ..ControlReach::default() },
        |_, _| {},
    );
    let rank = world.rank();
    let size = world.size();
    let process = host.random_bytes();
    let mut listener = host.oob().listen()?;
    let mut sharing = Sharing::new(process, BUDGET);
    sharing.passing = HandlePassing::Either;
    let [messages, answers, stage] = INBOX;
    let stage = if memory.batch_bytes().is_some() { DEVICE_STAGE } else { stage };
    let inbox = InboxSizes::new(messages, answers, stage).map_err(|_| MessageError::Outside)?;
    let now = host.now();
    let key = MemberKey::new([host.random_bytes(), host.random_bytes()]);
    let own = RankCard {
        process,
        pid: std::process::id(),
        key: key.public_key(),
        address: listener.listen_address(),
    };
    let cards = gather_cards(world, &own.to_bytes())?;
    let cards = try_collect(cards.chunks(CARD).map(RankCard::from_bytes))?;
    let public = try_collect(cards.iter().map(|card| card.as_ref().map(|card| card.key)))?;
    let keys = RankKeys { rank, key, public };
    let mut introductions = IntroductionQueue::new();
    let mut one = Messages {
        endpoint: TaggedEndpoint::new(memory, TaggedConfig { sharing, inbox, copy: params.node_copy }, now),
        host: UnixHostClock(host),
        rank,
        peers: try_filled(None, size)?,
        near: Arc::default(),
        ranks: Vec::new(),
        meetings: 0,
        rounds: WaitRounds::new(size, now),
        windows: WindowTable::default(),
        together: super::CollectiveCounts::default(),
        died: None,
    };
    let page = if params.status { one.host.0.node_page() } else { None };
    let page = page.and_then(|page| {
        NodePage::of_host(&page, ProcessId(process), u32::try_from(rank).ok(), one.host.0.now())
    });
    page.into_iter().for_each(|page| one.endpoint.publish_page(page));
    FreeCount::find_preloaded().into_iter().for_each(|count| one.endpoint.follow_frees(count));
    // A rank is near if a stream to it can be opened. The lower rank of a pair learns the result from the higher one.
    let mut reached = try_filled(0_u8, size)?;
    for (other, card) in cards.iter().enumerate().take(rank) {
        let Some(card) = card else { continue };
        if let Some(stream) = connect_rank(one.host.0.oob(), &card.address) {
            reached[other] = u8::from(introductions.add_dialled(&keys, stream, other));
        }
    }
    let all = gather_cards(world, &reached)?;
    let is_near = |other: usize| match other.cmp(&rank) {
        std::cmp::Ordering::Less => reached[other] == 1,
        std::cmp::Ordering::Equal => false,
        std::cmp::Ordering::Greater => all.get(other * size + rank) == Some(&1),
    };
    let mut near = try_vec(size)?;
    near.extend((0..size).filter(|other| is_near(*other)));
    let process_of = |rank: usize| cards.get(rank)?.as_ref().map(|card| card.process);
    one.meet_near_ranks(&mut listener, &mut introductions, &keys, &near, process_of)?;
    for (other, peer) in one.peers.iter().enumerate() {
        let pid = cards.get(other).and_then(Option::as_ref).map_or(0, |card| card.pid);
        peer.iter().for_each(|peer| one.endpoint.label_peer(*peer, other as u32, pid));
    }
    one.rounds = WaitRounds::new(near.len() + 1, now);
    one.near = Arc::new(near);
    world.barrier()?;
    Ok(one)
}

fn gather_cards(world: &World, mine: &[u8]) -> Result<Vec<u8>, MessageError> {
    let all = world.alloc::<u8>(mine.len() * world.size())?;
    world.all_gather(mine, &all)?;
    let bytes = all.try_to_vec();
    world.free(all)?;
    Ok(bytes?)
}

/// Opens a stream to a rank. Returns `None` if the rank is on another host.
fn connect_rank(oob: &UnixOob, address: &OobAddress) -> Option<UnixStream> {
    oob.connect(address).ok()
}

/// Accepts the next waiting stream. Streams of other users are rejected, a bounded number per call, so that they do
/// not block ranks.
fn accept_stream(listener: &mut UnixListener) -> Result<Option<UnixStream>, OobError> {
    for _ in 0..ACCEPTS_PER_POLL {
        match listener.accept() {
            Err(OobError::OtherUser { .. }) => {}
            accepted => return accepted,
        }
    }
    Ok(None)
}

/// Creates a [`MemfdDevice`] of `capacity` bytes that all ranks of a world share. The ranks must be on one host. It
/// replaces a GPU in tests and examples. All ranks call it.
///
/// # Errors
/// [`MessageError::Memory`], [`MessageError::System`], [`MessageError::World`]; [`MessageError::Device`] if the
/// memory file of rank 0 cannot be opened.
///
/// # Examples
/// ```no_run
/// use trunkline::World;
/// use trunkline::messages::{Buffer, Messages, shared_device};
///
/// let world = World::start()?;
/// let device = shared_device(&world, 64 << 20)?; // In place of a GPU of 64 MiB.
/// let messages = Messages::start(&world, device)?;
/// let buffer = Buffer::from_address(messages.memory().alloc(1 << 20)?, 1 << 20);
/// # Ok::<(), trunkline::messages::MessageError>(())
/// ```
pub fn shared_device(world: &World, capacity: u64) -> Result<MemfdDevice, MessageError> {
    let made = if world.rank() == 0 { Some(MemfdDevice::create(0, capacity)?) } else { None };
    let file = made.as_ref().map(MemfdDevice::descriptor).transpose()?;
    let number = file.as_ref().map_or(0, |file| file.as_raw_fd().unsigned_abs());
    let all = gather_cards(world, [std::process::id(), number].map(u32::to_le_bytes).as_flattened())?;
    let word =
        |at: usize| all.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes);
    let device = match made {
        Some(device) => device,
        None => {
            let path = format!("/proc/{}/fd/{}", word(0), word(4));
            let file =
                std::fs::File::options().read(true).write(true).open(path).map_err(MessageError::Device)?;
            MemfdDevice::join(0, &file)?
        }
    };
    world.barrier()?;
    Ok(device)
}

impl<M: IpcMemory> Messages<M> {
    /// Waits until all near ranks have proved their numbers. Streams of other processes are refused.
    fn meet_near_ranks(
        &mut self,
        listener: &mut UnixListener,
        introductions: &mut IntroductionQueue<UnixStream>,
        keys: &RankKeys,
        near: &[usize],
        process_of: impl Fn(usize) -> Option<[u8; 16]>,
    ) -> Result<(), MessageError> {
        let since = Clock::now();
        // The proved rank of each peer, by the peer's number.
        let mut shown: HashMap<u32, usize> = HashMap::new();
        while let Some(missing) = near.iter().find(|rank| self.peers[**rank].is_none()) {
            if since.elapsed() > MEETING {
                return Err(MessageError::Absent { rank: *missing, seconds: MEETING.as_secs() });
            }
            // The bound ensures that each stream is read before newer ones close it.
            for _ in 0..ACCEPTS_PER_POLL {
                let Some(stream) = accept_stream(listener)? else { break };
                introductions.add_accepted(stream);
            }
            for (stream, rank) in introductions.poll(keys) {
                shown.insert(self.endpoint.join_peer(stream)?.peer_number(), rank);
            }
            let now = self.current_time();
            self.endpoint.progress(now);
            while let Some(event) = self.endpoint.next_event() {
                let rank_of = |peer: TaggedPeerId, process| {
                    let rank = shown.get(&peer.peer_number()).copied();
                    rank.filter(|&rank| near.contains(&rank) && process_of(rank) == Some(process))
                };
                self.on_event(&event, rank_of)?;
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn on_event(
        &mut self,
        event: &TaggedEvent,
        rank_of: impl Fn(TaggedPeerId, [u8; 16]) -> Option<usize>,
    ) -> Result<(), MessageError> {
        match event {
            TaggedEvent::Met { peer, process } => match rank_of(*peer, *process) {
                Some(rank) => self.record_peer(*peer, rank)?,
                None => self.endpoint.refuse_peer(*peer),
            },
            TaggedEvent::Left { peer, .. } => {
                let of = self.ranks.get(peer.peer_number() as usize).filter(|rank| **rank < self.peers.len());
                if let Some(rank) = of {
                    return Err(MessageError::Gone { rank: Some(*rank) });
                }
            }
        }
        Ok(())
    }

    fn record_peer(&mut self, peer: TaggedPeerId, rank: usize) -> Result<(), MessageError> {
        let number = peer.peer_number() as usize;
        if number >= self.ranks.len() {
            try_hold(&mut self.ranks, number + 1)?;
            self.ranks.resize(number + 1, usize::MAX);
        }
        (self.ranks[number], self.peers[rank]) = (rank, Some(peer));
        Ok(())
    }

    /// Waits until all near ranks have called it. Use it before memory is freed that other ranks may read. A message
    /// that a rank sent before its barrier has reached this rank then (a long one: its envelope).
    ///
    /// # Errors
    /// [`MessageError::Gone`]: a near rank has ended.
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{Buffer, HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// let address = messages.memory().alloc(1 << 20)?;
    /// messages.broadcast(0, &Buffer::from_address(address, 1 << 20))?;
    /// messages.barrier()?; // All ranks have received the bytes.
    /// messages.memory().free(address)?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn barrier(&mut self) -> Result<(), MessageError> {
        let tag = super::OWN_TAGS | self.meetings;
        self.meetings += 1;
        let near = self.near_ranks();
        self.send_to_all(tag, &near, |_| [])?;
        near.iter().try_for_each(|rank| self.receive_from(tag, *rank, &mut []))
    }

    /// Closes the messages when all near ranks have called it: retires all exports, and unmaps all imports. For GPU
    /// memory, the driver may wait here for running kernels, as it may when messages are dropped.
    ///
    /// # Errors
    /// As [`Messages::barrier`].
    ///
    /// # Examples
    /// ```no_run
    /// # use trunkline::World;
    /// # use trunkline::messages::{HostMemory, Messages};
    /// # let world = World::start()?;
    /// # let mut messages = Messages::start(&world, HostMemory::new()?)?;
    /// messages.finish()?; // The ranks of this host have unmapped the memory of each other.
    /// world.finish()?;
    /// # Ok::<(), trunkline::messages::MessageError>(())
    /// ```
    pub fn finish(mut self) -> Result<(), MessageError> {
        self.barrier()?;
        let now = self.current_time();
        self.endpoint.close(now);
        while !self.endpoint.is_closed() {
            self.rounds.now = self.current_time();
            self.progress_or_pause();
        }
        Ok(())
    }
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
