# SPDX-License-Identifier: MIT
"""A trace in a few figures, and the error that sampling brings into results from an imported one.

That error follows from how many samples a page has. ``sampling_error.yaml`` has what was measured
on recorded programs of which all misses are known (bench/suite/import_error.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from hmd.base.units import PAGE_BYTES
from hmd.linux.mappings import MappingKind
from hmd.sample.access_batch import Kind
from hmd.trace.functions import heat_by_function
from hmd.trace.trace import Trace


def summarise(trace: Trace) -> dict[str, Any]:
    """Return the figures of a trace, as ``hmd trace info --json`` prints them.

    ``clock`` is that of ``runtime_s``, "monotonic" or "modelled"; ``elapsed_s`` is that by the
    guest's own clock, and equal on a real machine. ``recording_s`` of it are what samples took of
    the program's CPUs, ``stalled_s`` are waits for memory (0: not counted). ``instructions`` is
    None if they were not counted, ``pair_period`` if loads had no second counter,
    ``reorder_window`` (instructions) if it is unknown. ``pages`` are those sampled,
    ``resident_pages`` those on each node as last seen. ``tiers`` are as in the trace: nodes and
    their HMAT figures, fastest tier first. Of an import, ``source`` is its file, ``levels`` what
    answered its samples, ``sampling`` the error to expect. ``mappings`` are those of
    :func:`heat_by_mapping`, ``functions`` those of ``heat_by_function`` (hmd/trace/functions.py),
    ``unnamed`` the files of which some code has no names, and why.
    """
    samples, about, ending = trace.samples, trace.about, trace.ending
    progress = trace.progress
    functions, unnamed = heat_by_function(trace)
    page = samples.address // np.uint64(PAGE_BYTES)
    process_page = np.unique(page ^ (samples.process.astype(np.uint64) << np.uint64(52)))
    latencies = samples.latency_ns[samples.latency_ns > 0]
    elapsed_ns = None if ending is None else ending.elapsed_ns
    return {
        "command": [str(word) for word in about.get("command", [])],
        "processes": [f"{process.name} ({process.pid})" for process in trace.processes],
        "date": str(about.get("date", "?")),
        "hmd": str(about.get("hmd", "?")),
        "kernel": str(about.get("kernel", "?")),
        "tier": about.get("tier"),
        "detail": str(about.get("detail", "?")),
        "period": int(about.get("period", 0)),
        "pair_period": about.get("pair_period"),
        "reorder_window": about.get("reorder_window"),
        "clock": trace.clock,
        "runtime_s": trace.runtime_ns / 1e9,
        "elapsed_s": (trace.runtime_ns if elapsed_ns is None else elapsed_ns) / 1e9,
        "instructions": progress.last_sum("instructions") or None if progress else None,
        "stalled_s": progress.last_sum("stalled_ns") / 1e9 if progress else 0.0,
        "instructions_detail": str(about.get("instructions_detail", "not counted")),
        "ended": ending is not None,
        "samples": len(samples),
        "stores": int((samples.kind == Kind.STORE).sum()),
        "pages": len(process_page),
        "threads": len(np.unique(samples.thread)),
        "mean_latency_ns": float(latencies.mean()) if len(latencies) else 0.0,
        "recording_s": len(samples) * trace.stride * int(about.get("record_ns") or 0) / 1e9,
        "lost": trace.losses.lost,
        "throttled": trace.losses.throttled,
        "resident_pages": resident_pages(trace),
        "tiers": list(about.get("tiers", [])),
        "mappings": heat_by_mapping(trace),
        "functions": functions,
        "unnamed": unnamed,
        "source": about.get("source"),
        "machine": about.get("machine"),
        "levels": about.get("levels"),
        "sampling": asdict(sampling_error(trace)) if is_imported(trace) else None,
    }


def resident_pages(trace: Trace) -> dict[int, int]:
    """Return the number of pages on each node, each page where it was last seen."""
    found = [node for _, node in trace.last_nodes().values()]
    node, pages = np.unique(np.concatenate([np.empty(0, np.int16), *found]), return_counts=True)
    return {n: count for n, count in zip(node.tolist(), pages.tolist(), strict=True) if n >= 0}


_NO_FILE: Final[dict[int, str]] = {
    MappingKind.HEAP: "heap",
    MappingKind.STACK: "stack",
    MappingKind.SHM: "shared memory",
    MappingKind.HUGETLB: "huge pages",
}


_PAGE_BITS: Final = 45
"""Of the number of a page, where addresses have 57 bits."""


def heat_by_mapping(trace: Trace) -> list[dict[str, Any]]:
    """Return the share of all sampled accesses that each file, heap, stack or mapping has.

    Hottest first: ``process``, ``mapping`` (a path, or what it is and where it begins), the
    ``bytes`` of those that have samples, when they were last seen, the base ``pages`` that were
    sampled, and its ``share``. A sample belongs to what was mapped last at its address; what was
    mapped between two readings is left out.
    """
    samples, groups, size = trace.samples, dict[tuple[int, str], int](), list[int]()
    group = np.full(len(samples), -1, np.int64)
    for mapped, at, rows in trace.located(samples.address):
        named = np.full(len(mapped.start), -1, np.int64)
        seen = len(groups)
        for i in np.unique(at).tolist():
            kind = _NO_FILE.get(int(mapped.kind[i]), "anonymous")
            key = mapped.process, mapped.path[i] or f"{kind} at {int(mapped.start[i]):#x}"
            named[i] = groups.setdefault(key, len(groups))
            size += [0] * (len(groups) - len(size))
            if named[i] >= seen:
                size[named[i]] += int(mapped.end[i] - mapped.start[i])
        group[rows] = named[at]
    known = group >= 0
    accesses = np.bincount(group[known], samples.period[known], len(groups))
    page = (samples.address[known] // np.uint64(PAGE_BYTES)).astype(np.int64)
    of_page = np.unique(group[known] << _PAGE_BITS | page) >> _PAGE_BITS
    pages = np.bincount(of_page, minlength=len(groups))
    total = max(float(samples.period.sum()), 1.0)
    names = [(trace.processes[index], mapping) for index, mapping in groups]
    return [
        {
            "process": f"{names[at][0].name} ({names[at][0].pid})",
            "mapping": names[at][1],
            "bytes": size[at],
            "pages": int(pages[at]),
            "share": float(accesses[at] / total),
        }
        for at in np.argsort(-accesses, kind="stable").tolist()
    ]


TABLE: Final = Path(__file__).with_name("sampling_error.yaml")


@dataclass(frozen=True, slots=True)
class SamplingError:
    """Means over programs, as shares: pages that are found, errors of runtimes."""

    period: int
    samples_per_page: float
    recall: float
    estimate_error: float
    simulate_error: float

    def describe(self, runtime: str = "estimate") -> str:
        """Return it in one line; ``runtime`` is that of ``hmd estimate`` or ``simulate``."""
        error = self.estimate_error if runtime == "estimate" else self.simulate_error
        return (
            f"sampled 1 in {self.period:,}, {self.samples_per_page:.1f} samples per page: "
            f"hottest-quarter recall about {self.recall:.0%}, runtime error ({runtime}) about "
            f"{error:.0%}".replace("%", " %")
        )


def is_imported(trace: Trace) -> bool:
    """Return whether a trace is an import, not a recording of hmd."""
    return bool(trace.about.get("source"))


def sampling_error(trace: Trace) -> SamplingError:
    """Return the error to expect of a trace, between the densities that were measured."""
    samples = trace.samples
    key = samples.address // np.uint64(PAGE_BYTES)
    key |= samples.process.astype(np.uint64) << np.uint64(48)
    density = len(samples) * trace.stride / max(1, len(np.unique(key)))
    columns = _table()
    period = int(trace.about.get("period") or 1)
    every = period == 1 and not (samples.kind == Kind.FAULT).any()
    at = np.inf if every else np.log(max(density, 1e-3))
    recall, estimate, simulate = (
        float(np.interp(at, columns["log_density"], columns[name]))
        for name in ("recall", "estimate_error", "simulate_error")
    )
    return SamplingError(period, density, 1.0 if every else recall, estimate, simulate)


@cache
def _table() -> dict[str, list[float]]:
    rows = yaml.safe_load(TABLE.read_text())
    columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    return columns | {"log_density": np.log(columns["samples_per_page"]).tolist()}
