"""The features of the learned policy: scale-free figures per row, and the rate they start from.

Takes the page view of each tick, gives a column per feature (:data:`FEATURES`, in version
:data:`VERSION`) and a base rate. Figures of earlier ticks are kept per page, 40 bytes each. The
first call of a tick learns from it; a second gives the same. About 60 ns per page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.loaded_latency import loaded_latency_ns, tier_latency_ns
from hmd.decide.node_arrays import Nodes
from hmd.decide.phase_memory import PhaseMemory, ProgramPhase
from hmd.decide.plan import MachineView
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.decide.feature_kernel import RowColumns, Surroundings
    from hmd.heat.page_state import PageState
    from hmd.heat.page_view import PageView

VERSION: Final = 1
"""Version of the features: weights are of one version, and a change of a feature is another."""

_FLOOR: Final = 0.01
"""Share of its process's mean that a page's base rate has at least: none is beyond prediction."""

_LONG: Final = 1 / 16
_LEAST: Final = 1e-12
_LEAST_MEAN: Final = 1e-20

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PageFeatures:
    """The rows of a view: ``columns`` of shape ``(len(FEATURES), n)``, ``base`` of ``(n,)``.

    ``base`` is in accesses per second and 4 KiB page, as ``PageView.rate``. A prediction is this
    times two to the power of what a network returns.
    """

    columns: npt.NDArray[np.float32]
    base: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """The features of the rows of a view, computed for some rows at a time.

    ``base`` is as in :class:`PageFeatures`. It is valid until the features of the next tick.
    """

    base: npt.NDArray[np.float32]
    _kept: npt.NDArray[np.float32]
    _phase: int
    _rows: RowColumns
    _around: Surroundings

    def fill(self, begin: int, columns: npt.NDArray[np.float32]) -> None:
        """Fill ``columns``, shape ``(len(FEATURES), k)``, with those of the k rows from there."""
        from hmd.decide.feature_kernel import fill_features

        fill_features(self._kept, self._phase, self._rows, self._around, begin, columns)


@dataclass(slots=True)
class _ProcessHistory:
    """Averages of a process over 16 ticks: accesses per second, and their share on fast nodes."""

    rate: float
    fast: float


class LearnedFeatures:
    """Computes the features, tick by tick, of the processes of one heat table at a time."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._tick = -1
        self._kept: PageState | None = None
        self._phases = PhaseMemory()
        self._phase = ProgramPhase(0, 0, False, 1.0)
        self._history: dict[ProcessId, _ProcessHistory] = {}

    def of(self, pages: PageView, machine: MachineView, nodes: Nodes) -> PageFeatures:
        """Return the features of all rows of a view, movable or not."""
        from hmd.decide.feature_kernel import FEATURES

        rows = self.rows(pages, machine, nodes)
        columns = np.empty((len(FEATURES), len(pages)), np.float32)
        rows.fill(0, columns)
        return PageFeatures(columns, rows.base)

    def rows(self, pages: PageView, machine: MachineView, nodes: Nodes) -> RowFeatures:
        """Learn from the tick of a view; return the features of its rows, not computed yet."""
        from hmd.decide.feature_kernel import KEPT, RATE, RowColumns, age_kept
        from hmd.heat.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._kept is None:
            self._kept = PageState(np.float32, 0, KEPT)
        kept, number = self._kept.in_place(pages)
        news = pages.tick != self._tick
        if news:
            self._phase = phase = self._phases.update(pages)
            age_kept(kept, number, pages.tick_samples, pages.tick, phase.number, phase.new)
            self._tick = pages.tick
        rows = RowColumns(
            number,
            pages.process,
            pages.vicinity,
            nodes.tier[np.clip(pages.node, 0, len(nodes.tier) - 1)],
            pages.size,
            pages.wear,
            pages.rate,
            pages.support,
            pages.tick_samples,
            pages.idle_ticks,
        )
        around = self._around(pages, machine, nodes, rows, kept, news)
        base = pages.rate + (np.float32(_FLOOR) * around.mean[:, RATE])[pages.process]
        return RowFeatures(base, kept, self._phase.number, rows, around)

    def _remember(self, pages: PageView, fast: Values) -> None:
        """Average what each process does over 16 ticks."""
        history = {}
        for slot, process in enumerate(pages.processes):
            rate, share = float(pages.process_rate[slot]), float(fast[slot])
            past = self._history.get(process) or _ProcessHistory(rate, share)
            past.rate += _LONG * (rate - past.rate)
            past.fast += _LONG * (share - past.fast)
            history[process] = past
        self._history = history

    def _around(
        self,
        pages: PageView,
        machine: MachineView,
        nodes: Nodes,
        rows: RowColumns,
        kept: npt.NDArray[np.float32],
        news: bool,
    ) -> Surroundings:
        """Return what the rows share; with ``news``, processes' histories learn from the tick."""
        from hmd.decide.feature_kernel import (
            FAST,
            NEAR_NOW,
            NEAR_RATE,
            NEAR_SIZE,
            NEAR_SUMS,
            RATE,
            SIZE,
            SUMS,
            Surroundings,
            sum_rows,
        )

        slots, phase = len(pages.processes), self._phase
        sums, near = np.zeros((slots, SUMS)), np.zeros((pages.vicinities, NEAR_SUMS))
        sum_rows(kept, phase.number, rows, sums, near)
        fast = sums[:, FAST] / np.maximum(sums[:, RATE], _LEAST)
        if news:
            self._remember(pages, fast)
        size = np.maximum(sums[:, SIZE], 1.0)
        mean = (sums[:, :SIZE] / size[:, None]).astype(np.float32)
        there = np.maximum(near[:, NEAR_SIZE], 1.0)
        whole = max(float(sums[:, RATE].sum()) / float(size.sum()), _LEAST)
        common = np.zeros((slots, 3))
        common[:, 0] = np.log2(np.maximum(sums[:, RATE] / size / whole, 1e-3))
        for slot, process in enumerate(pages.processes):
            past, rate = self._history[process], float(pages.process_rate[slot])
            common[slot, 1] = np.log2((rate + _LEAST) / (past.rate + _LEAST))
            common[slot, 2] = float(fast[slot]) - past.fast
        idle_ns = tier_latency_ns(machine.topology, nodes)
        loaded_ns = loaded_latency_ns(pages, machine.topology, nodes)
        slower = np.append(loaded_ns[1:2], loaded_ns[1:]) / loaded_ns[0]
        room = float(max(int(nodes.by_tier(nodes.room)[0]), 0)) * 4096 / max(nodes.fast_bytes, 1)
        return Surroundings(
            mean,
            np.float32(1) / (mean + np.float32(_LEAST_MEAN)),
            common,
            near[:, NEAR_RATE] / there,
            near[:, NEAR_NOW] / there,
            np.log2(slower),
            np.log2(loaded_ns / idle_ns),
            np.array([np.log2(1.0 + phase.ticks), phase.similarity, room]),
        )
