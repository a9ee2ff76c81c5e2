//! The fuzz target of rank cards: a valid card must serialize to bytes that parse to the same card.

use trunkline_fabric::OobAddress;
use trunkline_proto::fuzzing::make_variants;

use super::{CARD, RankCard};

pub(crate) fn fuzz_card(bytes: &[u8]) {
    let Some(given) = bytes.first_chunk::<CARD>() else {
        assert!(RankCard::from_bytes(bytes).is_none_or(|card| card.address.0.len() < bytes.len()));
        return;
    };
    let Some(card) = RankCard::from_bytes(given) else { return };
    assert!(card.address.0.len() <= OobAddress::MAX);
    let printed = card.to_bytes();
    let again = RankCard::from_bytes(&printed).map(|card| card.to_bytes());
    assert_eq!(again, Some(printed));
}

pub(crate) fn card_seeds() -> Vec<Vec<u8>> {
    let card = |address: &[u8]| {
        let address = OobAddress(address.to_vec());
        RankCard { process: [7; 16], pid: 4711, key: [9; 32], address }.to_bytes().to_vec()
    };
    make_variants(&[card(&[]), card(&[1; 17]), card(&[4; OobAddress::MAX])])
}
