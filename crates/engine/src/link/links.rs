//! The links of a group, each used by several of its members: made by the first who needs it, ended with the last who uses
//! it. Part of a group's rails; where a comm has its links to itself, there is none of this.

use trunkline_fabric::LinkId;

/// One link.
#[derive(Debug)]
struct SharedLink {
    rail: usize,
    link: LinkId,
    /// Which of a member's links it is, counted from 0, the same for all.
    slot: usize,
    /// Members that use it.
    users: u32,
    /// It is in error.
    ended: bool,
    /// What it was connected to.
    peer: Option<Vec<u8>>,
    /// It has carried something for one of them.
    carries: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct SharedLinks {
    links: Vec<SharedLink>,
    /// Those that have ended since the members were told.
    news: Vec<(usize, LinkId)>,
}

impl SharedLinks {
    /// A new link, used by whoever made it.
    pub(crate) fn add_link(&mut self, slot: usize, rail: usize, link: LinkId) {
        self.links.push(SharedLink { rail, link, slot, users: 1, ended: false, peer: None, carries: false });
    }

    /// The link of that slot that carries, or is being made, for one more member.
    pub(crate) fn join_link(&mut self, slot: usize) -> Option<LinkId> {
        let used = self.links.iter_mut().find(|used| used.slot == slot && !used.ended)?;
        used.users += 1;
        Some(used.link)
    }

    /// The same, if it was connected to that address of the peer's.
    pub(crate) fn join_connected(&mut self, slot: usize, peer: &[u8]) -> Option<LinkId> {
        let to =
            |used: &&mut SharedLink| used.slot == slot && !used.ended && used.peer.as_deref() == Some(peer);
        let used = self.links.iter_mut().find(to)?;
        used.users += 1;
        Some(used.link)
    }

    /// Whether none carries, nor is being made.
    pub(crate) fn all_ended(&self) -> bool {
        self.links.iter().all(|used| used.ended)
    }

    /// A link was connected to that address; false if it had been before.
    pub(crate) fn mark_connected(&mut self, rail: usize, link: LinkId, peer: &[u8]) -> bool {
        let Some(used) = self.find_link(rail, link) else { return false };
        let first = used.peer.is_none();
        used.peer.get_or_insert_with(|| peer.to_vec());
        first
    }

    /// A link has carried something.
    pub(crate) fn mark_carrying(&mut self, rail: usize, link: LinkId) {
        if let Some(used) = self.find_link(rail, link) {
            used.carries = true;
        }
    }

    /// Whether a link carries for others, and so will for whoever waits for that.
    pub(crate) fn is_carrying(&self, rail: usize, link: LinkId) -> bool {
        self.links.iter().any(|used| used.rail == rail && used.link == link && used.carries && !used.ended)
    }

    /// Whether a link that has not ended is used by more than one.
    pub(crate) fn serves_several(&self, rail: usize, link: LinkId) -> bool {
        self.links.iter().any(|used| used.rail == rail && used.link == link && used.users > 1 && !used.ended)
    }

    /// A link is in error.
    pub(crate) fn mark_ended(&mut self, rail: usize, link: LinkId) {
        let Some(used) = self.find_link(rail, link).filter(|used| !used.ended) else { return };
        used.ended = true;
        self.news.push((rail, link));
    }

    /// A link that ended since this was asked last.
    pub(crate) fn next_ended(&mut self) -> Option<(usize, LinkId)> {
        self.news.pop()
    }

    /// Those that have ended and are still in use by somebody, where all have heard of it.
    pub(crate) fn spent_links(&self) -> Vec<(usize, LinkId)> {
        if !self.news.is_empty() {
            return Vec::new();
        }
        self.links.iter().filter(|used| used.ended).map(|used| (used.rail, used.link)).collect()
    }

    /// A member uses a link no more; whether it was the last.
    pub(crate) fn release_link(&mut self, rail: usize, link: LinkId) -> bool {
        let Some(at) = self.links.iter().position(|used| used.rail == rail && used.link == link) else {
            return false;
        };
        let used = &mut self.links[at];
        used.users = used.users.saturating_sub(1);
        let last = used.users == 0;
        if last {
            self.links.swap_remove(at);
        }
        last
    }

    /// Each link and its rail.
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
    fn a_link_is_made_once_and_goes_with_its_last_user() {
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
        assert!(!links.serves_several(0, LinkId(5)), "what has ended serves nobody");
        links.mark_ended(0, LinkId(5));
        assert_eq!((links.next_ended(), links.next_ended()), (Some((0, LinkId(5))), None), "once");
        assert_eq!((links.join_link(1), links.all_ended()), (None, true), "nobody joins what has ended");
        links.add_link(1, 0, LinkId(6));
        assert_eq!(links.join_link(1), Some(LinkId(6)));
        let quits = [0, 1, 2].map(|_| links.release_link(0, LinkId(5)));
        assert_eq!((quits, links.release_link(0, LinkId(5))), ([false, false, true], false));
        assert_eq!(links.iter().collect::<Vec<_>>(), [(0, LinkId(6))]);
    }
}
