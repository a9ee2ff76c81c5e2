//! Tests of the readers of each launcher's variables.

use super::*;
use crate::placement::{Launcher, PmiServer, port_window};
use crate::secret::JobSecret;

fn of(text: &str) -> Result<Option<JobEnvironment>, EnvironmentError> {
    let pairs: Vec<(String, String)> = text
        .split_whitespace()
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    JobEnvironment::from_variables(&|name| {
        pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone())
    })
}

fn found(text: &str) -> JobEnvironment {
    of(text).unwrap().expect("a job")
}

fn place(
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
) -> Option<JobPlacement> {
    Some(JobPlacement { rank, size, local_rank, local_size })
}

fn at(environment: &JobEnvironment) -> (String, u16, JobSecret) {
    match &environment.meeting {
        RendezvousMethod::At { host, port, secret, .. } => (host.clone(), *port, secret.clone()),
        other => panic!("{other:?}"),
    }
}

const TORCHRUN: &str =
    "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=29500";
const SLURM: &str = "SLURM_PROCID=3 SLURM_NTASKS=9 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_JOB_ID=77 SLURM_STEP_ID=0 \
                     SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=2,2 SLURM_STEP_NUM_TASKS=4";
const OPENMPI: &str = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 \
                       OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=17 PMIX_RANK=0";
const HYDRA: &str = "PMI_FD=8 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";

fn own() -> String {
    format!(
        "TRUNKLINE_JOB_RANK=1 TRUNKLINE_JOB_SIZE=2 TRUNKLINE_JOB_LOCAL_RANK=0 TRUNKLINE_JOB_LOCAL_SIZE=1 \
         TRUNKLINE_JOB_STORE=[fd00::1]:4000 TRUNKLINE_JOB_SECRET={}",
        "ab".repeat(32)
    )
}

#[test]
fn environment_without_variables_has_no_job() {
    assert_eq!(of(""), Ok(None));
    assert_eq!(of("RANK=1 WORLD_SIZE=2"), Ok(None), "other tools use these names too");
    assert_eq!(of("PMI_RANK=1 PMI_SIZE=2"), Ok(None), "no address of a PMI server");
    assert_eq!(of("PMIX_RANK=0 PMIX_NAMESPACE=x"), Ok(None));
}

#[test]
fn variables_of_trunkline_run_are_read() {
    let environment = found(&own());
    assert_eq!((environment.launcher, environment.place), (Launcher::Own, place(1, 2, Some(0), Some(1))));
    assert_eq!(at(&environment), ("fd00::1".into(), 4000, JobSecret::from_hex(&"ab".repeat(32)).unwrap()));
    // `trunkline run` is the innermost launcher, so its variables win.
    assert_eq!(found(&format!("{TORCHRUN} {HYDRA} {SLURM} {}", own())).launcher, Launcher::Own);
}

#[test]
fn torchrun() {
    let environment = found(TORCHRUN);
    assert_eq!(
        (environment.launcher, environment.place),
        (Launcher::Torchrun, place(1, 4, Some(1), Some(2)))
    );
    let (host, port, secret) = at(&environment);
    assert_eq!((host.as_str(), port), ("head", 29500));
    // The secret is the same for every rank, and differs for another run, port or added secret.
    assert_eq!(at(&found(&TORCHRUN.replace("RANK=1", "RANK=0"))).2, secret);
    assert_ne!(at(&found(&format!("{TORCHRUN} TORCHELASTIC_RUN_ID=b"))).2, secret);
    assert_ne!(at(&found(&TORCHRUN.replace("29500", "29501"))).2, secret);
    assert_ne!(at(&found(&format!("{TORCHRUN} TRUNKLINE_JOB_SECRET=s"))).2, secret);
    assert_eq!(found(&format!("{SLURM} {TORCHRUN}")).launcher, Launcher::Torchrun);
}

#[test]
fn slurm() {
    let environment = found(SLURM);
    assert_eq!((environment.launcher, environment.place), (Launcher::Slurm, place(3, 4, Some(1), Some(2))));
    let (host, port, secret) = at(&environment);
    assert_eq!(host, "n1");
    assert_eq!(at(&found(&SLURM.replace("PROCID=3", "PROCID=0"))), (host, port, secret));
    let other = at(&found(&SLURM.replace("STEP_ID=0", "STEP_ID=1")));
    assert!(other.1 != port && other.2 != at(&environment).2);
    let master = at(&found(&format!("{SLURM} MASTER_ADDR=n9 MASTER_PORT=5")));
    assert_eq!((master.0.as_str(), master.1), ("n9", 5));
    let pmix = found(&format!("{SLURM} PMIX_NAMESPACE=slurm.pmix.77.0 PMIX_RANK=3"));
    assert_eq!(pmix.meeting, RendezvousMethod::Pmix { extra: None });
    // The script of a batch job is not a step, and an allocation's shell has no rank.
    assert_eq!(of("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=77 SLURM_NODELIST=n1"), Ok(None));
    assert_eq!(of("SLURM_NTASKS=4 SLURM_STEP_ID=0"), Ok(None));
    // A step of one task, such as a shell.
    assert_eq!(of(&SLURM.replace("NUM_TASKS=4", "NUM_TASKS=1").replace("PROCID=3", "PROCID=0")), Ok(None));
}

#[test]
fn open_mpi() {
    let environment = found(OPENMPI);
    assert_eq!((environment.launcher, environment.place), (Launcher::OpenMpi, place(0, 2, Some(0), Some(2))));
    assert_eq!(environment.meeting, RendezvousMethod::Pmix { extra: None });
    let master = found(&format!("{OPENMPI} MASTER_ADDR=h MASTER_PORT=9"));
    assert_eq!((at(&master).0.as_str(), at(&master).1), ("h", 9));
}

#[test]
fn pmi() {
    let environment = found(HYDRA);
    assert_eq!((environment.launcher, environment.place), (Launcher::Pmi, place(1, 2, Some(1), Some(2))));
    assert_eq!(environment.meeting, RendezvousMethod::Pmi { server: PmiServer::Fd(8), extra: None });
    let port = found("PMI_PORT=vm:44065 PMI_ID=1 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1");
    assert_eq!(port.place, None, "the server sends it");
    let server = PmiServer::Port { host: "vm".into(), port: 44065, id: 1 };
    assert!(matches!(&port.meeting, RendezvousMethod::Pmi { server: found, .. } if *found == server));
}

#[test]
fn invalid_variables_are_reported() {
    let message = |text: &str| of(text).unwrap_err().to_string();
    assert!(message("PMI_FD=8 PMI_RANK=0").contains("PMI_SIZE"));
    assert!(message("PMI_FD=x PMI_RANK=0 PMI_SIZE=2").starts_with("PMI_FD=x: expected"));
    assert!(message("PMI_PORT=vm PMI_ID=0").starts_with("PMI_PORT=vm: expected"));
    assert!(
        message(&TORCHRUN.replace("RANK=1", "RANK=4"))
            .contains("rank 4 is out of range for a job of 4 (torchrun)")
    );
    assert!(message(&TORCHRUN.replace("29500", "0")).starts_with("MASTER_PORT=0: expected"));
    assert!(message(&TORCHRUN.replace("SIZE=4", "SIZE=99999")).contains("at most 4096"));
    assert!(message(&SLURM.replace("n[1-2]", "n[")).starts_with("SLURM_STEP_NODELIST=n[: expected"));
    assert!(message("OMPI_COMM_WORLD_RANK=0").contains("OMPI_COMM_WORLD_SIZE"));
    assert!(message("TRUNKLINE_JOB_RANK=0 TRUNKLINE_JOB_SIZE=2").contains("TRUNKLINE_JOB_STORE"));
    let bad_secret = message(&own().replace("abab", "zz"));
    assert!(bad_secret.contains("TRUNKLINE_JOB_SECRET") && !bad_secret.contains("zzab"), "{bad_secret}");
}

#[test]
fn port_window_has_eight_valid_ports() {
    assert_eq!(port_window(29500).collect::<Vec<_>>(), (29501..=29508).collect::<Vec<_>>());
    let last: Vec<u16> = port_window(65_533).collect();
    assert_eq!(last[..2], [65_534, 65_535]);
    let distinct: std::collections::BTreeSet<_> = last.iter().collect();
    assert!(distinct.len() == 8 && last.iter().all(|port| *port > 60_000), "{last:?}");
}

#[test]
fn hosts_with_ports_are_parsed() {
    use crate::trunkline_run::host_and_port;
    assert_eq!(host_and_port("a.b:7"), Some(("a.b".into(), 7)));
    assert_eq!(host_and_port("[::1]:7"), Some(("::1".into(), 7)));
    for bad in ["", "a", "a:", ":7", "a:0", "a:70000", "::1:7", "[]:7"] {
        assert_eq!(host_and_port(bad), None, "{bad}");
    }
}

#[test]
fn rank_0_is_warned_of_a_computable_secret() {
    let rank_0 = |text: &str| text.replace("RANK=1 ", "RANK=0 ").replace("PROCID=3", "PROCID=0");
    for (text, launcher) in [(rank_0(TORCHRUN), "torchrun"), (rank_0(SLURM), "Slurm")] {
        let warning = found(&text).secret_warning().expect("a warning");
        assert!(warning.contains(launcher) && warning.contains("Set TRUNKLINE_JOB_SECRET"), "{warning}");
        assert_eq!(found(&format!("{text} TRUNKLINE_JOB_SECRET=s")).secret_warning(), None);
    }
    assert_eq!(found(TORCHRUN).secret_warning(), None, "only rank 0 warns");
    for host in ["127.0.0.1", "::1", "localhost"] {
        let text = rank_0(TORCHRUN).replace("MASTER_ADDR=head", &format!("MASTER_ADDR={host}"));
        assert_eq!(found(&text).secret_warning(), None, "{host}");
    }
    let own = own().replace("RANK=1 ", "RANK=0 ");
    assert_eq!(found(&own).secret_warning(), None, "its launcher creates a random secret");
}
