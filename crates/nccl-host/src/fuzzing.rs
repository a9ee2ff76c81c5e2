//! The fuzz target of this crate: the messages between the parent of a benchmark and its ranks, several in one
//! stream. A message that parses must print to bytes that parse to the same message.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rendezvous::{self, FromRank, ToRank};

/// A target: its name, its check and its seeds. Mirrors `trunkline_proto::fuzzing::FuzzTarget`, which this crate does
/// not use.
pub type NamedTarget = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[NamedTarget] = &[("rendezvous", check_messages, message_seeds)];

/// Runs the target of that name on an input.
///
/// # Panics
/// If the target is unknown, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.0 == name);
    assert!(target.is_some(), "no fuzz target {name}");
    target.into_iter().for_each(|target| target.1(bytes));
}

fn check_messages(bytes: &[u8]) {
    read_all::<FromRank>(bytes);
    read_all::<ToRank>(bytes);
}

fn read_all<T: DeserializeOwned + Serialize>(mut stream: &[u8]) {
    while let Ok(Some(message)) = rendezvous::read_message::<T>(&mut stream) {
        let mut printed = Vec::new();
        assert!(rendezvous::write_message(&mut printed, &message).is_ok());
        let again = rendezvous::read_message::<T>(&mut printed.as_slice());
        let mut reprinted = Vec::new();
        let is_same = again.is_ok_and(|again| {
            again.is_some_and(|again| rendezvous::write_message(&mut reprinted, &again).is_ok())
        });
        assert!(is_same && printed == reprinted, "a message changed on its way");
    }
}

fn message_seeds() -> Vec<Vec<u8>> {
    let from = [
        FromRank::Connected,
        FromRank::AtBarrier,
        FromRank::Closed,
        FromRank::Left { begins: true, text: "line\n".into() },
        FromRank::Failed { message: "cannot load \u{fc}".into() },
    ];
    let to = [ToRank::Go, ToRank::Quit { wrong: true }, ToRank::Abort, ToRank::Connect(Vec::new())];
    let mut all: Vec<Vec<u8>> = from.iter().map(stream_of).chain(to.iter().map(stream_of)).collect();
    let both = [all[0].clone(), all[3].clone()].concat();
    all.push(both[..both.len() - 3].to_vec());
    all.push(both);
    all.push(vec![0xff; 8]);
    all.push(vec![4, 0, 0]);
    all.push(Vec::new());
    all
}

fn stream_of(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let sent = rendezvous::write_message(&mut bytes, message);
    assert!(sent.is_ok());
    bytes
}
