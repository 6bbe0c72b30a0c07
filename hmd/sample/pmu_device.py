"""Description of a PMU in sysfs: its type, named events, formats, capabilities, CPUs.

Takes /sys/bus/event_source/devices/NAME; gives a ``PmuDevice`` that turns terms such as
``event=0xcd,umask=0x1,ldlat=3`` into the config words of struct perf_event_attr, as its
``format`` files say (Documentation/ABI/testing/sysfs-bus-event_source-devices-format). Read once
at start; about 30 small files per device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hmd.errors import MissingError
from hmd.machine.procfs import parse_ids, read_int, read_text

_FORMAT = re.compile(r"(config[123]?):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_WORDS = ("config", "config1", "config2")
_SUFFIXES = (".scale", ".unit", ".per-pkg", ".snapshot")


@dataclass(frozen=True, slots=True)
class Field:
    """Bit ranges of one word that a term's value fills, its lowest bits in the first range."""

    word: str
    bits: tuple[tuple[int, int], ...]

    def place(self, value: int) -> int:
        """Return the word with ``value`` in its bits; ValueError where it does not fit."""
        word = 0
        for first, last in self.bits:
            width = last - first + 1
            word |= (value & ((1 << width) - 1)) << first
            value >>= width
        if value:
            raise ValueError("value has more bits than its format")
        return word


@dataclass(frozen=True, slots=True)
class Words:
    """The config words of struct perf_event_attr."""

    config: int = 0
    config1: int = 0
    config2: int = 0


@dataclass(frozen=True, slots=True)
class PmuDevice:
    """One PMU. ``cpus`` is None where sysfs names none, which means all."""

    name: str
    type: int
    formats: Mapping[str, Field]
    events: Mapping[str, str]
    caps: Mapping[str, str]
    cpus: tuple[int, ...] | None

    def encode(self, terms: Mapping[str, int]) -> Words:
        """Return the config words of these terms; MissingError where the PMU cannot say them."""
        words = dict.fromkeys(_WORDS, 0)
        for name, value in terms.items():
            field = self.formats.get(name)
            if field is None or field.word not in words:
                raise MissingError(f"PMU {self.name} has no format for {name}")
            try:
                words[field.word] |= field.place(value)
            except ValueError as error:
                raise MissingError(f"PMU {self.name}: {name}={value:#x}: {error}") from None
        return Words(**words)

    @property
    def max_precise(self) -> int:
        """The highest precise_ip that the PMU grants; 3 where it does not say."""
        text = self.caps.get("max_precise", "")
        return int(text) if text.isdigit() else 3


def parse_field(text: str) -> Field | None:
    """Return the field of a format such as ``config:0-7,21``; None where it is none."""
    match = _FORMAT.fullmatch(text.strip())
    if not match:
        return None
    bits = []
    for part in match.group(2).split(","):
        first, _, last = part.partition("-")
        bits.append((int(first), int(last or first)))
    if any(last > 63 or first > last for first, last in bits):
        return None
    return Field(match.group(1), tuple(bits))


def parse_terms(text: str) -> dict[str, int]:
    """Return the terms of an event such as ``event=0xcd,umask=0x1,ldlat=3``.

    A bare name is 1. MissingError where a value is no number, which is how sysfs marks values
    that the user must give (``ldlat=?``).
    """
    terms: dict[str, int] = {}
    for part in text.strip().split(","):
        name, equals, value = part.strip().partition("=")
        try:
            terms[name] = int(value, 0) if equals else 1
        except ValueError:
            raise MissingError(f"event term {part!r} has no value") from None
    return terms


def read_device(name: str, sysfs: Path) -> PmuDevice | None:
    """Return the PMU of that name, None where the machine has none."""
    folder = sysfs / "bus/event_source/devices" / name
    pmu_type = read_int(folder / "type")
    if pmu_type is None:
        return None
    formats = {n: field for n, text in _read_all(folder / "format") if (field := parse_field(text))}
    events = {n: text for n, text in _read_all(folder / "events") if not n.endswith(_SUFFIXES)}
    cpus = read_text(folder / "cpus")
    return PmuDevice(
        name=name,
        type=pmu_type,
        formats=formats,
        events=events,
        caps=dict(_read_all(folder / "caps")),
        cpus=None if cpus is None else parse_ids(cpus),
    )


def device_names(sysfs: Path) -> tuple[str, ...]:
    """Return the names of all PMUs, sorted."""
    folder = sysfs / "bus/event_source/devices"
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def _read_all(folder: Path) -> list[tuple[str, str]]:
    if not folder.is_dir():
        return []
    read = ((path.name, read_text(path)) for path in sorted(folder.iterdir()))
    return [(name, text.strip()) for name, text in read if text is not None]
