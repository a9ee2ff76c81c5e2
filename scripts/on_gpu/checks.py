"""The checks that need a GPU, in order of value. `runner` runs them; nothing here runs anything."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class StandIn:
    """How a check runs without a GPU: over which library in the driver's place, and what differs from the real run."""

    driver: str
    env: dict = dataclasses.field(default_factory=dict)
    #: Arguments in place of the command's own: they leave out what a device of host threads cannot do in time.
    arguments: tuple = None


@dataclasses.dataclass(frozen=True)
class Check:
    """One row of the results."""

    name: str
    #: What a pass shows, for the table.
    shows: str
    #: Words in braces are places: {pack}, {root}, {python}.
    command: tuple
    limit_s: float
    #: What must be there, by the names of `machine.missing`; otherwise the check is skipped with the reason.
    needs: tuple = ("gpu",)
    env: dict = dataclasses.field(default_factory=dict)
    #: "tests": a summary line of libtest must tell of a test that ran. "rows": the output has lines of JSON, which are kept.
    counts: str = "tests"
    #: A text that one row has, so that rows of other devices alone are no pass.
    row: str = ""
    #: None if the stand-in has not all that the check needs.
    stand_in: StandIn = None
    #: Why it does not run over the stand-in, where that is not one of `needs`.
    reason: str = ""


def read(path):
    """Reads checks from a file of JSON: a list of objects with the fields of `Check`."""
    rows = json.loads(path.read_text())
    for row in rows:
        row["stand_in"] = StandIn(**row["stand_in"]) if row.get("stand_in") else None
    return [Check(**row) for row in rows]


PLUGIN = "{pack}/libtrunkline_nccl.so"
NCCL = ("{python}", "{root}/scripts/nccl-one-gpu", "--json", "--plugin", PLUGIN)
NVSHMEM_FILES = ("--transport", "{pack}/libtrunkline_nvshmem.so", "--preload", "{pack}/libhostname.so", "--library", "{pack}")
NVSHMEM = ("{python}", "{root}/scripts/nvshmem-one-gpu", *NVSHMEM_FILES)
NCCL_NEEDS = ("gpu", "torch")
IN_HOST = {"TRUNKLINE_FABRIC": "soft"}
QUEUE_BENCH = ("bench", "device", "-b", "8", "--json")
MESSAGE_BENCH = ("bench", "p2p", "--memory", "cuda", "-b", "8", "-f", "8", "--json")
# Tests that compare how much memory of the device is free, or share the stand-in's.
ALONE = ("--test-threads", "1")
# Of threads of the host 16 producers with 10,000,000 entries take minutes.
WITHOUT_FLOODS = ("--skip", "many_producers", "--skip", "device_times_a_put", "--skip", "bytes_arrive_before_their_signal")

WINDOW_ENV = {"STUB_KERNELS": "{stand_in}/window_kernels.so", "TEST_GPU_IS_PLAYED": "1"}

TABLE = [
    Check(
        "nccl",
        "NCCL's six operations over the plugin, every element checked",
        (*NCCL, "--sizes", "4K,1M,16M", "--limit", "80"),
        90,
        NCCL_NEEDS,
        IN_HOST,
    ),
    Check(
        "nccl-death",
        "NCCL reports a killed rank within 10 s",
        (*NCCL, "--die", "--limit", "50"),
        60,
        NCCL_NEEDS,
        IN_HOST,
    ),
    Check(
        "gpu-memory",
        "kinds and allocations of addresses, copies, dma-bufs",
        ("{pack}/memory_gpu", "real::cuda_recognises_host_memory", "real::memory_of_a_gpu_is_found_and_exported"),
        30,
        stand_in=StandIn("kernels"),
    ),
    Check(
        "shared-memory",
        "processes map each other's GPU memory: legacy handles and descriptors",
        ("{pack}/memory_ipc", "acceptance::native::native_cuda", *ALONE),
        90,
        stand_in=StandIn("memory"),
    ),
    Check(
        "device-queues",
        "kernels post to device queues (M2), in pinned memory and in the GPU's",
        ("{pack}/m2_gpu",),
        120,
        ("gpu", "nvrtc"),
        stand_in=StandIn("kernels", {"STUB_KERNELS": "{stand_in}/queue_kernels.so"}, WITHOUT_FLOODS),
    ),
    Check(
        "windows",
        "windows whose kernels run on the GPU, between processes; the death of a rank",
        ("{pack}/api", "_on_a_gpu"),
        90,
        ("gpu", "nvrtc"),
        stand_in=StandIn("kernels", WINDOW_ENV, ("ring_sums_are_exact_on_a_gpu", "rank_death_ends_kernels_on_a_gpu")),
    ),
    Check(
        "messages",
        "tagged messages and windows of GPU memory and of memory pools",
        (
            "{pack}/api",
            "gpus::gpu_memory_is_exchanged_and_released",
            "kept::gpu_memory_without_handle_is_staged_and_counted",
            "kept::gpu_windows_without_handle_use_messages",
            *ALONE,
        ),
        90,
        stand_in=StandIn("memory"),
    ),
    Check(
        "nvshmem",
        "NVSHMEM's host calls over the transport, every byte checked",
        (*NVSHMEM, "--limit", "50"),
        60,
        ("gpu",),
        IN_HOST,
        reason="the stand-in has no NVSHMEM",
    ),
    Check(
        "compiler",
        "NVRTC compiles the kernels for this machine's and other architectures",
        ("{pack}/nvrtc", "kernels_are_compiled_for_the_architecture"),
        30,
        ("nvrtc",),
        reason="needs no driver, so that cargo test runs it anywhere",
    ),
    Check(
        "nccl-tcp",
        "NCCL over the plugin's TCP",
        (*NCCL, "--sizes", "4K,16M", "--limit", "50"),
        60,
        NCCL_NEEDS,
        {"TRUNKLINE_FABRIC": "soft:tcp"},
    ),
    Check(
        "queue-figures",
        "times and rates of device queues",
        ("{pack}/trunkline", *QUEUE_BENCH, "-e", "1M"),
        60,
        ("gpu", "nvrtc"),
        counts="rows",
        row='"M2 device"',
        stand_in=StandIn("kernels", {"STUB_KERNELS": "{stand_in}/queue_kernels.so"}, (*QUEUE_BENCH, "-e", "8", "-i", "32", "--producers", "2")),
    ),
    Check(
        "message-figures",
        "times and rates of tagged messages of GPU memory",
        ("{pack}/trunkline", *MESSAGE_BENCH, "-e", "16M"),
        60,
        env={"TRUNKLINE_FABRIC": "soft:shm"},
        counts="rows",
        row='"cuda"',
        stand_in=StandIn("memory", arguments=(*MESSAGE_BENCH, "-e", "64K", "-i", "20")),
    ),
    Check(
        "stage-figures",
        "rate of messages of expandable segments, which have no one handle, by the pinned stage",
        ("{pack}/api", "kept::the_rate_of_staged_segments_of_a_gpu_is_measured", "--exact", "--nocapture", *ALONE),
        60,
        counts="rows",
        row='"cuda segments"',
        stand_in=StandIn("memory", {"TEST_STAGE_MIB": "4", "TEST_STAGE_ROUNDS": "3"}),
    ),
    Check(
        "nccl-figures",
        "NCCL over the plugin, both ranks' kernels at once by MPS",
        (*NCCL, "--mps", "--sizes", "4K,1M,16M,128M", "--limit", "80"),
        90,
        (*NCCL_NEEDS, "mps"),
        IN_HOST,
    ),
    Check(
        "nccl-socket",
        "NCCL's own TCP transport, to compare the figures with",
        (*NCCL, "--mps", "--net", "socket", "--sizes", "4K,1M,16M,128M", "--limit", "80"),
        90,
        (*NCCL_NEEDS, "mps"),
    ),
]
