//! Names of the links that one fabric has created and that still exist. Read when an address claims that its link is in this
//! process. A peer can repeat all data that it received from this process, but it cannot make this process send it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::tcp::DialToken;

/// The names.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnLinks(Arc<Mutex<HashSet<DialToken>>>);

impl OwnLinks {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a link until the returned value, which the link owns, is dropped.
    pub(crate) fn add_link(&self, token: DialToken) -> OwnLink {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(token);
        OwnLink { all: self.clone(), token }
    }

    /// Whether the link of that name was created here and still exists.
    pub(crate) fn contains(&self, token: &DialToken) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(token)
    }
}

/// The entry of one link.
pub(crate) struct OwnLink {
    all: OwnLinks,
    token: DialToken,
}

impl Drop for OwnLink {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_known_until_it_is_dropped() {
        let links = OwnLinks::new();
        let one = links.add_link([1; 16]);
        let other = links.add_link([2; 16]);
        assert!(links.contains(&[1; 16]) && links.contains(&[2; 16]) && !links.contains(&[3; 16]));
        drop(one);
        assert!(!links.contains(&[1; 16]) && links.contains(&[2; 16]));
        drop(other);
        assert!(!links.contains(&[2; 16]));
    }
}
