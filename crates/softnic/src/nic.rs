//! The objects that the rails of one fabric share: the NICs with their tables and counts. Called when rails, links and regions are created or found;
//! holds nothing of a single link.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use trunkline_fabric::{AbandonedKeys, LinkError, PeerProcess, RailOpenError};
use trunkline_proto::reserve::{OutOfMemory, try_filled, try_vec};

use crate::SoftConfig;
use crate::cq::CounterTable;
use crate::guard::RailGuards;
use crate::own_links::OwnLinks;
use crate::pin_registry::PinRegistry;
use crate::process::HostProcess;
use crate::register::{RegionTable, random_bytes};
use crate::tcp::LinkListener;

/// One NIC.
pub(crate) struct SoftNic {
    /// Its regions.
    pub(crate) table: RegionTable,
    /// Memory that peers may be copying from or to.
    pub(crate) book: PinRegistry,
    /// Regions that their owners abandoned while a peer was inside a copy of them.
    pub(crate) abandoned: AbandonedKeys,
    /// Number of queue pairs of each pipeline.
    placed: Mutex<Box<[u32]>>,
    numbers: AtomicU32,
    /// Completion queues.
    pub(crate) queues: AtomicU32,
    /// The listener for connections of other hosts, which exists while a link needs it.
    door: Mutex<Weak<LinkListener>>,
}

/// A pipeline and a number for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairSlot {
    /// The pipeline.
    pub(crate) pipeline: u32,
    /// Number of the queue pair, never used before.
    pub(crate) number: u32,
}

impl SoftNic {
    /// Reserves a queue pair: on the requested pipeline, otherwise on the pipeline with the fewest. Each pipeline
    /// has at most `most`.
    pub(crate) fn take_queue_pair(&self, asked: Option<u32>, most: u32) -> Result<QueuePairSlot, LinkError> {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        // At most PIPELINES_MAX.
        let pipelines = placed.len() as u32;
        let full = match asked {
            Some(pipeline) => LinkError::PipelineExhausted { pipeline, limit: most },
            None => LinkError::Exhausted(most * pipelines),
        };
        let emptiest = || (0..pipelines).min_by_key(|&pipeline| placed.get(pipeline as usize).copied());
        let pipeline = asked.or_else(emptiest).unwrap_or(0);
        let Some(used) = placed.get_mut(pipeline as usize) else {
            return Err(LinkError::NoSuchPipeline { asked: pipeline, pipelines });
        };
        // Counted per pipeline, because a pipeline cannot use the queue pairs of another.
        if *used >= most {
            return Err(full);
        }
        *used += 1;
        Ok(QueuePairSlot { pipeline, number: self.numbers.fetch_add(1, Ordering::Relaxed) })
    }

    /// Returns the number of queue pairs of all pipelines.
    pub(crate) fn queue_pairs(&self) -> u32 {
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).iter().sum()
    }

    /// Returns the listener for connections of other hosts, at an address of this host; it stays open while a caller holds it.
    pub(crate) fn open_listener(&self, at: IpAddr) -> io::Result<Arc<LinkListener>> {
        let mut place = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = place.upgrade() {
            return Ok(door);
        }
        let door = Arc::new(LinkListener::listen_at(at)?);
        *place = Arc::downgrade(&door);
        Ok(door)
    }

    /// Returns that listener if it is open.
    pub(crate) fn open_door(&self) -> Option<Arc<LinkListener>> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Releases a queue pair of a pipeline.
    pub(crate) fn give_queue_pair(&self, pipeline: u32) {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = placed.get_mut(pipeline as usize) {
            *used -= 1;
        }
    }
}

/// All NICs of a fabric.
pub(crate) struct SharedFabric {
    /// The configuration it was created with.
    pub(crate) config: SoftConfig,
    /// Queue pairs of one pipeline, at most.
    pub(crate) pipeline_qps: u32,
    /// Names this fabric, so that a link can detect that both its ends share tables.
    pub(crate) id: [u8; 16],
    /// By number.
    pub(crate) nics: Box<[SoftNic]>,
    /// The guards, one for each open rail.
    pub(crate) guards: RailGuards,
    /// The completion counters, one for each open rail.
    pub(crate) cqs: CounterTable,
    /// Names of the links that this fabric has created.
    pub(crate) own_links: OwnLinks,
    /// Time of its creation.
    pub(crate) started: Instant,
    /// This process, as peers see it.
    pub(crate) itself: HostProcess,
    /// The processes at the other ends of links, by number.
    peers: Mutex<HashMap<u32, Weak<HostProcess>>>,
}

impl SharedFabric {
    /// Creates the NICs.
    ///
    /// # Errors
    /// [`RailOpenError::Memory`], [`RailOpenError::System`].
    pub(crate) fn new(config: SoftConfig, pipeline_qps: u32) -> Result<Self, RailOpenError> {
        let nic = || -> Result<SoftNic, OutOfMemory> {
            Ok(SoftNic {
                table: RegionTable::new(config.max_mr, config.virtual_addresses)?,
                book: PinRegistry::new(),
                abandoned: AbandonedKeys::default(),
                placed: Mutex::new(try_filled(0, config.pipelines as usize)?),
                numbers: AtomicU32::new(1),
                queues: AtomicU32::new(0),
                door: Mutex::default(),
            })
        };
        let mut nics = try_vec(config.nics)?;
        for _ in 0..config.nics {
            nics.push(nic()?);
        }
        let system = |source| RailOpenError::System { what: "getrandom", source };
        Ok(Self {
            id: random_bytes().map_err(system)?,
            nics: nics.into_boxed_slice(),
            guards: RailGuards::new(),
            cqs: CounterTable::new(u128::from_le_bytes(random_bytes().map_err(system)?) as u64),
            own_links: OwnLinks::new(),
            started: Instant::now(),
            itself: HostProcess::this_process(),
            peers: Mutex::default(),
            config,
            pipeline_qps,
        })
    }

    /// Returns the process that the kernel has named. All links to a process share one value, because watching it takes a descriptor.
    pub(crate) fn peer_process(&self, peer: PeerProcess) -> Arc<HostProcess> {
        let (pid, pidfd) = peer.into_parts();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        // The number of a dead process may have been reused, so a dead one is replaced.
        if let Some(known) = peers.get(&pid).and_then(Weak::upgrade)
            && known.is_watched()
            && !known.is_dead()
        {
            return known;
        }
        peers.retain(|_, peer| peer.strong_count() > 0);
        let process = Arc::new(HostProcess::new(pid, pidfd));
        peers.insert(pid, Arc::downgrade(&process));
        process
    }

    /// Returns the nanoseconds since its creation.
    pub(crate) fn elapsed_nanos(&self) -> u64 {
        // 584 years fit.
        self.started.elapsed().as_nanos() as u64
    }
}
