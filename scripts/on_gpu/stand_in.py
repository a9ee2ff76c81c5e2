"""C libraries in the place of NVIDIA's driver, which the tests have, built for a whole run. They say nothing about a GPU: they show that the
script and the checks work.

    kernels   crates/device/tests/m2/stub.c: a device of host threads that runs kernels
    memory    crates/mem/tests/ipc/stub/cuda.c: a device in a memory file, whose memory processes share
"""

import shutil
import struct
import subprocess
import tempfile

DRIVER = "libcuda.so.1"
# Capacity, next id, first place, next process: the head of the device's file (crates/mem/tests/ipc/stub/device.h).
DEVICE_HEAD = struct.pack("<4Q", 256 << 20, 1, 65536, 1)
DEVICE_BYTES = 1 << 46
COMPILE_LIMIT_S = 120


class BuildError(Exception):
    """A library that cannot be built, and why."""


class NoCompiler(Exception):
    """A compiler that is not installed, and the package that has it."""


class Driver:
    def __init__(self, folder):
        self.folder = folder
        # Deleted with this object.
        self.device = tempfile.NamedTemporaryFile(prefix="trunkline.on-gpu.", dir="/dev/shm")
        self.device.truncate(DEVICE_BYTES)

    def environment(self, kind, more=None):
        """Returns the variables that have a process open this driver; each call begins with an empty device."""
        self.device.seek(0)
        self.device.truncate(0)
        self.device.truncate(DEVICE_BYTES)
        self.device.write(DEVICE_HEAD)
        self.device.flush()
        env = {name: value.format(stand_in=self.folder) for name, value in (more or {}).items()}
        return env | {"LD_LIBRARY_PATH": str(self.folder / kind), "STUB_DEVICE": self.device.name}


def build(root, folder):
    crates = root / "crates"
    for kind in ["kernels", "memory"]:
        (folder / kind).mkdir(parents=True)
    include = ["-I", root / "include", "-I", crates / "device-queue/tests/header"]
    cxx = ["c++", "-O2", "-std=c++17", *include]
    soname = [f"-Wl,-soname,{DRIVER}"]
    compile_library(["cc", "-O2", *soname], crates / "device/tests/m2/stub.c", folder / "kernels" / DRIVER)
    compile_library(["cc", "-O1", *soname], crates / "mem/tests/ipc/stub/cuda.c", folder / "memory" / DRIVER)
    compile_library(cxx, crates / "device/tests/m2/kernels.cpp", folder / "queue_kernels.so")
    compile_library(cxx, crates / "trunkline/tests/api/gpu_kernels.cpp", folder / "window_kernels.so")
    return Driver(folder)


def compile_library(command, source, to):
    if not shutil.which(command[0]):
        raise NoCompiler(f"there is no {command[0]} to build the stand-in driver; install gcc and g++")
    try:
        done = subprocess.run([*command, "-shared", "-fPIC", "-pthread", "-o", to, source], capture_output=True, text=True, timeout=COMPILE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"building {source}: {error}") from None
    if done.returncode:
        raise BuildError(f"building {source}: {done.stderr}")
