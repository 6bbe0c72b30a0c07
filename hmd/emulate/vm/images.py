# SPDX-License-Identifier: MIT
"""What the guest boots from: its kernel image, its initramfs, and code that it need not compile.

The kernel: QEMU enters an uncompressed ELF kernel through its PVH note. Decompressing a bzImage on
the host takes 0.3 s, in the guest 2 s (the payload fields of the boot protocol,
Documentation/arch/x86/boot.rst).

The initramfs: first process, modules and the list of shares, as a "newc" cpio archive
(Documentation/driver-api/early-userspace/buffer-format.rst), built in memory in about 50 ms.
Modules are ordered by their ``depends=`` fields, so that neither depmod nor modules.dep is needed.

Compiled code: compiling hmd's kernels in emulation takes minutes, and its modules half of a minute.
numba keys its cache by CPU name and features, which NUMBA_CPU_NAME and NUMBA_CPU_FEATURES override:
code for ``generic`` runs on host and guest.
"""

from __future__ import annotations

import compileall
import ctypes
import lzma
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import hmd
from hmd.base.errors import MissingError
from hmd.emulate.assets import Kernel, cache_folder
from hmd.policy import registry

# Modules of the guest's devices and root file system, of which newer kernels have some built in.
MODULES = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay")

_MAGIC = b"070701"

_SETUP_SECTORS = 0x1F1
_PROTOCOL = 0x206
_PAYLOAD = 0x248  # payload_offset, payload_length: protocol 2.08 on
_ZSTD = b"\x28\xb5\x2f\xfd"
_XZ = b"\xfd7zXZ"
_ELF = b"\x7fELF"


def entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    """Return one archive member: a header of 13 fields, the name, the data, all padded."""
    encoded = name.encode() + b"\0"
    # ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
    header = _MAGIC + b"".join(b"%08X" % field for field in fields)
    return _padded(header + encoded) + _padded(data)


def archive(members: Iterable[bytes]) -> bytes:
    """Return a whole archive of members made by :func:`entry`."""
    return b"".join(members) + entry("TRAILER!!!", 0)


def load_order(kernel: Kernel, wanted: Sequence[str] = MODULES) -> list[tuple[str, bytes]]:
    """Return names and decompressed images of modules, each after those that it depends on.

    Built-in modules are omitted. Raises MissingError for a module that is neither a file nor
    built in.
    """
    files = {
        path.name.split(".")[0].replace("-", "_"): path for path in kernel.modules.rglob("*.ko*")
    }
    listed = kernel.modules / "modules.builtin"
    lines = listed.read_text().splitlines() if listed.exists() else []
    builtin = {Path(line).stem.replace("-", "_") for line in lines if line.endswith(".ko")}
    order: dict[str, bytes] = {}

    def visit(name: str) -> None:
        if name in order or name in builtin:
            return
        if name not in files:
            raise MissingError(
                f"kernel {kernel.version} has no module {name}: use Debian's generic kernel, "
                "not the cloud one"
            )
        image = files[name].read_bytes()
        if files[name].suffix == ".xz":
            image = lzma.decompress(image)
        for needed in _depends(image):
            visit(needed)
        order[name] = image

    for name in wanted:
        visit(name.replace("-", "_"))
    return list(order.items())


def build(
    kernel: Kernel, init: bytes, shares: Mapping[str, str], first: Sequence[str] = ()
) -> bytes:
    """Return the initramfs of one boot; ``shares`` maps 9p tags to directories.

    ``first`` is the command of another first process; its words contain no line breaks.
    """
    return archive(_members(kernel, init, shares, first))


def _members(
    kernel: Kernel, init: bytes, shares: Mapping[str, str], first: Sequence[str]
) -> Iterator[bytes]:
    folder, program, plain = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    for name in ("dev", "proc", "sys", "modules"):
        yield entry(name, folder)
    # The kernel opens standard streams for the first process only where /dev/console exists.
    yield entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    yield entry("init", program, init)
    for position, (name, image) in enumerate(load_order(kernel)):
        yield entry(f"modules/{position:02}-{name}.ko", plain, image)
    lines = "".join(f"{tag} {path}\n" for tag, path in shares.items())
    yield entry("shares", plain, lines.encode())
    if first:
        yield entry("first", plain, "".join(f"{word}\n" for word in first).encode())


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _depends(image: bytes) -> list[str]:
    """Return the ``depends=`` string of the module's .modinfo section."""
    start = image.find(b"\0depends=")
    if start < 0:
        return []
    start += len(b"\0depends=")
    names = image[start : image.index(b"\0", start)].decode()
    return [name.replace("-", "_") for name in names.split(",") if name]


def guest_environment() -> dict[str, str]:
    """Return what the guest's programs get: numba finds the kernels, HMD_EMULATED marks the guest.

    QEMU (10.0) reads all that a masked AVX load addresses, and so faults in numpy's code for AVX2
    at the end of mapped memory, where a CPU does not.
    """
    return {
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 AVX2",  # from numpy 2.4 on, and before
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(_folder()),
        "HMD_EMULATED": "1",
    }


def warm_kernels() -> None:
    """Compile the kernels that the guest's cache lacks; the first time takes a minute.

    And the bytecode that the package lacks, where it may be written (PYTHONDONTWRITEBYTECODE keeps
    the interpreter from it). Raises MissingError where compilation of kernels fails.
    """
    compileall.compile_dir(Path(hmd.__file__).parent, quiet=2)
    _folder().mkdir(parents=True, exist_ok=True)
    registry.warm_apart(guest_environment())


def _folder() -> Path:
    return cache_folder() / "numba"


def unpack(image: bytes) -> bytes | None:
    """Return the ELF kernel in a bzImage, or None for an unsupported compression."""
    if image[0x202:0x206] != b"HdrS" or struct.unpack_from("<H", image, _PROTOCOL)[0] < 0x208:
        return None
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    start = (image[_SETUP_SECTORS] + 1) * 512 + offset
    payload = image[start : start + length]
    # The build appends the unpacked size to the compressed kernel.
    (size,) = struct.unpack("<I", payload[-4:])
    if payload.startswith(_ZSTD):
        kernel = _unzstd(payload[:-4], size)
    elif payload.startswith(_XZ):
        kernel = lzma.decompress(payload[:-4])
    else:
        return None
    return kernel if kernel is not None and kernel.startswith(_ELF) else None


def _unzstd(data: bytes, size: int) -> bytes | None:
    """Decompress with libzstd, a dependency of dpkg; None where it is not installed."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return None
    decompress = library.ZSTD_decompress
    decompress.restype = ctypes.c_size_t
    decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    room = ctypes.create_string_buffer(size)
    if decompress(room, size, data, len(data)) != size:
        return None
    return room.raw
