"""The initramfs: the first process, the modules that it loads, and the list of shares.

A "newc" cpio archive (kernel, Documentation/driver-api/early-userspace/buffer-format.rst), built
in memory in about 50 ms. Modules are decompressed and ordered by their ``depends=`` fields, so
that neither depmod nor modules.dep is needed.
"""

from __future__ import annotations

import lzma
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hmd.emulate.assets import Kernel
from hmd.errors import MissingError

# Modules of the root file system; Debian's generic kernel has the others built in.
MODULES = ("9p", "9pnet_virtio", "overlay")

_MAGIC = b"070701"


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
    builtin_list = kernel.modules / "modules.builtin"
    builtin = {
        Path(line).stem.replace("-", "_") for line in _lines(builtin_list) if line.endswith(".ko")
    }
    order: dict[str, bytes] = {}

    def visit(name: str) -> None:
        if name in order or name in builtin:
            return
        if name not in files:
            raise MissingError(
                f"kernel {kernel.version} has no module {name}: use Debian's generic kernel, "
                "not the cloud one"
            )
        image = _unpack(files[name])
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


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _unpack(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def _depends(image: bytes) -> list[str]:
    """Return the ``depends=`` string of the module's .modinfo section."""
    start = image.find(b"\0depends=")
    if start < 0:
        return []
    start += len(b"\0depends=")
    names = image[start : image.index(b"\0", start)].decode()
    return [name.replace("-", "_") for name in names.split(",") if name]
