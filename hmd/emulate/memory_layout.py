"""Guest-physical address ranges of the nodes.

QEMU's pc machine places the nodes one after another from address 0, with a hole below 4 GiB: of
more than 3.5 GiB, the part above 3 GiB continues at 4 GiB (hw/i386/pc_piix.c, pc_init1; the
guest's ACPI SRAT agrees). A node that spans the hole has one range that includes the hole, where
no memory is; ranges never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from hmd.units import GIB

_ALL_BELOW = 0xE0000000
_LOW_BYTES = 0xC0000000
_HIGH_START = 4 * GIB


def node_ranges(sizes_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Return [start, end) guest-physical of each node, in the pc machine's default layout."""
    low_bytes = _LOW_BYTES if sum(sizes_bytes) > _ALL_BELOW else _ALL_BELOW

    def address(offset: int) -> int:
        return offset if offset < low_bytes else offset - low_bytes + _HIGH_START

    ranges = []
    offset = 0
    for size in sizes_bytes:
        ranges.append((address(offset), address(offset + size - 1) + 1))
        offset += size
    return ranges
