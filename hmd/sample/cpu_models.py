# SPDX-License-Identifier: MIT
"""CPU models: raw encodings of memory events, and the core's memory-level parallelism.

Takes /proc/cpuinfo; gives the line of a table. Event names in sysfs come first (``memory_events``);
this table covers missing names and events that the kernel never names, such as L3 misses. A new CPU
is a line of ``_INTEL_6`` or ``_AMD_CORES``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hmd.linux.procfs import PROC, read_text

SMALL_CORES: Final = ("cpu_atom", "cpu_lowpower")
"""PMUs of the small cores of hybrid parts."""

# Raw encodings, ``event | umask << 8``, from the event files that Intel publishes
# (github.com/intel/perfmon). Model numbers are those of the kernel's
# arch/x86/include/asm/intel-family.h.
LOAD_LATENCY = 0x01CD  # MEM_TRANS_RETIRED.LOAD_LATENCY, threshold in config1
L3_MISS = 0x20D1  # MEM_LOAD_RETIRED.L3_MISS
ALL_STORES = 0x82D0  # MEM_INST_RETIRED.ALL_STORES
STORE_SAMPLE = 0x02CD  # MEM_TRANS_RETIRED.STORE_SAMPLE
MEM_LOADS_AUX = 0x8203  # group leader of load latency where needed
ATOM_LOAD_LATENCY = 0x05D0  # MEM_UOPS_RETIRED.LOAD_LATENCY, threshold in config1
ATOM_DRAM_HIT = 0x80D1  # MEM_LOAD_UOPS_RETIRED.DRAM_HIT
ATOM_ALL_STORES = 0x06D0  # MEM_UOPS_RETIRED.STORE_LATENCY

_GHZ: Final = re.compile(r"@\s*([\d.]+)\s*GHz")


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


SKYLAKE_SERVER: Final = Core(224, 12)

_PEBS: Final = RawEvents(LOAD_LATENCY, L3_MISS, ALL_STORES)
_PEBS_WITH_AUX: Final = RawEvents(LOAD_LATENCY, L3_MISS, STORE_SAMPLE, MEM_LOADS_AUX)
_PEBS_STORE_SAMPLE: Final = RawEvents(LOAD_LATENCY, L3_MISS, STORE_SAMPLE)
_SMALL_CORE: Final = RawEvents(ATOM_LOAD_LATENCY, ATOM_DRAM_HIT, ATOM_ALL_STORES)

# Models of Intel's family 6, by core. Reorder buffer and line fill buffers: Intel 64 and IA-32
# Architectures Optimization Reference Manual, the chapters of each core; of Redwood Cove and the
# small cores: WikiChip.
_INTEL_6: Final[tuple[tuple[tuple[int, ...], RawEvents, Core], ...]] = (
    # Haswell, Broadwell
    ((0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56), _PEBS, Core(192, 10)),
    # Skylake, Cascade Lake and Cooper Lake servers
    ((0x55,), _PEBS, SKYLAKE_SERVER),
    # Skylake, Kaby, Coffee, Comet, Cannon Lake clients
    ((0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6, 0x66), _PEBS, Core(224, 10)),
    # Sunny Cove: Ice Lake; Tiger Lake, Rocket Lake
    ((0x7D, 0x7E, 0x6A, 0x6C, 0x8C, 0x8D, 0xA7), _PEBS, Core(352, 12)),
    # Golden Cove: Sapphire Rapids, Emerald Rapids; big cores of Alder Lake and Raptor Lake
    ((0x8F, 0xCF, 0x97, 0x9A, 0xB7, 0xBA, 0xBF), _PEBS_WITH_AUX, Core(512, 16)),
    # Redwood Cove: Granite Rapids, big cores of Meteor Lake
    ((0xAD, 0xAE, 0xAA, 0xAC), _PEBS_STORE_SAMPLE, Core(512, 16)),
    # Gracemont: Alder Lake-N, Sierra Forest, Grand Ridge
    ((0xBE, 0xAF, 0xB6), _SMALL_CORE, Core(256, 16)),
)

# Retire queue and miss address buffers, by family and models. AMD's Software Optimization Guides
# for families 17h (models 00h-2Fh; 30h and greater), 19h (of Zen 4: WikiChip) and 1Ah (which does
# not state the buffers: as Zen 4); which models are which generation:
# arch/x86/kernel/cpu/amd.c.
_ZEN_2: Final = (range(0x30, 0x50), range(0x60, 0x80), range(0x90, 0x92), range(0xA0, 0xB0))
_AMD_CORES: Final[tuple[tuple[int, tuple[range, ...], Core], ...]] = (
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
    family, model = fields.get("cpu family", ""), fields.get("model", "")
    ghz = _GHZ.search(fields.get("model name", ""))
    try:
        mhz = float(ghz.group(1)) * 1e3 if ghz else float(fields.get("cpu MHz", 0))
    except ValueError:
        mhz = 0.0
    return CpuModel(
        vendor=fields.get("vendor_id", ""),
        family=int(family) if family.isdigit() else 0,
        model=int(model) if model.isdigit() else 0,
        mhz=mhz,
    )


def _find_intel(cpu: CpuModel) -> tuple[RawEvents, Core] | None:
    if cpu.vendor != "GenuineIntel" or cpu.family != 6:
        return None
    return next(((raw, core) for models, raw, core in _INTEL_6 if cpu.model in models), None)


def find_raw_events(cpu: CpuModel, pmu: str = "cpu") -> RawEvents | None:
    """Return the raw events of that PMU's cores; None for a CPU that the table lacks."""
    found = _find_intel(cpu)
    return _SMALL_CORE if found and pmu in SMALL_CORES else found and found[0]


def find_core(cpu: CpuModel) -> Core | None:
    """Return the limits of a CPU's misses, None for a CPU that the table lacks.

    Of parts with two kinds of cores, the big ones'.
    """
    if found := _find_intel(cpu):
        return found[1]
    if cpu.vendor != "AuthenticAMD":
        return None
    for family, models, core in _AMD_CORES:
        if cpu.family == family and any(cpu.model in several for several in models):
            return core
    return None
