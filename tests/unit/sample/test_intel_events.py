# SPDX-License-Identifier: MIT
"""The table of Intel's memory events, against the event files that it is made from."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "packaging"))
perfmon = import_module("perfmon_events")
sys.path.pop(0)


@pytest.fixture
def folder() -> Path:
    found: Path = perfmon.perfmon_folder()
    if not found.is_dir():
        pytest.skip("no perfmon data")
    return found


def test_table_is_what_the_event_files_say(folder: Path) -> None:
    assert perfmon.TABLE.read_text() == perfmon.as_text(perfmon.make_table(folder))


def test_table_has_every_family_with_load_events_that_have_addresses(folder: Path) -> None:
    """Independently of the names that the generator knows: of Intel's last fifteen years."""
    table = json.loads(perfmon.TABLE.read_text())
    files = json.loads((folder / "memory_events.json").read_text())
    for path, content in files.items():
        addressed = {e["EventName"] for e in content["Events"] if e.get("Data_LA") == "1"}
        loads = {name for name in addressed if "LOAD_LATENCY" in name or "MISS" in name}
        assert bool(loads) == (perfmon.core_name(path) in table["cores"]), path


def test_event_without_address_is_left_out() -> None:
    def event(name: str, umask: str, addressed: str) -> dict[str, Any]:
        return {"EventName": name, "EventCode": "0xd1", "UMask": umask, "Data_LA": addressed}

    events = [
        event("MEM_LOAD_RETIRED.L3_MISS", "0x20", "0"),
        event("MEM_LOAD_UOPS_RETIRED.DRAM_HIT", "0x80", "1"),
    ]
    found = perfmon.core_events(events, "some")
    assert found == {"load_miss": ["mem_load_uops_retired.dram_hit", "0x80d1"]}


def test_waits_are_counted_where_a_load_misses_all_caches() -> None:
    def stalls(name: str, code: str, umask: str, core: str) -> Any:
        event = {"EventName": name, "EventCode": code, "UMask": umask}
        return perfmon.core_events([event], core).get("stalls")

    assert stalls("MEMORY_ACTIVITY.STALLS_L3_MISS", "0x47", "0x09", "some")[1] == "0x9000947"
    assert stalls("MEM_BOUND_STALLS.LOAD_DRAM_HIT", "0x34", "0x04", "some")[1] == "0x434"
    assert stalls("ANY", "0x1", "0x1", "icelakex")[1] == "0x60006a3"
    # Of another encoding, whose counter mask is not known.
    assert stalls("MEMORY_ACTIVITY.STALLS_L3_MISS", "0x47", "0x48", "some") is None


def test_table_names_its_licence() -> None:
    table = json.loads(perfmon.TABLE.read_text())
    assert "BSD 3-Clause License" in table["licence"]
    assert any("Intel Corporation" in line for line in table["licence"])
    assert set().union(*(cores.values() for cores in table["models"].values())) <= set(
        table["cores"]
    )
