"""The two traces of ``hmd estimate`` under the requested model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hmd.cli.estimate_layouts import by_heat

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hmd.estimate import CapacitySweep, Estimate, Layout, PageIndex, RuntimeModel
    from hmd.trace.streaming import TraceFile
    from hmd.trace.trace import Trace

ISC22_WINDOW_MS = 50.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A program's two runs under a model; ``model`` is None for the published formula.

    ``slow`` and ``fast`` are the traces' outlines. ``slow_ns`` and ``fast_ns`` are by window,
    ``accesses`` by page: those that the model weights.
    """

    slow: Trace
    fast: Trace
    pages: PageIndex
    cut_by: str
    slow_ns: npt.NDArray[np.float64]
    fast_ns: npt.NDArray[np.float64]
    accesses: npt.NDArray[np.float64]
    estimate: Callable[[Layout], Estimate]
    model: RuntimeModel | None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a caveat, and print it on standard error."""
        self.notes.append(text)
        print(f"hmd: note: {text}", file=sys.stderr)

    def access_share(self, layout: Layout) -> float:
        """Return the share of accesses that go to fast memory."""
        return float(self.accesses[layout].sum()) / max(float(self.accesses.sum()), 1e-12)

    def over_all_fast(self, runtime_ns: float) -> float:
        """Return a runtime as a multiple of the fast run's."""
        return runtime_ns / max(self.fast.runtime_ns, 1)

    def swept(self, steps: int) -> CapacitySweep:
        """Return the runtime by capacity, the hottest pages first."""
        import numpy as np

        from hmd.estimate import CapacitySweep, find_knee, layout, sweep

        if self.model is not None:
            return sweep(self.model, layout.heat_order(self.pages), steps)
        fast_pages = np.arange(steps + 1) * len(self.pages) // steps
        found = [self.estimate(layout.by_heat(self.pages, n)) for n in fast_pages.tolist()]
        runtime_ns = np.array([each.runtime_ns for each in found])
        return CapacitySweep(
            fast_pages, runtime_ns, find_knee(fast_pages.astype(float), runtime_ns)
        )


def read_subject(args: argparse.Namespace) -> Subject:
    """Return both traces under the model; prints caveats on standard error.

    Raises HmdError where they cannot be read or do not match.
    """
    from hmd.estimate import check
    from hmd.trace.streaming import TraceFile

    slow, fast = TraceFile(args.slow), TraceFile(args.fast)
    notes = check(slow.outline, fast.outline, (str(args.slow), str(args.fast)))
    subject = (_published if args.model == "isc22" else _ours)(args, slow, fast, notes)
    for note in subject.notes:
        print(f"hmd: note: {note}", file=sys.stderr)
    return subject


def _ours(args: argparse.Namespace, slow: TraceFile, fast: TraceFile, notes: list[str]) -> Subject:
    import numpy as np

    from hmd.estimate import CutBy, SampleSelection, Terms, build_model, side_by_side
    from hmd.estimate.aligned_runs import WINDOWS

    cut_by = None if args.cut_by is None else CutBy(args.cut_by)
    runs = side_by_side(slow, fast, windows=args.windows or WINDOWS, cut_by=cut_by)
    heat = by_heat(args)
    model = build_model(
        runs, terms=Terms(rows=SampleSelection.FAST if heat else SampleSelection.BOTH)
    )
    if not runs.same_addresses:
        notes.append(
            "the two runs have different addresses, so that the slow run's samples alone are "
            "used: record both with 'setarch -R' (as 'hmd record --tier' does)"
        )
    if heat and not len(runs.fast.page):
        notes.append("pages that are hot by chance count as hot: estimates are too low")
    if not model.pairs.enough:
        notes.append(
            "too few pairs of samples to identify overlapping misses, so overlap is inferred from "
            "the runtimes: record with a second counter (without --no-pairs)"
        )
    return Subject(
        slow.outline,
        fast.outline,
        runs.pages,
        runs.cut_by.value,
        runs.slow.ns,
        runs.fast.ns,
        np.bincount(model.page, model.accesses, len(runs.pages)).astype(np.float64),
        model.estimate,
        model,
        notes,
    )


def _published(
    args: argparse.Namespace, slow: TraceFile, fast: TraceFile, notes: list[str]
) -> Subject:
    from hmd.estimate import CutBy, isc22, side_by_side, window_count

    window_ms = ISC22_WINDOW_MS if args.window is None else args.window
    count, by = window_count(slow.outline, window_ms * 1e6), CutBy(args.cut_by or "time")
    runs = side_by_side(slow, fast, windows=count, cut_by=by)
    return Subject(
        slow.outline,
        fast.outline,
        runs.pages,
        by.value,
        runs.slow.ns,
        runs.fast.ns,
        runs.pages.accesses,
        partial(isc22.estimate, runs),
        None,
        notes,
    )
