"""Which guest-physical addresses each node has.

QEMU's pc machine lays the nodes' memory out one after another from address 0, with a hole below
4 GiB: with more than 3.5 GiB in all, what lies above 3 GiB continues at 4 GiB (hw/i386/pc_piix.c,
pc_init1; the ACPI SRAT that the guest reads says the same). A node that spans the hole has one
range with the hole inside it, where no memory answers; so ranges never overlap.
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
