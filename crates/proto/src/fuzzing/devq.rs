//! Device queues: what a device may have left in memory.

use alloc::vec::Vec;

use super::variants;
use crate::limits::RAILS_MAX;
use crate::mutant::Mutant;
use crate::rma::atomic::Action;
use crate::wire::device_queue::{
    Aborted, Ask, Atomic, BOX_BYTES, Bells, CARD_WORDS, Companion, Completion, Entry, Fence, Frontier,
    GuestCard, GuestFile, Inline, Local, MakingReport, Owner, POST_PLACES, PartLengths, Poison, PostBox,
    REPLY_BYTES, REPORT_WORDS, REQUEST_BYTES, Remote, Reply, Request, Shape, Status, WindowCard,
    WindowLayout, WindowShape, Work,
};
use crate::wire::dial::Heap;
use crate::wire::frame::Region;

const SHAPE: Shape = match Shape::new(8, 3, 0, 0) {
    Ok(shape) => shape,
    Err(_) => panic!("8 is a depth"),
};

/// The words of the input, zeros where it is too short.
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (into, from) in words.iter_mut().zip(bytes.chunks(8)) {
        *into = from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

/// An index, whether entries carry a check, and words that are taken for everything that they can be.
pub(super) fn words_of_a_queue(bytes: &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(9));
    let index = words::<1>(head)[0];
    let checked = head.get(8).is_some_and(|byte| byte & 1 == 1);
    if let Ok(entry) = Entry::from_words(&words(rest), index, checked) {
        assert_eq!(entry.to_words(index, checked), words(rest));
        if let Work::Atomic { change: Atomic::AddMasked { add, boundaries }, .. } = entry.work {
            let whole = Atomic::AddMasked { add, boundaries: boundaries | 1 << 63 };
            assert_eq!(
                Atomic::AddMasked { add, boundaries }.apply(index),
                whole.apply(index),
                "nothing is above it"
            );
        }
    }
    // What is read in a short way is what it is by the long one.
    let wait = |entry: Entry| match entry {
        Entry { work: Work::Wait { queue, index }, fence: Fence::None, tag: 0, more: false } => {
            Some((queue, index))
        }
        _ => None,
    };
    let add = |entry: Entry| match entry {
        Entry {
            work: Work::Atomic { at, change: Atomic::Add(value), poisoned },
            fence: Fence::None,
            tag: 0,
            more: false,
        } => Some((at, value, poisoned)),
        _ => None,
    };
    let long = Entry::from_words(&words(rest), index, false).ok();
    assert_eq!(Entry::plain_wait(&words(rest), index), long.and_then(wait));
    assert_eq!(Entry::plain_add(&words(rest), index), long.and_then(add));
    if let Ok(shape) = Shape::from_words(&words(rest), u64::MAX) {
        assert_eq!(shape.to_words(), words(rest));
        assert!(shape.completion(index) + 16 <= shape.bytes());
    }
    if let Ok(bells) = Bells::from_words(&words(rest), u64::MAX) {
        assert_eq!(bells.to_words(), words(rest));
    }
    let [word] = words(rest);
    if let Owner::Here { status, op } = Completion::owner(&SHAPE, index, word) {
        assert_eq!(Completion { status, op, value: 0 }.head(&SHAPE, index), word);
    }
    let frontier = Frontier(word);
    assert_eq!(Frontier::new(frontier.near(index), frontier.has_failed()), frontier);
    assert_eq!(Companion::from_word(word).to_word(), word);
    assert_eq!(
        (Poison::from_word(word).is_none(), Aborted::from_word(word).is_none()),
        (word == 0, word == 0)
    );
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let here = Local { addr: 1 << 40, key: 5 };
    let there = Remote { peer: 2, addr: 1 << 41, key: 6 };
    let Some(bytes) = Inline::new(b"twenty bytes inline.") else { return Vec::new() };
    let atomic = |change, poisoned| Work::Atomic { at: there, change, poisoned };
    let works = [
        Work::Write { from: here, to: there, len: 1 << 30, imm: Some(7) },
        atomic(Atomic::SwapIf { expect: 1, swap: u64::MAX }, true),
        Work::WriteInline { bytes, to: there },
        Work::Wait { queue: 9, index: u64::MAX },
        Work::Read { into: here, from: there, len: 0 },
        atomic(Atomic::AddMasked { add: 1, boundaries: 1 << 31 }, false),
        Work::Notify { peer: 1, imm: 2 },
        Work::Nop,
        Work::WriteCounted { from: here, to: there, len: 64, counter: 8, key: 9, value: 10, poisoned: true },
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
        input(index, checked, &Entry::new(*work).fenced(Fence::All).to_words(index, checked))
    });
    let mut all: Vec<_> = entries.collect();
    let wait = Entry::new(Work::Wait { queue: 9, index: u64::MAX });
    let add = Entry::new(atomic(Atomic::Add(1), true));
    let plain = [
        wait,
        wait.fenced(Fence::All),
        add,
        Entry { tag: 1, ..add },
        Entry::new(atomic(Atomic::Add(1), false)),
    ];
    all.extend(plain.map(|entry| input(7, false, &entry.to_words(7, false))));
    let done = Completion { status: Status::Done, op: 3, value: 0 };
    all.push(input(9, false, &SHAPE.to_words()));
    all.extend(Bells::new(64).map(|bells| input(0, false, &bells.to_words())));
    all.push(input(9, false, &[done.head(&SHAPE, 9)]));
    all.push(input(9, false, &[Frontier::new(9, true).0]));
    variants(&all)
}

/// What a process hands to another one of its host.
pub(super) fn guest_card(bytes: &[u8]) {
    let Ok(card) = GuestCard::from_bytes(bytes, Mutant::NONE) else { return };
    assert_eq!(card.to_bytes(), bytes);
    let layout = card.layout();
    assert!(layout.is_ok_and(|layout| layout.bytes() <= card.part.len), "the window is inside of the file");
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
        let len = WindowLayout::new(shape).map_or(0, |layout| layout.bytes());
        let file = |fd: u32, len| GuestFile { fd, inode: 1 << 33, len };
        GuestCard {
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
    let all: Vec<_> = [card(1, 1, 0), card(2, 3, 1), card(3, 2, 0)].iter().map(GuestCard::to_bytes).collect();
    variants(&all)
}

/// What another rank tells of its part of a window: how many bytes it is to have, and the card.
pub(super) fn window_card(bytes: &[u8]) {
    let (len, rest) = bytes.split_at(bytes.len().min(8));
    let ([len], words) = (words(len), words(rest));
    let lengths = PartLengths { whole: len, data: len / 4, words: len / 2 };
    let Ok(card) = WindowCard::from_words(&words, lengths, Mutant::NONE) else { return };
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
    let again = again.map(|again| again.posted(card.is_posted));
    let again = match card.words {
        Some(words) => again.and_then(|again| again.divided(words.heap, words.needs_flush, words.heaps())),
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
        let heap = |rail: u64| Heap { len, region: Region { key: rail << 33 | 5, addr: rail << 20 } };
        let heaps: Vec<Heap> = (0..rails as u64).map(heap).collect();
        WindowCard::new([65_536, 3, 2, 1, 0, 1, 0, 4096], key, &heaps).map(|card| card.to_words())
    };
    let whole: Vec<[u64; CARD_WORDS]> =
        (1..=RAILS_MAX).filter_map(|rails| card(rails, 0x0100, 4096)).collect();
    let mut seeds: Vec<Vec<u8>> = whole.iter().map(|words| seed(4096, words)).collect();
    let divided = |rails| {
        let heap = |len, rail: u64| Heap { len, region: Region { key: rail << 33 | 5, addr: rail << 20 } };
        let (data, words): (Vec<Heap>, Vec<Heap>) =
            (0..rails).map(|rail| (heap(1024, rail), heap(2048, rail + 8))).unzip();
        let card = WindowCard::new([65_536, 3, 2, 1, 0, 1, 0, 4096], 0x0100, &data)?;
        Some(card.divided(3, true, &words)?.to_words())
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

/// Words of a post box: the number that is expected, a rank, whether the last word is what it should be behind the others, and a request or reply.
pub(super) fn post_box(bytes: &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(13));
    let [number, rank] = words::<2>(head);
    let rank = rank as u32;
    let is_mended = head.get(12).is_some_and(|byte| byte & 1 == 1);
    let mut request = words::<8>(rest);
    let mut reply = words::<4>(rest);
    if is_mended {
        // Nobody who guesses gets behind the check.
        request[7] = Request::check(&request);
        reply[3] = Reply::check(&reply);
    }
    if let Some(read) = Request::from_words(&request, number, Mutant::NONE) {
        assert_eq!((read.number, read.to_words()), (number, request), "one way to say it");
        torn(&request, |words| Request::from_words(words, number, Mutant::NONE).is_some());
    }
    if let Some(read) = Reply::from_words(&reply, number, Mutant::NONE) {
        assert_eq!((read.number, read.to_words()), (number, reply), "one way to say it");
        torn(&reply, |words| Reply::from_words(words, number, Mutant::NONE).is_some());
    }
    let other = number.wrapping_add(POST_PLACES);
    assert_eq!(
        Request::from_words(
            &Request { number: other, ask: Ask::Show { addr: 0, len: 0 } }.to_words(),
            number,
            Mutant::NONE
        ),
        None
    );
    let Some(of) = PostBox::new(request[1], rank) else { return };
    let places = [
        (of.request(number), REQUEST_BYTES),
        (of.reply(number), REPLY_BYTES),
        (of.request_out(number), REQUEST_BYTES),
        (of.reply_out(number), REPLY_BYTES),
        (of.lost(), 8),
        (of.spoiled(), 8),
    ];
    for (nth, (at, len)) in places.iter().enumerate() {
        assert!(*at >= of.lost() && at + len <= of.lost() + BOX_BYTES, "in its box");
        let is_apart = |(other, size): &(u64, u64)| other + size <= *at || at + len <= *other;
        assert!(places.iter().skip(nth + 1).all(is_apart), "places lie apart");
    }
}

/// Words of which one is not written yet: that they say something else is not to be taken for what they will say.
fn torn<const N: usize>(whole: &[u64; N], is_read: impl Fn(&[u64; N]) -> bool) {
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
    let change = |action| Ask::Change { addr: 64, action };
    let asks = [
        Ask::Bring { addr: 4096, len: 1 << 20 },
        Ask::Show { addr: 0, len: u64::MAX },
        change(Action::Fetch),
        change(Action::Add(7)),
        change(Action::Set(u64::MAX)),
        change(Action::And(1)),
        change(Action::Or(2)),
        change(Action::Xor(3)),
        change(Action::CompareSwap { expect: 1, swap: 2 }),
    ];
    let requests = (0_u64..).zip(asks).map(|(at, ask)| {
        let number = at.wrapping_sub(2);
        input(number, false, &Request { number, ask }.to_words())
    });
    let mut all: Vec<_> = requests.collect();
    for how in [Ok(17), Err((Status::Access, 0)), Err((Status::Other(900), u32::MAX))] {
        all.push(input(5, false, &Reply { number: 5, how }.to_words()));
    }
    all.push(input(0, true, &[1, 3, 8, 1, 0, 0, 0, 0]));
    all.push(input(0, true, &[1, 9, 8, 1, 2, 1, 0, 0]));
    all.push(input(0, true, &[1, 5, 3 | 9 << 32, 0]));
    all.push(input(0, true, &[1, 0, 9 << 32 | 1 << 16, 0]));
    variants(&all)
}

/// Reports of ranks about their parts of a window.
pub(super) fn making_report(bytes: &[u8]) {
    let given = words::<REPORT_WORDS>(bytes);
    let Ok(report) = MakingReport::from_words(&given, Mutant::NONE) else { return };
    assert_eq!(report.to_words(), given);
    assert_eq!(report.cause().is_some(), given[0] > 0);
}

pub(super) fn making_report_seeds() -> Vec<Vec<u8>> {
    let long = "window ".repeat(100);
    let reports = [
        MakingReport::READY,
        MakingReport::failed(""),
        MakingReport::failed("cuMemCreate: out of memory"),
        MakingReport::failed(&long),
    ];
    variants(&reports.map(|report| report.to_words().into_iter().flat_map(u64::to_le_bytes).collect()))
}
