//! The cards of a job's members: this process makes its own and reads those of all. Called when the members meet, before any link
//! is made; the cards decide which process executes atomics.

use trunkline_fabric::{Caps, Fabric, Host};
use trunkline_proto::wire::dial::{CARD_BYTES, ProcessCard};
use trunkline_proto::wire::rma::word::WordWidth;

use crate::params::ExecuteBy;
use crate::rma::error::RmaError;
use crate::rma::job::{MemberRank, RmaJob};
use crate::rma::service::RmaService;

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// Returns the address record by which other members reach this process; the launcher distributes it.
    pub fn process_card(&self) -> [u8; CARD_BYTES] {
        let address = self.desk.lock().streams.listen_address().0;
        let rails = self.nics.numbers().len() as u8;
        let executes = self.caps_of_one().is_some_and(|caps| {
            caps.atomics
                && caps.arrives
                && match self.params.execute_by {
                    ExecuteBy::Auto => caps.offloads_atomics,
                    ExecuteBy::Nic => true,
                    ExecuteBy::Owner => false,
                }
        });
        let fabric = self.fabric.chosen_fabric();
        ProcessCard { process: self.process, key: self.key.public_key(), rails, address, executes, fabric }
            .to_bytes()
    }

    /// Returns the capabilities of its NIC, if it serves by exactly one.
    fn caps_of_one(&self) -> Option<Caps> {
        let &[nic] = self.nics.numbers() else { return None };
        self.fabric.nics().get(nic).map(|nic| nic.caps)
    }

    /// Returns whether NICs execute atomics on words of 8 bytes: those of all members can, and no word is reachable by two NICs.
    pub(super) fn nics_execute(&self) -> bool {
        self.me.get().is_some_and(|(_, cards)| cards.iter().all(|card| card.executes))
    }

    /// Returns whether this process may change a word of its own directly, concurrently with atomics of other members. If not, it
    /// posts atomics on its own words to itself.
    pub fn can_execute_locally(&self, width: WordWidth) -> bool {
        let coherent = self.caps_of_one().is_some_and(|caps| caps.coherent_atomics);
        width == WordWidth::Four || !self.nics_execute() || coherent
    }

    /// Sets the members of the job: the cards of all, in the order of their ranks, and the rank of this process.
    ///
    /// # Errors
    /// [`RmaError::Card`] names a card that cannot be read, [`RmaError::Fabric`] a member that chose another fabric.
    /// [`RmaError::Argument`] if this is not the first call, or the card at rank `me` is not of this process.
    pub fn set_members(&self, me: MemberRank, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        let read = |(member, card)| {
            ProcessCard::from_bytes(card)
                .map_err(|source| RmaError::Card { member: member as MemberRank, source })
        };
        let cards = cards.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if cards.get(me as usize).is_none_or(|card| card.process != self.process) {
            return Err(RmaError::Argument("the card at this process's rank is not its own"));
        }
        self.check_fabrics(&cards)?;
        self.me.set((me, cards)).map_err(|_| RmaError::Argument("set_members was called before"))?;
        let (rails, receives) = self.open_rails(true)?;
        *self.service.lock() = Some(RmaService::new(rails, receives, &self.params)?);
        Ok(())
    }

    /// Compares all members at once, so that the first that differs is reported, before any link is made.
    fn check_fabrics(&self, cards: &[ProcessCard]) -> Result<(), RmaError> {
        let ours = self.fabric.chosen_fabric();
        let differs = |card: &ProcessCard| !ours.can_connect(&card.fabric);
        match cards.iter().position(differs) {
            Some(member) => {
                Err(RmaError::Fabric { member: member as MemberRank, theirs: cards[member].fabric, ours })
            }
            None => Ok(()),
        }
    }
}
