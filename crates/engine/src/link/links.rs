//! The links of a group, each used by several of its members: made by the first member that needs it, ended with the last one
//! that uses it. Part of a group's rails; a comm with links of its own has none of this.

use trunkline_fabric::LinkId;

/// A shared link.
#[derive(Debug)]
struct SharedLink {
    rail: usize,
    link: LinkId,
    /// Its index among a member's links, the same for all members.
    slot: usize,
    /// Members that use it.
    users: u32,
    /// It is in error.
    ended: bool,
    /// The peer's address that it was connected to.
    peer: Option<Vec<u8>>,
    /// It has transferred something for one of them.
    carries: bool,
}

/// All links of a group.
#[derive(Debug, Default)]
pub(crate) struct SharedLinks {
    links: Vec<SharedLink>,
    /// Links that have ended and were not reported to the members yet.
    news: Vec<(usize, LinkId)>,
}

impl SharedLinks {
    /// Adds a new link, used by the member that made it.
    pub(crate) fn add_link(&mut self, slot: usize, rail: usize, link: LinkId) {
        self.links.push(SharedLink { rail, link, slot, users: 1, ended: false, peer: None, carries: false });
    }

    /// Joins one more member to the link of a slot that is up or being made.
    pub(crate) fn join_link(&mut self, slot: usize) -> Option<LinkId> {
        let used = self.links.iter_mut().find(|used| used.slot == slot && !used.ended)?;
        used.users += 1;
        Some(used.link)
    }

    /// As [`Self::join_link`], if the link was connected to this address of the peer.
    pub(crate) fn join_connected(&mut self, slot: usize, peer: &[u8]) -> Option<LinkId> {
        // The address is compared, because the other end may have made a new link in the same slot.
        let to =
            |used: &&mut SharedLink| used.slot == slot && !used.ended && used.peer.as_deref() == Some(peer);
        let used = self.links.iter_mut().find(to)?;
        used.users += 1;
        Some(used.link)
    }

    /// Returns whether no link is up or being made.
    pub(crate) fn all_ended(&self) -> bool {
        self.links.iter().all(|used| used.ended)
    }

    /// Marks a link as connected to an address; false if it was connected before.
    pub(crate) fn mark_connected(&mut self, rail: usize, link: LinkId, peer: &[u8]) -> bool {
        let Some(used) = self.find_link(rail, link) else { return false };
        let first = used.peer.is_none();
        // First address only, because a second one would be of another connection.
        used.peer.get_or_insert_with(|| peer.to_vec());
        first
    }

    /// Marks that a link has transferred something.
    pub(crate) fn mark_carrying(&mut self, rail: usize, link: LinkId) {
        if let Some(used) = self.find_link(rail, link) {
            used.carries = true;
        }
    }

    /// Returns whether a link works for other members, because a member that waits for a proof can rely on that.
    pub(crate) fn is_carrying(&self, rail: usize, link: LinkId) -> bool {
        self.links.iter().any(|used| used.rail == rail && used.link == link && used.carries && !used.ended)
    }

    /// Returns whether a link that has not ended is used by more than one member.
    pub(crate) fn serves_several(&self, rail: usize, link: LinkId) -> bool {
        self.links.iter().any(|used| used.rail == rail && used.link == link && used.users > 1 && !used.ended)
    }

    /// Marks a link as being in error.
    pub(crate) fn mark_ended(&mut self, rail: usize, link: LinkId) {
        let Some(used) = self.find_link(rail, link).filter(|used| !used.ended) else { return };
        used.ended = true;
        self.news.push((rail, link));
    }

    /// Returns the next link that has ended since the last call.
    pub(crate) fn next_ended(&mut self) -> Option<(usize, LinkId)> {
        self.news.pop()
    }

    /// Returns the links that have ended and are still in use, once all ends were reported to the members.
    pub(crate) fn spent_links(&self) -> Vec<(usize, LinkId)> {
        // Not before all members know, because one of them might still post on the link.
        if !self.news.is_empty() {
            return Vec::new();
        }
        self.links.iter().filter(|used| used.ended).map(|used| (used.rail, used.link)).collect()
    }

    /// Removes a member from a link. Returns whether it was the last.
    pub(crate) fn release_link(&mut self, rail: usize, link: LinkId) -> bool {
        let Some(at) = self.links.iter().position(|used| used.rail == rail && used.link == link) else {
            return false;
        };
        let used = &mut self.links[at];
        // Counted, and not a list of members, because a group has up to 128.
        used.users = used.users.saturating_sub(1);
        let last = used.users == 0;
        if last {
            self.links.swap_remove(at);
        }
        last
    }

    /// Iterates over the links and their rails.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, LinkId)> {
        self.links.iter().map(|used| (used.rail, used.link))
    }

    fn find_link(&mut self, rail: usize, link: LinkId) -> Option<&mut SharedLink> {
        self.links.iter_mut().find(|used| used.rail == rail && used.link == link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_released_with_its_last_user() {
        let mut links = SharedLinks::default();
        assert_eq!((links.join_link(1), links.all_ended()), (None, true));
        links.add_link(1, 0, LinkId(5));
        assert_eq!((links.join_link(1), links.join_link(0)), (Some(LinkId(5)), None));
        assert!(
            links.mark_connected(0, LinkId(5), b"there") && !links.mark_connected(0, LinkId(5), b"elsewhere")
        );
        assert_eq!(links.join_connected(1, b"there"), Some(LinkId(5)));
        assert_eq!(links.join_connected(1, b"elsewhere"), None);
        assert!(links.serves_several(0, LinkId(5)) && !links.serves_several(0, LinkId(6)));
        links.mark_ended(0, LinkId(5));
        assert!(!links.serves_several(0, LinkId(5)), "an ended link serves no member");
        links.mark_ended(0, LinkId(5));
        assert_eq!((links.next_ended(), links.next_ended()), (Some((0, LinkId(5))), None), "once");
        assert_eq!((links.join_link(1), links.all_ended()), (None, true), "no member joins an ended link");
        links.add_link(1, 0, LinkId(6));
        assert_eq!(links.join_link(1), Some(LinkId(6)));
        let quits = [0, 1, 2].map(|_| links.release_link(0, LinkId(5)));
        assert_eq!((quits, links.release_link(0, LinkId(5))), ([false, false, true], false));
        assert_eq!(links.iter().collect::<Vec<_>>(), [(0, LinkId(6))]);
    }
}
