"""Control of perf events: one set of rings that are started, stopped and closed together."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hmd.sample.access_batch import Kind
from hmd.sample.memory_events import event_period
from hmd.sample.perf_events import EventRing
from hmd.sample.period_control import partner


class PerfControl:
    """Starts, stops and sets the period of perf events; owns their rings.

    One event per CPU for all processes, and a filter on pid when it is read. The other layout,
    an inherited event per thread and CPU, needs threads x CPUs descriptors and misses threads
    that start between two reads of /proc/PID/task; an inherited event on all CPUs at once cannot
    have a ring at all (mmap gives EINVAL). This layout needs CPUs x events descriptors whatever
    runs, and follows new threads at once. Its price: samples of other programs are taken and
    thrown away, so that nothing is enabled while nothing is tracked.
    """

    def __init__(
        self,
        rings: Sequence[EventRing],
        scales: Sequence[int] | None = None,
        seconds: Sequence[EventRing] = (),
        record_s: float = 0.0,
        *,
        thins_stores: bool = False,
    ) -> None:
        """``scales`` are, per ring, what a period is multiplied by.

        ``seconds`` are rings of second counters, which have the period's ``partner``. A record
        takes ``record_s`` of its CPU, 0 where that is not known. ``thins_stores``: stores are
        sampled more rarely where their records show nothing (:mod:`hmd.sample.store_factor`).
        """
        self.thins_stores = thins_stores
        self.cpus = [ring.cpu for ring in (*rings, *seconds)]
        self.record_s = record_s
        self._rings, self._seconds = tuple(rings), tuple(seconds)
        self._scales = tuple(scales) if scales is not None else (1,) * len(self._rings)

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC: programs have it, too."""
        return time.monotonic()

    def start(self) -> None:
        """Enable all events. Raises ``PerfError``."""
        for ring in (*self._seconds, *self._rings):
            ring.enable()

    def stop(self) -> None:
        """Disable all events. Raises ``PerfError``."""
        for ring in (*self._rings, *self._seconds):
            ring.disable()

    def set_period(self, period: int, store_factor: int = 1) -> None:
        """Set every event's period, that of stores times ``store_factor``. Raises ``PerfError``."""
        for ring, scale in zip(self._rings, self._scales, strict=True):
            factor = store_factor if ring.kind is Kind.STORE else 1
            ring.set_period(event_period(ring.kind, period, scale * factor))
        for ring in self._seconds:
            ring.set_period(partner(period))

    def close(self) -> None:
        """Close all events and rings."""
        for ring in (*self._seconds, *self._rings):
            ring.close()
