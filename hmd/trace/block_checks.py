"""Checks of what a trace's blocks say, before anything is used as an index or as a size.

A checksum shows that a block is as it was written, not who wrote it: the words and columns of a
file from elsewhere may be anything. Each check raises ``ValueError`` with what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.machine.pages.mappings import MappingKind
from hmd.trace.blocks import Block
from hmd.units import PAGE_BYTES

MOST: Final = 2**63 - 1
MAX_PAGES: Final = 1 << 28
"""Pages of one change of placement: 1 TiB."""
_MAX_NODE: Final = 1023
_MAX_ADDRESS: Final = np.uint64(1 << 57)

_TEXTS: Final = ("hmd", "clock", "date", "kernel", "machine", "tier_source", "sampler", "detail",
                 "instructions", "instructions_detail", "tier")  # fmt: skip
_NUMBERS: Final = {"begin_ns": MOST, "cpus": 1 << 20, "page_bytes": 1 << 30, "period": 1 << 40,
                   "pair_period": 1 << 40, "reorder_window": 1 << 16,
                   "fill_buffers": 1 << 16}  # fmt: skip
_NEVER_NULL: Final = ("begin_ns", "command", "period", "tiers")
_LISTS: Final = ("command", "nodes", "tiers")


def whole(words: Mapping[str, Any], name: str, most: int = MOST, least: int = 0) -> int:
    """Return a whole number within bounds."""
    value = words[name]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is no whole number from {least} to {most}")
    return value


def checked_metadata(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a trace's first block; what has no check is for people to read."""
    if any(words.get(name, 0) is None for name in _NEVER_NULL):
        raise ValueError(f"one of {', '.join(_NEVER_NULL)} is null")
    for name in _TEXTS:
        if not isinstance(words.get(name), str | None):
            raise ValueError(f"{name} is no text")
    for name, most in _NUMBERS.items():
        if words.get(name) is not None:
            whole(words, name, most)
    for name in _LISTS:
        if not isinstance(words.get(name), list | None):
            raise ValueError(f"{name} is no list")
    for tier in words.get("tiers") or ():
        _check_tier(tier)
    return dict(words)


def _check_tier(tier: object) -> None:
    """Check the nodes and the speed of a tier; a speed may be None, where firmware has none."""
    if not isinstance(tier, dict) or not isinstance(tier.get("nodes"), list):
        raise ValueError("a tier without nodes")
    if any(type(node) is not int or not 0 <= node <= _MAX_NODE for node in tier["nodes"]):
        raise ValueError("a tier of nodes that are none")
    for name, value in tier.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name != "nodes" and value is not None and not (number and 0 <= value < MOST):
            raise ValueError(f"{name} of a tier is no number")


def column(block: Block, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a column, of exactly this type."""
    found = block.columns[name]
    if found.dtype != np.dtype(dtype):
        raise ValueError(f"{name} is {found.dtype}, not {np.dtype(dtype)}")
    return found


def checked_indices(index: npt.NDArray[Any], count: int, what: str) -> npt.NDArray[Any]:
    """Return indices into ``count`` things."""
    if len(index) and int(index.max()) >= count:
        raise ValueError(f"a row of {what} that the file does not have")
    return index


def check_times(time_ns: npt.NDArray[np.uint64]) -> None:
    """Check that times are not above what a clock of 64 bits shows."""
    if len(time_ns) and int(time_ns.max()) > MOST:
        raise ValueError("a time after the year 2262")


def check_mappings(columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check that mappings are ascending, and of known kinds."""
    start, end = columns["start"], columns["end"]
    if (start >= end).any() or (start[1:] < end[:-1]).any():
        raise ValueError("mappings out of order")
    if (columns["kind"] > max(MappingKind)).any() or (columns["access"] > 15).any():
        raise ValueError("mappings of no known kind")


def check_placement(
    start: npt.NDArray[np.uint64], pages: npt.NDArray[np.uint32], node: npt.NDArray[np.int16]
) -> None:
    """Check that runs of pages lie in an address space, on nodes, and are not too many."""
    if int(pages.sum(dtype=np.uint64)) > MAX_PAGES:
        raise ValueError(f"a placement of more than {MAX_PAGES} pages")
    end = start + pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
    if (start % np.uint64(PAGE_BYTES)).any() or (end > _MAX_ADDRESS).any() or (end < start).any():
        raise ValueError("pages at no address")
    if ((node < -1) | (node > _MAX_NODE)).any():
        raise ValueError("pages on no node")
