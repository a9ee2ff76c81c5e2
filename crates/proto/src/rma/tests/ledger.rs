//! The operations that quiets wait for.

use proptest::prelude::*;

use std::vec::Vec;

use crate::rma::PathId;
use crate::rma::ledger::{LedgerFull, OperationLedger, QuietFailure, QuietProgress, UnknownCompletion};
use crate::slots::SlotId;

fn path(place: u8) -> PathId {
    PathId::new(place).unwrap()
}

fn ledger(peers: u32, room: u32) -> OperationLedger<u32> {
    let mut ledger = OperationLedger::new();
    ledger.grow_capacity(peers, room).unwrap();
    ledger
}

#[test]
fn quiet_waits_for_one_or_all_peers() {
    let mut ledger = ledger(3, 8);
    assert_eq!((ledger.quiet_peer(0), ledger.quiet()), (Ok(QuietProgress::Done), Ok(QuietProgress::Done)));
    let one = ledger.begin_operation(1, path(0), 7).unwrap();
    ledger.begin_signal(2).unwrap();
    assert_eq!(
        [0, 1, 2].map(|peer| ledger.quiet_peer(peer).unwrap()),
        [QuietProgress::Done, QuietProgress::Pending, QuietProgress::Pending]
    );
    assert_eq!(ledger.complete_operation(one).unwrap().note, 7);
    assert_eq!((ledger.quiet_peer(1), ledger.quiet()), (Ok(QuietProgress::Done), Ok(QuietProgress::Pending)));
    assert_eq!((ledger.complete_signals(2, 1), ledger.quiet()), (Ok(()), Ok(QuietProgress::Done)));
    assert_eq!((ledger.operation_counts(), ledger.unknown_completions()), ((2, 2), 0));
}

#[test]
fn repeated_completion_ends_no_operation() {
    let mut ledger = ledger(2, 8);
    let ids = [0, 0, 1].map(|peer| ledger.begin_operation(peer, path(0), 0).unwrap());
    ledger.complete_operation(ids[0]).unwrap();
    for _ in 0..3 {
        assert_eq!(ledger.complete_operation(ids[0]), Err(UnknownCompletion));
        assert_eq!(ledger.fail_operation(ids[0]), Err(UnknownCompletion));
    }
    assert_eq!(
        (ledger.quiet_peer(0), ledger.quiet_peer(1)),
        (Ok(QuietProgress::Pending), Ok(QuietProgress::Pending))
    );
    ledger.complete_operation(ids[1]).unwrap();
    ledger.complete_operation(ids[2]).unwrap();
    assert_eq!(
        (ledger.quiet(), ledger.unknown_completions()),
        (Ok(QuietProgress::Done), 6),
        "unknown completions are counted, and end no operation"
    );
    assert_eq!((ledger.complete_signals(0, 1), ledger.unknown_completions()), (Err(UnknownCompletion), 7));
    assert_eq!(ledger.quiet(), Ok(QuietProgress::Done));
}

#[test]
fn failure_is_reported_once_to_its_peers_quiet() {
    let mut ledger = ledger(3, 8);
    let ids = [1, 1, 1, 2].map(|peer| ledger.begin_operation(peer, path(0), 0).unwrap());
    ledger.move_operation(ids[0], path(3)).unwrap();
    ledger.fail_operation(ids[0]).unwrap();
    ledger.fail_operation(ids[1]).unwrap();
    assert_eq!(
        ledger.quiet_peer(1),
        Ok(QuietProgress::Pending),
        "the source of another operation may still be read"
    );
    assert_eq!(
        (ledger.quiet_peer(0), ledger.quiet_peer(2)),
        (Ok(QuietProgress::Done), Ok(QuietProgress::Pending))
    );
    ledger.complete_operation(ids[2]).unwrap();
    ledger.complete_operation(ids[3]).unwrap();
    assert_eq!(
        (ledger.quiet_peer(0), ledger.quiet_peer(2)),
        (Ok(QuietProgress::Done), Ok(QuietProgress::Done))
    );
    assert_eq!(
        ledger.quiet_peer(1),
        Err(QuietFailure { peer: 1, path: path(3) }),
        "the first failure, with the path that was used last"
    );
    assert_eq!(
        (ledger.quiet_peer(1), ledger.quiet()),
        (Ok(QuietProgress::Done), Ok(QuietProgress::Done)),
        "a failure is reported once"
    );
    for peer in [2, 0] {
        let id = ledger.begin_operation(peer, path(peer as u8), 0).unwrap();
        ledger.fail_operation(id).unwrap();
    }
    let told = [ledger.quiet(), ledger.quiet(), ledger.quiet()];
    let failed = |peer, place| Err(QuietFailure { peer, path: path(place) });
    assert_eq!(told, [failed(0, 0), failed(2, 2), Ok(QuietProgress::Done)]);
}

#[test]
fn lost_peer_affects_no_other_operations() {
    let mut ledger = ledger(2, 8);
    let ids = [0, 1, 0].map(|peer| ledger.begin_operation(peer, path(1), peer).unwrap());
    ledger.begin_signal(0).unwrap();
    let mut gone = Vec::new();
    ledger.lose_peer(0, path(2), |op| gone.push(op.note));
    assert_eq!((gone, ledger.pending_ops().count()), (Vec::from([0, 0]), 1));
    assert_eq!(
        (ledger.pending_towards(0), ledger.complete_operation(ids[0])),
        (0, Err(UnknownCompletion)),
        "late completions are counted as unknown"
    );
    assert_eq!(ledger.quiet_peer(0), Err(QuietFailure { peer: 0, path: path(2) }));
    assert_eq!((ledger.quiet_peer(0), ledger.quiet()), (Ok(QuietProgress::Done), Ok(QuietProgress::Pending)));
    ledger.complete_operation(ids[1]).unwrap();
    ledger.lose_peer(0, path(2), |_| panic!("no operation was pending towards the peer"));
    assert_eq!(
        ledger.quiet(),
        Ok(QuietProgress::Done),
        "a peer without pending operations causes no failure"
    );
}

#[test]
fn ledger_has_the_capacity_it_was_grown_to() {
    let mut ledger = ledger(1, 1);
    assert_eq!(
        (ledger.begin_operation(1, path(0), 0), ledger.begin_signal(1)),
        (Err(LedgerFull), Err(LedgerFull)),
        "the peer does not exist"
    );
    let id = ledger.begin_operation(0, path(0), 0).unwrap();
    assert_eq!(ledger.begin_operation(0, path(0), 0), Err(LedgerFull));
    ledger.grow_capacity(2, 1).unwrap();
    assert!(ledger.begin_operation(1, path(0), 0).is_ok());
    assert!(ledger.complete_operation(id).is_ok() && ledger.move_operation(id, path(0)).is_err());
}

/// Calls of a ledger, compared with sets that are recounted each time.
#[derive(Clone, Debug)]
enum Deed {
    Begin(u32, u8),
    Signal(u32),
    Done(usize),
    Failed(usize),
    Again(usize),
    Acknowledge(u32),
    Lose(u32),
    Quiet(u32),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (0..3_u32, 0..4_u8).prop_map(|(peer, path)| Deed::Begin(peer, path)),
        1 => (0..3_u32).prop_map(Deed::Signal),
        3 => any::<usize>().prop_map(Deed::Done),
        1 => any::<usize>().prop_map(Deed::Failed),
        1 => any::<usize>().prop_map(Deed::Again),
        1 => (0..3_u32).prop_map(Deed::Acknowledge),
        1 => (0..3_u32).prop_map(Deed::Lose),
        3 => (0..4_u32).prop_map(Deed::Quiet),
    ]
}

#[derive(Default)]
struct Model {
    ops: Vec<(SlotId, u32, u8)>,
    ended: Vec<SlotId>,
    signals: [u32; 3],
    failed: [Option<u8>; 3],
    unknown: u64,
}

impl Model {
    fn pending(&self, peer: u32) -> u32 {
        self.ops.iter().filter(|op| op.1 == peer).count() as u32 + self.signals[peer as usize]
    }

    fn quiet(&mut self, peer: u32) -> Result<QuietProgress, QuietFailure> {
        if self.pending(peer) > 0 {
            return Ok(QuietProgress::Pending);
        }
        let failed = self.failed[peer as usize].take();
        failed.map_or(Ok(QuietProgress::Done), |place| Err(QuietFailure { peer, path: path(place) }))
    }

    fn quiet_all(&mut self) -> Result<QuietProgress, QuietFailure> {
        if (0..3).any(|peer| self.pending(peer) > 0) {
            return Ok(QuietProgress::Pending);
        }
        (0..3).try_fold(QuietProgress::Done, |_, peer| self.quiet(peer))
    }

    fn end(&mut self, at: usize, ledger: &mut OperationLedger<u32>, fails: bool) {
        if self.ops.is_empty() {
            return;
        }
        let (id, peer, place) = self.ops.swap_remove(at % self.ops.len());
        self.ended.push(id);
        let op = if fails { ledger.fail_operation(id) } else { ledger.complete_operation(id) };
        assert_eq!(op.unwrap().peer, peer);
        if fails {
            self.failed[peer as usize].get_or_insert(place);
        }
    }

    fn lose(&mut self, peer: u32, ledger: &mut OperationLedger<u32>) {
        if self.pending(peer) > 0 {
            self.failed[peer as usize].get_or_insert(3);
        }
        let (gone, left) = self.ops.iter().copied().partition(|op| op.1 == peer);
        self.ops = left;
        self.signals[peer as usize] = 0;
        let gone: Vec<_> = gone;
        let mut told = 0;
        ledger.lose_peer(peer, path(3), |op| told += u32::from(op.peer == peer));
        assert_eq!(told as usize, gone.len());
        self.ended.extend(gone.iter().map(|op| op.0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quiets_agree_with_a_count(deeds in proptest::collection::vec(deed(), 1..200)) {
        let (mut ledger, mut model) = (ledger(3, 16), Model::default());
        for deed in deeds {
            match deed {
                Deed::Begin(peer, place) => match ledger.begin_operation(peer, path(place), 0) {
                    Ok(id) => model.ops.push((id, peer, place)),
                    Err(LedgerFull) => prop_assert_eq!(model.ops.len(), 16),
                },
                Deed::Signal(peer) => {
                    ledger.begin_signal(peer).unwrap();
                    model.signals[peer as usize] += 1;
                }
                Deed::Done(at) => model.end(at, &mut ledger, false),
                Deed::Failed(at) => model.end(at, &mut ledger, true),
                Deed::Again(at) => {
                    if !model.ended.is_empty() {
                        prop_assert_eq!(ledger.complete_operation(model.ended[at % model.ended.len()]), Err(UnknownCompletion));
                        model.unknown += 1;
                    }
                }
                Deed::Acknowledge(peer) => {
                    let signals = model.signals[peer as usize];
                    ledger.complete_signals(peer, signals).unwrap();
                    model.signals[peer as usize] = 0;
                }
                Deed::Lose(peer) => model.lose(peer, &mut ledger),
                Deed::Quiet(3) => prop_assert_eq!(ledger.quiet(), model.quiet_all()),
                Deed::Quiet(peer) => prop_assert_eq!(ledger.quiet_peer(peer), model.quiet(peer)),
            }
            prop_assert_eq!(ledger.unknown_completions(), model.unknown);
        }
    }
}
