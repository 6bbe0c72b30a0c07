# SPDX-License-Identifier: MIT
"""A profile: which parts of a program's memory its former runs accessed, phase by phase.

Objects (:mod:`hmd.profiles.objects`) have blocks of equal size; the samples that fell on each block
are counted by phase, an equal part of a run's time. Counts rather than rates, because they also say
how certain a rate is. A file has a count in 8 bits, by logarithm in steps of an eighth of an
octave, so that a profile takes at most ``MAX_BYTES``, and a checksum. Whatever is read is checked
in full: a file that was damaged or made up is refused, in one line.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError
from hmd.linux.mappings import MappingKind
from hmd.profiles.objects import MAX_OBJECTS, NAME_BYTES, ObjectKey

VERSION: Final = 3
MAX_BYTES: Final = 256 << 10
MAX_BLOCKS: Final = 2048
MAX_PHASES: Final = 64

_MAGIC: Final = b"hmd-prof"
# Magic, version, objects, blocks, phases, runs, seconds, seconds saved, accesses.
_HEADER: Final = struct.Struct("<8sIIIIdddd")
_CHECKSUM: Final = struct.Struct("<I")
_OBJECT: Final = np.dtype(
    [("kind", "u1"), ("name", f"S{NAME_BYTES}"), ("size_bytes", "<f8"), ("blocks", "<u4")]
)
# Levels of a count: 0 is none, 1 the least, and each one more is an eighth of an octave.
_STEPS: Final = 8.0
_LEAST_OCTAVE: Final = -4.0
# Longest address space and run that a profile may speak of.
_MOST_BYTES: Final = float(1 << 57)
_MOST_SECONDS: Final = 1e9

Counts = npt.NDArray[np.float32]


class ProfileObject(NamedTuple):
    """An object: its key, its size in its last run, and the number of its blocks."""

    key: ObjectKey
    size_bytes: float
    blocks: int


class ObjectSummary(NamedTuple):
    """An object for people: ``by_block`` has shares of all accesses, shape ``(blocks,)``."""

    kind: str
    name: str
    size_bytes: float
    share: float
    by_block: npt.NDArray[np.float64]
    by_phase: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a program.

    ``counts``, shape ``(phases, blocks)``, are samples, of objects one after the other. ``runs``
    counts the runs behind it, older ones less; ``seconds`` is how long a run takes, ``saved_s``
    what moves by the profile have saved, less what they cost, older ones less, ``accesses`` how
    many a run makes as samples count them: how much it uses memory, whatever its clock says.
    """

    objects: tuple[ProfileObject, ...]
    counts: Counts
    runs: float
    seconds: float
    saved_s: float = 0.0
    accesses: float = 0.0

    @property
    def first_block(self) -> npt.NDArray[np.int64]:
        """The first block of each object, and the number of all, shape ``(objects + 1,)``."""
        return np.concatenate([[0], np.cumsum([one.blocks for one in self.objects])]).astype(
            np.int64
        )

    @property
    def sides(self) -> tuple[tuple[ObjectKey, ...], npt.NDArray[np.float64]]:
        """Keys and sizes of the objects, as :func:`hmd.profiles.objects.match` takes them."""
        return tuple(one.key for one in self.objects), np.array(
            [one.size_bytes for one in self.objects]
        )

    def to_bytes(self) -> bytes:
        """Return the file's content, at most ``MAX_BYTES``."""
        phases, blocks = self.counts.shape
        table = np.array(
            [(key.kind, key.name.encode(), *rest) for key, *rest in self.objects], _OBJECT
        )
        spent = self.runs, self.seconds, self.saved_s, self.accesses
        header = _HEADER.pack(_MAGIC, VERSION, len(table), blocks, phases, *spent)
        body = header + table.tobytes() + _levels(self.counts).tobytes()
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Profile:
        """Return the profile of a file; HmdError, with its ``name``, if it is not sound."""
        try:
            return cls._checked(data)
        except (ValueError, struct.error) as error:
            raise HmdError(f"{name} is no usable profile ({error})") from None

    @classmethod
    def _checked(cls, data: bytes) -> Profile:
        if not _HEADER.size + _CHECKSUM.size <= len(data) <= MAX_BYTES:
            raise ValueError(f"{len(data)} bytes")
        magic, version, objects, blocks, phases, *spent = _HEADER.unpack_from(data)
        runs, seconds, saved_s, accesses = spent
        if magic != _MAGIC:
            raise ValueError("another kind of file")
        if version != VERSION:
            raise ValueError(f"version {version}, and this hmd reads {VERSION}")
        at = _HEADER.size + objects * _OBJECT.itemsize
        if len(data) != at + blocks * phases + _CHECKSUM.size:
            raise ValueError("cut off, or longer than it says")
        if _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0] != zlib.crc32(
            data[: -_CHECKSUM.size]
        ):
            raise ValueError("the checksum differs")
        table = np.frombuffer(data, _OBJECT, objects, _HEADER.size)
        limits: Sequence[tuple[bool, Any]] = (
            (1 <= objects <= MAX_OBJECTS, "objects"),
            (1 <= blocks <= MAX_BLOCKS, "blocks"),
            (1 <= phases <= MAX_PHASES, "phases"),
            (0.0 < runs <= _MOST_SECONDS and 0.0 <= seconds <= _MOST_SECONDS, "runs"),
            (abs(saved_s) <= _MOST_SECONDS and 0.0 <= accesses <= 1e9 * _MOST_SECONDS, "savings"),
            (int(table["blocks"].astype(np.int64).sum()) == blocks, "blocks of objects"),
            (bool((table["blocks"] >= 1).all()), "blocks of an object"),
            (bool((table["kind"] <= max(MappingKind)).all()), "kinds"),
            (
                bool(((table["size_bytes"] > 0) & (table["size_bytes"] < _MOST_BYTES)).all()),
                "sizes",
            ),
        )
        for sound, what in limits:
            if not sound:
                raise ValueError(f"{what} out of bounds")
        found = tuple(
            ProfileObject(
                ObjectKey(int(one["kind"]), bytes(one["name"]).decode(errors="replace")),
                float(one["size_bytes"]), int(one["blocks"]),
            )
            for one in table
        )  # fmt: skip
        levels = np.frombuffer(data, np.uint8, blocks * phases, at).reshape(phases, blocks)
        return cls(found, _counts(levels), runs, seconds, saved_s, accesses)


def summary(profile: Profile) -> list[ObjectSummary]:
    """Return the objects with their shares of all accesses, by block and by phase."""
    share = profile.counts.astype(np.float64) / max(float(profile.counts.sum()), 1e-9)
    first = profile.first_block
    parts = [share[:, begin:end] for begin, end in pairwise(first.tolist())]
    return [
        ObjectSummary(
            MappingKind(one.key.kind).name.lower(), one.key.name, one.size_bytes,
            float(part.sum()), part.sum(axis=0), part.sum(axis=1),
        )
        for one, part in zip(profile.objects, parts, strict=True)
    ]  # fmt: skip


def _levels(counts: Counts) -> npt.NDArray[np.uint8]:
    """Return counts as levels."""
    with np.errstate(divide="ignore"):
        level = np.round((np.log2(counts) - _LEAST_OCTAVE) * _STEPS) + 1
    return np.clip(level, 0, 255).astype(np.uint8)


def _counts(levels: npt.NDArray[np.uint8]) -> Counts:
    """Return the counts of levels."""
    count = np.exp2((levels.astype(np.float32) - 1) / _STEPS + _LEAST_OCTAVE)
    return np.where(levels > 0, count, 0.0).astype(np.float32)
