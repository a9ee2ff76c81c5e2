//! All events of small worlds, breadth first, each state once. In states without pending steps, nothing is left that
//! should have ended, and everything can be released. Every order of pending steps ends after a bounded number of them.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::vec;
use std::vec::Vec;

use super::config;
use super::world::{PLACE, Setup, Step, World};
use crate::ipc::exporter::{ExportAmount, ExporterConfig};
use crate::ipc::importer::{MapRefusal, MappingKind, MappingPlace};

/// A world, and how often each step may still be executed.
#[derive(Clone)]
struct State {
    world: World,
    left: Vec<u8>,
}

impl State {
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.world.print(), &self.left).hash(&mut hasher);
        hasher.finish()
    }
}

const fn send(buffer: usize, peer: usize) -> Step {
    Step::Send { buffer, peer, place: 0, passing: false }
}

/// The visited states by number, and for each the states that its pending steps lead to.
struct Seen {
    numbers: HashMap<u64, u32>,
    next: Vec<Vec<u32>>,
}

impl Seen {
    /// Returns the number of a state, and whether it is new.
    fn number(&mut self, print: u64) -> (u32, bool) {
        let new = self.next.len() as u32;
        let number = *self.numbers.entry(print).or_insert(new);
        if number == new {
            self.next.push(Vec::new());
        }
        (number, number == new)
    }

    /// Returns the longest sequence of pending steps; `None` if the states form a cycle.
    fn longest(&self) -> Option<usize> {
        let (mut into, mut len) = (vec![0_u32; self.next.len()], vec![0_usize; self.next.len()]);
        self.next.iter().flatten().for_each(|to| into[*to as usize] += 1);
        let mut open: Vec<usize> = (0..into.len()).filter(|state| into[*state] == 0).collect();
        let mut seen = 0;
        while let Some(state) = open.pop() {
            seen += 1;
            for &to in &self.next[state] {
                let to = to as usize;
                len[to] = len[to].max(len[state] + 1);
                into[to] -= 1;
                if into[to] == 0 {
                    open.push(to);
                }
            }
        }
        if seen < self.next.len() { None } else { len.into_iter().max() }
    }
}

/// The maximum number of pending steps of a message, from its export to the end of that export. The memory is exported,
/// announced and referred to. The message resolves its bytes and unmaps a stale mapping, resolves them again and maps
/// them, resolves them a last time, copies, and is acknowledged. Then its export is retired, unmapped, and reported as
/// retired.
const STEPS_OF_MESSAGE: usize = 12;

/// Visits all states that follow from these steps. Each step is executed at most the given number of times, whenever it
/// is possible, and pending steps are executed in any order. `begun` is executed first. Returns the number of states.
fn everything(setup: Setup, begun: &[Step], steps: &[(Step, u8)]) -> usize {
    let mut world = World::new(setup);
    begun.iter().for_each(|&step| world.step(step));
    let first = State { world, left: steps.iter().map(|(_, times)| *times).collect() };
    let mut seen = Seen { numbers: HashMap::new(), next: Vec::new() };
    let (number, _) = seen.number(first.print());
    let mut open = VecDeque::from([(number, first)]);
    let mut messages = 0;
    while let Some((number, state)) = open.pop_front() {
        let chosen = steps.iter().enumerate().filter(|(at, _)| state.left[*at] > 0);
        let chosen = chosen
            .filter(|(_, (step, _))| state.world.is_possible(*step))
            .map(|(at, (step, _))| (Some(at), *step));
        let pending = state.world.pending();
        let over = pending.is_empty();
        for (at, step) in chosen.chain(pending.into_iter().map(|step| (None, step))) {
            let mut next = state.clone();
            if let Some(at) = at {
                next.left[at] -= 1;
            }
            next.world.step(step);
            messages = messages.max(next.world.sent as usize);
            let (to, is_new) = seen.number(next.print());
            if at.is_none() {
                seen.next[number as usize].push(to);
            }
            if is_new {
                open.push_back((to, next));
            }
        }
        // Every sequence of pending steps ends here.
        if over {
            state.world.check_at_rest();
            state.world.finish();
        }
    }
    let longest = seen.longest().expect("the pending steps form a cycle");
    std::eprintln!("{} states, at most {longest} steps of {messages} messages", seen.next.len());
    assert!(longest <= STEPS_OF_MESSAGE * messages, "{longest} steps of {messages} messages");
    seen.next.len()
}

/// One buffer, one across its end, and one elsewhere; budgets are of two buffers or of one.
const BUFFERS: &[(u64, u64)] = &[(0x1000, 8), (0x1004, 8), (0x2000, 8)];

const PLACES: &[MappingPlace] = &[
    PLACE,
    MappingPlace { device: 1, way: MappingKind::Device },
    MappingPlace { device: 0, way: MappingKind::Host },
];

fn setup(entries: usize, peers: usize) -> Setup {
    let config = ExporterConfig { passing: 2, ..config(entries, 8 * entries as u64) };
    Setup { config, hooked: false, buffers: BUFFERS, peers, places: PLACES, refused: &[] }
}

fn amount(entries: usize) -> ExportAmount {
    ExportAmount { entries, bytes: 8 * entries as u64 }
}

/// Checks that a search visited at least the expected number of states.
fn seen(states: usize, least: usize) {
    assert!(states >= least, "{states} states, {least} expected");
}

const A: Step = Step::Allocate(0);
const B: Step = Step::Allocate(1);
const C: Step = Step::Allocate(2);

#[test]
fn memory_that_is_freed_and_allocated_again() {
    let steps = [(send(0, 0), 3), (send(1, 0), 2), (Step::Free(0), 2), (A, 1), (B, 1), (Step::Free(1), 1)];
    seen(everything(setup(2, 1), &[A], &steps), 3_000);
    let steps = [(send(0, 0), 2), (send(0, 1), 2), (Step::Free(0), 1), (A, 1)];
    seen(everything(setup(2, 2), &[A], &steps), 20_000);
}

#[test]
fn fewer_places_than_buffers() {
    let steps = [(send(0, 0), 2), (send(2, 0), 1), (send(2, 1), 1)];
    seen(everything(setup(1, 2), &[A, C], &steps), 1_000);
    let passing = Step::Send { buffer: 2, peer: 1, place: 0, passing: true };
    let steps = [(send(0, 0), 1), (send(2, 0), 1), (passing, 1)];
    seen(everything(setup(1, 2), &[A, C], &steps), 6_500);
}

#[test]
fn peers_that_die_or_leave_at_any_point() {
    for ends in [Step::Die(0), Step::Leave(0)] {
        let steps = [(send(0, 0), 2), (send(0, 1), 1), (send(2, 0), 1), (ends, 1)];
        seen(everything(setup(1, 2), &[A, C], &steps), 4_500);
    }
}

#[test]
fn an_exporter_that_dies_or_closes_at_any_point() {
    for ends in [Step::DieAll, Step::Close] {
        let steps = [(send(0, 0), 2), (send(0, 1), 1), (ends, 1)];
        seen(everything(setup(2, 2), &[A, C], &steps), 2_000);
        let steps = [(send(0, 0), 2), (send(2, 0), 1), (ends, 1), (Step::Leave(0), 1), (Step::Die(0), 1)];
        seen(everything(setup(1, 1), &[A, C], &steps), 2_000);
    }
}

#[test]
fn memory_requested_back_at_any_point() {
    for back in [Step::Trim(0), Step::Shrink(amount(0)), Step::Drain(0), Step::Release(0), Step::Wait] {
        let steps = [(send(0, 0), 3), (send(0, 1), 1), (back, 1)];
        seen(everything(setup(2, 2), &[A], &steps), 10_000);
        let steps = [(send(0, 0), 2), (send(2, 0), 1), (back, 1), (Step::Grow(amount(2)), 1)];
        seen(everything(setup(2, 1), &[A, C], &steps), 15_000);
    }
}

#[test]
fn drivers_that_fail_at_any_point() {
    let fails = |why| [(Step::Exported(0, false), 1), (Step::Mapped(0, 0, Err(why)), 2)];
    let steps =
        [&[(send(0, 0), 2), (send(2, 0), 1), (Step::Drain(0), 1)][..], &fails(MapRefusal::AlreadyMapped)]
            .concat();
    seen(everything(setup(2, 1), &[A, C], &steps), 30_000);
    let steps =
        [&[(send(0, 0), 2), (send(0, 1), 1), (Step::Die(0), 1)][..], &fails(MapRefusal::Other)].concat();
    seen(everything(setup(2, 2), &[A], &steps), 4_000);
}

#[test]
fn one_buffer_in_several_places() {
    let to = |place| Step::Send { buffer: 0, peer: 0, place, passing: false };
    let steps = [(to(0), 1), (to(1), 1), (to(2), 1), (Step::Drain(0), 1)];
    seen(everything(setup(2, 1), &[A], &steps), 50_000);
}

#[test]
fn a_hook_that_only_sets_a_flag() {
    let setup = Setup { hooked: true, ..setup(2, 1) };
    let steps =
        [(send(0, 0), 2), (send(2, 0), 1), (Step::Free(0), 1), (A, 1), (Step::Free(2), 1), (Step::Look, 2)];
    seen(everything(setup, &[A, C], &steps), 19_000);
}

/// U1: an export of freed memory, and an overlapping mapping, stay until no message uses them.
#[test]
fn memory_that_is_freed_under_use() {
    let freed = Step::FreeUnderUse(0);
    let steps = [(send(0, 0), 2), (freed, 1), (B, 1), (send(1, 0), 2)];
    seen(everything(setup(2, 1), &[A], &steps), 3_000);
    let steps = [(send(0, 0), 2), (freed, 1), (A, 1)];
    seen(everything(setup(2, 1), &[A], &steps), 200);
    let steps = [(send(0, 0), 1), (send(0, 1), 1), (freed, 1), (B, 1), (send(1, 1), 1)];
    seen(everything(setup(2, 2), &[A], &steps), 3_500);
    let steps = [(send(0, 0), 2), (freed, 1), (Step::Look, 1), (B, 1), (send(1, 0), 1)];
    seen(everything(Setup { hooked: true, ..setup(2, 1) }, &[A], &steps), 1_300);
}

#[test]
fn messages_abandoned_at_any_point() {
    let steps = [(send(0, 0), 2), (send(2, 0), 1), (Step::Cancel(0), 2), (Step::Release(0), 1)];
    seen(everything(setup(1, 1), &[A, C], &steps), 1_200);
}

/// A buffer that is never mapped is not tried again and again.
#[test]
fn a_buffer_that_no_driver_maps() {
    let steps = [(send(0, 0), 2), (send(2, 0), 1), (Step::Drain(0), 1)];
    seen(everything(Setup { refused: &[0], ..setup(2, 1) }, &[A, C], &steps), 8_000);
}

#[test]
fn budget_that_changes_repeatedly() {
    let passing = Step::Send { buffer: 0, peer: 0, place: 0, passing: true };
    let steps = [(send(0, 0), 2), (passing, 1), (Step::Shrink(amount(0)), 1), (Step::Grow(amount(1)), 1)];
    seen(everything(setup(2, 1), &[A], &steps), 2_500);
}

#[test]
fn search_detects_a_cycle() {
    let mut seen = Seen { numbers: HashMap::new(), next: Vec::new() };
    for print in 0..4 {
        seen.number(print);
    }
    assert_eq!(seen.number(2), (2, false));
    seen.next = Vec::from([vec![1, 2], vec![3], vec![1], vec![]]);
    assert_eq!(seen.longest(), Some(3));
    seen.next[3].push(2);
    assert_eq!(seen.longest(), None);
    seen.next[3] = vec![3];
    assert_eq!(seen.longest(), None);
}
