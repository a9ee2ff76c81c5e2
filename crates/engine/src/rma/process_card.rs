//! The cards of a job's members: this process makes its own and reads those of all. Called when the members meet, before any link is
//! made; the cards decide which process executes atomics.

use trunkline_fabric::{Caps, Fabric, Host};
use trunkline_proto::wire::dial::{CARD_BYTES, ProcessCard};
use trunkline_proto::wire::rma::word::WordWidth;

use crate::params::ExecuteBy;
use crate::rma::error::RmaError;
use crate::rma::job::{MemberRank, RmaJob};
use crate::rma::service::RmaService;

impl<F: Fabric, H: Host> RmaJob<F, H> {
    /// What the other members need to reach this process; their launcher carries it to them.
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

    /// What its NIC can do, if it serves by one.
    fn caps_of_one(&self) -> Option<Caps> {
        let &[nic] = self.nics.numbers() else { return None };
        self.fabric.nics().get(nic).map(|nic| nic.caps)
    }

    /// Whether NICs execute atomics on words of 8 bytes: those of all members can, and no word is behind two of them.
    pub(super) fn nics_execute(&self) -> bool {
        self.me.get().is_some_and(|(_, cards)| cards.iter().all(|card| card.executes))
    }

    /// Whether a word of this process may be changed by its own atomics, beside those that others ask for. Else this process asks for
    /// its own, as others do.
    pub fn can_execute_locally(&self, width: WordWidth) -> bool {
        let coherent = self.caps_of_one().is_some_and(|caps| caps.coherent_atomics);
        width == WordWidth::Four || !self.nics_execute() || coherent
    }

    /// Who is in the job: the cards of all, in the order of their numbers, and which of them this process is.
    ///
    /// # Errors
    /// [`RmaError::Card`] names one that cannot be read, [`RmaError::Fabric`] a member that chose another fabric; [`RmaError::Argument`] if this is not the first call, or this process is
    /// not where it is said to be.
    pub fn set_members(&self, me: MemberRank, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        let read = |(member, card)| {
            ProcessCard::from_bytes(card)
                .map_err(|source| RmaError::Card { member: member as MemberRank, source })
        };
        let cards = cards.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if cards.get(me as usize).is_none_or(|card| card.process != self.process) {
            return Err(RmaError::Argument("the card of this process is not where its number says"));
        }
        self.check_fabrics(&cards)?;
        self.me.set((me, cards)).map_err(|_| RmaError::Argument("the members are known already"))?;
        let (rails, receives) = self.open_rails(true)?;
        *self.service.lock() = Some(RmaService::new(rails, receives, &self.params)?);
        Ok(())
    }

    /// All members at once: the first that differs is named to this process, before any link is made.
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
