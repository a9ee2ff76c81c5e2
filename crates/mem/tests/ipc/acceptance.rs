//! Requirements of every kind of memory. Each case starts its own processes. A capability that a kind lacks
//! ([`IpcCaps`]) is asserted to be missing, never skipped.

use trunkline_mem::ipc::{HandlePassing, IpcAllocation, IpcCaps};

use crate::peer::{Parcel, Pattern, Place, Process, World};

/// Makes one `#[test]` per case of a kind.
macro_rules! acceptance {
    ($kind:ident, $($case:ident),* $(,)?) => {
        mod $kind {
            $(
                #[test]
                fn $case() {
                    if crate::stub::is_there(stringify!($kind)) {
                        super::$case(stringify!($kind));
                    }
                }
            )*
        }
    };
}

macro_rules! all {
    ($($kind:ident)*) => {
        $( cases!(acceptance, $kind,); )*
    };
}

/// Passes the cases to another macro.
macro_rules! cases {
    ($then:ident, $($first:tt)*) => {
        $then!(
            $($first)*
            both_ends_see_bytes,
            bytes_outside_are_refused,
            any_address_finds_its_whole_allocation,
            reused_address_is_another_allocation,
            freed_memory_is_separate_from_its_successor,
            second_opening_is_refused_or_counted,
            stale_overlaps_are_refused_or_harmless,
            own_handles_are_not_opened,
            invalid_handles_are_refused_or_harmless,
            descriptors_are_required_and_checked,
            killed_importer_leaves_nothing,
            importer_survives_a_killed_exporter,
            rounds_leave_nothing_open,
        );
    };
}

/// Runs all cases on this machine's driver, as one test that reports each failure.
macro_rules! natively {
    ($kind:ident, $open:expr, $($case:ident),* $(,)?) => {
        #[test]
        fn $kind() {
            let kind = stringify!($kind);
            if let Err(missing) = $open {
                let vendor = kind.trim_start_matches("native_");
                return crate::stub::skip(&format!("{kind}: the acceptance suite on a GPU"), vendor, &missing.to_string());
            }
            let failed: Vec<_> = [$( (stringify!($case), super::$case as fn(&'static str)) ),*]
                .into_iter()
                .filter(|(_, case)| std::panic::catch_unwind(|| case(kind)).is_err())
                .map(|(name, _)| name)
                .collect();
            assert!(failed.is_empty(), "{kind}: {failed:?}");
        }
    };
}

all!(host device private xpmem cuda cuda_segment hip ze);

mod native {
    use trunkline_mem::ipc::{CudaMemory, HipMemory, LevelZero, XpmemMemory};

    cases!(natively, native_xpmem, XpmemMemory::open(),);
    cases!(natively, native_cuda, CudaMemory::open_device(0),);
    cases!(natively, native_cuda_segment, CudaMemory::open_device(0),);
    cases!(natively, native_hip, HipMemory::open_device(0),);
    cases!(natively, native_ze, LevelZero::open_device(0),);
}

/// The granularity to which GPU drivers round allocations up.
const PART: usize = 2 << 20;
const ONE: Pattern = Pattern(0x1111_0000_2222, 7);
const TWO: Pattern = Pattern(0x9999_8888_7777, 13);

/// Two processes, of which the first one owns the allocations.
struct Pair {
    world: World,
    owner: Process,
    importer: Process,
    caps: IpcCaps,
}

impl Pair {
    fn new(kind: &'static str) -> Self {
        let world = World::new(kind, 64 << 20);
        let (owner, importer) = (world.process(), world.process());
        let caps = owner.caps();
        Self { world, owner, importer, caps }
    }

    fn ways(&self) -> Vec<HandlePassing> {
        let ways = [
            (self.caps.by_bytes, HandlePassing::Bytes),
            (self.caps.by_descriptor, HandlePassing::Descriptor),
        ];
        let ways: Vec<_> = ways.into_iter().filter_map(|(can, way)| can.then_some(way)).collect();
        assert!(!ways.is_empty());
        ways
    }

    fn alloc(&self, len: usize) -> (usize, IpcAllocation) {
        let addr = self.owner.alloc(len).unwrap();
        (addr, self.owner.find(addr).unwrap())
    }

    fn parcel(&self, of: &IpcAllocation) -> Parcel {
        self.owner.export(of, self.ways()[0]).unwrap()
    }
}

fn both_ends_see_bytes(kind: &'static str) {
    let pair = Pair::new(kind);
    for way in [HandlePassing::Bytes, HandlePassing::Descriptor] {
        let (addr, allocation) = pair.alloc(PART);
        let parcel = pair.owner.export(&allocation, way);
        if !pair.ways().contains(&way) {
            assert!(parcel.unwrap_err().starts_with("Passing"));
            continue;
        }
        let parcel = parcel.unwrap();
        assert_eq!(parcel.descriptor.is_some(), way == HandlePassing::Descriptor);
        pair.owner.fill(Place::Own(addr), PART, ONE).unwrap();
        let open = pair.importer.open(&parcel).unwrap();
        assert_eq!(pair.importer.address(open) != 0, pair.caps.maps);
        let there = |offset: usize| Place::Open(open, (addr - allocation.base + offset) as u64);
        assert_eq!(pair.importer.check(there(0), PART, ONE), Ok(0));
        pair.importer.fill(there(PART / 2), PART / 2, TWO).unwrap();
        assert_eq!(pair.owner.check(Place::Own(addr), PART / 2, ONE), Ok(0));
        assert_eq!(pair.owner.check(Place::Own(addr + PART / 2), PART / 2, TWO), Ok(0));
        pair.owner.fill(Place::Own(addr), 8, TWO).unwrap();
        assert_eq!(pair.importer.check(there(0), 8, TWO), Ok(0), "the importer must see later writes");
        pair.importer.close(open);
        pair.owner.free(addr);
    }
}

fn bytes_outside_are_refused(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, allocation) = pair.alloc(PART);
    let open = pair.importer.open(&pair.parcel(&allocation)).unwrap();
    let places =
        if pair.caps.maps { vec![PART as u64 - 8, PART as u64, u64::MAX] } else { vec![64, u64::MAX] };
    for offset in places {
        let at = Place::Open(open, offset);
        assert!(pair.importer.check(at, 16, ONE).unwrap_err().starts_with("Outside"), "{offset:#x}");
        assert!(pair.importer.fill(at, 16, ONE).unwrap_err().starts_with("Outside"), "{offset:#x}");
    }
    for addr in [8, usize::MAX - 4] {
        assert!(pair.owner.check(Place::Own(addr), 16, ONE).unwrap_err().starts_with("Outside"));
    }
    assert_eq!(pair.owner.check(Place::Own(addr), PART, Pattern(0, 0)), Ok(0));
}

fn any_address_finds_its_whole_allocation(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, allocation) = pair.alloc(PART);
    for offset in [0, 1, PART / 3, PART - 1] {
        assert_eq!(pair.owner.find(addr + offset), Ok(allocation));
    }
    let open = pair.importer.open(&pair.parcel(&allocation)).unwrap();
    if !pair.caps.maps {
        return assert_eq!(allocation.len, 1 << 62, "the only allocation must cover all addresses");
    }
    assert_eq!((allocation.base, allocation.len), (addr, PART));
    assert!(pair.owner.find(8).unwrap_err().starts_with("Unknown"));
    let there = pair.importer.address(open);
    assert!(pair.importer.find(there + 5).unwrap_err().starts_with("Imported"));
    pair.owner.free(addr);
    assert!(pair.owner.find(addr).unwrap_err().starts_with("Unknown"), "a freed address must be unknown");
}

fn reused_address_is_another_allocation(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, before) = pair.alloc(PART);
    let parcels: Vec<_> =
        pair.ways().into_iter().map(|way| (way, pair.owner.export(&before, way).unwrap())).collect();
    pair.owner.free(addr);
    if !pair.caps.outlives_free {
        return;
    }
    let bytes = |parcels: &[(HandlePassing, Parcel)]| {
        parcels.iter().find(|(way, _)| *way == HandlePassing::Bytes).map(|(_, parcel)| parcel.with(|_| ()))
    };
    let handle = bytes(&parcels);
    drop(parcels);
    if let Some(handle) = &handle {
        let error = pair.importer.open(handle).unwrap_err();
        assert!(error.starts_with("Gone"), "the allocation was freed: {error}");
    }
    let (again, after) = pair.alloc(PART);
    assert_eq!(again, addr, "the address must be reused, else the test proves nothing");
    assert_ne!(after.id, before.id);
    for way in pair.ways() {
        assert!(pair.owner.export(&before, way).unwrap_err().starts_with("Gone"));
    }
    if let Some(handle) = &handle {
        let error = pair.importer.open(handle).unwrap_err();
        assert!(error.starts_with("Gone"), "another allocation has this address now: {error}");
    }
    let open = pair.importer.open(&pair.parcel(&after)).unwrap();
    pair.owner.fill(Place::Own(addr), PART, TWO).unwrap();
    assert_eq!(pair.importer.check(Place::Open(open, 0), PART, TWO), Ok(0));
}

fn freed_memory_is_separate_from_its_successor(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, before) = pair.alloc(PART);
    if !pair.caps.outlives_free {
        return;
    }
    let open = pair.importer.open(&pair.parcel(&before)).unwrap();
    let stale = Place::Open(open, 0);
    pair.owner.free(addr);
    let (again, _) = pair.alloc(PART);
    assert_eq!(again, addr);
    assert_eq!(pair.owner.check(Place::Own(again), PART, Pattern(0, 0)), Ok(0), "new memory must be zero");
    pair.importer.fill(stale, PART, ONE).unwrap();
    assert_eq!(pair.owner.check(Place::Own(again), PART, Pattern(0, 0)), Ok(0));
    pair.owner.fill(Place::Own(again), PART, TWO).unwrap();
    assert_eq!(pair.importer.check(stale, PART, ONE), Ok(0));
    pair.importer.close(open);
}

fn second_opening_is_refused_or_counted(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, allocation) = pair.alloc(PART);
    let at = |open| Place::Open(open, (addr - allocation.base) as u64);
    let parcel = pair.parcel(&allocation);
    let first = pair.importer.open(&parcel).unwrap();
    let other = pair.world.process();
    let elsewhere = other.open(&parcel).unwrap();
    let second = pair.importer.open(&parcel);
    pair.owner.fill(Place::Own(addr), PART, ONE).unwrap();
    if pair.caps.opens_once {
        assert!(second.unwrap_err().starts_with("AlreadyMapped"));
    } else {
        let second = second.unwrap();
        pair.importer.close(second);
    }
    assert_eq!(pair.importer.check(at(first), PART, ONE), Ok(0), "the first opening must be unaffected");
    pair.importer.close(first);
    assert_eq!(
        other.check(at(elsewhere), PART, ONE),
        Ok(0),
        "openings of other processes must be unaffected"
    );
    let again = pair.importer.open(&parcel).unwrap();
    assert_eq!(pair.importer.check(at(again), PART, ONE), Ok(0));
}

fn stale_overlaps_are_refused_or_harmless(kind: &'static str) {
    let pair = Pair::new(kind);
    if !pair.caps.outlives_free {
        return assert!(!pair.caps.refuses_overlap, "without stale mappings no overlap can be refused");
    }
    let mut overlaps = 0;
    for (before, after) in [(PART, PART), (PART, 4 * PART), (4 * PART, PART)] {
        let (addr, old) = pair.alloc(before);
        let stale = pair.importer.open(&pair.parcel(&old)).unwrap();
        pair.owner.free(addr);
        let (again, new) = pair.alloc(after);
        if again != addr && kind.starts_with("native_") {
            // A real driver may choose another address for memory of another length.
            pair.importer.close(stale);
            pair.owner.free(again);
            continue;
        }
        assert_eq!(again, addr);
        overlaps += 1;
        pair.owner.fill(Place::Own(again), after, ONE).unwrap();
        let parcel = pair.parcel(&new);
        if pair.caps.refuses_overlap {
            let error = pair.importer.open(&parcel).unwrap_err();
            assert!(error.starts_with("Overlap"), "{error}");
            assert!(error.contains(&format!("{}", old.id.0)) && error.contains("close it first"), "{error}");
        } else {
            let both = pair.importer.open(&parcel).unwrap();
            pair.importer.close(both);
        }
        pair.importer.close(stale);
        let open = pair.importer.open(&parcel).unwrap();
        assert_eq!(pair.importer.check(Place::Open(open, 0), after, ONE), Ok(0));
        pair.importer.close(open);
        pair.owner.free(again);
    }
    println!("{kind}: {overlaps} of 3 allocations overlapped a stale mapping");
    assert!(overlaps > 0, "no allocation overlapped a stale mapping, so the test proves nothing");
}

fn own_handles_are_not_opened(kind: &'static str) {
    let pair = Pair::new(kind);
    let (_, allocation) = pair.alloc(PART);
    assert!(pair.owner.open(&pair.parcel(&allocation)).unwrap_err().starts_with("Own"));
}

fn invalid_handles_are_refused_or_harmless(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, allocation) = pair.alloc(PART);
    pair.owner.fill(Place::Own(addr), PART, ONE).unwrap();
    let parcel = pair.parcel(&allocation);
    let len = parcel.handle.bytes().len();
    for shorter in 0..len {
        let error = pair.importer.open(&parcel.with(|bytes| bytes.truncate(shorter))).unwrap_err();
        assert!(error.starts_with("Handle"), "{error}");
    }
    for at in 0..len {
        for bit in [0x01, 0x80] {
            match pair.importer.open(&parcel.with(|bytes| bytes[at] ^= bit)) {
                Ok(open) => {
                    // A changed process number may be that of another thread of the owner, which is as valid.
                    let strict = pair.caps.by_bytes && pair.caps.maps;
                    assert!(!strict, "byte {at} of the handle is not checked");
                    let start = Place::Open(open, (addr - allocation.base) as u64);
                    assert_eq!(
                        pair.importer.check(start, 64, ONE),
                        Ok(0),
                        "byte {at}: the handle must open the owner's memory"
                    );
                    pair.importer.close(open);
                }
                Err(error) => assert!(at >= 8 || error.starts_with("Handle"), "{error}"),
            }
        }
    }
    let other = trunkline_mem::ipc::IpcHandle::new(200, parcel.handle.bytes()).unwrap();
    let other = Parcel { handle: other, descriptor: None };
    assert!(pair.importer.open(&other).unwrap_err().starts_with("Handle(Kind"));
    let open = pair.importer.open(&parcel).unwrap();
    let at = Place::Open(open, (addr - allocation.base) as u64);
    assert_eq!(pair.importer.check(at, PART, ONE), Ok(0));
}

fn descriptors_are_required_and_checked(kind: &'static str) {
    let pair = Pair::new(kind);
    let (_, allocation) = pair.alloc(PART);
    let mut parcel = pair.parcel(&allocation);
    let strange = std::fs::File::open("/dev/zero").unwrap();
    let real = parcel.descriptor.replace(strange.into());
    let error = pair.importer.open(&parcel).unwrap_err();
    assert!(error.starts_with("Descriptor"), "{error}");
    parcel.descriptor = None;
    if pair.caps.by_bytes {
        pair.importer.open(&parcel).unwrap();
        return;
    }
    let error = pair.importer.open(&parcel).unwrap_err();
    assert!(error.starts_with("Descriptor"), "{error}");
    let (_, another) = pair.alloc(PART);
    if pair.caps.tells_descriptors {
        parcel.descriptor = pair.parcel(&another).descriptor;
        let error = pair.importer.open(&parcel).unwrap_err();
        assert!(error.starts_with("Descriptor"), "a descriptor of other memory must be refused: {error}");
    }
    parcel.descriptor = real;
    pair.importer.open(&parcel).unwrap();
}

fn killed_importer_leaves_nothing(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, allocation) = pair.alloc(PART);
    let parcel = pair.parcel(&allocation);
    pair.importer.open(&parcel).unwrap();
    pair.importer.kill();
    let next = pair.world.process();
    let open = next.open(&parcel).unwrap();
    pair.owner.fill(Place::Own(addr), PART, ONE).unwrap();
    assert_eq!(next.check(Place::Open(open, (addr - allocation.base) as u64), PART, ONE), Ok(0));
}

fn importer_survives_a_killed_exporter(kind: &'static str) {
    let pair = Pair::new(kind);
    let (addr, allocation) = pair.alloc(PART);
    pair.owner.fill(Place::Own(addr), PART, ONE).unwrap();
    let parcel = pair.parcel(&allocation);
    let open = pair.importer.open(&parcel).unwrap();
    let at = Place::Open(open, (addr - allocation.base) as u64);
    pair.owner.kill();
    let read = pair.importer.check(at, PART, ONE);
    if pair.caps.outlives_free {
        assert_eq!(read, Ok(0));
    } else {
        assert!(read.unwrap_err().starts_with("Gone"));
        assert!(pair.importer.fill(at, 8, ONE).unwrap_err().starts_with("Gone"));
    }
    if pair.caps.by_bytes {
        let other = pair.world.process();
        assert!(other.open(&parcel).unwrap_err().starts_with("Gone"));
    }
    pair.importer.close(open);
}

fn rounds_leave_nothing_open(kind: &'static str) {
    let pair = Pair::new(kind);
    let (_, allocation) = pair.alloc(64 << 10);
    for way in pair.ways() {
        let parcel = pair.owner.export(&allocation, way).unwrap();
        let [descriptors, mappings, descriptors_then, mappings_then] = pair.importer.rounds(&parcel, 10_000);
        assert_eq!((descriptors_then, mappings_then), (descriptors, mappings), "{way:?}");
    }
}
