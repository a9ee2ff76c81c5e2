//! The cards of a job's members: this process makes its own and reads those of all. Called when the members meet, before any link is
//! made; the cards decide which process executes atomics.

use trunkline_fabric::{Caps, Fabric, Host};
use trunkline_proto::wire::dial::{CARD_BYTES, Card};
use trunkline_proto::wire::fabric::ChosenFabric;
use trunkline_proto::wire::rma::word::Width;

use crate::params::ExecuteBy;
use crate::rma::error::RmaError;
use crate::rma::job::{Job, Member};
use crate::rma::service::Service;

impl<F: Fabric, H: Host> Job<F, H> {
    /// What the other members need to reach this process; their launcher carries it to them.
    pub fn card(&self) -> [u8; CARD_BYTES] {
        let address = self.desk.claim().streams.address().0;
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
        let mutant = self.params.mutant.is("card-hides-fabric");
        let fabric = if mutant { ChosenFabric::default() } else { self.fabric.chosen() };
        Card { process: self.process, key: self.key.public(), rails, address, executes, fabric }.to_bytes()
    }

    /// What its NIC can do, if it serves by one.
    fn caps_of_one(&self) -> Option<Caps> {
        let &[nic] = self.nics.numbers() else { return None };
        self.fabric.nics().get(nic).map(|nic| nic.caps)
    }

    /// Whether NICs execute atomics on words of 8 bytes: those of all members can, and no word is behind two of them.
    pub(super) fn nics_execute(&self) -> bool {
        let believes = self.params.mutant.is("job-believes-two-nics");
        self.me.get().is_some_and(|(_, cards)| cards.iter().all(|card| card.executes) || believes)
    }

    /// Whether a word of this process may be changed by its own atomics, beside those that others ask for. Else this process asks for
    /// its own, as others do.
    pub fn executes(&self, width: Width) -> bool {
        let coherent = self.caps_of_one().is_some_and(|caps| caps.coherent_atomics);
        width == Width::Four
            || !self.nics_execute()
            || coherent
            || self.params.mutant.is("job-goes-around-the-nic")
    }

    /// Who is in the job: the cards of all, in the order of their numbers, and which of them this process is.
    ///
    /// # Errors
    /// [`RmaError::Card`] names one that cannot be read, [`RmaError::Fabric`] a member that chose another fabric; [`RmaError::Argument`] if this is not the first call, or this process is
    /// not where it is said to be.
    pub fn meet(&self, me: Member, cards: &[[u8; CARD_BYTES]]) -> Result<(), RmaError> {
        let read = |(member, card)| {
            Card::from_bytes(card).map_err(|source| RmaError::Card { member: member as Member, source })
        };
        let cards = cards.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        if cards.get(me as usize).is_none_or(|card| card.process != self.process) {
            return Err(RmaError::Argument("the card of this process is not where its number says"));
        }
        self.check_fabrics(&cards)?;
        self.me.set((me, cards)).map_err(|_| RmaError::Argument("the members are known already"))?;
        let (rails, receives) = self.open(true)?;
        *self.service.claim() = Some(Service::new(rails, receives, &self.params)?);
        Ok(())
    }

    /// All members at once: the first that differs is named to this process, before any link is made.
    fn check_fabrics(&self, cards: &[Card]) -> Result<(), RmaError> {
        let ours = self.fabric.chosen();
        let differs = |card: &Card| !ours.meets(&card.fabric);
        match cards.iter().position(differs) {
            Some(member) if !self.params.mutant.is("job-meets-other-fabrics") => {
                Err(RmaError::Fabric { member: member as Member, theirs: cards[member].fabric, ours })
            }
            _ => Ok(()),
        }
    }
}
