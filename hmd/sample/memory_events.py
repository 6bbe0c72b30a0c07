"""Hardware events that sample memory accesses on this machine.

Takes sysfs and /proc/cpuinfo; gives ``EventSpec``s, one per kind of access and kind of core, or
one line with the reason why there are none. Nothing is opened here. The kernel's event names come
first, then raw encodings (``cpu_model``).

- Intel PEBS: loads by latency (``mem-loads`` with a threshold) or by L3 miss; ``mem-stores``. From
  Sapphire Rapids and Alder Lake on, load latency needs ``mem-loads-aux`` as group leader, else the
  kernel answers ENODATA (61b985e3e775 "perf/x86/intel: Add perf core PMU support for Sapphire
  Rapids"); sysfs names that event where it is needed. Hybrid parts have a PMU per kind of core.
- AMD IBS: one op per period is tagged; the kernel puts its address, latency and kind into
  the sample (from Linux 6.1; older ones leave the address 0). Only L3 misses where the CPU can
  (Zen 4). It cannot leave out kernel mode unless it has ``swfilt``, and refuses the exclude bits.
- ARM SPE writes packets into an AUX area, which hmd does not decode.

No core event identifies CXL or persistent memory reliably, so the node of an access is that of its
page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hmd.errors import MissingError
from hmd.machine.process_id import PROC
from hmd.sample.access_batch import Kind
from hmd.sample.cpu_model import CpuModel, RawEvents, raw_events, read_cpu_model
from hmd.sample.period_control import scaled
from hmd.sample.pmu_device import PmuDevice, Words, device_names, parse_terms, read_device

STORE_SCALE = 64
"""Factor by which stores are sampled more rarely than loads: a store event also counts hits of the
first-level cache, a load event only slow loads."""
IBS_SCALE = 16
"""IBS counts ops in units of 16: the kernel refuses other periods (perf_ibs_init)."""

_AMD = ("AuthenticAMD", "HygonGenuine")


def event_period(kind: Kind, period: int, scale: int) -> int:
    """Return the period of an event, some ``scale`` times that of the sampler.

    Of stores it is a prime (:func:`hmd.sample.period_control.scaled`). IBS, whose kind is that of
    loads, takes multiples of ``IBS_SCALE`` only, and varies them itself.
    """
    return scaled(period, scale) if kind is Kind.STORE else period * scale


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Accesses to sample. ``loads``: those slower than ``ldlat_cycles``, or L3 misses."""

    loads: Literal["latency", "miss"] = "latency"
    ldlat_cycles: int = 30
    stores: bool = True


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event to open on each of ``cpus`` (None: all).

    ``precise`` are values of precise_ip to try, best first; empty where the PMU takes none.
    ``leader`` is counted with it as the group leader. ``period_scale`` multiplies the sampler's
    period. ``twice``: two counters of a CPU can count it at once. ``source`` is "sysfs" or "table".
    """

    name: str
    kind: Kind
    type: int
    words: Words
    precise: tuple[int, ...]
    exclude_kernel: bool
    cpus: tuple[int, ...] | None
    leader: Words | None = None
    period_scale: int = 1
    twice: bool = False
    source: Literal["sysfs", "table"] = "sysfs"


def choose_events(
    choice: EventChoice, sysfs: Path = Path("/sys"), proc: Path = PROC
) -> tuple[EventSpec, ...]:
    """Return the events that sample accesses; raises MissingError if there are none."""
    names = device_names(sysfs)
    cpu = read_cpu_model(proc)
    if cpu.vendor in _AMD:
        return (_ibs(sysfs),)
    cores = [name for name in names if name in ("cpu_core", "cpu_atom", "cpu_lowpower")]
    if cores or (cpu.vendor == "GenuineIntel" and "cpu" in names):
        return _intel(choice, cores or ["cpu"], cpu, sysfs)
    if any(name.startswith("arm_spe") for name in names):
        raise MissingError(
            "ARM SPE is present, but hmd does not decode its packets: set sampler to faults"
        )
    raise MissingError(
        "no PMU that samples memory accesses (PEBS, IBS): in a virtual machine, ask for a "
        "virtual PMU with PEBS, or set sampler to faults"
    )


def _intel(
    choice: EventChoice, names: list[str], cpu: CpuModel, sysfs: Path
) -> tuple[EventSpec, ...]:
    specs: list[EventSpec] = []
    for device in (read_device(name, sysfs) for name in names):
        if device is None:
            continue
        if device.max_precise < 1:
            raise MissingError(
                f"PMU {device.name} has no PEBS here, so that samples have no addresses: in a "
                "virtual machine, ask for a virtual PMU with PEBS, or set sampler to faults"
            )
        raw = raw_events(cpu, device.name)
        if choice.loads == "latency":
            specs.append(_loads_by_latency(choice, device, raw))
        else:
            specs.append(_loads_by_miss(device, raw))
        if choice.stores:
            specs.append(_stores(device, raw))
    return tuple(specs)


def _loads_by_latency(choice: EventChoice, device: PmuDevice, raw: RawEvents | None) -> EventSpec:
    name = f"{device.name}/mem-loads,ldlat={choice.ldlat_cycles}/"
    if "mem-loads" in device.events:
        terms = parse_terms(device.events["mem-loads"]) | {"ldlat": choice.ldlat_cycles}
        aux = device.events.get("mem-loads-aux")
        leader = device.encode(parse_terms(aux)) if aux else None
        return _pebs(name, Kind.LOAD, device, device.encode(terms), leader=leader)
    raw = _in_table(device, raw)
    leader = Words(raw.loads_aux) if raw.loads_aux is not None else None
    words = Words(raw.load_latency, choice.ldlat_cycles)
    return _pebs(name, Kind.LOAD, device, words, leader=leader, source="table")


def _loads_by_miss(device: PmuDevice, raw: RawEvents | None) -> EventSpec:
    words = Words(_in_table(device, raw).load_miss)
    name = f"{device.name}/config={words.config:#x}/"
    return _pebs(name, Kind.LOAD, device, words, source="table")


def _stores(device: PmuDevice, raw: RawEvents | None) -> EventSpec:
    name = f"{device.name}/mem-stores/"
    if "mem-stores" in device.events:
        words = device.encode(parse_terms(device.events["mem-stores"]))
        return _pebs(name, Kind.STORE, device, words)
    return _pebs(name, Kind.STORE, device, Words(_in_table(device, raw).stores), source="table")


def _in_table(device: PmuDevice, raw: RawEvents | None) -> RawEvents:
    if raw is None:
        raise MissingError(
            f"the kernel names no memory events for PMU {device.name} and hmd has none for this "
            "CPU model: set sampler to faults"
        )
    return raw


def _pebs(
    name: str,
    kind: Kind,
    device: PmuDevice,
    words: Words,
    *,
    leader: Words | None = None,
    source: Literal["sysfs", "table"] = "sysfs",
) -> EventSpec:
    return EventSpec(
        name=name,
        kind=kind,
        type=device.type,
        words=words,
        # 3 asks for an exact distribution of instructions, which memory events refuse on some
        # parts (EINVAL for load latency on Sapphire Rapids) and gain nothing from on any.
        precise=tuple(level for level in (2, 1) if level <= device.max_precise),
        exclude_kernel=True,
        cpus=device.cpus,
        leader=leader,
        period_scale=STORE_SCALE if kind is Kind.STORE else 1,
        twice=kind is Kind.LOAD,
        source=source,
    )


def _ibs(sysfs: Path) -> EventSpec:
    device = read_device("ibs_op", sysfs)
    if device is None:
        raise MissingError(
            "this AMD CPU shows no IBS (ibs_op): enable IBS in the firmware, or, in a virtual "
            "machine without it, set sampler to faults"
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
        exclude_kernel="swfilt" in terms,
        cpus=device.cpus,
        period_scale=IBS_SCALE,
    )
