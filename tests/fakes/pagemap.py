# SPDX-License-Identifier: MIT
"""Physical addresses of pages, as /proc/PID/pagemap shows them."""

from __future__ import annotations

import struct
from pathlib import Path


def physical_address(pid: int, address: int) -> int:
    """Return where the kernel says that an address is; 0 where it does not say."""
    with Path(f"/proc/{pid}/pagemap").open("rb") as pagemap:
        pagemap.seek(address // 4096 * 8)
        (entry,) = struct.unpack("<Q", pagemap.read(8))
    frame = entry & ((1 << 55) - 1) if entry >> 63 else 0
    return frame * 4096 + address % 4096 if frame else 0
