//! The ladder of queue-pair states as a table. Called by the queue pair for every change of state; knows nothing of
//! rings, memory or peers.

/// State of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum QueuePairState {
    /// Just made.
    Reset,
    /// Takes receives, nothing else.
    Init,
    /// Executes what the peer asks for.
    ReadyToReceive,
    /// Full service.
    ReadyToSend,
    /// Sends nothing new; executes what has already arrived.
    Drain,
    /// Everything posted comes back flushed.
    Error,
}

impl QueuePairState {
    /// The state after a move to `to`, or `None` where the ladder has no such rung.
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

    /// Whether what the peer asks for is executed.
    #[inline]
    pub(crate) fn executes_requests(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::Drain)
    }
}

#[cfg(test)]
mod tests {
    use super::QueuePairState::{self, Drain, Error, Init, ReadyToReceive, ReadyToSend, Reset};

    #[test]
    fn only_the_rungs_of_the_ladder_exist() {
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
