"""What this machine has: the GPU and its driver, and the libraries that checks need. Called before any check; it starts no work on the GPU.

Libraries of the driver are opened in a process of its own: one that hangs or dies there is a reason, not the end of the run.
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

FACTS_LIMIT_S = 60

# CUdevice_attribute of cuda.h. The first group gates NCCL's device API.
ATTRIBUTES = {
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": 110,
    "DMA_BUF_SUPPORTED": 124,
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 102,
    # Its second version; the first (93) is of drivers before CUDA 11.7.
    "CAN_USE_64_BIT_STREAM_MEM_OPS": 122,
    "CAN_USE_STREAM_WAIT_VALUE_NOR": 123,
    "GPU_DIRECT_RDMA_SUPPORTED": 116,
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": 117,
    "GPU_DIRECT_RDMA_WRITES_ORDERING": 118,
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 103,
    "HANDLE_TYPE_FABRIC_SUPPORTED": 128,
    "MULTICAST_SUPPORTED": 132,
}
CAPABILITY = (75, 76)
# Bit masks and levels, which are no yes or no.
NUMBERS = {"GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS", "GPU_DIRECT_RDMA_WRITES_ORDERING"}

# What checks need besides a GPU and NVRTC.
NAMES = {"torch": "PyTorch", "mps": "MPS daemon"}

# What the libraries of the driver report.
ASKED = ["driver", "cuda", "card", "compute_capability", "memory_bytes", "bar1_bytes", "bar1_used_bytes", "gdrcopy"]

# Of each part the packages on PyPI that have it.
DISTRIBUTIONS = {
    "torch": ["torch"],
    "nccl": ["nvidia-nccl-cu13", "nvidia-nccl-cu12"],
    "nvshmem": ["nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"],
    "nvrtc": ["nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"],
}


class CallError(Exception):
    """A function of a library that failed."""


def opened(*names):
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise CallError(reasons[0])


def called(library, name, *arguments):
    """Calls a function whose result is 0 for success."""
    try:
        function = getattr(library, name)
    except AttributeError:
        raise CallError(f"the library has no {name}") from None
    if code := function(*arguments):
        raise CallError(f"{name} failed with code {code}")


def number(library, name, *arguments):
    value = ctypes.c_int(0)
    called(library, name, ctypes.byref(value), *arguments)
    return value.value


def ask_driver(facts):
    cuda = opened("libcuda.so.1")
    called(cuda, "cuInit", 0)
    version = number(cuda, "cuDriverGetVersion")
    facts["cuda"] = f"{version // 1000}.{version % 1000 // 10}"
    if not number(cuda, "cuDeviceGetCount"):
        raise CallError("the driver has no device")
    device = number(cuda, "cuDeviceGet", 0)
    name = ctypes.create_string_buffer(256)
    called(cuda, "cuDeviceGetName", name, len(name), device)
    facts["card"] = name.value.decode(errors="replace")
    facts["compute_capability"] = ".".join(str(number(cuda, "cuDeviceGetAttribute", of, device)) for of in CAPABILITY)
    memory = ctypes.c_size_t(0)
    called(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    facts["memory_bytes"] = memory.value
    for attribute, of in ATTRIBUTES.items():
        try:
            facts["attributes"][attribute] = number(cuda, "cuDeviceGetAttribute", of, device)
        except CallError as error:
            # A driver that is older than the attribute.
            facts["attributes"][attribute], facts["unknown"][attribute] = None, str(error)


def ask_management(facts):
    nvml = opened("libnvidia-ml.so.1")
    called(nvml, "nvmlInit_v2")
    text = ctypes.create_string_buffer(96)
    called(nvml, "nvmlSystemGetDriverVersion", text, len(text))
    facts["driver"] = text.value.decode(errors="replace")
    device = ctypes.c_void_p()
    called(nvml, "nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(device))
    total_free_used = (ctypes.c_ulonglong * 3)()
    called(nvml, "nvmlDeviceGetBAR1MemoryInfo", device, total_free_used)
    facts["bar1_bytes"], _, facts["bar1_used_bytes"] = total_free_used


def ask_gdrcopy(facts):
    facts["gdrcopy"] = False
    reasons = [] if os.path.exists("/dev/gdrdrv") else ["there is no /dev/gdrdrv"]
    try:
        opened("libgdrapi.so.2", "libgdrapi.so")
    except CallError as error:
        reasons.append(str(error))
    if reasons:
        raise CallError("; ".join(reasons))
    facts["gdrcopy"] = True


def ask_libraries():
    """Returns what the driver's libraries report. Runs in a process of its own (`on-gpu --facts`)."""
    facts = dict.fromkeys(ASKED) | {"attributes": {}, "unknown": {}}
    for ask, of in [(ask_driver, "card"), (ask_management, "bar1"), (ask_gdrcopy, "gdrcopy")]:
        try:
            ask(facts)
        except CallError as error:
            facts["unknown"][of] = str(error)
    return facts


def read(env):
    """Returns all that is known of this machine; `env` is added to the environment that the driver is opened in."""
    script = pathlib.Path(__file__).resolve().parent.parent / "on-gpu"
    try:
        asked = subprocess.run(
            [sys.executable, script, "--facts"], env=os.environ | env, capture_output=True, text=True, timeout=FACTS_LIMIT_S, check=True
        )
        facts = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        facts = dict.fromkeys(ASKED) | {"attributes": {}, "unknown": dict.fromkeys(["card", "bar1", "gdrcopy"], f"reading the driver: {error}")}
    facts |= {"cores": os.cpu_count(), "kernel": platform.release(), "mps": bool(shutil.which("nvidia-cuda-mps-control"))}
    facts["versions"] = {name: version(of) for name, of in DISTRIBUTIONS.items()}
    facts["libraries"] = {"nvrtc": nvrtc_folder()}
    # A toolkit's has no package that tells its version.
    facts["versions"]["nvrtc"] = facts["versions"]["nvrtc"] or facts["libraries"]["nvrtc"]
    return facts


def version(distributions):
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def nvrtc_folder():
    """Returns the folder of a libnvrtc: of a wheel beside PyTorch, of a toolkit, or the one that scripts/device-header keeps."""
    wheels = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(folder) for folder in wheels.submodule_search_locations] if wheels else []
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "trunkline")
    patterns = [(folder, "*/lib") for folder in folders]
    patterns += [(pathlib.Path("/usr/local"), "cuda*/lib64"), (pathlib.Path("/usr/lib"), "*-linux-gnu"), (cache, "*/nvidia/cuda_nvrtc/lib")]
    for folder, pattern in patterns:
        for found in sorted(folder.glob(pattern), reverse=True):
            if any(found.glob("libnvrtc.so.1[2-9]")):
                return str(found)
    return None


def missing(facts, need):
    """Returns why something that a check needs is not there, or None."""
    if need == "gpu":
        return None if facts["card"] else f"no GPU: {facts['unknown'].get('card')}"
    if need == "torch":
        return None if facts["versions"]["torch"] else f"{sys.executable} has no PyTorch"
    if need == "nvrtc":
        return None if facts["libraries"]["nvrtc"] else "no libnvrtc.so.12 or newer beside PyTorch, in /usr/local/cuda or kept by scripts/device-header"
    if need == "mps":
        return None if facts["mps"] else "nvidia-cuda-mps-control is not installed"
    return f"{need} is no known need; correct the table of checks"


def lines(facts):
    """Returns the first lines of a run: what gates NCCL's device API, and what else decides how bytes reach this GPU."""
    unknown = facts["unknown"]
    said = lambda value: "unknown" if value is None else value
    yes = lambda name, value: said(value) if name in NUMBERS or value is None else ("yes" if value else "no")
    result = [f"card: {facts['card'] or 'none: ' + unknown.get('card', '')}"]
    result += [f"  {name}: {yes(name, value)}" for name, value in facts["attributes"].items()]
    gdrcopy = "yes" if facts["gdrcopy"] else f"no ({unknown.get('gdrcopy')})"
    bar1 = f"{facts['bar1_bytes'] >> 20} MiB" if facts["bar1_bytes"] else f"unknown ({unknown.get('bar1')})"
    result += [f"  GDRCopy: {gdrcopy}", f"  BAR1: {bar1}"]
    result.append(f"  driver {said(facts['driver'])}, CUDA {said(facts['cuda'])}, compute capability {said(facts['compute_capability'])}")
    result.append("  " + ", ".join(f"{name} {version or 'missing'}" for name, version in facts["versions"].items()))
    return result
