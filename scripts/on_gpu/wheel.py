"""Libraries of NCCL and NVSHMEM from their wheels, made small: the code of all architectures but one is zeroed in place, and compresses to almost nothing.

The library keeps its length and every offset; the driver chooses by the header of each image, and reads the images of its own architecture alone.
What its sections of device code have is a chain of containers, each a header (magic, version, header size, size) and a chain of images. Of an image's
header we use: kind (16 bits at 0), header size (32 bits at 4), size of the image (64 bits at 8) and the architecture (32 bits at 28). NVIDIA does
not document it; the layout is as public readers of such files have it, and a chain that does not end where its container ends is refused.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

CONTAINER = struct.Struct("<IHHQ")
CONTAINER_MAGIC = 0xBA55ED50
IMAGE_ARCH_AT = 28
IMAGE_HEADER_MIN = 64
KINDS = {1: "PTX", 2: "machine code"}
# Linked code, and what it was linked from.
SECTIONS = [".nv_fatbin", "__nv_relfatbin"]
NCCL = ("nvidia/nccl/lib/libnccl.so.2",)
# With the library by which processes meet without MPI.
NVSHMEM = ("nvidia/nvshmem/lib/libnvshmem_host.so.3", "nvidia/nvshmem/lib/nvshmem_bootstrap_uid.so.3")
FETCH_LIMIT_S = 900


class FormatError(Exception):
    """A file that is not what this module knows, and where."""


def fetch(requirement, members, to, arch):
    """Has pip fetch a wheel, as `nvidia-nccl-cu12==2.28.9`, and writes some of its libraries to a folder, the first without other architectures' code."""
    with tempfile.TemporaryDirectory(prefix="on-gpu.wheel.") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement]
        subprocess.run(command, timeout=FETCH_LIMIT_S, check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            libraries = {pathlib.Path(member).name: bytearray(archive.read(member)) for member in members}
    kept, zeroed = keep_arch(next(iter(libraries.values())), arch)
    for name, library in libraries.items():
        (to / name).write_bytes(library)
    print(f"{wheel.name}: kept {kept} images for architecture {arch}, zeroed {zeroed} others", flush=True)


def keep_arch(library, arch):
    """Zeroes the images of other architectures in a library, in place. Returns how many were kept, and how many not."""
    found = [place for name in SECTIONS if (place := section(library, name))]
    kept = zeroed = 0
    for at, length, of in [image for start, size in found for image in images(library, start, start + size)]:
        if of == arch:
            kept += 1
        else:
            library[at : at + length] = bytes(length)
            zeroed += 1
    if not kept:
        raise FormatError(f"the library has no code for architecture {arch}")
    return kept, zeroed


def section(library, name):
    """Returns the place and size of a section of a 64-bit little-endian ELF file, or None."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise FormatError("the library is no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", library, 0x28)
    entry, count, names = struct.unpack_from("<3H", library, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", library, table + index * entry) for index in range(count)]
    text = headers[names][4]
    for name_at, _kind, _flags, _address, offset, size in headers:
        if library[text + name_at : library.index(0, text + name_at)] == name.encode():
            return offset, size
    return None


def images(library, at, end):
    """Yields the place, size and architecture of each image between two offsets."""
    while at < end:
        if library[at : at + 8] == bytes(8):
            # Containers are aligned.
            at += 8
            continue
        magic, _version, header, size = CONTAINER.unpack_from(library, at)
        if magic != CONTAINER_MAGIC or at + header + size > end:
            raise FormatError(f"no container of images at offset {at}")
        image, last = at + header, at + header + size
        while image < last:
            kind, _, image_header, length = struct.unpack_from("<HHIQ", library, image)
            (arch,) = struct.unpack_from("<I", library, image + IMAGE_ARCH_AT)
            if kind not in KINDS or image_header < IMAGE_HEADER_MIN or image + image_header + length > last:
                raise FormatError(f"no image at offset {image}")
            yield image + image_header, length, arch
            image += image_header + length
        at = last
