# SPDX-License-Identifier: MIT
"""The static oracle: the best placement of a recorded program that never changes.

Takes the saving of each page in fast memory; returns the pages to place there. There are two
solvers: greedy by density (saving per byte), and integer programming (HiGHS; the extra ``ilp``),
which also fills the last bytes where pages differ in size. The saving of a page depends on the
other fast pages, because misses overlap and tiers have loads. So :func:`oracle` linearises the
model at a layout, solves, prices the result, and repeats from there; about 20 estimates per
iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import missing_extra
from hmd.estimate.layout import Layout
from hmd.estimate.model import RuntimeModel, SlowMass

Floats = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.int64]

# Share of a cell's accesses by which it is varied for the finite difference.
_STEP: Final = 0.02


@dataclass(frozen=True, slots=True)
class Oracle:
    """The best layout found and the greedy one, shape ``(pages,)``, both priced by the model."""

    layout: Layout
    runtime_ns: float
    greedy: Layout
    greedy_ns: float


def greedy(saving: Floats, size_bytes: Sizes, fast_bytes: int) -> Layout:
    """Return the pages of the highest saving per byte that fit; columns of shape ``(pages,)``.

    Pages without a saving are not selected.
    """
    chosen = np.zeros(len(saving), np.bool_)
    order = np.argsort(-saving / np.maximum(size_bytes, 1), kind="stable")
    order = order[saving[order] > 0]
    sizes = np.unique(size_bytes[order])
    if len(sizes) <= 1:
        chosen[order[: fast_bytes // int(sizes.max(initial=1))]] = True
        return chosen
    left = fast_bytes
    for page, size in zip(order.tolist(), size_bytes[order].tolist(), strict=True):
        if size <= left:
            chosen[page] = True
            left -= size
    return chosen


def best_static(
    saving: Floats, size_bytes: Sizes, fast_bytes: int, limit_s: float = 30.0
) -> Layout:
    """Return the pages of the largest total saving within ``fast_bytes``; shapes ``(pages,)``.

    An integer program with one variable per kind of equal pages. For pages of one size the greedy
    selection is optimal and is returned. ``limit_s`` bounds the search, which then returns the best
    selection found, never worse than greedy. Raises MissingError without highspy.
    """
    first = greedy(saving, size_bytes, fast_bytes)
    useful = np.flatnonzero((saving > 0) & (size_bytes <= fast_bytes))
    if not len(useful) or len(np.unique(size_bytes[useful])) == 1:
        return first
    kinds, kind = np.unique(
        np.stack([saving[useful], size_bytes[useful].astype(np.float64)]),
        axis=1,
        return_inverse=True,
    )
    kind = kind.reshape(-1)
    count = np.bincount(kind)
    taken = _solve(kinds[0], kinds[1], count, fast_bytes, limit_s)
    # The first of equal pages.
    order = np.argsort(kind, kind="stable")
    rank = np.empty(len(useful), np.int64)
    rank[order] = np.arange(len(useful)) - np.repeat(np.cumsum(count) - count, count)
    chosen = np.zeros(len(saving), np.bool_)
    chosen[useful[rank < taken[kind]]] = True
    fits = size_bytes[chosen].sum() <= fast_bytes
    return chosen if fits and saving[chosen].sum() > saving[first].sum() else first


def _solve(
    saving: Floats, size: Floats, count: npt.NDArray[np.int64], room: int, limit_s: float
) -> npt.NDArray[np.int64]:
    """Return the number of pages to select per kind: the knapsack problem, solved by HiGHS."""
    try:
        import highspy
    except ImportError:
        raise missing_extra("the best placement", "highspy", "ilp") from None
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", limit_s)
    solver.setOptionValue("mip_rel_gap", 1e-6)
    # One deterministic thread: the same trace gives the same oracle.
    solver.setOptionValue("threads", 1)
    kinds = len(saving)
    # In units of the smallest page and of the largest saving, so that numbers are near 1.
    unit, scale = float(size.min()), float(saving.max())
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = kinds, 1
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = saving / scale
    program.col_lower_, program.col_upper_ = np.zeros(kinds), count.astype(np.float64)
    program.row_lower_, program.row_upper_ = np.array([-highspy.kHighsInf]), np.array([room / unit])
    program.integrality_ = [highspy.HighsVarType.kInteger] * kinds
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.array([0, kinds])
    matrix.index_, matrix.value_ = np.arange(kinds), size / unit
    solver.passModel(program)
    solver.run()
    values = np.array(solver.getSolution().col_value)
    if len(values) != kinds:
        return np.zeros(kinds, np.int64)
    return np.asarray(np.clip(np.rint(values), 0, count), np.int64)


def savings(model: RuntimeModel, layout: Layout) -> Floats:
    """Return the decrease of the model's runtime per page that becomes fast, ``(pages,)``, in ns.

    At a layout: the slope of each window's runtime in each kind of access, by finite differences,
    times the page's accesses. Interactions between pages are neglected.
    """
    mass = model.slow_mass((~layout).astype(np.float32))
    parts, threads = model.parts, model.parts // model.windows
    kinds = len(model.total) // parts - 3
    base = model.price(mass).window_ns
    loads = parts * kinds
    cells = np.arange(len(model.total))
    part = np.where(cells < loads, cells // kinds, (cells - loads) % parts)
    kind = np.where(cells < loads, cells % kinds, kinds + (cells - loads) // parts)
    slope = np.zeros(len(cells))
    for number, thread in product(range(kinds + 3), range(threads)):
        selected = (kind == number) & (part % threads == thread)
        # A downward step where something is slow, else upward: cells are between none and all.
        change = np.where(mass.cells > 0, -1.0, 1.0) * _STEP * model.total * selected
        moved = np.clip(mass.cells + change, 0.0, model.total)
        step = (moved - mass.cells)[selected]
        gone = model.price(SlowMass(moved, mass.pair_a, mass.pair_b)).window_ns - base
        slope[selected] = np.where(step != 0, gone / np.where(step != 0, step, 1.0), 0.0)
    begin = model.begin.astype(np.int64)
    cell = np.repeat(cells, begin[1:] - begin[:-1])
    worth = model.accesses * slope[cell]
    return np.bincount(model.page, worth, model.pages).astype(np.float64)


def oracle(
    model: RuntimeModel, size_bytes: Sizes, fast_bytes: int, heat: Floats, rounds: int = 6
) -> Oracle:
    """Return the best static layout found within ``fast_bytes`` of fast memory.

    ``heat``, ``(pages,)``, orders the greedy layout (accesses); by the model the result is never
    worse. Price a layout with other samples than those it was made of, to avoid selection bias
    (:class:`hmd.estimate.model.SampleSelection`). Raises as :func:`best_static`.
    """
    first = greedy(heat, size_bytes, fast_bytes)
    first_ns = model.estimate(first).runtime_ns
    best, best_ns = first, first_ns
    mean = np.zeros(model.pages)
    layout = first
    for number in range(rounds):
        # Slopes of one layout make the next overshoot: the mean of slopes converges.
        mean += (np.maximum(savings(model, layout), 0.0) - mean) / (number + 1)
        layout = best_static(mean, size_bytes, fast_bytes)
        now_ns = model.estimate(layout).runtime_ns
        if now_ns < best_ns:
            best, best_ns = layout, now_ns
    return Oracle(best, best_ns, first, first_ns)
