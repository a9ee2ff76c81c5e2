//! Announcements, pins, mappings, their ends and reports, and invalid events.

use super::*;
use crate::ipc::importer::{
    AnnounceError, ArriveError, ImportPin, ImporterUsage, MapRefusal, MappingId, MappingKind, MappingPlace,
    MemoryImporter, NoMapping, ResolveError, ResolveOutcome, RetireError, SourceId,
};
use crate::limits::{IPC_PEERS_MAX, IPC_PINS_MAX, MAPPINGS_OF_IMPORT_MAX, NAMES_AWAITED_MAX};
use crate::wire::ipc::{ExportAnnouncement, ExportHandle, ExportNames, ExportReference};

const GPU: MappingPlace = MappingPlace { device: 0, way: MappingKind::Device };

struct Importing {
    importer: MemoryImporter,
    source: SourceId,
    opens: usize,
}

impl Importing {
    fn new() -> Self {
        let mut importer = MemoryImporter::new();
        let source = importer.add_source().unwrap();
        Self { importer, source, opens: 0 }
    }

    fn announce(&mut self, name: ExportName, start: u64, len: u64) -> Result<(), AnnounceError> {
        let handle = ExportHandle::new(0, &[]).unwrap();
        let announce =
            ExportAnnouncement { name, span: span(start, len), device: 0, descriptor: false, handle };
        self.importer.on_announce(self.source, &announce)
    }

    fn arrive(&mut self, name: ExportName, start: u64, len: u64) -> Result<ImportPin, ArriveError> {
        self.importer.pin_reference(self.source, &ExportReference { name, part: span(start, len) })
    }

    fn id(&self, name: ExportName, place: MappingPlace) -> MappingId {
        MappingId { source: self.source, name, place }
    }

    /// Resolves the bytes; memory that is not mapped is mapped at an address that depends on its slot.
    fn resolve(&mut self, used: &ImportPin, place: MappingPlace) -> ResolveOutcome {
        match self.importer.resolve_address(used, place).unwrap() {
            ResolveOutcome::Map(mapping) => {
                self.opens += 1;
                self.importer.on_mapped(mapping, address(mapping)).unwrap();
                self.importer.resolve_address(used, place).unwrap()
            }
            other => other,
        }
    }

    /// A message that is done at once.
    fn touch(&mut self, name: ExportName) {
        let used = self.arrive(name, 0, 1).unwrap();
        assert!(matches!(self.resolve(&used, GPU), ResolveOutcome::At(_)));
        self.importer.release_pin(used);
    }

    fn retire(&mut self, of: &[ExportName]) -> Result<(), RetireError> {
        self.importer.on_retire(self.source, &ExportNames::new(of).unwrap())
    }

    fn unmap(&mut self) -> Vec<MappingId> {
        core::iter::from_fn(|| {
            let unmap = self.importer.poll()?;
            assert_eq!(unmap.address, address(unmap.mapping));
            self.importer.on_unmapped(unmap.mapping).unwrap();
            Some(unmap.mapping)
        })
        .collect()
    }

    fn told(&mut self) -> Vec<ExportName> {
        core::iter::from_fn(|| self.importer.take_retired_names(self.source))
            .flat_map(|names| names.get().to_vec())
            .collect()
    }
}

fn address(mapping: MappingId) -> u64 {
    let MappingPlace { device, way } = mapping.place;
    (u64::from(mapping.name.slot_id().slot) + 1) << 32
        | u64::from(device) << 24
        | u64::from(way == MappingKind::Host) << 23
}

#[test]
fn import_is_mapped_once_and_reused() {
    let mut one = Importing::new();
    let a = name(3, 1);
    one.announce(a, 0x1000, 0x100).unwrap();
    assert_eq!(one.importer.source_usage(one.source).mappings, 0, "an announcement maps nothing");
    let all: Vec<_> = (0..64).map(|n| one.arrive(a, n, 1).unwrap()).collect();
    assert_eq!(one.importer.resolve_address(&all[0], GPU), Ok(ResolveOutcome::Map(one.id(a, GPU))));
    assert_eq!(
        one.importer.resolve_address(&all[1], GPU),
        Ok(ResolveOutcome::Wait),
        "one operation maps the memory, the others wait"
    );
    one.importer.on_mapped(one.id(a, GPU), 4 << 32).unwrap();
    for (n, used) in all.into_iter().enumerate() {
        assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::At((4 << 32) + n as u64)));
        one.importer.release_pin(used);
    }
    assert_eq!((one.importer.counts().opens, one.importer.counts().hits), (1, 64));
    one.touch(a);
    assert_eq!((one.opens, one.importer.counts().hits), (0, 65));
}

#[test]
fn each_device_and_each_way_has_its_own_mapping() {
    let mut one = Importing::new();
    let a = name(0, 1);
    one.announce(a, 0x1000, 0x100).unwrap();
    let used = one.arrive(a, 0, 0x100).unwrap();
    let places = [GPU, MappingPlace { device: 1, ..GPU }, MappingPlace { way: MappingKind::Host, ..GPU }];
    for _ in 0..2 {
        for place in places {
            assert_eq!(one.resolve(&used, place), ResolveOutcome::At(address(one.id(a, place))));
        }
    }
    assert_eq!((one.opens, one.importer.source_usage(one.source).bytes), (3, 0x300));
    for device in 2..MAPPINGS_OF_IMPORT_MAX as u32 - 1 {
        assert!(matches!(one.resolve(&used, MappingPlace { device, ..GPU }), ResolveOutcome::At(_)));
    }
    assert_eq!(
        one.resolve(&used, MappingPlace { device: 999, ..GPU }),
        ResolveOutcome::Failed,
        "the import has the maximum number of mappings"
    );
    one.importer.release_pin(used);
    one.retire(&[a]).unwrap();
    assert_eq!((one.told(), one.unmap().len()), (Vec::new(), MAPPINGS_OF_IMPORT_MAX));
    assert_eq!(one.told(), [a]);
}

#[test]
fn import_is_reported_only_after_its_unmapping() {
    let mut one = Importing::new();
    let (a, b) = (name(0, 1), name(1, 1));
    one.announce(a, 0x1000, 0x100).unwrap();
    one.announce(b, 0x2000, 0x100).unwrap();
    one.touch(a);
    let used = one.arrive(a, 0, 1).unwrap();
    one.retire(&[a, b]).unwrap();
    assert_eq!(
        (one.importer.poll(), one.told()),
        (None, Vec::from([b])),
        "memory that was never mapped is reported at once"
    );
    assert!(matches!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::At(_))));
    one.importer.release_pin(used);
    let unmap = one.importer.poll().unwrap();
    assert_eq!((unmap.mapping, one.importer.poll(), one.told()), (one.id(a, GPU), None, Vec::new()));
    one.importer.on_unmapped(unmap.mapping).unwrap();
    assert_eq!(
        (one.told(), one.importer.source_usage(one.source)),
        (Vec::from([a]), ImporterUsage::default())
    );
}

#[test]
fn retired_messages_have_up_to_32_names() {
    let mut one = Importing::new();
    let all: Vec<_> = (0..40).map(|n| name(n, 1)).collect();
    for name in &all {
        one.announce(*name, 0x1000 * (u64::from(name.slot_id().slot) + 1), 8).unwrap();
        one.touch(*name);
    }
    one.retire(&all[..32]).unwrap();
    one.retire(&all[32..]).unwrap();
    assert_eq!(one.unmap().len(), 40);
    let [first, second] = [
        one.importer.take_retired_names(one.source).unwrap(),
        one.importer.take_retired_names(one.source).unwrap(),
    ];
    assert_eq!([first.get(), second.get()], [&all[..32], &all[32..]]);
}

/// Queue items of a mapping that was removed before, of an unknown name, and of an ended process.
#[test]
fn stale_queue_item_blocks_no_unmapping() {
    let mut one = Importing::new();
    let (a, b) = (name(0, 1), name(1, 1));
    for (name, start) in [(a, 0x1000), (b, 0x2000)] {
        one.announce(name, start, 0x100).unwrap();
        one.touch(name);
    }
    let gone = one.importer.add_source().unwrap();
    one.importer.end_source(gone);
    one.retire(&[a]).unwrap();
    let first = one.importer.poll().unwrap();
    let stale = [first.mapping, one.id(name(7, 1), GPU), MappingId { source: gone, ..one.id(b, GPU) }];
    stale.iter().for_each(|item| one.importer.queue_unmap(*item));
    one.retire(&[b]).unwrap();
    let second = one.importer.poll().expect("an item behind stale items is returned at once");
    assert_eq!((second.mapping, one.importer.poll()), (one.id(b, GPU), None));
    [first, second].iter().for_each(|unmap| one.importer.on_unmapped(unmap.mapping).unwrap());
    assert_eq!(one.told(), [a, b]);
}

#[test]
fn references_wait_for_their_announcement() {
    let mut one = Importing::new();
    let a = name(0, 5);
    let (near, far) = (one.arrive(a, 0, 1).unwrap(), one.arrive(a, 0xff, 2).unwrap());
    assert_eq!(one.importer.resolve_address(&near, GPU), Ok(ResolveOutcome::Wait));
    assert_eq!(one.announce(name(0, 6), 0x1000, 0x100), Err(AnnounceError::Name(name(0, 6))));
    assert_eq!(one.announce(name(0, 4), 0x1000, 0x100), Err(AnnounceError::Name(name(0, 4))));
    one.announce(a, 0x1000, 0x100).unwrap();
    assert_eq!(one.importer.resolve_address(&far, GPU), Err(ResolveError::Outside));
    assert_eq!(one.resolve(&near, GPU), ResolveOutcome::At(1 << 32));
    assert_eq!(
        one.importer.resolve_address(&far, GPU),
        Err(ResolveError::Outside),
        "the check of the range does not depend on the mapping"
    );
    assert_eq!(one.importer.counts().ahead, 1);
    let limit: Vec<_> =
        (1..=NAMES_AWAITED_MAX as u32).map(|n| one.arrive(name(n, 1), 0, 1).unwrap()).collect();
    assert_eq!(one.arrive(name(999, 1), 0, 1), Err(ArriveError::TooMany));
    one.announce(name(1, 1), 0x5000, 1).unwrap();
    assert!(one.arrive(name(999, 1), 0, 1).is_ok());
    assert_eq!(one.importer.source_usage(one.source).awaited, limit.len());
}

#[test]
fn names_of_other_generations_are_refused() {
    let mut one = Importing::new();
    let a = name(0, 2);
    one.announce(a, 0x1000, 0x100).unwrap();
    for wrong in [name(0, 1), name(0, 3)] {
        assert_eq!(one.arrive(wrong, 0, 1), Err(ArriveError::Stale(wrong)));
        assert_eq!(one.announce(wrong, 0x9000, 1), Err(AnnounceError::Name(wrong)));
        assert_eq!(one.retire(&[wrong]), Err(RetireError(wrong)));
    }
    assert_eq!(one.announce(a, 0x1000, 0x100), Err(AnnounceError::Name(a)), "a name is announced once");
    assert_eq!(one.arrive(a, 0x100, 1), Err(ArriveError::Outside));
    assert_eq!(one.retire(&[a, a]), Err(RetireError(a)), "a RETIRE names each export once");
    assert_eq!(
        one.retire(&[a, name(7, 1)]),
        Err(RetireError(name(7, 1))),
        "an invalid RETIRE retires none of its exports"
    );
    one.touch(a);
    one.retire(&[a]).unwrap();
    assert_eq!(one.arrive(a, 0, 1), Err(ArriveError::Stale(a)), "the export is being retired");
    assert_eq!(one.retire(&[a]), Err(RetireError(a)));
    assert_eq!((one.unmap().len(), one.told()), (1, Vec::from([a])));
    assert_eq!(
        one.arrive(name(0, 1), 0, 1),
        Err(ArriveError::Stale(name(0, 1))),
        "a retired name stays invalid"
    );
    assert_eq!(one.announce(name(0, 1), 0x1000, 1), Err(AnnounceError::Name(name(0, 1))));
    one.announce(a, 0x1000, 0x100).unwrap();
    one.touch(a);
    assert_eq!(one.importer.counts().refused, 5);
}

#[test]
fn stale_mapping_is_unmapped_before_an_overlapping_one() {
    let mut one = Importing::new();
    let (old, older, new) = (name(0, 1), name(1, 1), name(2, 1));
    for (name, start) in [(old, 0x1000), (older, 0x1100), (new, 0x10ff)] {
        one.announce(name, start, if name == new { 2 } else { 0x100 }).unwrap();
        if name != new {
            one.touch(name);
        }
    }
    let used = one.arrive(new, 0, 1).unwrap();
    for _ in 0..2 {
        assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Wait));
        assert_eq!(one.unmap().len(), 1);
    }
    assert_eq!(one.resolve(&used, GPU), ResolveOutcome::At(3 << 32));
    assert_eq!(
        (one.told(), one.importer.counts().stale),
        (Vec::new(), 2),
        "only a RETIRE of the exporter is reported"
    );
    one.retire(&[old, older]).unwrap();
    assert_eq!(one.told(), [old, older]);
}

#[test]
fn stale_mapping_in_use_fails_the_new_one() {
    let mut one = Importing::new();
    let (old, new) = (name(0, 1), name(1, 1));
    one.announce(old, 0x1000, 0x100).unwrap();
    let used = one.arrive(old, 0, 1).unwrap();
    assert_eq!(one.resolve(&used, GPU), ResolveOutcome::At(1 << 32));
    one.announce(new, 0x1080, 0x100).unwrap();
    let wants = one.arrive(new, 0, 1).unwrap();
    assert_eq!(one.importer.resolve_address(&wants, GPU), Ok(ResolveOutcome::Failed));
    assert_eq!((one.importer.poll(), one.resolve(&used, GPU)), (None, ResolveOutcome::At(1 << 32)));
    one.importer.release_pin(used);
    assert_eq!(one.importer.resolve_address(&wants, GPU), Ok(ResolveOutcome::Wait));
    assert_eq!(one.unmap().len(), 1);
    assert_eq!(one.resolve(&wants, GPU), ResolveOutcome::At(2 << 32));
}

/// A late message about stale memory: the current mapping stays, in use or not.
#[test]
fn stale_memory_does_not_replace_a_current_mapping() {
    let mut one = Importing::new();
    let (old, new) = (name(1, 1), name(0, 1));
    one.announce(old, 0x1000, 0x100).unwrap();
    let late = one.arrive(old, 0, 1).unwrap();
    one.announce(new, 0x1080, 0x100).unwrap();
    one.touch(new);
    assert_eq!(one.importer.resolve_address(&late, GPU), Ok(ResolveOutcome::Failed));
    assert_eq!((one.importer.poll(), one.importer.counts().stale), (None, 1));
    one.importer.release_pin(late);
    one.retire(&[old]).unwrap();
    assert_eq!(one.told(), [old]);
    one.touch(new);
    assert_eq!(one.opens, 1);
    // Memory that is announced again is new memory.
    one.announce(old, 0x1000, 0x100).unwrap();
    let used = one.arrive(old, 0, 1).unwrap();
    assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Wait));
    assert_eq!(one.unmap(), [one.id(new, GPU)]);
}

#[test]
fn already_mapped_memory_is_retried_after_pending_unmaps() {
    let mut one = Importing::new();
    let (old, new) = (name(0, 1), name(1, 1));
    one.announce(old, 0x1000, 0x100).unwrap();
    one.touch(old);
    one.retire(&[old]).unwrap();
    one.announce(new, 0x5000, 0x100).unwrap();
    let used = one.arrive(new, 0, 1).unwrap();
    let id = one.id(new, GPU);
    for again in [false, true] {
        assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Map(id)), "{again}");
        one.importer.on_map_failed(id, MapRefusal::AlreadyMapped).unwrap();
        if !again {
            assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Wait));
            assert_eq!(one.unmap().len(), 1);
        }
    }
    assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Failed));
    one.importer.release_pin(used);
    // Another operation tries again; no pending unmapping delays it.
    let used = one.arrive(new, 0, 1).unwrap();
    assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Map(id)));
    one.importer.on_map_failed(id, MapRefusal::AlreadyMapped).unwrap();
    assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Failed));
    assert_eq!(one.importer.counts().failures, 3);
}

#[test]
fn waiting_operations_fail_with_their_mapping() {
    let mut one = Importing::new();
    let a = name(0, 1);
    one.announce(a, 0x1000, 0x100).unwrap();
    let (first, second) = (one.arrive(a, 0, 1).unwrap(), one.arrive(a, 1, 1).unwrap());
    assert!(matches!(one.importer.resolve_address(&first, GPU), Ok(ResolveOutcome::Map(_))));
    assert_eq!(one.importer.resolve_address(&second, GPU), Ok(ResolveOutcome::Wait));
    one.importer.on_map_failed(one.id(a, GPU), MapRefusal::Other).unwrap();
    for used in [first, second] {
        assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Failed));
        one.importer.release_pin(used);
    }
    one.retire(&[a]).unwrap();
    assert_eq!((one.importer.poll(), one.told()), (None, Vec::from([a])));
}

#[test]
fn operation_that_ends_during_its_mapping_leaves_nothing() {
    let mut one = Importing::new();
    let a = name(0, 1);
    one.announce(a, 0x1000, 0x100).unwrap();
    let used = one.arrive(a, 0, 1).unwrap();
    assert!(matches!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Map(_))));
    one.importer.release_pin(used);
    one.retire(&[a]).unwrap();
    assert_eq!(
        (one.importer.poll(), one.told()),
        (None, Vec::new()),
        "a pending mapping was ended or reported"
    );
    one.importer.on_mapped(one.id(a, GPU), 1 << 32).unwrap();
    assert_eq!((one.unmap().len(), one.told()), (1, Vec::from([a])));
}

#[test]
fn events_without_a_matching_mapping_are_rejected() {
    let mut one = Importing::new();
    let a = name(0, 1);
    one.announce(a, 0x1000, 0x100).unwrap();
    let id = one.id(a, GPU);
    let other = one.id(a, MappingPlace { device: 1, ..GPU });
    assert_eq!(
        (one.importer.on_mapped(id, 1), one.importer.on_unmapped(id)),
        (Err(NoMapping), Err(NoMapping))
    );
    one.touch(a);
    assert_eq!(
        (one.importer.on_mapped(id, 1), one.importer.on_unmapped(id)),
        (Err(NoMapping), Err(NoMapping))
    );
    assert_eq!(one.importer.on_map_failed(id, MapRefusal::Other), Err(NoMapping));
    assert_eq!(one.importer.on_unmapped(other), Err(NoMapping));
    one.retire(&[a]).unwrap();
    assert_eq!(one.importer.on_unmapped(id), Err(NoMapping), "the unmapping was not returned by poll yet");
    assert_eq!((one.unmap(), one.importer.on_unmapped(id)), (Vec::from([id]), Err(NoMapping)));
}

#[test]
fn unused_imports_of_an_ended_exporter_are_unmapped() {
    let mut one = Importing::new();
    let (a, b, c) = (name(0, 1), name(1, 1), name(2, 1));
    for (name, start) in [(a, 0x1000), (b, 0x2000), (c, 0x3000)] {
        one.announce(name, start, 0x100).unwrap();
        one.touch(name);
    }
    let other = one.importer.add_source().unwrap();
    let (used, awaited) = (one.arrive(a, 0, 1).unwrap(), one.arrive(name(9, 1), 0, 1).unwrap());
    let idle = one.arrive(c, 0, 1).unwrap();
    one.retire(&[b]).unwrap();
    one.importer.end_source(one.source);
    assert_eq!(one.arrive(a, 0, 1), Err(ArriveError::Gone));
    assert_eq!(one.announce(name(5, 1), 0x5000, 1), Err(AnnounceError::Gone));
    assert_eq!((one.retire(&[a]), one.unmap()), (Ok(()), Vec::from([one.id(b, GPU)])));
    assert_eq!(one.importer.resolve_address(&awaited, GPU), Err(ResolveError::Gone));
    assert_eq!(
        one.importer.resolve_address(&idle, MappingPlace { device: 1, ..GPU }),
        Err(ResolveError::Gone)
    );
    assert_eq!(
        one.importer.resolve_address(&used, GPU),
        Ok(ResolveOutcome::At(1 << 32)),
        "a used mapping stays usable"
    );
    for used in [used, idle] {
        one.importer.release_pin(used);
        assert_eq!(one.unmap().len(), 1);
        assert!(!one.importer.is_gone(one.source));
    }
    one.importer.release_pin(awaited);
    assert!(one.importer.is_gone(one.source) && !one.importer.is_gone(other));
    assert_eq!((one.told(), one.importer.source_usage(one.source)), (Vec::new(), ImporterUsage::default()));
    let again = one.importer.add_source().unwrap();
    assert!(again.slot() == one.source.slot() && again != one.source);
}

#[test]
fn exporters_with_equal_names_are_independent() {
    let mut one = Importing::new();
    let (first, second) = (one.source, one.importer.add_source().unwrap());
    let a = name(0, 1);
    let mut uses = Vec::new();
    for source in [first, second] {
        one.source = source;
        one.announce(a, 0x1000, 0x100).unwrap();
        let used = one.arrive(a, 0, 1).unwrap();
        assert_eq!(one.importer.resolve_address(&used, GPU), Ok(ResolveOutcome::Map(one.id(a, GPU))));
        one.importer.on_mapped(one.id(a, GPU), (u64::from(source.slot()) + 1) << 40).unwrap();
        uses.push(used);
    }
    one.importer.end_source(first);
    assert_eq!(one.importer.resolve_address(&uses[1], GPU), Ok(ResolveOutcome::At(2 << 40)));
    one.importer.release_pin(uses.remove(0));
    let unmap = one.importer.poll().unwrap();
    assert_eq!((unmap.mapping.source, unmap.address, one.importer.poll()), (first, 1 << 40, None));
    one.importer.on_unmapped(unmap.mapping).unwrap();
    assert_eq!(one.importer.resolve_address(&uses[0], GPU), Ok(ResolveOutcome::At(2 << 40)));
}

#[test]
fn users_of_an_import_have_a_limit() {
    let mut one = Importing::new();
    let a = name(0, 1);
    one.announce(a, 0x1000, 0x100).unwrap();
    one.importer.overuse(one.source, a, IPC_PINS_MAX - 1);
    assert!(one.arrive(a, 0, 1).is_ok());
    assert_eq!(one.arrive(a, 0, 1), Err(ArriveError::TooMany));
}

#[test]
fn exporters_have_a_limit() {
    let mut one = Importing::new();
    for _ in 1..IPC_PEERS_MAX {
        one.importer.add_source().unwrap();
    }
    assert!(one.importer.add_source().is_err());
    one.importer.end_source(one.source);
    assert!(one.importer.add_source().is_ok());
}
