"""What else on this machine moves pages, or uses the counters that hmd needs.

Two movers of the same pages undo each other's work. Reads sysctls, sysfs switches and the names of
running processes, and returns a diagnostic for each with the command that changes it. Used at start
and by ``hmd doctor``; costs a few dozen small reads and one per process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hmd.machine.checks.diagnostic import Diagnostic, Severity
from hmd.machine.damon.damon_ownership import holder
from hmd.machine.damon.damon_sysfs import Kdamonds
from hmd.machine.process_id import PROC
from hmd.machine.procfs import chosen, read_int, read_text

_SYSFS = Path("/sys")
_DAMOS_MOVERS = frozenset({"migrate_hot", "migrate_cold", "pageout", "lru_prio", "lru_deprio"})


def competing_findings(proc: Path = PROC, sysfs: Path = _SYSFS) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each such feature of this kernel, whether it conflicts or not."""
    findings = (
        _numa_balancing(proc),
        _demotion(sysfs),
        _numad(proc),
        _zone_reclaim(proc),
        _damon_module(sysfs, "damon_reclaim", "pages out cold memory by its own counts"),
        _damon_module(sysfs, "damon_lru_sort", "reorders the LRU lists that demotion follows"),
        _damon_schemes(sysfs),
        _nmi_watchdog(proc),
        _transparent_huge_pages(sysfs),
    )
    return tuple(f for f in findings if f is not None)


def _numa_balancing(proc: Path) -> Diagnostic | None:
    name = "NUMA balancing"
    value = read_int(proc / "sys/kernel/numa_balancing")
    if value is None:
        return None
    if not value:
        return Diagnostic(name, Severity.OK, "off")
    # Bit 0: move to the accessing CPU; bit 1: promote from slow tiers (sysctl/kernel.rst).
    modes = ["places pages by CPU"] * (value & 1) + ["promotes from slow tiers"] * (value >> 1 & 1)
    return Diagnostic(
        name,
        Severity.WARN,
        f"on ({value}: {', '.join(modes) or 'unknown mode'})",
        "the kernel moves the same pages by its own hint faults, and each fault costs the program",
        "sysctl -w kernel.numa_balancing=0",
    )


def _demotion(sysfs: Path) -> Diagnostic | None:
    name = "demotion by reclaim"
    path = sysfs / "kernel/mm/numa/demotion_enabled"
    value = read_text(path)
    if value is None:
        return None
    if value.strip() not in ("true", "1"):
        return Diagnostic(name, Severity.OK, "off")
    return Diagnostic(
        name,
        Severity.WARN,
        "on",
        "under pressure the kernel demotes by its LRU order, also pages that hmd counts as hot",
        "echo 0 > /sys/kernel/mm/numa/demotion_enabled",
    )


def _numad(proc: Path) -> Diagnostic:
    name = "numad"
    pids = [str(pid) for pid, comm in _names(proc) if comm == "numad"]
    if not pids:
        return Diagnostic(name, Severity.OK, "not running")
    return Diagnostic(
        name,
        Severity.WARN,
        f"running (pid {', '.join(pids)})",
        "numad moves whole processes between nodes by its own measure",
        "systemctl disable --now numad",
    )


def _names(proc: Path) -> Iterator[tuple[int, str]]:
    for entry in os.listdir(proc):  # noqa: PTH208 - thousands of entries
        if entry.isdigit() and (comm := read_text(proc / entry / "comm")) is not None:
            yield int(entry), comm


def _zone_reclaim(proc: Path) -> Diagnostic | None:
    name = "zone reclaim"
    value = read_int(proc / "sys/vm/zone_reclaim_mode")
    if value is None:
        return None
    if not value:
        return Diagnostic(name, Severity.OK, "off")
    return Diagnostic(
        name,
        Severity.WARN,
        f"on (mode {value})",
        "a node that fills is reclaimed instead of spilling over: promotions evict page cache",
        "sysctl -w vm.zone_reclaim_mode=0",
    )


def _damon_module(sysfs: Path, module: str, effect: str) -> Diagnostic | None:
    path = sysfs / f"module/{module}/parameters/enabled"
    value = read_text(path)
    if value is None:
        return None
    if value.strip() not in ("Y", "1"):
        return Diagnostic(module, Severity.OK, "off")
    return Diagnostic(
        module, Severity.WARN, "on", effect, f"echo N > /sys/module/{module}/parameters/enabled"
    )


def _damon_schemes(sysfs: Path) -> Diagnostic | None:
    """Look for running DAMON threads whose schemes move pages (mm/damon/usage.rst)."""
    name = "DAMON schemes"
    kdamonds = Kdamonds(sysfs)
    if not kdamonds.path.is_dir():
        return None
    moving: list[str] = []
    for thread in sorted(kdamonds.path.glob("[0-9]*")):
        if not kdamonds.is_on(int(thread.name)):
            continue
        actions = {read_text(p) or "" for p in thread.glob("contexts/*/schemes/*/action")}
        moving += [f"{thread.name}: {action}" for action in sorted(actions & _DAMOS_MOVERS)]
    if not moving:
        return Diagnostic(name, Severity.OK, "none that moves pages")
    owner = holder(kdamonds)
    if owner is not None and not owner.left:
        return Diagnostic(name, Severity.OK, f"those of hmd (pid {owner.pid}) alone")
    first = moving[0].split(":")[0]
    return Diagnostic(
        name,
        Severity.WARN,
        f"running (kdamond {'; '.join(moving)})",
        "DAMON moves or evicts pages by its own region counts",
        f"echo off > /sys/kernel/mm/damon/admin/kdamonds/{first}/state",
    )


def _nmi_watchdog(proc: Path) -> Diagnostic | None:
    name = "NMI watchdog"
    value = read_int(proc / "sys/kernel/nmi_watchdog")
    if value is None:
        return None
    if not value:
        return Diagnostic(name, Severity.OK, "off")
    return Diagnostic(
        name,
        Severity.WARN,
        "on",
        "it holds one hardware counter on every CPU, which sampling could use",
        "sysctl -w kernel.nmi_watchdog=0",
    )


def _transparent_huge_pages(sysfs: Path) -> Diagnostic | None:
    name = "transparent huge pages"
    folder = sysfs / "kernel/mm/transparent_hugepage"
    enabled = chosen(read_text(folder / "enabled"))
    if enabled is None:
        return None
    defrag = chosen(read_text(folder / "defrag")) or "unknown"
    why = ""
    if enabled == "always":
        why = "huge pages move whole: 2 MiB follow one hot 4 KiB; hmd weighs them as one"
    return Diagnostic(name, Severity.OK, f"{enabled} (defrag {defrag})", why)
