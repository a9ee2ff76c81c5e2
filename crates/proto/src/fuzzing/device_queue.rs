//! Fuzzing of device queues: words that a device may have left in memory.

use alloc::vec::Vec;

use super::make_variants;
use crate::limits::RAILS_MAX;
use crate::rma::atomic::AtomicAction;
use crate::wire::device_queue::{
    AbortWord, AtomicChange, BOX_BYTES, CARD_WORDS, CompanionWord, CompletionOwner, DoorbellLayout,
    EntryCompletion, EntryFence, EntryStatus, EntryWork, FrontierWord, GuestChannelCard, GuestFile,
    InlineBytes, LocalAddress, MakingReport, OwnerAction, POST_PLACES, PartLengths, PeerAddress, PoisonWord,
    PostBox, PostReply, PostRequest, QueueEntry, QueueShape, REPLY_BYTES, REPORT_WORDS, REQUEST_BYTES,
    WindowCard, WindowLayout, WindowShape,
};
use crate::wire::dial::RemoteHeap;
use crate::wire::frame::RemoteRegion;

const SHAPE: QueueShape = match QueueShape::new(8, 3, 0, 0) {
    Ok(shape) => shape,
    Err(_) => panic!("8 is a depth"),
};

/// Returns the words of the input, with zeros where it is too short.
fn pad_to_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (into, from) in words.iter_mut().zip(bytes.chunks(8)) {
        *into = from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

/// Input: an index, whether entries carry a check, and words that are parsed as every kind of word.
pub(super) fn words_of_a_queue(bytes: &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(9));
    let index = pad_to_words::<1>(head)[0];
    let checked = head.get(8).is_some_and(|byte| byte & 1 == 1);
    if let Ok(entry) = QueueEntry::from_words(&pad_to_words(rest), index, checked) {
        assert_eq!(entry.to_words(index, checked), pad_to_words(rest));
        if let EntryWork::Atomic { change: AtomicChange::AddMasked { add, boundaries }, .. } = entry.work {
            let whole = AtomicChange::AddMasked { add, boundaries: boundaries | 1 << 63 };
            assert_eq!(
                AtomicChange::AddMasked { add, boundaries }.apply_to(index),
                whole.apply_to(index),
                "a bit above the field is set"
            );
        }
    }
    // Both parsers must return the same: the short one and the one field by field.
    let wait = |entry: QueueEntry| match entry {
        QueueEntry {
            work: EntryWork::Wait { queue, index },
            fence: EntryFence::None,
            tag: 0,
            more: false,
        } => Some((queue, index)),
        _ => None,
    };
    let add = |entry: QueueEntry| match entry {
        QueueEntry {
            work: EntryWork::Atomic { at, change: AtomicChange::Add(value), poisoned },
            fence: EntryFence::None,
            tag: 0,
            more: false,
        } => Some((at, value, poisoned)),
        _ => None,
    };
    let long = QueueEntry::from_words(&pad_to_words(rest), index, false).ok();
    assert_eq!(QueueEntry::plain_wait(&pad_to_words(rest), index), long.and_then(wait));
    assert_eq!(QueueEntry::plain_add(&pad_to_words(rest), index), long.and_then(add));
    if let Ok(shape) = QueueShape::from_words(&pad_to_words(rest), u64::MAX) {
        assert_eq!(shape.to_words(), pad_to_words(rest));
        assert!(shape.completion_offset(index) + 16 <= shape.queue_bytes());
    }
    if let Ok(bells) = DoorbellLayout::from_words(&pad_to_words(rest), u64::MAX) {
        assert_eq!(bells.to_words(), pad_to_words(rest));
    }
    let [word] = pad_to_words(rest);
    if let CompletionOwner::Here { status, op } = EntryCompletion::read_owner(&SHAPE, index, word) {
        assert_eq!(EntryCompletion { status, op, value: 0 }.head_word(&SHAPE, index), word);
    }
    let frontier = FrontierWord(word);
    assert_eq!(FrontierWord::new(frontier.index_near(index), frontier.has_failed()), frontier);
    assert_eq!(CompanionWord::from_word(word).to_word(), word);
    assert_eq!(
        (PoisonWord::from_word(word).is_none(), AbortWord::from_word(word).is_none()),
        (word == 0, word == 0)
    );
}

pub(super) fn queue_seeds() -> Vec<Vec<u8>> {
    let here = LocalAddress { addr: 1 << 40, key: 5 };
    let there = PeerAddress { peer: 2, addr: 1 << 41, key: 6 };
    let Some(bytes) = InlineBytes::new(b"twenty bytes inline.") else { return Vec::new() };
    let atomic = |change, poisoned| EntryWork::Atomic { at: there, change, poisoned };
    let works = [
        EntryWork::Write { from: here, to: there, len: 1 << 30, imm: Some(7) },
        atomic(AtomicChange::SwapIf { expect: 1, swap: u64::MAX }, true),
        EntryWork::WriteInline { bytes, to: there },
        EntryWork::Wait { queue: 9, index: u64::MAX },
        EntryWork::Read { into: here, from: there, len: 0 },
        atomic(AtomicChange::AddMasked { add: 1, boundaries: 1 << 31 }, false),
        EntryWork::Notify { peer: 1, imm: 2 },
        EntryWork::Nop,
        EntryWork::WriteCounted {
            from: here,
            to: there,
            len: 64,
            counter: 8,
            key: 9,
            value: 10,
            poisoned: true,
        },
    ];
    let input = |index: u64, checked: bool, words: &[u64]| {
        let mut out = index.to_le_bytes().to_vec();
        out.push(checked.into());
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out
    };
    let entries = works.iter().enumerate().map(|(at, work)| {
        let index = (at as u64).wrapping_sub(3);
        let checked = at % 2 == 1;
        input(index, checked, &QueueEntry::new(*work).with_fence(EntryFence::All).to_words(index, checked))
    });
    let mut all: Vec<_> = entries.collect();
    let wait = QueueEntry::new(EntryWork::Wait { queue: 9, index: u64::MAX });
    let add = QueueEntry::new(atomic(AtomicChange::Add(1), true));
    let plain = [
        wait,
        wait.with_fence(EntryFence::All),
        add,
        QueueEntry { tag: 1, ..add },
        QueueEntry::new(atomic(AtomicChange::Add(1), false)),
    ];
    all.extend(plain.map(|entry| input(7, false, &entry.to_words(7, false))));
    let done = EntryCompletion { status: EntryStatus::Done, op: 3, value: 0 };
    all.push(input(9, false, &SHAPE.to_words()));
    all.extend(DoorbellLayout::new(64).map(|bells| input(0, false, &bells.to_words())));
    all.push(input(9, false, &[done.head_word(&SHAPE, 9)]));
    all.push(input(9, false, &[FrontierWord::new(9, true).0]));
    make_variants(&all)
}

/// The card that a process gives to another process of its host.
pub(super) fn guest_card(bytes: &[u8]) {
    let Ok(card) = GuestChannelCard::from_bytes(bytes) else { return };
    assert_eq!(card.to_bytes(), bytes);
    let layout = card.window_layout();
    assert!(
        layout.is_ok_and(|layout| layout.window_bytes() <= card.part.len),
        "the window is inside of the file"
    );
    assert_eq!((card.keys.len(), card.numbers.len()), (card.shape.ranks as usize, card.shape.lanes as usize));
    assert!(card.rank < card.shape.ranks && card.keys.iter().all(|key| key >> 8 > 0));
}

pub(super) fn guest_card_seeds() -> Vec<Vec<u8>> {
    let card = |ranks: u32, lanes: u32, channels| {
        let shape = WindowShape {
            ranks,
            bytes: 4096,
            signals: 2,
            counters: 1,
            barriers: 1,
            channels,
            lanes,
            depth: 4,
            chunk: 64,
        };
        let len = WindowLayout::new(shape).map_or(0, |layout| layout.window_bytes());
        let file = |fd: u32, len| GuestFile { fd, inode: 1 << 33, len };
        GuestChannelCard {
            pid: 4711,
            queues: file(5, 1 << 20),
            part: file(6, len),
            shape,
            rank: ranks - 1,
            channel: 0,
            keys: (1..=ranks).map(|key| key << 8).collect(),
            numbers: (0..lanes).map(|lane| 2 * lane).collect(),
        }
    };
    let all: Vec<_> =
        [card(1, 1, 0), card(2, 3, 1), card(3, 2, 0)].iter().map(GuestChannelCard::to_bytes).collect();
    make_variants(&all)
}

/// The card of another rank's part of a window. Input: the expected length in bytes, and the card.
pub(super) fn window_card(bytes: &[u8]) {
    let (len, rest) = bytes.split_at(bytes.len().min(8));
    let ([len], words) = (pad_to_words(len), pad_to_words(rest));
    let lengths = PartLengths { whole: len, data: len / 4, words: len / 2 };
    let Ok(card) = WindowCard::from_words(&words, lengths) else { return };
    assert_eq!(card.to_words(), words);
    assert!((1..=RAILS_MAX).contains(&card.heaps().len()));
    assert!(card.key >> 8 > 0, "a generation");
    let data = if card.words.is_some() { lengths.data } else { lengths.whole };
    let apart = card.words.iter().flat_map(|words| words.heaps()).map(|heap| (heap, lengths.words));
    for (heap, len) in card.heaps().iter().map(|heap| (heap, data)).chain(apart) {
        assert_eq!(heap.len, len);
        assert!(heap.region.addr.checked_add(len).is_some());
    }
    let again = WindowCard::new(card.config, card.key, card.heaps());
    let again = again.map(|again| again.with_posted(card.is_posted));
    let again = match card.words {
        Some(words) => {
            again.and_then(|again| again.with_words_apart(words.heap, words.needs_flush, words.heaps()))
        }
        None => again,
    };
    assert_eq!(again, Some(card));
}

pub(super) fn window_card_seeds() -> Vec<Vec<u8>> {
    let seed = |len: u64, words: &[u64]| {
        let words = core::iter::once(&len).chain(words);
        words.flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let card = |rails: usize, key, len| {
        let heap =
            |rail: u64| RemoteHeap { len, region: RemoteRegion { key: rail << 33 | 5, addr: rail << 20 } };
        let heaps: Vec<RemoteHeap> = (0..rails as u64).map(heap).collect();
        WindowCard::new([65_536, 3, 2, 1, 0, 1, 0, 4096], key, &heaps).map(|card| card.to_words())
    };
    let whole: Vec<[u64; CARD_WORDS]> =
        (1..=RAILS_MAX).filter_map(|rails| card(rails, 0x0100, 4096)).collect();
    let mut seeds: Vec<Vec<u8>> = whole.iter().map(|words| seed(4096, words)).collect();
    let divided = |rails| {
        let heap = |len, rail: u64| RemoteHeap {
            len,
            region: RemoteRegion { key: rail << 33 | 5, addr: rail << 20 },
        };
        let (data, words): (Vec<RemoteHeap>, Vec<RemoteHeap>) =
            (0..rails).map(|rail| (heap(1024, rail), heap(2048, rail + 8))).unzip();
        let card = WindowCard::new([65_536, 3, 2, 1, 0, 1, 0, 4096], 0x0100, &data)?;
        Some(card.with_words_apart(3, true, &words)?.to_words())
    };
    seeds.extend((1..=2).filter_map(divided).map(|words| seed(4096, &words)));
    let two = whole.get(1).copied().unwrap_or([0; CARD_WORDS]);
    let changed = |at: usize, word: u64| {
        let mut words = two;
        words[at] = word;
        seed(4096, &words)
    };
    seeds.extend([
        changed(8, 5),
        changed(8, 1 << 32),
        changed(8, 1 << 32 | 0x0100),
        changed(8, 1 << 33 | 0x0100),
        changed(8, u64::from(u32::MAX)),
        changed(9, 1),
    ]);
    seeds.extend([
        changed(11, u64::MAX),
        changed(19, 3),
        changed(12, 0),
        seed(0, &two),
        seed(4096, &two[..9]),
    ]);
    seeds.push(Vec::new());
    seeds
}

/// Words of a post box. Input: the expected number, a rank, whether the last word is replaced by the right check, and a request or reply.
pub(super) fn post_box(bytes: &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(13));
    let [number, rank] = pad_to_words::<2>(head);
    let rank = rank as u32;
    let is_mended = head.get(12).is_some_and(|byte| byte & 1 == 1);
    let mut request = pad_to_words::<8>(rest);
    let mut reply = pad_to_words::<4>(rest);
    if is_mended {
        // Random input never passes the check, so the check is computed here.
        request[7] = PostRequest::request_check(&request);
        reply[3] = PostReply::reply_check(&reply);
    }
    if let Some(read) = PostRequest::from_words(&request, number) {
        assert_eq!((read.number, read.to_words()), (number, request), "a value has two encodings");
        check_torn(&request, |words| PostRequest::from_words(words, number).is_some());
    }
    if let Some(read) = PostReply::from_words(&reply, number) {
        assert_eq!((read.number, read.to_words()), (number, reply), "a value has two encodings");
        check_torn(&reply, |words| PostReply::from_words(words, number).is_some());
    }
    let other = number.wrapping_add(POST_PLACES);
    assert_eq!(
        PostRequest::from_words(
            &PostRequest { number: other, ask: OwnerAction::Show { addr: 0, len: 0 } }.to_words(),
            number,
        ),
        None
    );
    let Some(of) = PostBox::new(request[1], rank) else { return };
    let places = [
        (of.request_offset(number), REQUEST_BYTES),
        (of.reply_offset(number), REPLY_BYTES),
        (of.request_out(number), REQUEST_BYTES),
        (of.reply_out(number), REPLY_BYTES),
        (of.lost_word(), 8),
        (of.error_word(), 8),
    ];
    for (nth, (at, len)) in places.iter().enumerate() {
        assert!(
            *at >= of.lost_word() && at + len <= of.lost_word() + BOX_BYTES,
            "a slot lies outside of its box"
        );
        let is_apart = |(other, size): &(u64, u64)| other + size <= *at || at + len <= *other;
        assert!(places.iter().skip(nth + 1).all(is_apart), "two slots overlap");
    }
}

/// Words of which one is not written yet must not parse as the complete ones.
fn check_torn<const N: usize>(whole: &[u64; N], is_read: impl Fn(&[u64; N]) -> bool) {
    for at in 0..N {
        let mut words = *whole;
        words[at] ^= 1 << (at % 64);
        assert!(!is_read(&words), "word {at}");
    }
}

pub(super) fn post_box_seeds() -> Vec<Vec<u8>> {
    let input = |number: u64, is_mended: bool, words: &[u64]| {
        let mut out = number.to_le_bytes().to_vec();
        out.extend(3_u32.to_le_bytes());
        out.push(is_mended.into());
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out
    };
    let change = |action| OwnerAction::Change { addr: 64, action };
    let asks = [
        OwnerAction::Bring { addr: 4096, len: 1 << 20 },
        OwnerAction::Show { addr: 0, len: u64::MAX },
        change(AtomicAction::Fetch),
        change(AtomicAction::Add(7)),
        change(AtomicAction::Set(u64::MAX)),
        change(AtomicAction::And(1)),
        change(AtomicAction::Or(2)),
        change(AtomicAction::Xor(3)),
        change(AtomicAction::CompareSwap { expect: 1, swap: 2 }),
    ];
    let requests = (0_u64..).zip(asks).map(|(at, ask)| {
        let number = at.wrapping_sub(2);
        input(number, false, &PostRequest { number, ask }.to_words())
    });
    let mut all: Vec<_> = requests.collect();
    for how in [Ok(17), Err((EntryStatus::Access, 0)), Err((EntryStatus::Other(900), u32::MAX))] {
        all.push(input(5, false, &PostReply { number: 5, how }.to_words()));
    }
    all.push(input(0, true, &[1, 3, 8, 1, 0, 0, 0, 0]));
    all.push(input(0, true, &[1, 9, 8, 1, 2, 1, 0, 0]));
    all.push(input(0, true, &[1, 5, 3 | 9 << 32, 0]));
    all.push(input(0, true, &[1, 0, 9 << 32 | 1 << 16, 0]));
    make_variants(&all)
}

/// Reports of ranks about their parts of a window.
pub(super) fn making_report(bytes: &[u8]) {
    let given = pad_to_words::<REPORT_WORDS>(bytes);
    let Ok(report) = MakingReport::from_words(&given) else { return };
    assert_eq!(report.to_words(), given);
    assert_eq!(report.failure_cause().is_some(), given[0] > 0);
}

pub(super) fn making_report_seeds() -> Vec<Vec<u8>> {
    let long = "window ".repeat(100);
    let reports = [
        MakingReport::READY,
        MakingReport::from_failure(""),
        MakingReport::from_failure("cuMemCreate: out of memory"),
        MakingReport::from_failure(&long),
    ];
    make_variants(&reports.map(|report| report.to_words().into_iter().flat_map(u64::to_le_bytes).collect()))
}
