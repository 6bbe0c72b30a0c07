# SPDX-License-Identifier: MIT
"""Training rows: what the learned policy sees of a page at a tick, and what the page does next.

Takes a recorded program, a machine and a policy that moves pages meanwhile; gives rows of features
with the misses that follow, which the recording knows. Rates and features are the daemon's own. The
policy matters: where the network under training moved the hot pages, the slow node's pages that
look hot are those that chance made look so, and a network that has not seen such rows overrates
them (Ross et al., "A reduction of imitation learning and structured prediction to no-regret online
learning", AISTATS 2011). Takes as long as a simulation, plus 1 ms per tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from hmd.base.atomic_file import finished_file
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissFlag, MissStream
from hmd.emulate.recordings.replay import replayed
from hmd.heat.view import PageView
from hmd.policy.learned.network import FEATURES, feature_columns
from hmd.policy.long_run import LongRun
from hmd.policy.plan import MachineView, Plan, Policy
from hmd.simulate.machine import SimulatedMachine, first_rows
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings, run_daemon

ROWS_PER_TICK: Final = 400
HEADROOM_BYTES: Final = 64 << 10

_SLOTS: Final = 1000
_S_PER_PS: Final = 1e-12

Floats = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


class MissValues:
    """What each page's misses save on the fast node, by rows of the stream.

    Sums over a thousand slots of equal numbers of rows, 4 bytes per page and slot: rows are rounded
    down to the begin of a slot.
    """

    def __init__(self, stream: MissStream, preset: Preset) -> None:
        pages, rows = stream.user_pages, len(stream)
        self.first_row = first_rows(stream)
        waited = stream.sampled() & ((stream.flags & np.uint8(MissFlag.COVERED)) == 0)
        waited &= stream.page < pages
        slow, fast = (replayed(stream, preset, np.full(pages, on)) for on in (False, True))
        self.per_miss_s = (slow - fast) * _S_PER_PS / max(int(np.count_nonzero(waited)), 1)
        self._ends = np.linspace(0, rows, _SLOTS + 1).astype(np.int64)
        self._sums = np.zeros((_SLOTS + 1, pages), np.float32)
        for slot in range(_SLOTS):
            part = slice(self._ends[slot], self._ends[slot + 1])
            misses = np.bincount(stream.page[part][waited[part]], minlength=pages)
            self._sums[slot + 1] = self._sums[slot] + misses

    def between(self, begin: int, end: int) -> Values:
        """Return the seconds that each page's misses of these rows save; shape ``(pages,)``."""
        first, last = np.searchsorted(self._ends, (begin, end), side="right") - 1
        misses: Values = self._sums[last].astype(np.float64) - self._sums[first]
        return misses * self.per_miss_s


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """Columns of shape ``(n,)``; ``features`` has shape ``(n, features)``.

    ``base`` is the rate that the network's answer multiplies, ``future`` the rate of misses that
    wait within the horizon, each over its mean over all pages at that tick. ``program`` numbers
    recordings.
    """

    features: Floats
    base: Floats
    future: Floats
    program: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.base)

    def take(self, rows: npt.NDArray[Any]) -> Self:
        """Return the given rows."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[TrainingRows]) -> Self:
        """Return the rows of all parts."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def write(self, path: Path) -> None:
        """Write the rows, whole or not at all."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        with finished_file(path) as file:
            np.savez(file, allow_pickle=False, **columns)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` wrote."""
        # Of a damaged file, np.load leaves open what it opened itself.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return cls(*(file[field.name] for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class RowRequest:
    """What to collect: the ``program``'s number, how far ahead rows look, and a seed."""

    program: int
    horizon_ticks: int
    seed: int


def collect_rows(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    policy: Policy,
    settings: SimulationSettings,
    request: RowRequest,
    values: MissValues | None = None,
) -> TrainingRows:
    """Run a program under a policy; return a random part of the rows of each tick.

    ``values`` are those of the stream and preset, made if None.
    """
    with SimulatedMachine(stream, preset, fast_pages, settings.cost) as machine:
        known = values or MissValues(stream, preset)
        logger = RowLogger(policy, machine, known, request, settings.delay_s)
        run_daemon(SimulatedDaemon(machine, logger, settings))
    return logger.rows()


class RowLogger:
    """A policy that logs rows and decides as another one."""

    def __init__(
        self,
        policy: Policy,
        machine: SimulatedMachine,
        values: MissValues,
        request: RowRequest,
        delay_s: float,
    ) -> None:
        self.name = policy.name
        self._policy, self._machine, self._values = policy, machine, values
        self._request, self._delay_s = request, delay_s
        self._random = np.random.default_rng(request.seed)
        self._long_run = LongRun()
        self._row, self._time_s = 0, 0.0
        self._parts: list[TrainingRows] = []

    def plan(self, pages: PageView, machine: MachineView) -> Plan:
        """Log rows of the tick; return the policy's plan."""
        row, now_s = self._machine.row, self._machine.now_s
        per_s = (row - self._row) / max(now_s - self._time_s, 1e-9)
        self._row, self._time_s = row, now_s
        if len(pages):
            self._log_tick(pages, machine, row, per_s)
        return self._policy.plan(pages, machine)

    def _log_tick(self, pages: PageView, machine: MachineView, row: int, per_s: float) -> None:
        """Log a random part of the rows of a tick, which ended at this row of the stream."""
        rate = self._long_run.mix_rates(pages)
        ahead_s = self._request.horizon_ticks * machine.tick_s
        begin = row + round(per_s * self._delay_s)
        end = begin + round(per_s * ahead_s)
        # What the program does after its end is not known.
        if end > len(self._machine.stream):
            return
        future = self._values.between(begin, end)[self._pages(pages.address)] / pages.size
        size = pages.size / pages.size.sum()
        means = float((rate * size).sum()), float((future * size).sum())
        if min(means) > 0:
            chosen = self._random.permutation(len(pages))[:ROWS_PER_TICK]
            columns = feature_columns(pages, rate)[:, chosen].T
            self._log(columns, rate[chosen] / means[0], future[chosen] / means[1])

    def rows(self) -> TrainingRows:
        """Return all rows so far."""
        if not self._parts:
            self._log(np.empty((0, len(FEATURES))), np.empty(0), np.empty(0))
        return TrainingRows.joined(self._parts)

    def _log(
        self, features: npt.NDArray[Any], base: npt.NDArray[Any], future: npt.NDArray[Any]
    ) -> None:
        program = np.full(len(base), self._request.program, np.int32)
        features, base, future = (each.astype(np.float32) for each in (features, base, future))
        self._parts.append(TrainingRows(features, base, future, program))

    def _pages(self, address: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        stream = self._machine.stream
        return np.searchsorted(stream.page_address[: stream.user_pages], address)
