# SPDX-License-Identifier: MIT
"""CPU models: their clock, raw encodings of memory events, and memory-level parallelism of a core.

From /proc/cpuinfo, sysfs, and two tables:

- ``intel_events.json``, made by packaging/perfmon_events.py from the event files that Intel
  publishes (github.com/intel/perfmon, BSD-3-Clause). Event names in sysfs come first for what the
  kernel names (``memory_events``).
- ``core_limits.json``, written by hand; its sources are named there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from hmd.linux.procfs import PROC, SYSFS, read_int, read_text

_GHZ: Final = re.compile(r"@\s*([\d.]+)\s*GHz")
_FREQUENCIES: Final = (("cpufreq/base_frequency", 1e-3), ("acpi_cppc/nominal_freq", 1.0))
"""Files of a CPU with its nominal clock, and what makes MHz of them: of intel_pstate in kHz, of the
firmware (CPPC) in MHz."""


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The first CPU in /proc/cpuinfo; ``mhz`` is the nominal clock, 0 if unknown."""

    vendor: str
    family: int
    model: int
    mhz: float
    stepping: int = 0

    @property
    def ns_per_cycle(self) -> float:
        """Nanoseconds per core cycle at the nominal clock; 1 if that is unknown."""
        return 1e3 / self.mhz if self.mhz > 0 else 1.0


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event by its perf name, and its encoding, ``event | umask << 8 | cmask << 24``."""

    name: str
    config: int


@dataclass(frozen=True, slots=True)
class RawEvents:
    """Events of one kind of core whose samples have addresses; None if it has no such event.

    ``load_latency`` has its threshold in config1, and ``leader`` is the group leader that it needs.
    ``stalls`` counts the cycles in which the core executes nothing while a load waits for memory.
    """

    load_latency: RawEvent | None = None
    load_miss: RawEvent | None = None
    stores: RawEvent | None = None
    leader: RawEvent | None = None
    stalls: RawEvent | None = None


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


def read_cpu_model(proc: Path = PROC, sysfs: Path = SYSFS) -> CpuModel:
    """Return the CPU of this machine; vendor empty where /proc/cpuinfo names none (ARM).

    The nominal clock is what the model's name or the kernel states; the last resort, right in
    virtual machines, is ``cpu MHz``, the present clock (arch/x86/kernel/cpu/proc.c).
    """
    first = (read_text(proc / "cpuinfo") or "").split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    ghz = _GHZ.search(fields.get("model name", ""))
    cpu = sysfs / "devices/system/cpu/cpu0"
    stated = ((read_int(cpu / name) or 0) * mhz for name, mhz in _FREQUENCIES)
    try:
        mhz = float(ghz.group(1)) * 1e3 if ghz else 0.0
        mhz = mhz or next(filter(None, stated), 0.0) or float(fields.get("cpu MHz", 0))
    except ValueError:
        mhz = 0.0

    def number(name: str) -> int:
        text = fields.get(name, "")
        return int(text) if text.isdigit() else 0

    return CpuModel(
        fields.get("vendor_id", ""), number("cpu family"), number("model"), mhz, number("stepping")
    )


@cache
def _table(name: str) -> Any:
    return json.loads(files("hmd.sample").joinpath(name).read_text())


def _intel_cores(cpu: CpuModel) -> Mapping[str, str]:
    """Return the names of the model's cores by the kernel's name of their PMU."""
    if cpu.vendor != "GenuineIntel":
        return {}
    identity = f"{cpu.family}-{cpu.model:X}-{cpu.stepping:X}"
    models: Mapping[str, Mapping[str, str]] = _table("intel_events.json")["models"]
    # As Intel's mapfile.csv names them: a model's steppings, or all of them.
    return next((c for m, c in models.items() if re.fullmatch(f"{m}(-[0-9A-F]+)?", identity)), {})


def find_raw_events(cpu: CpuModel, pmu: str = "cpu") -> RawEvents:
    """Return the events of that PMU's cores; all None for a CPU that the table lacks.

    Where a hybrid part's small cores are switched off, the kernel has one PMU, ``cpu``.
    """
    cores = _intel_cores(cpu)
    core = cores.get(pmu) or (cores.get("cpu_core") if pmu == "cpu" else None)
    found = _table("intel_events.json")["cores"][core] if core else {}
    return RawEvents(**{kind: RawEvent(n, int(config, 16)) for kind, (n, config) in found.items()})


@cache
def store_configs() -> frozenset[int]:
    """Return the encodings of all events of Intel's CPUs that sample stores."""
    cores = _table("intel_events.json")["cores"].values()
    return frozenset(int(core["stores"][1], 16) for core in cores if "stores" in core)


def find_core(cpu: CpuModel) -> Core | None:
    """Return the limits of a CPU's misses, of its big cores; None if the table lacks it."""
    limits = _table("core_limits.json")
    if cores := _intel_cores(cpu):
        found = limits["intel"].get(cores.get("cpu") or cores.get("cpu_core"))
        return Core(*found) if found else None
    if cpu.vendor == "AuthenticAMD":
        for line in limits["amd"]:
            inside = any(first <= cpu.model <= last for first, last in line["models"])
            if cpu.family == line["family"] and inside:
                return Core(*line["limits"])
    return None
