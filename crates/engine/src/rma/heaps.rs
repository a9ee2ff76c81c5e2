//! The heaps of a process, and those of other members. Front ends add memory at startup, and may add and remove heaps while other
//! heaps are in use. If not all members add the same heaps, they exchange descriptions by means of their own.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError};

use trunkline_fabric::{AccessRights, DeviceReach, Fabric, Host, LogLevel, Rail as _, RegisterError};
use trunkline_proto::limits::RMA_HEAPS_MAX;
use trunkline_proto::reserve::{OutOfMemory, try_collect, try_grow};
use trunkline_proto::wire::dial::RemoteHeap as Told;

use crate::rma::context_slot::ContextSlot;
use crate::rma::error::RmaError;
use crate::rma::heap::{HeapMemory, RailRegistrars, RegisteredHeap};
use crate::rma::job::{MemberRank, RmaJob, UNMET};

/// The heaps of a process, by number. Changed only by the holder of [`RmaJob::made`](RmaJob), and never held during a
/// registration, which may take long.
#[derive(Debug, Default)]
pub(super) struct HeapTable {
    pub(super) own: Vec<Option<HeapMemory>>,
}

impl HeapTable {
    /// Copies the table, for a context that is being created.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(Self { own: try_collect(self.own.iter().cloned())? })
    }
}

/// Described heaps of other members, with one description per rail of the member.
pub(super) type LearnedHeaps = HashMap<(MemberRank, u8), Vec<Told>>;

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Adds a heap: memory that other members access by its number, which is the lowest free one. Requires
    /// [`RmaJob::set_members`].
    ///
    /// Members receive descriptions of each other's first sixteen heaps with the links, if the heaps exist by then. So each
    /// member adds the same heaps in the same order before any member begins an operation. Otherwise members exchange the
    /// descriptions themselves ([`RmaJob::heap_descriptors`], [`RmaJob::set_member_heap`]).
    ///
    /// Waits for threads that use a context right now, for one lock hold each. They continue while the memory is registered.
    ///
    /// # Errors
    /// [`RmaError::Register`], [`RmaError::Exhausted`], [`RmaError::Memory`]; then nothing is registered.
    pub fn add_heap(&self, memory: impl Into<HeapMemory>) -> Result<u8, RmaError> {
        let memory = memory.into();
        // The lock keeps contexts from being created meanwhile, because they would lack the heap.
        let _made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let at = {
            let heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
            heaps.own.iter().position(Option::is_none).unwrap_or(heaps.own.len())
        };
        let exhausted = RmaError::Exhausted { what: "heaps", limit: RMA_HEAPS_MAX };
        let number = u8::try_from(at).map_err(|_| exhausted)?;
        // Cloned registrars, so that the registration below holds no lock.
        let rails = match self.service.lock().as_ref() {
            Some(service) => RailRegistrars::from_rails(service.rails()),
            None => return Err(UNMET),
        };
        let served = RegisteredHeap::new(&rails, &memory, AccessRights::ALL)?;
        let places = self.contexts.iter().filter_map(OnceLock::get);
        let registered = places.into_iter().try_for_each(|place| self.register_at(place, at, &memory));
        // Undone on all contexts, so that no context has a heap that others lack.
        registered.inspect_err(|_: &RegisterError| self.forget_heap(number))?;
        self.keep_at(at, served, memory).inspect_err(|_| self.forget_heap(number))?;
        Ok(number)
    }

    /// Publishes a heap that all contexts have, for the service and for contexts that are created later.
    fn keep_at(&self, at: usize, served: RegisteredHeap, memory: HeapMemory) -> Result<(), OutOfMemory> {
        // Drops it after the lock is released, because the drop deregisters it, which may take long.
        let mut served = Some(served);
        let kept = self.service.lock().as_mut().map(|service| put_at(service.heaps_mut(), at, &mut served));
        kept.transpose()?;
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        put_at(&mut heaps.own, at, &mut Some(memory))
    }

    /// Returns the device memory that all NICs of this process reach; none before [`RmaJob::set_members`].
    pub fn device_reach(&self) -> DeviceReach {
        let service = self.service.lock();
        let rails = service.as_ref().map(|service| service.rails()).unwrap_or_default();
        let reach = rails.iter().map(|rail| rail.caps().devices).reduce(DeviceReach::intersect_with);
        reach.unwrap_or_default()
    }

    /// Logs a line.
    pub fn log(&self, level: LogLevel, text: &str) {
        self.host.log(level, text);
    }

    /// Registers a heap for the context of a slot, if there is one. The context's owner can use it meanwhile.
    fn register_at(
        &self,
        place: &ContextSlot<F::Rail>,
        at: usize,
        memory: &HeapMemory,
    ) -> Result<(), RegisterError> {
        let slot = place.lock_context();
        let Some(rails) = slot.as_ref().map(|context| RailRegistrars::from_rails(context.rails.all_rails()))
        else {
            return Ok(());
        };
        // Unlocked during the registration, which may wait for the driver.
        drop(slot);
        let mut heap = Some(RegisteredHeap::new(&rails, memory, AccessRights::LOCAL)?);
        // The context cannot be closed before this returns, because `made` is held.
        let kept = place.lock_context().as_mut().map(|context| put_at(&mut context.heaps, at, &mut heap));
        Ok(kept.transpose().map(drop)?)
    }

    /// Removes a heap: deregisters it and frees its number. All operations on it, of any member, must be complete.
    ///
    /// # Errors
    /// [`RmaError::Unknown`]: no heap has this number.
    pub fn remove_heap(&self, number: u8) -> Result<(), RmaError> {
        let _made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        let own = heaps.own.get_mut(usize::from(number)).and_then(Option::take);
        own.ok_or(RmaError::Unknown)?;
        // The number is free already, but `made` is locked, so no other heap gets it before this
        // ends.
        self.forget_heap(number);
        Ok(())
    }

    /// Drops a heap's registrations, those of the service and those of contexts.
    fn forget_heap(&self, number: u8) {
        let at = usize::from(number);
        let take = |heaps: &mut Vec<Option<RegisteredHeap>>| heaps.get_mut(at).and_then(Option::take);
        // Each is deregistered after its lock is released.
        let served = self.service.lock().as_mut().and_then(|service| take(service.heaps_mut()));
        drop(served);
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            let heap = place.lock_context().as_mut().and_then(|context| take(&mut context.heaps));
            drop(heap);
        }
    }

    /// Returns the description by which other members access a heap of this process: its length and key, by rail. Opaque to the
    /// caller.
    ///
    /// # Errors
    /// [`RmaError::Unknown`]: no heap has this number.
    pub fn heap_descriptors(&self, number: u8) -> Result<Vec<Told>, RmaError> {
        let service = self.service.lock();
        let service = service.as_ref().ok_or(UNMET)?;
        let heap = service.heaps().get(usize::from(number)).and_then(Option::as_ref);
        let heap = heap.ok_or(RmaError::Unknown)?;
        Ok((0..service.rails().len()).filter_map(|rail| heap.descriptor_on(rail)).collect())
    }

    /// Stores the description of a member's own heap ([`RmaJob::heap_descriptors`]): from now on that number names the heap.
    /// Waits for threads that use a context right now, for one lock hold each, and for no registration.
    ///
    /// # Errors
    /// [`RmaError::Argument`]: no such member exists, or its description has a number of rails other than the member's.
    /// [`RmaError::Memory`]; the call may be repeated.
    pub fn set_member_heap(&self, member: MemberRank, number: u8, told: &[Told]) -> Result<(), RmaError> {
        let Some((_, cards)) = self.me.get() else { return Err(UNMET) };
        let card =
            cards.get(member as usize).ok_or(RmaError::Argument("the member's rank is out of range"))?;
        if told.len() != usize::from(card.rails) {
            return Err(RmaError::Argument(
                "the heap's description and its member have different numbers of rails",
            ));
        }
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        // Reserved before the contexts are changed, so that an error leaves them as they are.
        reserve_learned(&mut learned)?;
        learned.insert((member, number), told.to_vec());
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            if let Some(context) = place.lock_context().as_mut() {
                context.set_member_heap(member, number, told)?;
            }
        }
        Ok(())
    }

    /// Copies the heap descriptions that exist so far into a new context. Later ones reach it through its slot.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn copy_member_heaps(&self, place: &ContextSlot<F::Rail>) -> Result<(), OutOfMemory> {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = place.lock_context().as_mut() {
            for ((member, number), told) in &*learned {
                context.set_member_heap(*member, *number, told)?;
            }
        }
        Ok(())
    }
}

/// Makes room for one more description of a heap.
///
/// # Errors
/// [`OutOfMemory`].
pub(super) fn reserve_learned(learned: &mut LearnedHeaps) -> Result<(), OutOfMemory> {
    let bytes = (learned.len() + 1) * size_of::<((MemberRank, u8), Vec<Told>)>();
    learned.try_reserve(1).map_err(|_| OutOfMemory { bytes })
}

/// Stores a value at an index, and extends the table with empty entries up to it.
///
/// # Errors
/// [`OutOfMemory`]; then the caller still owns the value.
fn put_at<T>(all: &mut Vec<Option<T>>, at: usize, what: &mut Option<T>) -> Result<(), OutOfMemory> {
    if all.len() <= at {
        let more = at + 1 - all.len();
        try_grow(all, more)?;
        all.resize_with(at + 1, || None);
    }
    all[at] = what.take();
    Ok(())
}
