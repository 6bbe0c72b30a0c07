"""The features of the learned policy: scale-free figures per row, and the rate they start from.

Takes the page view of each tick, gives a column per feature (:data:`FEATURES`, in version
:data:`VERSION`) and a base rate. Figures of earlier ticks are kept per page, 40 bytes each. The
first call of a tick learns from it; a second gives the same. About 130 ns per page.
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
    from hmd.decide.feature_kernel import Surroundings
    from hmd.heat.page_state import PageState
    from hmd.heat.page_view import PageView

VERSION: Final = 1
"""Version of the features: weights are of one version, and a change of a feature is another."""

_FLOOR: Final = 0.01
"""Share of its process's mean that a page's base rate has at least: none is beyond prediction."""

_LONG: Final = 1 / 16
_LEAST: Final = 1e-12

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PageFeatures:
    """The rows of a view: ``columns`` of shape ``(len(FEATURES), n)``, ``base`` of ``(n,)``.

    ``base`` is in accesses per second and 4 KiB page, as ``PageView.rate``. A prediction is this
    times two to the power of what a network returns.
    """

    columns: npt.NDArray[np.float32]
    base: npt.NDArray[np.float32]


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
        from hmd.decide.feature_kernel import (
            FEATURES,
            KEPT,
            KEPT_LONG,
            KEPT_PHASE,
            KEPT_SHORT,
            RowColumns,
            age_kept,
            fill_features,
        )
        from hmd.heat.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._kept is None:
            self._kept = PageState(np.float32, 0, KEPT)
        kept, fast = self._kept.read(pages), _fast_shares(pages, nodes)
        if pages.tick != self._tick:
            self._phase = self._phases.update(pages)
            if self._phase.new:
                kept[:, KEPT_PHASE + self._phase.number] = 0.0
            age_kept(kept, pages.tick_samples, pages.tick, self._phase.number)
            self._kept.write(pages, kept)
            self._remember(pages, fast)
            self._tick = pages.tick
        phase = self._phase.number
        counts = (pages.rate * pages.size.astype(np.float32), pages.tick_samples)
        ages = (kept[:, KEPT_SHORT], kept[:, KEPT_LONG], kept[:, KEPT_PHASE + phase])
        around = self._around(pages, machine, nodes, (*counts, *ages), fast)
        tier = nodes.tier[np.clip(pages.node, 0, len(nodes.tier) - 1)]
        rows = RowColumns(
            pages.process,
            pages.vicinity,
            tier,
            pages.size,
            pages.wear,
            pages.rate,
            pages.support,
            pages.tick_samples,
            pages.idle_ticks,
        )
        columns = np.empty((len(FEATURES), len(pages)), np.float32)
        fill_features(kept, phase, rows, around, columns)
        floor = (_FLOOR * around.process[:, 0]).astype(np.float32)
        return PageFeatures(columns, pages.rate + floor[pages.process])

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
        columns: tuple[npt.NDArray[np.float32], ...],
        fast: Values,
    ) -> Surroundings:
        """Return what the rows share; ``columns`` are those that processes have means of."""
        from hmd.decide.feature_kernel import Surroundings

        slots, around = len(pages.processes), pages.vicinities
        size = np.maximum(np.bincount(pages.process, pages.size, slots), 1.0)
        sums = [np.bincount(pages.process, column, slots) for column in columns]
        means = np.stack(sums, axis=1) / size[:, None]
        there = np.maximum(np.bincount(pages.vicinity, pages.size, around), 1.0)
        whole = max(float(sums[0].sum()) / float(size.sum()), _LEAST)
        common = np.zeros((slots, 3))
        common[:, 0] = np.log2(np.maximum(means[:, 0] / whole, 1e-3))
        for slot, process in enumerate(pages.processes):
            past, rate = self._history[process], float(pages.process_rate[slot])
            common[slot, 1] = np.log2((rate + _LEAST) / (past.rate + _LEAST))
            common[slot, 2] = float(fast[slot]) - past.fast
        idle_ns = tier_latency_ns(machine.topology, nodes)
        loaded_ns = loaded_latency_ns(pages, machine.topology, nodes)
        slower = np.append(loaded_ns[1:2], loaded_ns[1:]) / loaded_ns[0]
        room = float(max(int(nodes.by_tier(nodes.room)[0]), 0)) * 4096 / max(nodes.fast_bytes, 1)
        phase = self._phase
        return Surroundings(
            np.ascontiguousarray(means),
            common,
            np.bincount(pages.vicinity, columns[0], around) / there,
            np.bincount(pages.vicinity, columns[1], around) / there,
            np.log2(slower),
            np.log2(loaded_ns / idle_ns),
            np.array([np.log2(1.0 + phase.ticks), phase.similarity, room]),
        )


def _fast_shares(pages: PageView, nodes: Nodes) -> Values:
    """Return the share of each process's accesses that the fastest tier serves."""
    slots = len(pages.processes)
    node = np.clip(pages.node, 0, len(nodes.tier) - 1)
    served = pages.rate * pages.size.astype(np.float32)
    total = np.bincount(pages.process, served, slots)
    fast = np.bincount(pages.process, served * (nodes.tier[node] == 0), slots)
    shares: Values = fast / np.maximum(total, _LEAST)
    return shares
