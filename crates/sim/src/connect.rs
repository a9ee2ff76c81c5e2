//! Creates and destroys simulated links. An address contains a secret, so that an unrelated process cannot connect.

use trunkline_fabric::{LinkAddress, LinkControl, LinkError, LinkId};

use crate::denied::DeniedResource;
use crate::link::{DialPhase, LinkEntry, LinkPhase};
use crate::rail::SimRail;
use crate::wire::NetworkEvent;
use crate::world::SimCore;

/// First bytes of an address.
const MAGIC: [u8; 4] = *b"SIML";
/// Bytes of an address: magic, link, secret.
const LEN: usize = 20;

impl LinkControl for SimRail {
    fn create_link_on(&mut self, pipeline: Option<u32>) -> Result<LinkId, LinkError> {
        if let Some(asked @ 1..) = pipeline {
            return Err(LinkError::NoSuchPipeline { asked, pipelines: 1 });
        }
        let mut state = self.world.lock();
        let nic = state.rails[self.rail].nic;
        let limit = state.weather.caps.links_max;
        let mine = state.rails[self.rail].links.iter().flatten().count();
        let of_nic: usize = state
            .rails
            .iter()
            .filter(|rail| rail.process == self.process && rail.nic == nic)
            .map(|rail| rail.links.iter().flatten().count())
            .sum();
        let asked = state.rails[self.rail].config.links;
        if of_nic >= limit as usize || state.is_denied(self.process, DeniedResource::Links) {
            return Err(LinkError::Exhausted(limit));
        }
        if mine >= asked as usize {
            return Err(LinkError::Exhausted(asked));
        }
        let secret = state.dice.draw_u64();
        let index = state.links.len();
        let links = &mut state.rails[self.rail].links;
        // The lowest free number, so that numbers are reused at once.
        let id = links.iter().position(Option::is_none).unwrap_or_else(|| {
            links.push(None);
            links.len() - 1
        });
        links[id] = Some(index);
        state.links.push(LinkEntry::new(self.rail, id as u32, secret));
        let name = state.link_name(index);
        state.note_trace(format_args!("{name} is created"));
        Ok(LinkId(id as u32))
    }

    fn link_pipeline(&self, link: LinkId) -> Option<u32> {
        self.world.lock().find_link(self.rail, link).map(|_| 0)
    }

    fn link_address(&self, link: LinkId) -> Result<LinkAddress, LinkError> {
        let state = self.world.lock();
        let index = state.find_link(self.rail, link).ok_or(LinkError::State)?;
        if state.is_denied(self.process, DeniedResource::Addresses) {
            return Err(LinkError::Exhausted(0));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend((index as u64).to_le_bytes());
        bytes.extend(state.links[index].secret.to_le_bytes());
        Ok(LinkAddress { bytes, fd: None })
    }

    fn connect(&mut self, link: LinkId, peer: LinkAddress) -> Result<(), LinkError> {
        let mut state = self.world.lock();
        let index = state.find_link(self.rail, link).ok_or(LinkError::State)?;
        if state.links[index].phase != LinkPhase::Made {
            return Err(LinkError::State);
        }
        if state.is_denied(self.process, DeniedResource::Connections) {
            return Err(LinkError::Exhausted(0));
        }
        let (remote, secret) =
            parse_address(&peer.bytes).ok_or(LinkError::Address("not a simulated link"))?;
        let other = state.links.get(remote).ok_or(LinkError::Address("the address names no link"))?;
        if other.secret != secret {
            return Err(LinkError::Address("wrong secret"));
        }
        let entry = &mut state.links[index];
        entry.remote = Some(remote);
        entry.phase = LinkPhase::Ready;
        let name = state.link_name(index);
        state.note_trace(format_args!("{name} is connected"));
        state.begin_dial(index, remote);
        state.depart_sends(remote);
        Ok(())
    }

    fn poll_link_up(&mut self, link: LinkId) -> Result<bool, LinkError> {
        let mut state = self.world.lock();
        let index = state.find_link(self.rail, link).ok_or(LinkError::State)?;
        match state.links[index].phase {
            LinkPhase::Ready => state.drive_up(index),
            LinkPhase::Error => Err(LinkError::Unreachable("the link is in error")),
            LinkPhase::Made | LinkPhase::Dead { .. } | LinkPhase::Gone => Ok(false),
        }
    }

    fn trim_idle_memory(&mut self, link: LinkId) -> bool {
        let state = self.world.lock();
        let Some(index) = state.find_link(self.rail, link) else { return false };
        // A send arrives completely or not at all. The owner may not have polled an arrived one yet; the link is not
        // idle then.
        let rail = &state.rails[self.rail];
        !rail.queue.iter().chain(&rail.waiting).any(|waiting| waiting.link == index)
    }

    fn poll_is_call(&self, _: LinkId) -> bool {
        self.world.lock().weather.poll_is_call
    }

    fn copied_max(&self, _: LinkId) -> u64 {
        self.world.lock().weather.copied_max
    }

    fn fail_link(&mut self, link: LinkId) {
        let mut state = self.world.lock();
        if let Some(index) = state.find_link(self.rail, link) {
            state.break_link(index, None);
        }
    }

    fn check_link(&mut self, link: LinkId) -> Result<(), LinkError> {
        let state = self.world.lock();
        let Some(index) = state.find_link(self.rail, link) else { return Ok(()) };
        match state.is_lost(index) || state.links[index].phase == LinkPhase::Error {
            true => Err(LinkError::Unreachable("the rail of the link is dead")),
            false => Ok(()),
        }
    }

    fn poll_link_quiet(&mut self, link: LinkId) -> bool {
        let state = self.world.lock();
        let Some(index) = state.find_link(self.rail, link) else { return true };
        let rail = &state.rails[self.rail];
        let tells = rail.queue.iter().chain(&rail.waiting).any(|waiting| waiting.link == index);
        matches!(state.links[index].phase, LinkPhase::Error | LinkPhase::Gone) && !tells
    }

    fn destroy_link(&mut self, link: LinkId) {
        let mut state = self.world.lock();
        if let Some(index) = state.find_link(self.rail, link) {
            state.destroy_link(index);
        }
    }
}

impl SimCore {
    /// Begins to dial a connected link from one of its ends, on networks that need that.
    fn begin_dial(&mut self, link: usize, remote: usize) {
        if !self.weather.dialled {
            return;
        }
        if self.links[link].secret > self.links[remote].secret {
            self.links[link].dial = DialPhase::Waits;
        } else if self.is_cut(link) {
            self.links[link].dial = DialPhase::Lost(self.now + self.weather.retry_time);
        } else if self.dice.chance(self.weather.no_route) {
            let ends = [link, remote].map(|end| self.rails[self.links[end].rail].process);
            self.unreachable.push((ends[0], ends[1]));
            self.links[link].dial = DialPhase::Lost(self.now + self.weather.retry_time);
        } else {
            let at = self.now + self.dice.below(self.weather.dial_time + 1);
            self.links[link].dial = DialPhase::Asks(at);
            self.schedule_at(at, NetworkEvent::Wake);
        }
    }

    /// Advances a connected link that may not be up yet; returns whether it is.
    pub(crate) fn drive_up(&mut self, link: usize) -> Result<bool, LinkError> {
        const NOBODY: LinkError = LinkError::Unreachable("the peer does not respond");
        let Some(remote) = self.links[link].remote else { return Ok(false) };
        let other = &self.links[remote];
        match self.links[link].dial {
            DialPhase::Up(_) => return Ok(true),
            DialPhase::Lost(at) if self.now >= at => return Err(NOBODY),
            DialPhase::Asks(at) if self.now >= at => match other.phase {
                LinkPhase::Made | LinkPhase::Ready | LinkPhase::Error => {}
                // The peer is dead; chance decides whether it had responded before.
                LinkPhase::Dead { .. } | LinkPhase::Gone => {
                    if self.dice.coin() {
                        self.links[link].dial = DialPhase::Lost(self.now);
                        return Err(NOBODY);
                    }
                }
            },
            DialPhase::Waits
                if other.remote == Some(link)
                    && matches!(other.dial, DialPhase::Up(at) if self.now >= at) => {}
            DialPhase::Lost(_) | DialPhase::Asks(_) | DialPhase::Waits => return Ok(false),
        }
        let at = self.now + self.dice.below(self.weather.dial_time + 1);
        self.links[link].dial = DialPhase::Up(at);
        let name = self.link_name(link);
        self.note_trace(format_args!("{name} is up"));
        self.schedule_at(at, NetworkEvent::Wake);
        Ok(true)
    }
}

fn parse_address(bytes: &[u8]) -> Option<(usize, u64)> {
    if bytes.len() != LEN || bytes.get(..4)? != MAGIC {
        return None;
    }
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some((usize::try_from(word(4)?).ok()?, word(12)?))
}
