"""Programs made of parts of recorded programs, so that no recording can be learnt by heart.

Takes parts of miss recordings, gives one recording that runs them one after another: phases of
different programs or, with short parts in turn, several programs that share a CPU. Pages of a
recording are the same pages in all of its parts; those of two recordings are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.miss_stream import MissFlag, MissStream
from hmd.errors import UsageError

# Address space of one recording; user space has 2**47 bytes.
_APART: Final = np.uint64(1 << 47)
_NO_LOAD: Final = np.uint8(
    MissFlag.STORE | MissFlag.HALT | MissFlag.WRITE_BACK | MissFlag.COVERED | MissFlag.TABLE
)


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Rows ``begin`` to ``end`` of a recording."""

    stream: MissStream
    begin: int
    end: int


def in_turns(parts: Sequence[StreamPart], turn: int) -> list[StreamPart]:
    """Return the parts cut into turns of at most ``turn`` rows, one of each part after another."""
    cut = [
        [
            StreamPart(part.stream, begin, min(begin + turn, part.end))
            for begin in range(part.begin, part.end, turn)
        ]
        for part in parts
    ]
    most = max(map(len, cut), default=0)
    return [turns[number] for number in range(most) for turns in cut if number < len(turns)]


def stitched(parts: Sequence[StreamPart]) -> MissStream:
    """Return a recording of all parts in order; UsageError for a program of several CPUs."""
    if any(part.stream.threads is not None for part in parts):
        raise UsageError("programs of several CPUs cannot be stitched: record them on one CPU")
    streams: list[MissStream] = []
    owner = [_position(streams, part.stream) for part in parts]
    used, number = _numbering(streams, parts, owner)
    instructions, passed = [], np.uint64(0)
    for part in parts:
        rows = part.stream.instructions[part.begin : part.end]
        before = part.stream.instructions[part.begin - 1] if part.begin else np.uint64(0)
        instructions.append(rows - before + passed)
        passed = instructions[-1][-1] if len(rows) else passed
    spans = [slice(part.begin, part.end) for part in parts]
    whole = [part.stream for part in parts]
    return MissStream(
        instructions=np.concatenate(instructions),
        paid_hits=np.concatenate([s.paid_hits[at] for s, at in zip(whole, spans, strict=True)]),
        near_hits=np.concatenate([s.near_hits[at] for s, at in zip(whole, spans, strict=True)]),
        page=np.concatenate(
            [number[of][s.page[at]] for of, s, at in zip(owner, whole, spans, strict=True)]
        ),
        line=np.concatenate([s.line[at] for s, at in zip(whole, spans, strict=True)]),
        flags=np.concatenate([s.flags[at] for s, at in zip(whole, spans, strict=True)]),
        depends=np.concatenate([_depends(part) for part in parts]),
        page_address=np.concatenate([addresses for addresses, _ in used]),
        user_pages=sum(len(addresses) for addresses, user in used if user),
    )


def _numbering(
    streams: Sequence[MissStream], parts: Sequence[StreamPart], owner: Sequence[int]
) -> tuple[list[tuple[npt.NDArray[np.uint64], bool]], list[npt.NDArray[np.uint32]]]:
    """Return the addresses of the pages that parts use, and the new number of each page by stream.

    Addresses are in runs of one stream's pages, all those of users first.
    """
    seen = [np.zeros(stream.pages, np.bool_) for stream in streams]
    for part, of in zip(parts, owner, strict=True):
        seen[of][part.stream.page[part.begin : part.end]] = True
    number = [np.zeros(stream.pages, np.uint32) for stream in streams]
    used: list[tuple[npt.NDArray[np.uint64], bool]] = []
    count = 0
    for user in (True, False):
        for of, stream in enumerate(streams):
            own = np.arange(stream.pages) < stream.user_pages
            pages = np.flatnonzero(seen[of] & (own == user))
            number[of][pages] = count + np.arange(len(pages))
            count += len(pages)
            used.append((stream.page_address[pages] + np.uint64(of) * _APART, user))
    return used, number


def _depends(part: StreamPart) -> npt.NDArray[np.uint16]:
    """Return the distances to the loads of addresses, 0 where these are before the part."""
    rows = slice(part.begin, part.end)
    load = (part.stream.flags[rows] & _NO_LOAD) == 0
    before = np.cumsum(load) - load
    depends = part.stream.depends[rows]
    return np.where(depends <= before, depends, np.uint16(0))


def _position(streams: list[MissStream], stream: MissStream) -> int:
    """Return the position of a stream in the list, added if it is new."""
    for at, known in enumerate(streams):
        if known is stream:
            return at
    streams.append(stream)
    return len(streams) - 1
