"""The results of ``hmd estimate``, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hmd.cli.output import console, format_bytes, format_seconds, format_share, print_table
from hmd.units import PAGE_BYTES

if TYPE_CHECKING:
    from hmd.cli.estimate_model import Subject
    from hmd.estimate import CapacitySweep, Phase, PricedSchedule, Region

NEAR = 0.05
"""Slowdown versus all-fast that counts as enough fast memory."""

FEWEST = 0.001
"""Regions below this share of the accesses, and of the time, are summed up in one line."""


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """One layout's prediction; bounds are None where the model gives none."""

    layout: str
    fast_bytes: int
    access_share: float
    runtime_s: float
    low_s: float | None
    high_s: float | None
    over_all_fast: float

    def cells(self) -> list[str]:
        """Return the prediction as text."""
        bounds = "-"
        if self.low_s is not None and self.high_s is not None:
            listed = f"{format_seconds(self.low_s)} to {format_seconds(self.high_s)}"
            bounds = listed if self.low_s < self.high_s else "as recorded"
        return [
            self.layout,
            format_bytes(self.fast_bytes),
            format_share(self.access_share),
            format_seconds(self.runtime_s),
            bounds,
            f"{self.over_all_fast:.3f}",
        ]


@dataclass(frozen=True, slots=True)
class Answer:
    """The requested results; others are None."""

    rows: Sequence[EstimateRow]
    described: str
    phases: Sequence[Phase] | None = None
    regions: Sequence[Region] | None = None
    curve: CapacitySweep | None = None
    schedule: PricedSchedule | None = None


def as_json(model: str, subject: Subject, answer: Answer) -> dict[str, Any]:
    """Return the answer's JSON document: seconds, bytes, and shares from 0 to 1."""
    document: dict[str, Any] = {
        "model": model,
        "cut_by": subject.cut_by,
        "windows": len(subject.slow_ns),
        "pages": len(subject.pages),
        "clock": subject.slow.clock,
        "slow_s": subject.slow.runtime_ns / 1e9,
        "fast_s": subject.fast.runtime_ns / 1e9,
        "notes": subject.notes,
        "estimates": list(answer.rows),
    }
    if answer.phases is not None:
        document["phases"] = [
            {
                "from_s": phase.from_ns / 1e9,
                "to_s": phase.to_ns / 1e9,
                "runtime_s": phase.runtime_ns / 1e9,
                "all_slow_s": phase.all_slow_ns / 1e9,
                "all_fast_s": phase.all_fast_ns / 1e9,
            }
            for phase in answer.phases
        ]
    if answer.regions is not None:
        document["regions"] = [
            {
                "name": region.name,
                "pid": subject.slow.processes[region.process].pid,
                "process": subject.slow.processes[region.process].name,
                "pages": region.pages,
                "access_share": region.access_share,
                "fast_share": region.fast_share,
                "saves_s": region.saves_ns / 1e9,
            }
            for region in answer.regions
        ]
    if answer.curve is not None:
        document["sweep"] = _curve_json(subject, answer.curve)
    if answer.schedule is not None:
        document["schedule"] = {
            "runtime_s": answer.schedule.estimate.runtime_ns / 1e9,
            "moved_pages": answer.schedule.moved,
            "moving_s": answer.schedule.moving_ns / 1e9,
        }
    return document


def _curve_json(subject: Subject, curve: CapacitySweep) -> dict[str, Any]:
    steps = [
        {
            "fast_bytes": int(capacity),
            "runtime_s": float(runtime_ns) / 1e9,
            "over_all_fast": subject.over_all_fast(float(runtime_ns)),
        }
        for capacity, runtime_ns in zip(curve.fast_bytes, curve.runtime_ns, strict=True)
    ]
    return {
        "steps": steps,
        "knee": None if curve.knee is None else steps[curve.knee],
        "within_5_percent": steps[curve.within(NEAR)],
    }


def show(subject: Subject, answer: Answer) -> None:
    """Print the results to standard output."""
    if answer.curve is not None:
        _show_curve(subject, answer.curve)
        return
    columns = ["layout", "fast memory", "accesses there", "runtime", "90 % interval"]
    columns.append("over all fast")
    print_table(columns, [row.cells() for row in answer.rows], right=columns[1:])
    if answer.schedule is not None:
        priced = answer.schedule
        runtime_ns = priced.estimate.runtime_ns
        console().print(
            f"{answer.described}: {_time(runtime_ns)}, {subject.over_all_fast(runtime_ns):.3f} "
            f"times all fast; {_time(priced.moving_ns)} of it to move {priced.moved:,} pages\n",
            markup=False,
        )
    if answer.phases is not None:
        _show_phases(answer.described, answer.phases)
    if answer.regions is not None:
        _show_regions(subject, answer.described, answer.regions)


def _show_phases(described: str, phases: Sequence[Phase]) -> None:
    columns = ["time in the slow run", "predicted", "all slow", "all fast"]
    rows = [
        [
            f"{_time(phase.from_ns)} to {_time(phase.to_ns)}",
            _time(phase.runtime_ns),
            _time(phase.all_slow_ns),
            _time(phase.all_fast_ns),
        ]
        for phase in phases
    ]
    print_table(columns, rows, title=f"{described}, by phase", right=columns)


def _show_regions(subject: Subject, described: str, regions: Sequence[Region]) -> None:
    processes, runtime = subject.slow.processes, subject.slow.runtime_ns
    columns = ["region", "memory", "accesses", "of it fast", "all fast would save"]
    listed = [r for r in regions if r.access_share >= FEWEST or abs(r.saves_ns) >= FEWEST * runtime]
    rows = [
        [
            region.name,
            format_bytes(region.pages * PAGE_BYTES),
            format_share(region.access_share),
            format_share(region.fast_share),
            _time(region.saves_ns),
        ]
        for region in listed
    ]
    right = columns[1:]
    if len(processes) > 1:
        columns.insert(1, "process")
        for row, region in zip(rows, listed, strict=True):
            row.insert(1, f"{processes[region.process].name} ({processes[region.process].pid})")
    print_table(columns, rows, title=f"{described}, by region", right=right)
    if len(listed) < len(regions):
        console().print(
            f"and {len(regions) - len(listed)} that have less than {format_share(FEWEST)} of the "
            "accesses and of the time each\n"
        )


def _show_curve(subject: Subject, curve: CapacitySweep) -> None:
    columns = ["fast memory", "of sampled", "runtime", "over all fast", ""]
    pages = max(len(subject.pages), 1)
    rows = [
        [
            format_bytes(count * PAGE_BYTES),
            format_share(count / pages),
            _time(runtime_ns),
            f"{subject.over_all_fast(runtime_ns):.3f}",
            "<- knee" if step == curve.knee else "",
        ]
        for step, (count, runtime_ns) in enumerate(
            zip(curve.fast_pages.tolist(), curve.runtime_ns.tolist(), strict=True)
        )
    ]
    print_table(columns, rows, right=columns[:4])
    console().print("\n".join(_need(subject, curve)))


def _need(subject: Subject, curve: CapacitySweep) -> list[str]:
    """Return the lines that say how much fast memory the program needs."""
    near = curve.within(NEAR)
    if near == 0:
        return ["It needs no fast memory: with all of its pages slow it is within 5 % of all fast."]
    listed = ["There is no knee: each part of fast memory buys about as much as the one before."]
    if curve.knee is not None:
        runtime_ns = float(curve.runtime_ns[curve.knee])
        listed = [
            f"The knee is at {format_bytes(int(curve.fast_bytes[curve.knee]))} of fast memory: "
            f"{_time(runtime_ns)}, {subject.over_all_fast(runtime_ns):.2f} times all fast; "
            "more buys less."
        ]
    enough = format_bytes(int(curve.fast_bytes[near]))
    return [*listed, f"To be within 5 % of all fast it needs {enough}."]


def _time(value_ns: float) -> str:
    return format_seconds(value_ns / 1e9)
