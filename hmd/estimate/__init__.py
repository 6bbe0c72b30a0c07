# SPDX-License-Identifier: MIT
"""The runtime estimator: predicts a program's runtime under another placement of its pages.

From two recorded runs of a program, one with all of its pages slow and one with all fast, the
runtime of any other layout, of every capacity of the fast tier, or of a schedule of migrations::

    from hmd.estimate import build_model, interval, layout, side_by_side, sweep
    from hmd.trace.reader import TraceFile

    runs = side_by_side(TraceFile(Path("slow.hmdt")), TraceFile(Path("fast.hmdt")))
    every_other = layout.interleaved(runs.pages, 0.5)      # bool, True in fast memory: (pages,)
    model = build_model(runs)
    print(model.estimate(every_other).runtime_ns, interval(model, every_other))
    # Pages are ordered by the slow run's samples and priced with the fast run's: no selection bias.
    model = build_model(runs, fast_samples=True)
    curve = sweep(model, layout.heat_order(runs.pages), steps=100)
    print(curve.fast_bytes, curve.runtime_ns, curve.knee)

Pages are those that were sampled (``PageIndex``); times are nanoseconds of the traces' clock.
The import loads numpy; compiled kernels load with the first estimate.
"""

from hmd.estimate import layout
from hmd.estimate.breakdown import (
    CapacitySweep,
    Interval,
    Phase,
    Region,
    by_phase,
    by_region,
    find_knee,
    interval,
    over_pairs,
    sweep,
)
from hmd.estimate.layout import Layout, MemoryRegions, find_regions, read_layout
from hmd.estimate.model import (
    Coefficients,
    Estimate,
    RuntimeModel,
    build_model,
)
from hmd.estimate.runs import AlignedRuns, TierSpeeds, check, side_by_side
from hmd.estimate.samples import PageIndex, index_pages
from hmd.estimate.schedule import (
    PAGE_MOVE_NS,
    PricedSchedule,
    Schedule,
    price_schedule,
    read_schedule,
)
from hmd.estimate.windows import CutBy, Windows, cut

__all__ = [
    "PAGE_MOVE_NS",
    "AlignedRuns",
    "CapacitySweep",
    "Coefficients",
    "CutBy",
    "Estimate",
    "Interval",
    "Layout",
    "MemoryRegions",
    "PageIndex",
    "Phase",
    "PricedSchedule",
    "Region",
    "RuntimeModel",
    "Schedule",
    "TierSpeeds",
    "Windows",
    "build_model",
    "by_phase",
    "by_region",
    "check",
    "cut",
    "find_knee",
    "find_regions",
    "index_pages",
    "interval",
    "layout",
    "over_pairs",
    "price_schedule",
    "read_layout",
    "read_schedule",
    "side_by_side",
    "sweep",
]
