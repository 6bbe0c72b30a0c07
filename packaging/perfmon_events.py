# SPDX-License-Identifier: MIT
"""Write hmd/sample/intel_events.json, the memory events of Intel's cores, from Intel's event files.

``python packaging/perfmon_events.py [FOLDER]``: FOLDER (../shared/data/perfmon) has
``mapfile.csv`` of github.com/intel/perfmon, ``memory_events.json`` (path of an event file to its
``Events``) and the licence. A test fails when the table is out of date.

Of events that are sampled, only those whose samples have addresses are taken (``Data_LA``), and
only cores that have one of loads.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "hmd/sample/intel_events.json"
DATA_VARIABLE: Final = "HMD_PERFMON_DATA"
SOURCE: Final = (
    "Made by packaging/perfmon_events.py from github.com/intel/perfmon, 6dadedf3 (13 August 2026)"
)

EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "load_latency": ("MEM_TRANS_RETIRED.LOAD_LATENCY_GT_16", "MEM_UOPS_RETIRED.LOAD_LATENCY_GT_16"),
    "load_miss": (
        "MEM_LOAD_RETIRED.L3_MISS",
        "MEM_LOAD_UOPS_RETIRED.L3_MISS",
        "MEM_LOAD_UOPS_RETIRED.LLC_MISS",
        "MEM_LOAD_UOPS_RETIRED.DRAM_HIT",
        "MEM_UOPS_RETIRED.L2_MISS_LOADS",  # of Knights Landing, which has no L3
    ),
    "stores": (
        "MEM_TRANS_RETIRED.STORE_SAMPLE",
        "MEM_TRANS_RETIRED.PRECISE_STORE",
        "MEM_UOPS_RETIRED.STORE_LATENCY",
        "MEM_INST_RETIRED.ALL_STORES",
        "MEM_UOPS_RETIRED.ALL_STORES",
    ),
}
"""Names of each kind of event, in order of preference: that of the kernel's own ``mem-stores``."""

STALLS: Final[Mapping[str, int]] = {
    "MEMORY_ACTIVITY.STALLS_L3_MISS": 9,
    "MEM_BOUND_STALLS.LOAD_DRAM_HIT": 0,
    "MEM_BOUND_STALLS_LOAD.LLC_MISS": 0,
}
"""Events of cycles in which loads wait for memory, with their counter mask, which
``memory_events.json`` leaves out."""

CYCLE_ACTIVITY: Final = ["cycle_activity.stalls_l3_miss", "0x60006a3"]
HAS_CYCLE_ACTIVITY: Final = frozenset(
    {"skylake", "skylakex", "cascadelakex", "icelake", "icelakex", "rocketlake", "tigerlake"}
)
"""Cores of which the files of perfmon, but not ``memory_events.json``, have this event."""

MEM_LOADS_AUX: Final = "0x8203"
NEEDS_AUX: Final = frozenset({"alderlake_goldencove", "sapphirerapids", "emeraldrapids"})
"""Cores whose load latency needs this group leader, which the event files do not say:
PMU_FL_MEM_LOADS_AUX in the kernel's arch/x86/events/intel/core.c."""

PMUS: Final = {"": "cpu", "Core": "cpu_core", "Atom": "cpu_atom", "LowPower_Atom": "cpu_lowpower"}
"""The kernel's name of the PMU of each type of core."""


def perfmon_folder() -> Path:
    """Return the folder of Intel's files: ``HMD_PERFMON_DATA``, or ``../shared/data/perfmon``."""
    return Path(os.environ.get(DATA_VARIABLE) or ROOT.parent / "shared/data/perfmon")


def core_events(events: Iterable[Mapping[str, str]], core: str) -> dict[str, Any]:
    """Return the events of a core by kind, as name and config (``event | umask << 8``)."""
    events = list(events)
    addressed = {event["EventName"]: event for event in events if event.get("Data_LA") == "1"}
    found: dict[str, Any] = {}
    for kind, names in EVENTS.items():
        name = next((name for name in names if name in addressed), None)
        if name is not None:
            code, umask = (int(addressed[name][key], 16) for key in ("EventCode", "UMask"))
            short = name.removesuffix("_GT_16").lower()
            found[kind] = [short, f"{code | umask << 8:#06x}"]
    by_name = {event["EventName"]: event for event in events}
    for name, mask in STALLS.items():
        if name not in by_name:
            continue
        code, umask = (int(by_name[name][key], 16) for key in ("EventCode", "UMask"))
        if mask in (0, umask):
            found.setdefault("stalls", [name.lower(), f"{code | umask << 8 | mask << 24:#x}"])
    if core in HAS_CYCLE_ACTIVITY:
        found["stalls"] = CYCLE_ACTIVITY
    if core in NEEDS_AUX:
        found["leader"] = ["mem-loads-aux", MEM_LOADS_AUX]
    return found


def make_table(folder: Path) -> dict[str, Any]:
    """Return the table of the event files in a folder."""
    files = json.loads((folder / "memory_events.json").read_text())
    cores: dict[str, Any] = {}
    for path, content in files.items():
        core = core_name(path)
        events = core_events(content["Events"], core)
        if {"load_latency", "load_miss"} & events.keys():
            cores[core] = events
    models: dict[str, dict[str, str]] = {}
    with (folder / "mapfile.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            core = core_name(row["Filename"])
            if row["EventType"] in ("core", "hybridcore") and core in cores:
                model = row["Family-model"].removeprefix("GenuineIntel-")
                models.setdefault(model, {})[PMUS[row["Core Role Name"] or ""]] = core
    licence = (folder / "LICENSE-BSD-3-Clause-intel.txt").read_text().splitlines()
    return {"source": SOURCE, "licence": licence, "cores": cores, "models": models}


def core_name(path: str) -> str:
    """Return the name of a core from the path of its event file."""
    return Path(path).name.removesuffix(".json").removesuffix("_core").lower()


def as_text(table: Mapping[str, Any]) -> str:
    """Return the table with a line for each core and each model."""
    parts = []
    for name, part in table.items():
        if isinstance(part, dict):
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part[key])}" for key in part)
            parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(part, indent=1)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write the table of the folder that the command line names."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else perfmon_folder()
    TABLE.write_text(as_text(make_table(folder)))


if __name__ == "__main__":
    main()
