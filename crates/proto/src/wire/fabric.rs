//! The fabric that a process chose, as handles and cards name it. The wire formats of connections encode and parse it; the engine compares it before
//! it contacts a peer. This module opens no connection. Layout: "Chosen fabric" of docs/wire.md.

use core::fmt;

/// Size of a [`ChosenFabric`] in bytes: the number (1) and the qualifier (6).
pub const FABRIC_BYTES: usize = 7;

/// Longest [`ChosenFabric::qualifier`] in bytes; a longer one is truncated.
const QUALIFIER_MAX: usize = FABRIC_BYTES - 1;

/// Names by number, from 1. Number 0 is a fabric without a number.
const NAMES: [&str; 3] = ["soft", "verbs", "ofi"];

/// A fabric and its qualifier: the two parts of `soft:tcp` or `ofi:efa`, as `TRUNKLINE_FABRIC` takes them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ChosenFabric {
    number: u8,
    /// ASCII letters and digits, then zeros.
    qualifier: [u8; QUALIFIER_MAX],
}

impl ChosenFabric {
    /// Creates the choice of a fabric by its name. `qualifier` is empty for a process that accepts every kind of this fabric.
    #[must_use]
    pub fn new(name: &str, qualifier: &str) -> Self {
        let number = NAMES.iter().position(|known| *known == name).map_or(0, |at| at as u8 + 1);
        let mut bytes = [0; QUALIFIER_MAX];
        for (to, byte) in bytes.iter_mut().zip(qualifier.bytes().take_while(u8::is_ascii_alphanumeric)) {
            *to = byte;
        }
        Self { number, qualifier: bytes }
    }

    /// Returns whether a process with this choice can connect to one that chose `other`: the fabrics are the same, and the qualifiers are equal or
    /// one is empty. (`soft` accepts every wire, so it connects to `soft:shm` and `soft:tcp`.)
    #[must_use]
    pub fn can_connect(&self, other: &Self) -> bool {
        let same = self.qualifier == other.qualifier;
        self.number == other.number && (same || self.qualifier().is_empty() || other.qualifier().is_empty())
    }

    /// Returns the qualifier that restricts the fabric; empty if there is none.
    #[must_use]
    pub fn qualifier(&self) -> &str {
        let used = self.qualifier.iter().position(|&byte| byte == 0).unwrap_or(QUALIFIER_MAX);
        core::str::from_utf8(&self.qualifier[..used]).unwrap_or_default()
    }

    /// Returns the bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; FABRIC_BYTES] {
        let mut out = [self.number; FABRIC_BYTES];
        out[1..].copy_from_slice(&self.qualifier);
        out
    }

    /// Parses a choice; `None` if the qualifier is not ASCII letters and digits followed by zeros. A number that this version does not know is
    /// accepted, so that the error can show it.
    #[must_use]
    pub fn from_bytes(bytes: [u8; FABRIC_BYTES]) -> Option<Self> {
        let [number, qualifier @ ..] = bytes;
        let used = qualifier.iter().position(|&byte| byte == 0).unwrap_or(QUALIFIER_MAX);
        let (text, rest) = qualifier.split_at(used);
        let is_text = text.iter().all(u8::is_ascii_alphanumeric) && rest.iter().all(|&byte| byte == 0);
        is_text.then_some(Self { number, qualifier })
    }
}

impl fmt::Display for ChosenFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(usize::from(self.number).wrapping_sub(1)) {
            Some(name) => f.write_str(name)?,
            None => write!(f, "number {}", self.number)?,
        }
        match self.qualifier() {
            "" => Ok(()),
            qualifier => write!(f, ":{qualifier}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    fn chosen(text: &str) -> ChosenFabric {
        let (name, qualifier) = text.split_once(':').unwrap_or((text, ""));
        ChosenFabric::new(name, qualifier)
    }

    #[test]
    fn layout_is_the_documented_one() {
        assert_eq!(chosen("soft").to_bytes(), [1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(chosen("soft:tcp").to_bytes(), [1, b't', b'c', b'p', 0, 0, 0]);
        assert_eq!(chosen("verbs").to_bytes()[0], 2);
        assert_eq!(chosen("ofi:sockets").to_bytes(), *b"\x03socket", "a long name is cut");
        assert_eq!(chosen("sim").to_bytes(), [0; FABRIC_BYTES]);
        assert_eq!(ChosenFabric::default(), chosen("sim"));
    }

    #[test]
    fn names_are_formatted_as_users_write_them() {
        for text in ["soft", "soft:shm", "verbs", "ofi:efa", "ofi:strict"] {
            let read = ChosenFabric::from_bytes(chosen(text).to_bytes()).unwrap();
            assert_eq!((read, read.to_string().as_str()), (chosen(text), text));
        }
        let unknown = ChosenFabric::from_bytes([9, b'x', 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(unknown.to_string(), "number 9:x");
    }

    #[test]
    fn qualifiers_of_other_bytes_are_refused() {
        for qualifier in [*b"a\0b\0\0\0", *b"\0\0\0\0\0x", *b"a b\0\0\0", *b"\xff\0\0\0\0\0", *b"\x1b[2J\0\0"]
        {
            let mut bytes = [1; FABRIC_BYTES];
            bytes[1..].copy_from_slice(&qualifier);
            assert_eq!(ChosenFabric::from_bytes(bytes), None, "{qualifier:?}");
        }
    }

    #[test]
    fn only_the_same_fabric_can_connect() {
        for (one, other, meets) in [
            ("soft", "soft", true),
            ("soft", "soft:tcp", true),
            ("soft:shm", "soft", true),
            ("soft:shm", "soft:tcp", false),
            ("soft", "verbs", false),
            ("verbs", "ofi:verbs", false),
            ("ofi:efa", "ofi:efa", true),
            ("ofi:efa", "ofi:tcp", false),
            ("sim", "sim", true),
            ("sim", "soft", false),
        ] {
            assert_eq!(chosen(one).can_connect(&chosen(other)), meets, "{one} and {other}");
            assert_eq!(chosen(other).can_connect(&chosen(one)), meets, "{other} and {one}");
        }
    }
}
