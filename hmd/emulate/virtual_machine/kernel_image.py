"""The ELF kernel of a bzImage, decompressed on the host instead of in emulation.

QEMU enters an uncompressed kernel through its PVH note. Decompression takes 0.3 s on the host and
2 s in the guest. Format: the payload fields of the boot protocol (kernel,
Documentation/arch/x86/boot.rst).
"""

from __future__ import annotations

import ctypes
import lzma
import struct

_SETUP_SECTORS = 0x1F1
_PROTOCOL = 0x206
_PAYLOAD = 0x248  # payload_offset, payload_length: protocol 2.08 on
_ZSTD = b"\x28\xb5\x2f\xfd"
_XZ = b"\xfd7zXZ"
_ELF = b"\x7fELF"


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
