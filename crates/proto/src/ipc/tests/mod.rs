//! The rules of both ends: one by one, whatever happens in whatever order, and everything in a few steps.

mod churn;
mod exporting;
mod importing;
mod keeping;
mod model;
mod orders;
mod world;

use std::vec::Vec;

use super::exporter::{
    Allocation, AllocationId, Amount, Ask, Command, Config, Exporter, PeerId, Sent, Shared, Why,
};
use crate::intervals::Span;
use crate::mutant::planted;
use crate::slots::SlotId;
use crate::time::{Duration, Instant};
use crate::wire::ipc::{Name, Outcome};

/// For how long exports are kept here that nobody uses.
const IDLE: Duration = Duration::secs(30);

fn span(start: u64, len: u64) -> Span {
    Span::new(start, len).unwrap()
}

fn name(slot: u32, generation: u32) -> Name {
    Name::new(SlotId { slot, generation }).unwrap()
}

fn allocation(id: u64, start: u64, len: u64) -> Allocation {
    Allocation { span: span(start, len), id: AllocationId(id), device: 0 }
}

/// So many seconds.
fn at(seconds: u64) -> Instant {
    Instant::default() + Duration::secs(seconds)
}

const fn config(entries: usize, bytes: u64) -> Config {
    Config { budget: Amount { entries, bytes }, passing: 4, idle: Some(IDLE), weightless: false }
}

/// An exporter with a peer, and what a driver and a stream would do for it.
struct Exporting {
    exporter: Exporter,
    peer: PeerId,
    exports: u64,
    announced: u64,
}

impl Exporting {
    fn new(config: Config) -> Self {
        let mut exporter = Exporter::new(config, planted());
        let peer = exporter.join().unwrap();
        Self { exporter, peer, exports: 0, announced: 0 }
    }

    fn ask(&self, memory: Allocation) -> Ask {
        Ask { peer: self.peer, part: memory.span, memory, passing: false }
    }

    /// A message about all of it; `None` if it goes another way.
    fn send(&mut self, ask: &Ask, now: Instant) -> Result<Sent, Why> {
        let shared = match self.exporter.share(ask, now).unwrap() {
            Shared::Export(export) => {
                self.exports += 1;
                self.exporter.exported(export, now).unwrap()
            }
            shared => shared,
        };
        match shared {
            Shared::Sent(sent) => {
                self.announced += u64::from(sent.announce);
                Ok(sent)
            }
            Shared::Fallback(why) => Err(why),
            other => unreachable!("{other:?}"),
        }
    }

    /// A message that is done at once; its name.
    fn touch(&mut self, memory: Allocation, now: Instant) -> Name {
        let sent = self.send(&self.ask(memory), now).unwrap();
        let name = sent.pin.name();
        self.exporter.finish(sent.pin, Outcome::Copied, now);
        name
    }

    /// What is to be let go and unexported is; its names, as they are unexported.
    fn settle(&mut self, now: Instant) -> Vec<Name> {
        let mut over = self.unexport(now);
        while let Some(names) = self.exporter.retire(self.peer) {
            self.exporter.retired(self.peer, &names).unwrap();
            over.extend(self.unexport(now));
        }
        over
    }

    fn unexport(&mut self, now: Instant) -> Vec<Name> {
        let mut over = Vec::new();
        while let Some(command) = self.exporter.poll(now) {
            let Command::Unexport(name) = command else { unreachable!("{command:?}") };
            self.exporter.unexported(name).unwrap();
            over.push(name);
        }
        over
    }
}
