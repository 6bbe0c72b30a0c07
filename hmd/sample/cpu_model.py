"""CPU model: raw encodings of memory events, and the core's memory-level parallelism.

Event names in sysfs come first (``memory_events``); this table covers missing names and events
that the kernel never names, such as L3 misses. Encodings are ``event | umask << 8``, from the
event files that Intel publishes (github.com/intel/perfmon); model numbers are those of the
kernel's arch/x86/include/asm/intel-family.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hmd.machine.process_id import PROC
from hmd.machine.procfs import read_text

LOAD_LATENCY = 0x01CD  # MEM_TRANS_RETIRED.LOAD_LATENCY, threshold in config1
L3_MISS = 0x20D1  # MEM_LOAD_RETIRED.L3_MISS
ALL_STORES = 0x82D0  # MEM_INST_RETIRED.ALL_STORES
STORE_SAMPLE = 0x02CD  # MEM_TRANS_RETIRED.STORE_SAMPLE
MEM_LOADS_AUX = 0x8203  # group leader of load latency where needed
ATOM_LOAD_LATENCY = 0x05D0  # MEM_UOPS_RETIRED.LOAD_LATENCY, threshold in config1
ATOM_DRAM_HIT = 0x80D1  # MEM_LOAD_UOPS_RETIRED.DRAM_HIT
ATOM_ALL_STORES = 0x06D0  # MEM_UOPS_RETIRED.STORE_LATENCY

_GHZ = re.compile(r"@\s*([\d.]+)\s*GHz")


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The first CPU in /proc/cpuinfo; ``mhz`` is the nominal clock, 0 if unknown."""

    vendor: str
    family: int
    model: int
    mhz: float

    @property
    def ns_per_cycle(self) -> float:
        """Nanoseconds per core cycle at the nominal clock; 1 if that is unknown."""
        return 1e3 / self.mhz if self.mhz > 0 else 1.0


@dataclass(frozen=True, slots=True)
class RawEvents:
    """Raw encodings of one kind of core; None if it has no such event."""

    load_latency: int
    load_miss: int
    stores: int
    loads_aux: int | None = None


@dataclass(frozen=True, slots=True)
class Core:
    """Limits of the misses that a core can have outstanding at once.

    ``reorder_window``: entries of its reorder buffer (micro-ops, a few more than instructions);
    misses that are farther apart never overlap. ``fill_buffers``: outstanding misses of its
    first-level cache.
    """

    reorder_window: int
    fill_buffers: int


SKYLAKE_SERVER = Core(224, 12)

# Models of Intel's family 6, by core
_HASWELL_BROADWELL = (
    *(0x3C, 0x3F, 0x45, 0x46),  # Haswell
    *(0x3D, 0x47, 0x4F, 0x56),  # Broadwell
)
_SKYLAKE_SERVERS = (0x55,)  # Skylake, Cascade Lake and Cooper Lake
_SKYLAKE_CLIENTS = (
    *(0x4E, 0x5E),
    *(0x8E, 0x9E, 0xA5, 0xA6, 0x66),  # Kaby, Coffee, Comet, Cannon Lake
)
_SUNNY_COVE = (
    *(0x7D, 0x7E, 0x6A, 0x6C),  # Ice Lake
    *(0x8C, 0x8D, 0xA7),  # Tiger Lake, Rocket Lake
)
_GOLDEN_COVE = (
    *(0x8F, 0xCF),  # Sapphire Rapids, Emerald Rapids
    *(0x97, 0x9A, 0xB7, 0xBA, 0xBF),  # big cores of Alder Lake and Raptor Lake
)
_REDWOOD_COVE = (0xAD, 0xAE, 0xAA, 0xAC)  # Granite Rapids, big cores of Meteor Lake
_GRACEMONT = (0xBE, 0xAF, 0xB6)  # Alder Lake-N, Sierra Forest, Grand Ridge

_GRACEMONT_EVENTS = RawEvents(ATOM_LOAD_LATENCY, ATOM_DRAM_HIT, ATOM_ALL_STORES)
_INTEL_6: dict[RawEvents, tuple[int, ...]] = {
    RawEvents(LOAD_LATENCY, L3_MISS, ALL_STORES): (
        *_HASWELL_BROADWELL,
        *_SKYLAKE_SERVERS,
        *_SKYLAKE_CLIENTS,
        *_SUNNY_COVE,
    ),
    RawEvents(LOAD_LATENCY, L3_MISS, STORE_SAMPLE, MEM_LOADS_AUX): _GOLDEN_COVE,
    RawEvents(LOAD_LATENCY, L3_MISS, STORE_SAMPLE): _REDWOOD_COVE,
    _GRACEMONT_EVENTS: _GRACEMONT,
}

# Reorder buffer and line fill buffers. Intel 64 and IA-32 Architectures Optimization Reference
# Manual, the chapters of each core; of Redwood Cove and the small cores: WikiChip.
_INTEL_CORES: dict[Core, tuple[int, ...]] = {
    Core(192, 10): _HASWELL_BROADWELL,
    SKYLAKE_SERVER: _SKYLAKE_SERVERS,
    Core(224, 10): _SKYLAKE_CLIENTS,
    Core(352, 12): _SUNNY_COVE,
    Core(512, 16): (*_GOLDEN_COVE, *_REDWOOD_COVE),
    Core(256, 16): _GRACEMONT,
}

# Retire queue and miss address buffers, by family and models. AMD's Software Optimization Guides
# for families 17h (models 00h-2Fh; 30h and greater), 19h (of Zen 4: WikiChip) and 1Ah (which does
# not state the buffers: as Zen 4); which models are which generation:
# arch/x86/kernel/cpu/amd.c.
_ZEN_2 = (range(0x30, 0x50), range(0x60, 0x80), range(0x90, 0x92), range(0xA0, 0xB0))
_AMD_CORES: tuple[tuple[int, tuple[range, ...], Core], ...] = (
    (0x17, (range(0x30), range(0x50, 0x60)), Core(192, 22)),  # Zen
    (0x17, _ZEN_2, Core(224, 22)),
    (0x19, (range(0x10), range(0x20, 0x60)), Core(256, 24)),  # Zen 3
    (0x19, (range(0x10, 0x20), range(0x60, 0xB0)), Core(320, 24)),  # Zen 4
    (0x1A, (range(0x30), range(0x40, 0x50), range(0x60, 0x80)), Core(448, 24)),  # Zen 5
)


def read_cpu_model(proc: Path = PROC) -> CpuModel:
    """Return the CPU of this machine; vendor empty where /proc/cpuinfo names none (ARM)."""
    first = (read_text(proc / "cpuinfo") or "").split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    ghz = _GHZ.search(fields.get("model name", ""))
    return CpuModel(
        vendor=fields.get("vendor_id", ""),
        family=_number(fields.get("cpu family")),
        model=_number(fields.get("model")),
        mhz=float(ghz.group(1)) * 1e3 if ghz else _mhz(fields.get("cpu MHz")),
    )


def raw_events(cpu: CpuModel, pmu: str = "cpu") -> RawEvents | None:
    """Return the raw events of that PMU's cores; None for a CPU that the table lacks."""
    if cpu.vendor != "GenuineIntel" or cpu.family != 6:
        return None
    events = next((events for events, models in _INTEL_6.items() if cpu.model in models), None)
    return _GRACEMONT_EVENTS if events and pmu in ("cpu_atom", "cpu_lowpower") else events


def core_of(cpu: CpuModel) -> Core | None:
    """Return how many misses its cores can have under way, None for a CPU that the table lacks.

    Of parts with two kinds of cores, the big ones'.
    """
    if cpu.vendor == "GenuineIntel" and cpu.family == 6:
        return next((c for c, models in _INTEL_CORES.items() if cpu.model in models), None)
    if cpu.vendor != "AuthenticAMD":
        return None
    for family, models, core in _AMD_CORES:
        if cpu.family == family and any(cpu.model in several for several in models):
            return core
    return None


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _mhz(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
