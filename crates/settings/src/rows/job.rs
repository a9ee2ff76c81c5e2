//! Variables of launchers: `trunkline run` and others. crates/bootstrap reads them, because they are no settings of users;
//! these rows exist for output and for unknown names.

use crate::SettingKind::{Number, Path, Text};
use crate::SettingUse::{EmptyIsValue, EnvironmentOnly, Secret};

const RANK: crate::SettingKind = Number { min: 0, max: u32::MAX as u64 };
const DEVICES: crate::SettingKind = Text { expected: "numbers or identifiers, separated by commas" };

setting_rows! {
    RANK_OF_JOB: "TRUNKLINE_JOB_RANK", Job, RANK, "", "the rank of the process", usage(EnvironmentOnly);
    SIZE: "TRUNKLINE_JOB_SIZE", Job, RANK, "", "the number of ranks", usage(EnvironmentOnly);
    LOCAL_RANK: "TRUNKLINE_JOB_LOCAL_RANK", Job, RANK, "", "the rank among those of this host", usage(EnvironmentOnly);
    LOCAL_SIZE: "TRUNKLINE_JOB_LOCAL_SIZE", Job, RANK, "", "the number of ranks on this host", usage(EnvironmentOnly);
    STORE: "TRUNKLINE_JOB_STORE", Job, Text { expected: "host:port" }, "", "where the ranks meet", usage(EnvironmentOnly);
    SECRET: "TRUNKLINE_JOB_SECRET", Job, Text { expected: "a text" }, "",
        "the secret of the job; under other launchers set it to the same random text in all ranks", usage(Secret);
    PARENT: "TRUNKLINE_JOB_PARENT", Job, RANK, "", "the process that started the ranks", usage(EnvironmentOnly);
    JOB_TRACE: "TRUNKLINE_JOB_TRACE", Job, Path { expected: "a path" }, "", "the folder of bench --trace", usage(EnvironmentOnly);
    TORCH_RANK: "RANK", Launchers, RANK, "", "torchrun: the rank", usage(EnvironmentOnly);
    TORCH_SIZE: "WORLD_SIZE", Launchers, RANK, "", "torchrun: the number of ranks", usage(EnvironmentOnly);
    TORCH_LOCAL_RANK: "LOCAL_RANK", Launchers, RANK, "", "torchrun: the rank on this host", usage(EnvironmentOnly);
    TORCH_LOCAL_SIZE: "LOCAL_WORLD_SIZE", Launchers, RANK, "", "torchrun: ranks on this host", usage(EnvironmentOnly);
    MASTER_ADDR: "MASTER_ADDR", Launchers, Text { expected: "a host" }, "", "where the ranks meet; for Slurm and mpiexec too", usage(EnvironmentOnly);
    MASTER_PORT: "MASTER_PORT", Launchers, RANK, "", "the port there", usage(EnvironmentOnly);
    TORCH_RUN: "TORCHELASTIC_RUN_ID", Launchers, Text { expected: "a text" }, "", "torchrun: the job", usage(EnvironmentOnly);
    OMPI_RANK: "OMPI_COMM_WORLD_RANK", Launchers, RANK, "", "Open MPI: the rank", usage(EnvironmentOnly);
    OMPI_SIZE: "OMPI_COMM_WORLD_SIZE", Launchers, RANK, "", "Open MPI: the number of ranks", usage(EnvironmentOnly);
    OMPI_LOCAL_RANK: "OMPI_COMM_WORLD_LOCAL_RANK", Launchers, RANK, "", "Open MPI: the rank on this host", usage(EnvironmentOnly);
    OMPI_LOCAL_SIZE: "OMPI_COMM_WORLD_LOCAL_SIZE", Launchers, RANK, "", "Open MPI: ranks on this host", usage(EnvironmentOnly);
    PMIX_NAMESPACE: "PMIX_NAMESPACE", Launchers, Text { expected: "a text" }, "", "PMIx: the job", usage(EnvironmentOnly);
    SLURM_RANK: "SLURM_PROCID", Launchers, RANK, "", "Slurm: the rank", usage(EnvironmentOnly);
    CUDA_DEVICES: "CUDA_VISIBLE_DEVICES", Gpus, DEVICES, "", "GPUs of this process; empty: none", usage(EmptyIsValue);
    HIP_DEVICES: "HIP_VISIBLE_DEVICES", Gpus, DEVICES, "", "the same for AMD's", usage(EmptyIsValue);
    ROCR_DEVICES: "ROCR_VISIBLE_DEVICES", Gpus, DEVICES, "", "the same for AMD's, by ROCr", usage(EmptyIsValue);
}
