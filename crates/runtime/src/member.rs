//! This process as a member of a job with one-sided operations: it publishes its own address, and receives those of
//! the other members. Front ends with symmetric memory call it once when they start. It registers no memory and
//! starts no thread.

use std::time::Duration;

use trunkline_bootstrap::{ExchangeError, JobBootstrap, JobEnvironment};
use trunkline_engine::CommNics;
use trunkline_engine::host::UnixHost;
use trunkline_fabric::LogLevel;
use trunkline_proto::reserve::{try_collect, try_vec};
use trunkline_proto::wire::dial::CARD_BYTES;

use crate::{
    FrontEnd, HardwareFabric, JobCarrier, MembershipError, NicChoice, OneSided, ProcessSettings,
    control_reach, host_addresses,
};

/// A member that knows the addresses of all others.
pub struct JobMember {
    /// The fabric and the NICs that carry its data.
    pub carrier: JobCarrier,
    /// Its rank, counted from 0.
    pub rank: usize,
    /// The number of members of the job.
    pub size: usize,
    /// The bootstrap; `None` for a job of one member.
    bootstrap: Option<JobBootstrap>,
    limit: Duration,
}

impl JobMember {
    /// Joins the job that the environment describes (`trunkline run`, torchrun, Slurm, `mpiexec`), or creates a job
    /// of one member. Returns when all members have met; each step may take up to `limit`.
    ///
    /// Without `nics` it uses those of its rank ([`NicChoice::of_rank`]). Also returns the engine, without any
    /// registered memory. `front_end` is the users' name of the interface, for the banner.
    ///
    /// # Errors
    /// [`MembershipError`].
    pub fn join(
        settings: ProcessSettings,
        nics: Option<CommNics>,
        limit: Duration,
        front_end: &'static str,
        log: impl Fn(LogLevel, &str) + Send + Sync + 'static,
    ) -> Result<(OneSided, Self), MembershipError> {
        let front_end = FrontEnd { name: front_end, gpu_notes: Vec::new() };
        let hardware = HardwareFabric::open(&settings, &log)?;
        let addresses = host_addresses(&settings)?;
        let params = settings.params;
        let host = UnixHost::with_reach(control_reach(&params, &addresses), log);
        let environment = JobEnvironment::read()?;
        let choice = nics
            .map_or_else(|| NicChoice::of_rank(&params.host_root, environment.as_ref()), NicChoice::Named);
        let (job, carrier) = OneSided::new(params, hardware, choice, host, addresses, &front_end)?;
        let bootstrap = environment.map(|environment| JobBootstrap::join(&environment, limit)).transpose()?;
        let place = bootstrap.as_ref().map(JobBootstrap::job_placement);
        let (rank, size) = place.map_or((0, 1), |place| (place.rank, place.size));
        let mut member = Self { carrier, rank, size, bootstrap, limit };
        let cards = parse_cards(&member.exchange(&job.process_card())?)?;
        job.set_members(rank as u32, &cards).map_err(MembershipError::Start)?;
        Ok((job, member))
    }

    /// Gathers bytes: returns those that each member passed, by rank. All members call it.
    ///
    /// # Errors
    /// [`MembershipError::Exchange`].
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, MembershipError> {
        Ok(match &mut self.bootstrap {
            Some(bootstrap) => bootstrap.all_gather(mine, self.limit)?,
            None => {
                let mut all = try_vec(1).map_err(ExchangeError::from)?;
                all.push(try_collect(mine.iter().copied()).map_err(ExchangeError::from)?);
                all
            }
        })
    }

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`MembershipError::Exchange`].
    pub fn barrier(&mut self) -> Result<(), MembershipError> {
        if let Some(bootstrap) = &mut self.bootstrap {
            bootstrap.barrier(self.limit)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for JobMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({} of {}, {:?})", self.rank, self.size, self.carrier)
    }
}

/// Parses the cards of all members.
fn parse_cards(given: &[Vec<u8>]) -> Result<Vec<[u8; CARD_BYTES]>, MembershipError> {
    let mut all = try_vec(given.len()).map_err(ExchangeError::from)?;
    for (rank, bytes) in given.iter().enumerate() {
        let card = bytes.as_slice().try_into();
        all.push(card.map_err(|_| MembershipError::Card { rank, bytes: bytes.len() })?);
    }
    Ok(all)
}
