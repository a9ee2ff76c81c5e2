//! The log of a run, for people. Written by every part if it is on; formats nothing if it is off, because a failing
//! seed can be run again with it on.

use std::collections::VecDeque;
use std::fmt;

/// Lines that are kept; older ones are dropped.
const LINES: usize = 20_000;

/// The last lines of a run.
#[derive(Debug, Default)]
pub struct RunTrace {
    on: bool,
    lines: VecDeque<String>,
    forgotten: u64,
}

impl RunTrace {
    /// Creates a trace that keeps lines, or one that drops them.
    #[must_use]
    pub fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// Adds a line at a virtual time.
    pub fn push_line(&mut self, now: u64, text: fmt::Arguments<'_>) {
        if !self.on {
            return;
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
            self.forgotten += 1;
        }
        self.lines.push_back(format!("{:>10}.{:03} us  {text}", now / 1000, now % 1000));
    }

    /// Whether lines are kept.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Takes all lines.
    #[must_use]
    pub fn take_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::with_capacity(self.lines.len() + 1);
        if self.forgotten > 0 {
            lines.push(format!("({} earlier lines forgotten)", self.forgotten));
        }
        lines.extend(self.lines.drain(..));
        lines
    }
}
