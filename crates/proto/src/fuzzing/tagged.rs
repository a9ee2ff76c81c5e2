//! Tagged messages inside a node: introductions, and the cells of both rings.

use alloc::vec::Vec;

use super::variants;
use crate::intervals::Span;
use crate::slots::SlotId;
use crate::tagged::Rows;
use crate::wire::introduction::Introduction;
use crate::wire::ipc::{Name, Outcome, Reference};
use crate::wire::tagged::{Answer, CELL_BYTES, Message, WORDS};

fn words(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let cell: &[u8; CELL_BYTES as usize] = bytes.first_chunk()?;
    let (chunks, _) = cell.as_chunks::<8>();
    Some(core::array::from_fn(|at| u64::from_le_bytes(chunks[at])))
}

pub(super) fn introduction(bytes: &[u8]) {
    if let Ok(parsed) = Introduction::from_bytes(bytes) {
        assert_eq!(parsed.to_bytes(), bytes);
    }
}

pub(super) fn introduction_seeds() -> Vec<Vec<u8>> {
    let introduction = |rank, proof| Introduction { rank, proof }.to_bytes();
    variants(&[introduction(0, [0; 16]), introduction(u32::MAX, [0xa5; 16])])
}

/// What is read is what would have been written; a cell is of one ring.
pub(super) fn cells(bytes: &[u8]) {
    let Some(words) = words(bytes) else { return };
    let message = Message::from_words(&words);
    let answer = Answer::from_words(&words);
    assert!(message.is_err() || answer.is_err());
    if let Ok(message) = message {
        assert_eq!(Message::from_words(&message.to_words()), Ok(message));
        assert!(message.cells() > 0);
        assert_eq!(message.to_words()[0], words[0]);
    }
    if let Ok(answer) = answer {
        assert_eq!(Answer::from_words(&answer.to_words()), Ok(answer));
        assert_eq!(answer.to_words()[0], words[0]);
    }
}

pub(super) fn cell_seeds() -> Vec<Vec<u8>> {
    let request = SlotId { slot: 1, generation: 2 };
    let receive = SlotId { slot: 3, generation: 4 };
    let name = Name::new(SlotId { slot: 5, generation: 2 });
    let part = Span::new(0x1000, 904);
    let (Some(name), Some(part), Some(rows)) = (name, part, Rows::new(8, 64)) else { return Vec::new() };
    let reference = Reference { name, part };
    let refer = |rows, offer| Message::Refer { tag: 7, request, reference, rows, offer };
    let messages = [
        Message::Eager { tag: 1 << 63, len: 8192 },
        Message::Ready { tag: 1, request, len: 1 << 40, pieces: false },
        Message::Ready { tag: 1, request, len: 9000, pieces: true },
        refer(Rows::WHOLE, false),
        refer(rows, true),
    ];
    let answers = [
        Answer::Clear { request, receive, len: 5, unmapped: true },
        Answer::Offer { request, receive, reference, rows },
        Answer::Piece { receive, position: 1 << 50, len: 16384 },
        Answer::Done { request, outcome: Outcome::NotMapped },
    ];
    let cells = messages.iter().map(Message::to_words).chain(answers.iter().map(Answer::to_words));
    let bytes = |words: [u64; WORDS]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    variants(&cells.map(bytes).collect::<Vec<Vec<u8>>>())
}
