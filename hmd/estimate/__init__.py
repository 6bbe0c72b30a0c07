"""The runtime estimator: how long a program takes with its pages placed otherwise.

From two recorded runs of a program, one with all of its pages slow and one with all fast, the
runtime of any other layout, of every capacity of the fast tier, or of a schedule of migrations::

    from hmd.estimate import Rows, Terms, build_model, interval, layout, side_by_side, sweep
    from hmd.trace.large import TraceFile

    runs = side_by_side(TraceFile(Path("slow.hmdt")), TraceFile(Path("fast.hmdt")))
    every_other = layout.interleaved(runs.pages, 0.5)      # bool, True in fast memory: (pages,)
    model = build_model(runs)
    print(model.estimate(every_other).runtime_ns, interval(model, every_other))
    # What is hottest by the slow run's samples is priced with the fast run's: no luck counts.
    model = build_model(runs, terms=Terms(rows=Rows.FAST))
    curve = sweep(model, layout.heat_order(runs.pages), steps=100)
    print(curve.fast_bytes, curve.runtime_ns, curve.knee)

Pages are those that were sampled (``PageIndex``); times are nanoseconds of the traces' clock. The
published formula is ``isc22.estimate``. Importing this costs numpy; compiled kernels load with the
first estimate.
"""

from hmd.estimate import isc22, layout
from hmd.estimate.breakdown import Phase, Region, by_phase, by_region
from hmd.estimate.estimate import Estimate
from hmd.estimate.files import read_layout, read_schedule
from hmd.estimate.interval import Interval, interval
from hmd.estimate.layout import Layout
from hmd.estimate.match import check
from hmd.estimate.model import Coefficients, Model, Rows, Terms, build_model
from hmd.estimate.oracle import Oracle, best_static, oracle
from hmd.estimate.pages import PageIndex, index_pages
from hmd.estimate.regions import Regions, find_regions
from hmd.estimate.runs import Runs, TierSpeeds, side_by_side
from hmd.estimate.schedule import MOVE_NS, PricedSchedule, Schedule, price_schedule
from hmd.estimate.sweep import Sweep, find_knee, sweep
from hmd.estimate.windows import CutBy, Windows, cut, window_count

__all__ = [
    "MOVE_NS",
    "Coefficients",
    "CutBy",
    "Estimate",
    "Interval",
    "Layout",
    "Model",
    "Oracle",
    "PageIndex",
    "Phase",
    "PricedSchedule",
    "Region",
    "Regions",
    "Rows",
    "Runs",
    "Schedule",
    "Sweep",
    "Terms",
    "TierSpeeds",
    "Windows",
    "best_static",
    "build_model",
    "by_phase",
    "by_region",
    "check",
    "cut",
    "find_knee",
    "find_regions",
    "index_pages",
    "interval",
    "isc22",
    "layout",
    "oracle",
    "price_schedule",
    "read_layout",
    "read_schedule",
    "side_by_side",
    "sweep",
    "window_count",
]
