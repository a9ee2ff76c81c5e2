//! The states of a queue pair and the allowed transitions, as a table (those of InfiniBand Architecture Specification, volume 1, section 10.3,
//! reduced to the states in use). Called by the queue pair for every change of state; knows nothing of rings, memory or peers.

/// State of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueuePairState {
    /// Just created.
    Reset,
    /// Accepts receives, nothing else.
    Init,
    /// Executes the requests of the peer.
    ReadyToReceive,
    /// Full service.
    ReadyToSend,
    /// Sends nothing new; executes the records that have already arrived.
    Drain,
    /// All posted operations complete as flushed.
    Error,
}

impl QueuePairState {
    /// Returns the state after a transition to `to`, or `None` if that transition is not allowed.
    pub(crate) fn transition_to(self, to: Self) -> Option<Self> {
        use QueuePairState::{Drain, Error, Init, ReadyToReceive, ReadyToSend, Reset};
        let allowed = matches!(
            (self, to),
            (Reset | Init, Init)
                | (Init, ReadyToReceive)
                | (ReadyToReceive | Drain, ReadyToSend)
                | (ReadyToSend, Drain)
                | (_, Error | Reset)
        );
        allowed.then_some(to)
    }

    /// Whether receives may be posted.
    #[inline]
    pub(crate) fn takes_receives(self) -> bool {
        matches!(self, Self::Init | Self::ReadyToReceive | Self::ReadyToSend)
    }

    /// Whether the peer's requests are executed.
    #[inline]
    pub(crate) fn executes_requests(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::Drain)
    }
}

#[cfg(test)]
mod tests {
    use super::QueuePairState::{self, Drain, Error, Init, ReadyToReceive, ReadyToSend, Reset};

    #[test]
    fn only_the_listed_transitions_are_allowed() {
        let all = [Reset, Init, ReadyToReceive, ReadyToSend, Drain, Error];
        let mut rungs = Vec::new();
        for from in all {
            for to in all {
                if from.transition_to(to) == Some(to) && to != Error && to != Reset {
                    rungs.push((from, to));
                }
                if to == Error || to == Reset {
                    assert_eq!(from.transition_to(to), Some(to), "every state may fail or be reset");
                }
            }
        }
        let want: Vec<(QueuePairState, QueuePairState)> = vec![
            (Reset, Init),
            (Init, Init),
            (Init, ReadyToReceive),
            (ReadyToReceive, ReadyToSend),
            (ReadyToSend, Drain),
            (Drain, ReadyToSend),
        ];
        assert_eq!(rungs, want);
    }
}
