//! The memory of a job that others reach: heaps, each as large in every process, named by number. Words of it are read and
//! written as atomics by whoever serves.

use trunkline_fabric::{Access, Heap as Shared, Mr, Rail, RegisterError};
use trunkline_mem::Memory;
use trunkline_proto::wire::dial::Heap as Told;
use trunkline_proto::wire::frame::Region;
use trunkline_proto::wire::rma::word::{Width, Word};

/// A heap, registered on the rails of one lane.
#[derive(Debug)]
pub(super) struct Heap {
    /// By rail.
    mrs: Vec<Mr<Shared>>,
}

impl Heap {
    /// Registers memory on each rail, with these rights for peers.
    ///
    /// # Errors
    /// [`RegisterError`] names the limit or the system call.
    pub(super) fn new(rails: &[impl Rail], memory: &Memory, access: Access) -> Result<Self, RegisterError> {
        let register = |rail: &_| Mr::register(&Rail::registrar(rail), memory.clone(), access);
        Ok(Self { mrs: rails.iter().map(register).collect::<Result<_, _>>()? })
    }

    /// Its registration on a rail.
    #[inline]
    pub(super) fn on(&self, rail: usize) -> Option<&Mr<Shared>> {
        self.mrs.get(rail)
    }

    /// As peers are told of it that come over a rail.
    pub(super) fn told(&self, rail: usize) -> Option<Told> {
        let mr = self.on(rail)?;
        let keys = mr.keys();
        let region = Region { key: keys.remote.0, addr: keys.remote_base };
        Some(Told { len: mr.memory().len() as u64, region })
    }

    /// Its memory.
    pub(super) fn memory(&self) -> Option<&Memory> {
        self.mrs.first().map(Mr::memory)
    }
}

/// Changes a word as `f` says, if it says anything, with nobody in between. What it was; `None` if there is no such word.
pub(super) fn update(heaps: &[Heap], word: Word, f: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let memory = heaps.get(usize::from(word.heap()))?.memory()?;
    match word.width() {
        Width::Eight => memory.update(word.offset(), f).ok(),
        Width::Four => {
            let f = |old: u32| f(old.into()).map(|new| new as u32);
            memory.update_half(word.offset(), f).ok().map(u64::from)
        }
    }
}
