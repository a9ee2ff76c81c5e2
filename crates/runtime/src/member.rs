//! This process as a member of a job with one-sided operations: it publishes its own address, and receives those of
//! the other members. Front ends with symmetric memory call it once when they start. It registers no memory and
//! starts no thread.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use trunkline_bootstrap::ExchangeError;
use trunkline_engine::CommNics;
use trunkline_engine::host::UnixHost;
use trunkline_fabric::LogLevel;
use trunkline_proto::reserve::try_vec;
use trunkline_proto::wire::dial::CARD_BYTES;

use crate::job_meeting::JobMeeting;
use crate::start_agreement::meet_and_agree;
use crate::{
    ChooseError, FrontEnd, HardwareFabric, JobCarrier, MembershipError, NicChoice, OneSided, ProcessSettings,
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
    meeting: JobMeeting,
}

impl JobMember {
    /// Joins the job that the environment describes (`trunkline run`, torchrun, Slurm, `mpiexec`), or creates a job
    /// of one member. Returns when all members have met; each step may take up to `limit`.
    ///
    /// Without `nics` it uses those of its rank ([`NicChoice::of_rank`]). Also returns the engine, without any
    /// registered memory. `front_end` is the users' name of the interface, for the banner. Member 0 logs the warnings
    /// about the settings of all members.
    ///
    /// # Errors
    /// [`MembershipError`]. [`MembershipError::Agreed`]: a member has an invalid setting, which member 0 has logged.
    pub fn join(
        settings: ProcessSettings,
        nics: Option<CommNics>,
        limit: Duration,
        front_end: &'static str,
        log: impl Fn(LogLevel, &str) + Send + Sync + 'static,
    ) -> Result<(OneSided, Self), MembershipError> {
        let front_end = FrontEnd { name: front_end, gpu_notes: Vec::new() };
        // The settings of a network are checked when it is opened, so it is opened before the members agree.
        let opened = match open_network(&settings, &log) {
            Err(failure) if !failure.is_invalid_setting() => return Err(failure.into()),
            opened => opened,
        };
        let ((hardware, addresses), meeting) = meet_and_agree(opened, settings.warning_lines(), limit, &log)?;
        let params = settings.params;
        let host = UnixHost::with_reach(control_reach(&params, &addresses), log);
        let choice = nics.map_or_else(
            || NicChoice::of_rank(&params.host_root, meeting.job_environment()),
            NicChoice::Named,
        );
        let (job, carrier) = OneSided::new(params, hardware, choice, host, addresses, &front_end)?;
        let rank = meeting.own_rank();
        let mut member = Self { carrier, rank, size: meeting.rank_count(), meeting };
        let cards = parse_cards(&member.exchange(&job.process_card())?)?;
        job.set_members(rank as u32, &cards).map_err(MembershipError::Start)?;
        Ok((job, member))
    }

    /// Meets the other members of a job that this process cannot join because of an invalid setting, so that member 0 logs the
    /// reason once. Call it instead of [`JobMember::join`]. Returns the error of the call: [`MembershipError::Agreed`], or `error`
    /// itself if there are no other members.
    #[must_use]
    pub fn refuse_start(
        error: ChooseError,
        limit: Duration,
        log: impl Fn(LogLevel, &str),
    ) -> MembershipError {
        match meet_and_agree::<Infallible>(Err(error), &[], limit, &log) {
            Err(error) => error,
            Ok((never, _)) => match never {},
        }
    }

    /// Gathers bytes: returns those that each member passed, by rank. All members call it.
    ///
    /// # Errors
    /// [`MembershipError::Exchange`].
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, MembershipError> {
        self.meeting.exchange_bytes(mine)
    }

    /// Returns when all members have called it.
    ///
    /// # Errors
    /// [`MembershipError::Exchange`].
    pub fn barrier(&mut self) -> Result<(), MembershipError> {
        self.meeting.wait_for_ranks()
    }
}

/// Opens the fabric that the settings name, and finds the addresses of this host.
fn open_network(
    settings: &ProcessSettings,
    log: impl Fn(LogLevel, &str),
) -> Result<(HardwareFabric, Vec<IpAddr>), ChooseError> {
    let hardware = HardwareFabric::open(settings, log)?;
    Ok((hardware, host_addresses(settings)?))
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
