//! The operations in flight of a sending lane with several links, so that operations lost with a link can be posted on another.
//! Owned by the lane; allocates only while it grows to the capacity of the links.

use trunkline_proto::time::Instant;
use trunkline_proto::wire::delivery_report::{DeliveryReport, MessagePart};
use trunkline_proto::wire::eager::EagerHeader;
use trunkline_proto::wire::imm::BufferToken;

/// One operation of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageOp {
    /// The request.
    pub(crate) slot: u16,
    pub(crate) cargo: OpPayload,
    /// The offset of its bytes in the message.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The payload of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpPayload {
    /// Bytes to their place, announced by an immediate or by the fin record alone.
    Bytes {
        /// The immediate; `None` where the fin record alone announces the bytes.
        imm: Option<u32>,
        /// The part of the message.
        part: MessagePart,
    },
    /// The fin record, with the number of announced stripes.
    Fin(u8),
    /// The message, sent before its receive is known.
    Eager(EagerHeader),
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedOp {
    pub(crate) flight: MessageOp,
    /// The path.
    pub(crate) path: usize,
    pub(crate) at: Instant,
    /// Set if it has completed without proof of arrival: the receive that it was for, and its buffer.
    pub(crate) told: Option<(u32, BufferToken)>,
}

impl MessageOp {
    /// Returns whether its arrival is announced only by a record that is sent afterwards.
    pub(crate) fn is_announced_later(&self) -> bool {
        matches!(self.cargo, OpPayload::Bytes { imm: None, .. })
    }

    /// Returns whether it has arrived, according to the report of the receiver.
    pub(crate) fn has_arrived(&self, standing: &DeliveryReport, receive: u32, token: BufferToken) -> bool {
        match self.cargo {
            OpPayload::Bytes { part, .. } => standing.has_part(receive, token, part),
            OpPayload::Fin(_) => standing.has_part(receive, token, MessagePart::Fin),
            OpPayload::Eager(header) => standing.has_eager(header.number),
        }
    }
}

/// All operations in flight, by the number that is their `wr_id`.
#[derive(Debug, Default)]
pub(crate) struct InFlightOps {
    places: Vec<Option<PostedOp>>,
    free: Vec<u32>,
}

impl InFlightOps {
    /// Adds an operation; returns its number.
    pub(crate) fn insert(&mut self, posted: PostedOp) -> u64 {
        match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = Some(posted);
                u64::from(at)
            }
            None => {
                self.places.push(Some(posted));
                self.places.len() as u64 - 1
            }
        }
    }

    /// Removes an operation that has ended.
    pub(crate) fn remove(&mut self, number: u64) -> Option<PostedOp> {
        // Taken twice, because a completion of a flushed link may name an operation that was already removed.
        let posted = self.places.get_mut(usize::try_from(number).ok()?)?.take()?;
        self.free.push(number as u32);
        Some(posted)
    }

    /// Returns an operation that has not completed.
    pub(crate) fn uncompleted_op(&mut self, number: u64) -> Option<&mut PostedOp> {
        let posted = self.places.get_mut(usize::try_from(number).ok()?)?.as_mut()?;
        // An operation completes once; a second completion is the fabric's fault.
        if posted.told.is_some() { None } else { Some(posted) }
    }

    /// Removes an operation that was posted on this path, if there is one.
    pub(crate) fn remove_of(&mut self, path: usize) -> Option<PostedOp> {
        // A linear search, because only a lost link uses it.
        let on_it = |place: &Option<PostedOp>| place.is_some_and(|posted| posted.path == path);
        let at = self.places.iter().position(on_it)?;
        self.remove(at as u64)
    }

    /// Returns how many are in flight.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.free.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(path: usize) -> PostedOp {
        let cargo = OpPayload::Bytes { imm: None, part: MessagePart::Bytes };
        PostedOp { flight: MessageOp { slot: 1, cargo, offset: 0, len: 8 }, path, at: Instant(0), told: None }
    }

    #[test]
    fn numbers_are_reused_and_paths_are_distinguished() {
        let mut flights = InFlightOps::default();
        let numbers = [0, 1, 0].map(|path| flights.insert(posted(path)));
        assert_eq!((numbers, flights.len()), ([0, 1, 2], 3));
        assert!(flights.remove(1).is_some() && flights.remove(1).is_none());
        assert_eq!(flights.insert(posted(1)), 1);
        while flights.remove_of(0).is_some() {}
        assert_eq!(flights.len(), 1);
        assert!(flights.remove(u64::MAX).is_none() && flights.uncompleted_op(u64::MAX).is_none());
        let told = Some((7, BufferToken::new(1, 2)));
        flights.uncompleted_op(1).unwrap().told = told;
        assert!(flights.uncompleted_op(1).is_none(), "an operation completes once");
        assert!(flights.remove(1).is_some_and(|posted| posted.told == told));
    }
}
