# SPDX-License-Identifier: MIT
"""Hardware events that sample memory accesses on this machine.

From sysfs and /proc/cpuinfo; gives ``EventSpec``s, one per kind of access and kind of core, or
one line with the reason why there are none. Nothing is opened here. The kernel's event names in
sysfs (``PmuDevice``) come first, raw encodings (``cpu_models``) where they are missing.

- Intel PEBS counts loads that miss the last-level cache, which the kernel never names: of these, a
  sample stands for as many as its period. Loads by latency (``mem-loads`` with a threshold) are
  those of a few that the core tags at random while no other is (Intel SDM, volume 3, "Load latency
  performance monitoring"), so that a sample stands for the period times an unknown number. They are
  the choice of cores without the former (Crestmont and later small cores), and of who wants
  latencies. From Sapphire Rapids and Alder Lake on, load latency needs ``mem-loads-aux`` as group
  leader, else the kernel answers ENODATA (61b985e3e775); sysfs names that event where it is needed.
  Hybrid parts have a PMU per kind of core.
- AMD IBS: one op per period is tagged; the kernel puts its address, latency and kind into
  the sample (from Linux 6.1). Only L3 misses where the CPU can (Zen 4). It cannot leave out kernel
  mode unless it has ``swfilt``, by which the kernel discards samples (d29e744c7167), and refuses
  the exclude bits otherwise.
- ARM SPE is no such event: ``hmd.sample.spe``.

Some cores also have an event for loads from CXL or persistent memory of their own socket alone
(MEM_LOAD_RETIRED.LOCAL_CXL_MEM, LOCAL_PMM). hmd needs what is accessed on fast memory, too: the
node of an access is that of its page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.base.errors import MissingError
from hmd.linux.procfs import PROC, SYSFS, parse_ids, read_int, read_text
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_models import CpuModel, RawEvent, RawEvents, find_raw_events, read_cpu_model
from hmd.sample.periods import STORE_PERIOD_RATIO, scaled_period
from hmd.sample.sampler import SampleSettings

IBS_PERIOD_RATIO: Final = 16
"""IBS counts ops in units of 16: the kernel refuses other periods (perf_ibs_init)."""
IBS_OPS_RATIO: Final = 64
"""How much longer the period is where all ops are tagged, not those alone that miss the L3: a core
retires some 10⁹ per second, and a record of any takes some 4 µs, whatever it shows."""

_AMD_VENDORS: Final = ("AuthenticAMD", "HygonGenuine")
_KINDS_OF_CORES: Final = ("cpu_core", "cpu_atom", "cpu_lowpower")

_FORMAT: Final = re.compile(r"(config[123]?):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_WORDS: Final = ("config", "config1", "config2")
_EVENT_SUFFIXES: Final = (".scale", ".unit", ".per-pkg", ".snapshot")


@dataclass(frozen=True, slots=True)
class Field:
    """Bit ranges of one word that a term's value fills, its lowest bits in the first range."""

    word: str
    bits: tuple[tuple[int, int], ...]

    def encode(self, value: int) -> int:
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
                words[field.word] |= field.encode(value)
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
    """Return the terms of an event such as ``event=0xcd,umask=0x1,ldlat=3``; a bare name is 1.

    MissingError where a value is no number, as of those that the user must give (``ldlat=?``).
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
    events = {
        n: text for n, text in _read_all(folder / "events") if not n.endswith(_EVENT_SUFFIXES)
    }
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


def event_period(kind: Kind, period: int, ratio: int) -> int:
    """Return the period of an event, some ``ratio`` times that of the sampler.

    Of stores it is a prime (``scaled_period``). IBS, whose kind is that of loads, takes multiples
    of ``IBS_PERIOD_RATIO`` only, and varies them itself.
    """
    return scaled_period(period, ratio) if kind is Kind.STORE else period * ratio


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event to open on each of ``cpus`` (None: all).

    ``precise`` are values of precise_ip to try, best first; empty where the PMU takes none.
    ``leader`` is counted with it as the group leader. ``period_ratio`` multiplies the sampler's
    period. ``twice``: two counters of a CPU can count it at once. ``latency``: its samples measure
    it (WEIGHT). ``can_exclude_kernel``: it can leave out kernel mode.
    """

    name: str
    kind: Kind
    type: int
    words: Words
    precise: tuple[int, ...]
    can_exclude_kernel: bool
    exclude_guest: bool
    cpus: tuple[int, ...] | None
    leader: Words | None = None
    period_ratio: int = 1
    twice: bool = False
    latency: bool = False


def choose_events(
    settings: SampleSettings, sysfs: Path = SYSFS, proc: Path = PROC
) -> tuple[EventSpec, ...]:
    """Return the events that sample accesses; raises MissingError if there are none."""
    names = device_names(sysfs)
    cpu = read_cpu_model(proc, sysfs)
    if cpu.vendor in _AMD_VENDORS:
        return (_ibs(sysfs),)
    cores = [name for name in names if name in _KINDS_OF_CORES]
    if cores or (cpu.vendor == "GenuineIntel" and "cpu" in names):
        return _intel(settings, cores or ["cpu"], cpu, sysfs)
    if any(name.startswith("arm_spe") for name in names):
        raise MissingError("this CPU samples by ARM SPE: set sampler to spe, or to auto")
    raise MissingError(
        "no PMU that samples memory accesses (PEBS, IBS): in a virtual machine, ask for a "
        "virtual PMU with PEBS; damon and faults need none"
    )


def _intel(
    settings: SampleSettings, names: list[str], cpu: CpuModel, sysfs: Path
) -> tuple[EventSpec, ...]:
    specs: list[EventSpec] = []
    for device in (read_device(name, sysfs) for name in names):
        if device is None:
            continue
        if device.max_precise < 1:
            raise MissingError(
                f"PMU {device.name} has no PEBS here, so that samples have no addresses: in a "
                "virtual machine, ask for a virtual PMU with PEBS; damon and faults need none"
            )
        raw = find_raw_events(cpu, device.name)
        specs.append(_loads(settings, device, raw))
        if settings.stores and (stores := _stores(device, raw)):
            specs.append(stores)
    return tuple(specs)


def _loads(settings: SampleSettings, device: PmuDevice, raw: RawEvents) -> EventSpec:
    choice = settings.loads
    if choice == "auto":
        choice = "miss" if raw.load_miss else "latency"
    if choice == "miss":
        return _from_table(Kind.LOAD, device, raw.load_miss, "set sample.loads to latency")
    name = f"{device.name}/mem-loads,ldlat={settings.ldlat_cycles}/"
    if "mem-loads" in device.events:
        terms = parse_terms(device.events["mem-loads"]) | {"ldlat": settings.ldlat_cycles}
        aux = device.events.get("mem-loads-aux")
        leader = device.encode(parse_terms(aux)) if aux else None
        words = device.encode(terms)
        return _pebs(name, Kind.LOAD, device, words, leader=leader, latency=True)
    otherwise = "set sample.loads to miss" if raw.load_miss else "set sampler to damon"
    event = _require(Kind.LOAD, device, raw.load_latency, otherwise)
    leader = Words(raw.leader.config) if raw.leader else None
    words = Words(event.config, settings.ldlat_cycles)
    return _pebs(name, Kind.LOAD, device, words, leader=leader, latency=True)


def _stores(device: PmuDevice, raw: RawEvents) -> EventSpec | None:
    name = f"{device.name}/mem-stores/"
    if "mem-stores" in device.events:
        words = device.encode(parse_terms(device.events["mem-stores"]))
        return _pebs(name, Kind.STORE, device, words)
    return _from_table(Kind.STORE, device, raw.stores, "") if raw.stores else None


def _from_table(kind: Kind, device: PmuDevice, event: RawEvent | None, otherwise: str) -> EventSpec:
    event = _require(kind, device, event, otherwise)
    name = f"{device.name}/{event.name}/"
    return _pebs(name, kind, device, Words(event.config))


def _require(kind: Kind, device: PmuDevice, event: RawEvent | None, otherwise: str) -> RawEvent:
    if event is None:
        raise MissingError(
            f"PMU {device.name} has no such event of {kind.name.lower()}s with addresses that the "
            f"kernel names or hmd knows for this CPU model: {otherwise}"
        )
    return event


def _pebs(
    name: str,
    kind: Kind,
    device: PmuDevice,
    words: Words,
    *,
    leader: Words | None = None,
    latency: bool = False,
) -> EventSpec:
    return EventSpec(
        name=name,
        kind=kind,
        type=device.type,
        words=words,
        # 3 asks for an exact distribution of instructions, which memory events refuse on some
        # parts (EINVAL for load latency on Sapphire Rapids) and gain nothing from on any.
        precise=tuple(level for level in (2, 1) if level <= device.max_precise),
        can_exclude_kernel=True,
        exclude_guest=True,
        cpus=device.cpus,
        leader=leader,
        period_ratio=STORE_PERIOD_RATIO if kind is Kind.STORE else 1,
        # Intel's event files: load latency is to be taken alone.
        twice=kind is Kind.LOAD and not latency,
        latency=latency,
    )


def _ibs(sysfs: Path) -> EventSpec:
    device = read_device("ibs_op", sysfs)
    if device is None:
        raise MissingError(
            "this AMD CPU shows no IBS (ibs_op): enable IBS in the firmware; damon and faults need "
            "none"
        )
    # cnt_ctl counts ops instead of cycles, so that slow ops are not sampled the more. A CPU follows
    # one op at a time: there is no second counter.
    wanted = ("cnt_ctl", "l3missonly", "swfilt")
    terms = {name: 1 for name in wanted if name in device.formats}
    return EventSpec(
        name=f"ibs_op/{','.join(terms)}/",
        # The sample itself says whether it was a load or a store.
        kind=Kind.LOAD,
        type=device.type,
        words=device.encode(terms),
        precise=(),
        can_exclude_kernel="swfilt" in terms,
        exclude_guest=False,  # refused (EINVAL); the ring's reader drops samples of guests
        cpus=device.cpus,
        period_ratio=IBS_PERIOD_RATIO * (1 if "l3missonly" in terms else IBS_OPS_RATIO),
        latency=True,
    )
