//! The layouts of docs/wire.md, and that encoded values parse to the same values.

use proptest::prelude::*;
use std::vec::Vec;

use super::*;
use crate::wire::dial::RemoteHeap;
use crate::wire::frame::RemoteRegion;

const THERE: PeerAddress = PeerAddress { peer: 7, addr: 0x1_0000_0008, key: 0x0202 };
const HERE: LocalAddress = LocalAddress { addr: 0x1_0000_0010, key: 0x0101 };

fn bytes(words: [u64; 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn entry_is_laid_out_as_documented() {
    let work = EntryWork::Write { from: HERE, to: THERE, len: 4096, imm: Some(0xaabb_ccdd) };
    let entry = QueueEntry { work, fence: EntryFence::All, tag: 0x1234, more: true };
    let bytes = bytes(entry.to_words(0x1_ffff_fffe, false));
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((four(0), bytes[4], bytes[5]), (0xffff_ffff, 1, 1 | 4 | 16 | 32));
    assert_eq!(u16::from_le_bytes([bytes[6], bytes[7]]), 0x1234);
    assert_eq!((eight(8), eight(16), four(24), four(28)), (HERE.addr, THERE.addr, HERE.key, THERE.key));
    assert_eq!((eight(32), eight(40), eight(48), four(56), four(60)), (4096, 0xaabb_ccdd, 0, 7, 0));
    assert_eq!(
        entry.to_words(u64::from(u32::MAX), false)[0] as u32,
        0,
        "the sequence word wraps with the index"
    );
}

#[test]
fn counter_follows_the_length() {
    let at = LocalAddress { addr: 0x2_0000_0018, key: 0x0303 };
    let count = CounterUpdate { at, value: 0x0102_0304, poisoned: true };
    let plain = EntryWork::Write { from: HERE, to: THERE, len: 8, imm: None };
    let entry = QueueEntry::new(plain.with_counter(count).unwrap());
    assert_eq!(entry.work.counter_update(), Some(count));
    let words = entry.to_words(0, false);
    assert_eq!((words[4], words[5], words[6]), (8, at.addr, 0x0102_0304_0000_0303));
    assert_eq!(bytes(words)[4..6], [1, 1 | 64 | 128]);
    let with = |at: usize, word: u64| {
        let mut words = words;
        words[at] = word;
        QueueEntry::from_words(&words, 0, false)
    };
    assert_eq!(with(5, 0x2_0000_001c), Err(QueueEntryError::Unaligned(0x2_0000_001c)));
    assert_eq!(
        with(0, words[0] | 16 << 40),
        Err(QueueEntryError::Flags(209)),
        "a counted WRITE has no field for an immediate"
    );
    assert_eq!(
        with(0, words[0] | 8 << 40),
        Err(QueueEntryError::Length(8)),
        "inline bytes use the same field"
    );
    assert_eq!(plain.counter_update(), None);
    assert_eq!(EntryWork::Nop.with_counter(count), None, "another operation than WRITE was counted");
    let mut poisoned = QueueEntry::new(plain).to_words(0, false);
    poisoned[0] |= 64 << 40;
    assert_eq!(
        QueueEntry::from_words(&poisoned, 0, false),
        Err(QueueEntryError::Flags(65)),
        "the operation has no word"
    );
}

#[test]
fn inline_bytes_use_three_words() {
    let data: Vec<u8> = (1..=20).collect();
    let entry =
        QueueEntry::new(EntryWork::WriteInline { bytes: InlineBytes::new(&data).unwrap(), to: THERE });
    let bytes = bytes(entry.to_words(0, false));
    assert_eq!((&bytes[8..16], &bytes[40..52], &bytes[52..56]), (&data[..8], &data[8..], &[0; 4][..]));
    assert_eq!((bytes[5], bytes[32]), (1 | 8, 20));
    assert_eq!(InlineBytes::new(&[0; 25]), None);
}

#[test]
fn invalid_entries_are_rejected() {
    let add = QueueEntry::new(EntryWork::Atomic { at: THERE, change: AtomicChange::Add(1), poisoned: false });
    let words = add.to_words(5, false);
    let with = |at: usize, word: u64| {
        let mut words = words;
        words[at] = word;
        QueueEntry::from_words(&words, 5, false)
    };
    assert_eq!(QueueEntry::from_words(&words, 5, false), Ok(add));
    let late = QueueEntryError::Sequence { found: 6, expected: 6 + 8 };
    assert_eq!(QueueEntry::from_words(&words, 5 + 8, false), Err(late), "the entry is stale one lap later");
    assert!(matches!(QueueEntry::from_words(&words, 5, true), Err(QueueEntryError::Check { found: 0, .. })));
    assert_eq!(with(0, words[0] & !(0xff << 32) | 99 << 32), Err(QueueEntryError::Operation(99)));
    assert_eq!(
        with(0, words[0] & !(1 << 40)),
        Err(QueueEntryError::Flags(0)),
        "an entry without the completion flag was accepted"
    );
    assert_eq!(
        with(0, words[0] | 6 << 40),
        Err(QueueEntryError::Flags(7)),
        "an entry with both fences was accepted"
    );
    assert_eq!(
        with(0, words[0] | 8 << 40),
        Err(QueueEntryError::Flags(9)),
        "an addition with inline bytes was accepted"
    );
    assert_eq!(with(2, 12), Err(QueueEntryError::Unaligned(12)));
    assert_eq!(with(1, 1), Err(QueueEntryError::Unused(8)));
    assert_eq!(with(7, words[7] | 1 << 32), Err(QueueEntryError::Check { found: 1, expected: 0 }));
    let long = QueueEntry::new(EntryWork::Read { into: HERE, from: THERE, len: LENGTH_MAX + 1 });
    let error = Err(QueueEntryError::Length(LENGTH_MAX + 1));
    assert_eq!(QueueEntry::from_words(&long.to_words(0, false), 0, false), error);
}

#[test]
fn check_detects_any_changed_bit() {
    let entry = QueueEntry::new(EntryWork::Wait { queue: 3, index: u64::MAX });
    let words = entry.to_words(9, true);
    assert_eq!(QueueEntry::from_words(&words, 9, true), Ok(entry));
    for bit in 0..512 {
        let mut words = words;
        words[bit / 64] ^= 1 << (bit % 64);
        assert!(QueueEntry::from_words(&words, 9, true).is_err(), "bit {bit}");
    }
}

#[test]
fn masked_addition_does_not_carry_between_numbers() {
    let change = AtomicChange::AddMasked { add: 0x0000_0001_0000_0001, boundaries: 1 << 63 | 1 << 31 };
    assert_eq!(
        change.apply_to(0x0000_0002_ffff_ffff),
        0x0000_0003_0000_0000,
        "a carry changed the other half"
    );
    assert_eq!(change.apply_to(0xffff_ffff_7fff_ffff), 0x0000_0000_8000_0000);
    let whole = AtomicChange::AddMasked { add: 3, boundaries: 1 << 63 };
    assert_eq!(whole.apply_to(u64::MAX), 2, "a mask of one number is a plain addition");
}

#[test]
fn depths_are_powers_of_two() {
    for depth in [0, 1, 3, 6, 32_767, 65_536, u32::MAX] {
        assert_eq!(QueueShape::new(depth, 0, 0, 0), Err(ShapeError::Depth(depth)));
    }
    let shape = QueueShape::new(8, 4, 0, 0).unwrap();
    assert_eq!(
        (shape.entry_offset(8), shape.entry_offset(9), shape.completion_offset(8)),
        (1024, 1088, 1024 + 512)
    );
    assert_eq!(
        (shape.owner_bit(7), shape.owner_bit(8), shape.owner_bit(16), shape.owner_bit(65_536)),
        (0, 1, 0, 0)
    );
    assert_eq!(shape.owner_bit(u64::MAX), 1, "the next index, 0, has the other parity");
    assert_eq!(QueueShape::new(2, u32::MAX, 0, 0), Err(ShapeError::Number(u32::MAX)));
}

#[test]
fn a_header_is_refused_unless_all_of_it_fits() {
    let shape = QueueShape::new(32_768, 5, 9, 3).unwrap().with_check();
    let words = shape.to_words();
    assert_eq!(QueueShape::from_words(&words, shape.queue_bytes()), Ok(shape));
    let short = ShapeError::Short { have: shape.queue_bytes() - 1, need: 1024 + 80 * 32_768 };
    assert_eq!(QueueShape::from_words(&words, shape.queue_bytes() - 1), Err(short));
    for bit in 0..1024 {
        let mut words = words;
        words[bit / 64] ^= 1 << (bit % 64);
        let read = QueueShape::from_words(&words, u64::MAX);
        let may_differ = matches!(bit, 80..82 | 96..128 | 160..224);
        assert!(read.is_err() || (may_differ && read != Ok(shape)), "bit {bit}: {read:?}");
    }
    let bells = DoorbellLayout::new(65).unwrap();
    assert_eq!((bells.group_count(), bells.bit_place(64), bells.bell_offset(0)), (2, (72, 1), 128));
    assert_eq!(DoorbellLayout::from_words(&bells.to_words(), bells.page_bytes()), Ok(bells));
    assert_eq!(
        DoorbellLayout::from_words(&bells.to_words(), 0).unwrap_err(),
        ShapeError::Short { have: 0, need: 648 }
    );
    assert_eq!(DoorbellLayout::new(0), Err(ShapeError::Bells(0)));
}

#[test]
fn queues_and_doorbells_for_devices_have_a_flag() {
    let shape = QueueShape::new(8, 1, 2, 3).unwrap().for_device();
    let words = shape.to_words();
    assert_eq!(
        (words[1], QueueShape::from_words(&words, shape.queue_bytes())),
        (2 << 32 | 2 << 16 | 1, Ok(shape))
    );
    let other =
        |at: usize, bit: u64| core::array::from_fn(|word| words[word] ^ if word == at { bit } else { 0 });
    assert_eq!(
        QueueShape::from_words(&other(1, 4 << 16), shape.queue_bytes()),
        Err(ShapeError::Header(8)),
        "an unknown flag was accepted"
    );
    for bells in [DoorbellLayout::new(130).unwrap(), DoorbellLayout::new(130).unwrap().by_bytes()] {
        assert_eq!(DoorbellLayout::from_words(&bells.to_words(), bells.page_bytes()), Ok(bells));
        let mut places = Vec::new();
        for bell in 0..bells.bell_count() {
            let (at, bit) = bells.bit_place(bell);
            let group = (at - 64) as u32 / 8;
            assert!(group < bells.group_count() && at < bells.bell_offset(0));
            assert_eq!(bells.bell_of(group, bit.trailing_zeros()), bell);
            places.push((at, bit));
        }
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 130, "two doorbells share a place");
    }
    let bytes = DoorbellLayout::new(130).unwrap().by_bytes();
    assert_eq!(
        (bytes.bit_place(129), bytes.group_count(), bytes.bell_offset(0)),
        ((64 + 128, 1 << 8), 17, 64 + 24 * 8)
    );
}

#[test]
fn frontier_counts_across_every_wrap() {
    for index in [0, 1, 1 << 16, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX] {
        for failed in [false, true] {
            let frontier = FrontierWord::new(index, failed);
            assert_eq!((frontier.index_near(index), frontier.has_failed()), (index, failed));
            assert_eq!(frontier.index_near(index.wrapping_add(40_000)), index);
            assert_eq!(frontier.index_near(index.wrapping_sub(40_000)), index);
            assert!(frontier.has_completed(index.wrapping_sub(1)) && !frontier.has_completed(index));
        }
    }
}

#[test]
fn a_completion_is_known_by_its_lap() {
    let shape = QueueShape::new(4, 0, 0, 0).unwrap();
    let done = EntryCompletion { status: EntryStatus::Network, op: 3, value: 0 };
    let here = CompletionOwner::Here { status: EntryStatus::Network, op: 3 };
    assert_eq!(EntryCompletion::read_owner(&shape, 0, EntryCompletion::NONE), CompletionOwner::NotYet);
    for index in [0, 5, u64::from(u32::MAX), u64::MAX] {
        let head = done.head_word(&shape, index);
        assert_eq!(EntryCompletion::read_owner(&shape, index, head), here);
        assert_eq!(EntryCompletion::read_owner(&shape, index.wrapping_add(4), head), CompletionOwner::NotYet);
        assert_eq!(EntryCompletion::read_owner(&shape, index.wrapping_sub(4), head), CompletionOwner::Gone);
        assert_eq!(
            EntryCompletion::read_owner(&shape, index, EntryCompletion::writing_word(&shape, index)),
            CompletionOwner::NotYet
        );
        let next = EntryCompletion::writing_word(&shape, index.wrapping_add(4));
        assert_eq!(EntryCompletion::read_owner(&shape, index, next), CompletionOwner::Gone);
    }
    let bytes = done.head_word(&shape, 0x1_0000_0004).to_le_bytes();
    assert_eq!(bytes, [4, 0, 0, 0, 5, 0, 3, 1]);
}

#[test]
fn no_poison_word_means_success() {
    assert_eq!((PoisonWord::from_word(0), AbortWord::from_word(0)), (None, None));
    let queue = PoisonWord { status: EntryStatus::Flushed, queue: 2 };
    assert_eq!(
        PoisonWord::from_word(PoisonWord { status: EntryStatus::Done, queue: 2 }.to_word()),
        Some(queue)
    );
    assert_eq!(PoisonWord::from_word(2 << 32), Some(queue), "status 0 of a queue is not a success");
    let aborted = AbortWord { status: EntryStatus::Aborted, reason: 2 };
    assert_eq!(AbortWord::from_word(2 << 32), Some(aborted));
    for bits in 0..=u16::MAX - 1 {
        assert_eq!(EntryStatus::from_bits(bits).to_bits(), bits);
    }
    assert_eq!(EntryStatus::Other(u16::MAX).to_bits(), 5, "65,535 is a completion that is being written");
    for companion in
        [CompanionWord::None, CompanionWord::Asked, CompanionWord::Refused, CompanionWord::Queue(0)]
    {
        assert_eq!(CompanionWord::from_word(companion.to_word()), companion);
    }
    assert_eq!(CompanionWord::from_word(1 << 40), CompanionWord::Invalid(1 << 40));
}

fn local() -> impl Strategy<Value = LocalAddress> {
    (any::<u64>(), any::<u32>()).prop_map(|(addr, key)| LocalAddress { addr, key })
}

fn remote() -> impl Strategy<Value = PeerAddress> {
    (any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(peer, addr, key)| PeerAddress { peer, addr, key })
}

fn change() -> impl Strategy<Value = AtomicChange> {
    prop_oneof![
        any::<u64>().prop_map(AtomicChange::Add),
        (any::<u64>(), any::<u64>()).prop_map(|(expect, swap)| AtomicChange::SwapIf { expect, swap }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(add, boundaries)| AtomicChange::AddMasked { add, boundaries }),
        any::<u64>().prop_map(AtomicChange::Set),
        any::<u64>().prop_map(AtomicChange::Max),
    ]
}

fn work() -> impl Strategy<Value = EntryWork> {
    let len = 0..=LENGTH_MAX;
    prop_oneof![
        Just(EntryWork::Nop),
        Just(EntryWork::Show),
        Just(EntryWork::Barrier),
        (local(), remote(), len.clone(), any::<Option<u32>>())
            .prop_map(|(from, to, len, imm)| EntryWork::Write { from, to, len, imm }),
        (local(), remote(), len.clone(), (local(), any::<u32>(), any::<bool>())).prop_map(
            |(from, to, len, (at, value, poisoned))| {
                let count = CounterUpdate { at: LocalAddress { addr: at.addr & !7, ..at }, value, poisoned };
                EntryWork::Write { from, to, len, imm: None }.with_counter(count).unwrap()
            }
        ),
        (prop::collection::vec(any::<u8>(), 0..=24), remote())
            .prop_map(|(bytes, to)| EntryWork::WriteInline { bytes: InlineBytes::new(&bytes).unwrap(), to }),
        (local(), remote(), len).prop_map(|(into, from, len)| EntryWork::Read { into, from, len }),
        (remote(), change(), any::<bool>()).prop_map(|(at, change, poisoned)| {
            EntryWork::Atomic { at: PeerAddress { addr: at.addr & !7, ..at }, change, poisoned }
        }),
        (any::<u32>(), any::<u64>()).prop_map(|(queue, index)| EntryWork::Wait { queue, index }),
        (any::<u32>(), any::<u32>()).prop_map(|(peer, imm)| EntryWork::Notify { peer, imm }),
    ]
}

proptest! {
    #[test]
    fn encoded_values_round_trip(
        work in work(), fence in 0_u8..3, tag: u16, more: bool, index: u64, checked: bool,
    ) {
        let fence = [EntryFence::None, EntryFence::ReadsAndAtomics, EntryFence::All][usize::from(fence)];
        let entry = QueueEntry { work, fence, tag, more };
        prop_assert_eq!(QueueEntry::from_words(&entry.to_words(index, checked), index, checked), Ok(entry));
    }

    #[test]
    fn parsed_words_encode_to_the_same_words(
        work in work(), flips in prop::collection::vec(0_usize..480, 0..4), index: u64,
    ) {
        let mut words = QueueEntry::new(work).to_words(index, false);
        for bit in flips {
            words[bit / 64] ^= 1 << (bit % 64);
        }
        if let Ok(entry) = QueueEntry::from_words(&words, index, false) {
            prop_assert_eq!(entry.to_words(index, false), words);
        }
    }
}

const LENGTHS: PartLengths = PartLengths { whole: 4096, data: 1024, words: 3072 };

#[test]
fn divided_card_is_laid_out_as_documented() {
    let heap = |len, rail: u64| RemoteHeap { len, region: RemoteRegion { key: 7 + rail, addr: rail << 40 } };
    let data = [heap(1024, 0), heap(1024, 1)];
    let card = WindowCard::new([1; 8], 0x0203, &data).unwrap();
    assert_eq!(
        card.with_words_apart(5, true, &[heap(3072, 2)]),
        None,
        "the words have another number of rails than the data"
    );
    let card = card.with_words_apart(5, true, &[heap(3072, 2), heap(3072, 3)]).unwrap();
    let words = card.to_words();
    assert_eq!(words[8..15], [0x0500_0000_0000 | 6 << 32 | 0x0203, 1024, 7, 0, 1024, 8, 1 << 40]);
    assert_eq!(words[15..21], [0; 6]);
    assert_eq!(words[21..27], [3072, 9, 2 << 40, 3072, 10, 3 << 40]);
    assert_eq!(words[27..], [0; 6]);
    assert_eq!(WindowCard::from_words(&words, LENGTHS), Ok(card));
    let told = |at: usize, word: u64| {
        let mut words = card.to_words();
        words[at] = word;
        WindowCard::from_words(&words, LENGTHS)
    };
    let both = words[8] | 1 << 32;
    assert_eq!(told(8, both), Err(CardError::Key(both)), "posted, too");
    assert_eq!((told(9, 4096), told(21, 1024)), (Err(CardError::Length(4096)), Err(CardError::Length(1024))));
    let mut one = words;
    one[24..27].fill(0);
    assert_eq!(WindowCard::from_words(&one, LENGTHS), Err(CardError::Rails), "a rail without words");
    assert!(told(8, words[8] & !(1 << 34)).is_ok_and(|card| !card.words.unwrap().needs_flush));
}

fn card() -> WindowCard {
    let heap = |rail: u64| RemoteHeap { len: 4096, region: RemoteRegion { key: 7 + rail, addr: rail << 40 } };
    WindowCard::new([1, 2, 3, 4, 5, 6, 7, 8], 0x0203, &[heap(0), heap(1)]).unwrap()
}

#[test]
fn window_card_is_laid_out_as_documented() {
    let words = card().to_words();
    assert_eq!(words[..9], [1, 2, 3, 4, 5, 6, 7, 8, 0x0203]);
    assert_eq!(words[9..15], [4096, 7, 0, 4096, 8, 1 << 40]);
    assert!(words[15..].iter().all(|word| *word == 0) && words.len() == 33);
    assert_eq!(WindowCard::from_words(&words, LENGTHS), Ok(card()));
    assert_eq!(card().heaps().len(), 2);
    assert_eq!(WindowCard::new([0; 8], 1, &[]), None);
    assert_eq!(WindowCard::new([0; 8], 1, &[card().heaps()[0]; 5]), None);
}

#[test]
fn invalid_window_cards_are_rejected() {
    let told = |at: usize, word: u64| {
        let mut words = card().to_words();
        words[at] = word;
        WindowCard::from_words(&words, LENGTHS)
    };
    assert_eq!(told(8, 3), Err(CardError::Key(3)), "a key without a generation was accepted");
    for bit in [34, 35, 39, 40, 47, 48, 63] {
        let key = 1 << bit | 0x0203;
        assert_eq!(told(8, key), Err(CardError::Key(key)), "a key with too many bits was truncated");
    }
    assert_eq!(
        (told(8, 1 << 33 | 0x0203), told(21, 1)),
        (Err(CardError::Length(4096)), Err(CardError::Rails))
    );
    for len in [0, 4095, 4097, u64::MAX] {
        assert_eq!(told(12, len), Err(CardError::Length(len)));
    }
    assert_eq!(told(11, u64::MAX - 4094), Err(CardError::Address(u64::MAX - 4094)));
    assert!(told(11, u64::MAX - 4096).is_ok());
    // A key after the last rail, and one of a missing rail.
    assert_eq!((told(16, 1), told(19, 1)), (Err(CardError::Length(0)), Err(CardError::Rails)));
    let mut words = card().to_words();
    words.copy_within(9..12, 18);
    assert_eq!(WindowCard::from_words(&words, LENGTHS), Err(CardError::Rails));
    words[9..].fill(0);
    assert_eq!(
        WindowCard::from_words(&words, LENGTHS),
        Err(CardError::Rails),
        "a card without rails was accepted"
    );
}
