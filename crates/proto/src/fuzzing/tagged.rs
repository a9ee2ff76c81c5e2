//! Fuzzing of tagged messages inside a node: introductions, and the cells of both rings.

use alloc::vec::Vec;

use super::make_variants;
use crate::intervals::ByteSpan;
use crate::slots::SlotId;
use crate::tagged::StridedRows;
use crate::wire::introduction::RankIntroduction;
use crate::wire::ipc::{CopyOutcome, ExportName, ExportReference};
use crate::wire::tagged::{CELL_BYTES, TaggedAnswer, TaggedMessage, WORDS};

fn cell_words(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let cell: &[u8; CELL_BYTES as usize] = bytes.first_chunk()?;
    let (chunks, _) = cell.as_chunks::<8>();
    Some(core::array::from_fn(|at| u64::from_le_bytes(chunks[at])))
}

pub(super) fn check_introduction(bytes: &[u8]) {
    if let Ok(parsed) = RankIntroduction::from_bytes(bytes) {
        assert_eq!(parsed.to_bytes(), bytes);
    }
}

pub(super) fn introduction_seeds() -> Vec<Vec<u8>> {
    let introduction = |rank, proof| RankIntroduction { rank, proof }.to_bytes();
    make_variants(&[introduction(0, [0; 16]), introduction(u32::MAX, [0xa5; 16])])
}

/// A parsed cell encodes to the same words, and is valid in one ring only.
pub(super) fn check_cells(bytes: &[u8]) {
    let Some(words) = cell_words(bytes) else { return };
    let message = TaggedMessage::from_words(&words);
    let answer = TaggedAnswer::from_words(&words);
    assert!(message.is_err() || answer.is_err());
    if let Ok(message) = message {
        assert_eq!(TaggedMessage::from_words(&message.to_words()), Ok(message));
        assert!(message.cell_count() > 0);
        assert_eq!(message.to_words()[0], words[0]);
    }
    if let Ok(answer) = answer {
        assert_eq!(TaggedAnswer::from_words(&answer.to_words()), Ok(answer));
        assert_eq!(answer.to_words()[0], words[0]);
    }
}

pub(super) fn cell_seeds() -> Vec<Vec<u8>> {
    let request = SlotId { slot: 1, generation: 2 };
    let receive = SlotId { slot: 3, generation: 4 };
    let name = ExportName::new(SlotId { slot: 5, generation: 2 });
    let part = ByteSpan::new(0x1000, 904);
    let (Some(name), Some(part), Some(rows)) = (name, part, StridedRows::new(8, 64)) else {
        return Vec::new();
    };
    let reference = ExportReference { name, part };
    let refer = |rows, offer| TaggedMessage::Refer { tag: 7, request, reference, rows, offer };
    let messages = [
        TaggedMessage::Eager { tag: 1 << 63, len: 8192 },
        TaggedMessage::Ready { tag: 1, request, len: 1 << 40, pieces: false },
        TaggedMessage::Ready { tag: 1, request, len: 9000, pieces: true },
        refer(StridedRows::WHOLE, false),
        refer(rows, true),
    ];
    let answers = [
        TaggedAnswer::Clear { request, receive, len: 5, unmapped: true },
        TaggedAnswer::Offer { request, receive, reference, rows },
        TaggedAnswer::Piece { receive, position: 1 << 50, len: 16384 },
        TaggedAnswer::Done { request, outcome: CopyOutcome::NotMapped },
    ];
    let cells =
        messages.iter().map(TaggedMessage::to_words).chain(answers.iter().map(TaggedAnswer::to_words));
    let bytes = |words: [u64; WORDS]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    make_variants(&cells.map(bytes).collect::<Vec<Vec<u8>>>())
}
