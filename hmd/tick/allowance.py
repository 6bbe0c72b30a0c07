# SPDX-License-Identifier: MIT
"""How much CPU time the daemon may use where no quota is set: by the machine and by the gain.

Takes what ticks cost and what their samples show; gives shares of one CPU:

- ``CALM_SHARE`` while nothing changes and nothing pays;
- ``SEARCH_SHARE`` for ``SEARCH_S`` after a change, and after moves that pay;
- for ``FIND_S`` of that more, as far as moves have paid for it: a tenth of the time that samples
  show moves to have saved (``SAVED_SHARE``) fills a bucket, which also pays what moves cost beyond
  the search share. It fills at ``MACHINE_SHARE`` of all CPUs at most, and holds ``BUCKET_S`` of
  that.

Over a time t, the daemon thus uses at most 1 % of the machine's CPUs times t + ``BUCKET_S``, and of
what exceeds the search share at most a tenth of what moves have saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.linux.topology import Topology
from hmd.metrics.tick_record import TickRecord
from hmd.policy.latency import min_parallelism
from hmd.sample.access_batch import AccessBatch

CALM_SHARE: Final = 0.001
SEARCH_SHARE: Final = 0.01
MACHINE_SHARE: Final = 0.01
SAVED_SHARE: Final = 0.1
SEARCH_S: Final = 60.0
BUCKET_S: Final = 120.0
FIND_S: Final = 10.0
SPEND_S: Final = 20.0
"""Time over which samples, plans and sweeps may spend what the bucket holds."""
MIN_PAYING_SHARE: Final = 1 / 512
"""Promotions of a tick are a gain where their pages have so much of all accesses. In calm times,
plans with less wait: what they leave adds up, until a later plan has more."""
Nodes: TypeAlias = npt.NDArray[np.int16]

_MIN_SAMPLES: Final = 64
_MIN_DROP: Final = 1 / 16
_DEVIATIONS: Final = 4.0
_WEIGHT: Final = 0.2


@dataclass(frozen=True, slots=True)
class AccessSums:
    """Samples of ``elapsed_s`` with a known page, their accesses, and those of the fastest tier."""

    samples: int
    accesses: float
    fast: float
    elapsed_s: float

    @classmethod
    def of(
        cls, batch: AccessBatch, node: Nodes, topology: Topology, elapsed_s: float
    ) -> AccessSums:
        """Add up a batch; ``node`` of each sample's page, -1 where not known."""
        known = node >= 0
        weight = np.where(known, batch.period, 0).astype(np.float64)
        fast = weight[np.isin(node, topology.tiers[0])].sum() if topology.tiers else 0.0
        return cls(int(np.count_nonzero(known)), float(weight.sum()), float(fast), elapsed_s)


@dataclass(frozen=True, slots=True)
class TickGain:
    """A tick's accesses, those per second that its plan promotes, and CPU seconds saved."""

    sums: AccessSums
    promoted_rate: float = 0.0
    saved_s: float = 0.0


def tick_gain(record: TickRecord, topology: Topology, cpus: float, stall_s: float) -> TickGain:
    """Return the gain of a tick in which accesses to moved pages took ``stall_s`` less in all.

    Misses that overlap wait together: their latencies are divided by what the programs' busy
    ``cpus`` cannot have waited one after another (:func:`hmd.policy.latency.min_parallelism`).
    """
    sums = AccessSums.of(record.batch, record.node, topology, record.tick_s)
    known = record.node >= 0
    latency_s = np.array([*topology.latency_ns, 0.0])[record.node] * 1e-9
    waits_s = (latency_s * record.batch.period)[known].sum(keepdims=True)
    overlap = float(min_parallelism(waits_s, np.array([cpus * record.tick_s]))[0])
    plan = record.plan
    up = np.isin(plan.to_node, topology.tiers[0]) if topology.tiers else np.zeros(0, np.intp)
    promoted = float((plan.heat[up].astype(np.float64) * plan.pages[up]).sum())
    return TickGain(sums, promoted, stall_s / overlap)


class AccessWatch:
    """Tells from few samples whether the fastest tier serves fewer accesses than in earlier ticks.

    Fewer by ``_MIN_DROP`` and more than chance is a change; of ``_MIN_SAMPLES`` at least.
    """

    def __init__(self) -> None:
        self._share: float | None = None

    def is_changed(self, sums: AccessSums) -> bool:
        """Return whether samples contradict those of earlier ticks."""
        if self._share is None or sums.samples < _MIN_SAMPLES:
            return False
        drop = _MIN_DROP + _DEVIATIONS * math.sqrt(0.25 / sums.samples)
        return self._share - sums.fast / sums.accesses > drop

    def learn(self, sums: AccessSums) -> bool:
        """Add the samples of a tick; return whether they contradict earlier ones."""
        if sums.samples < _MIN_SAMPLES:
            return False
        changed, now = self.is_changed(sums), sums.fast / sums.accesses
        before = now if changed or self._share is None else self._share
        self._share = before + _WEIGHT * (now - before)
        return changed


class CpuAllowance:
    """Adds up what moves have saved (``bucket_s``, in CPU seconds) and what was used."""

    def __init__(self, cpus: int, before: CpuAllowance | None = None) -> None:
        """Begin searching, with the bucket and the watch of ``before``."""
        self.watch: AccessWatch = AccessWatch() if before is None else before.watch
        self.max_share = max(MACHINE_SHARE * cpus, SEARCH_SHARE)
        held_s: float = 0.0 if before is None else before.bucket_s
        self.bucket_s: float = min(held_s, BUCKET_S * self.max_share)
        self._search_left_s, self._find_left_s = SEARCH_S, FIND_S

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing to search for."""
        return self._search_left_s <= 0

    @property
    def base_share(self) -> float:
        """The share that needs no savings."""
        return CALM_SHARE if self.is_calm else SEARCH_SHARE

    @property
    def share(self) -> float:
        """The share of a CPU by which work is planned: the base, and what the bucket adds."""
        if self._find_left_s <= 0:
            return self.base_share
        return min(SEARCH_SHARE + self.bucket_s / SPEND_S, self.max_share)

    def pay(self, owed_s: float) -> float:
        """Take CPU seconds that are owed from the bucket; return how many it paid."""
        paid_s = 0.0 if self.is_calm else min(max(owed_s, 0.0), self.bucket_s)
        self.bucket_s -= paid_s
        return paid_s

    def update(
        self, gain: TickGain, elapsed_s: float, *, hot_set_changed: bool, planned: bool
    ) -> None:
        """Add a tick that took ``elapsed_s``; a search ends by ticks that have ``planned``."""
        filled_s = min(SAVED_SHARE * max(gain.saved_s, 0.0), self.max_share * elapsed_s)
        self.bucket_s = min(self.bucket_s + filled_s, BUCKET_S * self.max_share)
        sums = gain.sums
        changed = self.watch.learn(sums) or hot_set_changed
        pays = gain.promoted_rate * sums.elapsed_s > MIN_PAYING_SHARE * sums.accesses
        if changed or pays:
            self.search()
        elif planned:
            self._search_left_s -= elapsed_s
            self._find_left_s -= elapsed_s

    def search(self) -> None:
        """Search from now on: something has changed or pays."""
        self._search_left_s, self._find_left_s = SEARCH_S, FIND_S
