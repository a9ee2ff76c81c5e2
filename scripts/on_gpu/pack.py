"""The pack: what a machine with a GPU and without Rust needs, in one folder with a manifest. Built on one machine, unpacked on the other.

    manifest.json   schema, commit, changed, profile, host, files (name, bytes, packed_bytes, sha256 of the unpacked file),
                    tests (check: number of its tests)
    NAME.xz         each file
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import lzma
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

from . import wheel

SCHEMA = 1
MANIFEST = "manifest.json"
# Of checks of one's own, which name programs of the machine.
EMPTY = {"commit": None, "changed": None, "profile": None, "tests": {}}
# Debian's binutils and its cousins have it; without it a test binary is ten times as long.
STRIP = "strip"
HOSTNAME = "scripts/on_gpu/hostname.c"
BUILD_LIMIT_S = 3600
# The profile of what users install, and where `cargo xtask dist` builds it: in `target` the profile's own folder is the distribution.
SHIPPED = "dist"
SHIPPED_FOLDER = "target/dist-build"
# A higher one takes three times as long and saves a tenth.
XZ_PRESET = 3


class PackError(Exception):
    """A pack that cannot be made or used, and what to do."""


@dataclasses.dataclass(frozen=True)
class Built:
    """A file that Cargo builds, and its name in the pack."""

    name: str
    folder: str
    kind: str
    target: str


TESTS = [
    Built("memory_gpu", "crates/mem", "test", "gpu"),
    Built("memory_ipc", "crates/mem", "test", "ipc"),
    Built("m2_gpu", "crates/device", "test", "m2_gpu"),
    Built("api", "crates/trunkline", "test", "api"),
    Built("nvrtc", "crates/device-queue", "test", "nvrtc"),
]
PROGRAMS = [
    Built("trunkline", "crates/cli", "bin", "trunkline"),
    Built("libtrunkline_nccl.so", "crates/nccl", "cdylib", "trunkline_nccl"),
    Built("libtrunkline_nvshmem.so", "crates/nvshmem", "cdylib", "trunkline_nvshmem"),
]


def make(root, folder, profile, checks, max_mib, wheels=()):
    """Builds, strips and compresses all that the checks need, and writes the manifest last, so that half a pack is none.

    `wheels`: for each its requirement, the paths of its libraries, and the architecture whose code is kept.
    """
    for tool, package in [(STRIP, "binutils"), ("cc", "gcc")]:
        if not shutil.which(tool):
            raise PackError(f"there is no {tool}; install {package}")
    built = build(root, profile)
    with tempfile.TemporaryDirectory(prefix="on-gpu.") as scratch:
        stripped = pathlib.Path(scratch)
        for name, path in built.items():
            ran([STRIP, "--strip-unneeded", "-o", stripped / name, path], f"strip {path}")
        ran(["cc", "-O1", "-shared", "-fPIC", "-o", stripped / "libhostname.so", root / HOSTNAME], f"compile {HOSTNAME}")
        for requirement, members, arch in wheels:
            try:
                wheel.fetch(requirement, members, stripped, arch)
            except (wheel.FormatError, OSError, subprocess.SubprocessError, KeyError) as error:
                raise PackError(f"packing libraries of {requirement}: {error}") from None
        tests = {check.name: count_tests(check, stripped) for check in checks if check.command[0].startswith("{pack}") and check.counts == "tests"}
        head = {"commit": git(root, "rev-parse", "HEAD"), "changed": bool(git(root, "status", "--porcelain")), "profile": profile}
        write(folder, stripped, head | {"tests": tests}, max_mib)


def build(root, profile):
    """Has Cargo build everything, as `./test` does, and returns each file by its name in the pack."""
    # Of the whole workspace, so that the features are those of `cargo test --workspace`, and nothing is built twice.
    command = ["cargo", "build", "--workspace"]
    for test in TESTS:
        command += ["--test", test.target]
    if profile == "dev":
        return find(root, cargo(root, [*command, "--lib", "--bin", "trunkline"]), TESTS + PROGRAMS)
    programs = ["cargo", "build", "--profile", profile] + [f"--package=trunkline-{name}" for name in ["nccl", "nvshmem", "cli"]]
    if profile == SHIPPED:
        programs += ["--target-dir", SHIPPED_FOLDER]
    return find(root, cargo(root, command), TESTS) | find(root, cargo(root, programs), PROGRAMS)


def cargo(root, command):
    """Returns Cargo's messages of what it built."""
    try:
        asked = subprocess.run(
            [*command, "--message-format", "json-render-diagnostics"], cwd=root, stdout=subprocess.PIPE, text=True, timeout=BUILD_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PackError(f"building the pack: {error}") from None
    return [message for line in asked.stdout.splitlines() if (message := json.loads(line))["reason"] == "compiler-artifact"]


def find(root, messages, files):
    found = {}
    for file in files:
        manifest = str(pathlib.Path(root, file.folder, "Cargo.toml"))
        for message in messages:
            target = message["target"]
            if message["manifest_path"] == manifest and target["name"] == file.target and file.kind in target["kind"]:
                found[file.name] = message["executable"] or next(name for name in message["filenames"] if name.endswith(".so"))
        if file.name not in found:
            raise PackError(f"Cargo did not build {file.kind} {file.target} of {file.folder}; correct the list of files in scripts/on_gpu/pack.py")
    return found


def count_tests(check, folder):
    """Returns how many tests a check has; none at all means that a test was renamed."""
    listed = ran([word.replace("{pack}", str(folder)) for word in check.command] + ["--list"], f"list the tests of {check.name}")
    count = sum(line.endswith(": test") for line in listed.splitlines())
    filters = [word for word in check.command[1:] if "::" in word]
    for word in filters:
        if not any(word in line for line in listed.splitlines()):
            raise PackError(f"check {check.name}: no test is named {word}; correct scripts/on_gpu/checks.py")
    if not count:
        raise PackError(f"check {check.name} has no test; correct scripts/on_gpu/checks.py")
    return count


def write(folder, source, head, max_mib):
    """Compresses each file of `source` into `folder`, and refuses a pack that is too large for the way to the other machine."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        files = list(workers.map(lambda path: compress(path, folder), sorted(source.iterdir())))
    total = sum(file["packed_bytes"] for file in files)
    for file in files:
        print(f"{file['name']:24} {file['bytes'] / 2**20:7.1f} MiB, packed {file['packed_bytes'] / 2**20:6.1f} MiB")
    if total > max_mib * 2**20:
        shutil.rmtree(folder)
        raise PackError(f"the pack would have {total / 2**20:.1f} MiB, and at most {max_mib:g} MiB travel; leave out --with-nccl and --with-nvshmem, or raise --max-mib")
    manifest = {"schema": SCHEMA, "host": platform.machine()} | head | {"files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"packed {total / 2**20:.1f} MiB into {folder}", flush=True)


def compress(path, folder):
    data = path.read_bytes()
    packed = lzma.compress(data, preset=XZ_PRESET)
    (folder / f"{path.name}.xz").write_bytes(packed)
    return {"name": path.name, "bytes": len(data), "packed_bytes": len(packed), "sha256": hashlib.sha256(data).hexdigest()}


def unpack(folder, to):
    """Returns the manifest, and the folder `to` with each file as it was packed."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except OSError as error:
        raise PackError(f"reading the pack: {error}; scripts/on-gpu --pack makes one on a machine with Rust") from None
    if manifest["schema"] != SCHEMA:
        raise PackError(f"the pack has schema {manifest['schema']}, and this script reads {SCHEMA}; pack again from this commit")
    if manifest["host"] != platform.machine():
        raise PackError(f"the pack is for {manifest['host']}, and this machine is {platform.machine()}; pack on a machine of this kind")
    to.mkdir()
    for file in manifest["files"]:
        try:
            data = lzma.decompress((folder / f"{file['name']}.xz").read_bytes())
        except (OSError, lzma.LZMAError) as error:
            raise PackError(f"unpacking {file['name']}: {error}; copy the whole folder again") from None
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise PackError(f"{file['name']} is not the file that was packed; copy the whole folder again")
        (to / file["name"]).write_bytes(data)
        (to / file["name"]).chmod(0o755)
    return manifest, to


def git(root, *arguments):
    """Returns what git says of the tree, or None where there is no git."""
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def ran(command, what):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise PackError(f"cannot {what}: {error.stderr.strip()}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise PackError(f"cannot {what}: {error}") from None
