"""What the samples of a tick count for at some rows of a view, without a look at all others.

Takes the batch of a tick with the weights of its samples, and rows that are asked for; gives the
weight that each row had, and that of each process. The rows are in a hash of their own, which the
cache holds: samples of other rows are passed over without a search in the table. Costs about 5 ns
per sample and 30 ns per row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hmd.heat.geometry import CHUNK_BYTES
from hmd.heat.kernels import (
    Bools,
    Float32s,
    Float64s,
    Int32s,
    Int32View,
    Int64s,
    Uint64s,
    Uint64View,
    inline,
    kernel,
)
from hmd.units import PAGE_BYTES

_PAGE_SHIFT: Final = np.uint64(PAGE_BYTES.bit_length() - 1)
_CHUNK_MASK: Final = np.uint64(CHUNK_BYTES - 1)
# A key has a bit for rows of whole chunks, 44 bits of a page number, and the process.
_PAGE_BITS: Final = 44
_ADDRESS_BITS: Final = np.uint64(56)
_EMPTY: Final = -1
# Fibonacci hashing (Knuth, TAOCP 3, 6.4): 2**64 over the golden ratio.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class AskedRows(NamedTuple):
    """Rows that are asked for; shape ``(k,)``.

    ``process`` is a slot, below 0 of a row that is to be passed over; ``address`` that of its first
    byte; a row that is ``whole`` has all samples of its chunk of 2 MiB.
    """

    process: Int32s
    address: Uint64s
    whole: Bools


@inline
def _key(slot: np.int64, address: np.uint64, whole: bool) -> np.int64:
    """Return the key of a page, or of a chunk."""
    first = address & ~_CHUNK_MASK if whole else address
    page = np.int64(first >> _PAGE_SHIFT)
    return (((slot << _PAGE_BITS) | page) << 1) | np.int64(whole)


@inline
def _find(keys: Int64s, key: np.int64) -> int:
    """Return the position of ``key``, or the free position where it belongs."""
    mask = len(keys) - 1
    high = (np.uint64(key) * _GOLDEN) >> np.uint64(32)
    position = np.int64((high * np.uint64(len(keys))) >> np.uint64(32))
    while keys[position] != key and keys[position] != _EMPTY:
        position = (position + 1) & mask
    return int(position)


@kernel
def weigh_rows(
    process: Int32View,
    address: Uint64View,
    weight: Float32s,
    rows: AskedRows,
    totals: Float64s,
    had: Float64s,
) -> None:
    """Fill ``had``, shape ``(k,)``, and add to ``totals``, shape ``(processes,)``.

    ``process``, ``address`` and ``weight`` are of samples. A row may be asked for several times.
    """
    size = 64
    while size < 2 * len(had):
        size *= 2
    keys, sums = np.full(size, _EMPTY, np.int64), np.zeros(size, np.float64)
    for row in range(len(had)):
        if rows.process[row] >= 0:
            slot = np.int64(rows.process[row])
            key = _key(slot, rows.address[row], rows.whole[row])
            keys[_find(keys, key)] = key
    for i in range(len(weight)):
        slot = np.int64(process[i])
        if slot < 0 or slot >= len(totals):
            continue
        totals[slot] += weight[i]
        if address[i] >> _ADDRESS_BITS:
            continue
        page = _find(keys, _key(slot, address[i], False))
        if keys[page] != _EMPTY:
            sums[page] += weight[i]
        chunk = _find(keys, _key(slot, address[i], True))
        if keys[chunk] != _EMPTY:
            sums[chunk] += weight[i]
    for row in range(len(had)):
        had[row] = 0.0
        if rows.process[row] >= 0:
            slot = np.int64(rows.process[row])
            had[row] = sums[_find(keys, _key(slot, rows.address[row], rows.whole[row]))]
