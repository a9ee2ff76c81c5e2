//! Inputs that are lists of actions: the reader that stateful targets share, and the random lists of their tests. Each
//! target defines the meaning of its actions.

use alloc::vec::Vec;

use super::RandomNumbers;

/// Size of an action in bytes.
const ACTION_BYTES: usize = 4;

/// One action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FuzzAction {
    /// The kind of action.
    pub what: u8,
    /// The end, of two.
    pub at: usize,
    /// A number.
    pub one: u8,
    /// Another number.
    pub two: u8,
}

/// Reads an input: its first byte, which configures the world, and at most `most` actions of four bytes each. `None` for an empty input.
pub fn read_actions(bytes: &[u8], most: usize) -> Option<(u8, impl Iterator<Item = FuzzAction> + '_)> {
    let (&how, rest) = bytes.split_first()?;
    let actions = rest.as_chunks::<ACTION_BYTES>().0.iter().take(most);
    let action =
        |&[what, at, one, two]: &[u8; ACTION_BYTES]| FuzzAction { what, at: usize::from(at % 2), one, two };
    Some((how, actions.map(action)))
}

/// Returns the input with configuration `how` and these actions.
#[must_use]
pub fn write_script(how: u8, actions: &[[u8; ACTION_BYTES]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + actions.len() * ACTION_BYTES);
    bytes.push(how);
    bytes.extend(actions.as_flattened());
    bytes
}

/// Returns an input of fewer than `most` random actions.
pub fn random_script(numbers: &mut RandomNumbers, most: usize) -> Vec<u8> {
    let len = 1 + ACTION_BYTES * numbers.next_below(most);
    (0..len).map(|_| numbers.next_u64() as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_round_trip() {
        let bytes = write_script(3, &[[1, 7, 250, 9], [2, 4, 0, 0]]);
        let (how, actions) = read_actions(&bytes, 9).unwrap();
        let first = FuzzAction { what: 1, at: 1, one: 250, two: 9 };
        assert_eq!(
            (how, actions.collect::<Vec<_>>()),
            (3, [first, FuzzAction { what: 2, at: 0, one: 0, two: 0 }].into())
        );
        assert_eq!(read_actions(&bytes, 1).unwrap().1.count(), 1);
        assert_eq!(read_actions(&bytes[..6], 9).unwrap().1.count(), 1, "an incomplete action was read");
        assert!(read_actions(&[], 9).is_none());
    }
}
