//! The heaps of a process, and those of others. Front ends add memory when they begin, and may add and remove more while others are
//! at work on the rest; where not all members add the same, they tell each other of their heaps by a way of their own.

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

/// The heaps that there are, by number. Changed by the owner of [`RmaJob::made`](RmaJob) alone, and never held over a registration.
#[derive(Debug, Default)]
pub(super) struct HeapTable {
    pub(super) own: Vec<Option<HeapMemory>>,
}

impl HeapTable {
    /// The same heaps, for a context that is made.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(Self { own: try_collect(self.own.iter().cloned())? })
    }
}

/// The heaps of other members, by the rail over which they were told.
pub(super) type LearnedHeaps = HashMap<(MemberRank, u8), Vec<Told>>;

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Adds a heap: memory that others reach, by its number, which is the lowest that is free. After [`RmaJob::set_members`].
    ///
    /// Members are told of each other's first heaps when links are made: of those that were there by then, and they are the first
    /// sixteen. So each member adds the same ones in the same order, and all have before any of them begins something; or else they
    /// tell each other ([`RmaJob::heap_descriptors`], [`RmaJob::set_member_heap`]).
    ///
    /// Waits for threads that use a context right now, a turn each. They go on while the memory is registered.
    ///
    /// # Errors
    /// [`RmaError::Register`], [`RmaError::Exhausted`], [`RmaError::Memory`]; then nothing is left of it.
    pub fn add_heap(&self, memory: impl Into<HeapMemory>) -> Result<u8, RmaError> {
        let memory = memory.into();
        // No context is made meanwhile.
        let _made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let at = {
            let heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
            heaps.own.iter().position(Option::is_none).unwrap_or(heaps.own.len())
        };
        let exhausted = RmaError::Exhausted { what: "heaps", limit: RMA_HEAPS_MAX };
        let number = u8::try_from(at).map_err(|_| exhausted)?;
        let rails = match self.service.lock().as_ref() {
            Some(service) => RailRegistrars::from_rails(service.rails()),
            None => return Err(UNMET),
        };
        let served = RegisteredHeap::new(&rails, &memory, AccessRights::ALL)?;
        let places = self.contexts.iter().filter_map(OnceLock::get);
        let registered = places.into_iter().try_for_each(|place| self.register_at(place, at, &memory));
        registered.inspect_err(|_: &RegisterError| self.forget_heap(number))?;
        self.keep_at(at, served, memory).inspect_err(|_| self.forget_heap(number))?;
        Ok(number)
    }

    /// Keeps a heap that all contexts have, for others and for contexts that are made later.
    fn keep_at(&self, at: usize, served: RegisteredHeap, memory: HeapMemory) -> Result<(), OutOfMemory> {
        // Dropped without a lane: that deregisters it.
        let mut served = Some(served);
        let kept = self.service.lock().as_mut().map(|service| put_at(service.heaps_mut(), at, &mut served));
        kept.transpose()?;
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        put_at(&mut heaps.own, at, &mut Some(memory))
    }

    /// Memory of devices that all NICs of this process reach; none before [`RmaJob::set_members`].
    pub fn device_reach(&self) -> DeviceReach {
        let service = self.service.lock();
        let rails = service.as_ref().map(|service| service.rails()).unwrap_or_default();
        let reach = rails.iter().map(|rail| rail.caps().devices).reduce(DeviceReach::intersect_with);
        reach.unwrap_or_default()
    }

    /// Says something to people.
    pub fn log(&self, level: LogLevel, text: &str) {
        self.host.log(level, text);
    }

    /// Registers a heap for the context of a place, if there is one, which goes on meanwhile.
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
        drop(slot);
        let mut heap = Some(RegisteredHeap::new(&rails, memory, AccessRights::LOCAL)?);
        // No context ends before this returns, as `made` is held.
        let kept = place.lock_context().as_mut().map(|context| put_at(&mut context.heaps, at, &mut heap));
        Ok(kept.transpose().map(drop)?)
    }

    /// Removes a heap: nothing of it is registered any more, and its number is for another. All that anybody has begun on it must be
    /// complete.
    ///
    /// # Errors
    /// [`RmaError::Unknown`]: there is none of that number.
    pub fn remove_heap(&self, number: u8) -> Result<(), RmaError> {
        let _made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut heaps = self.heaps.lock().unwrap_or_else(PoisonError::into_inner);
        let own = heaps.own.get_mut(usize::from(number)).and_then(Option::take);
        own.ok_or(RmaError::Unknown)?;
        self.forget_heap(number);
        Ok(())
    }

    /// Nobody uses a heap any more, neither for others nor for this process.
    fn forget_heap(&self, number: u8) {
        let at = usize::from(number);
        let take = |heaps: &mut Vec<Option<RegisteredHeap>>| heaps.get_mut(at).and_then(Option::take);
        // Each is deregistered without a lane, too.
        let served = self.service.lock().as_mut().and_then(|service| take(service.heaps_mut()));
        drop(served);
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            let heap = place.lock_context().as_mut().and_then(|context| take(&mut context.heaps));
            drop(heap);
        }
    }

    /// What others need to reach a heap of this process: its length and key, by rail, to be carried to them as it is.
    ///
    /// # Errors
    /// [`RmaError::Unknown`]: there is none of that number.
    pub fn heap_descriptors(&self, number: u8) -> Result<Vec<Told>, RmaError> {
        let service = self.service.lock();
        let service = service.as_ref().ok_or(UNMET)?;
        let heap = service.heaps().get(usize::from(number)).and_then(Option::as_ref);
        let heap = heap.ok_or(RmaError::Unknown)?;
        Ok((0..service.rails().len()).filter_map(|rail| heap.descriptor_on(rail)).collect())
    }

    /// Keeps the description that a member has given of its own heap ([`RmaJob::heap_descriptors`]): from now on that number names the heap. Waits for threads that use a
    /// context right now, a turn each, and for no registration.
    ///
    /// # Errors
    /// [`RmaError::Argument`]: there is no such member, or it has told of another number of rails than it has. [`RmaError::Memory`]; the call may be
    /// repeated.
    pub fn set_member_heap(&self, member: MemberRank, number: u8, told: &[Told]) -> Result<(), RmaError> {
        let Some((_, cards)) = self.me.get() else { return Err(UNMET) };
        let card = cards.get(member as usize).ok_or(RmaError::Argument("there is no such member"))?;
        if told.len() != usize::from(card.rails) {
            return Err(RmaError::Argument("what is told of a heap does not fit the rails of its member"));
        }
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        reserve_learned(&mut learned)?;
        learned.insert((member, number), told.to_vec());
        for place in self.contexts.iter().filter_map(OnceLock::get) {
            if let Some(context) = place.lock_context().as_mut() {
                context.set_member_heap(member, number, told)?;
            }
        }
        Ok(())
    }

    /// A new context learns the heaps that were described so far. Later descriptions find it in its place.
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

/// Puts something at a place, before which there may be none.
///
/// # Errors
/// [`OutOfMemory`]; it is still the caller's.
fn put_at<T>(all: &mut Vec<Option<T>>, at: usize, what: &mut Option<T>) -> Result<(), OutOfMemory> {
    if all.len() <= at {
        let more = at + 1 - all.len();
        try_grow(all, more)?;
        all.resize_with(at + 1, || None);
    }
    all[at] = what.take();
    Ok(())
}
