# SPDX-License-Identifier: MIT
"""Moves ahead of use, for programs that tell when a step uses their memory; else as ``benefit``.

Hints (:mod:`hmd.policy.use_hints`) replace what samples predict of the pages that they are of. How
many accesses the hinted pages of a process have in all is what samples measured; hints say which of
them have these accesses, and when. So a process gains no fast memory by exaggeration, and limits,
priorities and the price of moves are those of ``benefit``.

A page is valued by its next use from when its move must begin: all uses so far must have come by
then at the bandwidth that moves have. Until that, and after its use, its value is a thousandth of
that, and falls with the time until its next use: pages that are used last make room first.
Where no use of a range saves well over what its pages cost to come and to leave, or where a step
takes less than a few ticks, so that moves cannot follow it, samples decide. A use is taken for a
pass over whole pages, whose misses overlap.

About 100 ns per page of processes with hints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.base.units import PAGE_BYTES
from hmd.policy.builtin.benefit import Benefit, BenefitSettings, Rates
from hmd.policy.latency import parallelism, tier_latency_ns
from hmd.policy.nodes import nodes_of
from hmd.policy.plan import MachineView
from hmd.policy.saving import ValueColumns, Values
from hmd.policy.settings import PolicyInfo

if TYPE_CHECKING:
    from hmd.heat.view import PageView
    from hmd.policy.use_hints import UseHints

MIN_STEP_TICKS: Final = 8.0
"""Ticks, with the delay of moves, that a step must take for moves within it."""

PASS_OVERLAP: Final = 8.0
"""How many misses overlap at least where a use passes over whole ranges: prefetchers and the 10 to
16 line fill buffers of a core keep so many lines on their way."""

MAX_LEAD_SHARE: Final = 0.25
"""Part of a step that moves are ahead of a use at most."""

_LEAST_GAIN: Final = 4.0
"""What a use has to save, over the cost of a move: it takes two, and displaces another page. From
twice as much on, hints alone decide; between, samples have their share."""

_SUPPORT: Final = 64.0
"""Samples that a use counts as: its number of accesses is not estimated page by page."""

_WAITING: Final = 1e-3
"""Value of a page that waits, over that of its use."""

_MIN: Final = 1e-9


class TensorsSettings(BenefitSettings):
    """How the policy decides."""


class Tensors(Benefit):
    """Makes the moves that pay by when programs say that they will use their memory."""

    name = "tensors"

    def value_columns(
        self, pages: PageView, machine: MachineView, rate: Rates, horizon_s: Values
    ) -> ValueColumns:
        """Return what the rows are valued by: those of hinted ranges by their next use."""
        columns = super().value_columns(pages, machine, rate, horizon_s)
        hints = machine.hints
        if hints is None:
            return columns
        rate, support, wear = rate.copy(), columns.support.copy(), columns.wear.copy()
        nodes = nodes_of(machine, self.settings.headroom, self.settings.headroom_min)
        latency_ns = tier_latency_ns(machine.topology, nodes)
        known = parallelism(pages, machine)
        overlap = np.maximum(known, PASS_OVERLAP)
        saved_ns = (latency_ns[-1] - latency_ns[0]) / overlap
        min_step_s = MIN_STEP_TICKS * (machine.tick_s + machine.move_delay_s)
        slots = np.flatnonzero(hints.step_s >= min_step_s)
        movable = np.flatnonzero(pages.movable & np.isin(pages.process, slots))
        movable = movable[np.argsort(pages.process[movable], kind="stable")]
        parts = zip(
            slots.tolist(),
            _rows_by_process(pages.process[movable], slots),
            _rows_by_process(hints.process, slots),
            strict=True,
        )
        for slot, of_process, uses in parts:
            step_s = float(hints.step_s[slot])
            rows, place, of_use = _hinted_rows(pages, hints, movable[of_process], uses)
            places = int(of_use.max()) + 1
            measured = float((rate[rows].astype(np.float64) * pages.size[rows]).sum()) * step_s
            length = (hints.end[uses] - hints.address[uses]).astype(np.float64) / PAGE_BYTES
            scale = measured / max(float((hints.accesses[uses] * length).sum()), _MIN)
            most = np.zeros(places)
            np.maximum.at(most, of_use, hints.accesses[uses])
            gain = most * scale * saved_ns[slot] / self.settings.move_ns
            trust = np.clip((gain - _LEAST_GAIN) / _LEAST_GAIN, 0.0, 1.0)
            pays = trust > 0
            slow = np.where(pages.tier[rows] > 0, pages.size[rows], 0) * float(PAGE_BYTES)
            missing = np.bincount(place, slow, places).astype(np.float64)
            value = _values(hints, uses, of_use, np.where(pays, missing, 0.0), step_s, machine)
            # The ledger divides by what is known of the overlap.
            value *= scale * known[slot] / overlap[slot] / max(float(horizon_s[slot]), _MIN)
            rows, place = rows[pays[place]], place[pays[place]]
            rate[rows] += trust[place] * (value[place] - rate[rows])
            support[rows] = np.maximum(support[rows], _SUPPORT)
            wear[rows] = 0  # moves that repeat with each step are meant
        return columns._replace(rate=rate, support=support, wear=wear)


def _rows_by_process(process: npt.NDArray[np.integer], slots: npt.NDArray[np.intp]) -> list[slice]:
    """Return where each slot's rows are in a column of slots that never falls."""
    ends = zip(*(np.searchsorted(process, slots, side) for side in ("left", "right")), strict=True)
    return [slice(first, end) for first, end in ends]


def _hinted_rows(
    pages: PageView,
    hints: UseHints,
    rows: npt.NDArray[np.intp],
    uses: slice,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return a process's rows that are in hinted ranges, the range of each, and that of each use.

    A row that is larger than a base page is of the range that its middle is in.
    """
    begin, of_use = np.unique(hints.address[uses], return_inverse=True)
    end = np.zeros(len(begin), np.uint64)
    np.maximum.at(end, of_use, hints.end[uses])
    middle = pages.address[rows] + pages.size[rows].astype(np.uint64) * np.uint64(PAGE_BYTES // 2)
    place = np.searchsorted(begin, middle, "right") - 1
    inside = (place >= 0) & (middle < end[place])
    return rows[inside], place[inside], of_use


def _values(
    hints: UseHints,
    uses: slice,
    of_use: npt.NDArray[np.intp],
    missing: Values,
    step_s: float,
    machine: MachineView,
) -> Values:
    """Return the accesses that a page of each range is valued by, shape ``(ranges,)``.

    ``missing`` are the bytes of each range that are not in the fastest tier.
    """
    order = np.argsort(hints.begins_s[uses], kind="stable")
    begins, at = hints.begins_s[uses][order], of_use[order]
    # Bytes of a range come once, for its first use.
    is_first = np.zeros(len(at), np.bool_)
    is_first[np.unique(at, return_index=True)[1]] = True
    bytes_per_s = max(machine.budget_bytes / machine.tick_s, 1.0)
    seconds = np.where(is_first, missing[at], 0.0) / bytes_per_s
    came = np.cumsum(seconds)
    # When the move for a use must begin, so that it and all later ones come in time.
    latest = came - seconds + np.minimum.accumulate((begins - came)[::-1])[::-1]
    lead_s = machine.tick_s + machine.move_delay_s
    due = (latest <= lead_s) & (begins <= max(lead_s, MAX_LEAD_SHARE * step_s))
    near = np.clip(1.0 - begins / step_s, 0.0, 1.0)
    worth = hints.accesses[uses][order] * near * np.where(due, 1.0, _WAITING)
    value = np.zeros(len(missing))
    np.maximum.at(value, at, worth)
    return value


POLICY = PolicyInfo(
    name=Tensors.name,
    summary="Moves pages ahead of the uses that programs announce, others as benefit does.",
    suits="Training with hmd.torch.tiered, and other programs whose steps repeat and tell so.",
    settings_type=TensorsSettings,
    create=Tensors,
    kernels=("hmd.policy.saving", "hmd.policy.long_run", "hmd.policy.builtin.histogram"),
)
